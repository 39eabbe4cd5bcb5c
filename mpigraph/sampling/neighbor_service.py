"""One hop of neighbour sampling: near destinations by plain loads, far ones in a round. And whether edges exist.

All relations of a hop share the round. The answer does not depend on who samples: a draw is a hash of the request's
key, the node and the number of the draw. An edge is looked up where its destination is. While some trainers sample
others may look up edges, in the same round.
"""

from dataclasses import dataclass
from threading import Lock
from typing import NoReturn

import numpy as np

from mpigraph.arrays import I64, Array, Mask
from mpigraph.collective import WHEN_FAR, collective
from mpigraph.kernels.compact import LocalIds
from mpigraph.kernels.row_ops import place_ragged, split_by_range
from mpigraph.kernels.tree_ids import TreeIds
from mpigraph.metadata.book import RangeBook
from mpigraph.sampling.channel import Channel
from mpigraph.sampling.local import Buffers, LocalSampling, PositionsByHost, look_up_edges
from mpigraph.sampling.protocol import (
    AnswerReader,
    EdgeQuery,
    RelationRequest,
    Request,
    SampledNeighbors,
    pack_query,
    pack_request,
)
from mpigraph.sampling.workers import Workers
from mpigraph.store.store import LoadedGraph, Store

__all__ = ["NeighborService"]


@dataclass(frozen=True)
class _Found:
    """Neighbours of the nodes at ``positions`` (ascending), one after the other."""

    positions: I64
    counts: Array
    src: Array
    eids: Array


