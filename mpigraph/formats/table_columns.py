"""Columns of tables, of text that was parsed once or of parquet: ids, and values with the type of all of their rows.

A column of ids keeps what stands there: int64 where every id of a piece of the table is a plain integer, else text.
A column of values has the type that all of its rows have: each piece is looked at, and the wider type wins, so that
integers become floats where a later row has a fraction or no value.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.formats.arrow_values import (
    EXACT,
    Place,
    Values,
    are_floats,
    arrow,
    buffers_of,
    distinct_in,
    float32_of,
    ids_of,
    values_as,
    values_of,
)
from mpigraph.formats.input_files import Errors, GrowingFile
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.table_files import ParquetFiles, Piece, Tables, TextFiles, TextForm
from mpigraph.log import get_logger
from mpigraph.partition.row_arrays import (
    MadeRows,
    NamedRows,
    RowArray,
    RowError,
    as_dtype,
    as_floats,
    concatenated,
    side_by_side,
)

NO_NUMBERS = ("string", "other", "none")
"""Kinds of columns that cannot be features."""

_CHUNK = 1 << 20  # rows
_FLOATS = ("float", "float16", "float32", "float64")


@dataclass(frozen=True)
class IdColumn:
    """Ids in the pieces of a table, which are integers or text."""

    pieces: Sequence[Piece]
    name: str

    def __len__(self) -> int:
        return sum(piece.length for piece in self.pieces)

    @property
    def is_text(self) -> bool:
        """True if an id is not an integer."""
        return any(piece.kind(self.name) == "string" for piece in self.pieces)

    @property
    def numbers(self) -> RowArray:
        """The ids of a column of integers alone."""
        return concatenated([piece.rows(self.name, False) for piece in self.pieces] or [np.zeros(0, np.int64)])

    def texts(self, blanks: bool = False, ranks: ReadingRanks | None = None) -> Iterator[tuple[Array, I64, Place]]:
        """Yield the ids as text, a chunk at a time: distinct ones (dtype S), the position of each row, and its place.

        With ``blanks`` an id may be missing; it is empty then. ``ranks`` divide the chunks; None for all chunks.

        Raises:
            GraphDataError: an id is missing or too long; names file and row.
        """
        chunks = [(piece, begin) for piece in self.pieces for begin in range(0, piece.length, _CHUNK)]
        for piece, begin in chunks if ranks is None else ranks.share_of(chunks):
            if piece.kind(self.name) == "string":
                strings = piece.strings(self.name).slice(begin, _CHUNK)
                strings = strings.cast(arrow().large_string()).fill_null("")
            else:
                numbers = np.asarray(piece.rows(self.name, False)[begin : begin + _CHUNK], np.int64)
                strings = arrow().array(numbers).cast(arrow().large_string())

            def place(row: int, piece: Piece = piece, begin: int = begin) -> str:
                return piece.place(self.name, begin + row)

            yield *distinct_in(strings, place, blanks), place

    def place(self, row: int) -> str:
        """File and row."""
        for piece in self.pieces:
            if row < piece.length:
                return piece.place(self.name, row)
            row -= piece.length
        return ""


class ValueColumn(NamedTuple):
    """Values of a column."""

    # "integer", "float", "bool", "time", "list", or "string", "other" or "none" (no row has a value), which are no
    # numbers
    kind: str
    rows: RowArray  # [n] or [n, width]; of what is no numbers nothing
    place: str = ""  # file and row of the first text, if there are numbers before it


class TableColumns(NamedTuple):
    """Columns of one table."""

    lengths: list[int]  # rows of each file
    ids: dict[str, IdColumn]  # columns that were asked for as ids, by name
    values: dict[str, ValueColumn]  # columns of numbers, by name


def are_numbers(tables: Tables, columns: Sequence[str]) -> bool:
    """Return whether columns are numbers; of text the first block tells."""
    if isinstance(tables, ParquetFiles):
        return all(tables.kinds[name] in ("integer", "float", "bool") for name in columns)
    file, batch = tables.first_batch(columns)
    if batch is None:
        return False
    parts = _with_points(tables, [(batch.column(c), partial(_place_of, tables, file, 0, c)) for c in columns])
    return all(values_of(*part).kind in ("integer", "float", "bool", None) for part in parts)


@collective("ranks")
def read_columns(
    tables: Tables,
    ids: Collection[str],
    values: Mapping[str, Sequence[str]],
    types: Mapping[str, str],
    ranks: ReadingRanks,
    fill: Mapping[str, str] | None = None,
) -> TableColumns:
    """Read columns of a table; each file of text is parsed by one rank.

    Args:
        tables: the files.
        ids: columns whose values are names, which are kept as they are written.
        values: columns of numbers, by the name that they get; several side by side are the columns of a matrix.
        types: dtypes that the user has named, by column of ids or name; "string" keeps ids as text, and leaves values
            out. A matrix is float32 if it has none.
        ranks: the ranks that read it.
        fill: what rows without a value get, by column or name: a number, or "mean".

    Raises:
        GraphDataError: values cannot be read or are missing; names file and row, of each column the first.
        StorageError: a temporary file cannot be written.
    """
    fill = fill or {}
    fills = {name: [fill.get(key, fill.get(name, "")) for key in columns] for name, columns in values.items()}
    errors = Errors()
    if isinstance(tables, ParquetFiles):
        for name in ids:
            if tables.kinds[name] not in ("integer", "string"):
                what = f"column {name!r} is {tables.kinds[name]}"
                raise GraphDataError(f"{tables.paths[0]}: ids must be integers or text ({what})")
        groups = tables.pieces()
        read = {}
        for name, columns in values.items():
            with errors.collected():
                read[name] = _of_parquet(tables, groups, columns, types.get(name, ""), fills[name])
        errors.check()
        return TableColumns(tables.lengths, {name: IdColumn(groups, name) for name in ids}, read)
    to_parse = {name: _Column((name,), True, types.get(name, "")) for name in ids}
    for name, columns in values.items():
        dtype = types.get(name, "")
        if any(fills[name]) and np.dtype(dtype or "f4").kind != "f":  # which holds NaN until it is filled
            dtype = "float64"
        to_parse[name] = _Column(columns, False, dtype)
    blocks = _parsed(tables, to_parse, ranks)
    lengths = [sum(block.length for block in blocks if block.file == file) for file in range(len(tables.paths))]
    blocks = [block for block in blocks if block.length]
    read = {}
    for name in values:
        with errors.collected():
            column = _values(blocks, name, fills[name])
            read[name] = column._replace(rows=_as(types.get(name, ""), column.rows))
    errors.check()
    return TableColumns(lengths, {name: IdColumn(blocks, name) for name in ids}, read)


def chunks_of_numbers(path: Path, dtype: np.dtype[Any]) -> Iterator[Array]:
    """Yield ``[rows, columns]`` of a csv file of numbers without names; an empty field is NaN where the dtype has it.

    Raises GraphDataError: a value does not fit the dtype; names file and row.
    """
    tables = TextFiles([path], TextForm(",", headless=True, first=()))
    done = 0
    for batch in tables.batches(0, tables.names):
        columns = [values_as(dtype, batch.column(c), partial(_place_of, tables, 0, done, c)) for c in tables.names]
        yield np.stack(columns, 1)
        done += batch.num_rows


class _Column(NamedTuple):
    """Columns of the files to parse side by side; ``dtype`` is "" unless the user has named one."""

    columns: Sequence[str]
    is_ids: bool
    dtype: str


class _Described(NamedTuple):
    """A column of a block of text: where its arrays lie in a mapped file, as JSON keeps it."""

    kind: str
    missing: int  # rows without a value
    first: int  # the first of them, of text the first that is no number; -1: none
    arrays: list[tuple[int, str, Sequence[int]]]  # first byte, dtype, shape; of text offsets and bytes


@dataclass(frozen=True)
class _Block:
    """A block of text that was parsed; see :class:`Piece`."""

    path: str
    file: int
    row: int  # what the first row is called
    length: int
    columns: Mapping[str, _Described]
    data: Array  # the mapped file

    def kind(self, name: str) -> str:
        return self.columns[name].kind

    def missing(self, name: str) -> tuple[int, str]:
        column = self.columns[name]
        return column.missing, self.place(name, column.first)

    def has_fractions(self, name: str) -> bool:
        return any(np.dtype(dtype).kind == "f" for _, dtype, _ in self.columns[name].arrays)

    def rows(self, name: str, as_floats: bool) -> RowArray:
        values = self._arrays(name)[0] if self.columns[name].arrays else np.full(self.length, np.nan)
        return NamedRows(values, self.path, self.row)

    def strings(self, name: str) -> Any:
        return arrow().LargeStringArray.from_buffers(self.length, *map(arrow().py_buffer, self._arrays(name)))

    def place(self, name: str, row: int) -> str:
        return f"{self.path}, row {self.row + row}"

    def _arrays(self, name: str) -> list[Array]:
        return [
            self.data[begin : begin + int(np.prod(shape)) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)
            for begin, dtype, shape in self.columns[name].arrays
        ]


def _as(dtype: str, rows: RowArray) -> RowArray:
    """Return rows in a dtype that the user has named, if any."""
    if dtype in ("", "string", rows.dtype.name):
        return rows
    if rows.dtype.kind == "f" and np.dtype(dtype).kind in "iu":  # with values that were missing
        return MadeRows(partial(_integers_of_floats, dtype=np.dtype(dtype)), dtype, rows)
    return MadeRows(partial(as_dtype, dtype=np.dtype(dtype)), dtype, rows)


def _integers_of_floats(rows: Array, dtype: np.dtype[Any]) -> Array:
    """Return floats as integers. Raises RowError for one that is no integer, too large, or rounded by a float."""
    large = np.argwhere(np.abs(rows) >= EXACT)
    if len(large):
        advice = "as missing values ask for; leave --fill out, or --types COLUMN=float64 rounds it"
        raise RowError(int(large[0, 0]), f"{rows[tuple(large[0])]:.0f} does not fit float64 exactly, {advice}")
    return as_dtype(rows, dtype)


def _of_parquet(
    tables: ParquetFiles, groups: Sequence[Piece], columns: Sequence[str], dtype: str, fills: Sequence[str]
) -> ValueColumn:
    kinds = {tables.kinds[name] for name in columns}
    for kind in ("other", "string"):
        if kind in kinds or dtype == kind:
            return ValueColumn(kind, np.zeros(0))
    if not groups:
        parts = [ValueColumn(tables.kinds[name], tables.no_rows(name)) for name in columns]
    else:
        parts = [_values(groups, name, [fill]) for name, fill in zip(columns, fills, strict=True)]
    if not dtype and len(columns) > 1:
        return ValueColumn("list", side_by_side([as_floats(part.rows) for part in parts]))
    return ValueColumn(parts[0].kind, _as(dtype, side_by_side([part.rows for part in parts])))


@collective("ranks")
def _parsed(tables: TextFiles, columns: Mapping[str, _Column], ranks: ReadingRanks) -> list[_Block]:
    """Parse this rank's files; return the blocks of all files, in their order."""
    doing = f"reading {tables.paths[0]}"
    with ExitStack() as stack:
        note: list[Any] = []
        with ranks.exchange.together(doing):
            scratch = ranks.growing(stack)(np.uint8, ())
            for file in tables.share(ranks.exchange.rank, ranks.exchange.size):
                _parse(tables, file, columns, scratch, note)
        gathered = ranks.gather(doing, note, [scratch])
    return sorted(
        (
            _Block(
                str(tables.paths[file]), file, row, n, {k: _Described(*c) for k, c in its.items()}, of_rank.arrays[0]
            )
            for of_rank in gathered
            for file, row, n, its in of_rank.note
        ),
        key=lambda block: (block.file, block.row),
    )


