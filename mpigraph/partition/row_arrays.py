"""Arrays of rows that need not lie in memory: the edges and features of a graph to partition.

They are numpy arrays, memory maps, or :class:`Rows`, which are computed when they are read, so that an input is never
held dense or converted as a whole. An array that knows the file that it was read from names it in messages
(:func:`place_of`).
"""

import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array, Mask
from mpigraph.errors import GraphDataError
from mpigraph.storage.contents import overlaps
from mpigraph.storage.narrow import RowError

_CHUNK = 1 << 20  # rows
_BYTES_COPIED = 8 << 20
_FEW = 8  # arrays that are not joined by copying
_REAL = "biuf"  # kinds of dtypes


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that are read from files, or made from those of other arrays, when they are asked for.

    Attributes:
        read: returns the rows of a slice, or those with some numbers (int[k]).
        shape: of all of them.
        dtype: of what ``read`` returns.
        sources: the arrays that they are made from; none where a file is read by whole blocks.
        place: names the file and row of a row, "" if it is not known.
    """

    read: Callable[[Any], Array]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sources: Sequence["RowArray"]
    place: Callable[[int], str]

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Array:
        return self.read(rows)


RowArray: TypeAlias = Array | Rows
"""Edges and features: an array, a memory map, or rows of another kind."""


def rows_in_blocks(
    read: Callable[[int, int], Array],
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    bounds: I64,
    place: Callable[[int], str] = lambda row: "",
    of_block: Callable[[int, I64], Array] | None = None,
    sources: Sequence[RowArray] = (),
) -> Rows:
    """Return rows that a function reads, from files by default, whose rows lie in blocks.

    Args:
        read: returns the rows from a first one to the one before an end.
        shape: of all of them.
        dtype: of what it returns.
        bounds: int64[blocks + 1], rows at which blocks begin, and the end. Rows that are no neighbours are read block
            by block.
        place: names the file and row of a row.
        of_block: returns some rows of a block, int64[k], which ascend; by default all from the first to the last of
            them are read.
        sources: the arrays that are read, if they are no files.
    """

    def between(block: int, rows: I64) -> Array:
        low = int(rows[0])
        return read(low, int(rows[-1]) + 1)[rows - low]

    def of_rows(rows: Any) -> Array:
        if isinstance(rows, slice) and rows.step in (None, 1):
            begin, end, _ = rows.indices(shape[0])
            return read(begin, max(begin, end))
        rows = np.arange(shape[0])[rows] if isinstance(rows, slice) else np.asarray(rows)
        gathered = np.empty((len(rows), *shape[1:]), dtype)
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        begins = np.searchsorted(ascending, bounds)
        for block in np.flatnonzero(np.diff(begins)).tolist():
            here = slice(begins[block], begins[block + 1])
            gathered[order[here]] = (of_block or between)(block, ascending[here])
        return gathered

    return Rows(of_rows, shape, np.dtype(dtype), sources, place)


def even_blocks(count: int, rows: int) -> I64:
    """Return the bounds of blocks of as many rows each, as of :func:`rows_in_blocks`."""
    return np.append(np.arange(0, count, rows), count)


def made_rows(
    make: Callable[..., Array],
    dtype: npt.DTypeLike,
    *arrays: RowArray,
    row_shape: tuple[int, ...] | None = None,
    title: str = "",
) -> Rows:
    """Return rows that a function makes from rows of other arrays.

    Args:
        make: gets the same rows of each array, returns as many in ``dtype``; raises RowError.
        dtype: of the rows that it returns.
        arrays: one or more.
        row_shape: all dimensions of these rows except the first, if not those of the first array.
        title: of the rows in messages of errors, where the file may have another.
    """
    first = arrays[0]

    def read(rows: Any) -> Array:
        inputs = [array[rows] for array in arrays]
        try:
            return make(*inputs)
        except RowError as error:
            row = int(range(len(first))[rows][error.row] if isinstance(rows, slice) else rows[error.row])
            what = f"{title}: {error}" if title else error
            raise GraphDataError(f"{place_of(first, row) or f'row {row}'}: {what}") from None

    shape = first.shape if row_shape is None else (len(first), *row_shape)
    return Rows(read, shape, np.dtype(dtype), arrays, partial(place_of, first))


def named_rows(values: RowArray, name: str) -> Rows:
    """Return the rows of an array that was read from a file, which messages name."""
    return Rows(values.__getitem__, values.shape, values.dtype, [values], f"{name}, row {{}}".format)


def reordered(values: RowArray, order: I64) -> Rows:
    """Return rows of an array in another order: ``order`` (int64[n]) has the row of ``values`` at each position."""
    shape = (len(order), *values.shape[1:])
    sources = values, order
    return Rows(
        lambda rows: values[order[rows]], shape, values.dtype, sources, lambda row: place_of(values, int(order[row]))
    )


def side_by_side(columns: Sequence[RowArray]) -> RowArray:
    """Return columns as rows of as many values; a single one as it is."""
    if len(columns) == 1:
        return columns[0]
    dtype = np.result_type(*(column.dtype for column in columns))
    shape = (len(columns),)
    return made_rows(lambda *rows: np.stack(rows, 1).astype(dtype, copy=False), dtype, *columns, row_shape=shape)


def as_mask(mask: RowArray) -> RowArray:
    """Return numbers as bool.

    Raises GraphDataError: they are no real numbers; when they are read, one is neither 0 nor 1.
    """
    _check_real("masks", mask)

    def is_set(rows: Array) -> Mask:
        wrong = np.argwhere((rows != 0) & (rows != 1))
        if len(wrong):
            raise RowError(int(wrong[0][0]), f"a mask has {rows[tuple(wrong[0])]}, which is neither 0 nor 1")
        return np.asarray(rows != 0)

    return mask if mask.dtype == np.bool_ else made_rows(is_set, np.bool_, mask)


def as_floats(rows: RowArray) -> RowArray:
    """Return rows of float32 or float16 as they are, and others as float32, cast when they are read.

    Raises GraphDataError: they are no real numbers; when they are read, one is too large, or an integer that would be
    rounded.
    """
    _check_real("features", rows)
    if rows.dtype in (np.float32, np.float16):
        return rows
    cast = partial(as_dtype, dtype=np.dtype(np.float32), exact=rows.dtype.kind in "iu")
    return made_rows(cast, np.float32, rows)


def as_dtype(rows: Array, dtype: np.dtype[Any], exact: bool = False) -> Array:
    """Return numbers in another dtype; floats are rounded unless ``exact``, and everything but 0 is True.

    Raises RowError: one is too large, would become another integer, or is NaN and would become True.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        cast: Array = rows.astype(dtype)
        fits = rows == rows if dtype.kind == "b" else np.isfinite(cast) | ~np.isfinite(rows)
        fits = cast == rows if dtype.kind in "iu" or exact else fits
    if not fits.all():
        row, *columns = place = tuple(np.argwhere(~fits)[0].tolist())
        column = "".join(f", column {number}" for number in columns)
        raise RowError(row, f"{rows[place]}{column} does not fit {dtype.name}")
    return cast


