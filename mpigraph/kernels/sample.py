"""Choose in-neighbours from CSC arrays: all alike, masked, by weight, by time or by LABOR, without excluded edges.

Plain functions on arrays: no MPI, no objects, no hidden random state. Three passes, each a loop whose memory accesses
do not wait for each other: :func:`count` looks up the rows and returns how many neighbours each node will get, the
caller makes prefix sums, :func:`choose` picks edges, :func:`copy_neighbours` follows them. A pass is made once per host
whose topology this process can load; ``positions`` (int64[m], ascending) says which nodes of the frontier that host
holds, so that the passes of several hosts, or of several threads on slices of ``positions``, fill one output.

The draw for a node depends on ``(key, node id, number of the draw)`` alone, so the frontiers of several minibatches can
be one here, each with its own key.

There is one draw, from a stretch of ``degrees`` places that begin at ``begins``: the edges of the row, or its list in
an ``order``, or the part of the list that time allows. Where some of the places cannot be drawn, those that can are
listed, the draw is one from the list, and the picks are looked up in it; only of excluded edges among edges that are
otherwise alike no list is made, since each pick can be moved over those before it. What a draw does not know is None in
its :class:`Edges`, and the compiler leaves out what depends on it.

A write to mask or weights may have changed them since the edges were counted: the choice then is undefined, but only
ever among the edges of the node that are not excluded, and not newer than it may see.
"""

from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import I64, U32, U64, Array, Mask
from mpigraph.kernels.cache import njit
from mpigraph.kernels.csr import by_key, first_not_below
from mpigraph.kernels.intrinsics import borrowed, prefetch
from mpigraph.kernels.labor import CHUNK, Numbers, first_arrivals, smallest_numbers
from mpigraph.kernels.rng import draw_below, mix64
from mpigraph.kernels.temporal import Times, prefetch_times, visible
from mpigraph.kernels.weighted import add_up, draw_by_weight, is_among, make_table, take_drawable

_NODES_AHEAD, _EDGES_AHEAD = 16, 32  # between a prefetch and its use
_ORDERS_AHEAD, _TABLES_AHEAD = 8, 4  # nodes between the prefetch of a pick's place, or of a row's table, and its use
_TABLE, _SOURCES = 16, 3  # most cache lines of a row's table, and of its sources, that are prefetched
_FLOYD_MAX = 64  # above so many draws Floyd's membership test, quadratic in them, is slower than a pass over the edges
_BUCKETS = 4  # buckets of the directory for each excluded edge, at most: then most buckets are empty

_NO_EDGES = np.empty(0, np.int64)


class Destinations(NamedTuple):
    """The frontier, and how its nodes draw.

    Attributes:
        ids: int64[frontier], global ids.
        rows: int64[frontier], their rows, counted from that of :attr:`.Edges.first_row`.
        fanout: most neighbours of a node; negative means all.
        replace: with replacement a node with any candidate gets exactly ``fanout``.
        keys: uint64[frontier], hash of everything a node's draw depends on except the node; or uint64[1], for all. Of
            LABOR the keys of the sources' numbers.
    """

    ids: I64
    rows: I64
    fanout: int
    replace: bool
    keys: U64


class Candidates(NamedTuple):
    """The places that each node of the frontier draws from, in the host that holds the node: int64[frontier] each.

    :func:`count` fills these arrays at the ``positions`` that it is given.

    Attributes:
        begins: the first place.
        degrees: how many places there are.
        num_candidates: how many of them have a weight above 0, and are not excluded; only with weights.
        row_begins: the first edge of the node's row; only with an ``order``.
        excluded_begin: begin of the row's excluded edges among those of its host; only if some are excluded.
        num_excluded: their number; only if some are excluded.
    """

    begins: I64
    degrees: I64
    num_candidates: I64
    row_begins: I64
    excluded_begin: I64
    num_excluded: I64


