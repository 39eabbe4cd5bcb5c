"""Renumber global ids to local positions, destinations first: in one table, or in one for each tree.

The table is kept across the hops of a minibatch, so the sources of one hop are the destinations of the next one with
the same numbers, and no sort and no ``unique`` is needed. It is kept across minibatches too, without being cleared:
positions go on counting from minibatch to minibatch, and an entry below the first position of this minibatch is free.
"""

from typing import Any

import numpy as np

from mpigraph.arrays import I32, I64, Array
from mpigraph.errors import OutOfRangeError
from mpigraph.kernels.cache import njit
from mpigraph.kernels.csr import by_key
from mpigraph.kernels.intrinsics import prefetch
from mpigraph.kernels.rng import slot_of

_AHEAD = 16  # ids between the prefetch of a slot and its probe
_MAX_LOAD = 0.6  # largest load factor; above, linear probing makes long runs


@njit()
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


@njit()
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


# Renumber the nodes of several trees: a node has a position in each tree that it is in.
#
# As with :class:`.LocalIds`, a hop's sources are the next hop's destinations, with the same positions. But a tree is
# small: its nodes and draws fit a table in the caches of a core, which serves one tree after the other. A table of all
# trees would miss the caches at nearly every edge, since few edges of a tree lead to nodes that it has already.

_ONE = np.uint64(1)  # unsigned: numba does not test such indices for being below 0
_SPARSE = 8  # slots of a tree's table for each of its nodes, at least: probes then end at once, mostly


@njit(inline="always")
def _number_of(table: Any, bits: Any, stamp: Any, own: Any, count: Any, x: Any) -> Any:
    """Return the local id of node ``x`` among the ``count`` nodes ``own`` of its tree; add it as ``count`` if it is
    new.

    A slot has ``stamp`` plus the number of a node. A slot below ``stamp`` is free: an earlier tree left it.
    """
    at = np.uint64(slot_of(x, bits))
    while True:
        number = np.int64(table[at]) - stamp
        if number < 0:
            table[at] = stamp + count
            own[count] = x
            return count
        if own[number] == x:
            return number
        at = (at + _ONE) & np.uint64(len(table) - 1)


@njit()
def _look_up(
    ids: Array, offsets: I64, trees: I64, num_trees: int, listed: I64, tree_of: I64, count: int, out: I32
) -> None:
    """Fill the position of each drawn node in its tree, or ``-1 - e`` if it is new, and first drawn with edge ``e``.

    Args:
        ids: int32 or int64 [e], the drawn nodes.
        offsets: int64[n + 1], the bounds of each node's.
        trees: int64[n], the tree of each node.
        num_trees: number of trees.
        listed: int64[at least count + e], ids by position.
        tree_of: int64[at least count + e], trees by position.
        count: how many are listed.
        out: int32[e], filled with positions.
    """
    bounds, members = by_key(trees, num_trees)
    known_bounds, known = by_key(tree_of[:count], num_trees)
    own = np.empty(0, np.int64)  # the nodes of the tree in progress
    places = np.empty(0, np.int32)  # their positions, or -1 - edge
    table = np.empty(0, np.int32)
    bits = 0
    stamp = 1
    for tree in range(num_trees):
        drawn = 0
        for i in members[bounds[tree] : bounds[tree + 1]]:
            drawn += offsets[i + 1] - offsets[i]
        if drawn == 0:
            continue
        most = drawn + known_bounds[tree + 1] - known_bounds[tree]
        if most > len(own):
            own = np.empty(most, np.int64)
            places = np.empty(most, np.int32)
            while np.int64(1) << bits < _SPARSE * most:
                bits += 1
            table = np.zeros(np.int64(1) << bits, np.int32)
            stamp = 1
        size = 0
        for position in known[known_bounds[tree] : known_bounds[tree + 1]]:
            number = _number_of(table, bits, stamp, own, size, listed[position])
            if number == size:  # else it was listed before
                places[size] = position
                size += 1
        for i in members[bounds[tree] : bounds[tree + 1]]:
            for e in range(np.uint64(offsets[i]), np.uint64(offsets[i + 1])):
                number = _number_of(table, bits, stamp, own, size, np.int64(ids[e]))
                if number == size:
                    places[size] = -1 - np.int64(e)
                    size += 1
                out[e] = places[number]
        stamp += size


@njit()
def _append(ids: Array, offsets: I64, trees: I64, listed: I64, tree_of: I64, count: int, out: I32) -> int:
    """Give new nodes positions in the order of the edges; return the new count. Arguments as of :func:`_look_up`."""
    end = np.uint64(count)
    for i in range(len(trees)):
        for e in range(np.uint64(offsets[i]), np.uint64(offsets[i + 1])):
            place = np.int64(out[e])
            first = np.uint64(-1 - place)
            # no branch, which the CPU would often predict wrongly: a node that is not new is overwritten by the next
            listed[end] = ids[e]
            tree_of[end] = trees[i]
            same = out[e if place >= 0 else first]
            out[e] = np.int32(end) if first == e else same
            end += np.uint64(first == e)
    return int(end)


class TreeIds:
    """A growing list of nodes in trees, which knows the position of each; one serves all minibatches in turn.

    Attributes:
        count: number of nodes listed, of all trees.
    """

    def __init__(self) -> None:
        """Make an empty list, of no tree."""
        self.count = 0
        self._num_trees = 0
        self._listed = np.empty(0, np.int64)
        self._trees = np.empty(0, np.int64)

    def reset(self, seeds: I64, trees: I64, num_trees: int) -> None:
        """Forget all; list ``seeds`` (int64[n]) in their trees (int64[n], of ``num_trees``), at positions 0..n-1."""
        self.count = 0
        self._num_trees = num_trees
        self._reserve(len(seeds))
        self._listed[: len(seeds)] = seeds
        self._trees[: len(seeds)] = trees
        self.count = len(seeds)

    def insert(self, ids: Array, offsets: I64, trees: I64) -> I32:
        """Return int32[e], the position of each drawn node in its tree, appending those not yet listed.

        Args:
            ids: int32 or int64 [e], the drawn nodes.
            offsets: int64[n + 1], where those of each of n nodes are.
            trees: int64[n], the trees of these nodes.
        """
        out = np.empty(len(ids), np.int32)
        self._reserve(self.count + len(ids))
        where = (self._listed, self._trees, self.count)
        _look_up(ids, offsets, trees, self._num_trees, *where, out)
        self.count = _append(ids, offsets, trees, *where, out)
        return out

    def listed(self, first: int = 0) -> tuple[I64, I64]:
        """int64[count - first] each: the ids in the order of their positions, and their trees.

        They are views, which the next reset makes invalid.
        """
        return self._listed[first : self.count], self._trees[first : self.count]

    def _reserve(self, count: int) -> None:
        """Make the lists long enough for so many nodes."""
        if count > len(self._listed):
            most = count + count // 2
            for name in ("_listed", "_trees"):
                longer = np.empty(most, np.int64)
                longer[: self.count] = getattr(self, name)[: self.count]
                setattr(self, name, longer)