def as_labels(label: RowArray) -> RowArray:
    """Return labels as int64, cast when they are read; unlabelled (NaN) becomes -1.

    Raises GraphDataError: they are no real numbers; when they are read, one is no integer that fits int64.
    """
    _check_real("labels", label)
    return label if label.dtype == np.int64 else made_rows(as_int64, np.int64, label)


def _check_real(what: str, rows: RowArray) -> None:
    if rows.dtype.kind not in _REAL:
        raise GraphDataError(f"{origin_of(rows, 0)}{what} must be real numbers (got {rows.dtype}{list(rows.shape)})")


def as_int64(rows: Array) -> I64:
    """Return numbers as int64; NaN becomes -1. Raises RowError: one is no integer that fits int64."""
    if rows.dtype.kind == "f":
        rows = np.where(np.isnan(rows), -1, rows)
    try:
        whole: I64 = as_dtype(rows, np.dtype(np.int64))
    except RowError as error:
        wrong = f"{rows[error.row]} is no integer that fits int64, as labels and ids must be"
        advice = "numbers for regression need another name than label (of tables: --columns y=label)"
        raise RowError(error.row, f"{wrong}; {advice}") from None
    return whole


def largest(ids: RowArray) -> int:
    """Return the largest id, -1 if there are no ids; read all of them, a chunk at a time."""
    maximum = max((int(ids[first : first + _CHUNK].max()) for first in range(0, len(ids), _CHUNK)), default=-1)
    release(ids)
    return maximum


