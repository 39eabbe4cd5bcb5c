"""Draw one request's neighbours from the memory that this rank can load: its own and its node's hosts'."""

from dataclasses import dataclass

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError
from mpigraph.kernels.exclude import copy_kept, recount_weighted, shorten_rows, step_over
from mpigraph.kernels.masked import choose_masked
from mpigraph.kernels.sample import choose_uniform, copy_neighbours, count_uniform
from mpigraph.kernels.weighted import choose_weighted, count_weighted
from mpigraph.sampling.protocol import RelationRequest, SampledNeighbors
from mpigraph.sampling.scratch import Buffers
from mpigraph.sampling.workers import Workers
from mpigraph.store.edge_weights import EdgeWeights
from mpigraph.store.graph_store import GraphStore, LoadedGraph
from mpigraph.store.topology import Adjacency

__all__ = ["LocalSampling", "PositionsByHost"]

PositionsByHost = list[tuple[int, I64]]
"""Hosts, each with the positions in the frontier of the nodes that it holds."""


@dataclass(frozen=True)
class _HostSlice:
    """What one near host holds of a request."""

    host: int
    near: Adjacency
    positions: I64
    excluded: I64  # ascending, counted from the host's first edge


class LocalSampling:
    """One request on near hosts: construction counts the neighbours, :meth:`finish` draws them.

    The nodes of the request that are not in ``shares`` get no neighbours.
    """

    def __init__(
        self,
        state: GraphStore,
        request: RelationRequest,
        shares: PositionsByHost,
        buffers: Buffers,
        workers: Workers,
        scratch: int = 0,
    ) -> None:
        """Count.

        Args:
            state: what this rank has loaded.
            request: what is asked for.
            shares: near hosts and the positions of their nodes.
            buffers: memory to draw in.
            workers: who draws.
            scratch: draws with the same number must not overlap.

        Raises:
            GraphDataError: an edge weight is negative, infinite or NaN.
        """
        graph = state.graph_of_number[request.graph]
        self._topology, self._request = graph.topology, request
        self._buffers, self._workers = buffers, workers
        rows = _Rows(request, buffers, scratch)
        self._draw: _Uniform | _Weighted = (
            _Uniform(request, rows) if request.weights < 0 else _Weighted(state, graph, request, rows)
        )
        self._shares = [self._share(host, positions) for host, positions in shares]
        self._counts = buffers.take(f"counts {scratch}", len(request.ids))
        if sum(len(positions) for _, positions in shares) < len(request.ids):
            self._counts[:] = 0
        for share in self._shares:

            def count(part: I64, share: _HostSlice = share) -> None:
                self._draw.count(share, part, self._counts)

            workers.run(count, share.positions)

    def _share(self, host: int, positions: I64) -> _HostSlice:
        near = self._topology.adjacency(self._request.relation, host)
        first = near.first_edge
        excluded = self._request.excluded_in(first, first + len(near.indices)) - first
        return _HostSlice(host, near, positions, excluded)

    def finish(self) -> SampledNeighbors:
        """Draw; the sources are in a buffer that lasts until the next request for the same relation."""
        request, draw = self._request, self._draw
        offsets = np.empty(len(self._counts) + 1, np.int64)
        offsets[0] = 0
        np.cumsum(self._counts, out=offsets[1:])
        total = int(offsets[-1])
        src = self._buffers.take(f"src {request.relation}", total, self._topology.index_dtype(request.relation))
        picks = np.empty(total, np.int64) if request.want_eids else self._buffers.take("picks", total)
        for share in self._shares:

            def fill(part: I64, share: _HostSlice = share) -> None:
                draw.choose(share, part, offsets, picks)
                copy_neighbours(share.near.indices, part, offsets, share.near.first_edge, picks, src)

            self._workers.run(fill, share.positions)
        return SampledNeighbors(offsets, src, picks if request.want_eids else picks[:0])


