"""The in-memory graph: input for partitioning, sampled frontiers, whole-graph inference.

Relations are typed; a homogeneous graph is the one-relation case of the same code. Edges are kept as they
were given (edge id = position in the list).
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import copy
from numbers import Number
from typing import Any, TypeVar

import numpy as np
import torch

from mpigraph.errors import EdgeTypeError, GraphDataError, InvalidArgumentError
from mpigraph.graphs import fields
from mpigraph.graphs.aggregate import InEdges
from mpigraph.graphs.face import Edges, Graph, check_range
from mpigraph.graphs.fields import EID, NID, EdgeType, Frame, Frames, IdsLike, NodeIds, TensorLike
from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.metadata.schema import DEFAULT_ETYPE, Relation, Schema

EdgeList = tuple[IdsLike, IdsLike] | tuple[str, Sequence[IdsLike]] | TensorLike
"""The edges of a relation, as :func:`graph` takes them."""
T = TypeVar("T")


class _Derived(dict[Hashable, Any]):
    """Data derived from the structure; a deep copy of the graph derives it anew, since values may hold locks."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _Derived, ()


class HeteroGraph(MessagePassing):
    """A graph of typed relations in memory; made by :func:`graph` and :func:`heterograph`.

    A part of it keeps all node types and relations, and the features of its nodes and edges; ``ndata[NID]`` and
    ``edata[EID]`` are their ids in the graph. Methods that return a graph leave this one as it is.

    Args:
        schema: node types and relations.
        edges: relation -> (src, dst), int64[num_edges] each, already checked.
        num_nodes: node type -> count.
        device: where the edges are; None asks them.
    """

    def __init__(
        self,
        schema: Schema,
        edges: Mapping[Relation, tuple[torch.Tensor, torch.Tensor]],
        num_nodes: Mapping[str, int],
        device: torch.device | None = None,
    ) -> None:
        nodes = {t: Frame(num_nodes[t], f"nodes of type {t!r}") for t in schema.ntypes}
        edge = {r: Frame(edges[r][0].shape[0], f"edges of relation {r}") for r in schema.relations}
        device = device or next((src.device for src, _ in edges.values()), torch.device("cpu"))
        # one object for both sides: what is set on the sources shows on the destinations
        super().__init__(schema, Frames(nodes, nodes, edge), device)
        self._edges = dict(edges)
        self._structures: dict[Relation, InEdges] = {}
        self._cache = _Derived()

    def __repr__(self) -> str:
        if self.is_homogeneous:
            sizes = f"num_nodes={self.num_nodes()}, num_edges={self.num_edges()}"
            return f"Graph({sizes}, ndata={self.ndata!r}, edata={self.edata!r})"
        nodes = {t: frame.num_rows for t, frame in self._node_frames.items()}
        edges = {r: frame.num_rows for r, frame in self._frames.edge.items()}
        return f"Graph(num_nodes={nodes}, num_edges={edges})"

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
        moved = HeteroGraph(self._schema, edges, counts, device)
        moved._frames = self._frames.each(lambda frame: frame.changed(change))
        moved._structures = {r: self._structures[r].changed(change) for r in edges if r in self._structures}
        return moved

    def _coo(self, relation: Relation) -> tuple[torch.Tensor, torch.Tensor]:
        return self._edges[relation]

    def structure(self, relation: Relation) -> InEdges:
        """Return the in-edges of a relation."""
        if relation not in self._structures:
            src, dst = self._edges[relation]
            sizes = self.num_nodes(relation[0]), self.num_nodes(relation[2])
            self._structures[relation] = InEdges.from_coo(src, dst, *sizes)
        return self._structures[relation]

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._cache:
            self._cache[key] = make()
        value: T = self._cache[key]
        return value

    # -- parts -----------------------------------------------------------------------------------------------

    def subgraph(
        self,
        nodes: NodeIds,
        relabel_nodes: bool = True,
        store_ids: bool = True,
        output_device: torch.device | str | None = None,
    ) -> "HeteroGraph":
        """Return the part that has the edges between some nodes, by their ids.

        Args:
            nodes: int[n], each once, or bool[num_nodes]; or node type -> one of these, types left out having none.
            relabel_nodes: number the nodes by their places in ``nodes``, and leave out the others; else keep all nodes.
            store_ids: keep the ids in the graph as ``ndata[NID]`` (if the nodes are numbered anew) and ``edata[EID]``.
            output_device: where to put the part.

        Raises:
            OutOfRangeError: a node does not exist.
            InvalidArgumentError: a node is given twice, or ids that are not integers.
            NodeTypeError: a node type does not exist, or there are several and ``nodes`` are not by type.
        """
        chosen = self._by_ntype(nodes)
        numbers: dict[str, torch.Tensor] = {}  # the place of each node, -1 where it has none
        for ntype, ids in chosen.items():
            check_range(ids, self.num_nodes(ntype), f"node id of type {ntype!r}")
            numbers[ntype] = ids.new_full((self.num_nodes(ntype),), -1)
            numbers[ntype][ids] = torch.arange(len(ids), device=ids.device)
            if int((numbers[ntype] >= 0).sum()) < len(ids):
                raise InvalidArgumentError(f"nodes of type {ntype!r} must be given once each")
        edges = {}
        for relation in self.canonical_etypes:
            src, dst = self._coo(relation)
            of_src, of_dst = numbers[relation[0]][src], numbers[relation[2]][dst]
            eids = ((of_src >= 0) & (of_dst >= 0)).nonzero().squeeze(1)
            edges[relation] = (*((of_src[eids], of_dst[eids]) if relabel_nodes else (src[eids], dst[eids])), eids)
        part = self._part(edges, chosen if relabel_nodes else None, store_ids)
        return part if output_device is None else part.to(output_device)

    # -- other edges -----------------------------------------------------------------------------------------

    def reverse(self, copy_ndata: bool = True, copy_edata: bool = False) -> "HeteroGraph":
        """Return the graph with every edge turned; relation (a, r, b) becomes (b, r, a), and edges keep their ids.

        Args:
            copy_ndata: carry the node features (the tensors are shared).
            copy_edata: carry the edge features.
        """
        edges = {(r[2], r[1], r[0]): self._coo(r)[::-1] for r in self.canonical_etypes}
        turned = self.with_edge_lists(edges, copy_ndata)
        if copy_edata:
            for src, name, dst in self.canonical_etypes:
                turned._edge_frame((dst, name, src)).update(self._edge_frame((src, name, dst)))
        return turned

    def with_edges(
        self, u: IdsLike, v: IdsLike, data: Mapping[str, TensorLike] | None = None, etype: EdgeType = None
    ) -> "HeteroGraph":
        """Return the graph with more edges behind those of a relation; :func:`mpigraph.add_edges` is the same.

        Args:
            u: int[n], sources.
            v: int[n], destinations.
            data: features of the new edges, name -> [n, ...]. What they or the old edges lack is 0.
            etype: the relation; None means the only one.

        Raises:
            OutOfRangeError: a node does not exist.
            InvalidArgumentError: ids that are not integers, or different numbers of them.
            GraphDataError: a feature does not have a row for each new edge.
        """
        relation = self.to_canonical_etype(etype)
        src, dst = self._pairs(u, v, relation)
        old = self._coo(relation)
        more = self._with_edges_of(relation, torch.cat([old[0], src]), torch.cat([old[1], dst]))
        added = {name: fields.as_tensor(values).to(self.device) for name, values in (data or {}).items()}
        frame = self._edge_frame(relation)
        for name in dict.fromkeys((*frame, *added)):
            # of the edges that lack it, old or new, a feature is 0
            like = added[name] if name in added else frame[name]
            before = frame[name] if name in frame else like.new_zeros(frame.num_rows, *like.shape[1:])
            behind = added[name] if name in added else like.new_zeros(len(src), *like.shape[1:])
            more._edge_frame(relation)[name] = torch.cat([before, behind.to(before.dtype)])
        return more

    def without_edges(self, eids: IdsLike, etype: EdgeType = None, store_ids: bool = False) -> "HeteroGraph":
        """Return the graph without some edges of a relation; those behind them get lower ids.

        :func:`mpigraph.remove_edges` is the same.

        Args:
            eids: int[n].
            etype: the relation; None means the only one.
            store_ids: keep the old ids as ``edata[EID]``.

        Raises:
            OutOfRangeError: an edge does not exist.
            InvalidArgumentError: ids that are not integers.
        """
        relation = self.to_canonical_etype(etype)
        kept = torch.ones(self.num_edges(relation), dtype=torch.bool, device=self.device)
        dropped = self._ids(eids, len(kept), "edge ids")
        check_range(dropped, len(kept), f"edge id of relation {relation}")
        kept[dropped] = False
        src, dst = self._coo(relation)
        fewer = self._with_edges_of(relation, src[kept], dst[kept])
        fewer._edge_frame(relation).update({name: rows[kept] for name, rows in self._edge_frame(relation).items()})
        if store_ids:
            fewer._edge_frame(relation)[EID] = kept.nonzero().squeeze(1)
        return fewer

    def add_self_loop(
        self, edge_feat_names: Sequence[str] | None = None, fill_data: float = 1.0, etype: EdgeType = None
    ) -> "HeteroGraph":
        """Return the graph with an edge from each node to itself behind the others, also where there is one.

        Args:
            edge_feat_names: features that the new edges get by ``fill_data``; all by default, the others being 0.
            fill_data: a number for all their entries.
            etype: the relation, within one type; None means the only one.

        Raises:
            InvalidArgumentError: the relation joins two types, or ``fill_data`` is no number.
            FieldNameError: a feature does not exist.
        """
        relation = self._loops(etype, "add_self_loop")
        frame = self._edge_frame(relation)
        nodes = torch.arange(self.num_nodes(relation[0]), device=self.device)
        if not isinstance(fill_data, Number):
            raise InvalidArgumentError(f"fill_data must be a number (got {fill_data!r})")
        names = frame if edge_feat_names is None else edge_feat_names
        data = {name: frame[name].new_full((len(nodes), *frame[name].shape[1:]), fill_data) for name in names}
        return self.with_edges(nodes, nodes, data, relation)

    def remove_self_loop(self, etype: EdgeType = None) -> "HeteroGraph":
        """Return the graph without the edges from a node to itself.

        Args:
            etype: the relation, within one type; None means the only one.

        Raises:
            InvalidArgumentError: the relation joins two types.
        """
        relation = self._loops(etype, "remove_self_loop")
        src, dst = self._coo(relation)
        return self.without_edges((src == dst).nonzero().squeeze(1), relation)

    # -- helpers ---------------------------------------------------------------------------------------------

    def _part(
        self, edges: Mapping[Relation, Edges], nodes: Mapping[str, torch.Tensor] | None, store_ids: bool
    ) -> "HeteroGraph":
        part = part_of(self, edges, nodes, store_ids)
        for relation, (_, _, eids) in edges.items():
            _add_rows(part._edge_frame(relation), self._edge_frame(relation), eids)
        for ntype, frame in self._node_frames.items():
            _add_rows(part._node_frames[ntype], frame, None if nodes is None else nodes[ntype])
        return part

    def with_edge_lists(
        self, edges: Mapping[Relation, tuple[torch.Tensor, torch.Tensor]], copy_ndata: bool
    ) -> "HeteroGraph":
        """Return a graph of the same nodes with other edges, which have no features."""
        counts = {ntype: frame.num_rows for ntype, frame in self._node_frames.items()}
        other = HeteroGraph(Schema(tuple(counts), tuple(edges)), edges, counts, self._device)
        if copy_ndata:
            for ntype, frame in self._node_frames.items():
                other._node_frames[ntype].update(frame)
        return other

    def _with_edges_of(self, changed: Relation, src: torch.Tensor, dst: torch.Tensor) -> "HeteroGraph":
        """Return the graph with these edges, without features, in place of those of one relation."""
        graph = self.with_edge_lists({**self._edges, changed: (src, dst)}, copy_ndata=True)
        for relation in self.canonical_etypes:
            if relation != changed:
                graph._edge_frame(relation).update(self._edge_frame(relation))
        return graph

    def _loops(self, etype: EdgeType, what: str) -> Relation:
        relation = self.to_canonical_etype(etype)
        if relation[0] != relation[2]:
            raise InvalidArgumentError(f"{what} needs a relation within one type (got {relation})")
        return relation