class Edges(NamedTuple):
    """The edges of one host, as far as a draw knows them. Kernels take the fields in this order.

    Attributes:
        indptr: int64[n + 1], CSC offsets of the host's rows.
        first_row: the number of row 0.
        drawable: int[n], how many edges of each row have a weight above 0, or are in its list in ``order``; empty to
            count those with a weight.
        excluded: int64[k], edges that cannot be drawn, ascending, each once.
        mask: bool or uint8 [nnz], which edges can be drawn.
        weights: float or bool [nnz]: edges are drawn in proportion to them.
        order: int32 or uint32 [nnz], the place in its row of each edge in the row's list: that of :func:`list_allowed`,
            or of the edges sorted by time.
        times: the times in this order, and what the nodes may see.
        table: uint64 [nnz], filled by :func:`.alias_tables`; empty to make that of a row when it is drawn from, where
            the draws are the same.
        labor: the sources: LABOR takes those with the smallest numbers.
    """

    indptr: I64
    first_row: int
    drawable: Array | None = None
    excluded: I64 = _NO_EDGES
    mask: Mask | None = None
    weights: Array | None = None
    order: Array | None = None
    times: Times | None = None
    table: U64 | None = None
    labor: Numbers | None = None


def count(dst: Destinations, edges: Edges, positions: I64, rows: Candidates, counts: I64) -> int:
    """Fill how many neighbours each node will get.

    Args:
        dst: the frontier.
        edges: the host's edges.
        positions: int64[m], see above.
        rows: filled.
        counts: int64[frontier], filled.

    Returns:
        The position of the first edge whose weight is negative, NaN or too large to add, or -1. Only looked for where
        ``drawable`` is empty.
    """
    bad: int = _count(_lists(edges), dst, *edges[:8], positions, rows, counts)
    return bad


def choose(dst: Destinations, edges: Edges, positions: I64, rows: Candidates, offsets: I64, picks: I64) -> None:
    """Choose edges of each node; if all are taken, they are in the order of their places.

    Args:
        dst: the frontier.
        edges: the host's edges.
        positions: int64[m], see above.
        rows: as :func:`count` filled them.
        offsets: int64[frontier + 1], prefix sums of the counts.
        picks: int64[offsets[-1]], filled with positions in the host's edges.
    """
    scratch = None if edges.labor is None else (np.empty(CHUNK, np.uint32), np.empty(CHUNK, np.uint64))
    _choose(_lists(edges), dst, *edges[3:], positions, rows, offsets, scratch, picks)


def _lists(edges: Edges) -> bool | None:
    """Return None if all edges are alike: then no places are listed."""
    special = edges.mask, edges.weights, edges.order, edges.labor
    return None if all(one is None for one in special) else True


@njit(inline="always")
def num_picks(num_candidates: Any, fanout: Any, replace: Any) -> Any:
    """Return how many neighbours a node with ``num_candidates`` edges gets."""
    if fanout < 0 or num_candidates == 0 or (not replace and num_candidates < fanout):
        return num_candidates
    return fanout


@njit()
def _count(
    lists: Any,
    dst: Any,
    indptr: I64,
    first_row: int,
    drawable: Any,
    excluded: I64,
    mask: Any,
    weights: Any,
    order: Any,
    times: Any,
    positions: I64,
    rows: Any,
    counts: I64,
) -> int:
    """See :func:`count`."""
    # the compiler leaves out what depends on a parameter that is None, so these keep their names
    dst, indptr, excluded, positions, rows, counts = borrowed((dst, indptr, excluded, positions, rows, counts))
    own_weights, own_times, own_drawable = borrowed((weights, times, drawable))
    low = high = 0
    shift, directory = _directory(excluded)
    n = len(positions)
    for i in range(n):
        if i + _NODES_AHEAD < n:
            prefetch(indptr, dst.rows[positions[i + _NODES_AHEAD]] - first_row)
        if times is not None:
            if i + _ORDERS_AHEAD < n:
                later = dst.rows[positions[i + _ORDERS_AHEAD]] - first_row
                prefetch_times(own_times, indptr[later], indptr[later + 1])
        p = positions[i]
        row = dst.rows[p] - first_row
        begin = first = indptr[row]
        degree = indptr[row + 1] - begin
        if len(excluded) > 0:
            low, high = _excluded_of(excluded, directory, shift, begin, begin + degree)
            rows.excluded_begin[p] = low
            rows.num_excluded[p] = high - low
        if times is not None:
            first, degree = visible(own_times, p, begin, begin + degree)
        alive = degree
        if drawable is not None:
            if len(own_drawable) > 0:
                alive = np.int64(own_drawable[row])
        if weights is not None:
            if len(own_drawable) == 0:
                _, alive, bad = add_up(own_weights[begin : begin + degree])
                if bad >= 0:
                    return int(begin + bad)
        elif order is not None:  # the list in it may be shorter than the row
            degree = alive
        if lists is not None:
            if mask is not None or high > low:
                alive = len(_list(first, degree, begin, order, mask, weights, excluded, low, high, 0))
        else:
            alive -= high - low
        rows.begins[p] = first
        rows.degrees[p] = degree
        if order is not None:
            rows.row_begins[p] = begin
        if weights is not None:
            rows.num_candidates[p] = alive
        counts[p] = num_picks(alive, dst.fanout, dst.replace)
    return -1


