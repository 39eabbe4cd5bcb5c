"""The figures of a run: what is measured, its unit, and what stands for all trainers."""

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from mpigraph.mpi.agree import allgather_bytes
from mpigraph.mpi.world import World
from mpigraph.rows.service import TRANSPORTS

__all__ = ["CATALOGUE", "STAGES", "Figure", "collect", "values"]


class Entry(NamedTuple):
    """One line of the catalogue: heading, unit, meaning, and how the trainers' values become one."""

    section: str
    unit: str
    text: str
    combine: str = "median"


class Figure(NamedTuple):
    """One figure: what stands for all (None: does not apply here), and each trainer's value."""

    value: float | None
    each: list[float | None]


CATALOGUE: dict[str, Entry] = {
    "memcpy_one": Entry("machine", "GB/s", "copy of memory, one trainer"),
    "memcpy_all": Entry("machine", "GB/s", "copy of memory, all trainers of a node together", "node"),
    "rows_one": Entry("machine", "GB/s", "random rows by torch.index_select(out=), one trainer"),
    "rows_all": Entry("machine", "GB/s", "the same, all trainers of a node together", "node"),
    "near_one": Entry("rows", "GB/s", "random near rows, one trainer"),
    "near_all": Entry("rows", "GB/s", "the same, all trainers of a node together", "node"),
    **{
        f"far_{transport.name}": Entry("rows", "GB/s", f"random far rows {transport.how}, each trainer, all at once")
        for transport in TRANSPORTS
    },
    "round_latency": Entry("rounds", "us", "empty round between the trainers", "max"),
    "rounds_per_s": Entry("rounds", "1/s", "empty rounds", "min"),
    "round_rate": Entry("rounds", "GB/s", "rounds with 256 KiB of requests and answers for each peer", "min"),
    "service_latency": Entry("rounds", "us", "empty sampling round, servers included", "max"),
    "edges_per_s": Entry("sampling", "M/s", "sampled edges, all trainers", "sum"),
    "step_sample": Entry("step", "ms", "sample and renumber"),
    "step_exchange": Entry("step", "ms", "rounds: transfer and waiting for others"),
    "step_near": Entry("step", "ms", "gather near rows"),
    "step_far": Entry("step", "ms", "gather far rows"),
    "step_compute": Entry("step", "ms", "forward, backward, optimizer"),
    "step_total": Entry("step", "ms", "all of it, one after the other (num_prefetch=0)"),
    "step_prefetch": Entry("step", "ms", "with num_prefetch=2: sampling and gathering are ahead"),
    "step_wait": Entry("step", "ms", "of that, waiting for the prefetched minibatch"),
    "batches_per_s": Entry("step", "1/s", "minibatches, all trainers, with num_prefetch=2", "sum"),
    "rounds_per_batch": Entry("traffic", "", "sampling rounds of a minibatch", "max"),
    "messages_per_batch": Entry("traffic", "", "messages of a minibatch: asked and answered, sampling and rows"),
    "sampling_bytes_per_batch": Entry("traffic", "MB", "requests and answers of a minibatch's sampling"),
    "row_bytes_per_batch": Entry("traffic", "MB", "far rows of a minibatch, and their ids"),
    "start_python": Entry("start", "s", "process start to this command (imports)", "max"),
    "start_initialize": Entry("start", "s", "initialize(), with compiling if kernels are not cached", "max"),
    "start_load": Entry("start", "s", "DistGraph(): graph and features in memory", "max"),
    "start_first": Entry("start", "s", "loader made, first minibatch here", "max"),
    "start_total": Entry("start", "s", "process start to first minibatch", "max"),
    "memory_trainer": Entry("memory", "MiB", "peak resident memory of a trainer", "max"),
    "memory_server": Entry("memory", "MiB", "peak resident memory of a server", "max"),
    "memory_node": Entry("memory", "MiB", "all ranks of a node, shared pages counted once, at the end", "max"),
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
    with world.watch("collecting figures"):
        everyone = [json.loads(text) for text in allgather_bytes(world.trainers, json.dumps(dict(mine)).encode())]
    found = {}
    for name, entry in CATALOGUE.items():
        each = [values.get(name) for values in everyone]
        found[name] = Figure(_combine(entry.combine, each, world.num_nodes), each)
    return found


def _combine(how: str, each: Sequence[float | None], num_nodes: int) -> float | None:
    there = [value for value in each if value is not None]
    if not there:
        return None
    ways: dict[str, Callable[[list[float]], float]] = {"median": median, "max": max, "min": min, "sum": sum}
    return sum(there) / num_nodes if how == "node" else float(ways[how](there))


def values(figures: Mapping[str, Figure]) -> dict[str, float | None]:
    """The figures without the trainers' own."""
    return {name: figure.value for name, figure in figures.items()}