def part_of(
    g: Graph[Any], edges: Mapping[Relation, Edges], nodes: Mapping[str, torch.Tensor] | None, store_ids: bool
) -> HeteroGraph:
    """Return a part of a graph, as :meth:`.Graph._part` describes it, with the ids of its edges and nodes alone."""
    counts = {t: g.num_nodes(t) if nodes is None else len(nodes[t]) for t in g.ntypes}
    ends = {relation: (src, dst) for relation, (src, dst, _) in edges.items()}
    part = HeteroGraph(g.schema, ends, counts, g.device)
    for relation, (_, _, eids) in edges.items() if store_ids else ():
        part.edges[relation].data[EID] = eids
    for ntype, ids in (nodes or {}).items() if store_ids else ():
        part.nodes[ntype].data[NID] = ids
    return part


def _add_rows(frame: Frame, of: Frame, ids: torch.Tensor | None) -> None:
    """Add the features of a type at some rows, or all, to a part, which has its own ids."""
    frame.update({name: rows if ids is None else rows[ids] for name, rows in of.items() if name not in frame})


def graph(edges: EdgeList, num_nodes: int | None = None) -> HeteroGraph:
    """Make a homogeneous graph.

    Args:
        edges: a tuple (src, dst) of integers, num_edges each: tensors, arrays or lists; a tensor or an array of
            shape [2, num_edges]; a list of pairs (u, v), one for each edge; ``("coo", (src, dst))``; or
            ``("csr", (indptr, indices, eids))`` and ``("csc", ...)``: the destinations of each source, and the
            sources of each destination, with the ids of their edges (empty: in this order).
        num_nodes: number of nodes; None means the largest endpoint plus one, and at least the rows of a CSR.

    Raises:
        GraphDataError: the edges have another form, an endpoint is out of range, or the columns differ in length.
        InvalidArgumentError: a column is not integers in one dimension.
    """
    counts = None if num_nodes is None else {DEFAULT_ETYPE[0]: num_nodes}
    return heterograph({DEFAULT_ETYPE: edges}, counts)


