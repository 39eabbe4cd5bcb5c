"""Memory for large results that is used again once the result is garbage.

The system maps a fresh array of megabytes, clears it page by page, and unmaps it when it dies; that costs more than
gathering rows into it. A pool keeps such memory. Its arrays are ordinary ones.
"""

import weakref
from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import U8, Array

_SMALL = 1 << 20  # bytes below which numpy's own allocator is as good
_KEPT = 4  # free arrays kept of each size: two batches ahead, one in use, one being made
_LARGE = 1 << 28  # bytes above which memory goes back to the system
_PAGE = 1 << 12  # bytes


class RowPool:
    """Returns arrays, to any thread."""

    def __init__(self, kept: int = _KEPT, largest: int = _LARGE, one_size: bool = False) -> None:
        """Begin empty.

        Args:
            kept: free arrays kept of each size.
            largest: bytes of an array that is kept.
            one_size: keep arrays of one size, that of the largest one while others are not much smaller: for one user,
                whose arrays are few and alike.
        """
        self._largest = largest
        self._one_size = one_size
        self._size = 0
        # deque.append and pop are atomic: an array may die at any time, in any thread
        self._free: defaultdict[int, deque[U8]] = defaultdict(lambda: deque(maxlen=kept))

    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
        """Return an array with undefined contents, as ``np.empty`` does."""
        dtype = np.dtype(dtype)
        nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        if not _SMALL <= nbytes <= self._largest:
            return np.empty(shape, dtype)
        step = max(_PAGE, (1 << nbytes.bit_length()) >> 3)
        size = -(-nbytes // step) * step
        if self._one_size:
            if not self._size // 2 <= size <= self._size:
                self._size = size
                self._free.clear()
            size = self._size
        free = self._free[size]
        try:
            memory = free.pop()
        except IndexError:
            memory = np.empty(size + _PAGE, np.uint8)
            memory = memory[-memory.ctypes.data % _PAGE :][:size]  # disks are written straight from a page's beginning
        # the base of a view is the array at the end of the chain; the memoryview makes that this one
        root = np.frombuffer(memoryview(memory), np.uint8, nbytes)  # type: ignore[arg-type]
        weakref.finalize(root, free.append, memory).atexit = False
        return root.view(dtype).reshape(shape)
