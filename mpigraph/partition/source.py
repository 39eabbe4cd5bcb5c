"""A graph to be partitioned, as plain numpy: types, counts, edges, features."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I32, I64, Array
from mpigraph.errors import GraphDataError
from mpigraph.metadata.schema import Schema, check_name
from mpigraph.partition.row_arrays import RowArray, concatenated, made_rows, origin_of, release
from mpigraph.storage.format import logical_dtype, own_relations, shared_relations, storage_dtype
from mpigraph.storage.narrow import rounded
from mpigraph.storage.part_config import FeatureInfo, Features as Infos, SharedFeature, features_in_common

EDGES_PER_CHUNK = 1 << 20
_CHUNKS_MAPPED = 16  # of a memory map, before its pages are let go
_TIMES = "time"  # the feature whose values must be numbers
_CHECKED = {_TIMES, "label", "train_mask", "val_mask", "test_mask"}


class Feature(NamedTuple):
    """Rows of a feature in their storage dtype, and their logical dtype ("bfloat16" is stored as uint16).

    ``narrow`` is the narrower dtype in which they are stored; "" if they are not. ``categories`` are the names that the
    numbers stand for, if any.
    """

    values: RowArray
    dtype: str
    narrow: str = ""
    categories: tuple[str, ...] = ()

    @property
    def info(self) -> FeatureInfo:
        """Dtypes, row shape and names."""
        return FeatureInfo(self.dtype, tuple(self.values.shape[1:]), self.narrow, self.categories)

    @classmethod
    def of(cls, values: RowArray) -> "Feature":
        """Return a feature whose logical dtype is that of the array; bool is stored as uint8."""
        name = logical_dtype(values.dtype)
        stored = storage_dtype(name)
        if name == "bool" and isinstance(values, np.ndarray):
            values = values.view(stored)
        elif values.dtype != stored:  # in other byte orders, too
            values = made_rows(lambda rows: rows.astype(stored), stored, values)
        return cls(values, name)


class Parts(NamedTuple):
    """Parts of an earlier partitioning of a graph."""

    of_nodes: I32  # int32[all nodes], types one after the other
    number: int  # number of parts


Features = Mapping[str, Mapping[str, Feature]]


@dataclass(frozen=True, eq=False)
class GraphSource:
    """A graph to partition.

    Attributes:
        schema: the types.
        num_nodes: number of nodes of each type.
        edges: for each relation ``(src, dst)``, integer arrays of one length, read by slices; repeated edges and self
            loops are allowed.
        node_feats: node type -> name -> feature with one row for each node.
        edge_feats: ``"src:rel:dst"`` -> name -> feature with one row for each edge.
        path: the file or directory that it was read from, for messages.
        node_ids: for each node type the original id of each node, int64; None: its position.
        edge_ids: for each relation the original id of each edge, int64; None: its position.
        parts: the parts of an earlier partitioning, if any.
        left_out: names of things in the input that are not part of the graph, with the reason; for people.
        has_reverse: every edge has its reverse by the input's own word, or reading has added it: none is added again.
    """

    schema: Schema
    num_nodes: tuple[int, ...]
    edges: tuple[tuple[RowArray, RowArray], ...]
    node_feats: Features = field(default_factory=dict)
    edge_feats: Features = field(default_factory=dict)
    path: str = ""
    node_ids: tuple[RowArray, ...] | None = None
    edge_ids: tuple[RowArray, ...] | None = None
    parts: Parts | None = None
    left_out: tuple[str, ...] = ()
    has_reverse: bool = False

    def __post_init__(self) -> None:
        for ntype, count in zip(self.schema.ntypes, self.num_nodes, strict=True):
            if count < 0:
                raise GraphDataError(f"node type {ntype!r} has {count} nodes")
        for relation, (src, dst) in zip(self.schema.relations, self.edges, strict=True):
            if src.ndim != 1 or src.shape != dst.shape or src.dtype.kind not in "iu" or dst.dtype.kind not in "iu":
                got = f"{src.dtype}{list(src.shape)} and {dst.dtype}{list(dst.shape)}"
                raise GraphDataError(f"edges of {relation} must be two integer arrays of one length (got {got})")
        counts = {("node", ntype): count for ntype, count in zip(self.schema.ntypes, self.num_nodes, strict=True)}
        counts |= {("edge", key): n for key, n in zip(self.schema.relation_keys, self.edge_counts, strict=True)}
        for kind, owner, name, feature in self.features():
            if (kind, owner) not in counts:
                known = [owner for of, owner in counts if of == kind]
                raise GraphDataError(f"{kind} features for unknown type {owner!r} (there are {known})")
            check_name(f"name of a {kind} feature of {owner!r}", name)
            rows, shape = counts[kind, owner], list(feature.values.shape)
            if shape[:1] != [rows]:
                raise GraphDataError(f"{kind} feature {name!r} of {owner!r} must have {rows} rows (got shape {shape})")

    @cached_property
    def shared(self) -> tuple[int, ...]:
        """Ids of the relations whose edges parts keep in tables that they share, ascending."""
        return shared_relations(self.schema, self.num_nodes, self.edge_counts)

    @cached_property
    def shared_features(self) -> list[SharedFeature]:
        """The edge features that these have in common, which parts keep in datasets that they share."""
        infos = feature_infos(self)[1] if self.edge_feats else {}
        return features_in_common(self.shared, (infos.get(self.schema.relation_keys[r], {}) for r in self.shared))

    @cached_property
    def own(self) -> list[int]:
        """The other relations, which have tables of their own, ascending."""
        return own_relations(self.schema, self.shared)

    @cached_property
    def edge_counts(self) -> list[int]:
        """Numbers of edges of all relations."""
        return [len(src) for src, _ in self.edges]

    @cached_property
    def first_edges(self) -> I64:
        """int64[relations + 1]: the first edge of each relation among all edges, relation after relation."""
        return np.append(0, np.cumsum(self.edge_counts)).astype(np.int64)

    @cached_property
    def node_bases(self) -> I64:
        """int64[types + 1]: the first node of each type among all nodes, types one after the other."""
        return np.concatenate([[0], np.cumsum(self.num_nodes)]).astype(np.int64)

    def features(self) -> Iterator[tuple[str, str, str, Feature]]:
        """Yield all features, in the order of types and names: "node" or "edge", the type, the name, the feature."""
        for kind, tables in (("node", self.node_feats), ("edge", self.edge_feats)):
            for owner, table in sorted(tables.items()):
                for name, feature in sorted(table.items()):
                    yield kind, owner, name, feature

    def arrays(self) -> Iterator[RowArray]:
        """Yield the rows of all features, and original ids."""
        yield from (feature.values for *_, feature in self.features())
        yield from (*(self.node_ids or ()), *(self.edge_ids or ()))

    def check_edges(self, chunk: "EdgeChunk") -> None:
        """Check the ends of edges of all relations.

        Raises:
            GraphDataError: names the file and its row where they are known, the relation, the first bad edge and why.
        """
        counts = np.array(self.num_nodes, np.int64)[self.schema.all_ends][chunk.places]
        for side, ids in enumerate((chunk.src, chunk.dst)):
            bad = np.flatnonzero((ids < 0) | (ids >= counts[:, side]))
            if len(bad):
                at = chunk.first + int(bad[0])
                relation = int(np.searchsorted(self.first_edges, at, side="right")) - 1
                number = at - int(self.first_edges[relation])
                values = self.edges[relation][side]
                what = f"edge {number} of {self.schema.relations[relation]} has {('source', 'destination')[side]} "
                what += f"{values[number : number + 1][0]}, but that node type has "  # uint64 may exceed int64
                count = self.num_nodes[self.schema.ends(relation)[side]]
                raise GraphDataError(f"{origin_of(values, number, self.path)}{what}{count} nodes")

    def check_values(self, rank: int = 0, ranks: int = 1) -> None:
        """Check times, labels and masks, before work that takes long; ranks divide the rows.

        Raises GraphDataError, which names the file and its row where they are known: a time is not finite, or a value
        cannot be read as that of a label or a mask.
        """
        for kind, owner, name, feature in self.features():
            values = feature.values
            are_times = name == _TIMES and values.dtype.kind == "f"
            if name not in _CHECKED or (isinstance(values, np.ndarray) and not are_times):
                continue  # rows that are made refuse values when they are read
            first, end = (len(values) * number // ranks for number in (rank, rank + 1))
            for begin in range(first, end, EDGES_PER_CHUNK):
                rows = np.asarray(values[begin : min(begin + EDGES_PER_CHUNK, end)])
                for place in np.argwhere(~np.isfinite(rows)) if are_times else ():
                    row = begin + int(place[0])
                    what = f"{kind} {row} of {owner!r} has time {rows[tuple(place)]}"
                    raise GraphDataError(f"{origin_of(values, row, self.path)}{what}")


class EdgeChunk(NamedTuple):
    """Edges with consecutive numbers among those of some relations, one relation after the other."""

    first: int  # number of the first edge
    places: I64  # int64[n], the place of the relation of each edge among these; int64[1] where all are of one relation
    src: I64  # int64[n]
    dst: I64  # int64[n]


def ends_among_nodes(source: GraphSource, chunk: EdgeChunk) -> tuple[I64, I64]:
    """Return the ends of edges of all relations, int64[n] each, as numbers among the nodes of all types."""
    bases = source.node_bases[source.schema.all_ends][chunk.places]
    return chunk.src + bases[:, 0], chunk.dst + bases[:, 1]


def edge_chunks(
    source: GraphSource, relations: Sequence[int] | None = None, rank: int = 0, ranks: int = 1
) -> Iterator[EdgeChunk]:
    """Yield chunks of at most ``EDGES_PER_CHUNK`` edges of relations, of all by default.

    Several ranks read chunk after chunk in turn. All yield the same number of chunks, so the last may be empty.
    """
    edges = source.edges if relations is None else [source.edges[r] for r in relations]
    src, dst = map(concatenated, zip(*edges, strict=True)) if edges else [np.empty(0, np.int64)] * 2
    bounds = np.append(0, np.cumsum([len(ids) for ids, _ in edges]))
    size = EDGES_PER_CHUNK
    for number, begin in enumerate(range(0, len(src), size * ranks), 1):
        first = min(begin + size * rank, len(src))
        last = min(first + size, len(src))
        low, high = np.searchsorted(bounds, [first, max(last - 1, first)], side="right").clip(1, len(edges)) - 1
        places = np.arange(low, high + 1)
        if len(places) > 1:
            places = np.repeat(places, np.diff(bounds[low : high + 2].clip(first, last)))
        ends = (np.array(ids[first:last], dtype=np.int64) for ids in (src, dst))
        yield EdgeChunk(first, places, *ends)
        if number % _CHUNKS_MAPPED == 0 or begin + size * ranks >= len(src):
            release(src)
            release(dst)


def feature_infos(source: GraphSource) -> tuple[Infos, Infos]:
    """Return dtype and row shape of the features of all node types, and of all relations."""

    def infos(owners: Iterable[str], tables: Features) -> Infos:
        return {owner: {name: of.info for name, of in tables.get(owner, {}).items()} for owner in owners}

    schema = source.schema
    return infos(schema.ntypes, source.node_feats), infos(schema.relation_keys, source.edge_feats)


def narrowed_source(source: GraphSource, infos: tuple[Infos, Infos]) -> GraphSource:
    """Return a graph with features in 16 bits, to which rows are rounded when they are read.

    A number that does not fit raises a GraphDataError then, which names feature and row. ``infos``, of node and edge
    features, have the dtypes in which they are to be stored (``storage/narrow.py``).
    """
    nodes, edges = (
        {owner: dict(table) for owner, table in tables.items()} for tables in (source.node_feats, source.edge_feats)
    )
    for kind, owner, name, feature in source.features():
        tables, stored = (nodes, infos[0]) if kind == "node" else (edges, infos[1])
        narrow = stored[owner][name].narrow
        if feature.narrow != narrow:
            title = f"{kind} feature {name!r} of {owner!r}"
            rows = made_rows(partial(rounded, dtype=narrow), storage_dtype(narrow), feature.values, title=title)
            tables[owner][name] = Feature(rows, feature.dtype, narrow)
    return replace(source, node_feats=nodes, edge_feats=edges)


def mask_of(place: str, ids: Array, num_nodes: int) -> Feature:
    """Return a mask that is set at the nodes ``ids``, [k]; ``place`` names them in messages.

    Raises GraphDataError: they are no ids, or there is no such node.
    """
    if ids.size == 0:
        ids = np.zeros(0, np.int64)  # an empty list becomes float64
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise GraphDataError(f"{place} must be ids of nodes (got {ids.dtype}{list(ids.shape)})")
    outside = np.flatnonzero((ids < 0) | (ids >= num_nodes))
    if len(outside):
        row = int(outside[0])
        raise GraphDataError(f"{place}, row {row}: there is no node {ids[row]} among {num_nodes}")
    mask = np.zeros(num_nodes, bool)
    mask[ids] = True
    return Feature.of(mask)
