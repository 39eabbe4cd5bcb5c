"""``doctor`` says before the first job whether one can run on these nodes, ``report`` after a job why it was slow."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import I64
from mpigraph.cli.grammar import Doctor, Report
from mpigraph.cli.main import put, show
from mpigraph.cli.ranks import working_world
from mpigraph.collective import collective
from mpigraph.config import launch, launcher_rank
from mpigraph.errors import MPIGraphError, SharedMemoryError
from mpigraph.memory import in_units
from mpigraph.reports.page import write_page
from mpigraph.reports.summary import read
from mpigraph.reports.verdict import judge
from mpigraph.trace import span

_LEAST = 64 << 20  # bytes of a node for a graph: many containers have so few in /dev/shm
_NUMBER = 4096  # of the words of a request for neighbours
_REPEATS = 9
_PATIENCE = 12.0  # timeouts that compiling the kernels may take


@collective("comm")
def doctor(options: Doctor, comm: Any = None) -> int:
    """Print what a job would find with ``options.servers`` on each node; return 0 if it can run, else 1.

    ``comm`` are the ranks that take part, all by default.
    """
    import torch  # noqa: F401 - its version is compared, too

    first = (launcher_rank() if comm is None else comm.rank) == 0
    findings: dict[str, str] = {}
    error = ""
    speaks = first
    try:
        with working_world("doctor", comm, options.servers) as world:
            for name, text in _findings(world):
                findings[name] = text
                if first and not options.json:
                    put(f"{name:<24}{text}")
    except MPIGraphError as failure:
        error = str(failure)
        speaks = first or not failure.everywhere
    if speaks:
        show(
            {"can_run": not error, "error": error, "findings": findings},
            "" if options.json else f"A job cannot run here: {error}" if error else "A job can run here.",
        )
    return 1 if error else 0


@collective("world.comm")
def _findings(world: Any) -> Iterator[tuple[str, str]]:
    """Yield names and values of what all ranks find together; raise MPIGraphError, on every rank, if no job can run."""
    from mpigraph.kernels import compile_missing
    from mpigraph.mpi.agree import allgather_bytes, everywhere
    from mpigraph.mpi.compat import library_version, thread_level
    from mpigraph.mpi.start import software
    from mpigraph.rows.segments import LIMITS, tightest_limits

    started = launch()
    yield "launcher", f"{started.launcher}, {started.processes} processes" if started else "none: one process"
    yield "MPI", f"{library_version()}, threads: {thread_level()}"
    yield "software of all ranks", software()
    yield "ranks", f"{len(world.trainer_ranks)} trainer(s), {len(world.hosts)} host(s), {world.num_nodes} node(s)"
    here = f"{os.uname().nodename}: {world.node.size} rank(s) with {world.cores_per_rank()} core(s) each".encode()
    told = allgather_bytes(world.comm, here)
    for node, (free, size, place) in enumerate(limits := tightest_limits(world).tolist()):
        there = told[world.node_of.tolist().index(node)].decode()
        yield f"node {node}", f"{there}, {in_units(free)} of {in_units(size)} free for graphs ({LIMITS[place]})"
    if min(limits)[0] < _LEAST:
        raise everywhere(SharedMemoryError('too little for graphs on a node (slurm/README.md, "Shared memory")'))
    world.check_threads()
    with world.watch("compiling kernels", _PATIENCE):
        world.once_per_node(compile_missing)
        world.comm.Barrier()
    yield from _rows(world)
    yield from _neighbours(world)


@collective("world.comm")
def _rows(world: Any) -> Iterator[tuple[str, str]]:
    """Read rows of other nodes in all ways that work."""
    from mpigraph.rows.service import RowService
    from mpigraph.rows.trial import choose_transport

    service = RowService(world)
    for name, rate in choose_transport(service).items():
        use = ", which jobs use" * (service.transport is not None and name == service.transport.name)
        yield f"rows, {name}", f"{rate / 1e9:.2f} GB/s{use}"


@collective("world.comm")
def _neighbours(world: Any) -> Iterator[tuple[str, str]]:
    """Ask all hosts of other nodes at once, as jobs do; the slowest trainer counts."""
    from mpigraph.mpi.agree import allgather_bytes
    from mpigraph.mpi.hosts import Hosts
    from mpigraph.mpi.messages import HEAD
    from mpigraph.mpi.wait import until
    from mpigraph.sampling.exchanges import open_exchange

    def answer(words: I64) -> I64:
        return np.concatenate([np.zeros(HEAD, np.int64), words])

    hosts = Hosts(world)
    exchange = open_exchange(hosts, answer)
    if world.all_local:
        return
    seconds = np.zeros(1)
    if world.is_trainer:
        asked = {rank: np.full(1 + _NUMBER, rank) for rank in world.hosts[~world.is_local].tolist()}
        spent = []
        for _ in range(_REPEATS):
            with span("measure") as timed:
                exchange.ask(asked, lambda: None, "the trial")
            spent.append(timed.seconds)
        seconds[:] = np.median(spent)
        exchange.leave()
    until(world.comm.Ibarrier().Test, moves=lambda: any([hosts.progress(), exchange.progress()]))
    slowest = np.frombuffer(b"".join(allgather_bytes(world.comm, seconds.tobytes()))).max()
    text = f"{1e3 * slowest:.3f} ms for {in_units(8 * _NUMBER)} to and from each host of other nodes"
    yield f"neighbours, {exchange.name}", text


def report(options: Report) -> int:
    """Write the page of a report again and print its verdict; return the exit status."""
    folder = Path(options.folder)
    summary = read(folder)
    verdict = judge(summary)
    write_page(folder, summary)
    page = str(folder / "report.html")
    text = "\n".join(filter(None, (verdict.text, verdict.remedy, page)))
    show(verdict._asdict() | {"remedy": verdict.remedy, "page": page}, "" if options.json else text)
    return 0
