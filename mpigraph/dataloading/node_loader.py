"""The loader of minibatches of nodes: seeds, and the blocks that a sampler makes of them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from mpigraph.collective import collective
from mpigraph.dataloading.caches import Sizes
from mpigraph.dataloading.fetcher import BlockFetcher, Stages
from mpigraph.dataloading.foreign_options import check_foreign
from mpigraph.dataloading.loader import SampledDataLoader, arguments, check_output
from mpigraph.dataloading.pyg_batches import pyg_node_stages
from mpigraph.dataloading.sampler import BlockSampler, has_method, needs_of, session_of
from mpigraph.dataloading.seed_times import check_input_time
from mpigraph.dataloading.seeds import Chosen
from mpigraph.dataloading.to_device import ToDevice
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.typed_ids import Blocks, Names, NodeIds, NodeTensors, by_ntype, unwrap_nodes
from mpigraph.errors import InvalidArgumentError

__all__ = ["DistNodeDataLoader"]


class DistNodeDataLoader(SampledDataLoader):
    """Minibatches of nodes: yields ``(input_nodes, output_nodes, blocks)``, or what PyG's models take.

    Where the graph has several node types, input and output nodes are by type, with every type.
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
        cache: Sizes = "auto",
        lookahead: int | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        queue_size: int | None = None,
        persistent_workers: bool = False,
        **foreign: object,
    ) -> None:
        """Plan the minibatches.

        Args:
            g: the graph.
            nids: int[n], this rank's seed nodes; or node type -> int[n], which graphs with several node types need, and
                whose minibatches mix the types.
            graph_sampler: has ``sample_blocks(g, seeds)``, for example a ``NeighborSampler``.
            device: where to put all of a minibatch, the CPU by default; "cuda" is the caller's current GPU. Copies to a
                GPU run on a stream of their own, for minibatches ahead too, which take memory there. The consumer's
                current stream waits for its minibatch's, the consumer does not.
            batch_size: most seeds of a minibatch.
            shuffle: another order in each epoch.
            drop_last: leave out seeds that do not fill a batch.
            features: names of node features to gather for the input nodes, into ``blocks[0].srcdata``; besides the
                sampler's ``prefetch_node_feats``. A name is for all node types that have it; or node type -> names.
                Their memory is used again once nothing refers to them.
            labels: names of node features to gather for the output nodes, into ``blocks[-1].dstdata``; besides the
                sampler's ``prefetch_labels``.
            output: "dgl"; or "pyg": what PyG's ``NeighborLoader`` yields, see :mod:`.pyg_batches`. Features
                and labels are then of all its nodes, and the sampler's fanouts the reverse of ``num_neighbors``.
            input_time: int[n], the time of each of ``nids``, in their form; for a sampler with ``time_attr``. By
                default their own, where nodes have times.
            num_prefetch: how many minibatches to be ahead.
            seed: of order and draws; the job's by default.
            cache: memory on each node for copies of rows of ``features`` (and of the sampler's) that other nodes hold,
                shared by its trainers: a size for all of them, such as "2GiB"; sizes by name, as in ``{"node": {"feat":
                "2GiB"}}``; "auto" for a quarter of what is free; or None. The minibatches are the same.
            lookahead: how many minibatches are sampled ahead, so that it is known what they read: a full cache keeps
                the rows that they read soonest. Their blocks are kept meanwhile (8 by default, 0 without a cache).
            num_workers: accepted for DGL's scripts; see ``num_prefetch``.
            pin_memory: put minibatches that stay on the CPU into pinned memory, as PyTorch's loader does, so that
                ``.to("cuda", non_blocking=True)`` does not wait. With a GPU as ``device`` it makes no difference.
            queue_size: DGL's name for ``num_prefetch``.
            persistent_workers: accepted, as for PyTorch's loader.
            foreign: what else DGL's and PyTorch's loaders take, see :mod:`.foreign_options`.

        Raises:
            InvalidArgumentError: ``batch_size``, ``num_prefetch`` or ``output`` is not one of these, PyG is not
                installed, or the sampler cannot make what it wants.
            FieldNameError: a feature, or the sampler's edge weights, do not exist.
            NodeTypeError: a node type does not exist, or there are several and ``nids`` are not by type.
            CollectiveError: other trainers are in another call; on every trainer.
            GraphDataError: an edge weight is negative, infinite or NaN; on every rank.

        All of these are raised on every trainer, whichever has the reason.
        """
        with arguments(session_of(g)):
            check_foreign(type(self), foreign)
            mover = ToDevice(device, pin_memory)
            check_output(output)
            if not has_method(graph_sampler, "sample_blocks"):
                raise InvalidArgumentError(f"graph_sampler must have sample_blocks (got {graph_sampler!r})")
            make = pyg_node_stages if output == "pyg" else _block_stages
            stages: Stages[Any] = make(g, nids, graph_sampler, features, labels, mover.pin_memory, input_time)
        super().__init__(
            g,
            stages,
            mover,
            needs_of(graph_sampler),
            batch_size,
            shuffle,
            drop_last,
            queue_size,
            num_prefetch,
            seed,
            cache,
            lookahead,
        )


def _block_stages(
    g: DistGraph,
    nids: NodeIds,
    sampler: BlockSampler,
    features: Names,
    labels: Names,
    pin_memory: bool,
    input_time: NodeIds | None,
) -> Stages[Blocks]:
    """How the loader makes blocks."""
    needs = needs_of(sampler)
    fetch = BlockFetcher(g, needs, features, labels, pin_memory)
    ids = by_ntype(g.schema, nids, "nids")
    times = check_input_time(g, needs.times, ids, input_time)

    def announce(sample: Blocks, batch: int) -> None:
        fetch.announce(sample[0], batch)

    def sample_at(chosen: Chosen) -> Blocks:
        timed: dict[str, Any] = {"input_time": chosen.times}
        return sampler.sample_blocks(g, chosen.ids, **timed)

    seeds: NodeTensors = unwrap_nodes(g.schema, ids)
    sample: Callable[[Any], Blocks] = partial(sampler.sample_blocks, g) if times is None else sample_at
    return Stages(seeds, sample, fetch, announce, [fetch.inputs], times=times)