def heterograph(data_dict: Mapping[Relation, EdgeList], num_nodes_dict: Mapping[str, int] | None = None) -> HeteroGraph:
    """Make a graph of typed relations. Types and relations are ordered by name, as in DGL.

    Args:
        data_dict: (src_type, rel, dst_type) -> edges, as :func:`graph` takes them.
        num_nodes_dict: node type -> count. A type without edges may be given too; a type left out gets its
            largest endpoint plus one.

    Raises:
        GraphDataError: edges have another form, an endpoint is out of range, or the columns of a relation differ in
            length.
        InvalidArgumentError: a column is not integers in one dimension.
        EdgeTypeError: a key is not a triple.
    """
    edges, counts = _checked_edges(data_dict, num_nodes_dict or {})
    return HeteroGraph(Schema(tuple(sorted(counts)), tuple(edges)), edges, counts)


def _checked_edges(
    lists: Mapping[Relation, EdgeList], num_nodes: Mapping[str, int]
) -> tuple[dict[Relation, tuple[torch.Tensor, torch.Tensor]], dict[str, int]]:
    """Return the edges of each relation, by name, and the number of nodes of each type."""
    for relation in lists:
        if not isinstance(relation, tuple) or len(relation) != 3:
            raise EdgeTypeError(f"an edge type is a triple (src_type, rel, dst_type) (got {relation!r})")
    columns = {relation: _columns(relation, lists[relation]) for relation in sorted(lists)}
    counts = dict(num_nodes)
    for ntype, num in counts.items():
        if num < 0:
            raise InvalidArgumentError(f"number of nodes of type {ntype!r} must be >= 0 (got {num})")
    for relation, (ends, rows) in columns.items():
        for what, ntype, ids, least in zip(("source", "destination"), relation[::2], ends, rows, strict=True):
            low, high = (int(ids.min()), int(ids.max())) if ids.numel() else (0, -1)
            # without a count only negative endpoints are wrong
            limit = num_nodes[ntype] if ntype in num_nodes else max(high + 1, least)
            if low < 0 or high >= limit:
                edge = int(((ids < 0) | (ids >= limit)).nonzero()[0])
                wrong = f"is not in [0, {limit})" if ntype in num_nodes else "is negative"
                raise GraphDataError(f"relation {relation}, edge {edge}: {what} {int(ids[edge])} {wrong}")
            if least > limit:
                raise GraphDataError(f"relation {relation}: indptr is of {least} nodes, but there are to be {limit}")
            counts[ntype] = max(counts.get(ntype, 0), limit)
    return {relation: ends for relation, (ends, _) in columns.items()}, counts


