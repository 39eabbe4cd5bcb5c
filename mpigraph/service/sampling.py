"""One hop of neighbour sampling: near destinations by plain loads, far ones in a round.

All relations of a hop share the round. The answer does not depend on who samples: a draw is a hash of the request's
key, the node and the number of the draw.
"""

import numpy as np
import numpy.typing as npt

from mpigraph.errors import GraphDataError, MPIGraphError
from mpigraph.kernels.rows import order_by_owner, place_ragged
from mpigraph.kernels.sample import count_uniform, count_weighted, sample_uniform, sample_weighted
from mpigraph.metadata.book import check_ids
from mpigraph.mpi.exchange import Requests
from mpigraph.service.channel import Channel
from mpigraph.service.protocol import (
    AnswerReader,
    Part,
    RelationRequest,
    pack_answer,
    pack_request,
    unpack_requests,
)
from mpigraph.service.state import Graph, State

__all__ = ["HopSampler", "NeighborService"]

_I64 = npt.NDArray[np.int64]
_NONE = np.empty(0, np.int64)


class HopSampler:
    """Samples one request on the hosts that this rank can load from, in two passes. Local; no communication."""

    def __init__(self, state: State, graph: Graph, request: RelationRequest) -> None:
        self._topology = graph.topology
        self._weights = state.tensors[request.weights] if request.weights >= 0 else None
        self._request = request
        self.counts = np.zeros(len(request.ids), np.int64)

    def count(self, host: int, positions: _I64) -> None:
        """Fill :attr:`counts` for the ids at ``positions``, which ``host`` holds.

        Raises:
            GraphDataError: an edge weight is negative or NaN.
        """
        near, request = self._topology.adjacency(self._request.relation, host), self._request
        rows = request.ids[positions] - near.first_node
        if self._weights is None:
            count_uniform(near.indptr, rows, positions, request.fanout, request.replace, self.counts)
            return
        weights = self._weights.segment(host)
        bad = count_weighted(near.indptr, weights, rows, positions, request.fanout, request.replace, self.counts)
        if bad >= 0:
            raise GraphDataError(
                f"edge weight {self._weights.name!r} of edge {near.first_edge + bad} must be >= 0 (got {weights[bad]})"
            )

    def allocate(self) -> Part:
        """Room for the neighbours of all ids, once every count is filled."""
        offsets = np.zeros(len(self.counts) + 1, np.int64)
        np.cumsum(self.counts, out=offsets[1:])
        total = int(offsets[-1])
        src = np.empty(total, self._topology.index_dtype(self._request.relation))
        eids = np.empty(total if self._request.want_eids else 0, np.int64)
        return Part(offsets, src, eids)

    def fill(self, host: int, positions: _I64, part: Part) -> None:
        """Draw the neighbours of the ids at ``positions``."""
        near, request = self._topology.adjacency(self._request.relation, host), self._request
        rows = request.ids[positions] - near.first_node
        if self._weights is None:
            sample_uniform(
                near.indptr,
                near.indices,
                rows,
                positions,
                near.first_node,
                near.first_edge,
                request.replace and request.fanout >= 0,
                request.key,
                part.offsets,
                part.src,
                part.eids,
            )
            return
        sample_weighted(
            near.indptr,
            near.indices,
            self._weights.segment(host),
            rows,
            positions,
            near.first_node,
            near.first_edge,
            request.replace,
            request.fanout < 0,
            request.key,
            part.offsets,
            part.src,
            part.eids,
        )


