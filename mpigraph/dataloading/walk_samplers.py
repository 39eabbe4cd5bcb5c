"""Samplers whose neighbours are the nodes that random walks visit most often."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from mpigraph.arrays import I64
from mpigraph.collective import WHEN_REMOTE, collective
from mpigraph.dataloading.memory_sampling import sampled, take_features
from mpigraph.dataloading.random_walks import random_walk
from mpigraph.dataloading.sampler import BlockSampler, Needs
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.typed_ids import Blocks, EdgeIds, Names, NodeIds, by_ntype, id_array, unwrap_nodes
from mpigraph.errors import EdgeTypeError, InvalidArgumentError, MPIGraphError, check_integer, check_text
from mpigraph.graphs.block import Blocks as BlockList
from mpigraph.graphs.block import to_block
from mpigraph.graphs.fields import EID, NID, EdgeType
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.metadata.schema import Relation, Schema

_MOST = 2**20


class RandomWalkNeighborSampler(BlockSampler):
    """Takes the nodes that random walks from a node visit most often as its neighbours (Ying et al., "Graph
    Convolutional Neural Networks for Web-Scale Recommender Systems", KDD 2018), on graphs of any types.

    A walk follows the metapath several times and may end after each traversal; each end of a traversal is a visit, also
    of the node itself. Of nodes with equally many visits those of higher id are taken, as in DGL.

    A call gives the graph of seeds and neighbours, as in DGL. Loaders of nodes make blocks of it, one for each layer.
    """

    @collective("trainers", "on a DistGraph")
    def __init__(
        self,
        G: HeteroGraph | DistGraph,
        num_traversals: int,
        termination_prob: float,
        num_random_walks: int,
        num_neighbors: int,
        metapath: Sequence[EdgeType] | None = None,
        weight_column: str = "weights",
        *,
        num_layers: int = 1,
        prefetch_node_feats: Names = (),
        prefetch_labels: Names = (),
    ) -> None:
        """Describe the walks; the hosts of a DistGraph prepare them (:meth:`.DistGraph.prepare_walks`).

        Args:
            G: the graph.
            num_traversals: most traversals of the metapath in a walk.
            termination_prob: the probability that a walk ends after a traversal.
            num_random_walks: walks from each node.
            num_neighbors: most neighbours of a node.
            metapath: the edge types to follow, from a node type back to itself; by default the only edge type.
            weight_column: name of the edge feature with the numbers of visits.
            num_layers: blocks of a minibatch.
            prefetch_node_feats: names of node features that loaders gather for the input nodes.
            prefetch_labels: names of node features that loaders gather for the output nodes.

        Raises:
            InvalidArgumentError: a number is out of range, or ``metapath`` is no list.
            EdgeTypeError: an edge type does not exist, ``metapath`` is no path from a node type to itself, or it is
                missing on a graph with several edge types. On every trainer.
            SharedMemoryError: a node's shared memory cannot hold the out-edges; on every rank.
        """
        graph = sampled(G)
        with graph.session.world.together("making a sampler of random walks"):
            self.num_traversals = check_integer("num_traversals", num_traversals, 1, _MOST)
            self.num_random_walks = check_integer("num_random_walks", num_random_walks, 1, _MOST)
            self.num_neighbors = check_integer("num_neighbors", num_neighbors, 1, _MOST)
            self.num_layers = check_integer("num_layers", num_layers, 1, _MOST)
            self.weight_column = check_text("weight_column", weight_column)
            if not 0 <= termination_prob <= 1:
                raise InvalidArgumentError(f"termination_prob must be in [0, 1] (got {termination_prob!r})")
            self.metapath = _closed_path(graph.schema, metapath)
        self.G = G
        self.termination_prob = float(termination_prob)
        self.ntype = self.metapath[0][0]
        self.prefetch_node_feats = prefetch_node_feats
        self.prefetch_labels = prefetch_labels
        graph.prepare_walks(self.metapath)

    @property
    def needs(self) -> Needs:
        """See :class:`.Sampler`."""
        numbers = (self.num_traversals, self.termination_prob, self.num_random_walks, self.num_neighbors)
        text = f"{type(self).__qualname__}{(*numbers, self.metapath, self.num_layers)}"
        return replace(super().needs, description=text)

    @collective("trainers", WHEN_REMOTE)
    def __call__(self, seed_nodes: NodeIds) -> HeteroGraph:
        """Return the graph of all nodes of the walks' type, with an edge from each neighbour to its seed.

        Args:
            seed_nodes: int[n]; or node type -> int[n].

        Returns:
            A graph with the one edge type ``(ntype, "_E", ntype)``. Edges are by seed, then by falling number of
            visits, which is their feature ``weight_column``, int64.

        Raises:
            OutOfRangeError: a seed does not exist. On every rank if hosts are remote.
            InvalidArgumentError: seeds of another type than that of the walks, or ids that are not integers.
        """
        try:
            seeds = self._seeds(seed_nodes)
        except MPIGraphError as error:
            sampled(self.G).refuse_walk(error)
        return self._frontier(self.G, seeds, [self.ntype])

    @collective("trainers", WHEN_REMOTE)
    def sample_blocks(
        self, g: HeteroGraph | DistGraph, seed_nodes: NodeIds, exclude_eids: EdgeIds | None = None
    ) -> Blocks:
        """Draw the blocks of one minibatch: ``num_layers`` of them, each of the neighbours of the one behind it.

        Args:
            g: the graph of the sampler.
            seed_nodes: int[n], each once; or node type -> int[n].
            exclude_eids: only None.

        Raises:
            OutOfRangeError: a seed does not exist. On every rank if hosts are remote.
            InvalidArgumentError: seeds of another type than that of the walks, or edges to exclude.
        """
        graph = sampled(g)
        schema = graph.schema
        try:
            if exclude_eids is not None:
                raise InvalidArgumentError("exclude_eids must be None: random walks exclude no edges")
            seeds = inputs = self._seeds(seed_nodes)
            if len(np.unique(seeds)) < len(seeds):
                raise InvalidArgumentError("seed_nodes must be given once each")
        except MPIGraphError as error:
            graph.refuse_walk(error)
        blocks = BlockList()
        for _ in range(self.num_layers):
            frontier = self._frontier(g, inputs, schema.ntypes)
            block = to_block(frontier, {self.ntype: torch.from_numpy(inputs)})
            del block.edata[EID]  # places in the frontier
            blocks.insert(0, block)
            inputs = block.srcnodes[self.ntype].data[NID].numpy()
        if isinstance(g, HeteroGraph):
            for block in blocks:
                take_features(block, g)
        number = schema.ntype_id(self.ntype)
        return unwrap_nodes(schema, {number: inputs}), unwrap_nodes(schema, {number: seeds}), blocks

    def _seeds(self, seed_nodes: NodeIds) -> I64:
        if not isinstance(seed_nodes, Mapping):
            return id_array(seed_nodes, "seed_nodes")
        schema = sampled(self.G).schema
        by_type = by_ntype(schema, seed_nodes, "seed_nodes")
        strange = [schema.ntypes[t] for t, ids in by_type.items() if len(ids) and schema.ntypes[t] != self.ntype]
        if strange:
            raise InvalidArgumentError(f"seed_nodes must be of type {self.ntype!r} (got some of {strange})")
        return by_type.get(schema.ntype_id(self.ntype), np.empty(0, np.int64))

    def _frontier(self, g: HeteroGraph | DistGraph, seeds: I64, ntypes: Sequence[str]) -> HeteroGraph:
        """Return the neighbours of seeds as a graph with nodes of some types."""
        hops, count = len(self.metapath), self.num_traversals
        ends = np.zeros(hops * count)
        ends[hops::hops] = self.termination_prob
        roots = np.repeat(seeds, self.num_random_walks)
        traces, _ = random_walk(g, roots, metapath=list(self.metapath) * count, restart_prob=torch.from_numpy(ends))
        visits = traces.numpy()[:, hops::hops].reshape(len(seeds), self.num_random_walks * count)
        src, place, counts = most_visited(visits, self.num_neighbors)
        relation = (self.ntype, "_E", self.ntype)
        schema = Schema(tuple(ntypes), (relation,))
        edges = {relation: (torch.from_numpy(src), torch.from_numpy(seeds[place]))}
        frontier = HeteroGraph(schema, edges, {ntype: g.num_nodes(ntype) for ntype in ntypes})
        frontier.edata[self.weight_column] = torch.from_numpy(counts)
        return frontier


class PinSAGESampler(RandomWalkNeighborSampler):
    """Takes the nodes of a type that are visited most often by walks to another type and back (Ying et al., "Graph
    Convolutional Neural Networks for Web-Scale Recommender Systems", KDD 2018).
    """

    @collective("trainers", "on a DistGraph")
    def __init__(
        self,
        G: HeteroGraph | DistGraph,
        ntype: str,
        other_type: str,
        num_traversals: int,
        termination_prob: float,
        num_random_walks: int,
        num_neighbors: int,
        weight_column: str = "weights",
        **options: Any,
    ) -> None:
        """Describe the walks.

        Args:
            G: the graph.
            ntype: the node type of seeds and neighbours.
            other_type: the node type between them. There must be one edge type from each of the two to the other.
            num_traversals: as in :class:`RandomWalkNeighborSampler`, as the others.
            termination_prob: likewise.
            num_random_walks: likewise.
            num_neighbors: likewise.
            weight_column: likewise.
            options: likewise: its arguments given by name alone.

        Raises:
            NodeTypeError: a node type does not exist.
            EdgeTypeError: there is not one edge type in each direction.
            InvalidArgumentError, SharedMemoryError: as there. All on every trainer.
        """
        graph = sampled(G)
        with graph.session.world.together("making a sampler of random walks"):
            ends = [graph.schema.ntypes[graph.schema.ntype_id(name)] for name in (ntype, other_type)]
            metapath = [_only_relation(graph.schema, src, dst) for src, dst in (ends, ends[::-1])]
        numbers = (num_traversals, termination_prob, num_random_walks, num_neighbors)
        super().__init__(G, *numbers, metapath, weight_column, **options)


def most_visited(visits: I64, count: int) -> tuple[I64, I64, I64]:
    """Return the nodes visited most often, at most ``count`` of a place, of equally many those of higher id.

    ``visits`` is int64[n, visits], nodes that the walks from n places visit, -1 where a walk had ended. The result are
    the nodes, their places, and the numbers of visits, int64[m] each, by place and falling number.
    """
    places = np.repeat(np.arange(len(visits)), visits.shape[1])[visits.reshape(-1) >= 0]
    pairs = np.stack([places, visits[visits >= 0]], axis=1)
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    starts = np.flatnonzero(np.append(True, (np.diff(pairs[order], axis=0) != 0).any(axis=1))[: len(order)])
    place, node = pairs[order[starts]].T
    times = np.diff(np.append(starts, len(order)))
    order = np.lexsort((-node, -times, place))
    place, node, times = place[order], node[order], times[order]
    begins = np.searchsorted(place, np.arange(len(visits)))
    kept = np.arange(len(place)) - begins[place] < count
    return node[kept], place[kept], times[kept]


def _closed_path(schema: Schema, metapath: Sequence[EdgeType] | None) -> list[Relation]:
    if metapath is not None and (isinstance(metapath, str) or not metapath):
        raise InvalidArgumentError(f"metapath must be a list of one or more edge types (got {metapath!r})")
    path = [schema.to_canonical(etype) for etype in metapath or [None]]
    if any(before[2] != after[0] for before, after in pairwise([*path, path[0]])):
        raise EdgeTypeError(f"metapath must lead from a node type back to it, step by step (got {path})")
    return path


def _only_relation(schema: Schema, src: str, dst: str) -> Relation:
    between = [relation for relation in schema.relations if (relation[0], relation[2]) == (src, dst)]
    if len(between) != 1:
        raise EdgeTypeError(
            f"there must be one edge type from {src!r} to {dst!r} (got {between}): RandomWalkNeighborSampler takes a "
            "metapath"
        )
    return between[0]
