"""Draws from memory that this rank can load, for itself and for others: of one relation, or of all that share tables.

Threads inside a rank run the same loop over slices of positions; results do not depend on the slices.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array, Mask
from mpigraph.kernels.csr import find_in_rows, find_rows, keys_of_rows, list_rows, number_by_key
from mpigraph.kernels.row_ops import place_ragged
from mpigraph.kernels.sample import Candidates, copy_neighbours
from mpigraph.mpi.messages import HEAD
from mpigraph.sampling.protocol import (
    EdgeQuery,
    RelationRequest,
    Request,
    SampledNeighbors,
    SampledRows,
    SharedRequest,
    edges_in,
    neighbor_arrays,
    pack_answer,
    row_arrays,
    unpack_requests,
)
from mpigraph.sampling.strategies import Draw, OwnedRows
from mpigraph.store.edge_tables import Adjacency, SharedEdges
from mpigraph.store.store import Store

_C = ctypes.CDLL(None)
_WORTH_IT = 4096  # positions of a slice below which starting a thread costs more than it saves


class Workers:
    """Runs compiled loops, which release the interpreter lock, in several threads.

    Attributes:
        num_threads: number of threads, the caller's included.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._threads: list[int] = []
        self._pool: ThreadPoolExecutor | None = None
        if num_threads > 1:
            self._pool = ThreadPoolExecutor(num_threads - 1, "mpigraph-worker", _note_thread, (self._threads,))

    def run(self, work: Callable[[I64], object], positions: I64) -> None:
        """Call ``work`` on slices of ``positions``, each in a thread."""
        slices = min(self.num_threads, len(positions) // _WORTH_IT)
        if self._pool is None or slices < 2:
            work(positions)
            return
        own, *rest = np.array_split(positions, slices)
        self._leave_my_core()
        waiting = [self._pool.submit(work, part) for part in rest]
        try:
            work(own)
        finally:  # they write to buffers of the next call
            wait(waiting)
        for future in waiting:
            future.result()

    def _leave_my_core(self) -> None:
        """Keep the workers off the core of the caller, which is about to be busy.

        A thread that wakes up on a busy core may wait there for milliseconds though others are idle; virtual machines
        do that, since an idle virtual core looks like one that was taken away.
        """
        if not hasattr(os, "sched_setaffinity"):
            return
        cores = os.sched_getaffinity(0) - {_C.sched_getcpu()}
        if cores:
            for thread in self._threads:
                os.sched_setaffinity(thread, cores)


def _note_thread(threads: list[int]) -> None:
    threads.append(threading.get_native_id())


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


RowsOfHost = tuple[int, I64, SampledRows]
"""A host, the positions in the request of the destinations that it holds, and what was drawn for them."""


class _Pass(NamedTuple):
    """Rows that one draw serves: those of one relation, or of all.

    Attributes:
        draw: chooses among their edges.
        rows: all rows of the request, with the numbers that those of the pass have in ``edges``.
        first: number of the first of ``edges``, counted from the host's first.
        at: int64[m], the rows of the pass.
    """

    draw: Draw
    rows: OwnedRows
    first: int
    at: I64


class SharedSampling:
    """One request on one local host: construction finds the rows and counts neighbours, :meth:`finish` draws them."""

    def __init__(self, state: Store, request: SharedRequest, host: int, positions: I64, workers: Workers) -> None:
        """Count the neighbours.

        Args:
            state: the graphs that this rank has loaded.
            request: the request.
            host: the host.
            positions: int64[p], those of its destinations.
            workers: threads that draw.
        """
        shared = shared_of(state, request)
        rows = shared.rows_into(request.dst, host)
        where = (rows.listed, rows.nodes, rows.row_begins, request.chosen)
        first = np.empty(len(positions), np.int64)
        counts = np.empty_like(first)
        find_rows(request.ids, positions, rows.first_node, *where, first, counts)
        self._bounds = _sums(counts)
        total = int(self._bounds[-1])
        self._places, of_relation = np.empty((2, total), np.int64)
        ends = np.empty(2 * total, np.int64)
        tables = (rows.listed, rows.row_begins, rows.edge_begins, rows.indptr, request.chosen)
        list_rows(first, self._bounds, *tables, self._places, of_relation, ends)
        keys = np.empty(total, np.uint64)
        roots = request.roots[positions] if len(request.roots) else request.roots
        relations = shared.relations[self._places]
        keys_of_rows(request.key, relations, request.strategy.keys_by_relation, roots, self._bounds, keys)
        ids = np.repeat(request.ids[positions], counts)
        scratch = Candidates(*(np.empty(total, np.int64) for _ in Candidates._fields))
        strategy = request.strategy.at(np.repeat(positions, counts))

        def make_pass(draw: Draw, edges: Adjacency, numbers: I64, first: int, at: I64) -> _Pass:
            begin = int(shared.edges_of_hosts[host]) + first
            excluded = edges_in(request.excluded, begin, begin + len(edges.indices)) - begin
            return _Pass(draw, OwnedRows(host, edges, ids, numbers, keys, excluded, scratch), first, at)

        self._passes = []
        if strategy.needs_tables:
            for at in _runs(self._places, len(request.chosen)):
                place = int(self._places[at[0]])
                how = strategy.with_tensors(request.tensors[:, place].tolist())
                draw = how.prepare(state, int(shared.relations[place]))
                edges = shared.adjacency(place, host)
                self._passes.append(make_pass(draw, edges, of_relation, int(rows.edge_begins[place]), at))
        else:
            # the rows do not lie side by side, so each has a begin and an end of its own: every other entry is its row
            numbers = np.arange(0, 2 * total, 2)
            edges = Adjacency(ends, rows.indices, 0, 0, numbers)
            self._passes.append(make_pass(strategy.prepare(state, -1), edges, numbers, 0, np.arange(total)))
        self._workers = workers
        self._request = request
        self._dtype = shared.dtype
        self._counts = np.empty(total, np.int64)
        for draw, owned, _, at in self._passes:

            def count(part: I64, draw: Draw = draw, owned: OwnedRows = owned) -> None:
                draw.count(owned, part, self._counts)

            workers.run(count, at)

    def finish(self) -> SampledRows:
        """Draw."""
        offsets = _sums(self._counts)
        picks = np.empty(int(offsets[-1]), np.int64)
        src = np.empty(len(picks), self._dtype)
        for draw, rows, first, at in self._passes:

            def fill(part: I64, draw: Draw = draw, rows: OwnedRows = rows, first: int = first) -> None:
                draw.choose(rows, part, offsets, picks)
                copy_neighbours(rows.edges.indices, part, offsets, first, picks, src)

            self._workers.run(fill, at)
        return SampledRows(
            self._bounds, self._places, self._counts, src, picks if self._request.want_eids else picks[:0]
        )


def shared_of(state: Store, request: SharedRequest) -> SharedEdges:
    """Return the tables that a request is about."""
    shared = state.graph_of_number[request.graph].topology.shared
    assert shared is not None
    return shared


def neighbors_by_relation(
    request: SharedRequest, shared: SharedEdges, drawn: Sequence[RowsOfHost]
) -> list[tuple[int, SampledNeighbors]]:
    """Return the relations through which a request found neighbours, ascending by id, and these by destination.

    Args:
        request: the request.
        shared: the tables.
        drawn: what all hosts found.
    """
    at = np.concatenate([_NONE, *(np.repeat(positions, np.diff(rows.bounds)) for _, positions, rows in drawn)])
    places = np.concatenate([_NONE, *(rows.places for _, _, rows in drawn)])
    counts = np.concatenate([_NONE, *(rows.counts for _, _, rows in drawn)])
    order = _order(at, len(request.ids))
    order = order[_order(places[order], len(request.chosen))]  # by relation, then by destination
    offsets = _sums(counts[order])
    to = _inverse(order)
    src = np.empty(int(offsets[-1]), shared.dtype)
    eids = np.empty(len(src) if request.want_eids else 0, np.int64)
    done = 0
    for host, _, rows in drawn:
        own = slice(done, done + len(rows.places))
        place_ragged(rows.src, to[own], counts[own], offsets, src)
        if request.want_eids:
            shifts = np.repeat(shared.eid_shifts(host)[rows.places], counts[own])
            place_ragged(rows.edges + shifts, to[own], counts[own], offsets, eids)
        done = own.stop
    places = places[order]
    first = np.flatnonzero(np.append(True, places[1:] != places[:-1])[: len(places)])
    bounds = np.append(first, len(order))
    places = places[first]
    table = np.zeros((len(places), len(request.ids) + 1), np.int64)
    table[np.repeat(np.arange(len(places)), np.diff(bounds)), at[order] + 1] = counts[order]
    np.cumsum(table, axis=1, out=table)
    neighbors = []
    ends = offsets[bounds].tolist()
    for k, relation in enumerate(shared.relations[places].tolist()):
        edges = slice(ends[k], ends[k + 1])
        neighbors.append((relation, SampledNeighbors(table[k], src[edges], eids[edges])))
    return neighbors


_NONE = np.empty(0, np.int64)


def _sums(counts: Array) -> I64:
    """Return the sums of the first 0, 1, ... counts: int64[n + 1]."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _runs(keys: I64, num_keys: int) -> list[I64]:
    """Return the positions of each key that occurs, ascending."""
    order = _order(keys, num_keys)
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1) if len(keys) else []


def _order(keys: I64, num_keys: int) -> I64:
    """Return the stable order by keys in ``[0, num_keys)``, int64[n]."""
    fill = _sums(np.bincount(keys, minlength=num_keys))[:-1]
    places = np.empty(len(keys), np.int64)
    number_by_key(keys, fill, places)
    return _inverse(places)


def _inverse(order: I64) -> I64:
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return inverse


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
