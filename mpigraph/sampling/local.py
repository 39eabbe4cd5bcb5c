"""Draws of one request from memory that this rank can load: that of the hosts of its node."""

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array, Mask
from mpigraph.kernels.sample import Candidates, copy_neighbours
from mpigraph.kernels.search import find_in_rows
from mpigraph.sampling.protocol import EdgeQuery, RelationRequest, SampledNeighbors, edges_in
from mpigraph.sampling.strategies import OwnedRows
from mpigraph.sampling.workers import Workers
from mpigraph.store.edge_tables import Adjacency
from mpigraph.store.store import Store

PositionsByHost = list[tuple[int, I64]]
"""Hosts, each with the positions in the frontier of the nodes that it holds."""


class Buffers:
    """Arrays by name that one thread reuses: fresh pages cost more than the writes to them."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}

    def take(self, name: str, count: int, dtype: npt.DTypeLike = np.int64) -> Array:
        """Return [count] with undefined contents; the next call with this name returns the same memory."""
        array = self._arrays.get(name)
        if array is None or len(array) < count or array.dtype != dtype:
            array = self._arrays[name] = np.empty(count + count // 2, dtype)
        return array[:count]

    def arange(self, count: int) -> I64:
        """Return int64[count]: 0, 1, ...; not to be written to."""
        array = self._arrays.get("arange")
        if array is None or len(array) < count:
            array = self._arrays["arange"] = np.arange(count + count // 2)
        return array[:count]


class LocalSampling:
    """One request on local hosts: construction counts the neighbours, :meth:`finish` draws them.

    Nodes of the request on other hosts get no neighbours.
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
        """Count the neighbours.

        Args:
            state: the graphs that this rank has loaded.
            request: the request.
            by_host: local hosts and the positions of their nodes.
            buffers: memory to draw in.
            workers: threads that draw.
            scratch: draws with the same number must not overlap.

        Raises:
            GraphDataError: an edge weight is negative, infinite or NaN.
            NotOpenHere, ClosedError: see :meth:`.Strategy.prepare`.
        """
        graph = state.graph_of_number[request.graph]
        self._topology = graph.topology
        self._request = request
        self._buffers = buffers
        self._workers = workers
        self._draw = request.strategy.prepare(state, request.relation)
        self._keys = np.atleast_1d(request.key)
        self._scratch = _scratch(request, buffers, scratch)
        self._slices = [self._owned(host, positions) for host, positions in by_host]
        self._counts = buffers.take(f"counts {scratch}", len(request.ids))
        if sum(len(positions) for _, positions in self._slices) < len(request.ids):
            self._counts[:] = 0
        for rows, positions in self._slices:

            def count(part: I64, rows: OwnedRows = rows) -> None:
                self._draw.count(rows, part, self._counts)

            workers.run(count, positions)

    def _owned(self, host: int, positions: I64) -> tuple[OwnedRows, I64]:
        """Return a host's rows, and the positions of the nodes that have one."""
        request = self._request
        edges = self._topology.adjacency(request.relation, host)
        first = edges.first_edge
        excluded = edges_in(request.excluded, first, first + len(edges.indices)) - first
        rows, positions = _by_row(edges, request.ids, positions)
        return OwnedRows(host, edges, request.ids, rows, self._keys, excluded, self._scratch), positions

    def finish(self) -> SampledNeighbors:
        """Draw; the next request for the same relation overwrites the sources."""
        request = self._request
        offsets = np.empty(len(self._counts) + 1, np.int64)
        offsets[0] = 0
        np.cumsum(self._counts, out=offsets[1:])
        total = int(offsets[-1])
        src = self._buffers.take(f"src {request.relation}", total, self._topology.index_dtype(request.relation))
        picks = np.empty(total, np.int64) if request.want_eids else self._buffers.take("picks", total)
        for rows, positions in self._slices:

            def fill(part: I64, rows: OwnedRows = rows) -> None:
                self._draw.choose(rows, part, offsets, picks)
                copy_neighbours(rows.edges.indices, part, offsets, rows.edges.first_edge, picks, src)

            self._workers.run(fill, positions)
        return SampledNeighbors(offsets, src, picks if request.want_eids else picks[:0])


def look_up_edges(state: Store, query: EdgeQuery, by_host: PositionsByHost, workers: Workers, exist: Mask) -> None:
    """Fill ``exist`` (bool[n]) for the edges of local hosts."""
    topology = state.graph_of_number[query.graph].topology
    for host, positions in by_host:
        edges = topology.adjacency(query.relation, host)
        exist[positions] = False
        rows, positions = _by_row(edges, query.ids, positions)
        first = edges.first_node if edges.rows is None else 0

        def look(part: I64, edges: Adjacency = edges, rows: I64 = rows, first: int = first) -> None:
            find_in_rows(edges.indptr, edges.indices, first, query.src, rows, part, exist)

        workers.run(look, positions)


def _by_row(edges: Adjacency, ids: I64, positions: I64) -> tuple[I64, I64]:
    """Return the rows of the destinations at ``positions``, and the positions of those that have one.

    Where every destination has a row, it is its id.
    """
    if edges.rows is None:
        return ids, positions
    rows, known = edges.rows_of(ids[positions])
    of_ids = np.empty(len(ids), np.int64)
    of_ids[positions] = rows
    return of_ids, positions[known]


def _scratch(request: RelationRequest, buffers: Buffers, number: int) -> Candidates:
    """Return memory for the kernels' notes on each node."""
    nodes = len(request.ids)
    excluding = nodes if len(request.excluded) else 0
    lengths = zip(Candidates._fields, (nodes, nodes, excluding, excluding, nodes), strict=True)
    return Candidates(*(buffers.take(f"{name} {number}", length) for name, length in lengths))