@njit()
def _choose(
    lists: Any,
    dst: Any,
    excluded: I64,
    mask: Any,
    weights: Any,
    order: Any,
    times: Any,
    table: Any,
    labor: Any,
    positions: I64,
    rows: Any,
    offsets: I64,
    scratch: Any,
    picks: I64,
) -> None:
    """See :func:`choose`."""
    # the compiler leaves out what depends on a parameter that is None, so these keep their names
    dst, excluded, positions, rows, offsets, picks = borrowed((dst, excluded, positions, rows, offsets, picks))
    own_order, own_weights, own_table, own_labor, space = borrowed((order, weights, table, labor, scratch))
    replace = dst.replace and dst.fanout >= 0  # an unlimited fanout takes each edge once
    low = high = 0
    steps, newest = len(positions), -1
    if order is not None:
        steps += _ORDERS_AHEAD
    if times is not None:
        newest = dst.fanout if times.newest else -1
    for i in range(steps):
        if order is not None:
            if i >= _ORDERS_AHEAD:  # the draws of an earlier node
                _follow(own_order, rows, positions[i - _ORDERS_AHEAD], offsets, picks)
            if i >= len(positions):
                continue
        if table is not None:
            if len(own_table) > 0:
                _prefetch_row(own_table, rows, positions, i + _TABLES_AHEAD, _TABLE)
        if labor is not None:
            _prefetch_row(own_labor.sources, rows, positions, i + _NODES_AHEAD, _SOURCES)
        p = positions[i]
        chosen = picks[offsets[p] : offsets[p + 1]]
        k = len(chosen)
        if k == 0:
            continue
        first, n = rows.begins[p], rows.degrees[p]
        if len(excluded) > 0:
            low = rows.excluded_begin[p]
            high = low + rows.num_excluded[p]
        key = dst.keys[p] if len(dst.keys) > 1 else dst.keys[0]
        how = key, dst.ids[p], replace, newest
        everything = False
        if weights is not None:
            everything = not replace and k == rows.num_candidates[p]
        if lists is None:
            _pick(how, everything, own_weights, own_table, own_labor, space, first, n - (high - low), chosen)
            if high > low:
                _step_over(excluded, low, high, chosen)
        elif mask is None and high == low:
            _pick(how, everything, own_weights, own_table, own_labor, space, first, n, chosen)
        else:
            begin = first
            if order is not None:
                begin = rows.row_begins[p]
            listed = _list(first, n, begin, order, mask, None, excluded, low, high, 1 if replace else k)
            _pick_listed(how, everything, own_weights, own_table, own_labor, space, listed, chosen)
        if order is not None:
            for j in range(k):
                prefetch(own_order, chosen[j])


@njit()
def _pick_listed(
    how: Any, everything: Any, weights: Any, table: Any, labor: Any, scratch: Any, listed: Any, chosen: Any
) -> None:
    """Choose of the places in a list, int64[n]. A function of its own: copies count references in the loop."""
    of_list, slots, numbers = weights, table, labor
    if weights is not None:
        of_list = weights[listed]
    if table is not None:
        slots = table[:0]
    if labor is not None:
        numbers = Numbers(labor.sources[listed], labor.period, labor.phase)
    _pick(how, everything, of_list, slots, numbers, scratch, 0, len(listed), chosen)
    for j in range(len(chosen)):
        chosen[j] = listed[chosen[j]]


