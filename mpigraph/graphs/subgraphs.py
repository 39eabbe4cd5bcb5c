"""Parts of a graph in memory: those that nodes or edges induce; and graphs with more, fewer or turned edges.

A part has all node types and relations of the graph, and the features of what it has. ``ndata[NID]`` and ``edata[EID]``
are its ids in the graph. Nothing here changes a graph.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch

from mpigraph.errors import InvalidArgumentError, NodeTypeError
from mpigraph.graphs.fields import (
    EID,
    NID,
    EdgeType,
    IdsLike,
    TensorLike,
    as_ids,
    as_tensor,
    by_first_appearance,
    is_number,
)
from mpigraph.graphs.frame import Frame
from mpigraph.graphs.in_memory import check_range
from mpigraph.graphs.message_passing import MessageFunction, ReduceFunction
from mpigraph.graphs.messages import Message, NodeFunction, Operand, Reduce
from mpigraph.graphs.queries import Queries
from mpigraph.metadata.schema import Relation, Schema

__all__ = ["Subgraphs"]

S = TypeVar("S", bound="Subgraphs")
_Ids = IdsLike | Mapping[str, IdsLike]
_EdgeIds = IdsLike | Mapping[str | Relation, IdsLike]
_Edges = Mapping[Relation, tuple[torch.Tensor, torch.Tensor]]
_FORMATS = ("coo", "csr", "csc")
_REDUCERS = ("sum", "mean", "max", "min")


class Subgraphs(Queries):
    """A graph of which parts can be made."""

    @property
    @abstractmethod
    def ntypes(self) -> list[str]:
        """Names of the node types."""

    @abstractmethod
    def num_nodes(self, ntype: str | None = None) -> int:
        """Return the number of nodes of a type, or of all types."""

    @property
    @abstractmethod
    def _node_frames(self) -> dict[str, Frame]:
        """Frames by node type."""

    @abstractmethod
    def __getitem__(self: S, etype: EdgeType) -> S:
        """Return the graph of one relation, which shares the features."""

    @abstractmethod
    def _made(self: S, schema: Schema, edges: _Edges, num_nodes: Mapping[str, int]) -> S:
        """Return a graph without features, on the same device."""

    def has_nodes(self, vid: IdsLike, ntype: str | None = None) -> Any:
        """Return whether nodes of a type exist: bool[n], or a bool for one number."""
        ids = as_ids(vid, "node ids")
        found = (ids >= 0) & (ids < self.num_nodes(self.ntypes[self.get_ntype_id(ntype)]))
        return bool(found) if is_number(vid) else found

    def formats(self: S, formats: str | Sequence[str] | None = None) -> Any:
        """Return which sparse formats there are, ``{"created": [...], "not created": [...]}``; or the graph.

        Every graph has its edges as they were given, and makes the other formats when they are needed; so a graph "of
        some formats" is the same graph.

        Args:
            formats: None to ask; else "coo", "csr" or "csc", or some of them.

        Raises:
            InvalidArgumentError: there is no such format.
        """
        if formats is None:
            return {"created": list(_FORMATS), "not created": []}
        some = [formats] if isinstance(formats, str) else list(formats)
        if not set(some) <= set(_FORMATS):
            raise InvalidArgumentError(f"formats are {list(_FORMATS)} (got {formats!r})")
        return self

    def create_formats_(self) -> None:
        """Accepted for DGL's scripts: formats are made when they are needed."""

    # -- parts -----------------------------------------------------------------------------------------------

    def subgraph(
        self: S,
        nodes: _Ids,
        *,
        relabel_nodes: bool = True,
        store_ids: bool = True,
        output_device: torch.device | str | None = None,
    ) -> S:
        """Return the part that has the edges between some nodes, ordered by their source's place in ``nodes``.

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
        numbers = {ntype: _numbers(ids, self.num_nodes(ntype)) for ntype, ids in chosen.items()}
        for ntype, ids in chosen.items():
            if int((numbers[ntype] >= 0).sum()) < len(ids):
                raise InvalidArgumentError(f"nodes of type {ntype!r} must be given once each")
        eids = {}
        for relation in self.canonical_etypes:
            found = self.out_edges(chosen[relation[0]], "eid", relation)
            eids[relation] = found[numbers[relation[2]][self._coo(relation)[1][found]] >= 0]
        return self._part(eids, chosen if relabel_nodes else None, store_ids, output_device)

    def edge_subgraph(
        self: S,
        edges: _EdgeIds,
        *,
        relabel_nodes: bool = True,
        store_ids: bool = True,
        output_device: torch.device | str | None = None,
    ) -> S:
        """Return the part that has some edges, in the given order.

        Args:
            edges: int[n], or bool[num_edges]; or edge type -> one of these, relations left out having none.
            relabel_nodes: keep only the ends of the edges, sources first, and number them anew by first appearance;
                else keep all nodes.
            store_ids: as in :meth:`subgraph`.
            output_device: where to put the part.

        Raises:
            OutOfRangeError: an edge does not exist.
            EdgeTypeError: an edge type does not exist, or there are several and ``edges`` are not by type.
            InvalidArgumentError: ids that are not integers.
        """
        given: Mapping[EdgeType, IdsLike] = edges if isinstance(edges, Mapping) else {None: edges}  # type: ignore[assignment]
        chosen = {self.to_canonical_etype(etype): ids for etype, ids in given.items()}
        eids = {
            relation: self._ids(chosen.get(relation, ()), self.num_edges(relation), f"edge of relation {relation}")
            for relation in self.canonical_etypes
        }
        return self._part(eids, self._ends_of(eids) if relabel_nodes else None, store_ids, output_device)

    def in_subgraph(
        self: S,
        nodes: _Ids,
        *,
        relabel_nodes: bool = False,
        store_ids: bool = True,
        output_device: torch.device | str | None = None,
    ) -> S:
        """Return the part that has all edges into some nodes, node by node.

        Args:
            nodes: as in :meth:`subgraph`.
            relabel_nodes: as in :meth:`edge_subgraph`.
            store_ids: as in :meth:`subgraph`.
            output_device: where to put the part.

        Raises:
            OutOfRangeError, NodeTypeError, InvalidArgumentError: as in :meth:`subgraph`.
        """
        chosen = self._by_ntype(nodes)
        eids = {r: self.in_edges(chosen[r[2]], "eid", r) for r in self.canonical_etypes}
        return self._part(eids, self._ends_of(eids) if relabel_nodes else None, store_ids, output_device)

    def out_subgraph(
        self: S,
        nodes: _Ids,
        *,
        relabel_nodes: bool = False,
        store_ids: bool = True,
        output_device: torch.device | str | None = None,
    ) -> S:
        """Return the part that has all edges out of some nodes, node by node; as :meth:`in_subgraph`."""
        chosen = self._by_ntype(nodes)
        eids = {r: self.out_edges(chosen[r[0]], "eid", r) for r in self.canonical_etypes}
        return self._part(eids, self._ends_of(eids) if relabel_nodes else None, store_ids, output_device)

    def only_nodes(self: S, nodes: Mapping[str, torch.Tensor], copy_ndata: bool = True, copy_edata: bool = True) -> S:
        """Return the graph with some of its nodes, which have all its edges; see :func:`mpigraph.compact_graphs`.

        Args:
            nodes: node type -> int64[n], of every type.
            copy_ndata: carry the node features.
            copy_edata: carry the edge features.
        """
        eids = {r: torch.arange(self.num_edges(r), device=self.device) for r in self.canonical_etypes}
        part = self._part(eids, nodes, False, None)
        for relation in self.canonical_etypes if not copy_edata else ():
            part._edge_frame(relation).clear()
        for ntype, ids in nodes.items():
            if not copy_ndata:
                part._node_frames[ntype].clear()
            part._node_frames[ntype][NID] = ids
        return part

    # -- other edges -----------------------------------------------------------------------------------------

    def reverse(self: S, copy_ndata: bool = True, copy_edata: bool = False) -> S:
        """Return the graph with every edge turned; relation (a, r, b) becomes (b, r, a), and edges keep their ids.

        Args:
            copy_ndata: carry the node features (the tensors are shared).
            copy_edata: carry the edge features.
        """
        relations = tuple((dst, name, src) for src, name, dst in self.canonical_etypes)
        edges = {(r[2], r[1], r[0]): self._coo(r)[::-1] for r in self.canonical_etypes}
        turned = self._made(Schema(tuple(self.ntypes), relations), edges, self._counts())
        if copy_ndata:
            self._copy_nodes(turned)
        if copy_edata:
            for src, name, dst in self.canonical_etypes:
                turned._edge_frame((dst, name, src)).update(self._edge_frame((src, name, dst)))
        return turned

    def with_edges(
        self: S, u: IdsLike, v: IdsLike, data: Mapping[str, TensorLike] | None = None, etype: EdgeType = None
    ) -> S:
        """Return the graph with more edges behind those of a relation; see :func:`mpigraph.add_edges`."""
        relation = self.to_canonical_etype(etype)
        src, dst = self._ends(u, v, relation)
        old = self._coo(relation)
        edges = {r: self._coo(r) for r in self.canonical_etypes}
        edges[relation] = torch.cat([old[0], src]), torch.cat([old[1], dst])
        more = self._made(self._schema, edges, self._counts())
        self._copy_nodes(more)
        self._copy_edges(more, but=relation)
        added = {name: as_tensor(values).to(self.device) for name, values in (data or {}).items()}
        frame = self._edge_frame(relation)
        for name in dict.fromkeys((*frame, *added)):
            # of the edges that lack it, old or new, a feature is 0
            like = added[name] if name in added else frame[name]
            before = frame[name] if name in frame else like.new_zeros(frame.num_rows, *like.shape[1:])
            behind = added[name] if name in added else like.new_zeros(len(src), *like.shape[1:])
            more._edge_frame(relation)[name] = torch.cat([before, behind.to(before.dtype)])
        return more

    def without_edges(self: S, eids: IdsLike, etype: EdgeType = None, store_ids: bool = False) -> S:
        """Return the graph without some edges of a relation; see :func:`mpigraph.remove_edges`."""
        relation = self.to_canonical_etype(etype)
        kept = torch.ones(self.num_edges(relation), dtype=torch.bool, device=self.device)
        kept[self._ids(eids, len(kept), f"edge of relation {relation}")] = False
        src, dst = self._coo(relation)
        edges = {r: self._coo(r) for r in self.canonical_etypes}
        edges[relation] = src[kept], dst[kept]
        fewer = self._made(self._schema, edges, self._counts())
        self._copy_nodes(fewer)
        self._copy_edges(fewer, but=relation)
        frame = fewer._edge_frame(relation)
        frame.update({name: values[kept] for name, values in self._edge_frame(relation).items()})
        if store_ids:
            frame[EID] = kept.nonzero().squeeze(1)
        return fewer

    def add_self_loop(
        self: S,
        edge_feat_names: Sequence[str] | None = None,
        fill_data: float | str = 1.0,
        etype: EdgeType = None,
    ) -> S:
        """Return the graph with an edge from each node to itself behind the others, also where there is one.

        Args:
            edge_feat_names: features that the new edges get by ``fill_data``; all by default, the others being 0.
            fill_data: a number for all entries; or "sum", "mean", "max" or "min" of the feature over the node's
                in-edges.
            etype: the relation, within one type; None means the only one.

        Raises:
            InvalidArgumentError: the relation joins two types, or another ``fill_data``.
            FieldNameError: a feature does not exist.
        """
        relation = self._loops(etype, "add_self_loop")
        frame = self._edge_frame(relation)
        nodes = torch.arange(self.num_nodes(relation[0]), device=self.device)
        if isinstance(fill_data, str) and fill_data not in _REDUCERS:
            raise InvalidArgumentError(f"fill_data must be a number or one of {_REDUCERS} (got {fill_data!r})")
        data: dict[str, torch.Tensor] = {}
        for name in frame if edge_feat_names is None else edge_feat_names:
            values = frame[name]
            if isinstance(fill_data, str):
                message = Message("copy", Operand("e", name), None, "m")
                data[name] = self._aggregated(relation, message, Reduce(fill_data, "m", "m"))
            else:
                data[name] = values.new_full((len(nodes), *values.shape[1:]), fill_data)
        return self.with_edges(nodes, nodes, data, relation)

    def remove_self_loop(self: S, etype: EdgeType = None) -> S:
        """Return the graph without the edges from a node to itself.

        Args:
            etype: the relation, within one type; None means the only one.

        Raises:
            InvalidArgumentError: the relation joins two types.
        """
        relation = self._loops(etype, "remove_self_loop")
        src, dst = self._coo(relation)
        return self.without_edges((src == dst).nonzero().squeeze(1), relation)

    # -- messages along some edges ---------------------------------------------------------------------------

    def send_and_recv(
        self,
        edges: IdsLike | tuple[IdsLike, IdsLike],
        message_func: MessageFunction,
        reduce_func: ReduceFunction,
        apply_node_func: NodeFunction | None = None,
        etype: EdgeType = None,
    ) -> None:
        """Send messages along some edges and reduce them at their destinations; the other nodes keep theirs, or get 0.

        Args:
            edges: int[n], each once; or a pair (sources, destinations), int[n] each.
            message_func: as in :meth:`update_all`.
            reduce_func: as in :meth:`update_all`.
            apply_node_func: of the destinations of these edges, as in :meth:`update_all`.
            etype: the relation; None means the only one.

        Raises:
            OutOfRangeError: an edge or a node does not exist.
            GraphDataError: a pair has no edge.
            InvalidArgumentError: as in :meth:`update_all`, or ids that are not integers.
        """
        relation = self.to_canonical_etype(etype)
        eids = as_ids(
            self.edge_ids(edges[0], edges[1], etype=relation) if isinstance(edges, tuple) else edges, "edge ids"
        )
        if not len(eids):
            return
        part = self[relation].edge_subgraph(eids, relabel_nodes=False, store_ids=False)
        part.update_all(message_func, reduce_func)
        touched = torch.unique(part.edges()[1])
        before, made = self._dst_frame(relation), part._dst_frame(relation)
        for name, rows in made.items():
            if name not in before or rows is not before[name]:
                old = before[name] if name in before else torch.zeros_like(rows)
                before[name] = old.index_copy(0, touched, rows[touched])
        if apply_node_func is not None:
            self.apply_nodes(apply_node_func, touched, relation[2])

    # -- helpers ---------------------------------------------------------------------------------------------

    def _part(
        self: S,
        eids: Mapping[Relation, torch.Tensor],
        nodes: Mapping[str, torch.Tensor] | None,
        store_ids: bool,
        device: torch.device | str | None,
    ) -> S:
        """Return the part with edges ``eids`` and ``nodes``, which are numbered anew; None keeps all as they are."""
        columns = {}
        numbers = {} if nodes is None else {t: _numbers(ids, self.num_nodes(t)) for t, ids in nodes.items()}
        for relation, ids in eids.items():
            src, dst = (column[ids] for column in self._coo(relation))
            columns[relation] = (src, dst) if nodes is None else (numbers[relation[0]][src], numbers[relation[2]][dst])
        counts = self._counts() if nodes is None else {t: len(ids) for t, ids in nodes.items()}
        part = self._made(self._schema, columns, counts)
        for relation, ids in eids.items():
            frame = part._edge_frame(relation)
            frame.update({name: values[ids] for name, values in self._edge_frame(relation).items()})
            if store_ids:
                frame[EID] = ids
        if nodes is None:
            self._copy_nodes(part)
        for ntype, ids in (nodes or {}).items():
            frame = part._node_frames[ntype]
            frame.update({name: values[ids] for name, values in self._node_frames[ntype].items()})
            if store_ids:
                frame[NID] = ids
        return part if device is None else part.to(device)

    def _counts(self) -> dict[str, int]:
        return {ntype: self.num_nodes(ntype) for ntype in self.ntypes}

    def _copy_nodes(self, to: "Subgraphs") -> None:
        for ntype in self.ntypes:
            to._node_frames[ntype].update(self._node_frames[ntype])

    def _copy_edges(self, to: "Subgraphs", but: Relation) -> None:
        """Copy the features of all relations but one."""
        for relation in self.canonical_etypes:
            if relation != but:
                to._edge_frame(relation).update(self._edge_frame(relation))

    def _ends_of(self, eids: Mapping[Relation, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the nodes that edges have as ends, by type, in the order of first appearance, sources first."""
        none = torch.zeros(0, dtype=torch.int64, device=self.device)
        ends = {ntype: [none] for ntype in self.ntypes}
        for relation, ids in eids.items():
            for column, ntype in zip(self._coo(relation), relation[::2], strict=True):
                ends[ntype].append(column[ids])
        return {ntype: by_first_appearance(torch.cat(some))[0] for ntype, some in ends.items()}

    def _by_ntype(self, nodes: _Ids) -> dict[str, torch.Tensor]:
        """Return checked node ids of every type."""
        if not isinstance(nodes, Mapping):
            if len(self.ntypes) > 1:
                raise NodeTypeError(f"nodes must be a dict by node type: the graph has {self.ntypes}")
            nodes = {self.ntypes[0]: nodes}
        for ntype in nodes:
            self.get_ntype_id(ntype)
        return {t: self._ids(nodes.get(t, ()), self.num_nodes(t), f"node of type {t!r}") for t in self.ntypes}

    def _ids(self, given: IdsLike, count: int, what: str) -> torch.Tensor:
        """Return checked ids of a list of ids or of a mask."""
        tensor = as_tensor(given).to(self.device)
        if tensor.dtype == torch.bool and tensor.numel():
            if tensor.shape != (count,):
                raise InvalidArgumentError(f"a mask must have {count} entries (got shape {tuple(tensor.shape)})")
            return tensor.nonzero().squeeze(1)
        ids = as_ids(tensor, f"ids of a {what}")
        check_range(ids, count, what)
        return ids

    def _loops(self, etype: EdgeType, what: str) -> Relation:
        """Return a relation that can have edges from a node to itself."""
        relation = self.to_canonical_etype(etype)
        if relation[0] != relation[2]:
            raise InvalidArgumentError(f"{what} needs a relation within one type (got {relation})")
        return relation


def _numbers(ids: torch.Tensor, count: int) -> torch.Tensor:
    """Return the place in ``ids`` of each id below ``count``; -1 where it has none."""
    numbers = torch.full((count,), -1, dtype=torch.int64, device=ids.device)
    numbers[ids] = torch.arange(len(ids), device=ids.device)
    return numbers
