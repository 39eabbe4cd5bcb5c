"""The pieces of a graph, the same ones on any number of ranks; the rows that travel between them; sums along a tree.

Piece k of M holds the nodes between k/M and (k+1)/M of the parts laid end to end, as hosts do. A layer runs on one piece
after the other, so no kernel sees a shape that depends on the number of ranks: the last bits of a row of a product may
depend on the number of rows. The sources of a piece are its own nodes and then, by their ids, the others.

Numbers of all pieces are added up along a binary tree over the pieces, which halves a range of pieces in each step. A
trainer adds up the largest subtrees that it has all pieces of (its *roots*) and sends one row for each. The owner of a
row goes on from there, so the additions are the same ones on any number of ranks. The sum of no row is -0.0, which
changes no bit of what it is added to.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from mpigraph.arrays import I64
from mpigraph.collective import WHEN_REMOTE, collective
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.sampled_graph import hop_blocks
from mpigraph.distgraph.sampling_arguments import SamplingArguments
from mpigraph.graphs.block import Block
from mpigraph.metadata.schema import Relation
from mpigraph.mpi.messages import exchange_rows
from mpigraph.mpi.world import Trainers, World
from mpigraph.sampling.minibatch import RandomContext, sample_hops

T = TypeVar("T")
Node = tuple[int, int]
"""A node of the tree: the pieces from the first number up to, not with, the second."""


def halves(node: Node) -> tuple[Node, Node]:
    """Return the two nodes below one of several pieces."""
    middle = sum(node) // 2
    return (node[0], middle), (middle, node[1])


def climb(node: Node, leaf: Callable[[Node], T | None], add: Callable[[Node, T, T], T]) -> T:
    """Return the sum at a node; ``leaf`` returns it where it is known, else None. Few sums exist at a time."""
    known = leaf(node)
    if known is not None:
        return known
    left, right = halves(node)
    return add(node, climb(left, leaf, add), climb(right, leaf, add))


class Pieces:
    """The pieces of a graph and their trainers.

    Attributes:
        count: the number of pieces.
        owners: int64[count], the trainer of each.
        roots: by trainer, the nodes of the tree that it adds up by itself, ascending.
    """

    def __init__(self, world: World, count: int) -> None:
        """Give each piece to a trainer of the node where it begins; these share a node's pieces evenly, in order."""
        self.count = count
        nodes = world.nodes_of_hosts[np.arange(count) * len(world.hosts) // count]
        self.owners = np.empty(count, np.int64)
        for node in np.unique(nodes):
            here, trainers = np.flatnonzero(nodes == node), np.flatnonzero(world.nodes_of_trainers == node)
            self.owners[here] = trainers[np.arange(len(here)) * len(trainers) // len(here)]
        self.roots = [list(self._roots(trainer, (0, count))) for trainer in range(len(world.trainer_ranks))]

    def _roots(self, trainer: int, node: Node) -> Iterable[Node]:
        own = self.owners[slice(*node)] == trainer
        if own.all():
            yield node
        elif own.any():
            for half in halves(node):
                yield from self._roots(trainer, half)


class RowSums:
    """Adds up rows by id along the tree.

    Attributes:
        ids: int64[n] of the rows at each root.
    """

    def __init__(self, leaves: Mapping[Node, I64], roots: Iterable[Node], in_place: bool) -> None:
        """Plan the sums of ``leaves``, ids by node, at ``roots``; ``in_place``: rows may be added to those of a leaf."""
        self._places: dict[Node, tuple[int, int | None, list[torch.Tensor]]] = {}
        self._in_place = in_place
        self.ids = {root: self._join(root, leaves) for root in roots}

    def _join(self, node: Node, leaves: Mapping[Node, I64]) -> I64:
        if node in leaves:
            return leaves[node]
        below = [self._join(half, leaves) for half in halves(node)]
        ids = np.unique(np.concatenate(below))
        whole = [i for i, one in enumerate(below) if self._in_place and np.array_equal(one, ids)]
        places = [torch.from_numpy(np.searchsorted(ids, one)) for one in below]
        self._places[node] = len(ids), whole[0] if whole else None, places
        return ids

    def add(self, node: Node, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Return the rows at a node, of those at the two below."""
        rows, (count, whole, places) = [left, right], self._places[node]
        total = left.new_full((count, *left.shape[1:]), -0.0) if whole is None else rows[whole]
        for i, one in enumerate(rows):
            if i != whole:
                total.index_add_(0, places[i], one)  # each place once: the order of additions is that of the tree
        return total


class Halo:
    """Rows of one node type: those that trainers read of each other, and the way of their gradients home.

    A trainer's *table* has its own rows, by id, and then those that it reads of other trainers, by owner and id.

    Attributes:
        ids: int64[num_halo], of the rows of others in the table.
        num_own: own rows in the table.
        num_halo: rows of others in the table.
        at: by own piece, int64[n] the places of its sources in the table; None if they are the table.
        send: int64[n], the own rows that others read, by reader; ``going`` int64[trainers] of them to each.
        coming: int64[trainers], the rows that come from each.
        away: int64[n], of the rows at this trainer's roots, laid end to end, those of others; by owner.
    """

    @collective("comm")
    def __init__(
        self, comm: Trainers, pieces: Pieces, owner: Callable[[I64], I64], own: I64, sources: Mapping[Node, I64]
    ) -> None:
        """Tell the owners what this trainer's pieces read: ``sources``, the ids by piece. ``own`` are ascending."""
        me, size = comm.rank, comm.size
        none = np.empty(0, np.int64)
        self.num_own = len(own)
        self.below = RowSums(sources, pieces.roots[me], in_place=False)
        halo = np.setdiff1d(np.concatenate([none, *sources.values()]), own)
        halo = halo[np.argsort(owner(halo), kind="stable")]
        self.ids, self.num_halo, self.coming = _places(halo), len(halo), np.bincount(owner(halo), minlength=size)
        table = np.concatenate([own, halo])
        order = np.argsort(table)
        self.at = {
            node: None if np.array_equal(ids, table) else _places(order[np.searchsorted(table, ids, sorter=order)])
            for node, ids in sources.items()
        }
        rows = [np.stack([ids, *(np.full(len(ids), end) for end in root)], 1) for root, ids in self.below.ids.items()]
        every = np.concatenate([np.empty((0, 3), np.int64), *rows])
        owners = owner(every[:, 0])
        away = np.argsort(owners, kind="stable")
        away = away[owners[away] != me]
        self.away, self.back_going = _places(away), np.bincount(owners[away], minlength=size)
        read, self.back_coming = exchange_rows(comm, every[away], self.back_going)
        readers = [np.unique(part[:, 0]) for part in np.split(read, np.cumsum(self.back_coming)[:-1])]
        self.send = _places(np.searchsorted(own, np.concatenate(readers)))
        self.going = np.array([len(ids) for ids in readers])
        self.kept, self.arrived, leaves = {}, {}, {}
        for root in (node for nodes in pieces.roots for node in nodes):
            if root in self.below.ids:
                ids = self.below.ids[root]
                self.kept[root] = here = np.flatnonzero(owner(ids) == me)
                leaves[root] = ids[here]
            else:
                here = np.flatnonzero((read[:, 1:] == root).all(1))  # consecutive
                self.arrived[root] = slice(here[0], here[-1] + 1) if len(here) else slice(0)
                leaves[root] = read[here, 0]
        self.kept = {root: _places(here) for root, here in self.kept.items()}
        self._everything = 0, pieces.count
        self.above = RowSums(leaves, [self._everything], in_place=True)
        (ids,) = self.above.ids.values()
        self._home = None if np.array_equal(ids, own) else _places(np.searchsorted(own, ids))

    def gradients(self, at_roots: Mapping[Node, torch.Tensor], came: torch.Tensor) -> torch.Tensor:
        """Return the gradients of the own rows: the sums of this trainer's roots, and the rows that came of others."""

        def leaf(node: Node) -> torch.Tensor | None:
            if node in self.kept:
                return at_roots[node].index_select(0, self.kept[node])
            return came[self.arrived[node]] if node in self.arrived else None

        total = climb(self._everything, leaf, self.above.add)
        if self._home is None:
            return total
        return total.new_zeros((self.num_own, *total.shape[1:])).index_copy_(0, self._home, total)


def _places(places: I64) -> torch.Tensor:
    return torch.from_numpy(places)


class Piece(NamedTuple):
    """An own piece.

    Attributes:
        node: its place in the tree.
        block: all in-edges of its nodes.
        own: by node type and relation, its rows among those of this trainer: own nodes, and their in-edges.
    """

    node: Node
    block: Block
    own: dict[str | Relation, slice]


@collective("trainers", WHEN_REMOTE)
def whole_block(g: DistGraph, seeds: Mapping[int, I64]) -> tuple[Block, dict[str, I64]]:
    """Return the block of all in-edges of some nodes (int64[n] by type id), and the ids of its sources by type."""
    plan = replace(g.plan(SamplingArguments([-1]), {}), seeds=seeds)
    with g.session.sampling() as service:
        sampled = sample_hops(service, g.loaded, plan, RandomContext(g.session.store.seed, 0))
    (hop,) = sampled.hops
    for t, ids in enumerate(sampled.ids):
        first = hop.num_dst[t]
        order = np.argsort(ids[first:])
        sampled.ids[t] = np.append(ids[:first], ids[first:][order])
        place = np.arange(len(ids), dtype=np.int32)
        place[first + order] = np.arange(first, len(ids))
        for r, csc in hop.edges.items():
            if g.schema.ends(r)[0] == t:
                hop.edges[r] = replace(csc, indices=place[csc.indices])
    (block,) = hop_blocks(sampled)
    read, sources = g.loaded.topology.out_degrees, dict(zip(g.ntypes, sampled.ids, strict=True))
    block.graph_out_degrees = cache(lambda r: torch.from_numpy(read(sources[r[0]], g.schema.relation_id(r))))
    return block, sources
