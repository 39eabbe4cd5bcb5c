"""The face of every graph, in memory and distributed: types, counts, features, edges, degrees and parts.

A subclass has its features by type (:class:`.Frames`; their lengths are the counts) and answers a few questions about
the edges of a relation: their ends, the degrees of nodes, the edges into nodes, whether there are edges between nodes.
Everything that users call follows from these, so arguments mean the same for every graph.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeAlias

import torch

from mpigraph.errors import EdgeTypeError, InvalidArgumentError, NodeTypeError
from mpigraph.graphs import fields
from mpigraph.graphs.fields import ALL, EdgeIds, EdgeType, F, Frames, IdsLike, K, NodeIds
from mpigraph.metadata.book import check_ids
from mpigraph.metadata.schema import Relation, Schema, TypeNames

Pair: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Sources and destinations of edges, int64[n] each."""
Edges: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Sources, destinations and ids of edges, int64[n] each."""


@dataclass(frozen=True)
class Space(Generic[F]):
    """The nodes of one type or the edges of one relation; ``data`` holds their features."""

    data: F


class TypesView(Generic[K, F]):
    """``g.nodes`` or ``g.edges``: ``[type].data`` are the features of a type.

    Attributes:
        frames: features by type, in the order of ids.
        find: returns the key of a type as users name it.
    """

    def __init__(self, graph: "Graph[F]", frames: dict[K, F], find: Callable[[Any], K]) -> None:
        self._graph = graph
        self.frames: dict[K, F] = frames
        self.find: Callable[[Any], K] = find

    def __getitem__(self, kind: EdgeType) -> Space[F]:
        return Space(self.frames[self.find(kind)])


class NodesView(TypesView[str, F]):
    """``g.nodes[t].data`` and ``g.nodes(t)``, also of one side of a block."""

    def __call__(self, ntype: str | None = None) -> torch.Tensor:
        """Return the node ids of a type, int64[n]."""
        return torch.arange(self.frames[self.find(ntype)].num_rows, device=self._graph.device)


class EdgesView(TypesView[Relation, F]):
    """``g.edges[r].data`` and ``g.edges(form=, order=, etype=)``."""

    def __call__(self, form: str = "uv", order: str = "eid", etype: EdgeType = None) -> Any:
        """Return the edges as :meth:`Graph.all_edges` does."""
        return self._graph.all_edges(form, order, etype)


class Graph(TypeNames, ABC, Generic[F]):
    """A graph with typed relations and features.

    The abstract methods raise OutOfRangeError for nodes and edges that do not exist, if they are not checked here.

    Of a :class:`.DistGraph` the edges into nodes, and whether edges exist, are looked up at their owners, which is
    collective when hosts are remote and MPI has one thread; all else is one-sided.
    """

    is_block: ClassVar[bool] = False

    def __init__(self, schema: Schema, frames: Frames[F], device: torch.device) -> None:
        self._schema = schema
        self._frames = frames
        self._device = device

    @abstractmethod
    def _edge_ends(self, relation: Relation, eids: torch.Tensor | None) -> Pair:
        """Return the ends of edges, int64[n]; None: of all edges."""

    @abstractmethod
    def _degrees(self, relation: Relation, side: int, nodes: torch.Tensor | None) -> torch.Tensor:
        """Return the out-degrees (``side`` 0) or in-degrees (1) of nodes, int64[n]; None: of all nodes."""

    @abstractmethod
    def _edges_into(self, relations: list[Relation], nodes: Mapping[str, torch.Tensor]) -> dict[Relation, Edges]:
        """Return the edges into nodes (by node type), node by node, those of a node by their ids."""

    @abstractmethod
    def _have_edges(self, pairs: Mapping[Relation, Pair]) -> dict[Relation, torch.Tensor]:
        """Return bool[n], whether there are edges between nodes, which exist."""

    def _part(self, edges: Mapping[Relation, Edges], nodes: Mapping[str, torch.Tensor] | None, store_ids: bool) -> Any:
        """Return a :class:`.HeteroGraph` of edges whose ends are places in ``nodes``, by type; None means all nodes."""
        raise InvalidArgumentError("expected a graph that is not a block")

    # -- types, counts and features --------------------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        """Node types and relations."""
        return self._schema

    @property
    def idtype(self) -> torch.dtype:
        """Type of ids, always int64."""
        return torch.int64

    @property
    def device(self) -> torch.device:
        """The device of structure and features, or of rows and samples of a distributed graph."""
        return self._device

    @property
    def _node_frames(self) -> dict[str, F]:
        """Features by node type; the two sides differ only in a relation between two types."""
        frames = self._frames
        return frames.src if frames.dst is frames.src else frames.src | frames.dst

    def num_nodes(self, ntype: str | None = None) -> int:
        """Return the number of nodes of a type, or of all types."""
        return count(self._node_frames, ntype)

    def num_edges(self, etype: EdgeType = None) -> int:
        """Return the number of edges of a relation, or of all."""
        return count(self._frames.edge, None if etype is None else self.to_canonical_etype(etype))

    number_of_nodes = num_nodes
    number_of_edges = num_edges

    @property
    def ndata(self) -> MutableMapping[str, Any]:
        """Features of the nodes: name -> values, or name -> {type: values} with several types."""
        return fields.fields_of(self._node_frames)

    @property
    def edata(self) -> MutableMapping[str, Any]:
        """Features of the edges: name -> values, or name -> {relation: values} with several relations."""
        return fields.fields_of(self._frames.edge)

    @property
    def nodes(self) -> NodesView[F]:
        """View of the nodes: ``nodes[t].data``, and ``nodes(t)`` for the ids."""
        return self._nodes_view(self._node_frames)

    @property
    def edges(self) -> EdgesView[F]:
        """View of the edges: ``edges[r].data``, and ``edges(form=, order=, etype=)``."""
        return EdgesView(self, self._frames.edge, self.to_canonical_etype)

    def _nodes_view(self, frames: dict[str, F]) -> NodesView[F]:
        return NodesView(self, frames, lambda ntype: node_type(frames, ntype))

    def has_nodes(self, vid: IdsLike, ntype: str | None = None) -> Any:
        """Return whether nodes of a type exist: bool[n], or a bool for one number."""
        ids = fields.as_ids(vid, "node ids")
        exist = (ids >= 0) & (ids < self.num_nodes(self.ntypes[self.get_ntype_id(ntype)]))
        return bool(exist) if fields.is_number(vid) else exist

    # -- edges -----------------------------------------------------------------------------------------------

    def all_edges(self, form: str = "uv", order: str = "eid", etype: EdgeType = None) -> Any:
        """Return the edges of a relation.

        Args:
            form: "uv" for (src, dst), "eid" for the ids, "all" for (src, dst, eid); each int64[num_edges].
            order: "eid", or "srcdst" to sort by source, then destination.
            etype: the relation; None means the only one.
        """
        if order not in ("eid", "srcdst"):
            raise InvalidArgumentError(f"order must be 'eid' or 'srcdst' (got {order!r})")
        relation = self.to_canonical_etype(etype)
        src, dst = self._edge_ends(relation, None)
        eids = torch.arange(len(src), device=src.device)
        if order == "srcdst":
            # two stable sorts, the less significant key first, sort by the pair
            eids = torch.argsort(dst, stable=True)
            eids = eids[torch.argsort(src[eids], stable=True)]
            src, dst = src[eids], dst[eids]
        return in_form(form, src, dst, eids)

    def find_edges(self, eid: IdsLike, etype: EdgeType = None) -> Pair:
        """Return source and destination, int64[n] each, of edge ids, in their order.

        Raises:
            OutOfRangeError: an edge does not exist.
        """
        return self._edge_ends(self.to_canonical_etype(etype), fields.as_ids(eid, "edge ids").to(self.device))

    def in_degrees(self, v: IdsLike | str = ALL, etype: EdgeType = None) -> Any:
        """Return the in-degrees of destinations ``v`` (all by default), int64[n]; an int for one number.

        Raises:
            OutOfRangeError: a node does not exist.
        """
        return self._degrees_of(v, etype, 1)

    def out_degrees(self, u: IdsLike | str = ALL, etype: EdgeType = None) -> Any:
        """Return the out-degrees of sources ``u`` (all by default), int64[n]; an int for one number.

        Raises:
            OutOfRangeError: a node does not exist.
        """
        return self._degrees_of(u, etype, 0)

    def _degrees_of(self, nodes: IdsLike | str, etype: EdgeType, side: int) -> Any:
        if isinstance(nodes, str) and nodes != ALL:
            raise InvalidArgumentError(f"expected node ids (got {nodes!r}; the relation is etype=)")
        chosen = None if isinstance(nodes, str) else fields.as_ids(nodes, "node ids").to(self.device)
        degrees = self._degrees(self.to_canonical_etype(etype), side, chosen)
        return int(degrees) if fields.is_number(nodes) else degrees

    def in_edges(self, v: IdsLike, form: str = "uv", etype: EdgeType = None) -> Any:
        """Return the edges into nodes, node by node in the order of ``v``, those of a node by their ids.

        Args:
            v: int[n], destinations.
            form: "uv" for (src, dst), "eid" for the ids, "all" for (src, dst, eid); int64 each.
            etype: the relation; None means the only one.

        Raises:
            OutOfRangeError: a node does not exist.
            InvalidArgumentError: another ``form``, or ids that are not integers.
        """
        relation = self.to_canonical_etype(etype)
        nodes = {relation[2]: fields.as_ids(v, "node ids").to(self.device)}
        return in_form(form, *self._edges_into([relation], nodes)[relation])

    def has_edges_between(self, u: EdgeIds, v: EdgeIds, etype: EdgeType = None) -> Any:
        """Return whether there is an edge from ``u[i]`` to ``v[i]``; in one round for any number of relations.

        Args:
            u: int[n], sources; one is for all ``v``. Or edge type -> int[n], to ask about several relations at once.
            v: int[n], destinations; one is for all ``u``. Or a dict with the same edge types as ``u``.
            etype: the relation; None means the only one, or with dicts.

        Returns:
            bool[n]; a bool if ``u`` and ``v`` are numbers; relation -> bool[n] for dicts.

        Raises:
            OutOfRangeError: a node does not exist.
            EdgeTypeError: the edge type does not exist or is ambiguous, or ``v`` has not the edge types of ``u``.
            InvalidArgumentError: ids that are not integers, different numbers of them, two edge types that are the same
                relation, or ``etype`` together with dicts.
        """
        if etype is not None and (isinstance(u, Mapping) or isinstance(v, Mapping)):
            raise InvalidArgumentError(f"give etype or dicts by edge type, not both (got etype={etype!r})")
        src, dst = self._by_relation(u, etype, "source ids"), self._by_relation(v, etype, "destination ids")
        if src.keys() != dst.keys():
            raise EdgeTypeError(f"sources are of edge types {list(src)}, destinations of {list(dst)}")
        exist = self._have_edges({relation: self._pairs(ids, dst[relation], relation) for relation, ids in src.items()})
        if isinstance(u, Mapping):
            return exist
        (of_relation,) = exist.values()
        return bool(of_relation) if fields.is_number(u) and fields.is_number(v) else of_relation

    def _by_relation(self, ids: EdgeIds, etype: EdgeType, what: str) -> dict[Relation, Any]:
        given: Any = ids if isinstance(ids, Mapping) else {self.to_canonical_etype(etype): ids}
        return fields.canonical(self.schema, given, what)

    def _pairs(self, u: Any, v: Any, relation: Relation) -> Pair:
        """Return sources and destinations, int64[n] each; one that is given alone is for all of the others."""
        src, dst = fields.as_ids(u, "source ids").to(self.device), fields.as_ids(v, "destination ids").to(self.device)
        if len(src) != len(dst) and 1 not in (len(src), len(dst)):
            got = f"{len(src)} sources and {len(dst)} destinations of {relation}"
            raise InvalidArgumentError(f"an edge has two ends (got {got})")
        most = max(len(src), len(dst)) if len(src) and len(dst) else 0
        sides = self._frames.src, self._frames.dst
        for ids, frames, ntype in zip((src, dst), sides, relation[::2], strict=True):
            check_range(ids, frames[ntype].num_rows, f"node id of type {ntype!r}")
        return src.expand(most), dst.expand(most)

    # -- parts -----------------------------------------------------------------------------------------------

    def edge_subgraph(
        self,
        edges: EdgeIds,
        relabel_nodes: bool = True,
        store_ids: bool = True,
        output_device: torch.device | str | None = None,
    ) -> Any:
        """Return the part that has some edges, in the given order, with every node type and relation of this graph.

        It is a :class:`.HeteroGraph` in memory. A graph in memory gives its features along; a distributed one does not.

        Args:
            edges: int[n], or bool[num_edges]; or edge type -> one of these, relations left out having none.
            relabel_nodes: keep only the ends of the edges, sources first, and number them anew by first appearance;
                else keep all nodes.
            store_ids: keep the ids in this graph as ``ndata[NID]`` (if the nodes are numbered anew) and ``edata[EID]``.
            output_device: where to put the part.

        Raises:
            OutOfRangeError: an edge does not exist.
            EdgeTypeError: an edge type does not exist, or there are several and ``edges`` are not by type.
            InvalidArgumentError: ids that are not integers, or a mask of another length.
        """
        chosen: Mapping[Relation, Any] = fields.canonical(self.schema, edges, "edge ids")
        columns = {}
        for relation in self.canonical_etypes:
            eids = self._ids(chosen.get(relation, ()), self.num_edges(relation), "edge ids")
            columns[relation] = (*self._edge_ends(relation, eids), eids)
        return self._part_of_ends(columns, relabel_nodes, store_ids, output_device)

    def in_subgraph(
        self,
        nodes: NodeIds,
        relabel_nodes: bool = False,
        store_ids: bool = True,
        output_device: torch.device | str | None = None,
    ) -> Any:
        """Return the part that has all edges into some nodes, node by node, as :meth:`edge_subgraph` does.

        Args:
            nodes: int[n], or bool[num_nodes]; or node type -> one of these, types left out having none.
            relabel_nodes: as in :meth:`edge_subgraph`, like the other arguments.
            store_ids: keep the ids.
            output_device: where to put the part.

        Raises:
            OutOfRangeError: a node does not exist.
            InvalidArgumentError: ids that are not integers, or a mask of another length.
            NodeTypeError: a node type does not exist, or there are several and ``nodes`` are not by type.
        """
        edges = self._edges_into(self.canonical_etypes, self._by_ntype(nodes))
        return self._part_of_ends(edges, relabel_nodes, store_ids, output_device)

    def _part_of_ends(
        self,
        edges: Mapping[Relation, Edges],
        relabel_nodes: bool,
        store_ids: bool,
        device: torch.device | str | None,
    ) -> Any:
        """Return the graph of edges, whose nodes are their ends if they are to be numbered anew."""
        nodes = None
        if relabel_nodes:
            ends = {(r, side): edges[r][side] for r in edges for side in (0, 1)}
            nodes, places = renumbered(self.ntypes, ends, {}, self.device)
            edges = {r: (places[r, 0], places[r, 1], eids) for r, (_, _, eids) in edges.items()}
        part = self._part(edges, nodes, store_ids)
        return part if device is None else part.to(device)

    def _by_ntype(self, nodes: NodeIds) -> dict[str, torch.Tensor]:
        """Return the ids of nodes by type, those of a mask too, for every type."""
        chosen: Mapping[str, Any] = fields.by_ntype(self.schema, nodes, "nodes")
        return {t: self._ids(chosen.get(t, ()), self.num_nodes(t), "node ids") for t in self.ntypes}

    def _ids(self, ids_or_mask: IdsLike, count: int, what: str) -> torch.Tensor:
        tensor = fields.as_tensor(ids_or_mask, what).to(self.device)
        if tensor.dtype != torch.bool or not tensor.numel():
            return fields.as_ids(tensor, what)
        if tensor.shape != (count,):
            raise InvalidArgumentError(f"a mask must have {count} entries (got shape {tuple(tensor.shape)})")
        return tensor.nonzero().squeeze(1)


def renumbered(
    ntypes: list[str],
    ends: Mapping[tuple[Relation, int], torch.Tensor],
    first: Mapping[str, torch.Tensor],
    device: torch.device,
) -> tuple[dict[str, torch.Tensor], dict[tuple[Relation, int], torch.Tensor]]:
    """Number the nodes of each type by first appearance, behind ``first``, int64[n] by node type.

    ``ends`` are the sources (side 0) or destinations (1) of a relation's edges, int64[num_edges]. Return the nodes by
    type, int64[n], and their places in the form of ``ends``.
    """
    nodes: dict[str, torch.Tensor] = {}
    places: dict[tuple[Relation, int], torch.Tensor] = {}
    none = torch.zeros(0, dtype=torch.int64, device=device)
    for ntype in ntypes:
        sides = [(r, side) for r, side in ends if r[2 * side] == ntype]
        columns = [first.get(ntype, none), *(ends[key] for key in sides)]
        nodes[ntype], numbers = fields.by_first_appearance(torch.cat(columns))
        places.update(zip(sides, torch.split(numbers, [len(column) for column in columns])[1:], strict=True))
    return nodes, places


def node_type(frames: Mapping[str, Any], ntype: str | None) -> str:
    """Return a node type that has features; None means the only one. Raises NodeTypeError."""
    if ntype is None and len(frames) == 1:
        return next(iter(frames))
    if ntype is None:
        raise NodeTypeError(f"node type is ambiguous: name one of {list(frames)}, as ntype={next(iter(frames))!r}")
    if ntype not in frames:
        raise NodeTypeError(f"node type {ntype!r} does not exist (there are {list(frames)})")
    return ntype


def count(frames: Mapping[Any, F], kind: Any) -> int:
    """Return the rows of the features of a type; None means all types. Raises NodeTypeError."""
    if kind is None:
        return sum(frame.num_rows for frame in frames.values())
    return frames[kind if isinstance(kind, tuple) else node_type(frames, kind)].num_rows


def check_range(ids: torch.Tensor, num: int, what: str) -> None:
    """Raise OutOfRangeError unless all ids lie in [0, num); ``what`` names them ("node id of type 'author'")."""
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= num):
        check_ids(ids.cpu().numpy(), num, what)


def in_form(form: str, src: torch.Tensor, dst: torch.Tensor, eids: torch.Tensor) -> Any:
    """Return what DGL's ``form`` names of edges. Raises InvalidArgumentError."""
    forms = {"uv": (src, dst), "eid": eids, "all": (src, dst, eids)}
    if form not in forms:
        raise InvalidArgumentError(f"form must be 'uv', 'eid' or 'all' (got {form!r})")
    return forms[form]
