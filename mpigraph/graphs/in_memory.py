"""The base class of graphs and blocks in memory: sides, look-ups of edges, devices, scopes.

A subclass gives the structure of each relation.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from copy import copy
from typing import Any, TypeVar

import torch

from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.graphs.aggregate import InEdges
from mpigraph.graphs.face import Edges, Graph, NodesView, Pair, check_range, count
from mpigraph.graphs.fields import EdgeType, Frame, IdsLike, fields_of, is_number
from mpigraph.metadata.schema import Relation

G = TypeVar("G", bound="InMemoryGraph")
T = TypeVar("T")


class InMemoryGraph(Graph[Frame]):
    """A graph with typed relations and features in memory."""

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

    # -- sides -----------------------------------------------------------------------------------------------

    @property
    def srctypes(self) -> list[str]:
        """Types of the source side."""
        return list(self._frames.src)

    @property
    def dsttypes(self) -> list[str]:
        """Types of the destination side."""
        return list(self._frames.dst)

    def num_src_nodes(self, ntype: str | None = None) -> int:
        """Return the number of source nodes of a type, or of all types."""
        return count(self._frames.src, ntype)

    def num_dst_nodes(self, ntype: str | None = None) -> int:
        """Return the number of destination nodes of a type, or of all types."""
        return count(self._frames.dst, ntype)

    number_of_src_nodes = num_src_nodes
    number_of_dst_nodes = num_dst_nodes

    @property
    def srcdata(self) -> MutableMapping[str, Any]:
        """Features of the source side: name -> tensor, or name -> {type: tensor} with several types."""
        return fields_of(self._frames.src)

    @property
    def dstdata(self) -> MutableMapping[str, Any]:
        """Features of the destination side: name -> tensor, or name -> {type: tensor} with several types."""
        return fields_of(self._frames.dst)

    @property
    def srcnodes(self) -> NodesView[Frame]:
        """View of the source side: ``srcnodes[t].data``, ``srcnodes(t)``."""
        return self._nodes_view(self._frames.src)

    @property
    def dstnodes(self) -> NodesView[Frame]:
        """View of the destination side: ``dstnodes[t].data``, ``dstnodes(t)``."""
        return self._nodes_view(self._frames.dst)

    # -- structure -------------------------------------------------------------------------------------------

    def _edge_ends(self, relation: Relation, eids: torch.Tensor | None) -> Pair:
        if eids is None:
            return self._coo(relation)
        check_range(eids, self.num_edges(relation), f"edge id of relation {relation}")
        src, dst = self._coo(relation)
        return src[eids], dst[eids]

    def _degrees(self, relation: Relation, side: int, nodes: torch.Tensor | None) -> torch.Tensor:
        edges = self.structure(relation)
        degrees = edges.degrees if side else torch.bincount(edges.indices, minlength=edges.num_src)
        if nodes is None:
            return degrees
        check_range(nodes, len(degrees), f"node id of type {relation[2 * side]!r}")
        return degrees[nodes]

    def _edges_into(self, relations: list[Relation], nodes: Mapping[str, torch.Tensor]) -> dict[Relation, Edges]:
        into: dict[Relation, Edges] = {}
        for relation in relations:
            edges, ids = self.structure(relation), nodes[relation[2]]
            check_range(ids, edges.num_dst, f"node id of type {relation[2]!r}")
            counts = edges.degrees[ids]
            begins = (edges.indptr[ids] - counts.cumsum(0) + counts).repeat_interleave(counts)
            places = begins + torch.arange(begins.shape[0], device=begins.device)
            eids = places if edges.perm is None else edges.perm[places]
            into[relation] = edges.indices[places].long(), ids.repeat_interleave(counts), eids
        return into

    def _have_edges(self, pairs: Mapping[Relation, Pair]) -> dict[Relation, torch.Tensor]:
        return {relation: self._places(relation, *ends)[1] > 0 for relation, ends in pairs.items()}

    def edge_index(self, etype: EdgeType = None) -> torch.Tensor:
        """Return sources and destinations, int64[2, num_edges], for PyG's layers."""
        return torch.stack(self._coo(self.to_canonical_etype(etype)))

    def edge_ids(self, u: IdsLike, v: IdsLike, etype: EdgeType = None) -> Any:
        """Return the ids of the edges from ``u[i]`` to ``v[i]``.

        Args:
            u: int[n], sources; one is for all ``v``.
            v: int[n], destinations; one is for all ``u``.
            etype: the relation; None means the only one.

        Returns:
            int64[n], of parallel edges the first; an int if ``u`` and ``v`` are numbers.

        Raises:
            OutOfRangeError: a node does not exist.
            GraphDataError: a pair has no edge.
            InvalidArgumentError: ids that are not integers, or different numbers of them.
        """
        relation = self.to_canonical_etype(etype)
        src, dst = self._pairs(u, v, relation)
        first, counts = self._places(relation, src, dst)
        if bool((counts == 0).any()):
            pair = int((counts == 0).nonzero()[0])
            raise GraphDataError(f"there is no edge of {relation} from {int(src[pair])} to {int(dst[pair])}")
        result = self._by_ends(relation)[1][first]
        return int(result) if is_number(u) and is_number(v) else result

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

    # -- devices ---------------------------------------------------------------------------------------------

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

    # -- scopes ----------------------------------------------------------------------------------------------

    @contextmanager
    def local_scope(self) -> Iterator[None]:
        """Restore, on exit, the features that there were on entry."""
        saved = self._frames
        self._frames = saved.each(Frame.copy)
        try:
            yield
        finally:
            self._frames = saved

    def local_var(self: G) -> G:
        """Return a graph with the same structure and tensors; features set on one do not show on the other."""
        twin = copy(self)
        twin._frames = self._frames.each(Frame.copy)
        return twin

    def _edge_frame(self, etype: EdgeType) -> Frame:
        return self._frames.edge[self.to_canonical_etype(etype)]

    def _frames_of(self, relation: Relation) -> tuple[Frame, Frame, Frame]:
        return self._frames.src[relation[0]], self._frames.dst[relation[2]], self._frames.edge[relation]


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