def _parse(tables: TextFiles, file: int, columns: Mapping[str, _Column], scratch: GrowingFile, note: list[Any]) -> None:
    """Write the columns of a file to a temporary one, and note each block: file, first row, length, columns."""
    done = 0
    names = list(dict.fromkeys(part for column in columns.values() for part in column.columns))
    texts = {name for name, column in columns.items() if column.dtype == "string" and not column.is_ids}
    errors = Errors()
    for batch in tables.batches(file, names):
        described = {}
        for name, column in columns.items():
            parts = [(batch.column(part), partial(_place_of, tables, file, done, part)) for part in column.columns]
            kind, missing, arrays = "string", (0, -1), list[Array]()
            with errors.collected():
                if column.is_ids:
                    kind, arrays = _ids(*parts[0], column.dtype)
                elif name not in texts:  # else no later block can make numbers of it
                    kind, missing, arrays = _numbers(_with_points(tables, parts), column.dtype)
            if kind == "string" and not column.is_ids:
                texts.add(name)
            described[name] = _Described(kind, *missing, [_append(scratch, array) for array in arrays])
        errors.check()
        note.append((file, tables.first_rows[file] + done, batch.num_rows, described))
        done += batch.num_rows


def _with_points(tables: TextFiles, parts: Sequence[tuple[Any, Place]]) -> Sequence[tuple[Any, Place]]:
    """Return columns of numbers with decimal points."""
    if tables.form.decimal == ".":
        return parts
    replace = arrow().compute.replace_substring
    return [(replace(column, tables.form.decimal, "."), place) for column, place in parts]


