"""Read rows of a file in runs: neighbours merge, and the reads of many runs are one call without the interpreter."""

import os
from typing import Any

import numpy as np
from numba import config, njit, types

from mpigraph.arrays import I64, U8
from mpigraph.kernels.memcopy import copy_bytes

PIECE, BEGIN, SIZE, FIRST, COUNT, RUN = range(6)
"""The columns of a run, and their number: its piece, the byte of the file where it begins, its bytes up to the end of
its last row, the index of its first row, and the number of its rows."""

_pread: Any = types.ExternalFunction(
    "pread",
    types.intp(types.int32, types.uintp, types.uintp, types.int64),  # type: ignore[call-arg, operator]
)


@njit(nogil=True, cache=True)
def plan_runs(
    rows: I64, bounds: I64, begins: I64, row_bytes: int, page: int, gap: int, most: int, runs: I64, places: I64
) -> int:
    """Merge rows into runs of whole pages.

    Args:
        rows: int64[n], ascending, each once.
        bounds: int64[k + 1], the rows of piece j are ``[bounds[j], bounds[j + 1])``.
        begins: int64[k], the byte of its file where the first row of a piece begins.
        row_bytes: bytes of a row.
        page: a run begins at a multiple of it in the file.
        gap: bytes between the pages of two rows up to which they are read together.
        most: bytes of a run, unless one row has more.
        runs: int64[n, RUN], filled with the runs.
        places: int64[n], filled with the byte of its run at which each row begins.

    Returns:
        The number of runs.
    """
    count = 0
    piece = 0
    end = run_begin = 0  # of the last run, in the file
    for i in range(len(rows)):
        joins = count > 0
        while rows[i] >= bounds[piece + 1]:
            piece += 1
            joins = False
        begin = begins[piece] + (rows[i] - bounds[piece]) * row_bytes
        first = begin // page * page
        if not joins or first - -(-end // page) * page > gap or begin + row_bytes - run_begin > most:
            run_begin = first
            runs[count, PIECE] = piece
            runs[count, BEGIN] = run_begin
            runs[count, FIRST] = i
            runs[count, COUNT] = 0
            count += 1
        end = begin + row_bytes
        runs[count - 1, SIZE] = end - run_begin
        runs[count - 1, COUNT] += 1
        places[i] = begin - run_begin
    return count


@njit(nogil=True, cache=True)
def place_bytes(buffer: U8, places: I64, positions: I64, row_bytes: int, out: U8) -> None:
    """Copy rows: row ``positions[i]`` of ``out`` (uint8) is what lies at ``places[i]`` in ``buffer``."""
    for i in range(len(places)):
        copy_bytes(out, positions[i] * row_bytes, buffer, places[i], row_bytes)


@njit(nogil=True, cache=True)
def _fills(run: I64, positions: I64, row_bytes: int) -> bool:
    """Return whether a run is rows and nothing between, which go to consecutive positions."""
    first, count = run[FIRST], run[COUNT]
    if run[SIZE] != count * row_bytes:
        return False
    for i in range(1, count):
        if positions[first + i] != positions[first] + i:
            return False
    return True


@njit(nogil=True, cache=True)
def _read_runs(
    files: I64, runs: I64, page: int, places: I64, positions: I64, row_bytes: int, buffer: U8, out: U8
) -> int:
    for r in range(len(runs)):
        first, size = runs[r, FIRST], runs[r, SIZE]
        in_place = page == 1 and _fills(runs[r], positions, row_bytes)
        whole = -(-size // page) * page
        to = out.ctypes.data + positions[first] * row_bytes if in_place else buffer.ctypes.data
        done = 0
        while done < size:  # the last page of a file may be cut off behind the row
            count = _pread(
                np.int32(files[runs[r, PIECE]]), np.uintp(to + done), np.uintp(whole - done), runs[r, BEGIN] + done
            )
            if count <= 0:
                return r
            done += count
        if not in_place:
            last = first + runs[r, COUNT]
            place_bytes(buffer, places[first:last], positions[first:last], row_bytes, out)
    return len(runs)


def _read_runs_in_python(
    files: I64, runs: I64, page: int, places: I64, positions: I64, row_bytes: int, buffer: U8, out: U8
) -> int:
    """Read in Python (``NUMBA_DISABLE_JIT=1``)."""
    for r, (piece, begin, size, first, count) in enumerate(runs.tolist()):
        whole = -(-size // page) * page
        try:
            if os.preadv(int(files[piece]), [buffer[:whole].data], begin) < size:
                return r
        except OSError:
            return r
        which = slice(first, first + count)
        place_bytes(buffer, places[which], positions[which], row_bytes, out)
    return len(runs)


read_runs: Any = _read_runs_in_python if config.DISABLE_JIT else _read_runs  # type: ignore[attr-defined]
"""``read_runs(files, runs, page, places, positions, row_bytes, buffer, out)`` reads runs, and copies their rows to
their ``positions`` in ``out``; return the first run that failed, or their number.

``files`` (int64[k]): the descriptors of the pieces; ``buffer`` (uint8[n]): for the longest run, in whole pages; see
:func:`plan_runs` and :func:`place_bytes`.
"""