@njit(forceinline=True)
def _pick(
    how: Any,
    everything: Any,
    weights: Any,
    table: Any,
    labor: Any,
    scratch: Any,
    first: Any,
    n: Any,
    chosen: Any,
) -> None:
    """Choose of a node's ``n`` places from ``first`` on; ``everything`` if as many as have a weight above 0."""
    key, node, replace, newest = how
    k = len(chosen)
    if 0 <= newest < n:
        first, n = first + n - newest, newest
    if weights is not None:
        chosen[:] = first  # a place of the node, in case the weights changed and fewer are chosen
        if everything:
            take_drawable(weights[first : first + n], first, chosen)
            return
    elif k == n and not replace:
        for j in range(k):
            chosen[j] = first + j
        return
    if labor is not None:
        row = labor.sources[first : first + n]
        if weights is not None:
            first_arrivals(row, weights[first : first + n], key, labor.period, labor.phase, scratch[0], first, chosen)
        else:
            smallest_numbers(row, key, labor.period, labor.phase, scratch[0], scratch[1], first, chosen)
        return
    node_key = mix64(key ^ mix64(np.uint64(node)))
    if table is not None:
        of_row, slots = weights[first : first + n], table[first : first + n]
        if len(table) == 0:
            slots = np.empty(n, np.uint64)
            make_table(of_row, add_up(of_row)[0], slots, np.empty(n, np.float64), np.empty(n, np.int64))
        draw_by_weight(node_key, of_row, slots, first, replace, chosen)
    elif replace:
        for j in range(k):
            chosen[j] = first + draw_below(mix64(node_key + np.uint64(j)), n)
    else:
        choose_distinct(node_key, first, n, chosen)


@njit(inline="always")
def _prefetch_row(values: Any, rows: Any, positions: Any, i: Any, lines: Any) -> None:
    """Load the first cache lines of the row of a later node."""
    if i < len(positions):
        begin, step = rows.begins[positions[i]], 64 // values.itemsize
        for e in range(begin, begin + min(rows.degrees[positions[i]], lines * step), step):
            prefetch(values, e)


@njit(inline="always")
def _follow(order: Any, rows: Any, p: Any, offsets: Any, picks: Any) -> None:
    """Turn places in the ordered row of a node into its edges."""
    begin = rows.row_begins[p]
    for o in range(np.uint64(offsets[p]), np.uint64(offsets[p + 1])):  # unsigned indices are not tested for being < 0
        picks[o] = begin + np.int64(order[np.uint64(picks[o])])


@njit()
def _list(
    first: Any, n: Any, begin: Any, order: Any, mask: Any, weights: Any, excluded: Any, low: Any, high: Any, least: Any
) -> Any:
    """List which of the ``n`` places from ``first`` on can be drawn, int64[m]; more if they are fewer than ``least``.

    ``begin`` is the first edge of the row, ``excluded[low:high]`` are its excluded edges.
    """
    listed = np.empty(n, np.int64)
    count, spare = 0, first
    for e in range(first, first + n):
        edge = e
        if order is not None:
            edge = begin + np.int64(order[e])
        at = first_not_below(excluded, low, high, edge)
        fits = at == high or excluded[at] != edge
        spare = e if fits else spare
        if mask is not None:
            fits &= mask[edge] != 0
        if weights is not None:
            fits &= weights[edge] > 0
        listed[count] = e  # without a branch: a place that is not counted is written over
        count += fits
    while count < least:  # the mask was written meanwhile
        listed[count] = spare
        count += 1
    return listed[:count]


# Few rows have an excluded edge, and all others stay as they are: a directory of the excluded edges by their high bits
# shows for most rows, without a search, that they have none.


@njit()
def _directory(excluded: Any) -> Any:
    """Return a shift, and where the excluded edges of each bucket of ``2**shift`` edges begin: int64[buckets + 1]."""
    shift = 0
    if len(excluded) == 0:
        return shift, excluded
    while excluded[-1] >> shift > _BUCKETS * len(excluded):
        shift += 1
    return shift, by_key(excluded >> shift, (excluded[-1] >> shift) + 1)[0]


@njit(inline="always")
def _excluded_of(excluded: Any, directory: Any, shift: Any, begin: Any, end: Any) -> Any:
    """Return the first excluded edge of ``begin .. end - 1``, and the one behind the last."""
    # the buckets that the row's edges fall in; linear search in them, since they hold few excluded edges
    first = directory[min(begin >> shift, len(directory) - 1)]
    high = directory[min(((end - 1) >> shift) + 1, len(directory) - 1)]
    while first < high and excluded[first] < begin:
        first += 1
    behind = first
    while behind < high and excluded[behind] < end:
        behind += 1
    return first, behind