def _place_of(tables: TextFiles, file: int, done: int, column: str, row: int) -> str:
    """Name a row of a block that begins at row ``done`` of a file."""
    return f"{tables.paths[file]}, row {tables.first_rows[file] + done + row}, column {column}"


def _ids(column: Any, place: Place, dtype: str) -> tuple[str, list[Array]]:
    if dtype not in ("", "string"):  # so that 007 is read as 7
        return "integer", [values_as(np.dtype(np.int64), column, place)]
    ids = ids_of(column)
    if isinstance(ids, np.ndarray) and not dtype:
        return "integer", [ids]
    if isinstance(ids, np.ndarray):
        ids = arrow().compute.utf8_trim_whitespace(column)
    elif not dtype and are_floats(ids):
        raise GraphDataError(
            f"{place(0)}: ids must be integers or text (got {ids[0].as_py()}); --types COLUMN=string takes them as text"
        )
    offsets, data = buffers_of(ids)
    return "string", [offsets - offsets[0], data]


def _numbers(parts: Sequence[tuple[Any, Place]], dtype: str) -> tuple[str, tuple[int, int], list[Array]]:
    """Return the kind of values side by side, how many rows have no value and the first of them, and the rows."""
    if dtype or len(parts) > 1:
        beside = [values_as(np.dtype(dtype), *part) if dtype else float32_of(*part) for part in parts]
        dtype = dtype or "float32"
        values = Values(dtype, beside[0] if len(beside) == 1 else np.stack(beside, 1), -1)
    else:
        values = values_of(*parts[0])
    kind = values.kind or "none"
    if kind in _FLOATS:
        holes = np.flatnonzero(np.isnan(values.rows).any(tuple(range(1, values.rows.ndim))))
        return kind, (len(holes), int(holes[0]) if len(holes) else -1), [values.rows]
    missing = len(parts[0][0]) if kind == "none" else int(values.missing >= 0)
    return kind, (missing, 0 if kind == "none" else values.missing), [] if kind in NO_NUMBERS else [values.rows]


