"""How the loader of nodes makes minibatches of blocks."""

from collections.abc import Callable
from functools import partial
from typing import Any

from mpigraph.dataloading.fetcher import BlockFetcher, Stages
from mpigraph.dataloading.sampler import BlockSampler
from mpigraph.dataloading.seed_times import check_input_time
from mpigraph.dataloading.seeds import Chosen
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.typed_ids import Blocks, Names, NodeIds, NodeTensors, by_ntype, unwrap_nodes

__all__ = ["block_stages"]


def block_stages(
    g: DistGraph,
    nids: NodeIds,
    sampler: BlockSampler,
    features: Names,
    labels: Names,
    pin_memory: bool,
    input_time: NodeIds | None,
) -> Stages[Blocks]:
    """How a loader of nodes makes blocks; arguments and errors are those of :class:`.DistNodeDataLoader`."""
    fetch = BlockFetcher(g, sampler, features, labels, pin_memory)
    ids = by_ntype(g.schema, nids, "nids")
    times = check_input_time(g, sampler, ids, input_time)

    def announce(sample: Blocks, batch: int) -> None:
        fetch.announce(sample[0], batch)

    def sample_at(chosen: Chosen) -> Blocks:
        timed: dict[str, Any] = {"input_time": chosen.times}
        return sampler.sample_blocks(g, chosen.ids, **timed)

    seeds: NodeTensors = unwrap_nodes(g.schema, ids)
    sample: Callable[[Any], Blocks] = partial(sampler.sample_blocks, g) if times is None else sample_at
    return Stages(seeds, sample, fetch, announce, [fetch.inputs], times=times)
