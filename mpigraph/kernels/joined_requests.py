"""Sampling requests of many ranks at once: found in their words, and their answers put together from arrays of all.

What the words mean is the affair of ``sampling/protocol.py``; here are the loops over requests.
"""

from typing import Any

from numba import njit

from mpigraph.arrays import I32, I64, U8
from mpigraph.kernels.memcopy import copy_bytes

__all__ = ["COLUMNS", "find_requests", "lay_out", "place_runs", "run_sizes", "unpack_lists"]

COLUMNS = 5
"""What :func:`find_requests` fills before the words of the header: message; where the destinations begin, and their
size; where the second list begins, and its size. A size is twice the number of ids, plus one if a word holds two."""


@njit(nogil=True, cache=True, inline="always")
def _num_words(size: Any) -> Any:
    count = size >> 1
    return (count + 1) >> 1 if size & 1 else count


@njit(nogil=True, cache=True)
def find_requests(words: I64, bounds: I64, header: int, found: I64) -> int:
    """Find the requests in some messages.

    Args:
        words: int64[n], the messages one after the other.
        bounds: int64[messages + 1], where they begin.
        header: how many words a request begins with, before its two lists.
        found: int64[requests, COLUMNS + header], filled; ``len(words) // (header + 2)`` rows are enough.

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
            for j in range(header):
                found[count, COLUMNS + j] = words[at + j]
            at += header
            size = words[at]
            if size < 0:  # the destinations of an earlier request of this message
                earlier = first - 1 - size
                if earlier >= count:
                    return -1 - m
                found[count, 1] = found[earlier, 1]
                found[count, 2] = found[earlier, 2]
                at += 1
            else:
                found[count, 1] = at + 1
                found[count, 2] = size
                at += 1 + _num_words(size)
            if at >= end or words[at] < 0:
                return -1 - m
            found[count, 3] = at + 1
            found[count, 4] = words[at]
            at += 1 + _num_words(words[at])
            if at > end:
                return -1 - m
            count += 1
    return count


@njit(nogil=True, cache=True)
def unpack_lists(words: I64, halves: I32, begins: I64, sizes: I64, out: I64) -> None:
    """Fill ``out`` with some lists of ids, one after the other.

    Args:
        words: int64[n], the messages.
        halves: int32[2 n], the same memory.
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
def lay_out(message_of: I64, head: int, sizes: I64, places: I64, ends: I64) -> None:
    """Find where the arrays of answers go, each at a multiple of eight bytes.

    Args:
        message_of: int64[n], the message of each request, not falling.
        head: bytes before the answer to a message.
        sizes: int64[n, arrays], bytes of each array of the answer to each request.
        places: int64[n, arrays], filled with where it begins.
        ends: int64[messages], filled with where the answer to each message ends.
    """
    at = i = 0
    for m in range(len(ends)):
        at += head
        while i < len(message_of) and message_of[i] == m:
            for k in range(sizes.shape[1]):
                places[i, k] = at
                at += (sizes[i, k] + 7) & -8
            i += 1
        ends[m] = at


@njit(nogil=True, cache=True)
def run_sizes(bounds: I64, itemsize: int, numbers: I64, sizes: I64) -> None:
    """``sizes[numbers[i]]`` becomes the bytes of elements ``bounds[i] .. bounds[i + 1]`` of an array."""
    for i in range(len(numbers)):
        sizes[numbers[i]] = (bounds[i + 1] - bounds[i]) * itemsize


@njit(nogil=True, cache=True)
def place_runs(values: U8, bounds: I64, itemsize: int, numbers: I64, places: I64, out: U8) -> None:
    """Copy elements ``bounds[i] .. bounds[i + 1]`` of ``values`` to byte ``places[numbers[i]]`` of ``out``."""
    for i in range(len(numbers)):
        copy_bytes(out, places[numbers[i]], values, bounds[i] * itemsize, (bounds[i + 1] - bounds[i]) * itemsize)
