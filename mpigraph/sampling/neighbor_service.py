"""One hop of neighbour sampling: near destinations by plain loads, far ones in a round. And whether edges exist.

All relations of a hop share the round. The answer does not depend on who samples: a draw is a hash of the request's
key, the node and the number of the draw. An edge is looked up where its destination is. While some trainers sample
others may look up edges, in the same round.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpigraph.arrays import I64, U8, Array, Mask
from mpigraph.kernels.compact import LocalIds
from mpigraph.kernels.row_ops import order_by_range, place_ragged
from mpigraph.kernels.search import find_in_rows
from mpigraph.metadata.book import RangeBook
from mpigraph.mpi.rounds import Requests
from mpigraph.sampling.channel import Channel
from mpigraph.sampling.local import LocalSampling, PositionsByHost
from mpigraph.sampling.protocol import (
    AnswerReader,
    EdgeQuery,
    RelationRequest,
    Request,
    SampledNeighbors,
    count_dtype,
    pack_answer,
    pack_query,
    pack_request,
    unpack_requests,
)
from mpigraph.sampling.scratch import Buffers
from mpigraph.sampling.workers import Workers
from mpigraph.storage.format import index_dtype
from mpigraph.store.graph_store import GraphStore, LoadedGraph
from mpigraph.store.topology import Adjacency

__all__ = ["NeighborService"]

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class _Piece:
    """Neighbours of the nodes at ``positions`` (ascending), one after the other."""

    positions: I64
    counts: Array
    src: Array
    eids: Array


class NeighborService:
    """Samples hops and looks up edges over a channel, and answers the other ranks of the channel.

    For one thread at a time.

    Attributes:
        channel_number: the number of the channel.
    """

    def __init__(self, state: GraphStore, channel: Channel) -> None:
        self._state = state
        self._channel = channel
        self._world = state.world
        self._buffers, self._for_others = Buffers(), Buffers()  # a round answers others while it asks
        self._workers = Workers(state.world.config.num_worker_threads)
        self._local_ids: dict[int, list[LocalIds]] = {}

    @property
    def channel_number(self) -> int:
        """The number of the channel."""
        return self._channel.number

    def use_threads(self, num_threads: int) -> None:
        """Sample near neighbours with so many threads from now on."""
        if num_threads != self._workers.num_threads:
            self._workers = Workers(num_threads)

    def sample(self, requests: list[RelationRequest], error: BaseException | None = None) -> list[SampledNeighbors]:
        """Sample all requests of one hop.

        Args:
            requests: one for each relation that takes part.
            error: a reason why this rank cannot ask; every rank of the round raises.

        Returns:
            A part for each request; their sources last until the next call.

        Collective on the channel's trainers when hosts are far; local when all are near.
        """
        if self._world.all_near:
            if error is not None:
                raise error
            jobs = zip(requests, self._shares_of_all(requests), strict=True)
            return [self._near(request, shares, self._buffers).finish() for request, shares in jobs]
        return self._sample_far([] if error is not None else requests, error)

    def has_edges(self, queries: list[EdgeQuery], error: BaseException | None = None) -> list[Mask]:
        """Look edges up where their destinations are, all of them in one round.

        Args:
            queries: which edges, relation by relation.
            error: a reason why this rank cannot ask; every rank of the round raises.

        Returns:
            bool[n] for each query, whether each edge exists.

        Collective on the channel's trainers when hosts are far; local when all are near.
        """
        found = [np.zeros(len(query.ids), np.bool_) for query in queries]
        shares = [self._split(self._shares(query)) for query in queries]

        def look_near() -> None:
            for query, (near, _), out in zip(queries, shares, found, strict=True):
                self._look_up(query, near, out)

        if self._world.all_near:
            if error is not None:
                raise error
            look_near()
            return found
        words = self._no_words()
        for query, (_, far) in zip(queries, shares, strict=True):
            for host, positions in far:
                words[int(self._world.hosts[host])] += pack_query(query, positions)
        readers = self._ask(words, look_near, error)
        for out, (_, far) in zip(found, shares, strict=True):
            for host, positions in far:
                out[positions] = readers[self._world.hosts[host]].take(len(positions), np.bool_)
        return found

    def local_ids(self, graph: LoadedGraph) -> list[LocalIds]:
        """By node type, the maps of a graph's minibatch under way, kept from one minibatch to the next."""
        if graph.number not in self._local_ids:
            hosts = graph.topology.hosts
            self._local_ids[graph.number] = [LocalIds(hosts.num_nodes(t)) for t in range(len(hosts.schema.ntypes))]
        return self._local_ids[graph.number]

    def serve_until_idle(self) -> None:
        """Answer the other trainers until all are idle. Collective on the channel's trainers."""
        self._channel.serve_until_idle(self.answer)

    def answer(self, requests: Requests) -> list[U8]:
        """Answer what every rank asks of this one."""
        answers = []
        for rank in range(self._world.size):
            arrays: list[Array] = []
            for request in unpack_requests(requests.of(rank)):
                arrays += self._answer_one(request)
            answers.append(pack_answer(arrays))
        return answers

    def _answer_one(self, request: Request) -> list[Array]:
        """The arrays that answer one request, to be used before the next for the same relation is answered."""
        host = self._world.host_index
        shares = [(host, self._for_others.arange(len(request.ids)))]
        if isinstance(request, EdgeQuery):
            found = np.empty(len(request.ids), np.bool_)
            self._look_up(request, shares, found)
            return [found]
        part = self._near(request, shares, self._for_others).finish()
        first, wire = self._edges_of(host, request)
        counts = np.diff(part.offsets).astype(count_dtype(request.fanout))
        return [counts, part.src, (part.eids - first).astype(wire)]

    def _near(
        self, request: RelationRequest, shares: PositionsByHost, buffers: Buffers, scratch: int = 0
    ) -> LocalSampling:
        return LocalSampling(self._state, request, shares, buffers, self._workers, scratch)

    def _look_up(self, query: EdgeQuery, shares: PositionsByHost, found: Mask) -> None:
        """Fill which edges exist on near hosts."""
        topology = self._state.graph_of_number[query.graph].topology
        for host, positions in shares:
            near = topology.adjacency(query.relation, host)

            def look(part: I64, near: Adjacency = near) -> None:
                find_in_rows(near.indptr, near.indices, near.first_node, query.src, query.ids, part, found)

            self._workers.run(look, positions)

    def _hosts_of(self, request: Request) -> RangeBook:
        return self._state.graph_of_number[request.graph].topology.hosts

    def _edges_of(self, host: int, request: RelationRequest) -> tuple[int, np.dtype[Any]]:
        """The first edge of a host, and the dtype of its edges counted from there."""
        first, last = self._hosts_of(request).edge_range(host, request.relation)
        return first, index_dtype(last - first)

    def _shares(self, request: Request) -> PositionsByHost:
        """Positions of the ids by host, hosts that hold none left out."""
        hosts = self._hosts_of(request)
        if hosts.num_parts == 1:
            return [(0, self._buffers.arange(len(request.ids)))]
        dst = hosts.schema.ends(request.relation)[1]
        order, bounds = order_by_range(request.ids, hosts.node_offsets[dst])
        return [(int(h), order[bounds[h] : bounds[h + 1]]) for h in np.flatnonzero(np.diff(bounds))]

    def _split(self, shares: PositionsByHost) -> tuple[PositionsByHost, PositionsByHost]:
        """The shares of near hosts and those of far ones."""
        near = self._world.near
        return [share for share in shares if near[share[0]]], [share for share in shares if not near[share[0]]]

    def _no_words(self) -> list[list[I64]]:
        """For each rank the words to ask it with: none so far."""
        return [[_NONE] for _ in range(self._world.size)]

    def _ask(
        self, words: list[list[I64]], meanwhile: Callable[[], None], error: BaseException | None
    ) -> list[AnswerReader]:
        """Make a round; see :meth:`.Channel.ask`."""
        asked = [np.concatenate(lists) for lists in words]
        return [AnswerReader(answer) for answer in self._channel.ask(self.answer, asked, meanwhile, error)]

    def _sample_far(self, requests: list[RelationRequest], error: BaseException | None) -> list[SampledNeighbors]:
        """Ask the far hosts, draw near neighbours while they answer, put both together."""
        words = self._no_words()
        drawing: list[LocalSampling] = []
        far_shares: list[PositionsByHost] = []
        try:
            for request, shares in zip(requests, self._shares_of_all(requests), strict=True):
                near, far = self._split(shares)
                far_shares.append(far)
                drawing.append(self._near(request, near, self._buffers, request.relation))
            words = self._pack(requests, far_shares)
        except Exception as exc:  # raised on every rank by the round
            error = exc
        drawn: list[SampledNeighbors] = []
        failed: list[Exception] = []

        def draw_near() -> None:
            try:
                drawn.extend(draw.finish() for draw in drawing)
            except Exception as exc:  # once the round is over: the others are in the middle of it
                failed.append(exc)

        readers = self._ask(words, draw_near, error)
        if failed:
            raise failed[0]
        return [self._merge(*job, readers) for job in zip(requests, far_shares, drawn, strict=True)]

    def _shares_of_all(self, requests: list[RelationRequest]) -> list[PositionsByHost]:
        """The shares of each request; relations into one node type have the same ids, and so the same shares."""
        found: dict[int, PositionsByHost] = {}
        for request in requests:
            if id(request.ids) not in found:
                found[id(request.ids)] = self._shares(request)
        return [found[id(request.ids)] for request in requests]

    def _pack(self, requests: list[RelationRequest], far_shares: list[PositionsByHost]) -> list[list[I64]]:
        """For each rank the words that ask it for its shares of the requests, with the same ids but once."""
        words, sent = self._no_words(), [list[int]() for _ in range(self._world.size)]
        for request, shares in zip(requests, far_shares, strict=True):
            key = id(request.ids)
            for host, positions in shares:
                rank = int(self._world.hosts[host])
                ids = sent[rank].index(key) if key in sent[rank] else request.ids[positions]
                excluded = request.excluded_in(*self._hosts_of(request).edge_range(host, request.relation))
                words[rank] += pack_request(request, ids, excluded)
                sent[rank].append(key)
        return words

    def _merge(
        self, request: RelationRequest, shares: PositionsByHost, near: SampledNeighbors, readers: list[AnswerReader]
    ) -> SampledNeighbors:
        """Put near draws and the answers of far ``shares`` of one relation together, in the order of its ids."""
        if not shares:
            return near
        counts = np.diff(near.offsets)
        pieces = [_Piece(self._buffers.arange(len(counts)), counts.copy(), near.src, near.eids)]
        dtype = near.src.dtype
        for host, positions in shares:
            reader = readers[self._world.hosts[host]]
            far = reader.take(len(positions), count_dtype(request.fanout))
            total = int(far.sum(dtype=np.int64))
            first, wire = self._edges_of(host, request)
            src = reader.take(total, dtype)
            edges = reader.take(total if request.want_eids else 0, wire)
            counts[positions] = far
            pieces.append(_Piece(positions, far, src, edges.astype(np.int64) + first))
        return self._join(counts, pieces, dtype, request.want_eids)

    def _join(self, counts: I64, pieces: list[_Piece], dtype: np.dtype[Any], want_eids: bool) -> SampledNeighbors:
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        src, eids = np.empty(offsets[-1], dtype), np.empty(offsets[-1] if want_eids else 0, np.int64)
        for piece in pieces:
            place_ragged(piece.src, piece.positions, piece.counts, offsets, src)
            if want_eids:
                place_ragged(piece.eids, piece.positions, piece.counts, offsets, eids)
        return SampledNeighbors(offsets, src, eids)
