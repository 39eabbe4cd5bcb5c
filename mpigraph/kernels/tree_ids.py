"""Renumber the nodes of several trees: a node has a position in each tree that it is in.

As with :class:`.LocalIds`, a hop's sources are the next hop's destinations, with the same positions. But a tree is
small: its nodes and what is drawn for it fit a table in the caches of a core, which is used for one tree after the
other. A table of all trees would miss them at nearly every edge, since few edges of a tree lead to nodes that it has.
"""

from typing import Any

import numpy as np
from numba import njit

from mpigraph.arrays import I32, I64, Array
from mpigraph.kernels.compact import slot_of

__all__ = ["TreeIds"]

_FREE = np.int64(-1)
_SPARSE = 4  # slots of a tree's table for each of its nodes, at least: probes then end at once, mostly


@njit(nogil=True, cache=True)
def _by_tree(trees: I64, num_trees: int) -> tuple[I64, I64]:
    """int64[num_trees + 1] and int64[n]: where the members of each tree are listed, and these, ascending."""
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
def _probe(table: Any, bits: Any, x: Any) -> Any:
    """Return the slot, of the first ``2**bits``, that has ``x``, or the free one where it belongs."""
    at = slot_of(x, bits)
    while table[at] != _FREE and table[at] != x:
        at = (at + 1) & ((np.int64(1) << bits) - 1)
    return at


@njit(nogil=True, cache=True)
def _insert(
    ids: Array, offsets: I64, trees: I64, num_trees: int, listed: I64, tree_of: I64, count: int, out: I32
) -> int:
    """Look up drawn nodes in the trees of those that they were drawn for, and append the new ones.

    Args:
        ids: int32 or int64 [e], the drawn nodes.
        offsets: int64[n + 1], where those of each node are.
        trees: int64[n], the tree of each node.
        num_trees: how many trees there are.
        listed: int64[at least count + e], ids by position.
        tree_of: int64[at least count + e], trees by position.
        count: how many are listed.
        out: int32[e], filled with positions.

    Returns:
        The new count.
    """
    bounds, members = _by_tree(trees, num_trees)
    known_bounds, known = _by_tree(tree_of[:count], num_trees)
    table, places = np.empty(0, np.int64), np.empty(0, np.int32)  # ids and their positions, of the tree in progress
    for tree in range(num_trees):
        drawn = 0
        for i in members[bounds[tree] : bounds[tree + 1]]:
            drawn += offsets[i + 1] - offsets[i]
        if drawn == 0:
            continue
        most = drawn + known_bounds[tree + 1] - known_bounds[tree]
        bits = 3
        while np.int64(1) << bits < _SPARSE * most:
            bits += 1
        size = np.int64(1) << bits
        if size > len(table):
            table, places = np.empty(size, np.int64), np.empty(size, np.int32)
        table[:size] = _FREE
        for position in known[known_bounds[tree] : known_bounds[tree + 1]]:
            at = _probe(table, bits, listed[position])
            if table[at] == _FREE:  # else it was listed before
                table[at] = listed[position]
                places[at] = position
        for i in members[bounds[tree] : bounds[tree + 1]]:
            for e in range(offsets[i], offsets[i + 1]):
                x = np.int64(ids[e])
                at = _probe(table, bits, x)
                if table[at] == _FREE:
                    table[at] = x
                    places[at] = -1 - e  # new with edge e; its position is not known before all trees were
                out[e] = places[at]
    for i in range(len(trees)):  # positions go by the order of the edges
        for e in range(offsets[i], offsets[i + 1]):
            first = -1 - out[e]
            if first == e:
                listed[count] = ids[e]
                tree_of[count] = trees[i]
                out[e] = count
                count += 1
            elif first >= 0:
                out[e] = out[first]
    return count


class TreeIds:
    """A growing list of nodes in trees, which knows the position of each; one serves all minibatches in turn.

    Attributes:
        count: how many nodes are listed, of all trees.
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
