"""Renumber the nodes of several trees: a node has a position in each tree that it is in.

As with :class:`.LocalIds`, a hop's sources are the next hop's destinations, with the same positions. But a tree is
small: its nodes and draws fit a table in the caches of a core, which serves one tree after the other. A table of all
trees would miss the caches at nearly every edge, since few edges of a tree lead to nodes that it has already.
"""

from typing import Any

import numpy as np

from mpigraph.arrays import I32, I64, Array
from mpigraph.kernels.cache import njit
from mpigraph.kernels.compact import slot_of

_ONE = np.uint64(1)  # unsigned: numba does not test such indices for being below 0
_SPARSE = 8  # slots of a tree's table for each of its nodes, at least: probes then end at once, mostly


@njit(nogil=True, cache=True)
def _by_tree(trees: I64, num_trees: int) -> tuple[I64, I64]:
    """Return the bounds of each tree, int64[num_trees + 1], in the members of all, int64[n], ascending."""
    bounds = np.zeros(num_trees + 1, np.int64)
    for tree in trees:
        bounds[tree + 1] += 1
    for tree in range(num_trees):
        bounds[tree + 1] += bounds[tree]
    members, at = np.empty(len(trees), np.int64), bounds[:-1].copy()
    for i in range(len(trees)):
        members[at[trees[i]]] = i
        at[trees[i]] += 1
    return bounds, members


@njit(nogil=True, cache=True, inline="always")
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


@njit(nogil=True, cache=True)
def _look_up(
    ids: Array, offsets: I64, trees: I64, num_trees: int, listed: I64, tree_of: I64, count: int, out: I32
) -> None:
    """Fill the position of each drawn node in its tree, or ``-1 - e`` if it is new, and first drawn with edge ``e``.

    Arguments as of :func:`_insert`.
    """
    bounds, members = _by_tree(trees, num_trees)
    known_bounds, known = _by_tree(tree_of[:count], num_trees)
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


@njit(nogil=True, cache=True)
def _append(ids: Array, offsets: I64, trees: I64, listed: I64, tree_of: I64, count: int, out: I32) -> int:
    """Give new nodes positions in the order of the edges; return the new count. Arguments as of :func:`_insert`."""
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


@njit(nogil=True, cache=True)
def _insert(
    ids: Array, offsets: I64, trees: I64, num_trees: int, listed: I64, tree_of: I64, count: int, out: I32
) -> int:
    """Look up drawn nodes in the trees of those that they were drawn for, and append the new ones.

    Args:
        ids: int32 or int64 [e], the drawn nodes.
        offsets: int64[n + 1], the bounds of each node's.
        trees: int64[n], the tree of each node.
        num_trees: number of trees.
        listed: int64[at least count + e], ids by position.
        tree_of: int64[at least count + e], trees by position.
        count: how many are listed.
        out: int32[e], filled with positions.

    Returns:
        The new count.
    """
    _look_up(ids, offsets, trees, num_trees, listed, tree_of, count, out)
    return _append(ids, offsets, trees, listed, tree_of, count, out)


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
        self.count = _insert(ids, offsets, trees, self._num_trees, *where, out)
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
