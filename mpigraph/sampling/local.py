"""Draws from memory that this rank can load, for itself and for others: one request for many relations.

Threads inside a rank run the same loop over slices of positions; results do not depend on the slices.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, U64, Array, Mask
from mpigraph.kernels.csr import by_key, find_in_rows, find_rows, keys_of_rows, list_rows
from mpigraph.kernels.row_ops import place_ragged
from mpigraph.kernels.sample import Candidates, copy_neighbours
from mpigraph.mpi.messages import HEAD
from mpigraph.sampling import protocol
from mpigraph.sampling.strategies import Draw, OwnedRows, Strategy
from mpigraph.store.edge_tables import Adjacency
from mpigraph.store.store import Store
from mpigraph.store.topology import Topology

_WORTH_IT = 4096  # positions of a slice below which starting a thread costs more than it saves


class Workers:
    """Runs compiled loops, which release the interpreter lock, in several threads.

    Attributes:
        num_threads: number of threads, the caller's included.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads - 1, "mpigraph-worker") if num_threads > 1 else None

    def run(self, work: Callable[[I64], object], positions: I64) -> None:
        """Call ``work`` on slices of ``positions``, each in a thread."""
        slices = min(self.num_threads, len(positions) // _WORTH_IT)
        if self._pool is None or slices < 2:
            work(positions)
            return
        own, *rest = np.array_split(positions, slices)
        waiting = [self._pool.submit(work, part) for part in rest]
        try:
            work(own)
        finally:  # they write to buffers of the next call
            wait(waiting)
        for future in waiting:
            future.result()


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


class _Pass(NamedTuple):
    """Rows of one host that one draw serves.

    Attributes:
        draw: chooses among their edges.
        rows: all rows of the relations that they are of, with their numbers in ``edges``.
        at: int64[m], the rows of the pass.
        span: the place of all these rows in the request.
        first: the number of the first of ``edges``.
    """

    draw: Draw
    rows: OwnedRows
    at: I64
    span: slice
    first: int


class LocalSampling:
    """One request on local hosts: construction finds the rows and counts neighbours, :meth:`finish` draws them.

    Destinations of the request on other hosts get no neighbours.
    """

    def __init__(
        self,
        state: Store,
        request: protocol.SamplingRequest,
        by_host: PositionsByHost,
        buffers: Buffers,
        workers: Workers,
        number: int = 0,
        *,
        answers: bool = False,
    ) -> None:
        """Count the neighbours.

        Args:
            state: the graphs that this rank has loaded.
            request: the request.
            by_host: local hosts and the positions of their nodes.
            buffers: memory to draw in.
            workers: threads that draw.
            number: of the request; those with one number use the same memory.
            answers: count edges from the host's first, else return their ids.

        Raises:
            GraphDataError: an edge weight is negative, infinite or NaN.
            NotOpenHere, ClosedError: see :meth:`.Strategy.prepare`.
        """
        self._state = state
        self._topology = topology = state.graph_of_number[request.graph].topology
        self._request = request
        self._buffers, self._workers, self._number = buffers, workers, number
        self._answers = answers
        chosen = np.flatnonzero(request.chosen)
        listed = topology.listed[chosen]
        self._dense = chosen[~listed]
        self._listed = _Listed.find(topology, request, by_host) if listed.any() else _Listed.nothing()
        nodes = len(request.ids)
        begin = nodes * len(self._dense)
        total = begin + len(self._listed.at)
        self._scratch = Candidates(*(buffers.take(f"{name} {number}", total) for name in Candidates._fields))
        self._counts = buffers.take(f"counts {number}", total)
        if sum(len(positions) for _, positions in by_host) < nodes:
            self._counts[:begin] = 0
        self._passes: list[_Pass] = []
        for k, relation in enumerate(self._dense.tolist()):
            self._add_dense(relation, by_host, slice(nodes * k, nodes * (k + 1)))
        if len(self._listed.at):
            self._add_listed(slice(begin, total))
        for one in self._passes:

            def count(part: I64, one: _Pass = one) -> None:
                one.draw.count(one.rows, part, self._counts[one.span])

            workers.run(count, one.at)

    def _add_dense(self, relation: int, by_host: PositionsByHost, span: slice) -> None:
        """Add the passes of a relation with a row for each destination."""
        request = self._request
        draw = self._strategy_of(relation).prepare(self._state, relation)
        keys = self._keys(np.array([relation]), self._buffers.arange(len(request.roots) or 1))
        for host, positions in by_host:
            edges = self._topology.adjacency(relation, host)
            first = int(self._topology.edges.starts[relation, host])
            rows = self._owned(host, edges, first, request.ids, request.ids, keys, span)
            number = first if self._answers else edges.first_edge
            self._passes.append(_Pass(draw, rows, positions, span, number))

    def _add_listed(self, span: slice) -> None:
        """Add the passes of the rows of listed relations: one of each host, or, where draws need tables, of each
        relation there.
        """
        request, listed, topology = self._request, self._listed, self._topology
        keys = self._keys(listed.relations, listed.at)
        ids, strategy = request.ids[listed.at], request.strategy.at(listed.at)
        groups = listed.hosts + (listed.relations * len(topology.world.hosts) if strategy.needs_tables else 0)
        for at in _runs(groups, int(groups.max()) + 1):
            host, relation = int(listed.hosts[at[0]]), int(listed.relations[at[0]])
            if strategy.needs_tables:
                how = self._strategy_of(relation, strategy)
                edges, numbers = topology.adjacency(relation, host), listed.rows
                first = int(topology.edges.starts[relation, host])
            else:
                # rows do not lie side by side, so each has a begin and an end of its own: every other entry is its row
                how, first, numbers = strategy, 0, np.arange(0, 2 * len(listed.at), 2)
                edges = Adjacency(listed.ends, topology.edges.memory(host), 0, 0, numbers)
            rows = self._owned(host, edges, first, ids, numbers, keys, span)
            self._passes.append(_Pass(how.prepare(self._state, relation), rows, at, span, first))

    def _keys(self, relations: I64, at: I64) -> U64:
        """Return the keys of rows: of relations, int64[m] or int64[1] for all, and destinations at positions ``at``."""
        request, keys = self._request, np.empty(len(at), np.uint64)
        keys_of_rows(request.key, relations, request.strategy.keys_by_relation, request.roots, at, keys)
        return keys

    def _strategy_of(self, relation: int, strategy: Strategy | None = None) -> Strategy:
        request = self._request
        strategy = strategy or request.strategy
        if not len(request.tensors):
            return strategy
        place = np.count_nonzero(request.chosen[:relation])
        return strategy.with_tensors(request.tensors[:, place].tolist())

    def _owned(
        self, host: int, edges: Adjacency, first: int, ids: I64, numbers: I64, keys: U64, span: slice
    ) -> OwnedRows:
        begin = int(self._topology.edges.offsets[host]) + first
        excluded = protocol.edges_in(self._request.excluded, begin, begin + len(edges.indices)) - begin
        return OwnedRows(host, edges, ids, numbers, keys, excluded, Candidates(*(of[span] for of in self._scratch)))

    def finish(self) -> protocol.SampledRows:
        """Draw; the next request with this number overwrites the sources."""
        request, buffers = self._request, self._buffers
        offsets = protocol.sums(self._counts)
        total = int(offsets[-1])
        src = buffers.take(f"src {self._number}", total, self._topology.dtype)
        picks = np.empty(total, np.int64) if request.want_eids else buffers.take("picks", total)
        for one in self._passes:
            own = offsets[one.span.start : one.span.stop + 1]

            def fill(part: I64, one: _Pass = one, own: I64 = own) -> None:
                one.draw.choose(one.rows, part, own, picks)
                copy_neighbours(one.rows.edges.indices, part, own, one.first, picks, src)

            self._workers.run(fill, one.at)
        listed = self._listed
        if request.want_eids and not self._answers and len(listed.at):
            begin = len(self._counts) - len(listed.at)
            shifts = self._topology.id_shifts(listed.relations, listed.hosts)
            picks[offsets[begin] :] += np.repeat(shifts, self._counts[begin:])
        edges = picks if request.want_eids else picks[:0]
        return protocol.SampledRows(self._dense, listed.relations, listed.at, self._counts, offsets, src, edges)


class _Listed(NamedTuple):
    """The rows of listed relations that a request finds, by relation and destination.

    Attributes:
        hosts: int64[m].
        relations: int64[m].
        rows: int64[m], the number of each among the host's of its relation.
        at: int64[m], the position of its destination in the request.
        ends: int64[2 m], its first edge, counted from the host's first, and the one behind its last.
    """

    hosts: I64
    relations: I64
    rows: I64
    at: I64
    ends: I64

    @classmethod
    def nothing(cls) -> "_Listed":
        return cls(_NONE, _NONE, _NONE, _NONE, _NONE)

    @classmethod
    def find(cls, topology: Topology, request: protocol.SamplingRequest, by_host: PositionsByHost) -> "_Listed":
        """Find the rows of a request on local hosts."""
        parts = []
        for host, positions in by_host:
            listed = topology.listed_rows(request.dst, host)
            first, counts = np.empty((2, len(positions)), np.int64)
            of_nodes = (listed.order, listed.nodes, listed.row_begins, request.chosen)
            find_rows(request.ids, positions, listed.first_node, *of_nodes, first, counts)
            bounds = protocol.sums(counts)
            relations, rows = np.empty((2, int(bounds[-1])), np.int64)
            ends = np.empty(2 * len(rows), np.int64)
            begins = (listed.row_begins, listed.edge_begins, listed.indptr_begins)
            list_rows(first, bounds, listed.order, *begins, listed.indptr, request.chosen, relations, rows, ends)
            parts.append((np.full(len(rows), host), relations, rows, np.repeat(positions, counts), ends.reshape(-1, 2)))
        if not parts:
            return cls.nothing()
        hosts, relations, rows, at, ends = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = rows_in_order(relations, at, request)
        return cls(hosts[order], relations[order], rows[order], at[order], ends[order].ravel())


def rows_in_order(relations: I64, at: I64, request: protocol.SamplingRequest) -> I64:
    """Return the order of rows of some relations (int64[m]) by relation, and by the position (int64[m]) there."""
    if not len(at):  # the first sort would pass over all destinations
        return at
    order = by_key(at, len(request.ids))[1]
    return order[by_key(relations[order], len(request.chosen))[1]]


def merged(
    request: protocol.SamplingRequest, parts: Sequence[tuple[I64, protocol.SampledRows]], buffers: Buffers, number: int
) -> protocol.SampledRows:
    """Merge the rows that hosts found for a request, in the order of its destinations.

    Args:
        request: the request.
        parts: the positions of destinations whose rows of dense relations each part has, int64[p], and the part; later
            ones count.
        buffers: memory for the sources.
        number: of the request.
    """
    nodes, dense = len(request.ids), parts[0][1].dense
    relations, at = (np.concatenate([getattr(rows, of) for _, rows in parts]) for of in ("relations", "at"))
    order = rows_in_order(relations, at, request)
    to_listed = np.empty(len(order), np.int64)
    to_listed[order] = nodes * len(dense) + np.arange(len(order))
    counts = np.zeros(nodes * len(dense) + len(order), np.int64)
    places, done = [], 0
    for positions, rows in parts:
        to_dense = np.add.outer(nodes * np.arange(len(dense)), positions).ravel()
        places.append(np.concatenate([to_dense, to_listed[done : done + len(rows.at)]]))
        counts[places[-1]] = rows.counts
        done += len(rows.at)
    offsets = protocol.sums(counts)
    src = buffers.take(f"merged {number}", int(offsets[-1]), parts[0][1].src.dtype)
    eids = np.empty(len(src) if request.want_eids else 0, np.int64)
    for to, (_, rows) in zip(places, parts, strict=True):
        place_ragged(rows.src, to, rows.counts, offsets, src)
        if request.want_eids:
            place_ragged(rows.edges, to, rows.counts, offsets, eids)
    return protocol.SampledRows(dense, relations[order], at[order], counts, offsets, src, eids)


def look_up_edges(
    state: Store, query: protocol.EdgeQuery, by_host: PositionsByHost, workers: Workers, exist: Mask
) -> None:
    """Fill ``exist`` (bool[n]) for the edges of local hosts."""
    topology = state.graph_of_number[query.graph].topology
    for host, positions in by_host:
        edges = topology.adjacency(query.relation, host)
        exist[positions] = False
        rows, positions = _by_row(edges, query.ids, positions)

        def look(part: I64, edges: Adjacency = edges, rows: I64 = rows) -> None:
            find_in_rows(edges.indptr, edges.indices, edges.first_row, query.src, rows, part, exist)

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


_NONE = np.empty(0, np.int64)


def _runs(keys: I64, num_keys: int) -> list[I64]:
    """Return the positions of each key that occurs, ascending."""
    order = by_key(keys, num_keys)[1]
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1) if len(keys) else []


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
        arrays: list[Array] = []
        for number, request in enumerate(protocol.unpack_requests(words)):
            self._state.graph(request.graph)  # raises if this rank has not opened it
            arrays += self._arrays(request, number)
        return protocol.pack_answer(arrays, HEAD)

    def _arrays(self, request: protocol.AnyRequest, number: int) -> list[Array]:
        """Return the arrays that answer a request, which has this number in its message."""
        state, host = self._state, self._state.world.host_index
        by_host = [(host, self._buffers.arange(len(request.ids)))]
        if isinstance(request, protocol.EdgeQuery):
            exist = np.empty(len(request.ids), np.bool_)
            look_up_edges(state, request, by_host, self._workers, exist)
            return [exist]
        topology = state.graph_of_number[request.graph].topology
        rows = LocalSampling(state, request, by_host, self._buffers, self._workers, number, answers=True).finish()
        listed = np.flatnonzero(request.chosen & topology.listed)
        return protocol.row_arrays(request, rows, listed, topology.num_edges(host))
