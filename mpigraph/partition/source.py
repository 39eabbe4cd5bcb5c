"""What is to be partitioned, as plain numpy: types, counts, edges, features.

Arrays may be memory-mapped files, and rows may be made when they are asked for (:class:`MadeRows`,
:class:`SparseRows`, ``chunks.py``), so that an input need not be held dense or converted as a whole. An array that
knows the file that it was read from names it in messages (:func:`place_of`).
"""

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError, check_text
from mpigraph.metadata.schema import Schema, relation_key
from mpigraph.storage.format import logical_dtype, storage_dtype

__all__ = [
    "CastRows",
    "Feature",
    "GraphSource",
    "MadeRows",
    "RowArray",
    "SparseRows",
    "as_floats",
    "as_int64",
    "as_labels",
    "edge_chunks",
    "largest",
    "mask_of",
    "place_of",
    "release",
]


EDGES_PER_CHUNK = 1 << 20
_CHUNKS_MAPPED = 16  # of a memory map, before its pages are let go
_REAL = "biuf"  # kinds of dtypes
_TIMES = "time"  # the feature whose values must be numbers


class RowArray(Protocol):
    """What partitioning needs of edges and features: numpy arrays, memory maps and the classes below have it.

    One that is not numpy's may have ``sources``, the arrays that it is made from (none if it reads a file itself), and
    ``place(row)``, the file and row that a row was read from.
    """

    @property
    def ndim(self) -> int:
        """Number of dimensions."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Full shape, first dimension the rows."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Storage dtype."""

    @property
    def nbytes(self) -> int:
        """Bytes of what the rows are made from."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


class MadeRows:
    """Rows that are made from rows of other arrays when they are asked for.

    Args:
        make: gets the same rows of each array, returns as many in ``dtype``.
        dtype: of what is made.
        arrays: one or more.
        row_shape: all dimensions of what is made except the first, if not those of the first array.

    Attributes:
        sources: the arrays.
    """

    def __init__(
        self,
        make: Callable[..., Array],
        dtype: npt.DTypeLike,
        *arrays: RowArray,
        row_shape: tuple[int, ...] | None = None,
    ) -> None:
        self._make = make
        self.sources: Sequence[RowArray] = arrays
        self.shape: tuple[int, ...] = arrays[0].shape if row_shape is None else (len(arrays[0]), *row_shape)
        self.ndim = len(self.shape)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.nbytes: int = sum(array.nbytes for array in arrays)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Array:
        return self._make(*(array[rows] for array in self.sources))

    def place(self, row: int) -> str:
        """File and row of the first array."""
        return place_of(self.sources[0], row)


class CastRows(MadeRows):
    """Rows of an array in another dtype."""

    def __init__(self, values: RowArray, dtype: npt.DTypeLike) -> None:
        super().__init__(lambda rows: rows.astype(dtype), dtype, values)


class SparseRows:
    """Dense rows of a CSR matrix, float16 if its values are, else float32.

    Args:
        indptr: int[n + 1].
        indices: int[nnz], columns.
        data: [nnz], values.
        shape: (n, columns).
    """

    def __init__(self, indptr: RowArray, indices: RowArray, data: RowArray, shape: tuple[int, ...]) -> None:
        is_one = all(array.ndim == 1 for array in (indptr, indices, data)) and len(indices) == len(data)
        if not is_one or len(shape) != 2 or len(indptr) != shape[0] + 1 or not 0 <= shape[1] < 2**31:
            raise GraphDataError(f"sparse features are no CSR matrix of shape {shape}")
        if indptr.dtype.kind not in "iu" or indices.dtype.kind not in "iu" or data.dtype.kind not in _REAL:
            raise GraphDataError(
                f"sparse features must be integers, integers and numbers (got {indptr.dtype}, {indices.dtype} and "
                f"{data.dtype})"
            )
        self._indptr: I64 = indptr[:].astype(np.int64)
        if self._indptr[0] != 0 or self._indptr[-1] != len(data) or (np.diff(self._indptr) < 0).any():
            raise GraphDataError(f"indptr of sparse features must rise from 0 to {len(data)}, the number of values")
        self._indices = indices
        self._data = data
        self.sources: Sequence[RowArray] = (self._indptr, indices, data)
        self.shape: tuple[int, ...] = shape
        self.ndim = 2
        self.dtype: np.dtype[Any] = np.dtype(np.float16 if data.dtype == np.float16 else np.float32)
        self.nbytes: int = self._indptr.nbytes + indices.nbytes + data.nbytes

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | npt.NDArray[np.integer]) -> Array:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        begins = self._indptr[rows]
        lengths = self._indptr[rows + 1] - begins
        row = np.repeat(np.arange(len(rows)), lengths)
        ends = np.cumsum(lengths)
        position = np.arange(len(row)) - np.repeat(ends - lengths, lengths) + np.repeat(begins, lengths)
        columns = self._indices[position]
        outside = np.flatnonzero((columns < 0) | (columns >= self.shape[1]))
        if len(outside):
            bad = outside[0]
            raise GraphDataError(
                f"sparse features: row {rows[row[bad]]} has a value in column {columns[bad]} of {self.shape[1]}"
            )
        dense = np.zeros((len(rows), self.shape[1]), self.dtype)
        np.add.at(dense, (row, columns), self._data[position])  # values of one place are summed, as everywhere
        return dense


def as_floats(rows: RowArray) -> RowArray:
    """Return rows that are float32 or float16 as they are, and others as float32, cast when they are asked for.

    Raises:
        GraphDataError: they are no real numbers.
    """
    _check_real("features", rows)
    return rows if rows.dtype in (np.float32, np.float16) else CastRows(rows, np.float32)


def as_labels(label: RowArray) -> RowArray:
    """Return labels as int64, cast when they are asked for; unlabelled (NaN) becomes -1.

    Raises:
        GraphDataError: they are no real numbers; or, when they are asked for, no integers that int64 has.
    """
    _check_real("labels", label)
    return label if label.dtype == np.int64 else MadeRows(as_int64, np.int64, label)


def _check_real(what: str, rows: RowArray) -> None:
    if rows.dtype.kind not in _REAL:
        raise GraphDataError(f"{what} must be real numbers (got {rows.dtype}{list(rows.shape)})")


def as_int64(rows: Array) -> I64:
    """Return numbers as int64; NaN becomes -1.

    Raises:
        GraphDataError: one is no integer that int64 has.
    """
    if rows.dtype.kind == "f":
        rows = np.where(np.isnan(rows), -1, rows)
        fits = (rows == np.rint(rows)) & (np.abs(rows) < 2.0**63)
    elif rows.dtype.kind == "u":
        fits = rows < 2**63
    else:
        return rows.astype(np.int64)
    if not fits.all():
        raise GraphDataError(f"{rows[~fits][0]} is no integer that fits int64, as labels and ids must be")
    return rows.astype(np.int64)


class Feature(NamedTuple):
    """Rows of a feature in their storage dtype, and their logical dtype ("bfloat16" is stored as uint16)."""

    values: RowArray
    dtype: str

    @classmethod
    def rows(cls, values: RowArray) -> "Feature":
        """Return a feature of rows that are stored as they are."""
        return cls(values, values.dtype.name)

    @classmethod
    def of(cls, values: RowArray) -> "Feature":
        """Return a feature whose logical dtype is that of the array; bool is stored as uint8."""
        name = logical_dtype(values.dtype)
        stored = storage_dtype(name)
        if name != "bool":  # in other byte orders, too
            return cls(values if values.dtype == stored else CastRows(values, stored), name)
        return cls(values.view(stored) if isinstance(values, np.ndarray) else CastRows(values, stored), name)


Features = Mapping[str, Mapping[str, Feature]]


@dataclass(frozen=True, eq=False)
class GraphSource:
    """A graph to partition.

    Attributes:
        schema: the types.
        num_nodes: number of nodes of each type.
        edges: for each relation ``(src, dst)``, integer arrays of one length, of which slices are taken; repeated
            edges and self loops are allowed.
        node_feats: node type -> name -> feature with one row for each node.
        edge_feats: ``"src:rel:dst"`` -> name -> feature with one row for each edge.
        path: where it was read from, for messages.
        node_ids: for each node type the original id of each node, int64; None: its position.
        edge_ids: for each relation the original id of each edge, int64; None: its position.
    """

    schema: Schema
    num_nodes: tuple[int, ...]
    edges: tuple[tuple[RowArray, RowArray], ...]
    node_feats: Features = field(default_factory=dict)
    edge_feats: Features = field(default_factory=dict)
    path: str = ""
    node_ids: tuple[RowArray, ...] | None = None
    edge_ids: tuple[RowArray, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.num_nodes) != len(self.schema.ntypes):
            raise GraphDataError(f"{len(self.schema.ntypes)} node types but {len(self.num_nodes)} node counts")
        for ntype, count in zip(self.schema.ntypes, self.num_nodes, strict=True):
            if count < 0:
                raise GraphDataError(f"node type {ntype!r} has {count} nodes")
        if sum(self.num_nodes) >= 2**63:
            raise GraphDataError(f"{sum(self.num_nodes)} nodes are more than int64 can count")
        if len(self.edges) != len(self.schema.relations):
            raise GraphDataError(f"{len(self.schema.relations)} relations but {len(self.edges)} edge lists")
        for relation, (src, dst) in zip(self.schema.relations, self.edges, strict=True):
            if src.ndim != 1 or src.shape != dst.shape or src.dtype.kind not in "iu" or dst.dtype.kind not in "iu":
                raise GraphDataError(
                    f"edges of {relation} must be two integer arrays of one length "
                    f"(got {src.dtype}{list(src.shape)} and {dst.dtype}{list(dst.shape)})"
                )
        keys = [relation_key(relation) for relation in self.schema.relations]
        _check_features("node", self.node_feats, dict(zip(self.schema.ntypes, self.num_nodes, strict=True)))
        _check_features("edge", self.edge_feats, dict(zip(keys, (len(src) for src, _ in self.edges), strict=True)))
        _check_original_ids("nodes", self.node_ids, self.num_nodes)
        _check_original_ids("edges", self.edge_ids, [len(src) for src, _ in self.edges])

    def num_edges(self, relation_id: int = 0) -> int:
        """Return the number of edges of a relation."""
        return len(self.edges[relation_id][0])

    @property
    def edge_counts(self) -> list[int]:
        """Numbers of edges of all relations."""
        return [len(src) for src, _ in self.edges]

    @property
    def node_bases(self) -> I64:
        """int64[types + 1]: where each type begins when all nodes are counted through."""
        return np.concatenate([[0], np.cumsum(self.num_nodes)]).astype(np.int64)

    def bytes_in_memory(self) -> int:
        """Return the size of the arrays that are no memory maps."""
        arrays: list[RowArray] = [end for ends in self.edges for end in ends]
        for table in (self.node_feats, self.edge_feats):
            arrays += [feature.values for features in table.values() for feature in features.values()]
        held = {id(source): source for array in arrays for source in _numpy_under(array)}
        return sum(source.nbytes for source in held.values() if _mapping(source) is None)

    def check_edges(self, relation_id: int, first: int, src: I64, dst: I64) -> None:
        """Check that the ends of some edges exist, and that their feature "time", if there is one, has numbers.

        Args:
            relation_id: their relation.
            first: position of the first of them.
            src: int64[k].
            dst: int64[k].

        Raises:
            GraphDataError: names the file and its row where they are known, the relation, the first bad edge and what
                is wrong with it.
        """
        relation = self.schema.relations[relation_id]
        names = ("source", "destination")
        ntype_ids = self.schema.ends(relation_id)
        for end, whole, ids, ntype_id in zip(names, self.edges[relation_id], (src, dst), ntype_ids, strict=True):
            count = self.num_nodes[ntype_id]
            if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= count):
                bad = int(np.flatnonzero((ids < 0) | (ids >= count))[0])
                raise GraphDataError(
                    f"{self._origin(whole, first + bad)}edge {first + bad} of {relation} has {end} {ids[bad]}, "
                    f"but that node type has {count} nodes"
                )
        times = self.edge_feats.get(relation_key(relation), {}).get(_TIMES)
        if times is not None:
            self._check_times(f"edge {{}} of {relation}", times.values, first, first + len(src))

    def check_node_times(self, rank: int = 0, ranks: int = 1) -> None:
        """Check that every node feature "time" has numbers; of several ranks each checks as many rows.

        Raises:
            GraphDataError: names the file and its row where they are known, the node and its time.
        """
        for ntype, features in self.node_feats.items():
            if _TIMES in features:
                times = features[_TIMES].values
                begin = len(times) * rank // ranks
                end = len(times) * (rank + 1) // ranks
                for first in range(begin, end, EDGES_PER_CHUNK):
                    self._check_times(f"node {{}} of {ntype!r}", times, first, min(first + EDGES_PER_CHUNK, end))

    def _check_times(self, what: str, times: RowArray, begin: int, end: int) -> None:
        if times.dtype.kind == "f":
            chunk = np.asarray(times[begin:end]).reshape(end - begin, -1)
            if not np.isfinite(chunk).all():
                row, column = np.argwhere(~np.isfinite(chunk))[0].tolist()
                origin = self._origin(times, begin + row)
                raise GraphDataError(f"{origin}{what.format(begin + row)} has time {chunk[row, column]}")

    def _origin(self, array: RowArray, row: int) -> str:
        """The beginning of a message about a row: its file and row, else what the graph was read from."""
        origin = place_of(array, row) or self.path
        return f"{origin}: " if origin else ""


def edge_chunks(source: GraphSource, relation_id: int, rank: int = 0, ranks: int = 1) -> Iterator[tuple[int, I64, I64]]:
    """Yield ``(first edge, src, dst)`` with src and dst int64[<= EDGES_PER_CHUNK].

    Several ranks read chunk after chunk in turn. All yield as many chunks, so the last may be empty.
    """
    src, dst = source.edges[relation_id]
    size = EDGES_PER_CHUNK
    for number, begin in enumerate(range(0, len(src), size * ranks), 1):
        first = min(begin + size * rank, len(src))
        chunk = slice(first, first + size)
        yield first, np.array(src[chunk], dtype=np.int64), np.array(dst[chunk], dtype=np.int64)
        if number % _CHUNKS_MAPPED == 0:
            release(src)
            release(dst)
    release(src)
    release(dst)


def largest(ids: RowArray) -> int:
    """Return the largest of some ids, -1 of none; reads all of them, a chunk at a time."""
    found = -1
    for first in range(0, len(ids), EDGES_PER_CHUNK):
        found = max(found, int(ids[first : first + EDGES_PER_CHUNK].max()))
    release(ids)
    return found


def mask_of(place: str, ids: Array, num_nodes: int) -> Feature:
    """Return the mask that is set at some nodes.

    Args:
        place: the file, and what of it, for messages.
        ids: [k], of nodes.
        num_nodes: length of the mask.

    Raises:
        GraphDataError: they are no ids, or there is no such node.
    """
    if ids.size == 0:
        ids = np.zeros(0, np.int64)  # numpy makes float64 of an empty list
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise GraphDataError(f"{place} must be ids of nodes (got {ids.dtype}{list(ids.shape)})")
    outside = np.flatnonzero((ids < 0) | (ids >= num_nodes))
    if len(outside):
        row = int(outside[0])
        raise GraphDataError(f"{place}, row {row}: there is no node {ids[row]} among {num_nodes}")
    mask = np.zeros(num_nodes, bool)
    mask[ids] = True
    return Feature.of(mask)


def place_of(array: object, row: int) -> str:
    """Return the file and row that a row of an array was read from, as words; "" if it is not known."""
    place = getattr(array, "place", None)
    if place is not None:
        return str(place(row))
    file_name = getattr(array, "filename", None)  # of memory maps
    return "" if file_name is None else f"{file_name}, row {row}"


def release(array: object) -> None:
    """Let the pages of memory-mapped arrays go, so that they do not count as ours."""
    for source in _numpy_under(array):
        mapping = _mapping(source)
        if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)


def _numpy_under(array: object) -> Iterator[Array]:
    """Yield the numpy arrays that an array is, or is made from."""
    if isinstance(array, np.ndarray):
        yield array
    for source in getattr(array, "sources", ()):
        yield from _numpy_under(source)


def _mapping(array: Array) -> mmap.mmap | None:
    """Return the mapped file under an array or a view of one, None if there is none."""
    base: Any = array
    while base is not None and not isinstance(base, mmap.mmap):
        base = getattr(base, "base", None)
    return base


def _check_original_ids(what: str, ids: tuple[RowArray, ...] | None, counts: Sequence[int]) -> None:
    """Check original ids of "nodes" or "edges" against the number of each type."""
    if ids is None:
        return
    fits = [some.dtype == np.int64 and some.shape == (count,) for some, count in zip(ids, counts, strict=False)]
    if len(ids) != len(counts) or not all(fits):
        found = ", ".join(f"{some.dtype}{list(some.shape)}" for some in ids)
        raise GraphDataError(f"original ids of {what} must be int64 arrays of lengths {list(counts)} (got {found})")


def _check_features(kind: str, features: Features, counts: Mapping[str, int]) -> None:
    """Check "node" or "edge" features against the number of nodes or edges of each type."""
    for type_name, table in features.items():
        if type_name not in counts:
            raise GraphDataError(f"{kind} features for unknown type {type_name!r} (there are {list(counts)})")
        for name, feature in table.items():
            title = f"{kind} feature {name!r} of {type_name!r}"
            check_text(f"name of a {kind} feature of {type_name!r}", name)
            if not name or any(character in name for character in ":/~"):
                raise GraphDataError(
                    f"{kind} feature name {name!r} of {type_name!r} is empty or contains ':', '/' or '~'"
                )
            if len(feature.values.shape) < 1 or len(feature.values) != counts[type_name]:
                raise GraphDataError(
                    f"{title} must have {counts[type_name]} rows (got shape {list(feature.values.shape)})"
                )
            if feature.values.dtype != storage_dtype(feature.dtype):
                raise GraphDataError(
                    f"{title} is {feature.dtype}, to be stored as "
                    f"{storage_dtype(feature.dtype)} (got {feature.values.dtype})"
                )