def _columns(relation: Relation, edges: EdgeList) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[int, int]]:
    """Return one relation's edges as two int64 tensors of one length, and the least number of nodes at both ends."""
    given: Any = edges
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        form, given = given
        if form in ("csr", "csc"):
            return _columns_of_csr(relation, form, given)
        given = tuple(given) if form == "coo" else ()
    elif isinstance(given, torch.Tensor | np.ndarray):
        given = tuple(given) if given.ndim == 2 and len(given) == 2 else ()
    elif isinstance(given, list | Iterator):  # such as zip(src, dst)
        pairs = fields.as_tensor(list(given), f"edges of {relation}")
        given = tuple(pairs.unbind(1)) if pairs.ndim == 2 else (pairs, pairs) if not len(pairs) else ()
    if not isinstance(given, tuple) or len(given) != 2:
        got = f"{type(edges).__name__}{list(getattr(edges, 'shape', ()))}"
        raise GraphDataError(
            f"edges of {relation} must be a tuple (src, dst), a tensor of shape [2, num_edges], a list of pairs "
            f"(u, v), or ('coo', 'csr' or 'csc', arrays) (got {got})"
        )
    src = fields.as_ids(given[0], f"sources of {relation}")
    dst = fields.as_ids(given[1], f"destinations of {relation}")
    if src.shape != dst.shape:
        raise GraphDataError(f"relation {relation} has {len(src)} sources but {len(dst)} destinations")
    return (src, dst), (0, 0)


