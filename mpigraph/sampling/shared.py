"""A hop through relations that share tables: draws of all of them in one pass, and the way back to each relation."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.kernels.csr import number_by_key
from mpigraph.kernels.row_ops import place_ragged
from mpigraph.kernels.sample import Candidates, copy_neighbours
from mpigraph.kernels.shared_rows import find_rows, keys_of_rows, list_rows
from mpigraph.sampling.protocol import SampledNeighbors, SampledRows, SharedRequest, edges_in
from mpigraph.sampling.strategies import Draw, OwnedRows
from mpigraph.sampling.workers import Workers
from mpigraph.store.edge_tables import Adjacency
from mpigraph.store.shared_edges import SharedEdges
from mpigraph.store.store import Store

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
