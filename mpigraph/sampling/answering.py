"""Answers what other ranks ask of this one: neighbours drawn from its own rows, and whether edges exist there."""

import numpy as np

from mpigraph.arrays import I64, U8, Array
from mpigraph.errors import ClosedError, CollectiveError
from mpigraph.sampling.local import Buffers, LocalSampling, look_up_edges
from mpigraph.sampling.protocol import EdgeQuery, Kind, Request, neighbor_arrays, pack_answer, unpack_requests
from mpigraph.sampling.workers import Workers
from mpigraph.store.graph_store import GraphStore

__all__ = ["Answers", "NotOpenHere"]


class NotOpenHere(CollectiveError):
    """What is asked for was not opened on this rank, or not yet: an owner may leave a collective call last."""


class Answers:
    """Answers requests, with buffers of its own. For one thread at a time."""

    def __init__(self, state: GraphStore) -> None:
        self._state = state
        self._buffers = Buffers()
        self._workers = Workers(state.world.config.num_worker_threads)

    def answer(self, words: I64) -> U8:
        """The answer to one rank's request words.

        Raises:
            NotOpenHere: a graph or a tensor of weights that is not open.
            ClosedError: a tensor of weights was closed.
            GraphDataError: an edge weight is negative, infinite or NaN.
        """
        arrays: list[Array] = []
        for request in unpack_requests(words):
            self._check_open(request)
            arrays += self._answer_one(request)
        return pack_answer(arrays)

    def _check_open(self, request: Request) -> None:
        state = self._state
        if request.graph not in state.graph_of_number:
            raise NotOpenHere(f"graph number {request.graph} is not open on rank {state.world.rank}")
        if isinstance(request, EdgeQuery) or request.kind is not Kind.WEIGHTED:
            return
        if request.weights not in state.tensors:
            if request.weights <= state.newest_tensor:
                raise ClosedError(f"edge weights number {request.weights} were closed")
            raise NotOpenHere(f"edge weights number {request.weights} are not open on rank {state.world.rank}")

    def _answer_one(self, request: Request) -> list[Array]:
        """The arrays that answer one request, to be used before the next for the same relation is answered."""
        state = self._state
        host = state.world.host_index
        all_mine = [(host, self._buffers.arange(len(request.ids)))]
        if isinstance(request, EdgeQuery):
            found = np.empty(len(request.ids), np.bool_)
            look_up_edges(state, request, all_mine, self._workers, found)
            return [found]
        neighbors = LocalSampling(state, request, all_mine, self._buffers, self._workers).finish()
        hosts = state.graph_of_number[request.graph].topology.hosts
        return neighbor_arrays(request, neighbors, hosts.edge_range(host, request.relation))
