"""What is to be partitioned, as plain numpy: types, counts, edges, features.

Arrays may be memory-mapped files, and rows of features may be made when they are asked for (:class:`CastRows`,
:class:`SparseRows`), so that an input need not be held dense or converted as a whole.
"""

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError, check_text
from mpigraph.metadata.schema import Schema, relation_key
from mpigraph.storage.format import logical_dtype, storage_dtype

__all__ = ["CastRows", "Feature", "GraphSource", "RowArray", "SparseRows", "as_floats", "edge_chunks", "release"]


EDGES_PER_CHUNK = 1 << 20
_CHUNKS_MAPPED = 16  # of a memory map, before its pages are let go


class RowArray(Protocol):
    """What partitioning needs of a feature: numpy arrays, memory maps and the classes below have it."""

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


class CastRows:
    """Rows of an array in another dtype.

    Attributes:
        base: the array, as a view of it would have it: a memory map shows through.
    """

    def __init__(self, values: Array, dtype: npt.DTypeLike) -> None:
        self.base = values
        self.shape: tuple[int, ...] = values.shape
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.nbytes: int = values.nbytes

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, rows: npt.NDArray[np.integer]) -> Array:
        cast: Array = self.base[rows].astype(self.dtype)
        return cast


class SparseRows:
    """Dense rows of a CSR matrix, float16 if its values are, else float32.

    Args:
        indptr: int[n + 1].
        indices: int[nnz], columns.
        data: [nnz], values.
        shape: (n, columns).
    """

    def __init__(self, indptr: Array, indices: Array, data: Array, shape: tuple[int, ...]) -> None:
        if len(shape) != 2 or len(indptr) != shape[0] + 1 or len(indices) != len(data):
            raise GraphDataError(f"sparse features are no CSR matrix of shape {shape}")
        self._indptr = indptr.astype(np.int64)
        self._indices = indices
        self._data = data
        self.shape: tuple[int, ...] = shape
        self.dtype: np.dtype[Any] = np.dtype(np.float16 if data.dtype == np.float16 else np.float32)
        self.nbytes: int = self._indptr.nbytes + indices.nbytes + data.nbytes

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: npt.NDArray[np.integer]) -> Array:
        begins = self._indptr[rows]
        lengths = self._indptr[rows + 1] - begins
        row = np.repeat(np.arange(len(rows)), lengths)
        ends = np.cumsum(lengths)
        position = np.arange(len(row)) - np.repeat(ends - lengths, lengths) + np.repeat(begins, lengths)
        dense = np.zeros((len(rows), self.shape[1]), self.dtype)
        dense[row, self._indices[position]] = self._data[position]
        return dense


def as_floats(rows: Array) -> RowArray:
    """Return rows that are float32 or float16 as they are, and others as float32, cast when they are asked for."""
    return rows if rows.dtype in (np.float32, np.float16) else CastRows(rows, np.float32)


class Feature(NamedTuple):
    """Rows of a feature in their storage dtype, and their logical dtype ("bfloat16" is stored as uint16)."""

    values: RowArray
    dtype: str

    @classmethod
    def rows(cls, values: RowArray) -> "Feature":
        """Return a feature of rows that are stored as they are."""
        return cls(values, values.dtype.name)

    @classmethod
    def of(cls, values: Array) -> "Feature":
        """Return a feature whose logical dtype is that of the array; bool is stored as uint8."""
        name = logical_dtype(values.dtype)
        return cls(values.view(storage_dtype(name)) if name == "bool" else values, name)


Features = Mapping[str, Mapping[str, Feature]]


@dataclass(frozen=True, eq=False)
class GraphSource:
    """A graph to partition.

    Attributes:
        schema: the types.
        num_nodes: number of nodes of each type.
        edges: for each relation ``(src, dst)``, integer arrays of one length; repeated edges and self loops
            are allowed.
        node_feats: node type -> name -> feature with one row for each node.
        edge_feats: ``"src:rel:dst"`` -> name -> feature with one row for each edge.
    """

    schema: Schema
    num_nodes: tuple[int, ...]
    edges: tuple[tuple[Array, Array], ...]
    node_feats: Features = field(default_factory=dict)
    edge_feats: Features = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.num_nodes) != len(self.schema.ntypes):
            raise GraphDataError(f"{len(self.schema.ntypes)} node types but {len(self.num_nodes)} node counts")
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
        return sum(array.nbytes for array in arrays if _mapping(array) is None)

    def check_edges(self, relation_id: int, first: int, src: I64, dst: I64) -> None:
        """Check that the ends of some edges exist.

        Args:
            relation_id: their relation.
            first: position of the first of them.
            src: int64[k].
            dst: int64[k].

        Raises:
            GraphDataError: names the relation, the first bad edge and the bad id.
        """
        src_type, dst_type = self.schema.ends(relation_id)
        for end, ids, ntype_id in (("source", src, src_type), ("destination", dst, dst_type)):
            _check_endpoints(self.schema.relations[relation_id], end, ids, self.num_nodes[ntype_id], first)


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


def release(array: object) -> None:
    """Let the pages of a memory-mapped array go, so that they do not count as ours."""
    mapping = _mapping(array)
    if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def _mapping(array: object) -> mmap.mmap | None:
    """Return the mapped file under an array, a view of one or rows made from one; None if there is none."""
    base: Any = array
    while base is not None and not isinstance(base, mmap.mmap):
        base = getattr(base, "base", None)
    return base


def _check_endpoints(relation: tuple[str, str, str], end: str, ids: I64, count: int, first: int) -> None:
    if len(ids) == 0 or (int(ids.min()) >= 0 and int(ids.max()) < count):
        return
    bad = int(np.flatnonzero((ids < 0) | (ids >= count))[0])
    raise GraphDataError(f"edge {first + bad} of {relation} has {end} {ids[bad]}, but that node type has {count} nodes")


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
