"""Move rows: gather, scatter, order by owner, merge neighbours into runs.

Rows are handled as fixed-size words whatever their dtype (see :func:`as_words`), so that four compiled versions serve
every dtype and row shape.
"""

import threading

import numpy as np

from mpigraph.arrays import I32, I64, Array
from mpigraph.kernels.cache import njit
from mpigraph.kernels.intrinsics import copy_row, order_streams, prefetch, stream_row

_AHEAD, _ASKED = 8, 16  # rows between prefetching one and copying it; cache lines of a row prefetched at most
_LINE = 64  # bytes of a cache line
_STREAMED = 4 << 20  # bytes of a result from which on it leaves a core's cache before it is used
_CACHED = 128 << 20  # bytes of a table above which most of its rows come from memory


def as_words(rows: Array) -> Array:
    """View a C-contiguous array of rows as ``[n, words]`` of the widest unsigned integer that divides a row."""
    row_bytes = rows.dtype.itemsize * int(np.prod(rows.shape[1:], dtype=np.int64))
    for width in (8, 4, 2, 1):
        if row_bytes % width == 0 and rows.ctypes.data % width == 0:
            break
    words = row_bytes // width
    if len(rows) == 0 or words == 0:
        return np.empty((len(rows), words), f"u{width}")
    return rows.reshape(-1).view(np.uint8).view(f"u{width}").reshape(len(rows), words)


@njit()
def _is_streamed(table: Array, out: Array) -> bool:
    """Return whether to write rows of ``table`` to ``out`` past the caches.

    Not where rows come from memory: loaded and streamed lines then compete for the same buffers of the core. Counting
    references in the loop has the same effect, so no function there takes an array.
    """
    nbytes = out.shape[1] * out.itemsize
    fits = nbytes >= _LINE and nbytes % 16 == 0 and out.ctypes.data % 16 == 0
    return bool(fits and len(out) * nbytes >= _STREAMED and len(table) * nbytes <= _CACHED)


@njit()
def move_rows(source: Array, rows: Array | None, first: int, out: Array, places: I64 | None) -> None:
    """``out[places[i]] = source[rows[i] - first]`` where ``rows[i] >= first``; C-contiguous 2-D arrays of one dtype.

    A large ``out`` is not left in the cache. Of equal places the last one wins.

    Args:
        source: [m, width], rows as words.
        rows: int32 or int64[n]; None for the rows in their order.
        first: the number of the first row of ``source``.
        out: [k, width], rows as words.
        places: int64[n]; None for places in their order.
    """
    count = len(rows) if rows is not None else len(places) if places is not None else len(source)
    width, line, streamed = source.shape[1], max(1, _LINE // source.itemsize), _is_streamed(source, out)
    asked = min(width, _ASKED * line)
    for i in range(count):
        row, place = np.int64(i), np.int64(i)
        if rows is not None:
            if i + _AHEAD < count and rows[i + _AHEAD] >= first:
                begin = (np.int64(rows[i + _AHEAD]) - first) * width
                for word in range(begin, begin + asked, line):
                    prefetch(source, word)
            row = np.int64(rows[i]) - first
            if row < 0:
                continue
        if places is not None:
            place = places[i]
        if streamed:
            stream_row(out, place, source, row)
        elif width < line:
            for j in range(width):
                out[place, j] = source[row, j]
        else:
            copy_row(out, place, source, row)
    if streamed:
        order_streams()


class _Scratch(threading.local):
    """Three numbers for each range, for a thread; the first ones are zeros before and after they are used."""

    numbers: I64 = np.zeros((3, 1), np.int64)


_scratch = _Scratch()


@njit()
def _order_by_owner(ids: I64, offsets: I64, scratch: I64, owner: I32, order: I64) -> int:
    """Fill ``owner`` and ``order``; return how many ranges have ids, which are in the scratch, then their bounds."""
    counts, which, bounds = scratch[0], scratch[1], scratch[2]
    used = 0
    for i in range(len(ids)):
        low, high = 0, len(offsets) - 1  # the owner is in low .. high - 1
        while high - low > 1:
            middle = (low + high) >> 1
            if offsets[middle] <= ids[i]:
                low = middle
            else:
                high = middle
        owner[i] = low
        if counts[low] == 0:
            which[used] = low
            used += 1
        counts[low] += 1
    gap = used >> 1  # Shell's sort: numba's takes 40 ms to load, as its reshape does
    while gap:
        for i in range(gap, used):
            range_, k = which[i], i
            while k >= gap and which[k - gap] > range_:
                which[k] = which[k - gap]
                k -= gap
            which[k] = range_
        gap >>= 1
    at = 0
    for k in range(used):
        bounds[k] = at
        at += counts[which[k]]
        counts[which[k]] = bounds[k]
    bounds[used] = at
    for i in range(len(ids)):
        order[counts[owner[i]]] = i
        counts[owner[i]] += 1
    for k in range(used):
        counts[which[k]] = 0
    return used


def order_by_range(ids: I64, offsets: I64) -> tuple[I64, I64, I64]:
    """Sort positions by the range that holds their id, stably. Ranges without ids cost nothing.

    Args:
        ids: int64[n], in ``[offsets[0], offsets[-1])``.
        offsets: int64[k + 1], ascending: range j is ``[offsets[j], offsets[j + 1])``.

    Returns:
        ``order`` int64[n], ``which`` int64[r], the ranges that have ids, ascending, and ``bounds`` int64[r + 1]:
        ``order[bounds[i]:bounds[i + 1]]`` are the positions whose id is in range ``which[i]``, ascending.
    """
    if _scratch.numbers.shape[1] < len(offsets):
        _scratch.numbers = np.zeros((3, len(offsets)), np.int64)
    numbers = _scratch.numbers
    owner = np.empty(len(ids), np.int32)
    order = np.empty(len(ids), np.int64)
    used = _order_by_owner(ids, offsets, numbers, owner, order)
    return order, numbers[1, :used].copy(), numbers[2, : used + 1].copy()


def split_by_range(ids: I64, offsets: I64) -> list[tuple[int, I64]]:
    """Group positions by the range that holds their id, such as the host of a row; arguments as of order_by_range.

    Returns:
        Each range that has ids, ascending, with int64[m], the ascending positions of its ids.
    """
    if len(offsets) == 2:
        return [(0, np.arange(len(ids)))] if len(ids) else []
    order, which, bounds = order_by_range(ids, offsets)
    return [(j, order[bounds[i] : bounds[i + 1]]) for i, j in enumerate(which.tolist())]


def find_runs(rows: I64) -> tuple[I64, I32]:
    """Merge neighbours of rows (int64[n]) that follow each other: ``starts`` int64[r] and ``lengths`` int32[r]."""
    begins = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    return rows[begins], np.diff(begins, append=len(rows)).astype(np.int32)


@njit()
def place_ragged(values: Array, positions: I64, counts: Array, offsets: I64, out: Array) -> None:
    """Copy consecutive runs of ``values`` to their places: run i goes to ``offsets[positions[i]]``.

    ``counts[i]`` is the length of run i.
    """
    at = i = 0
    while i < len(positions):
        begin = offsets[positions[i]]
        length = int(counts[i])
        i += 1
        while i < len(positions) and offsets[positions[i]] == begin + length:  # runs that stay together
            length += int(counts[i])
            i += 1
        for j in range(length):
            out[begin + j] = values[at + j]
        at += length
