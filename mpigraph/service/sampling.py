"""One hop of neighbour sampling: near destinations by plain loads, far ones in a round.

All relations of a hop share the round. The answer does not depend on who samples: a draw is a hash of the request's
key, the node and the number of the draw.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpigraph.kernels.compact import LocalIds
from mpigraph.kernels.rows import order_by_range, place_ragged
from mpigraph.metadata.book import RangeBook
from mpigraph.mpi.exchange import Requests
from mpigraph.service.buffers import Buffers
from mpigraph.service.channel import Channel
from mpigraph.service.near import NearDraw, Shares
from mpigraph.service.protocol import (
    AnswerReader,
    Part,
    RelationRequest,
    count_dtype,
    pack_answer,
    pack_request,
    unpack_requests,
)
from mpigraph.service.state import Graph, State
from mpigraph.service.workers import Workers
from mpigraph.storage.format import index_dtype

__all__ = ["NeighborService"]

_I64 = npt.NDArray[np.int64]
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class _Piece:
    """Neighbours of the nodes at ``positions`` (ascending), one after the other."""

    positions: _I64
    counts: npt.NDArray[Any]
    src: npt.NDArray[Any]
    eids: npt.NDArray[Any]


class NeighborService:
    """Samples hops over a channel, and answers the other ranks of the channel.

    For one thread at a time.

    Attributes:
        channel_number: the number of the channel.

    Local; no communication, but for the methods that say so.
    """

    def __init__(self, state: State, channel: Channel) -> None:
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
        """Sample near neighbours with so many threads from now on. Local; no communication."""
        if num_threads != self._workers.num_threads:
            self._workers = Workers(num_threads)

    def sample(self, requests: list[RelationRequest], error: BaseException | None = None) -> list[Part]:
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
            draws = [self._near(request, self._shares(request), self._buffers) for request in requests]
            return [draw.finish() for draw in draws]
        return self._sample_far([] if error is not None else requests, error)

    def local_ids(self, graph: Graph) -> list[LocalIds]:
        """By node type, the maps of a graph's minibatch under way, kept from one minibatch to the next.

        Local; no communication.
        """
        if graph.number not in self._local_ids:
            hosts = graph.topology.hosts
            self._local_ids[graph.number] = [LocalIds(hosts.num_nodes(t)) for t in range(len(hosts.schema.ntypes))]
        return self._local_ids[graph.number]

    def serve_until_idle(self) -> None:
        """Answer the other trainers until all are idle. Collective on the channel's trainers."""
        self._channel.serve_until_idle(self.answer)

    def answer(self, requests: Requests) -> list[npt.NDArray[np.uint8]]:
        """Answer what every rank asks of this one. Local; no communication."""
        host = self._world.host_index
        answers = []
        for rank in range(self._world.size):
            arrays: list[npt.NDArray[Any]] = []
            for request in unpack_requests(requests.of(rank)):
                shares = [(host, self._for_others.arange(len(request.ids)))]
                part = self._near(request, shares, self._for_others).finish()
                first, wire = self._edges_of(host, request)
                counts = np.diff(part.offsets).astype(count_dtype(request.fanout))
                arrays += [counts, part.src, (part.eids - first).astype(wire)]
            answers.append(pack_answer(arrays))
        return answers

    def _near(self, request: RelationRequest, shares: Shares, buffers: Buffers) -> NearDraw:
        return NearDraw(self._state, request, shares, buffers, self._workers)

    def _hosts_of(self, request: RelationRequest) -> RangeBook:
        return self._state.graph_of_number[request.graph].topology.hosts

    def _edges_of(self, host: int, request: RelationRequest) -> tuple[int, np.dtype[Any]]:
        """The first edge of a host, and the dtype of its edges counted from there."""
        first, last = self._hosts_of(request).edge_range(host, request.relation)
        return first, index_dtype(last - first)

    def _shares(self, request: RelationRequest) -> Shares:
        """Positions of the ids by host, hosts that hold none left out."""
        hosts = self._hosts_of(request)
        if hosts.num_parts == 1:
            return [(0, self._buffers.arange(len(request.ids)))]
        dst = hosts.schema.ends(request.relation)[1]
        order, bounds = order_by_range(request.ids, hosts.node_offsets[dst])
        return [(int(h), order[bounds[h] : bounds[h + 1]]) for h in np.flatnonzero(np.diff(bounds))]

    def _sample_far(self, requests: list[RelationRequest], error: BaseException | None) -> list[Part]:
        """Ask the far hosts, draw near neighbours while they answer, put both together."""
        words = [[_NONE] for _ in range(self._world.size)]
        shares: list[Shares] = []
        near: list[NearDraw] = []
        try:
            for request in requests:
                share = self._shares(request)
                shares.append(share)
                near.append(self._near(request, [s for s in share if self._world.near[s[0]]], self._buffers))
                for host, positions in share:
                    if not self._world.near[host]:
                        words[int(self._world.hosts[host])].append(pack_request(request, request.ids[positions]))
        except Exception as exc:  # raised on every rank by the round
            error = exc
        drawn: list[Part] = []
        failed: list[Exception] = []

        def draw_near() -> None:
            try:
                drawn.extend(draw.finish() for draw in near)
            except Exception as exc:  # once the round is over: the others are in the middle of it
                failed.append(exc)

        asked = [np.concatenate(lists) for lists in words]
        readers = [AnswerReader(a) for a in self._channel.ask(self.answer, asked, draw_near, error)]
        if failed:
            raise failed[0]
        return [self._merge(*job, readers) for job in zip(requests, shares, drawn, strict=True)]

    def _merge(self, request: RelationRequest, shares: Shares, near: Part, readers: list[AnswerReader]) -> Part:
        """Put near draws and far answers of one relation together, in the order of its ids."""
        if all(self._world.near[host] for host, _ in shares):
            return near
        counts = np.diff(near.offsets)
        pieces = [_Piece(self._buffers.arange(len(counts)), counts.copy(), near.src, near.eids)]
        dtype = near.src.dtype
        for host, positions in shares:
            if self._world.near[host]:
                continue
            reader = readers[self._world.hosts[host]]
            far = reader.take(len(positions), count_dtype(request.fanout))
            total = int(far.sum(dtype=np.int64))
            first, wire = self._edges_of(host, request)
            src = reader.take(total, dtype)
            edges = reader.take(total if request.want_eids else 0, wire)
            counts[positions] = far
            pieces.append(_Piece(positions, far, src, edges.astype(np.int64) + first))
        return self._join(counts, pieces, dtype, request.want_eids)

    def _join(self, counts: _I64, pieces: list[_Piece], dtype: np.dtype[Any], want_eids: bool) -> Part:
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        src, eids = np.empty(offsets[-1], dtype), np.empty(offsets[-1] if want_eids else 0, np.int64)
        for piece in pieces:
            place_ragged(piece.src, piece.positions, piece.counts, offsets, src)
            if want_eids:
                place_ragged(piece.eids, piece.positions, piece.counts, offsets, eids)
        return Part(offsets, src, eids)
