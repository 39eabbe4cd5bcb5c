"""What graphs and blocks in memory have in common: types, counts, features, edges, degrees, scopes.

A subclass gives the structure of each relation; everything else follows from the frames, whose keys are the
types and whose lengths are the counts.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, MutableMapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch

from mpigraph.errors import InvalidArgumentError, NodeTypeError, OutOfRangeError
from mpigraph.graphs.fields import ALL, EdgeType, IdsLike, as_ids, is_number
from mpigraph.graphs.frame import Frame, Frames, fields_of
from mpigraph.graphs.inedges import InEdges
from mpigraph.metadata.schema import Relation, Schema

__all__ = ["EdgesView", "InMemoryGraph", "NodesView", "Space"]

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


class InMemoryGraph(ABC):
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
    def _in_edges(self, relation: Relation) -> InEdges:
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
    def etypes(self) -> list[str]:
        """Names of the relations, in the order of their ids."""
        return [relation[1] for relation in self._schema.relations]

    @property
    def canonical_etypes(self) -> list[Relation]:
        """Relations as ``(src_type, rel, dst_type)``, in the order of their ids."""
        return list(self._schema.relations)

    @property
    def schema(self) -> Schema:
        """Node types and relations."""
        return self._schema

    @property
    def is_homogeneous(self) -> bool:
        """Whether there is one node type and one relation."""
        return self._schema.is_homogeneous

    def to_canonical_etype(self, etype: EdgeType = None) -> Relation:
        """Return the triple of an edge type; None means the only one."""
        return self._schema.to_canonical(etype)

    def get_ntype_id(self, ntype: str | None = None) -> int:
        """Return the id of a node type; None means the only one."""
        return self._schema.ntype_id(ntype)

    def get_etype_id(self, etype: EdgeType = None) -> int:
        """Return the id of a relation; None means the only one."""
        return self._schema.relation_id(etype)

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
        if form not in ("uv", "eid", "all"):
            raise InvalidArgumentError(f"form must be 'uv', 'eid' or 'all' (got {form!r})")
        if order not in ("eid", "srcdst"):
            raise InvalidArgumentError(f"order must be 'eid' or 'srcdst' (got {order!r})")
        src, dst = self._coo(self.to_canonical_etype(etype))
        eids = torch.arange(src.shape[0], device=src.device)
        if order == "srcdst":
            # two stable sorts, the less significant key first, sort by the pair
            eids = torch.argsort(dst, stable=True)
            eids = eids[torch.argsort(src[eids], stable=True)]
            src, dst = src[eids], dst[eids]
        return {"uv": (src, dst), "eid": eids, "all": (src, dst, eids)}[form]

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
        return _pick(self._in_edges(relation).degrees, v, f"node of type {relation[2]!r}")

    def out_degrees(self, u: IdsLike | str = ALL, etype: EdgeType = None) -> Any:
        """Return the out-degrees of sources ``u`` (all by default), int64[n]; an int for one number."""
        relation = self.to_canonical_etype(etype)
        in_edges = self._in_edges(relation)
        degrees = torch.bincount(in_edges.indices, minlength=in_edges.num_src)
        return _pick(degrees, u, f"node of type {relation[0]!r}")

    @property
    def idtype(self) -> torch.dtype:
        """Type of ids, always int64."""
        return torch.int64

    @property
    def device(self) -> torch.device:
        """Where structure and features live."""
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


def frame_of(frames: dict[str, Frame], ntype: str | None) -> Frame:
    """Return the frame of a node type; None means the only one."""
    if ntype is None and len(frames) == 1:
        return next(iter(frames.values()))
    if ntype not in frames:
        known = list(frames)
        raise NodeTypeError(
            f"node type must be given: one of {known}"
            if ntype is None
            else f"node type {ntype!r} does not exist (there are {known})"
        )
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

    Raises:
        InvalidArgumentError: there is no such device.
    """
    try:
        found = torch.device(device)
        if found.type == "cpu":
            return found
        return torch.empty(0, device=found).device  # torch fills in the current device's index
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise InvalidArgumentError(f"there is no device {device!r}: {str(error).splitlines()[0]}") from None


def _pick(degrees: torch.Tensor, ids: IdsLike | str, what: str) -> torch.Tensor | int:
    """Return the degrees of ``ids``, or all of them for ``ALL``."""
    if isinstance(ids, str):
        if ids != ALL:
            raise InvalidArgumentError(f"expected ids of {what}s (got {ids!r})")
        return degrees
    chosen = as_ids(ids, "node ids")
    check_range(chosen, degrees.shape[0], what)
    return int(degrees[chosen]) if is_number(ids) else degrees[chosen]
