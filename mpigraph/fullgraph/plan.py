"""The pieces of a graph, the same ones on any number of ranks; sums along a tree over them; gradients that go home.

Piece k of M has the nodes between k/M and (k+1)/M of the parts laid end to end, as hosts do. A layer runs on one piece
after the other, so no kernel sees a shape that depends on the number of ranks: the last bits of a row of a product may
depend on the number of rows. The sources of a piece are its own nodes and then, by their ids, the others.

Sums over pieces follow a binary tree, which halves a range of pieces in each step. A trainer adds up the largest
subtrees that it has all pieces of, its *roots*, and sends one row for each. The owner of a row goes on from there. So
the additions are the same ones on any number of ranks, and few sums exist at a time. The sum of no row is -0.0, which
changes no bit of what it is added to.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from mpigraph.arrays import I64
from mpigraph.collective import collective
from mpigraph.graphs.block import Block
from mpigraph.inference.neighbourhoods import Ranges
from mpigraph.metadata.schema import Relation
from mpigraph.mpi.messages import exchange_rows
from mpigraph.mpi.world import Trainers, World

T = TypeVar("T")
Node = tuple[int, int]
"""A node of the tree: the pieces from the first number up to, not with, the second."""
Key = str | Relation
"""A node type; or a relation, whose edges have rows."""


def halves(node: Node) -> tuple[Node, Node]:
    """Return the two nodes below a node of several pieces."""
    middle = sum(node) // 2
    return (node[0], middle), (middle, node[1])


def climb(node: Node, leaf: Callable[[Node], T | None], add: Callable[[Node, T, T], T]) -> T:
    """Return the sum at a node; ``leaf`` returns a sum where it is known, else None."""
    known = leaf(node)
    if known is not None:
        return known
    left, right = halves(node)
    return add(node, climb(left, leaf, add), climb(right, leaf, add))


class Tree:
    """The pieces and their trainers.

    Attributes:
        top: the node of all pieces.
        owners: int64[pieces], the trainer of each.
        roots: the roots of each trainer, ascending; ``all_roots`` those of one after the other.
    """

    def __init__(self, world: World, pieces: int) -> None:
        """Give each piece to a trainer of the node where it begins; these share a node's pieces evenly, in order."""
        self.top = 0, pieces
        nodes = world.nodes_of_hosts[np.arange(pieces) * len(world.hosts) // pieces]
        self.owners = np.empty(pieces, np.int64)
        for node in np.unique(nodes):
            here, trainers = np.flatnonzero(nodes == node), np.flatnonzero(world.nodes_of_trainers == node)
            self.owners[here] = trainers[np.arange(len(here)) * len(trainers) // len(here)]
        self.roots = [list(self._roots(self.top, trainer)) for trainer in range(len(world.trainer_ranks))]
        self.all_roots = [root for roots in self.roots for root in roots]

    def _roots(self, node: Node, trainer: int) -> Iterator[Node]:
        own = self.owners[slice(*node)] == trainer
        if own.all():
            yield node
        elif own.any():
            for half in halves(node):
                yield from self._roots(half, trainer)


def places_of(places: I64) -> torch.Tensor | slice:
    """Return places (int64[n]) as an index of tensors: a slice, which copies nothing, if they are consecutive."""
    if len(places) and not np.array_equal(places, np.arange(places[0], places[0] + len(places))):
        return torch.from_numpy(places)
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0)


class RowSums:
    """Adds up rows by id along the tree; ``ids`` are int64[n] at each root."""

    def __init__(self, leaves: Mapping[Node, I64], roots: list[Node], in_place: bool) -> None:
        """Plan the sums of ``leaves``, ids by node, at some roots; ``in_place``: the memory of leaves may be reused."""
        self._plan: dict[Node, tuple[int, int | None, list[torch.Tensor]]] = {}
        self._in_place = in_place
        self.ids = {root: self._join(root, leaves) for root in roots}

    def _join(self, node: Node, leaves: Mapping[Node, I64]) -> I64:
        if node in leaves:
            return leaves[node]
        below = [self._join(half, leaves) for half in halves(node)]
        ids = np.unique(np.concatenate(below))
        complete = [i for i in (0, 1) if self._in_place and np.array_equal(below[i], ids)]
        places = [torch.from_numpy(np.searchsorted(ids, one)) for one in below]
        self._plan[node] = len(ids), complete[0] if complete else None, places
        return ids

    def add(self, node: Node, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Return the rows at a node, of those at the two below."""
        count, complete, places = self._plan[node]
        rows = [left, right]
        total = left.new_full((count, *left.shape[1:]), -0.0) if complete is None else rows[complete]
        for i in (0, 1):
            if i != complete:
                total.index_add_(0, places[i], rows[i])  # each place once: one addition for a number
        return total


class Gradients:
    """The way home of the gradients of a node type's rows, summed along the tree.

    Attributes:
        below: the sums over own pieces.
        away: index, of the rows at the own roots, laid end to end, those of other trainers' nodes, by owner; ``going``
            int64[trainers] of them to each, and ``coming`` rows come from each.
    """

    @collective("comm")
    def __init__(self, comm: Trainers, tree: Tree, ranges: Ranges, own: I64, sources: Mapping[Node, I64]) -> None:
        """Tell the owners which sums will come: ``sources``, ids by own piece; ``own`` are ascending."""
        me, self._top, self._count, owner = comm.rank, tree.top, len(own), ranges.owner
        self.below = RowSums(sources, tree.roots[me], in_place=False)
        rows = [np.stack([ids, *(np.full(len(ids), end) for end in root)], 1) for root, ids in self.below.ids.items()]
        every = np.concatenate([np.empty((0, 3), np.int64), *rows])
        owners = owner(every[:, 0])
        away = np.argsort(owners, kind="stable")
        away = away[owners[away] != me]
        self.away, self.going = places_of(away), np.bincount(owners[away], minlength=comm.size)
        read, self.coming = exchange_rows(comm, every[away], self.going)
        self._kept, self._arrived, leaves = dict[Node, Any](), dict[Node, Any](), dict[Node, I64]()
        for root in tree.all_roots:
            if root in self.below.ids:
                ids, place = self.below.ids[root], self._kept
                here = np.flatnonzero(owner(ids) == me)
            else:
                ids, place = read[:, 0], self._arrived
                here = np.flatnonzero((read[:, 1:] == root).all(1))
            place[root], leaves[root] = places_of(here), ids[here]
        self.above = RowSums(leaves, [tree.top], in_place=True)
        home = self.above.ids[tree.top]
        self._home = None if np.array_equal(home, own) else torch.from_numpy(np.searchsorted(own, home))

    def sum(self, at_roots: Mapping[Node, torch.Tensor], came: torch.Tensor) -> torch.Tensor:
        """Return those of the own rows, of the rows at this trainer's roots, and of those that came of the others'."""

        def leaf(node: Node) -> torch.Tensor | None:
            if node in self._kept:
                return at_roots[node][self._kept[node]].clone()
            return came[self._arrived[node]] if node in self._arrived else None

        total = climb(self._top, leaf, self.above.add)
        if self._home is None:
            return total
        return total.new_zeros((self._count, *total.shape[1:])).index_copy_(0, self._home, total)


class Piece(NamedTuple):
    """An own piece.

    Attributes:
        node: its place in the tree.
        block: all in-edges of its nodes.
        own: by node type and relation, its part of this trainer's nodes and of their in-edges.
        at: by node type, int64[n] the places of its sources in the table; None if they are the table.
    """

    node: Node
    block: Block
    own: dict[Key, slice]
    at: dict[str, torch.Tensor | None]
