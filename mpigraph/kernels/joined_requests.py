"""Sampling requests of many ranks at once: found in their words, and their answers put together from arrays of all.

What the words mean is the affair of ``sampling/protocol.py``; here are the loops over requests.
"""

from typing import Any

from numba import njit

from mpigraph.arrays import I32, I64, U8

__all__ = ["COLUMNS", "find_requests", "place_runs", "unpack_lists"]

COLUMNS = 6
"""Of what :func:`find_requests` fills: message; where the header begins; where the destinations begin, and their size;
where the second list begins, and its size. A size is twice the number of ids, plus one if a word holds two of them."""


@njit(nogil=True, cache=True, inline="always")
def _num_words(size: Any) -> Any:
    count = size >> 1
    return (count + 1) >> 1 if size & 1 else count


@njit(nogil=True, cache=True)
def find_requests(words: I64, bounds: I64, header: int, found: I64) -> int:
    """Find the requests in some messages.

    Args:
        words: int64, the messages one after the other.
        bounds: int64[messages + 1], where they begin.
        header: how many words a request begins with, before its two lists.
        found: int64[requests, COLUMNS], filled; ``len(words) // (header + 2)`` rows are enough.

    Returns:
        How many there are; or ``-1 - m``, where message m is none.
    """
    count = 0
    for m in range(len(bounds) - 1):
        first, at, end = count, bounds[m], bounds[m + 1]
        while at < end:
            if end - at < header + 2:
                return -1 - m
            found[count, 0] = m
            found[count, 1] = at
            at += header
            size = words[at]
            if size < 0:  # the destinations of an earlier request of this message
                earlier = first - 1 - size
                if earlier >= count:
                    return -1 - m
                found[count, 2] = found[earlier, 2]
                found[count, 3] = found[earlier, 3]
                at += 1
            else:
                found[count, 2] = at + 1
                found[count, 3] = size
                at += 1 + _num_words(size)
            if at >= end or words[at] < 0:
                return -1 - m
            found[count, 4] = at + 1
            found[count, 5] = words[at]
            at += 1 + _num_words(words[at])
            if at > end:
                return -1 - m
            count += 1
    return count


@njit(nogil=True, cache=True)
def unpack_lists(words: I64, halves: I32, begins: I64, sizes: I64, out: I64) -> None:
    """Fill ``out`` with some lists of ids, one after the other.

    Args:
        words: int64, the messages.
        halves: int32, the same memory.
        begins: int64[n], where the lists begin in ``words``.
        sizes: int64[n], as in :data:`COLUMNS`.
        out: int64, as long as the lists together.
    """
    at = 0
    for i in range(len(begins)):
        begin = begins[i]
        count = sizes[i] >> 1
        if sizes[i] & 1:
            for j in range(count):
                out[at + j] = halves[2 * begin + j]
        else:
            for j in range(count):
                out[at + j] = words[begin + j]
        at += count


@njit(nogil=True, cache=True)
def place_runs(values: U8, bounds: I64, places: I64, out: U8) -> None:
    """Copy bytes ``bounds[i] .. bounds[i + 1]`` of ``values`` to where ``places[i]`` says, for each i."""
    for i in range(len(places)):
        begin, place = bounds[i], places[i]
        for j in range(bounds[i + 1] - begin):
            out[place + j] = values[begin + j]