@njit()
def _step_over(excluded: I64, first: int, behind: int, chosen: I64) -> None:
    """Move picks in a row without its excluded edges ``excluded[first:behind]`` over those before them."""
    for j in range(len(chosen)):
        low, high = first, behind
        # excluded edge number ``middle - first`` has as many others of the row before it, so less them it is where it
        # would be among the kept edges: all those at or before the pick move the pick by one
        while low < high:
            middle = (low + high) >> 1
            if excluded[middle] - (middle - first) <= chosen[j]:
                low = middle + 1
            else:
                high = middle
        chosen[j] += low - first


@njit()
def choose_distinct(node_key: np.uint64, begin: int, degree: int, chosen: I64) -> None:
    """Choose ``len(chosen)`` distinct edges of ``begin .. begin + degree - 1``, each subset equally likely.

    Few: Floyd's algorithm (Bentley, Floyd: "A sample of brilliance", CACM 1987); a word with one bit for each residue
    modulo 64 shows for most picks that they are new. Many: selection sampling (Knuth, TAOCP vol. 2, 3.4.2, algorithm
    S).

    Args:
        node_key: hash of the hop's key and the node's id.
        begin: the first edge.
        degree: number of edges, at least ``len(chosen)``.
        chosen: int64[k], filled.
    """
    k = len(chosen)
    if k > _FLOYD_MAX:
        count = 0
        for t in range(degree):  # edge t is taken with probability (still missing) / (still to come)
            if draw_below(mix64(node_key + np.uint64(t)), degree - t) < k - count:
                chosen[count] = begin + t
                count += 1
                if count == k:
                    return
    seen = np.uint64(0)
    for j in range(k):
        top = degree - k + j
        pick = draw_below(mix64(node_key + np.uint64(j)), top + 1)
        if (seen >> np.uint64(pick & 63)) & np.uint64(1) and (degree <= 64 or is_among(chosen, j, begin + pick)):
            pick = top  # Floyd's step: ``top`` was never in range before, so it is new
        seen |= np.uint64(1) << np.uint64(pick & 63)
        chosen[j] = begin + pick


@njit()
def copy_neighbours(indices: Array, positions: I64, offsets: I64, first_edge: int, picks: I64, out_src: Array) -> None:
    """Follow chosen edges to their sources, and turn the choices into global edge ids.

    Args:
        indices: int32 or int64 [nnz], global source ids.
        positions: int64[m], as above.
        offsets: int64[frontier + 1], as above.
        first_edge: global edge id of ``indices[0]``.
        picks: int64[offsets[-1]], positions in ``indices``; ``first_edge`` is added.
        out_src: [offsets[-1]], filled with global source ids.
    """
    n = len(positions)
    i = 0
    while i < n:
        begin, end = offsets[positions[i]], offsets[positions[i] + 1]
        i += 1
        while i < n and offsets[positions[i]] == end:  # one long loop overlaps more cache misses than many short ones
            end = offsets[positions[i] + 1]
            i += 1
        for o in range(begin, end):
            if o + _EDGES_AHEAD < end:
                prefetch(indices, picks[o + _EDGES_AHEAD])
            out_src[o] = indices[picks[o]]
            picks[o] += first_edge


@njit()
def list_allowed(indptr: I64, mask: Mask, table: U32, num_candidates: Array) -> int:
    """List the edges of each row whose mask is set: the ``order`` of a masked draw.

    Args:
        indptr: int64[n + 1].
        mask: bool [nnz].
        table: uint32 [nnz]; the first ``num_candidates[row]`` entries of a row are filled with places in the row.
        num_candidates: int [n], filled.

    Returns:
        -1: no value of a mask is bad (:func:`.alias_tables` can find one).
    """
    for row in range(len(indptr) - 1):
        begin, count = indptr[row], 0
        for e in range(begin, indptr[row + 1]):
            if mask[e]:
                table[begin + count] = e - begin
                count += 1
        num_candidates[row] = count
    return -1