def _columns_of_csr(
    relation: Relation, form: str, arrays: Any
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[int, int]]:
    """Return as :func:`_columns` does the edges of ``(indptr, indices, eids)``; nodes without edges count, too."""
    if not isinstance(arrays, tuple | list) or len(arrays) != 3:
        raise GraphDataError(f"edges of {relation}: {form!r} needs (indptr, indices, eids)")
    names = ("indptr", "indices", "eids")
    indptr, indices, eids = (fields.as_ids(of, f"{name} of {relation}") for name, of in zip(names, arrays, strict=True))
    degrees = indptr.diff()
    if not len(indptr) or indptr[0] != 0 or indptr[-1] != len(indices) or bool((degrees < 0).any()):
        raise GraphDataError(f"indptr of {relation} must rise from 0 to {len(indices)}, the number of edges")
    owners = torch.arange(len(degrees), device=indptr.device).repeat_interleave(degrees)
    if len(eids):
        ascending, order = eids.sort()
        if not torch.equal(ascending, torch.arange(len(indices), device=eids.device)):
            raise GraphDataError(f"eids of {relation} must be each of 0 to {len(indices) - 1} once")
        owners, indices = owners[order], indices[order]
    if form == "csr":
        return (owners, indices), (len(degrees), 0)
    return (indices, owners), (0, len(degrees))


DGLGraph = HeteroGraph
"""DGL's name of the class."""