class NeighborService:
    """Samples hops and looks up edges over a channel.

    For one thread at a time: whoever may not be alone holds :attr:`lock` until it has used what was sampled.

    Attributes:
        channel_number: the number of the channel.
        lock: held by the thread that samples.
    """

    def __init__(self, state: Store, channel: Channel) -> None:
        self.lock = Lock()
        self._state = state
        self.channel = channel
        self._world = state.world
        self._buffers = Buffers()
        self._workers = Workers(state.world.config.num_worker_threads)
        self._local_ids: dict[int, list[LocalIds]] = {}
        self._tree_ids: dict[int, list[TreeIds]] = {}

    @property
    def channel_number(self) -> int:
        """The number of the channel."""
        return self.channel.number

    def name_rounds(self, purpose: str) -> None:
        """Note what rounds are made for from now on, for messages."""
        self.channel.purpose = purpose

    def use_threads(self, num_threads: int) -> None:
        """Sample near neighbours with so many threads from now on."""
        if num_threads != self._workers.num_threads:
            self._workers = Workers(num_threads)

    @collective("the channel's trainers", WHEN_FAR)
    def sample(self, requests: list[RelationRequest]) -> list[SampledNeighbors]:
        """Sample all requests of one hop.

        The far hosts are asked, near neighbours are drawn while they answer, and both are put together.

        Args:
            requests: one for each relation that takes part; those into one node type have the same destinations.

        Returns:
            The neighbours for each request; their sources last until the next call.
        """
        if self._world.all_near:
            return self.sample_near(requests)
        error: Exception | None = None
        words: dict[int, I64] = {}
        drawing: list[LocalSampling] = []
        far: dict[int, PositionsByHost] = {}
        try:
            near = dict[int, PositionsByHost]()
            for dst, by_host in self._by_destination(requests).items():
                near[dst], far[dst] = self._split(by_host)
            drawing = [self._near(r, near[self._dst(r)], self._buffers, r.relation) for r in requests]
            words = self._pack(requests, far)
        except Exception as exc:  # raised on every rank by the round
            error = exc
        drawn: list[SampledNeighbors] = []
        failed: list[Exception] = []

        def draw_near() -> None:
            try:
                drawn.extend(draw.finish() for draw in drawing)
            except Exception as exc:  # once the round is over: the others are in the middle of it
                failed.append(exc)

        answers = self.channel.ask(words, draw_near, error)
        if failed:
            raise failed[0]
        readers = {rank: AnswerReader(answer) for rank, answer in answers.items()}
        return [
            self._merge(request, far[self._dst(request)], found, readers)
            for request, found in zip(requests, drawn, strict=True)
        ]

    def sample_near(self, requests: list[RelationRequest]) -> list[SampledNeighbors]:
        """As :meth:`sample`, where hosts of this node hold all destinations. Local."""
        hosts_of = self._by_destination(requests)
        return [self._near(r, hosts_of[self._dst(r)], self._buffers).finish() for r in requests]

    @collective("the channel's trainers", WHEN_FAR)
    def fail(self, error: Exception) -> NoReturn:
        """Raise an error; every trainer that is in a round, or makes the next one, raises it, too."""
        if not self._world.all_near:
            self.channel.ask({}, lambda: None, error)
        raise error

    @collective("the channel's trainers", WHEN_FAR)
    def has_edges(self, queries: list[EdgeQuery]) -> list[Mask]:
        """Look edges up where their destinations are, all of them in one round.

        Args:
            queries: which edges, relation by relation.

        Returns:
            bool[n] for each query, whether each edge exists.
        """
        found = [np.zeros(len(query.ids), np.bool_) for query in queries]
        by_host = [self._split(self._positions(query)) for query in queries]

        def look_near() -> None:
            for query, (near, _), out in zip(queries, by_host, found, strict=True):
                look_up_edges(self._state, query, near, self._workers, out)

        if self._world.all_near:
            look_near()
            return found
        lists: dict[int, list[I64]] = {}
        for query, (_, far) in zip(queries, by_host, strict=True):
            for host, positions in far:
                lists.setdefault(int(self._world.hosts[host]), []).extend(pack_query(query, positions))
        words = {rank: np.concatenate(arrays) for rank, arrays in lists.items()}
        answers = self.channel.ask(words, look_near)
        readers = {rank: AnswerReader(answer) for rank, answer in answers.items()}
        for out, (_, far) in zip(found, by_host, strict=True):
            for host, positions in far:
                out[positions] = readers[int(self._world.hosts[host])].take(len(positions), np.bool_)
        return found

    def local_ids(self, graph: LoadedGraph) -> list[LocalIds]:
        """By node type, the maps of the minibatch of a graph in progress, kept from one minibatch to the next."""
        if graph.number not in self._local_ids:
            hosts = graph.topology.hosts
            self._local_ids[graph.number] = [LocalIds(hosts.num_nodes(t)) for t in range(len(hosts.schema.ntypes))]
        return self._local_ids[graph.number]

    def tree_ids(self, graph: LoadedGraph) -> list[TreeIds]:
        """By node type, the nodes of the trees in progress, kept from one minibatch to the next."""
        if graph.number not in self._tree_ids:
            self._tree_ids[graph.number] = [TreeIds() for _ in graph.topology.hosts.schema.ntypes]
        return self._tree_ids[graph.number]

    @collective("the channel's trainers", "where they ask in step")
    def serve_until_idle(self) -> None:
        """Return when the other trainers need nothing more of this thread."""
        self.channel.serve_until_idle()

    def _near(
        self, request: RelationRequest, by_host: PositionsByHost, buffers: Buffers, scratch: int = 0
    ) -> LocalSampling:
        return LocalSampling(self._state, request, by_host, buffers, self._workers, scratch)

    def _hosts_of(self, request: Request) -> RangeBook:
        return self._state.graph_of_number[request.graph].topology.hosts

    def _dst(self, request: Request) -> int:
        """The node type of a request's destinations."""
        return self._hosts_of(request).schema.ends(request.relation)[1]

    def _owned(self, host: int, request: RelationRequest) -> tuple[int, int]:
        """The range of a host's edges."""
        return self._hosts_of(request).edge_range(host, request.relation)

    def _positions(self, request: Request) -> PositionsByHost:
        """Positions of the destinations by host, hosts that hold none left out."""
        hosts = self._hosts_of(request)
        if hosts.num_parts == 1:
            return [(0, self._buffers.arange(len(request.ids)))]
        return split_by_range(request.ids, hosts.node_offsets[self._dst(request)])

    def _by_destination(self, requests: list[RelationRequest]) -> dict[int, PositionsByHost]:
        """The positions by host for each node type of destinations, found once for all its relations."""
        return {dst: self._positions(r) for dst, r in {self._dst(r): r for r in requests}.items()}

    def _split(self, by_host: PositionsByHost) -> tuple[PositionsByHost, PositionsByHost]:
        """What near hosts hold and what far ones do."""
        near = self._world.near
        return [one for one in by_host if near[one[0]]], [one for one in by_host if not near[one[0]]]

    def _pack(self, requests: list[RelationRequest], far: dict[int, PositionsByHost]) -> dict[int, I64]:
        """By owner the words that ask it, with the destinations of a node type once, in the first request."""
        words: dict[int, list[I64]] = {}
        count: dict[int, int] = {}
        carrier: dict[tuple[int, int], int] = {}  # rank and node type -> the request that has the destinations
        for request in requests:
            dst = self._dst(request)
            for host, positions in far[dst]:
                rank = int(self._world.hosts[host])
                number = count.get(rank, 0)
                first = carrier.setdefault((rank, dst), number)
                ids = request.ids[positions] if first == number else first
                packed = pack_request(request, ids, request.excluded_in(*self._owned(host, request)), positions)
                words.setdefault(rank, []).extend(packed)
                count[rank] = number + 1
        return {rank: np.concatenate(arrays) for rank, arrays in words.items()}

    def _merge(
        self, request: RelationRequest, far: PositionsByHost, near: SampledNeighbors, readers: dict[int, AnswerReader]
    ) -> SampledNeighbors:
        """Put near draws and the answers of ``far`` hosts for one relation together, in the order of its ids."""
        if not far:
            return near
        counts = np.diff(near.offsets)
        dtype = near.src.dtype
        parts = [_Found(self._buffers.arange(len(counts)), counts.copy(), near.src, near.eids)]
        for host, positions in far:
            reader = readers[int(self._world.hosts[host])]
            part = _Found(positions, *reader.neighbors(request, len(positions), dtype, self._owned(host, request)))
            counts[positions] = part.counts
            parts.append(part)
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        total = int(offsets[-1])
        src = self._buffers.take(f"merged {request.relation}", total, dtype)
        eids = np.empty(total if request.want_eids else 0, np.int64)
        for part in parts:
            place_ragged(part.src, part.positions, part.counts, offsets, src)
            if request.want_eids:
                place_ragged(part.eids, part.positions, part.counts, offsets, eids)
        return SampledNeighbors(offsets, src, eids)
