"""DGL's collators: what makes a minibatch of a list of ids, for :class:`DistDataLoader` and for loops of one's own."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from mpigraph.dataloading.edge_sampler import as_edge_prediction_sampler
from mpigraph.distributed.graph import DistGraph
from mpigraph.distributed.ids import as_ids
from mpigraph.errors import InvalidArgumentError

__all__ = ["EdgeCollator", "NodeCollator"]


class NodeCollator:
    """Makes ``(input_nodes, output_nodes, blocks)`` of node ids. Local; no communication: construction."""

    def __init__(self, g: DistGraph, nids: Any, graph_sampler: Any, gb_padding: int = 1) -> None:
        """Keep what to sample: int[n] ``nids`` of ``g``, by ``graph_sampler.sample_blocks``.

        ``gb_padding`` is accepted for DGL's scripts.
        """
        self.g, self.graph_sampler = g, graph_sampler
        self._ids = torch.from_numpy(as_ids(nids, "nids"))

    @property
    def dataset(self) -> torch.Tensor:
        """The ids to give to a loader."""
        return self._ids

    def collate(self, items: Any) -> Any:
        """Sample a minibatch of int[b] ids. Collective on the trainers when hosts are far; local when all are near."""
        return self.graph_sampler.sample_blocks(self.g, torch.from_numpy(as_ids(items, "nids")))


class EdgeCollator:
    """Makes what :class:`DistEdgeDataLoader` yields of edge ids. Local; no communication: construction."""

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
        """Keep what to sample: int[n] ``eids`` of ``g``; the rest as in :func:`.as_edge_prediction_sampler`.

        ``gb_padding`` is accepted for DGL's scripts.

        Raises:
            InvalidArgumentError: another graph to sample from (``g_sampling``), or bad arguments of the sampler.
        """
        if g_sampling is not None:
            raise InvalidArgumentError("g_sampling must be None: neighbours are sampled from the graph of the edges")
        self.g = g
        self.graph_sampler = as_edge_prediction_sampler(
            graph_sampler, exclude, reverse_eids, reverse_etypes, negative_sampler
        )
        self._ids = torch.from_numpy(as_ids(eids, "eids"))

    @property
    def dataset(self) -> torch.Tensor:
        """The ids to give to a loader."""
        return self._ids

    def collate(self, items: Any) -> Any:
        """Sample a minibatch of int[b] ids. Collective on the trainers when hosts are far; local when all are near."""
        return self.graph_sampler.sample(self.g, torch.from_numpy(as_ids(items, "eids")))
