"""Sampling requests of many ranks at once: find them in their words, and lay out the answers.

``sampling/protocol.py`` defines the words; here are the loops over requests.
"""

from typing import Any

from numba import njit

from mpigraph.arrays import I32, I64, U8
from mpigraph.kernels.memcopy import copy_bytes

COLUMNS = 5
"""Columns of :func:`find_requests` before the words of the header: message; begin and size of the destinations; begin
and size of the second list. A size is twice the number of ids, plus one if a word holds two."""


@njit(nogil=True, cache=True, inline="always")
def _num_words(size: Any) -> Any:
    count = size >> 1
    return (count + 1) >> 1 if size & 1 else count


@njit(nogil=True, cache=True)
def find_requests(words: I64, bounds: I64, header: int, requests: I64) -> int:
    """Find the requests in some messages.

    Args:
        words: int64[n], the messages one after the other.
        bounds: int64[messages + 1], where they begin.
        header: number of words of a request before its two lists.
        requests: int64[capacity, COLUMNS + header], filled; ``len(words) // (header + 2)`` rows are enough.

    Returns:
        The number of requests; or ``-1 - m`` if message m is malformed.
    """
    count = 0
    for m in range(len(bounds) - 1):
        first, at, end = count, bounds[m], bounds[m + 1]
        while at < end:
            if end - at < header + 2:
                return -1 - m
            requests[count, 0] = m
            for j in range(header):
                requests[count, COLUMNS + j] = words[at + j]
            at += header
            size = words[at]
            if size < 0:  # the destinations of an earlier request of this message
                earlier = first - 1 - size
                if earlier >= count:
                    return -1 - m
                requests[count, 1] = requests[earlier, 1]
                requests[count, 2] = requests[earlier, 2]
                at += 1
            else:
                requests[count, 1] = at + 1
                requests[count, 2] = size
                at += 1 + _num_words(size)
            if at >= end or words[at] < 0:
                return -1 - m
            requests[count, 3] = at + 1
            requests[count, 4] = words[at]
            at += 1 + _num_words(words[at])
            if at > end:
                return -1 - m
            count += 1
    return count


@njit(nogil=True, cache=True)
def unpack_lists(words: I64, halves: I32, begins: I64, sizes: I64, out: I64) -> None:
    """Unpack lists of ids into ``out``, one after the other.

    Args:
        words: int64[n], the messages.
        halves: int32[2 n], the same memory.
        begins: int64[n], begin of each list in ``words``.
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
    """Lay out the arrays of answers, each at a multiple of eight bytes.

    Args:
        message_of: int64[n], the message of each request, not falling.
        head: bytes before the answer to a message.
        sizes: int64[n, arrays], bytes of each array of the answer to each request.
        places: int64[n, arrays], filled with its first byte.
        ends: int64[messages], filled with the end of the answer to each message.
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