class _Rows:
    """Where the edges of a request's nodes are in their hosts, less the excluded ones.

    The methods are for shares with excluded edges.

    Attributes:
        begins: int64[frontier], the first edge of each node.
        degrees: int64[frontier], how many there are.
    """

    def __init__(self, request: RelationRequest, buffers: Buffers, scratch: int) -> None:
        nodes, cut = len(request.ids), len(request.ids) if len(request.excluded) else 0
        self._request, self._buffers, self._scratch = request, buffers, scratch
        self.begins = buffers.take(f"begins {scratch}", nodes)
        self.degrees = buffers.take(f"degrees {scratch}", nodes)
        self._starts = buffers.take(f"starts {scratch}", cut)
        first, count = (buffers.take(f"{name} {scratch}", cut) for name in ("first hole", "num holes"))
        self._holes = (first, count)  # where each node's excluded edges are among the excluded ones of its host

    def alive(self) -> I64:
        """int64[frontier], room for how many edges of each node can be drawn."""
        return self._buffers.take(f"alive {self._scratch}", len(self._request.ids))

    def shorten(self, share: _HostSlice, positions: I64, counts: I64) -> None:
        """Take the excluded edges out of the degrees, and out of the counts of a uniform draw."""
        r, rows = self._request, (self.begins, self.degrees, *self._holes)
        shorten_rows(share.excluded, positions, r.fanout, r.replace, *rows, counts)

    def split(self, positions: I64) -> tuple[I64, I64]:
        """The positions of the rows that are whole, and of those that were shortened."""
        short = self._holes[1][positions] > 0
        return positions[~short], positions[short]

    def recount(self, weights: Array, share: _HostSlice, positions: I64, alive: I64, counts: I64) -> None:
        """Correct how many edges of shortened rows can be drawn, and the counts of a weighted draw."""
        r, rows = self._request, (self.begins, self.degrees, *self._holes)
        recount_weighted(weights, share.excluded, positions, r.fanout, r.replace, *rows, alive, counts)

    def copy_kept(self, weights: Array, share: _HostSlice, positions: I64) -> tuple[Array, I64]:
        """The weights of shortened rows, and, filled at ``positions``, where each row begins there."""
        kept = np.empty(int(self.degrees[positions].sum()), weights.dtype)
        rows = (self.begins, self.degrees, *self._holes)
        copy_kept(weights, share.excluded, positions, *rows, self._starts, kept)
        return kept, self._starts

    def step_over(self, share: _HostSlice, positions: I64, starts: I64, offsets: I64, picks: I64) -> None:
        """Turn picks in shortened rows that begin at ``starts`` into edges of the host."""
        step_over(share.excluded, positions, starts, self.begins, *self._holes, offsets, picks)


class _Uniform:
    """Every edge alike."""

    def __init__(self, request: RelationRequest, rows: _Rows) -> None:
        self._request, self._rows = request, rows

    def count(self, share: _HostSlice, positions: I64, counts: I64) -> None:
        """Fill how many neighbours the nodes at ``positions`` get."""
        r, near, rows = self._request, share.near, (self._rows.begins, self._rows.degrees)
        count_uniform(near.indptr, r.ids, positions, near.first_node, r.fanout, r.replace, *rows, counts)
        if len(share.excluded):
            self._rows.shorten(share, positions, counts)

    def choose(self, share: _HostSlice, positions: I64, offsets: I64, picks: I64) -> None:
        """Fill which edges they are."""
        r, rows = self._request, (self._rows.begins, self._rows.degrees)
        choose_uniform(r.ids, positions, *rows, r.replace and r.fanout >= 0, r.key, offsets, picks)
        if len(share.excluded):
            self._rows.step_over(share, positions, self._rows.begins, offsets, picks)


class _Weighted:
    """In proportion to edge weights, or where a mask is set."""

    def __init__(self, state: GraphStore, graph: LoadedGraph, request: RelationRequest, rows: _Rows) -> None:
        prepared = state.weights.get(request.weights)
        self._weights = prepared or EdgeWeights(graph.topology, state.tensors[request.weights])
        self._request, self._rows = request, rows
        self._alive = rows.alive()

    def count(self, share: _HostSlice, positions: I64, counts: I64) -> None:
        """Fill how many neighbours the nodes at ``positions`` get.

        Raises:
            GraphDataError: an edge weight is negative, infinite or NaN.
        """
        r, near, weights = self._request, share.near, self._weights.values(share.host)
        bad = count_weighted(
            near.indptr,
            weights,
            self._weights.alive(share.host),
            r.ids,
            positions,
            near.first_node,
            r.fanout,
            r.replace,
            self._rows.begins,
            self._rows.degrees,
            self._alive,
            counts,
        )
        if bad >= 0:
            raise GraphDataError(self._weights.complaint(near.first_edge + bad, weights[bad]))
        if len(share.excluded):
            self._rows.shorten(share, positions, counts)
            self._rows.recount(weights, share, self._rows.split(positions)[1], self._alive, counts)

    def choose(self, share: _HostSlice, positions: I64, offsets: I64, picks: I64) -> None:
        """Fill which edges they are."""
        weights, table = self._weights.values(share.host), self._weights.table(share.host)
        if len(share.excluded):
            positions, short = self._rows.split(positions)
            kept, starts = self._rows.copy_kept(weights, share, short)
            self._choose(kept, table[:0], short, starts, offsets, picks)
            self._rows.step_over(share, short, starts, offsets, picks)
        self._choose(weights, table, positions, self._rows.begins, offsets, picks)

    def _choose(
        self,
        weights: Array,
        table: Array,
        positions: I64,
        begins: I64,
        offsets: I64,
        picks: I64,
    ) -> None:
        r, rows = self._request, (begins, self._rows.degrees, self._alive)
        choose = choose_masked if self._weights.is_mask else choose_weighted
        choose(weights, table, r.ids, positions, *rows, r.fanout < 0, r.replace, r.key, offsets, picks)
