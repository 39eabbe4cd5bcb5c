"""Minibatches that are the subgraphs of the nodes around their seeds."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch

from mpigraph.collective import WHEN_REMOTE, collective
from mpigraph.dataloading.fetcher import FeatureFetcher, Stages
from mpigraph.dataloading.loader import LoaderOptions
from mpigraph.dataloading.memory_sampling import sampled
from mpigraph.dataloading.sampler import Needs, NeighborSampler, Sampler
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.typed_ids import (
    EdgeIds,
    Fanout,
    FeatureName,
    Names,
    NodeIds,
    NodeTensors,
    by_ntype,
    unwrap_nodes,
)
from mpigraph.graphs.fields import EID, NID
from mpigraph.graphs.hetero import HeteroGraph

InducedSample: TypeAlias = tuple[NodeTensors, NodeTensors, HeteroGraph]
"""Nodes, seeds, and the subgraph of the nodes."""


class ShaDowKHopSampler(Sampler):
    """Samples neighbours hop by hop, and gives the subgraph of all nodes that it reaches (Zeng et al., "Decoupling the
    Depth and Scope of Graph Neural Networks", NeurIPS 2021): the depth of a model is then independent of the hops.

    The owners of the nodes get the list of all of them, in one more round than there are hops, and send the edges
    among them alone.

    Attributes:
        neighbors: samples the hops.
    """

    def __init__(
        self,
        fanouts: Sequence[Fanout],
        replace: bool = False,
        prob: FeatureName | None = None,
        prefetch_node_feats: Names = (),
        prefetch_edge_feats: Names = (),
        output_device: torch.device | str | None = None,
    ) -> None:
        """Describe the draw.

        Args:
            fanouts: most neighbours in each hop, that of the seeds last; each as in :class:`.NeighborSampler`.
            replace: with replacement.
            prob: name of an edge feature with weights or a mask, as there.
            prefetch_node_feats: names of node features that loaders gather for all nodes, or node type -> names.
            prefetch_edge_feats: names of edge features that loaders gather for all edges, or edge type -> names.
            output_device: accepted for DGL's scripts; the loader's ``device`` says where subgraphs go.

        Raises:
            InvalidArgumentError: a fanout is no integer >= -1.
        """
        self.neighbors = NeighborSampler(fanouts, prob=prob, replace=replace, return_eids=False)
        self.prefetch_node_feats = prefetch_node_feats or ()
        self.prefetch_edge_feats = prefetch_edge_feats or ()

    @property
    def needs(self) -> Needs:
        """See :class:`.Sampler`."""
        of_draw = self.neighbors.needs
        text = of_draw.description.replace(type(self.neighbors).__qualname__, type(self).__qualname__, 1)
        return replace(super().needs, weights=of_draw.weights, random=of_draw.random, description=text)

    @collective("trainers", WHEN_REMOTE)
    def sample(
        self, g: DistGraph | HeteroGraph, seed_nodes: NodeIds, exclude_eids: EdgeIds | None = None
    ) -> InducedSample:
        """Draw one minibatch.

        Args:
            g: the graph; also one in memory, where it is local.
            seed_nodes: int[n], each once; or node type -> int[n], which graphs with several node types need.
            exclude_eids: int[k], ids of edges that are neither drawn nor in the subgraph, or a dict by edge type.

        Returns:
            The nodes, seeds first, and the seeds (both by node type where the graph has several); and their subgraph,
            with the nodes in this order. ``ndata[NID]`` and ``edata[EID]`` are ids in ``g``.

        Raises:
            OutOfRangeError: a seed or an excluded edge does not exist. On every rank if hosts are remote.
            InvalidArgumentError: a seed is given twice. On every rank if hosts are remote.
        """
        return sampled(g).sample_induced(seed_nodes, self.neighbors.arguments, exclude_edges=exclude_eids)


def shadow_stages(
    g: DistGraph, nids: NodeIds, sampler: ShaDowKHopSampler, options: LoaderOptions, pin_memory: bool
) -> Stages[InducedSample]:
    """Return the stages of a loader of subgraphs, whose nodes and edges get the features."""
    needs = sampler.needs
    nodes = FeatureFetcher(g.nodes, pin_memory, options.features, options.labels, needs.node_feats)
    edges = FeatureFetcher(g.edges, pin_memory, needs.edge_feats)

    def announce(sample: InducedSample, batch: int) -> None:
        nodes.announce(_nodes_of(sample), batch)
        edges.announce(lambda relation: sample[2].edges[relation].data[EID], batch)

    def fetch(sample: InducedSample) -> InducedSample:
        graph = sample[2]
        nodes.fetch(_nodes_of(sample), lambda ntype: graph.nodes[ntype].data)
        edges.fetch(lambda relation: graph.edges[relation].data[EID], lambda relation: graph.edges[relation].data)
        return sample

    seeds = unwrap_nodes(g.schema, by_ntype(g.schema, nids, "nids"))
    return Stages(seeds, lambda chosen: sampler.sample(g, chosen.ids), fetch, announce, [nodes, edges])


def _nodes_of(sample: InducedSample) -> Callable[[str], torch.Tensor]:
    return lambda ntype: sample[2].nodes[ntype].data[NID]