def place_of(array: object, row: int) -> str:
    """Return the file and row that a row of an array was read from, as words; "" if it is not known."""
    if isinstance(array, Rows):
        return array.place(row)
    file_name = getattr(array, "filename", None)  # of memory maps
    return "" if file_name is None else f"{file_name}, row {row}"


def origin_of(array: object, row: int, path: str = "") -> str:
    """Return the beginning of a message about a row: its place, else ``path``, if one is known."""
    place = place_of(array, row) or path
    return place and f"{place}: "


def reads_blocks(array: object) -> bool:
    """Return whether rows are read from a file by whole blocks, so that a few rows cost about as much as all.

    Arrays in memory and memory maps are not; arrays that are made from others are, if one of their sources is.
    """
    if isinstance(array, np.ndarray):
        return False
    sources = getattr(array, "sources", ())
    return not sources or any(map(reads_blocks, sources))


def release(array: object) -> None:
    """Release the pages of memory-mapped arrays, so that they do not count as memory of this process."""
    for source in numpy_under(array):
        mapping = mapping_of(source)
        if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)


def numpy_under(array: object) -> Iterator[Array]:
    """Yield the numpy arrays that an array is, or is made from."""
    if isinstance(array, np.ndarray):
        yield array
    for source in getattr(array, "sources", ()):
        yield from numpy_under(source)


def mapping_of(array: Array) -> mmap.mmap | None:
    """Return the mapped file under an array or a view of one, None for an array in memory."""
    base: Any = array
    while base is not None and not isinstance(base, mmap.mmap):
        base = getattr(base, "base", None)
    return base


def concatenated(sources: Sequence[RowArray]) -> RowArray:
    """Return arrays, at least one, one after another as one; integers of several dtypes become int64.

    Few rows of many arrays in memory are copied, since an access to thousands of arrays takes longer.

    Raises:
        GraphDataError: dtypes, or dimensions except the first, differ; names the file where it is known.
    """
    if len(sources) == 1:
        return sources[0]
    if len({source.dtype for source in sources}) > 1 and all(source.dtype.kind in "iu" for source in sources):
        sources = [made_rows(as_int64, np.int64, source) for source in sources]
    first = sources[0]
    for source in sources:
        if source.dtype != first.dtype or source.shape[1:] != first.shape[1:]:
            rows, before = (f"{of.dtype}{list(of.shape[1:])}" for of in (source, first))
            raise GraphDataError(f"{origin_of(source, 0)}rows are {rows}, in the chunks before {before}")
    bounds = np.append(0, np.cumsum([*map(len, sources)])).astype(np.int64)
    none = np.empty((0, *first.shape[1:]), first.dtype)

    def read(begin: int, end: int) -> Array:
        return np.concatenate([none, *(sources[chunk][low:high] for chunk, low, high in overlaps(bounds, begin, end))])

    def of_chunk(chunk: int, rows: I64) -> Array:
        return sources[chunk][rows - bounds[chunk]]

    def place(row: int) -> str:
        chunk = int(np.searchsorted(bounds, row, side="right")) - 1
        return place_of(sources[chunk], row - int(bounds[chunk]))

    shape = int(bounds[-1]), *first.shape[1:]
    joined = rows_in_blocks(read, shape, first.dtype, bounds, place, of_chunk, sources)
    plain = [source for source in sources if type(source) is np.ndarray]
    is_small = len(plain) == len(sources) > _FEW and sum(array.nbytes for array in plain) <= _BYTES_COPIED
    return joined[:] if is_small else joined
