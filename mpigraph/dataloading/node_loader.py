"""The loader of minibatches of nodes: seeds, and the blocks that a sampler makes of them."""

from collections.abc import Callable
from typing import Any, cast

import torch

from mpigraph.collective import WHEN_REMOTE, collective
from mpigraph.dataloading.fetcher import BlockFetcher, Stages
from mpigraph.dataloading.loader import LoaderOptions, SampledDataLoader
from mpigraph.dataloading.pyg_batches import pyg_node_stages
from mpigraph.dataloading.sampler import BlockSampler, Sampler, has_method, needs_of
from mpigraph.dataloading.seed_times import check_input_time
from mpigraph.dataloading.seeds import Chosen, Item, TypedIds, as_seed_tensors
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.typed_ids import Blocks, Names, NodeIds, NodeTensors, by_ntype, unwrap_nodes
from mpigraph.errors import InvalidArgumentError


class DistNodeDataLoader(SampledDataLoader):
    """Minibatches of nodes: yields ``(input_nodes, output_nodes, blocks)``, or what PyG's models take.

    Where the graph has several node types, input and output nodes are by type: input nodes with every type, output
    nodes with the types of the minibatch's seeds alone.

    Args:
        g: the graph.
        nids: int[n], this rank's seed nodes; or node type -> int[n], which graphs with several node types need, and
            whose minibatches mix the types.
        graph_sampler: has ``sample_blocks(g, seeds)``, for example a ``NeighborSampler``.
        device: where to put all of a minibatch, the CPU by default; "cuda" is the caller's current GPU. Copies to a
            GPU run on a stream of their own, for minibatches ahead too, which take memory there. The consumer's
            current stream waits for its minibatch's, the consumer does not.
        batch_size, shuffle, drop_last, num_prefetch, queue_size, seed: as in :class:`.DistDataLoader`.
        features: names of node features to gather for the input nodes, into ``blocks[0].srcdata``; besides the
            sampler's ``prefetch_node_feats``. A name is for all node types that have it; or node type -> names.
            Their memory is used again once nothing refers to them.
        labels: names of node features to gather for the output nodes, into ``blocks[-1].dstdata``; besides the
            sampler's ``prefetch_labels``.
        output: "dgl"; or "pyg": what PyG's ``NeighborLoader`` yields, see :mod:`.pyg_batches`. Features
            and labels are then of all its nodes, and the sampler's fanouts the reverse of ``num_neighbors``.
        input_time: int[n], the time of each of ``nids``, in their form; for a sampler with ``time_attr``. By
            default their own, where nodes have times.
        cache: memory on each node for copies of rows of ``features`` (and of the sampler's) that other nodes hold,
            shared by its trainers: a size for all of them, such as "2GiB"; "auto" for a quarter of what is free; or
            None. The minibatches are the same.
        lookahead: how many minibatches are sampled ahead, so that it is known what they read: a full cache keeps
            the rows that they read soonest. Their blocks are kept meanwhile. By default 8, 0 without a cache.
            ``MPIGRAPH_LOG_LEVEL=INFO`` prints both.
        pin_memory: put minibatches that stay on the CPU into pinned memory, as PyTorch's loader does, so that
            ``.to("cuda", non_blocking=True)`` does not wait. With a GPU as ``device`` it makes no difference.
        foreign: further options of DGL's and PyTorch's loaders, see :func:`.check_foreign`.

    Raises:
        InvalidArgumentError: ``batch_size``, ``num_prefetch`` or ``output`` is not one of these, PyG is not
            installed, or the sampler cannot make what it wants.
        FieldNameError: a feature, or the sampler's edge weights, do not exist.
        NodeTypeError: a node type does not exist, or there are several and ``nids`` are not by type.
        CollectiveError: other trainers are in another call; on every trainer.
        GraphDataError: an edge weight is negative, infinite or NaN; on every rank.

    Every trainer raises these, whichever has the reason.
    """

    @collective("trainers")
    def __init__(
        self,
        g: DistGraph,
        nids: NodeIds,
        graph_sampler: BlockSampler,
        device: torch.device | str | None = None,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        features: Names = (),
        labels: Names = (),
        output: str = "dgl",
        input_time: NodeIds | None = None,
        num_prefetch: int = 2,
        seed: int | None = None,
        cache: str | int | None = "auto",
        lookahead: int | None = None,
        pin_memory: bool = False,
        queue_size: int | None = None,
        **foreign: object,
    ) -> None:
        options = LoaderOptions(
            device,
            batch_size,
            shuffle,
            drop_last,
            features,
            labels,
            output,
            input_time,
            num_prefetch,
            seed,
            cache,
            lookahead,
            pin_memory,
            queue_size,
        )
        super().__init__(g, nids, graph_sampler, options, foreign)

    def _make_stages(
        self, g: DistGraph, ids: TypedIds, sampler: Sampler, options: LoaderOptions, pin_memory: bool
    ) -> Stages[Any]:
        if not has_method(sampler, "sample_blocks"):
            raise InvalidArgumentError(f"graph_sampler must have sample_blocks (got {sampler!r})")
        make: Callable[..., Stages[Any]] = pyg_node_stages if options.output == "pyg" else _block_stages
        return make(g, ids, sampler, options, pin_memory)


def _block_stages(
    g: DistGraph, nids: NodeIds, sampler: BlockSampler, options: LoaderOptions, pin_memory: bool
) -> Stages[Blocks]:
    needs = needs_of(sampler)
    fetch = BlockFetcher(g, needs, options.features, options.labels, pin_memory)
    ids = by_ntype(g.schema, nids, "nids")
    times = check_input_time(g, needs.times, ids, cast(NodeIds | None, options.seed_times))

    def sample(chosen: Chosen) -> Blocks:
        return sampler.sample_blocks(g, chosen.ids, **chosen.times_as("input_time"))

    return Stages(unwrap_nodes(g.schema, ids), sample, fetch, fetch.announce, [fetch.inputs], times=times)


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

    @collective("trainers", WHEN_REMOTE)
    def collate(self, items: NodeIds | list[Item]) -> Blocks:
        """Sample a minibatch of int[b] ids, of ``(node type, id)`` pairs or of ids by node type."""
        return self.graph_sampler.sample_blocks(self.g, cast(NodeTensors, as_seed_tensors(items, "nids")))
