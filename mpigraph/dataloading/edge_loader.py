"""The loader of minibatches of edges: edges as training examples, with negatives, and the blocks of their end nodes."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from mpigraph.dataloading.batches import BlockFeatures, for_output
from mpigraph.dataloading.edge_sampler import as_edge_prediction_sampler
from mpigraph.dataloading.edges import as_given, by_relation
from mpigraph.dataloading.loader import SampledDataLoader
from mpigraph.dataloading.pyg_batches import pyg_link_batches
from mpigraph.dataloading.sampler import Names
from mpigraph.distgraph.features import named_tensors
from mpigraph.distgraph.graph import DistGraph
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.fields import EID, NID

__all__ = ["DistEdgeDataLoader"]


class DistEdgeDataLoader(SampledDataLoader):
    """Minibatches of edges: yields ``(input_nodes, pair_graph, blocks)``.

    With a negative sampler: ``(input_nodes, pair_graph, negative_pair_graph, blocks)``. The pair graphs have the seed
    edges and the negatives, and share their nodes: those of ``blocks[-1].dstdata[NID]``, in this order. Where the graph
    has several node types, input nodes are by type.

    With ``output="pyg"``: what PyG's models take.

    Collective on the trainers: construction and :meth:`close`.
    """

    def __init__(
        self,
        g: DistGraph,
        eids: Any,
        graph_sampler: Any,
        device: torch.device | str | None = None,
        *,
        negative_sampler: Callable[[Any, Any], Any] | None = None,
        exclude: Any = None,
        reverse_eids: Any = None,
        reverse_etypes: Mapping[Any, Any] | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        features: Names = (),
        labels: Names = (),
        output: str = "dgl",
        num_prefetch: int = 2,
        seed: int | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        queue_size: int | None = None,
    ) -> None:
        """Plan the minibatches.

        Args:
            g: the graph.
            eids: int[n], this rank's seed edges, for example of :func:`.edge_split`; or edge type -> int[n], which
                graphs with several edge types need, and whose minibatches mix the types.
            graph_sampler: has ``sample_blocks(g, seeds, exclude_eids)``, for example a ``NeighborSampler``; or what
                :func:`mpigraph.dataloading.as_edge_prediction_sampler` returns, which then knows the next four.
            device: where to put graphs and blocks; the CPU by default. "cuda" is the caller's current GPU.
            negative_sampler: ``(g, eids) -> (src, dst)``, for example ``negative_sampler.Uniform(10)``.
            exclude: which edges are removed before neighbours are drawn; see :func:`.as_edge_prediction_sampler`.
            reverse_eids: the reverse edge of each edge, for ``exclude="reverse_id"`` and ``"reverse_types"``; a
                DistTensor is read batch by batch.
            reverse_etypes: edge type -> edge type of the reverse edges, for ``exclude="reverse_types"``.
            batch_size: most seed edges of a minibatch.
            shuffle: another order in each epoch.
            drop_last: leave out edges that do not fill a batch.
            features: names of node features to gather for the input nodes, into ``blocks[0].srcdata``; besides the
                block sampler's ``prefetch_node_feats``. Their memory is used again once nothing refers to them.
            labels: names of edge features to gather for the seed edges, into ``pair_graph.edata``; besides the edge
                sampler's ``prefetch_labels``.
            output: "dgl"; or "pyg": what PyG's ``LinkNeighborLoader`` yields, see :mod:`.pyg_batches`.
                Features are then of all its nodes, and the sampler's fanouts the reverse of ``num_neighbors``.
            num_prefetch: how many minibatches to be ahead.
            seed: of order and draws; the job's by default.
            num_workers: accepted for DGL's scripts; see ``num_prefetch``.
            pin_memory: accepted for DGL's scripts.
            queue_size: DGL's name for ``num_prefetch``.

        Raises:
            InvalidArgumentError: an argument is out of range, ``reverse_eids`` or ``reverse_etypes`` is missing, or
                a sampler of edges is given together with what it knows; or PyG is not installed or has no place for
                what is wanted.
            EdgeTypeError: an edge type does not exist, or there are several and ``eids`` are not by type.
            FieldNameError: a feature, or the sampler's edge weights, do not exist.
            CollectiveError: other trainers are in another call; on every trainer.
            GraphDataError: an edge weight is negative, infinite or NaN; on every rank.
        """
        how = (exclude, reverse_eids, reverse_etypes, negative_sampler)
        if hasattr(graph_sampler, "sample_blocks"):
            graph_sampler = as_edge_prediction_sampler(graph_sampler, *how)
        elif not hasattr(graph_sampler, "sample"):
            raise InvalidArgumentError(
                f"graph_sampler must have sample_blocks, or be a sampler of edges (got {type(graph_sampler).__name__})"
            )
        elif any(option is not None for option in how):
            raise InvalidArgumentError(
                "give exclude, reverse_eids, reverse_etypes and negative_sampler to as_edge_prediction_sampler"
            )
        block_sampler = getattr(graph_sampler, "sampler", None)
        ids, make = for_output(_MAKERS, output)(g, eids, graph_sampler, features, labels)
        super().__init__(
            g,
            ids,
            block_sampler,
            make,
            device,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            queue_size=queue_size,
            num_prefetch=num_prefetch,
            seed=seed,
        )


def _pair_batches(
    g: DistGraph, eids: Any, sampler: Any, features: Names, labels: Names
) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """What the loader iterates over, and what makes pair graphs and blocks of some of it."""
    rows = BlockFeatures(g, getattr(sampler, "sampler", None), features, ())
    edge_rows = named_tensors(g.edges, labels, getattr(sampler, "prefetch_labels", ()))

    def make(seeds: Any) -> tuple[Any, ...]:
        sample = sampler.sample(g, seeds)
        input_nodes, pair_graph, blocks = sample[0], sample[1], sample[-1]
        rows.gather(blocks, input_nodes, {ntype: pair_graph.nodes[ntype].data[NID] for ntype in g.ntypes})
        for (relation, name), tensor in edge_rows.items():
            edges = pair_graph.edges[relation].data
            edges[name] = tensor[edges[EID]]
        return tuple(sample)

    return as_given(g.schema, by_relation(g.schema, eids, "eids")), make


_MAKERS = {"dgl": _pair_batches, "pyg": pyg_link_batches}
