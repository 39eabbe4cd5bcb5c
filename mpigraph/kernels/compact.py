"""Renumber global ids to local positions, destinations first, by an open-addressing hash table with linear probing.

The table is kept across the hops of a minibatch, so the sources of one hop are the destinations of the next one with
the same numbers, and no sort and no ``unique`` is needed. It is kept across minibatches too, without being cleared:
positions go on counting from minibatch to minibatch, and an entry below the first position of this minibatch is free.
"""

from typing import Any

import numpy as np

from mpigraph.arrays import I32, I64, Array
from mpigraph.errors import OutOfRangeError
from mpigraph.kernels.cache import njit
from mpigraph.kernels.prefetch_hint import prefetch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # Knuth, TAOCP vol. 3, 6.4: multiplicative hashing by the golden ratio
_AHEAD = 16  # ids between the prefetch of a slot and its probe
_MAX_LOAD = 0.6  # largest load factor; above, linear probing makes long runs


@njit(nogil=True, cache=True, inline="always")
def slot_of(x: Any, bits: Any) -> Any:
    """Return the slot, of ``2**bits``, at which the probe for id ``x`` begins."""
    return np.int64((np.uint64(x) * _GOLDEN) >> np.uint64(64 - bits))


@njit(nogil=True, cache=True)
def _insert(
    table: I64,
    bits: int,
    shift: int,
    base: int,
    ids: Array,
    begin: int,
    listed: I64,
    count: int,
    out: I32,
) -> tuple[int, int]:
    """Look up ``ids[begin:]``, append the new ones to ``listed``, fill ``out`` with positions.

    A slot holds ``id << shift | base + position``, so that one load finds both. Stops where ``listed`` is full.

    Args:
        table: int64[2**bits], the slots.
        bits: of the size of the table.
        shift: bits of a slot that hold the position.
        base: added to the positions of this minibatch.
        ids: int32 or int64 [n].
        begin: index of the first id to look up.
        listed: int64[capacity], the ids by position.
        count: number of ids listed.
        out: int32[n], filled from ``begin`` on.

    Returns:
        The new count and the first index not done.
    """
    mask = len(table) - 1
    low = (np.int64(1) << shift) - 1
    n = len(ids)
    for i in range(begin, min(begin + _AHEAD, n)):  # those that the loop below does not prefetch
        prefetch(table, slot_of(ids[i], bits))
    for i in range(begin, n):
        if i + _AHEAD < n:
            prefetch(table, slot_of(ids[i + _AHEAD], bits))
        x = np.int64(ids[i])
        at = slot_of(x, bits)
        while True:
            word = table[at]
            position = (word & low) - base
            if position < 0:  # free: never used, or left by an earlier minibatch
                if count == len(listed):
                    return count, i
                table[at] = (x << shift) | (base + count)
                listed[count] = x
                position = np.int64(count)
                count += 1
                break
            if word >> shift == x:
                break
            at = (at + 1) & mask
        out[i] = position
    return count, n


@njit(nogil=True, cache=True)
def _insert_verbatim(table: I64, bits: int, shift: int, base: int, ids: I64) -> None:
    """Map ``ids[i]`` (int64[n]) to position i; a repeated id keeps its first. The others are as in :func:`_insert`."""
    mask = len(table) - 1
    low = (np.int64(1) << shift) - 1
    for i in range(len(ids)):
        at = slot_of(ids[i], bits)
        while (table[at] & low) >= base and table[at] >> shift != ids[i]:
            at = (at + 1) & mask
        if (table[at] & low) < base:
            table[at] = (ids[i] << shift) | (base + i)


class LocalIds:
    """A growing list of distinct global ids that knows the position of each; one serves all minibatches in turn.

    Attributes:
        count: number of ids listed so far.
    """

    def __init__(self, num_ids: int) -> None:
        """Make an empty list of ids in ``[0, num_ids)``."""
        self.count = 0
        # ids need so many bits of a slot that the rest, less the sign, is left for positions
        self._shift = 63 - max(num_ids - 1, 1).bit_length()
        self._allocate(64)

    def reset(self, seeds: I64) -> None:
        """Empty the list; add ``seeds`` (int64[n]) at positions 0..n-1, repeated ones included."""
        self._base += self.count  # frees all entries, since they now lie below it
        self.count = len(seeds)
        if self.count > len(self._listed):
            self._allocate(self.count)
        elif self._base + len(self._listed) >= 1 << self._shift:  # positions would overflow: begin again, cleared
            self._allocate(len(self._listed))
        self._listed[: self.count] = seeds
        _insert_verbatim(self._table, self._bits, self._shift, self._base, self.ids)

    @property
    def ids(self) -> I64:
        """The ids by position, int64[count]; a view, invalid after the next insert or reset."""
        return self._listed[: self.count]

    def insert(self, ids: Array, out: I32 | None = None) -> I32:
        """Return int32[n], the position of each of ``ids`` ([n]), appending those not yet listed.

        Args:
            ids: int32 or int64 [n].
            out: int32[n] to fill; a new array if None.
        """
        if out is None:
            out = np.empty(len(ids), np.int32)
        done = 0
        while True:
            where = (self._table, self._bits, self._shift, self._base)
            self.count, done = _insert(*where, ids, done, self._listed, self.count, out)
            if done == len(ids):
                return out
            # the list is full: double it, keep all positions, and go on with the first id not done
            listed = self.ids
            self._allocate(2 * len(self._listed))
            self._listed[: self.count] = listed
            _insert_verbatim(self._table, self._bits, self._shift, self._base, self.ids)

    def _allocate(self, capacity: int) -> None:
        """Make an empty table for at least ``capacity`` ids, and a list of as many ids as its load factor allows."""
        self._bits = max(6, int(capacity / _MAX_LOAD).bit_length())
        self._table = np.zeros(1 << self._bits, np.int64)
        self._listed = np.empty(int(_MAX_LOAD * (1 << self._bits)), np.int64)
        self._base = 1  # above the zeros of a new table
        if len(self._listed) >= 1 << self._shift:
            bits = 63 - self._shift
            raise OutOfRangeError(f"a minibatch of {capacity} nodes of a type with more than 2**{bits} nodes")
