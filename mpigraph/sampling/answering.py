"""Answers to other ranks: neighbours drawn from the rows of this host, and edges looked up there.

Requests that arrive together are answered together: one pass over all destinations serves those that differ only in
destinations and key, so that the overhead of Python and of the kernels is paid once.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mpigraph.arrays import I64
from mpigraph.mpi.messages import HEAD
from mpigraph.sampling.local import Buffers, LocalSampling, look_up_edges
from mpigraph.sampling.protocol import (
    EdgeQuery,
    Joined,
    Part,
    SharedRequest,
    neighbor_arrays,
    pack_answers,
    row_arrays,
    unpack_requests,
)
from mpigraph.sampling.shared import SharedSampling, shared_of
from mpigraph.sampling.workers import Workers
from mpigraph.store.store import Store

_TOGETHER = 1 << 16  # words of requests; joining more saves nothing and takes memory


class Answers:
    """Answers requests, with buffers of its own. For one thread at a time."""

    def __init__(self, state: Store) -> None:
        self._state = state
        self._buffers = Buffers()
        self._workers = Workers(state.world.config.num_worker_threads)

    def answer(self, messages: Sequence[I64]) -> list[I64]:
        """Answer the request words of some ranks; each answer begins after ``HEAD`` words.

        Raises:
            NotOpenHere: a graph is not open here, or what a strategy needs.
            ClosedError: a tensor that a strategy needs was closed.
            GraphDataError: an edge weight is negative, infinite or NaN.
            CollectiveError: a message is malformed.
        """
        return [answer for batch in _in_bounds(messages) for answer in self._answer_together(batch)]

    def _answer_together(self, messages: Sequence[I64]) -> list[I64]:
        unpacked = unpack_requests(messages)
        requests = [joined.request for joined in unpacked.joined]
        times = Counter(request.relation for request in requests if not isinstance(request, SharedRequest))
        parts = []
        for joined in unpacked.joined:
            self._state.graph(joined.request.graph)  # raises if this rank has not opened it
            parts.append(self._answer_joined(joined, times))
        return pack_answers(unpacked, len(messages), parts, HEAD)

    def _answer_joined(self, joined: Joined, times: Mapping[int, int]) -> list[Part]:
        """Return the arrays that answer joined requests.

        ``times`` says how many there are of each relation, which reuse their arrays.
        """
        state, request = self._state, joined.request
        host = state.world.host_index
        all_positions = [(host, self._buffers.arange(len(request.ids)))]
        if isinstance(request, EdgeQuery):
            exist = np.empty(len(request.ids), np.bool_)
            look_up_edges(state, request, all_positions, self._workers, exist)
            return [(exist, joined.bounds)]
        if isinstance(request, SharedRequest):
            rows = SharedSampling(state, request, host, all_positions[0][1], self._workers).finish()
            return row_arrays(request, rows, shared_of(state, request).num_edges(host))
        neighbors = LocalSampling(state, request, all_positions, self._buffers, self._workers).finish()
        if times[request.relation] > 1:
            neighbors = replace(neighbors, src=neighbors.src.copy())
        hosts = state.graph_of_number[request.graph].topology.hosts
        return neighbor_arrays(request, joined.bounds, neighbors, hosts.edge_range(host, request.relation))


def _in_bounds(messages: Sequence[I64]) -> Iterator[Sequence[I64]]:
    """Split messages into runs of at most ``_TOGETHER`` words."""
    begin = words = 0
    for end, message in enumerate(messages):
        if words + len(message) > _TOGETHER and end > begin:
            yield messages[begin:end]
            begin, words = end, 0
        words += len(message)
    if begin < len(messages):
        yield messages[begin:]
