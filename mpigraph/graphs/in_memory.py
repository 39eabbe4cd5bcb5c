"""The base class of graphs and blocks in memory: types, counts, features, edges, degrees, scopes.

A subclass gives the structure of each relation. Everything else follows from the frames: their keys are the types,
their lengths the counts.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, MutableMapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch

from mpigraph.errors import GraphDataError, InvalidArgumentError, NodeTypeError, OutOfRangeError
from mpigraph.graphs.aggregate import InEdges
from mpigraph.graphs.fields import ALL, EdgeType, Frame, Frames, IdsLike, as_ids, fields_of, is_number
from mpigraph.metadata.schema import Relation, Schema, TypeNames

G = TypeVar("G", bound="InMemoryGraph")
T = TypeVar("T")


@dataclass(frozen=True)
class Space:
    """The nodes of one type or the edges of one relation; ``data`` holds their features."""

    data: Frame


class NodesView:
    """``g.nodes[t].data`` and ``g.nodes(t)``, also of one side of a block."""

    def __init__(self, graph: "InMemoryGraph", frames: dict[str, Frame]) -> None:
        self._graph = graph
        self._frames = frames

    def __getitem__(self, ntype: str) -> Space:
        return Space(frame_of(self._frames, ntype))

    def __call__(self, ntype: str | None = None) -> torch.Tensor:
        """Return the node ids of a type, int64[n]."""
        return torch.arange(frame_of(self._frames, ntype).num_rows, device=self._graph.device)


class EdgesView:
    """``g.edges[r].data`` and ``g.edges(form=, order=, etype=)``."""

    def __init__(self, graph: "InMemoryGraph") -> None:
        self._graph = graph

    def __getitem__(self, etype: str | Relation) -> Space:
        return Space(self._graph._edge_frame(etype))

    def __call__(self, form: str = "uv", order: str = "eid", etype: EdgeType = None) -> Any:
        """Return the edges as :meth:`InMemoryGraph.all_edges` does."""
        return self._graph.all_edges(form, order, etype)


class InMemoryGraph(TypeNames, ABC):
    """A graph with typed relations and features in memory."""

    is_block: ClassVar[bool] = False

    def __init__(self, schema: Schema, frames: Frames, device: torch.device) -> None:
        self._schema = schema
        self._frames = frames
        self._device = device

    @abstractmethod
    def _coo(self, relation: Relation) -> tuple[torch.Tensor, torch.Tensor]:
        """Return source and destination of each edge, int64, by edge id."""

    @abstractmethod
    def structure(self, relation: Relation) -> InEdges:
        """Return the edges of a relation by destination."""

    @abstractmethod
    def changed(self: G, change: Callable[[torch.Tensor], torch.Tensor], device: torch.device) -> G:
        """Return the graph with ``change(tensor)``, on ``device``, in place of every tensor."""

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return ``make()``, which depends on the structure alone; graphs that outlive a minibatch cache it."""
        return make()

    # -- types -----------------------------------------------------------------------------------------------

    @property
    def srctypes(self) -> list[str]:
        """Types of the source side."""
        return list(self._frames.src)

    @property
    def dsttypes(self) -> list[str]:
        """Types of the destination side."""
        return list(self._frames.dst)

    @property
    def schema(self) -> Schema:
        """Node types and relations."""
        return self._schema

    # -- counts and features ---------------------------------------------------------------------------------

    def num_src_nodes(self, ntype: str | None = None) -> int:
        """Return the number of source nodes of a type, or of all types."""
        return count(self._frames.src, ntype)

    def num_dst_nodes(self, ntype: str | None = None) -> int:
        """Return the number of destination nodes of a type, or of all types."""
        return count(self._frames.dst, ntype)

    def num_edges(self, etype: EdgeType = None) -> int:
        """Return the number of edges of a relation, or of all."""
        if etype is None:
            return sum(frame.num_rows for frame in self._frames.edge.values())
        return self._edge_frame(etype).num_rows

    number_of_src_nodes = num_src_nodes
    number_of_dst_nodes = num_dst_nodes
    number_of_edges = num_edges

    @property
    def srcdata(self) -> MutableMapping[str, Any]:
        """Features of the source side: name -> tensor, or name -> {type: tensor} with several types."""
        return fields_of(self._frames.src)

    @property
    def dstdata(self) -> MutableMapping[str, Any]:
        """Features of the destination side: name -> tensor, or name -> {type: tensor} with several types."""
        return fields_of(self._frames.dst)

    @property
    def edata(self) -> MutableMapping[str, Any]:
        """Features of the edges: name -> tensor, or name -> {relation: tensor} with several relations."""
        return fields_of(self._frames.edge)

    @property
    def srcnodes(self) -> NodesView:
        """View of the source side: ``srcnodes[t].data``, ``srcnodes(t)``."""
        return NodesView(self, self._frames.src)

    @property
    def dstnodes(self) -> NodesView:
        """View of the destination side: ``dstnodes[t].data``, ``dstnodes(t)``."""
        return NodesView(self, self._frames.dst)

    @property
    def edges(self) -> EdgesView:
        """View of the edges: ``edges[r].data``, and ``edges(form=, order=, etype=)``."""
        return EdgesView(self)

    # -- structure -------------------------------------------------------------------------------------------

    def all_edges(self, form: str = "uv", order: str = "eid", etype: EdgeType = None) -> Any:
        """Return the edges of a relation.

        Args:
            form: "uv" for (src, dst), "eid" for the ids, "all" for (src, dst, eid); each int64[num_edges].
            order: "eid", or "srcdst" to sort by source, then destination.
            etype: the relation; None means the only one.
        """
        if order not in ("eid", "srcdst"):
            raise InvalidArgumentError(f"order must be 'eid' or 'srcdst' (got {order!r})")
        src, dst = self._coo(self.to_canonical_etype(etype))
        eids = torch.arange(src.shape[0], device=src.device)
        if order == "srcdst":
            # two stable sorts, the less significant key first, sort by the pair
            eids = torch.argsort(dst, stable=True)
            eids = eids[torch.argsort(src[eids], stable=True)]
            src, dst = src[eids], dst[eids]
        return _in_form(form, src, dst, eids)

    def find_edges(self, eid: IdsLike, etype: EdgeType = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return source and destination, int64[n] each, of edge ids.

        Raises:
            OutOfRangeError: an edge id does not exist.
        """
        relation = self.to_canonical_etype(etype)
        eids = as_ids(eid, "edge ids")
        check_range(eids, self.num_edges(relation), f"Invalid edge ID of {relation}")
        src, dst = self._coo(relation)
        return src[eids], dst[eids]

    def edge_index(self, etype: EdgeType = None) -> torch.Tensor:
        """Return sources and destinations, int64[2, num_edges], for PyG's layers."""
        return torch.stack(self._coo(self.to_canonical_etype(etype)))

    def in_degrees(self, v: IdsLike | str = ALL, etype: EdgeType = None) -> Any:
        """Return the in-degrees of destinations ``v`` (all by default), int64[n]; an int for one number."""
        relation = self.to_canonical_etype(etype)
        return _pick(self.structure(relation).degrees, v, f"node of type {relation[2]!r}")

    def out_degrees(self, u: IdsLike | str = ALL, etype: EdgeType = None) -> Any:
        """Return the out-degrees of sources ``u`` (all by default), int64[n]; an int for one number."""
        relation = self.to_canonical_etype(etype)
        in_edges = self.structure(relation)
        degrees = torch.bincount(in_edges.indices, minlength=in_edges.num_src)
        return _pick(degrees, u, f"node of type {relation[0]!r}")

    # -- edges by their ends ---------------------------------------------------------------------------------

    def has_edges_between(self, u: IdsLike, v: IdsLike, etype: EdgeType = None) -> Any:
        """Return whether there is an edge from ``u[i]`` to ``v[i]``.

        Args:
            u: int[n], sources; one is for all ``v``.
            v: int[n], destinations; one is for all ``u``.
            etype: the relation; None means the only one.

        Returns:
            bool[n]; a bool if ``u`` and ``v`` are numbers.

        Raises:
            OutOfRangeError: a node does not exist.
            InvalidArgumentError: ids that are not integers, or different numbers of them.
        """
        relation = self.to_canonical_etype(etype)
        _, counts = self._places(relation, *self._ends(u, v, relation))
        return bool(counts[0] > 0) if is_number(u) and is_number(v) else counts > 0

    def edge_ids(self, u: IdsLike, v: IdsLike, return_uv: bool = False, etype: EdgeType = None) -> Any:
        """Return the ids of the edges from ``u[i]`` to ``v[i]``.

        Args:
            u: int[n], sources; one is for all ``v``.
            v: int[n], destinations; one is for all ``u``.
            return_uv: return all edges of each pair, with their ends; a pair may have no edges.
            etype: the relation; None means the only one.

        Returns:
            int64[n], of parallel edges the first; an int if ``u`` and ``v`` are numbers. With ``return_uv`` sources,
            destinations and ids, int64 each, the edges of a pair one after the other.

        Raises:
            OutOfRangeError: a node does not exist.
            GraphDataError: a pair has no edge, without ``return_uv``.
            InvalidArgumentError: ids that are not integers, or different numbers of them.
        """
        relation = self.to_canonical_etype(etype)
        src, dst = self._ends(u, v, relation)
        first, counts = self._places(relation, src, dst)
        eids = self._by_ends(relation)[1]
        if return_uv:
            places = _expanded(first, counts)
            return src.repeat_interleave(counts), dst.repeat_interleave(counts), eids[places]
        if bool((counts == 0).any()):
            pair = int((counts == 0).nonzero()[0])
            raise GraphDataError(f"there is no edge of {relation} from {int(src[pair])} to {int(dst[pair])}")
        result = eids[first]
        return int(result) if is_number(u) and is_number(v) else result

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
        dst, src, eids = self._neighbours(self.structure(relation), v, relation[2])
        return _in_form(form, src, dst, eids)

    def out_edges(self, u: IdsLike, form: str = "uv", etype: EdgeType = None) -> Any:
        """Return the edges out of nodes, node by node in the order of ``u``, those of a node by their ids.

        Arguments and errors are those of :meth:`in_edges`, with sources in place of destinations.
        """
        relation = self.to_canonical_etype(etype)
        src, dst, eids = self._neighbours(self._out_edges(relation), u, relation[0])
        return _in_form(form, src, dst, eids)

    def predecessors(self, v: IdsLike, etype: EdgeType = None) -> torch.Tensor:
        """Return the sources of the edges into a node, int64[in-degree]."""
        return torch.as_tensor(self.in_edges(v, etype=etype)[0])

    def successors(self, v: IdsLike, etype: EdgeType = None) -> torch.Tensor:
        """Return the destinations of the edges out of a node, int64[out-degree]."""
        return torch.as_tensor(self.out_edges(v, etype=etype)[1])

    def _out_edges(self, relation: Relation) -> InEdges:
        """Return the edges of a relation by source: "destinations" are the sources."""

        def turned() -> InEdges:
            src, dst = self._coo(relation)
            frames = self._frames_of(relation)
            return InEdges.from_coo(dst, src, frames[1].num_rows, frames[0].num_rows)

        return self._once(("out-edges", relation), turned)

    def _by_ends(self, relation: Relation) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the edges in the order of source, then destination: a number for each pair, and their ids."""

        def ordered() -> tuple[torch.Tensor, torch.Tensor]:
            src, dst = self._coo(relation)
            keys, eids = torch.sort(src * self._frames_of(relation)[1].num_rows + dst, stable=True)
            return keys, eids

        return self._once(("by ends", relation), ordered)

    def _places(self, relation: Relation, src: torch.Tensor, dst: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return where the edges of each pair begin in :meth:`_by_ends`, and how many they are; int64[n] each."""
        keys = self._by_ends(relation)[0]
        requested = src * self._frames_of(relation)[1].num_rows + dst
        first = torch.searchsorted(keys, requested)
        return first, torch.searchsorted(keys, requested, right=True) - first

    def _ends(self, u: IdsLike, v: IdsLike, relation: Relation) -> tuple[torch.Tensor, torch.Tensor]:
        """Return checked sources and destinations, int64[n] each."""
        frames = self._frames_of(relation)
        src, dst = as_ids(u, "source ids").to(self.device), as_ids(v, "destination ids").to(self.device)
        for ids, frame, ntype in zip((src, dst), frames, relation[::2], strict=False):
            check_range(ids, frame.num_rows, f"node of type {ntype!r}")
        if len(src) != len(dst) and 1 not in (len(src), len(dst)):
            raise InvalidArgumentError(f"an edge has two ends (got {len(src)} sources and {len(dst)} destinations)")
        most = max(len(src), len(dst)) if len(src) and len(dst) else 0
        return src.expand(most), dst.expand(most)

    def _neighbours(
        self, edges: InEdges, nodes: IdsLike, ntype: str
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the edges of ``nodes``: for each its node, the other end, and its id."""
        ids = as_ids(nodes, "node ids").to(self.device)
        check_range(ids, edges.num_dst, f"node of type {ntype!r}")
        counts = edges.degrees[ids]
        places = _expanded(edges.indptr[ids], counts)
        eids = places if edges.perm is None else edges.perm[places]
        return ids.repeat_interleave(counts), edges.indices[places].long(), eids

    # -- devices ---------------------------------------------------------------------------------------------

    @property
    def idtype(self) -> torch.dtype:
        """Type of ids, always int64."""
        return torch.int64

    @property
    def device(self) -> torch.device:
        """The device of structure and features."""
        return self._device

    def to(self: G, device: torch.device | str, non_blocking: bool = False) -> G:
        """Return the graph with structure and features on ``device``; itself if it is there.

        Args:
            device: the device; "cuda" is this thread's current GPU.
            non_blocking: do not wait for copies from pinned memory to a GPU, as in :meth:`torch.Tensor.to`.

        Raises:
            InvalidArgumentError: there is no such device.
        """
        exact = exact_device(device)
        if exact == self.device:
            return self
        return self.changed(lambda tensor: tensor.to(exact, non_blocking=non_blocking), exact)

    def cpu(self: G) -> G:
        """Return the graph on the CPU: ``to("cpu")``."""
        return self.to("cpu")

    def long(self: G) -> G:
        """Accepted for DGL's scripts: ids are int64. Returns the graph."""
        return self

    def pin_memory(self: G) -> G:
        """Return the graph with structure and features in pinned memory, from which copies to a GPU are asynchronous.

        Raises:
            RuntimeError: from torch, which has no GPU, or the graph is not on the CPU.
        """
        return self.changed(torch.Tensor.pin_memory, self.device)

    def record_stream(self, stream: Any) -> None:
        """Tell torch that a stream uses the graph, as :meth:`torch.Tensor.record_stream` does."""

        def record(tensor: torch.Tensor) -> torch.Tensor:
            tensor.record_stream(stream)
            return tensor

        self.changed(record, self.device)

    # -- scopes ----------------------------------------------------------------------------------------------

    @contextmanager
    def local_scope(self) -> Iterator[None]:
        """Restore, on exit, the features that there were on entry."""
        saved = self._frames
        self._frames = saved.copy()
        try:
            yield
        finally:
            self._frames = saved

    def local_var(self: G) -> G:
        """Return a graph with the same structure and tensors; features set on one do not show on the other."""
        twin = copy(self)
        twin._frames = self._frames.copy()
        return twin

    def _edge_frame(self, etype: EdgeType) -> Frame:
        return self._frames.edge[self.to_canonical_etype(etype)]

    def _frames_of(self, relation: Relation) -> tuple[Frame, Frame, Frame]:
        return self._frames.src[relation[0]], self._frames.dst[relation[2]], self._frames.edge[relation]


def frame_of(frames: dict[str, Frame], ntype: str | None) -> Frame:
    """Return the frame of a node type; None means the only one."""
    if ntype is None and len(frames) == 1:
        return next(iter(frames.values()))
    if ntype not in frames:
        if ntype is None:
            raise NodeTypeError(f"node type must be given: one of {list(frames)}")
        raise NodeTypeError(f"node type {ntype!r} does not exist (there are {list(frames)})")
    return frames[ntype]


def check_range(ids: torch.Tensor, num: int, what: str) -> None:
    """Raise OutOfRangeError unless all ids lie in [0, num)."""
    bad = (ids < 0) | (ids >= num)
    if bool(bad.any()):
        raise OutOfRangeError(f"{what}: {int(ids[bad][0])} (there are {num})")


def count(frames: dict[str, Frame], ntype: str | None) -> int:
    """Return the rows of the frame of a type; None means all types."""
    if ntype is None:
        return sum(frame.num_rows for frame in frames.values())
    return frame_of(frames, ntype).num_rows


def exact_device(device: torch.device | str) -> torch.device:
    """Return the device with its index, as tensors name it: "cuda" is "cuda:0".

    Raises InvalidArgumentError if there is no such device.
    """
    try:
        parsed = torch.device(device)
        if parsed.type == "cpu":
            return parsed
        return torch.empty(0, device=parsed).device  # torch fills in the current device's index
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise InvalidArgumentError(f"there is no device {device!r}: {str(error).splitlines()[0]}") from None


def _pick(degrees: torch.Tensor, ids: IdsLike | str, what: str) -> torch.Tensor | int:
    if isinstance(ids, str):
        if ids != ALL:
            raise InvalidArgumentError(f"expected ids of {what}s (got {ids!r})")
        return degrees
    chosen = as_ids(ids, "node ids")
    check_range(chosen, degrees.shape[0], what)
    return int(degrees[chosen]) if is_number(ids) else degrees[chosen]


def _expanded(first: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return first[i], first[i] + 1, ... counts[i] of them, one after the other: int64[sum of the counts]."""
    begins = (first - counts.cumsum(0) + counts).repeat_interleave(counts)
    return begins + torch.arange(begins.shape[0], device=begins.device)


def _in_form(form: str, src: torch.Tensor, dst: torch.Tensor, eids: torch.Tensor) -> Any:
    forms = {"uv": (src, dst), "eid": eids, "all": (src, dst, eids)}
    if form not in forms:
        raise InvalidArgumentError(f"form must be 'uv', 'eid' or 'all' (got {form!r})")
    return forms[form]
