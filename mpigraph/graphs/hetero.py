"""The in-memory graph: input for partitioning, sampled frontiers, whole-graph inference.

Relations are typed; a homogeneous graph is the one-relation case of the same code. Edges are kept as they
were given (edge id = position in the list).
"""

from collections.abc import Callable, Hashable, Mapping, MutableMapping
from copy import copy
from typing import Any, TypeVar

import torch

from mpigraph.errors import EdgeTypeError, GraphDataError, InvalidArgumentError
from mpigraph.graphs.fields import EdgeType, IdsLike, as_ids
from mpigraph.graphs.frame import Frame, Frames, fields_of
from mpigraph.graphs.in_memory import NodesView, count
from mpigraph.graphs.inedges import InEdges
from mpigraph.graphs.subgraphs import Subgraphs
from mpigraph.metadata.schema import DEFAULT_ETYPE, Relation, Schema

__all__ = ["HeteroGraph", "graph", "heterograph", "to_bidirected"]

EdgeList = tuple[IdsLike, IdsLike]
T = TypeVar("T")


class _Derived(dict[Hashable, Any]):
    """What follows from the structure; a deep copy of the graph derives it anew, as some of it holds locks."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _Derived, ()


class HeteroGraph(Subgraphs):
    """A graph of typed relations in memory; made by :func:`graph` and :func:`heterograph`.

    Args:
        schema: node types and relations.
        edges: relation -> (src, dst), int64[num_edges] each, already checked.
        num_nodes: node type -> count.
    """

    def __init__(
        self,
        schema: Schema,
        edges: Mapping[Relation, tuple[torch.Tensor, torch.Tensor]],
        num_nodes: Mapping[str, int],
    ) -> None:
        nodes = {t: Frame(num_nodes[t], f"nodes of type {t!r}") for t in schema.ntypes}
        edge = {r: Frame(edges[r][0].shape[0], f"edges of relation {r}") for r in schema.relations}
        device = next((src.device for src, _ in edges.values()), torch.device("cpu"))
        # one object for both sides: what is set on the sources shows on the destinations
        super().__init__(schema, Frames(nodes, nodes, edge), device)
        self._edges = dict(edges)
        self._structures: dict[Relation, InEdges] = {}
        self._cache = _Derived()

    def __repr__(self) -> str:
        if self.is_homogeneous:
            return (
                f"Graph(num_nodes={self.num_nodes()}, num_edges={self.num_edges()}, "
                f"ndata={self.ndata!r}, edata={self.edata!r})"
            )
        nodes = {t: frame.num_rows for t, frame in self._node_frames.items()}
        edges = {r: frame.num_rows for r, frame in self._frames.edge.items()}
        return f"Graph(num_nodes={nodes}, num_edges={edges})"

    @property
    def ntypes(self) -> list[str]:
        """Names of the node types, in the order of their ids."""
        return list(self._schema.ntypes)

    def num_nodes(self, ntype: str | None = None) -> int:
        """Return the number of nodes of a type, or of all types."""
        return count(self._node_frames, ntype)

    number_of_nodes = num_nodes

    @property
    def ndata(self) -> MutableMapping[str, Any]:
        """Features of the nodes: name -> tensor, or name -> {type: tensor} with several types."""
        return fields_of(self._node_frames)

    @property
    def nodes(self) -> NodesView:
        """View of the nodes: ``nodes[t].data``, and ``nodes(t)`` for the ids."""
        return NodesView(self, self._node_frames)

    def __getitem__(self, etype: EdgeType) -> "HeteroGraph":
        """Return the graph of one relation, which shares the features. If it joins two types, it has a source and a
        destination side, as a block has.
        """
        relation = self.to_canonical_etype(etype)
        src, _, dst = relation
        frames = self._frames
        single = copy(self)  # also shares _structures: a layout derived for one serves both
        single._schema = Schema(tuple(dict.fromkeys((src, dst))), (relation,))
        sources = {src: frames.src[src]}
        destinations = sources if src == dst else {dst: frames.dst[dst]}
        single._frames = Frames(sources, destinations, {relation: frames.edge[relation]})
        single._edges = {relation: self._edges[relation]}
        single._cache = _Derived()  # keys of _once do not name the relations
        return single

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor], device: torch.device) -> "HeteroGraph":
        """Return the graph with ``change(tensor)``, on ``device``, in place of every tensor."""
        edges = {r: (change(src), change(dst)) for r, (src, dst) in self._edges.items()}
        counts = {t: frame.num_rows for t, frame in self._node_frames.items()}
        moved = HeteroGraph(self._schema, edges, counts)
        moved._device = device  # a graph without relations has no tensor that would tell
        moved._frames = self._frames.changed(change)
        moved._structures = {r: self._structures[r].changed(change) for r in edges if r in self._structures}
        return moved

    @property
    def _node_frames(self) -> dict[str, Frame]:
        """Frames by node type; the two sides differ only in a relation between two types, see ``__getitem__``."""
        frames = self._frames
        return frames.src if frames.dst is frames.src else frames.src | frames.dst

    def _made(
        self, schema: Schema, edges: Mapping[Relation, tuple[torch.Tensor, torch.Tensor]], num_nodes: Mapping[str, int]
    ) -> "HeteroGraph":
        made = HeteroGraph(schema, edges, num_nodes)
        made._device = self._device
        return made

    def _coo(self, relation: Relation) -> tuple[torch.Tensor, torch.Tensor]:
        return self._edges[relation]

    def _in_edges(self, relation: Relation) -> InEdges:
        if relation not in self._structures:
            src, dst = self._edges[relation]
            sizes = self.num_nodes(relation[0]), self.num_nodes(relation[2])
            self._structures[relation] = InEdges.from_coo(src, dst, *sizes)
        return self._structures[relation]

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._cache:
            self._cache[key] = make()
        made: T = self._cache[key]
        return made


def graph(edges: EdgeList, num_nodes: int | None = None) -> HeteroGraph:
    """Make a homogeneous graph.

    Args:
        edges: (src, dst), integers, num_edges each: tensors, arrays or lists.
        num_nodes: number of nodes; None means the largest endpoint plus one.

    Raises:
        GraphDataError: an endpoint is out of range, or the columns differ in length.
        InvalidArgumentError: a column is not integers in one dimension.
    """
    counts = None if num_nodes is None else {DEFAULT_ETYPE[0]: num_nodes}
    return heterograph({DEFAULT_ETYPE: edges}, counts)


def heterograph(data_dict: Mapping[Relation, EdgeList], num_nodes_dict: Mapping[str, int] | None = None) -> HeteroGraph:
    """Make a graph of typed relations. Types and relations are ordered by name, as in DGL.

    Args:
        data_dict: (src_type, rel, dst_type) -> (src, dst), integers, num_edges each.
        num_nodes_dict: node type -> count. A type without edges may be given too; a type left out gets its
            largest endpoint plus one.

    Raises:
        GraphDataError: an endpoint is out of range, or the columns of a relation differ in length.
        InvalidArgumentError: a column is not integers in one dimension.
        EdgeTypeError: a key is not a triple.
    """
    for relation in data_dict:
        if not isinstance(relation, tuple) or len(relation) != 3:
            raise EdgeTypeError(f"an edge type is a triple (src_type, rel, dst_type) (got {relation!r})")
    edges = {relation: _columns(relation, data_dict[relation]) for relation in sorted(data_dict)}
    counts = dict(num_nodes_dict or {})
    for ntype, num in counts.items():
        if num < 0:
            raise InvalidArgumentError(f"number of nodes of type {ntype!r} must be >= 0 (got {num})")
    _check_or_infer(edges, counts)
    return HeteroGraph(Schema(tuple(sorted(counts)), tuple(edges)), edges, counts)


def to_bidirected(g: HeteroGraph, copy_ndata: bool = False, readonly: bool | None = None) -> HeteroGraph:
    """Add the reverse of every edge and remove duplicates; the result is sorted by source, then destination.

    Edge features are dropped, since two edges may become one.

    Args:
        g: the graph; every relation must join a type with itself.
        copy_ndata: carry the node features (the tensors are shared).
        readonly: ignored; accepted because DGL's scripts give it.

    Raises:
        InvalidArgumentError: a relation joins two types.
    """
    edges = {}
    for relation in g.canonical_etypes:
        if relation[0] != relation[2]:
            raise InvalidArgumentError(f"to_bidirected needs relations within one type (got {relation})")
        num = g.num_nodes(relation[0])
        src, dst = g.all_edges(etype=relation)
        key = torch.unique(torch.cat([src * num + dst, dst * num + src]))  # sorted, so by source, then destination
        edges[relation] = (key // num, key % num) if num else (src, dst)
    result = HeteroGraph(g.schema, edges, {t: g.num_nodes(t) for t in g.ntypes})
    if copy_ndata:
        for ntype in g.ntypes:
            result.nodes[ntype].data.update(g.nodes[ntype].data)
    return result


def _columns(relation: Relation, edges: EdgeList) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn one relation's edge list into two int64 tensors of one length."""
    try:
        src, dst = edges
    except (TypeError, ValueError):
        raise GraphDataError(f"edges of {relation} must be a pair (src, dst)") from None
    src = as_ids(src, f"sources of {relation}")
    dst = as_ids(dst, f"destinations of {relation}")
    if src.shape != dst.shape:
        raise GraphDataError(f"relation {relation} has {len(src)} sources but {len(dst)} destinations")
    return src, dst


def _check_or_infer(
    edges: Mapping[Relation, tuple[torch.Tensor, torch.Tensor]], counts: MutableMapping[str, int]
) -> None:
    """Check endpoints against the given counts; infer the counts that are missing (``counts`` is filled in)."""
    given = set(counts)
    for relation, columns in edges.items():
        for what, ntype, ids in zip(("source", "destination"), relation[::2], columns, strict=True):
            low, high = (int(ids.min()), int(ids.max())) if ids.numel() else (0, -1)
            # without a given count only negative endpoints are wrong
            limit = counts[ntype] if ntype in given else max(high + 1, 0)
            if low < 0 or high >= limit:
                edge = int(((ids < 0) | (ids >= limit)).nonzero()[0])
                wrong = f"is not in [0, {limit})" if ntype in given else "is negative"
                raise GraphDataError(f"relation {relation}, edge {edge}: {what} {int(ids[edge])} {wrong}")
            if ntype not in given:
                counts[ntype] = max(counts.get(ntype, 0), limit)
