"""The report of a run: the catalogue of figures, the reduction over trainers, a table and a JSON document."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from mpigraph.cli.bench.settings import Settings
from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError
from mpigraph.mpi.agree import allgather_bytes
from mpigraph.mpi.compat import library_version, thread_level
from mpigraph.mpi.world import World
from mpigraph.rows.service import TRANSPORTS

SCHEMA = "mpigraph-bench"
VERSION = 4


class Entry(NamedTuple):
    """One line of the catalogue."""

    section: str  # heading
    unit: str  # of the one value and of each trainer's
    text: str  # meaning of the figure
    # subject of each value: a trainer, a server or a node. The first trainer of each node measures servers and nodes
    of: str = "trainer"
    # reduction of the values: their "median", "max", "min" or "sum", or, of trainers that share a node's memory, the
    # "node sum", a mean over nodes
    combine: str = "median"


_SAME = 1.05  # smaller ratios of two times are noise

CATALOGUE: dict[str, Entry] = {
    "memcpy_one": Entry("machine", "GB/s", "copy of memory, one trainer alone on its node"),
    "memcpy_all": Entry("machine", "GB/s", "copy of memory, all at once", combine="node sum"),
    "rows_one": Entry("machine", "GB/s", "random rows by torch.index_select(out=), one trainer alone on its node"),
    "rows_all": Entry("machine", "GB/s", "random rows by torch.index_select(out=), all at once", combine="node sum"),
    "local_one": Entry("rows", "GB/s", "random local rows, one trainer alone on its node"),
    "local_all": Entry("rows", "GB/s", "random local rows, all at once", combine="node sum"),
    **{
        f"remote_{transport.name}": Entry("rows", "GB/s", f"random remote rows {transport.how}, all at once")
        for transport in TRANSPORTS
    },
    "round_latency": Entry("rounds", "ms", "empty round between the trainers", combine="max"),
    "rounds_per_s": Entry("rounds", "1/s", "empty rounds between the trainers", combine="min"),
    "round_rate": Entry("rounds", "GB/s", "rounds of 256 KiB of requests and of answers for each peer", combine="min"),
    "service_latency": Entry("rounds", "ms", "empty sampling round, servers included", combine="max"),
    "edges_per_s": Entry("sampling", "M/s", "sampled edges", combine="sum"),
    "step_sample": Entry("step", "ms", "sample and renumber"),
    "step_exchange": Entry("step", "ms", "rounds: transfer and waiting for others"),
    "step_local": Entry("step", "ms", "gather local rows"),
    "step_remote": Entry("step", "ms", "gather remote rows"),
    "step_compute": Entry("step", "ms", "forward, backward, optimizer"),
    "step_total": Entry("step", "ms", "all of it, one after the other (num_prefetch=0)"),
    "step_prefetch": Entry("step", "ms", "with num_prefetch=2: sampling and gathering are ahead"),
    "step_wait": Entry("step", "ms", "of that, waiting for the prefetched minibatch"),
    "batches_per_s": Entry("step", "1/s", "minibatches with num_prefetch=2", combine="sum"),
    "step_trainers": Entry(
        "trainers", "ms", "fastest step of all trainers, gradients averaged (num_prefetch=0)", combine="max"
    ),
    "step_one": Entry("trainers", "ms", "fastest with as many seeds on one trainer, the others asleep"),
    "threads_one": Entry("trainers", "", "threads of that trainer"),
    "loader_sample": Entry("loader", "ms", "a minibatch with num_prefetch=2: sample and renumber, rounds included"),
    "loader_plan": Entry("loader", "ms", "find out which rows are remote, and which minibatch reads them next"),
    "loader_fetch": Entry("loader", "ms", "fetch remote rows, and load local ones meanwhile"),
    "loader_place": Entry("loader", "ms", "the rest of gathering: rows into the cache and out of it"),
    "loader_bytes": Entry("loader", "MB", "remote rows that were fetched for a minibatch"),
    "rounds_per_batch": Entry("traffic", "", "sampling rounds of a minibatch", combine="max"),
    "messages_per_batch": Entry("traffic", "", "messages of a minibatch: asked and answered, sampling and rows"),
    "sampling_bytes_per_batch": Entry("traffic", "MB", "requests and answers of a minibatch's sampling"),
    "row_bytes_per_batch": Entry("traffic", "MB", "remote rows of a minibatch, and their ids"),
    "cache_saved": Entry("cache", "%", "remote rows that the loader did not fetch, with its default cache"),
    "cache_default": Entry("cache", "MB", "memory of that cache", of="node"),
    "start_python": Entry("start", "s", "process start to this command (imports)", combine="max"),
    "start_initialize": Entry("start", "s", "initialize(), with compiling if kernels are not cached", combine="max"),
    "start_load": Entry("start", "s", "DistGraph(): graph and features in memory", combine="max"),
    "start_first": Entry("start", "s", "loader made, first minibatch here", combine="max"),
    "start_total": Entry("start", "s", "process start to first minibatch", combine="max"),
    "memory_trainer": Entry("memory", "MB", "peak resident memory", combine="max"),
    "memory_server": Entry("memory", "MB", "peak resident memory", of="server", combine="max"),
    "memory_node": Entry("memory", "MB", "all ranks, shared pages counted once, at the end", of="node", combine="max"),
}


@collective("world.trainers")
def document(
    world: World, settings: Settings, machine: Mapping[str, Any], measured: Mapping[str, float | None]
) -> dict[str, Any]:
    """Gather all trainers' figures; return everything about a run as JSON values.

    Names, units and meanings do not change within a version of the schema.
    """
    unknown = measured.keys() - CATALOGUE.keys()
    if unknown:
        raise KeyError(f"not in the catalogue: {sorted(unknown)}")
    with world.meeting("collecting figures"):
        everyone = [json.loads(text) for text in allgather_bytes(world.trainers, json.dumps(dict(measured)).encode())]
    figures = {}
    for name, entry in CATALOGUE.items():
        each = [values.get(name) for values in everyone]
        figures[name] = {
            "value": _combine(entry.combine, each, world.num_nodes),
            "unit": entry.unit,
            "meaning": entry.text,
            "of": entry.of,
            "combined": entry.combine,
            "trainers": each,
        }
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": dict(machine),
        "mpi": {"library": library_version(), "threads": thread_level()},
        "layout": {
            "ranks": world.size,
            "nodes": world.num_nodes,
            "trainers": len(world.trainer_ranks),
            "hosts": len(world.hosts),
            "servers_per_node": world.num_servers,
            "ranks_per_node": world.config.ranks_per_node,
        },
        "settings": asdict(settings),
        "figures": figures,
    }


def in_digits(value: float) -> str:
    """Return a number with four significant digits and no exponent."""
    return f"{value:.0f}" if value >= 1000 or value == 0 else f"{value:.4g}" if value >= 1 else f"{value:.3f}"


def _combine(how: str, each: Sequence[float | None], num_nodes: int) -> float | None:
    known = [value for value in each if value is not None]
    if not known:
        return None
    ways: dict[str, Callable[[list[float]], float]] = {"median": median, "max": max, "min": min, "sum": sum}
    return sum(known) / num_nodes if how == "node sum" else float(ways[how](known))


def table(report: Mapping[str, Any]) -> str:
    """Return the figures of a document as text."""
    layout = report["layout"]
    machine = report["machine"]
    lines = [
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_GiB']} GiB; {report['mpi']['library']}",
        f"{layout['ranks']} ranks on {layout['nodes']} node(s): {layout['trainers']} trainers, "
        f"{layout['servers_per_node']} server(s) on each node",
        "",
    ]
    section = ""
    for name, entry in CATALOGUE.items():
        figure = report["figures"][name]
        if figure["value"] is None:
            continue
        heading = entry.section if entry.section != section else ""
        section = entry.section
        number = in_digits(figure["value"])
        known = [value for value in figure["trainers"] if value is not None]
        row = f"{heading:<9} {number:>9} {entry.unit:<5} {_whose(entry, len(known)):<24} {entry.text}"
        lines.append(row + _spread(entry, known))
    return "\n".join([*lines, "", _advice(report)])


def _advice(report: Mapping[str, Any]) -> str:
    """Return a line: is one trainer with all threads faster, or why that is unknown."""
    layout, figures = report["layout"], report["figures"]
    all_trainers, one, threads = (figures[name]["value"] for name in ("step_trainers", "step_one", "threads_one"))
    if None in (all_trainers, one, threads):
        reason = "each trainer has cores of its own"
        if layout["trainers"] == 1 or layout["nodes"] > 1:
            reason = "the job has one trainer" if layout["trainers"] == 1 else "the job has several nodes"
        return f"trainers: one trainer with all threads was not compared, as {reason}"
    single = f"1 trainer with {threads:.0f} thread(s)"
    several = f"{layout['trainers']} trainers with {report['machine']['torch_threads']} thread(s) each"
    faster, slower = (single, several) if one < all_trainers else (several, single)
    ratio = max(one, all_trainers) / min(one, all_trainers)
    if ratio < _SAME:
        return f"trainers: {single} and {several} are as fast here, with as many seeds a step"
    return f"trainers: faster here: {faster}, {ratio:.2f} times as fast as {slower} with as many seeds a step"


def check_file_writable(path: str) -> None:
    """Check that a file can be written, without changing it; a device, which may be full, gets an empty line.

    Raises InvalidArgumentError: it cannot; the message says why.
    """
    existed = Path(path).exists()
    try:
        with open(path, "ab") as file:
            if not existed or not Path(path).is_file():
                file.write(b"\n")
    except OSError as error:
        raise InvalidArgumentError(f"{path}: cannot be written: {error.strerror or error}") from error
    if not existed:
        Path(path).unlink()


def _whose(entry: Entry, count: int) -> str:
    """Return the subject of a row's value, which is of ``count`` measurements."""
    if entry.of == "server":
        return "largest server"
    if count == 1:
        return f"one {entry.of}"
    if entry.combine == "node sum":
        return "sum of a node's trainers"
    how = {"median": "median", "max": "largest", "min": "smallest", "sum": "sum"}[entry.combine]
    return f"{how} of {count} {entry.of}s"


def _spread(entry: Entry, known: list[float]) -> str:
    """Return the smallest and largest value, if they differ by more than a tenth or the row shows a sum."""
    is_sum = entry.combine in ("sum", "node sum")
    if len(known) < 2 or (max(known) <= 1.1 * min(known) and not is_sum):
        return ""
    return f" (each {entry.of}: {in_digits(min(known))} to {in_digits(max(known))})"
