"""Renumber global ids to local positions, destinations first: one open-addressing map per minibatch.

The map is kept across the hops of a minibatch, so the sources of one hop are the destinations of the next one with
the same numbers, and no sort and no ``unique`` is needed.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from mpigraph.kernels.rng import mix64

__all__ = ["LocalIds"]

_I64 = npt.NDArray[np.int64]
_I32 = npt.NDArray[np.int32]
_EMPTY = np.int64(-1)


@njit(nogil=True, cache=True)
def _insert(keys: _I64, slots: _I32, ids: npt.NDArray[Any], listed: _I64, count: int, out: _I32) -> int:
    """Look up each id, append the new ones to ``listed``, fill ``out`` with positions; return the new count."""
    mask = np.uint64(len(keys) - 1)
    for i in range(len(ids)):
        x = np.int64(ids[i])
        at = mix64(np.uint64(x)) & mask
        while keys[at] != x:
            if keys[at] == _EMPTY:
                keys[at] = x
                slots[at] = count
                listed[count] = x
                count += 1
                break
            at = (at + np.uint64(1)) & mask
        out[i] = slots[at]
    return count


@njit(nogil=True, cache=True)
def _insert_verbatim(keys: _I64, slots: _I32, ids: npt.NDArray[Any], first: int) -> None:
    """Map ``ids[i]`` to ``first + i``; a repeated id keeps its first position."""
    mask = np.uint64(len(keys) - 1)
    for i in range(len(ids)):
        x = np.int64(ids[i])
        at = mix64(np.uint64(x)) & mask
        while keys[at] != _EMPTY and keys[at] != x:
            at = (at + np.uint64(1)) & mask
        if keys[at] == _EMPTY:
            keys[at] = x
            slots[at] = first + i


class LocalIds:
    """A growing list of global ids with the position of each one.

    Attributes:
        count: number of ids listed so far.

    Local; no communication.
    """

    def __init__(self, seeds: npt.NDArray[np.int64]) -> None:
        """List ``seeds`` (int64[n], all >= 0) at positions 0..n-1, repeated ones included."""
        self.count = len(seeds)
        self._listed = np.array(seeds, np.int64)
        self._rehash(max(64, 2 * len(seeds)))

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """int64[count]: the ids in the order of their positions (a view; invalid after the next insert)."""
        return self._listed[: self.count]

    def insert(self, ids: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Return int32[n], the position of each of ``ids`` ([n]), appending those not yet listed."""
        room = self.count + len(ids)
        if 2 * room > len(self._keys):
            self._rehash(room)
        if room > len(self._listed):
            grown = np.empty(2 * room, np.int64)
            grown[: self.count] = self.ids
            self._listed = grown
        out = np.empty(len(ids), np.int32)
        self.count = _insert(self._keys, self._slots, ids, self._listed, self.count, out)
        return out

    def _rehash(self, room: int) -> None:
        """Make the table large enough for ``room`` ids at half load."""
        size = 1 << max(6, int(2 * room - 1).bit_length())
        self._keys = np.full(size, _EMPTY)
        self._slots = np.empty(size, np.int32)
        _insert_verbatim(self._keys, self._slots, self.ids, 0)
