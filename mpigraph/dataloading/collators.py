"""DGL's collators: what makes a minibatch of a list of ids, for :class:`DistDataLoader` and for loops of one's own."""

from collections.abc import Callable, Mapping
from typing import Any

from mpigraph.dataloading.edge_sampler import as_edge_prediction_sampler
from mpigraph.dataloading.edges import as_given as edges_as_given
from mpigraph.dataloading.edges import by_relation
from mpigraph.dataloading.loader import as_tensors, checked_ids
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.sampling_args import as_given, by_type
from mpigraph.errors import InvalidArgumentError

__all__ = ["EdgeCollator", "NodeCollator"]


class NodeCollator:
    """Makes ``(input_nodes, output_nodes, blocks)`` of node ids."""

    def __init__(self, g: DistGraph, nids: Any, graph_sampler: Any, gb_padding: int = 1) -> None:
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
        self.g, self.graph_sampler = g, graph_sampler
        self._ids = as_given(g.schema, by_type(g.schema, nids, "nids"))

    @property
    def dataset(self) -> Any:
        """The ids to give to a loader: int64[n], or by node type where the graph has several."""
        return self._ids

    def collate(self, items: Any) -> Any:
        """Sample a minibatch of int[b] ids, of ``(node type, id)`` pairs or of ids by node type.

        Collective on the trainers when hosts are far; local when all are near.
        """
        return self.graph_sampler.sample_blocks(self.g, _seeds_of(items, "nids"))


class EdgeCollator:
    """Makes what :class:`DistEdgeDataLoader` yields of edge ids."""

    def __init__(
        self,
        g: DistGraph,
        eids: Any,
        graph_sampler: Any,
        g_sampling: None = None,
        exclude: Any = None,
        reverse_eids: Any = None,
        reverse_etypes: Mapping[Any, Any] | None = None,
        negative_sampler: Callable[[Any, Any], Any] | None = None,
        gb_padding: int = 1,
    ) -> None:
        """Keep what to sample: ``eids`` of ``g``.

        Args:
            g: the graph.
            eids: int[n]; or edge type -> int[n], which graphs with several edge types need.
            graph_sampler: the ``sampler`` of :func:`.as_edge_prediction_sampler`.
            g_sampling: only None.
            exclude: as there.
            reverse_eids: as there.
            reverse_etypes: as there.
            negative_sampler: as there.
            gb_padding: accepted for DGL's scripts.

        Raises:
            EdgeTypeError: an edge type does not exist, or there are several and ``eids`` are not by type.
            InvalidArgumentError: another graph to sample from (``g_sampling``), ids that are not integers in one
                dimension, or bad arguments of the sampler.
        """
        if g_sampling is not None:
            raise InvalidArgumentError("g_sampling must be None: neighbours are sampled from the graph of the edges")
        self.g = g
        self.graph_sampler = as_edge_prediction_sampler(
            graph_sampler, exclude, reverse_eids, reverse_etypes, negative_sampler
        )
        self._ids = edges_as_given(g.schema, by_relation(g.schema, eids, "eids"))

    @property
    def dataset(self) -> Any:
        """The ids to give to a loader: int64[n], or by relation where the graph has several."""
        return self._ids

    def collate(self, items: Any) -> Any:
        """Sample a minibatch of int[b] ids, of ``(edge type, id)`` pairs or of ids by edge type.

        Collective on the trainers when hosts are far; local when all are near.
        """
        return self.graph_sampler.sample(self.g, _seeds_of(items, "eids"))


def _seeds_of(items: Any, what: str) -> Any:
    """Seeds as samplers take them: int64[b], or by type with the types that occur."""
    if isinstance(items, list) and items and isinstance(items[0], tuple):
        by_kind: dict[Any, list[int]] = {}
        for kind, one in items:
            by_kind.setdefault(kind, []).append(one)
        items = by_kind
    return as_tensors(checked_ids(items, what))
