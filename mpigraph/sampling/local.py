"""Draw one request's neighbours from the memory that this rank can load: its own and its node's hosts'.

A *strategy* counts and chooses edges on one host; :data:`_STRATEGIES` has one class for each kind of request.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, U8, Array, Mask
from mpigraph.errors import GraphDataError
from mpigraph.kernels.exclude import copy_kept, recount_weighted, shorten_rows, step_over
from mpigraph.kernels.masked import choose_masked
from mpigraph.kernels.sample import Candidates, Destinations, choose_uniform, copy_neighbours, count_uniform
from mpigraph.kernels.search import find_in_rows
from mpigraph.kernels.temporal import choose_temporal, count_temporal
from mpigraph.kernels.weighted import choose_weighted, count_weighted
from mpigraph.sampling.protocol import EdgeQuery, Kind, RelationRequest, SampledNeighbors
from mpigraph.sampling.workers import Workers
from mpigraph.store.derived import EdgeTimes, EdgeWeights
from mpigraph.store.store import LoadedGraph, Store
from mpigraph.store.topology import Adjacency

__all__ = ["Buffers", "LocalSampling", "PositionsByHost", "look_up_edges"]

PositionsByHost = list[tuple[int, I64]]
"""Hosts, each with the positions in the frontier of the nodes that it holds."""
_NO_MASK = np.empty(0, np.uint8)


class Buffers:
    """Arrays by name that one thread uses again and again: fresh pages cost more than what is written to them."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}

    def take(self, name: str, count: int, dtype: npt.DTypeLike = np.int64) -> Array:
        """[count] with undefined contents; the next call with this name gives the same memory."""
        array = self._arrays.get(name)
        if array is None or len(array) < count or array.dtype != dtype:
            array = self._arrays[name] = np.empty(count + count // 2, dtype)
        return array[:count]

    def arange(self, count: int) -> I64:
        """int64[count]: 0, 1, ...; not to be written to."""
        array = self._arrays.get("arange")
        if array is None or len(array) < count:
            array = self._arrays["arange"] = np.arange(count + count // 2)
        return array[:count]


@dataclass(frozen=True)
class _HostSlice:
    """What one near host holds of a request."""

    host: int
    near: Adjacency
    positions: I64
    excluded: I64  # ascending, counted from the host's first edge


class LocalSampling:
    """One request on near hosts: construction counts the neighbours, :meth:`finish` draws them.

    The nodes of the request that none of these hosts holds get no neighbours.
    """

    def __init__(
        self,
        state: Store,
        request: RelationRequest,
        by_host: PositionsByHost,
        buffers: Buffers,
        workers: Workers,
        scratch: int = 0,
    ) -> None:
        """Count.

        Args:
            state: what this rank has loaded.
            request: what is asked for.
            by_host: near hosts and the positions of their nodes.
            buffers: memory to draw in.
            workers: who draws.
            scratch: draws with the same number must not overlap.

        Raises:
            GraphDataError: an edge weight is negative, infinite or NaN.
        """
        graph = state.graph_of_number[request.graph]
        self._topology = graph.topology
        self._request = request
        self._buffers = buffers
        self._workers = workers
        self._strategy = _STRATEGIES[request.kind](state, graph, request, _candidates(request, buffers, scratch))
        self._slices = [self._slice(host, positions) for host, positions in by_host]
        self._counts = buffers.take(f"counts {scratch}", len(request.ids))
        if sum(len(positions) for _, positions in by_host) < len(request.ids):
            self._counts[:] = 0
        for part in self._slices:

            def count(positions: I64, part: _HostSlice = part) -> None:
                self._strategy.count(part, positions, self._counts)

            workers.run(count, part.positions)

    def _slice(self, host: int, positions: I64) -> _HostSlice:
        near = self._topology.adjacency(self._request.relation, host)
        first = near.first_edge
        excluded = self._request.excluded_in(first, first + len(near.indices)) - first
        return _HostSlice(host, near, positions, excluded)

    def finish(self) -> SampledNeighbors:
        """Draw; the sources are in a buffer that lasts until the next request for the same relation."""
        request = self._request
        strategy = self._strategy
        offsets = np.empty(len(self._counts) + 1, np.int64)
        offsets[0] = 0
        np.cumsum(self._counts, out=offsets[1:])
        total = int(offsets[-1])
        src = self._buffers.take(f"src {request.relation}", total, self._topology.index_dtype(request.relation))
        picks = np.empty(total, np.int64) if request.want_eids else self._buffers.take("picks", total)
        for part in self._slices:

            def fill(positions: I64, part: _HostSlice = part) -> None:
                strategy.choose(part, positions, offsets, picks)
                copy_neighbours(part.near.indices, positions, offsets, part.near.first_edge, picks, src)

            self._workers.run(fill, part.positions)
        return SampledNeighbors(offsets, src, picks if request.want_eids else picks[:0])


def look_up_edges(state: Store, query: EdgeQuery, by_host: PositionsByHost, workers: Workers, found: Mask) -> None:
    """Fill which edges exist on near hosts."""
    topology = state.graph_of_number[query.graph].topology
    for host, positions in by_host:
        near = topology.adjacency(query.relation, host)

        def look(part: I64, near: Adjacency = near) -> None:
            find_in_rows(near.indptr, near.indices, near.first_node, query.src, query.ids, part, found)

        workers.run(look, positions)


def _candidates(request: RelationRequest, buffers: Buffers, scratch: int) -> Candidates:
    """Memory for what the kernels find out about each node."""
    nodes = len(request.ids)
    excluding = nodes if len(request.excluded) else 0
    weighted = nodes if request.kind is not Kind.UNIFORM else 0
    lengths = zip(Candidates._fields, (nodes, nodes, excluding, excluding, weighted), strict=True)
    return Candidates(*(buffers.take(f"{name} {scratch}", length) for name, length in lengths))


class _Uniform:
    """Every edge alike."""

    def __init__(self, state: Store, graph: LoadedGraph, request: RelationRequest, rows: Candidates) -> None:
        self._dst = Destinations(request.ids, request.fanout, request.replace, np.atleast_1d(request.key))
        self._rows = rows

    def count(self, part: _HostSlice, positions: I64, counts: I64) -> None:
        """Fill how many neighbours the nodes at ``positions`` get."""
        count_uniform(self._dst, part.near.indptr, part.near.first_node, positions, self._rows, counts)
        if len(part.excluded):
            shorten_rows(self._dst, part.excluded, positions, self._rows, counts)

    def choose(self, part: _HostSlice, positions: I64, offsets: I64, picks: I64) -> None:
        """Fill which edges they are."""
        choose_uniform(self._dst, positions, self._rows, offsets, picks)
        if len(part.excluded):
            step_over(part.excluded, positions, self._rows.begins, self._rows, offsets, picks)


class _Weighted(_Uniform):
    """In proportion to edge weights, or where a mask is set."""

    def __init__(self, state: Store, graph: LoadedGraph, request: RelationRequest, rows: Candidates) -> None:
        super().__init__(state, graph, request, rows)
        self._weights = state.derived(EdgeWeights, request.weights)
        self._tables = self._weights.tables  # one object for all passes, whatever is written meanwhile

    def count(self, part: _HostSlice, positions: I64, counts: I64) -> None:
        """Fill how many neighbours the nodes at ``positions`` get.

        Raises:
            GraphDataError: an edge weight is negative, infinite or NaN.
        """
        near = part.near
        weights = self._weights.values(part.host)
        drawable = self._tables.num_drawable(part.host)
        where = (near.indptr, near.first_node, weights, drawable, positions)
        bad = count_weighted(self._dst, *where, self._rows, counts)
        if bad >= 0:
            raise GraphDataError(self._weights.complaint(near.first_edge + bad, weights[bad]))
        if len(part.excluded):
            shorten_rows(self._dst, part.excluded, positions, self._rows, counts)
            _, shortened = self._split(positions)
            recount_weighted(self._dst, weights, part.excluded, shortened, self._rows, counts)

    def choose(self, part: _HostSlice, positions: I64, offsets: I64, picks: I64) -> None:
        """Fill which edges they are."""
        weights = self._weights.values(part.host)
        table = self._tables.table(part.host)
        choose = choose_masked if self._weights.is_mask else choose_weighted
        if len(part.excluded):  # shortened rows are drawn from a copy of their weights, for which no table was made
            positions, shortened = self._split(positions)
            starts = np.empty(len(self._dst.ids), np.int64)
            kept = np.empty(int(self._rows.degrees[shortened].sum()), weights.dtype)
            copy_kept(weights, part.excluded, shortened, self._rows, starts, kept)
            choose(self._dst, kept, table[:0], shortened, self._rows._replace(begins=starts), offsets, picks)
            step_over(part.excluded, shortened, starts, self._rows, offsets, picks)
        choose(self._dst, weights, table, positions, self._rows, offsets, picks)

    def _split(self, positions: I64) -> tuple[I64, I64]:
        """The positions of the rows that are whole, and of those that were shortened."""
        shortened = self._rows.num_excluded[positions] > 0
        return positions[~shortened], positions[shortened]


class _Temporal(_Uniform):
    """Among the edges that a destination's root may see; of these every edge alike, or where a mask is set."""

    def __init__(self, state: Store, graph: LoadedGraph, request: RelationRequest, rows: Candidates) -> None:
        super().__init__(state, graph, request, rows)
        self._request = request
        self._edges = state.derived(EdgeTimes, request.times, request.relation).edges  # one object for all passes
        self._mask = state.tensor(request.weights).window if request.weights else None

    def count(self, part: _HostSlice, positions: I64, counts: I64) -> None:
        """Fill how many neighbours the nodes at ``positions`` get."""
        request, near = self._request, part.near
        count_temporal(
            self._dst,
            near.indptr,
            near.first_node,
            self._edges.times(part.host),
            self._edges.order(part.host),
            request.until,
            request.strict,
            request.window,
            self._allowed(part.host),
            part.excluded,
            positions,
            self._rows,
            counts,
        )

    def choose(self, part: _HostSlice, positions: I64, offsets: I64, picks: I64) -> None:
        """Fill which edges they are."""
        near = part.near
        choose_temporal(
            self._dst,
            near.indptr,
            near.first_node,
            self._edges.order(part.host),
            self._request.last,
            self._allowed(part.host),
            part.excluded,
            positions,
            self._rows,
            offsets,
            picks,
        )

    def _allowed(self, host: int) -> U8:
        return _NO_MASK if self._mask is None else self._mask.memory(host)


_STRATEGIES: dict[Kind, type[_Uniform]] = {
    Kind.UNIFORM: _Uniform,
    Kind.WEIGHTED: _Weighted,
    Kind.TEMPORAL: _Temporal,
}
