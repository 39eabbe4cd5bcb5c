"""Answers to other ranks: neighbours drawn from the rows of this host, and edges looked up there."""

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.mpi.messages import HEAD
from mpigraph.sampling.local import Buffers, LocalSampling, look_up_edges
from mpigraph.sampling.protocol import (
    EdgeQuery,
    Request,
    SharedRequest,
    neighbor_arrays,
    pack_answer,
    row_arrays,
    unpack_requests,
)
from mpigraph.sampling.shared import SharedSampling, shared_of
from mpigraph.sampling.workers import Workers
from mpigraph.store.store import Store


class Answers:
    """Answers requests, with buffers of its own. For one thread at a time."""

    def __init__(self, state: Store) -> None:
        self._state = state
        self._buffers = Buffers()
        self._workers = Workers(state.world.config.num_worker_threads)

    def answer(self, words: I64) -> I64:
        """Answer the requests of a rank; the answer begins after ``HEAD`` words.

        Raises:
            NotOpenHere: a graph is not open here, or what a strategy needs.
            ClosedError: a tensor that a strategy needs was closed.
            GraphDataError: an edge weight is negative, infinite or NaN.
            CollectiveError: the words are malformed.
        """
        requests = unpack_requests(words)
        arrays: list[Array] = []
        for request in requests:
            self._state.graph(request.graph)  # raises if this rank has not opened it
            arrays += self._arrays(request, alone=len(requests) == 1)
        return pack_answer(arrays, HEAD)

    def _arrays(self, request: Request, alone: bool) -> list[Array]:
        """Return the arrays that answer a request; unless it is ``alone``, the next one must not overwrite them."""
        state, host = self._state, self._state.world.host_index
        all_positions = [(host, self._buffers.arange(len(request.ids)))]
        if isinstance(request, EdgeQuery):
            exist = np.empty(len(request.ids), np.bool_)
            look_up_edges(state, request, all_positions, self._workers, exist)
            return [exist]
        if isinstance(request, SharedRequest):
            rows = SharedSampling(state, request, host, all_positions[0][1], self._workers).finish()
            return row_arrays(request, rows, shared_of(state, request).num_edges(host))
        neighbors = LocalSampling(state, request, all_positions, self._buffers, self._workers).finish()
        hosts = state.graph_of_number[request.graph].topology.hosts
        arrays = neighbor_arrays(request, neighbors, hosts.edge_range(host, request.relation))
        return arrays if alone else [array.copy() if array is neighbors.src else array for array in arrays]
