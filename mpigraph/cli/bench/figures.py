"""The figures of a run: what is measured, its unit, and how the trainers' values become one."""

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from mpigraph.cli.bench.caching import SIZES
from mpigraph.mpi.agree import allgather_bytes
from mpigraph.mpi.world import World
from mpigraph.rows.service import TRANSPORTS

__all__ = ["CATALOGUE", "STAGES", "Entry", "Figure", "collect", "in_digits"]


class Entry(NamedTuple):
    """One line of the catalogue.

    Attributes:
        section: heading.
        unit: of the one value and of each trainer's.
        text: what is measured.
        of: what one measured value is of: a trainer, a server or a node. Servers and nodes are measured by the first
            trainer of each node.
        combine: how the measured values become one: their "median", "max", "min" or "sum", or, of trainers that
            share a node's memory, the "node sum", a mean over nodes.
    """

    section: str
    unit: str
    text: str
    of: str = "trainer"
    combine: str = "median"


class Figure(NamedTuple):
    """One figure: the value for all trainers (None: does not apply here), and each trainer's value."""

    value: float | None
    each: list[float | None]


CATALOGUE: dict[str, Entry] = {
    "memcpy_one": Entry("machine", "GB/s", "copy of memory, one trainer alone on its node"),
    "memcpy_all": Entry("machine", "GB/s", "copy of memory, all at once", combine="node sum"),
    "rows_one": Entry("machine", "GB/s", "random rows by torch.index_select(out=), one trainer alone on its node"),
    "rows_all": Entry("machine", "GB/s", "random rows by torch.index_select(out=), all at once", combine="node sum"),
    "near_one": Entry("rows", "GB/s", "random near rows, one trainer alone on its node"),
    "near_all": Entry("rows", "GB/s", "random near rows, all at once", combine="node sum"),
    **{
        f"far_{transport.name}": Entry("rows", "GB/s", f"random far rows {transport.how}, all at once")
        for transport in TRANSPORTS
    },
    "round_latency": Entry("rounds", "ms", "empty round between the trainers", combine="max"),
    "rounds_per_s": Entry("rounds", "1/s", "empty rounds between the trainers", combine="min"),
    "round_rate": Entry("rounds", "GB/s", "rounds of 256 KiB of requests and of answers for each peer", combine="min"),
    "service_latency": Entry("rounds", "ms", "empty sampling round, servers included", combine="max"),
    "edges_per_s": Entry("sampling", "M/s", "sampled edges", combine="sum"),
    "step_sample": Entry("step", "ms", "sample and renumber"),
    "step_exchange": Entry("step", "ms", "rounds: transfer and waiting for others"),
    "step_near": Entry("step", "ms", "gather near rows"),
    "step_far": Entry("step", "ms", "gather far rows"),
    "step_compute": Entry("step", "ms", "forward, backward, optimizer"),
    "step_total": Entry("step", "ms", "all of it, one after the other (num_prefetch=0)"),
    "step_prefetch": Entry("step", "ms", "with num_prefetch=2: sampling and gathering are ahead"),
    "step_wait": Entry("step", "ms", "of that, waiting for the prefetched minibatch"),
    "batches_per_s": Entry("step", "1/s", "minibatches with num_prefetch=2", combine="sum"),
    "loader_sample": Entry("loader", "ms", "a minibatch with num_prefetch=2: sample and renumber, rounds included"),
    "loader_plan": Entry("loader", "ms", "find out which rows are far, and which minibatch reads them next"),
    "loader_fetch": Entry("loader", "ms", "fetch far rows, and load near ones meanwhile"),
    "loader_place": Entry("loader", "ms", "the rest of gathering: rows into the cache and out of it"),
    "loader_bytes": Entry("loader", "MB", "far rows that were fetched for a minibatch"),
    "rounds_per_batch": Entry("traffic", "", "sampling rounds of a minibatch", combine="max"),
    "messages_per_batch": Entry("traffic", "", "messages of a minibatch: asked and answered, sampling and rows"),
    "sampling_bytes_per_batch": Entry("traffic", "MB", "requests and answers of a minibatch's sampling"),
    "row_bytes_per_batch": Entry("traffic", "MB", "far rows of a minibatch, and their ids"),
    "cache_far": Entry("cache", "", "far rows of a minibatch"),
    "cache_saved": Entry("cache", "%", "of them were not fetched by the loader, with the cache that it has by default"),
    "cache_default": Entry("cache", "MB", "memory of that cache", of="node"),
    "cache_all": Entry("cache", "MB", "memory of one that keeps all far rows that are read", combine="node sum"),
    "cache_tables": Entry("cache", "MB", "of that, what it takes whatever it keeps", of="node", combine="max"),
    "cache_batches": Entry("cache", "", "minibatches that caches of other sizes were simulated on", combine="min"),
    "cache_epoch": Entry("cache", "", "minibatches of an epoch", combine="max"),
    **{f"cache_{size}": Entry("cache", "%", f"fetched if {size} % of what is read is kept") for size in SIZES},
    "cache_floor": Entry("cache", "%", "fetched if all of it is kept: each row once, in these minibatches"),
    "start_python": Entry("start", "s", "process start to this command (imports)", combine="max"),
    "start_initialize": Entry("start", "s", "initialize(), with compiling if kernels are not cached", combine="max"),
    "start_load": Entry("start", "s", "DistGraph(): graph and features in memory", combine="max"),
    "start_first": Entry("start", "s", "loader made, first minibatch here", combine="max"),
    "start_total": Entry("start", "s", "process start to first minibatch", combine="max"),
    "memory_trainer": Entry("memory", "MB", "peak resident memory", combine="max"),
    "memory_server": Entry("memory", "MB", "peak resident memory", of="server", combine="max"),
    "memory_node": Entry("memory", "MB", "all ranks, shared pages counted once, at the end", of="node", combine="max"),
}

STAGES = {
    "step_sample": "sampling",
    "step_exchange": "exchange",
    "step_near": "near gather",
    "step_far": "far gather",
    "step_compute": "compute",
}


def collect(world: World, mine: Mapping[str, float | None]) -> dict[str, Figure]:
    """Put all trainers' values together; every trainer gets every figure. Collective on ``world.trainers``."""
    unknown = mine.keys() - CATALOGUE.keys()
    if unknown:
        raise KeyError(f"not in the catalogue: {sorted(unknown)}")
    with world.meeting("collecting figures"):
        everyone = [json.loads(text) for text in allgather_bytes(world.trainers, json.dumps(dict(mine)).encode())]
    figures = {}
    for name, entry in CATALOGUE.items():
        each = [values.get(name) for values in everyone]
        figures[name] = Figure(_combine(entry.combine, each, world.num_nodes), each)
    return figures


def in_digits(value: float) -> str:
    """Return a number as people write it: with four digits that count, never with an exponent."""
    return f"{value:.0f}" if value >= 1000 or value == 0 else f"{value:.4g}" if value >= 1 else f"{value:.3f}"


def _combine(how: str, each: Sequence[float | None], num_nodes: int) -> float | None:
    known = [value for value in each if value is not None]
    if not known:
        return None
    ways: dict[str, Callable[[list[float]], float]] = {"median": median, "max": max, "min": min, "sum": sum}
    return sum(known) / num_nodes if how == "node sum" else float(ways[how](known))
