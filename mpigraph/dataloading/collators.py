"""DGL's collators: what makes a minibatch of a list of ids, for :class:`DistDataLoader` and for loops of one's own."""

from typing import cast

from mpigraph.collective import WHEN_FAR, collective
from mpigraph.dataloading.edge_sampler import PairSample, as_edge_prediction_sampler
from mpigraph.dataloading.exclusion import Exclude, ReverseEids
from mpigraph.dataloading.foreign_options import check_foreign
from mpigraph.dataloading.negative_sampler import NegativesOf
from mpigraph.dataloading.sampler import BlockSampler
from mpigraph.dataloading.seeds import Item, as_seed_tensors
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.typed_ids import (
    Blocks,
    ByEdgeType,
    EdgeIds,
    EdgeTensors,
    NodeIds,
    NodeTensors,
    by_ntype,
    by_relation,
    unwrap_edges,
    unwrap_nodes,
)
from mpigraph.graphs.fields import EdgeType

__all__ = ["EdgeCollator", "NodeCollator"]


class NodeCollator:
    """Makes ``(input_nodes, output_nodes, blocks)`` of node ids."""

    def __init__(self, g: DistGraph, nids: NodeIds, graph_sampler: BlockSampler, gb_padding: int = 1) -> None:
        """Keep what to sample: ``nids`` of ``g``, by ``graph_sampler.sample_blocks``.

        Args:
            g: the graph.
            nids: int[n]; or node type -> int[n], which graphs with several node types need.
            graph_sampler: has ``sample_blocks(g, seeds)``.
            gb_padding: accepted for DGL's scripts.

        Raises:
            NodeTypeError: a node type does not exist, or there are several and ``nids`` are not by type.
            InvalidArgumentError: the ids are not integers in one dimension.
        """
        self.g = g
        self.graph_sampler = graph_sampler
        self._ids = unwrap_nodes(g.schema, by_ntype(g.schema, nids, "nids"))

    @property
    def dataset(self) -> NodeTensors:
        """The ids to give to a loader: int64[n], or by type where the graph has several."""
        return self._ids

    @collective("trainers", WHEN_FAR)
    def collate(self, items: NodeIds | list[Item]) -> Blocks:
        """Sample a minibatch of int[b] ids, of ``(node type, id)`` pairs or of ids by node type."""
        return self.graph_sampler.sample_blocks(self.g, cast(NodeTensors, as_seed_tensors(items, "nids")))


class EdgeCollator:
    """Makes what :class:`DistEdgeDataLoader` yields of edge ids.

    Args:
        g: the graph.
        eids: int[n]; or edge type -> int[n], which graphs with several edge types need.
        graph_sampler: the ``sampler`` of :func:`.as_edge_prediction_sampler`, where the other options are described.
        g_sampling: only None.
        gb_padding: accepted for DGL's scripts.

    Raises:
        EdgeTypeError: an edge type does not exist, or there are several and ``eids`` are not by type.
        InvalidArgumentError: another graph to sample from (``g_sampling``), ids that are not integers in one
            dimension, or bad arguments of the sampler.
    """

    def __init__(
        self,
        g: DistGraph,
        eids: EdgeIds,
        graph_sampler: BlockSampler,
        g_sampling: None = None,
        exclude: Exclude = None,
        reverse_eids: ReverseEids = None,
        reverse_etypes: ByEdgeType[EdgeType] | None = None,
        negative_sampler: NegativesOf | None = None,
        gb_padding: int = 1,
    ) -> None:
        check_foreign(type(self), {"g_sampling": g_sampling})
        self.g = g
        self.graph_sampler = as_edge_prediction_sampler(
            graph_sampler, exclude, reverse_eids, reverse_etypes, negative_sampler
        )
        self._ids = unwrap_edges(g.schema, by_relation(g.schema, eids, "eids"))

    @property
    def dataset(self) -> EdgeTensors:
        """The ids to give to a loader: int64[n], or by relation where the graph has several."""
        return self._ids

    @collective("trainers", WHEN_FAR)
    def collate(self, items: EdgeIds | list[Item]) -> PairSample:
        """Sample a minibatch of int[b] ids, of ``(edge type, id)`` pairs or of ids by edge type."""
        return self.graph_sampler.sample(self.g, cast(EdgeTensors, as_seed_tensors(items, "eids")))
