"""Move rows: gather, scatter, order by owner, merge neighbours into runs.

Rows are handled as fixed-size words whatever their dtype (see :func:`as_words`), so that four compiled versions serve
every dtype and row shape.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from mpigraph.kernels.copy import copy_row
from mpigraph.kernels.prefetch import prefetch

__all__ = ["as_words", "find_runs", "gather_rows", "order_by_range", "place_ragged", "scatter_rows"]

_I64 = npt.NDArray[np.int64]
_Rows = npt.NDArray[Any]
_AHEAD, _ASKED = 8, 16  # rows between asking for one and copying it; cache lines of a row asked for at most


def as_words(rows: _Rows) -> _Rows:
    """View a C-contiguous array of rows as ``[n, words]`` of the widest unsigned integer that divides a row.

    Local; no communication.
    """
    row_bytes = rows.dtype.itemsize * int(np.prod(rows.shape[1:], dtype=np.int64))
    for width in (8, 4, 2, 1):
        if row_bytes % width == 0 and rows.ctypes.data % width == 0:
            break
    words = row_bytes // width
    if len(rows) == 0 or words == 0:
        return np.empty((len(rows), words), f"u{width}")
    return rows.reshape(-1).view(np.uint8).view(f"u{width}").reshape(len(rows), words)


@njit(nogil=True, cache=True)
def gather_rows(table: _Rows, rows: _I64, positions: _I64, out: _Rows) -> None:
    """``out[positions[i]] = table[rows[i]]`` for C-contiguous 2-D arrays of one dtype. Local; no communication."""
    width, line = table.shape[1], max(1, 64 // table.itemsize)
    words, asked = table.reshape(-1), min(width, _ASKED * line)
    for i in range(len(rows)):
        if i + _AHEAD < len(rows):
            first = rows[i + _AHEAD] * width
            for word in range(first, first + asked, line):
                prefetch(words, word)
        if width < line:
            for j in range(width):
                out[positions[i], j] = table[rows[i], j]
        else:
            copy_row(out, positions[i], table, rows[i])


@njit(nogil=True, cache=True)
def scatter_rows(values: _Rows, positions: _I64, table: _Rows, rows: _I64) -> None:
    """``table[rows[i]] = values[positions[i]]``; the last of equal rows wins. Local; no communication."""
    for i in range(len(rows)):
        copy_row(table, rows[i], values, positions[i])


@njit(nogil=True, cache=True)
def _order_by_owner(owner: npt.NDArray[np.int32], bounds: _I64, order: _I64) -> None:
    fill = bounds[:-1].copy()
    for i in range(len(owner)):
        order[fill[owner[i]]] = i
        fill[owner[i]] += 1


@njit(nogil=True, cache=True)
def _owners(ids: _I64, offsets: _I64, owner: npt.NDArray[np.int32], bounds: _I64) -> None:
    for i in range(len(ids)):
        low, high = 0, len(offsets) - 1  # the owner is in low .. high - 1
        while high - low > 1:
            middle = (low + high) >> 1
            if offsets[middle] <= ids[i]:
                low = middle
            else:
                high = middle
        owner[i] = low
        bounds[low + 1] += 1
    for k in range(1, len(bounds)):
        bounds[k] += bounds[k - 1]


def order_by_range(ids: _I64, offsets: _I64) -> tuple[_I64, _I64]:
    """Sort positions by the range that holds their id, stably. Local; no communication.

    Args:
        ids: int64[n], in ``[offsets[0], offsets[-1])``.
        offsets: int64[k + 1], ascending: range j is ``[offsets[j], offsets[j + 1])``.

    Returns:
        ``order`` int64[n] and ``bounds`` int64[k + 1]: ``order[bounds[j]:bounds[j + 1]]`` are the positions whose id is
        in range j, ascending.
    """
    owner = np.empty(len(ids), np.int32)
    bounds = np.zeros(len(offsets), np.int64)
    _owners(ids, offsets, owner, bounds)
    order = np.empty(len(ids), np.int64)
    _order_by_owner(owner, bounds, order)
    return order, bounds


@njit(nogil=True, cache=True)
def _fill_runs(rows: _I64, starts: _I64, lengths: _I64, place: _I64) -> int:
    runs = 0
    total = 0
    for i in range(len(rows)):
        if i > 0 and rows[i] == rows[i - 1]:
            place[i] = total - 1
            continue
        if i > 0 and rows[i] == rows[i - 1] + 1:
            lengths[runs - 1] += 1
        else:
            starts[runs] = rows[i]
            lengths[runs] = 1
            runs += 1
        place[i] = total
        total += 1
    return runs


def find_runs(rows: _I64) -> tuple[_I64, _I64, _I64]:
    """Merge ascending rows (repeats allowed) into runs of consecutive distinct rows. Local; no communication.

    Args:
        rows: int64[n], ascending.

    Returns:
        ``starts`` int64[r] and ``lengths`` int64[r] of the runs, and ``place`` int64[n]: where each of ``rows``
        stands in the concatenation of the runs.
    """
    starts, lengths, place = (np.empty(len(rows), np.int64) for _ in range(3))
    runs = _fill_runs(rows, starts, lengths, place)
    return starts[:runs], lengths[:runs], place


@njit(nogil=True, cache=True)
def place_ragged(
    values: npt.NDArray[Any],
    positions: _I64,
    counts: npt.NDArray[Any],
    offsets: _I64,
    out: npt.NDArray[Any],
) -> None:
    """Copy consecutive pieces of ``values`` to their places: piece i goes to ``offsets[positions[i]]``.

    ``counts[i]`` is the length of piece i. Local; no communication.
    """
    at = 0
    for i in range(len(positions)):
        begin = offsets[positions[i]]
        for j in range(begin, begin + counts[i]):
            out[j] = values[at]
            at += 1
