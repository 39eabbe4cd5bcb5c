"""Draw one request's neighbours from the memory that this rank can load: its own and its node's hosts'."""

import numpy as np
import numpy.typing as npt

from mpigraph.errors import GraphDataError
from mpigraph.kernels.masked import choose_masked
from mpigraph.kernels.sample import choose_uniform, copy_neighbours, count_uniform
from mpigraph.kernels.weighted import choose_weighted, count_weighted
from mpigraph.service.buffers import Buffers
from mpigraph.service.protocol import Part, RelationRequest
from mpigraph.service.state import Graph, State
from mpigraph.service.workers import Workers
from mpigraph.store.topology import Adjacency
from mpigraph.store.weights import EdgeWeights

__all__ = ["NearDraw", "Shares"]

_I64 = npt.NDArray[np.int64]
Shares = list[tuple[int, _I64]]
"""Hosts, each with the positions in the frontier of the nodes that it holds."""


class NearDraw:
    """One request on near hosts: construction counts the neighbours, :meth:`finish` draws them.

    The nodes of the request that are not in ``shares`` get no neighbours.

    Local; no communication.
    """

    def __init__(
        self,
        state: State,
        request: RelationRequest,
        shares: Shares,
        buffers: Buffers,
        workers: Workers,
    ) -> None:
        """Count.

        Raises:
            GraphDataError: an edge weight is negative, infinite or NaN.
        """
        graph = state.graph_of_number[request.graph]
        self._topology, self._request = graph.topology, request
        self._buffers, self._workers = buffers, workers
        self._draw: _Uniform | _Weighted = (
            _Uniform(request, buffers) if request.weights < 0 else _Weighted(state, graph, request, buffers)
        )
        self._hosts = [
            (self._topology.adjacency(request.relation, host), host, positions) for host, positions in shares
        ]
        self._counts = buffers.take(f"counts {request.relation}", len(request.ids))
        if sum(len(positions) for _, positions in shares) < len(request.ids):
            self._counts[:] = 0
        for near, host, positions in self._hosts:

            def count(part: _I64, near: Adjacency = near, host: int = host) -> None:
                self._draw.count(near, host, part, self._counts)

            workers.run(count, positions)

    def finish(self) -> Part:
        """Draw; the sources are in a buffer that lasts until the next request for the same relation."""
        request, draw = self._request, self._draw
        offsets = np.empty(len(self._counts) + 1, np.int64)
        offsets[0] = 0
        np.cumsum(self._counts, out=offsets[1:])
        total = int(offsets[-1])
        src = self._buffers.take(f"src {request.relation}", total, self._topology.index_dtype(request.relation))
        picks = np.empty(total, np.int64) if request.want_eids else self._buffers.take("picks", total)
        for near, host, positions in self._hosts:

            def fill(part: _I64, near: Adjacency = near, host: int = host) -> None:
                draw.choose(host, part, offsets, picks)
                copy_neighbours(near.indices, part, offsets, near.first_edge, picks, src)

            self._workers.run(fill, positions)
        return Part(offsets, src, picks if request.want_eids else picks[:0])


class _Uniform:
    """Every edge alike. Local; no communication."""

    def __init__(self, request: RelationRequest, buffers: Buffers) -> None:
        self._request = request
        self._begins = buffers.take(f"begins {request.relation}", len(request.ids))
        self._degrees = buffers.take(f"degrees {request.relation}", len(request.ids))

    def count(self, near: Adjacency, host: int, positions: _I64, counts: _I64) -> None:
        """Fill how many neighbours the nodes at ``positions`` get."""
        r, rows = self._request, (self._begins, self._degrees)
        count_uniform(near.indptr, r.ids, positions, near.first_node, r.fanout, r.replace, *rows, counts)

    def choose(self, host: int, positions: _I64, offsets: _I64, picks: _I64) -> None:
        """Fill which edges they are."""
        r, rows = self._request, (self._begins, self._degrees)
        choose_uniform(r.ids, positions, *rows, r.replace and r.fanout >= 0, r.key, offsets, picks)


class _Weighted:
    """In proportion to edge weights, or where a mask is set. Local; no communication."""

    def __init__(self, state: State, graph: Graph, request: RelationRequest, buffers: Buffers) -> None:
        prepared = state.weights.get(request.weights)
        self._weights = prepared or EdgeWeights(graph.topology, state.tensors[request.weights])
        self._request = request
        self._begins = buffers.take(f"begins {request.relation}", len(request.ids))
        self._degrees = buffers.take(f"degrees {request.relation}", len(request.ids))
        self._alive = buffers.take(f"alive {request.relation}", len(request.ids))

    def count(self, near: Adjacency, host: int, positions: _I64, counts: _I64) -> None:
        """Fill how many neighbours the nodes at ``positions`` get.

        Raises:
            GraphDataError: an edge weight is negative, infinite or NaN.
        """
        r, weights = self._request, self._weights.values(host)
        bad = count_weighted(
            near.indptr,
            weights,
            self._weights.alive(host),
            r.ids,
            positions,
            near.first_node,
            r.fanout,
            r.replace,
            self._begins,
            self._degrees,
            self._alive,
            counts,
        )
        if bad >= 0:
            raise GraphDataError(self._weights.complaint(near.first_edge + bad, weights[bad]))

    def choose(self, host: int, positions: _I64, offsets: _I64, picks: _I64) -> None:
        """Fill which edges they are."""
        r, rows = self._request, (self._begins, self._degrees, self._alive)
        values, table = self._weights.values(host), self._weights.table(host)
        choose = choose_masked if self._weights.is_mask else choose_weighted
        choose(values, table, r.ids, positions, *rows, r.fanout < 0, r.replace, r.key, offsets, picks)