def _append(file: GrowingFile, array: Array) -> tuple[int, str, tuple[int, ...]]:
    """Append an array to a file of bytes; return where it begins, its dtype and shape."""
    begin = len(file)
    file.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    file.append(np.zeros(-len(file) % 8, np.uint8))
    return begin, array.dtype.str, array.shape


def _values(pieces: Sequence[Piece], name: str, fills: Sequence[str]) -> ValueColumn:
    """Return a column of values: the type that all rows have, and how many have no value."""
    kinds = [piece.kind(name) for piece in pieces]
    known = {*kinds} - {"none"}
    kind = "string" if known else "none"
    if len(known) == 1:
        kind = known.pop()
    if known == {"integer", "float"}:
        kind = "float"
    if kind in NO_NUMBERS:
        text = next((piece for piece, its in zip(pieces, kinds, strict=True) if its == "string"), None)
        place = "" if text is None else text.missing(name)[1]
        is_first = not place or place == pieces[0].place(name, 0)
        return ValueColumn(kind, np.zeros(0), "" if is_first else place)
    missing = [piece.missing(name) for piece in pieces]
    count = sum(its for its, _ in missing)
    if count:
        kind = "float" if kind == "integer" else kind
        first = next(place for its, place in missing if its)
        if kind not in _FLOATS:
            raise GraphDataError(f"{first}: {name} has no value")
        filled = ", ".join(filter(None, dict.fromkeys(fills)))
        path, comma, row = first.rpartition(", row ")
        path = path or pieces[0].path
        where = f" (the first: row {row})" if comma else ""
        becomes = filled or ("-1" if name == "label" else "NaN (--fill COLUMN=0 or mean)")
        total = sum(piece.length for piece in pieces)
        get_logger().warning("%s: %s has no value in %d of %d rows%s: %s", path, name, count, total, where, becomes)
    as_floats = kind == "float" or (kind == "time" and any(piece.has_fractions(name) for piece in pieces))
    rows = [piece.rows(name, as_floats) for piece in pieces]
    if kind == "list" and len({its.shape[1:] for its in rows}) > 1:
        number = next(number for number, its in enumerate(rows) if its.shape[1:] != rows[0].shape[1:])
        lengths = f"a list has {rows[number].shape[1]} numbers, {rows[0].shape[1]} before"
        place = f"{pieces[number].place(name, 0)}, column {name}"
        raise GraphDataError(f"{place}: {lengths}; --types COLUMN=string leaves the column out")
    if {its.dtype.kind for its in rows} == {"i", "f"}:
        rows = [MadeRows(_exact_floats, np.float64, its) if its.dtype.kind == "i" else its for its in rows]
    return ValueColumn(kind, _filled(concatenated(rows), fills) if count and any(fills) else concatenated(rows))