class NeighborService:
    """Samples hops of a channel's graph over that channel, and answers the other ranks of the channel.

    Local; no communication, but for the methods that say so.
    """

    def __init__(self, state: State, channel: Channel) -> None:
        self._state = state
        self._graph = state.graphs[channel.graph]
        self._channel = channel
        self._world = state.world

    @property
    def channel_number(self) -> int:
        """The number of the channel."""
        return self._channel.number

    def sample(self, requests: list[RelationRequest], error: BaseException | None = None) -> list[Part]:
        """Sample all requests of one hop.

        Args:
            requests: one for each relation that takes part.
            error: a reason why this rank cannot ask; every rank of the round raises.

        Collective on the channel's trainers when hosts are far; local when all are near.
        """
        if self._world.all_near:
            if error is not None:
                raise error
            return [self._sample_near(request) for request in requests]
        return self._sample_far([] if error is not None else requests, error)

    def check(self, ids: _I64, relation: int) -> None:
        """Check that ids are destinations of a relation. Local; no communication.

        Raises:
            OutOfRangeError: an id does not exist.
        """
        hosts = self._graph.topology.hosts
        dst = hosts.schema.ends(relation)[1]
        check_ids(ids, hosts.num_nodes(dst), f"node id of type {hosts.schema.ntypes[dst]!r}")

    def serve_until_idle(self) -> None:
        """Answer the other trainers until all are idle. Collective on the channel's trainers."""
        self._channel.serve_until_idle(self.answer)

    def answer(self, requests: Requests) -> list[npt.NDArray[np.uint8]]:
        """Answer what every rank asks of this one. Local; no communication."""
        host = self._world.host_index
        answers = []
        for rank in range(self._world.size):
            parts = []
            for request in unpack_requests(requests.of(rank)):
                sampler = HopSampler(self._state, self._graph, request)
                everything = np.arange(len(request.ids))
                sampler.count(host, everything)
                part = sampler.allocate()
                sampler.fill(host, everything, part)
                parts.append(part)
            answers.append(pack_answer(parts))
        return answers

    def _by_host(self, request: RelationRequest) -> list[tuple[int, _I64]]:
        """Positions of the ids by host, hosts that hold none left out."""
        hosts = self._graph.topology.hosts
        dst = hosts.schema.ends(request.relation)[1]
        order, bounds = order_by_owner(hosts.node_owner(request.ids, dst), hosts.num_parts)
        return [(int(h), order[bounds[h] : bounds[h + 1]]) for h in np.flatnonzero(np.diff(bounds))]

    def _sample_near(self, request: RelationRequest) -> Part:
        sampler = HopSampler(self._state, self._graph, request)
        shares = self._by_host(request)
        for host, positions in shares:
            sampler.count(host, positions)
        part = sampler.allocate()
        for host, positions in shares:
            sampler.fill(host, positions, part)
        return part

    def _sample_far(self, requests: list[RelationRequest], error: BaseException | None) -> list[Part]:
        words = [[_NONE] for _ in range(self._world.size)]
        samplers = [HopSampler(self._state, self._graph, request) for request in requests]
        shares: list[list[tuple[int, _I64]]] = []
        try:
            shares += [self._by_host(request) for request in requests]
            for request, sampler, share in zip(requests, samplers, shares, strict=True):
                for host, positions in share:
                    if self._world.near[host]:
                        sampler.count(host, positions)
                    else:
                        rank = int(self._world.hosts[host])
                        words[rank].append(pack_request(request, request.ids[positions]))
        except MPIGraphError as exc:  # raised on every rank by the round
            error = exc
        asked = [np.concatenate(lists) for lists in words]
        readers = [AnswerReader(a) for a in self._channel.ask(self.answer, asked, error)]
        return [self._merge(*job, readers) for job in zip(requests, samplers, shares, strict=True)]

    def _merge(
        self,
        request: RelationRequest,
        sampler: HopSampler,
        shares: list[tuple[int, _I64]],
        readers: list[AnswerReader],
    ) -> Part:
        """Put near draws and far answers of one relation together, in the order of its ids."""
        far = []
        for host, positions in shares:
            if self._world.near[host]:
                continue
            reader = readers[self._world.hosts[host]]
            counts = reader.take(len(positions), np.int32)
            sampler.counts[positions] = counts
            total = int(counts.sum(dtype=np.int64))
            src = reader.take(total, self._graph.topology.index_dtype(request.relation))
            eids = reader.take(total if request.want_eids else 0, np.int64)
            far.append((positions, src, eids))
        part = sampler.allocate()
        for host, positions in shares:
            if self._world.near[host]:
                sampler.fill(host, positions, part)
        for positions, src, eids in far:
            place_ragged(src, positions, part.offsets, part.src)
            if request.want_eids:
                place_ragged(eids, positions, part.offsets, part.eids)
        return part
