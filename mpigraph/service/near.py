"""Draw one request's neighbours from the memory that this rank can load: its own and its node's hosts'."""

import numpy as np
import numpy.typing as npt

from mpigraph.errors import GraphDataError
from mpigraph.kernels.sample import choose_uniform, copy_neighbours, count_uniform
from mpigraph.kernels.weighted import choose_weighted, count_weighted
from mpigraph.service.buffers import Buffers
from mpigraph.service.protocol import Part, RelationRequest
from mpigraph.service.state import Graph, State
from mpigraph.service.workers import Workers
from mpigraph.store.topology import Adjacency
from mpigraph.store.weights import EdgeWeights

__all__ = ["NearSampler", "Shares"]

_I64 = npt.NDArray[np.int64]
Shares = list[tuple[int, _I64]]
"""Positions in the frontier by host; together with a host's index."""


class NearSampler:
    """Samples requests on near hosts, for one thread and its workers. Local; no communication."""

    def __init__(self, state: State, graph: Graph, buffers: Buffers) -> None:
        self._state = state
        self._topology = graph.topology
        self._buffers = buffers

    def sample(self, request: RelationRequest, shares: Shares, workers: Workers) -> Part:
        """Draw the neighbours of the nodes in ``shares``; the other nodes of the request get none.

        The sources are in a buffer that lasts until the next call for the same relation.

        Raises:
            GraphDataError: an edge weight is negative or NaN.
        """
        n = len(request.ids)
        weighted = request.weights >= 0
        draw = _Weighted(self._weights(request), request, self._buffers) if weighted else _Uniform(request, self._buffers)
        counts = self._buffers.take("counts", n)
        if sum(len(positions) for _, positions in shares) < n:
            counts[:] = 0
        hosts = [(self._topology.adjacency(request.relation, host), host, positions) for host, positions in shares]
        for near, host, positions in hosts:
            draw.count(near, host, positions, counts)
        offsets = np.empty(n + 1, np.int64)
        offsets[0] = 0
        np.cumsum(counts, out=offsets[1:])
        total = int(offsets[-1])
        src = self._buffers.take(f"src {request.relation}", total, self._topology.index_dtype(request.relation))
        picks = np.empty(total, np.int64) if request.want_eids else self._buffers.take("picks", total)
        for near, host, positions in hosts:

            def fill(part: _I64, near: Adjacency = near, host: int = host) -> None:
                draw.choose(near, host, part, offsets, picks)
                copy_neighbours(near.indices, part, offsets, near.first_edge, picks, src)

            workers.run(fill, positions)
        return Part(offsets, src, picks if request.want_eids else picks[:0])

    def _weights(self, request: RelationRequest) -> EdgeWeights:
        return self._state.edge_weights(request.weights)


class _Uniform:
    """Every edge alike. Local; no communication."""

    def __init__(self, request: RelationRequest, buffers: Buffers) -> None:
        self._request = request
        self._rows = [buffers.take(name, len(request.ids)) for name in ("begins", "degrees")]

    def count(self, near: Adjacency, host: int, positions: _I64, counts: _I64) -> None:
        """Fill how many neighbours the nodes at ``positions`` get."""
        r = self._request
        count_uniform(near.indptr, r.ids, positions, near.first_node, r.fanout, r.replace, *self._rows, counts)

    def choose(self, near: Adjacency, host: int, positions: _I64, offsets: _I64, picks: _I64) -> None:
        """Fill which edges they are."""
        r = self._request
        choose_uniform(r.ids, positions, *self._rows, r.replace and r.fanout >= 0, r.key, offsets, picks)


class _Weighted:
    """In proportion to edge weights. Local; no communication."""

    def __init__(self, weights: EdgeWeights, request: RelationRequest, buffers: Buffers) -> None:
        self._weights = weights
        self._request = request
        self._rows = [buffers.take(name, len(request.ids)) for name in ("begins", "degrees", "alive")]

    def count(self, near: Adjacency, host: int, positions: _I64, counts: _I64) -> None:
        """Fill how many neighbours the nodes at ``positions`` get.

        Raises:
            GraphDataError: an edge weight is negative or NaN.
        """
        r, weights = self._request, self._weights.values(host)
        where = (r.ids, positions, near.first_node, r.fanout, r.replace)
        bad = count_weighted(near.indptr, weights, self._weights.alive(host), *where, *self._rows, counts)
        if bad >= 0:
            raise GraphDataError(self._weights.complaint(near.first_edge + bad, weights[bad]))

    def choose(self, near: Adjacency, host: int, positions: _I64, offsets: _I64, picks: _I64) -> None:
        """Fill which edges they are."""
        r = self._request
        sums = self._weights.values(host), self._weights.sums(host)
        choose_weighted(*sums, r.ids, positions, *self._rows, r.fanout < 0, r.replace, r.key, offsets, picks)