def _filled(rows: RowArray, fills: Sequence[str]) -> RowArray:
    """Return rows with numbers, or means of the other rows, for NaN."""
    sums = np.zeros((2, *rows.shape[1:]))
    for first in range(0, len(rows) if "mean" in fills else 0, _CHUNK):
        chunk = np.asarray(rows[first : first + _CHUNK], np.float64)
        sums += np.stack([np.nansum(chunk, axis=0), (~np.isnan(chunk)).sum(axis=0)])
    mean = sums[0] / np.maximum(sums[1], 1)
    numbers = [np.nan if fill in ("", "mean") else float(fill) for fill in fills]
    beside = np.array(numbers if rows.ndim > 1 else numbers[0])
    values = np.where(np.array(fills if rows.ndim > 1 else fills[0]) == "mean", mean, beside).astype(rows.dtype)
    return MadeRows(lambda chunk: np.where(np.isnan(chunk), values, chunk), rows.dtype, rows)


def _exact_floats(rows: Array) -> Array:
    lost = np.abs(rows.reshape(len(rows), -1)).max(1, initial=0) > EXACT
    if lost.any():
        row = int(lost.argmax())
        reason = "which other rows of the column ask for; --types COLUMN=float64 rounds it"
        raise RowError(row, f"{rows[row]} does not fit float64, {reason}")
    return rows.astype(np.float64)
