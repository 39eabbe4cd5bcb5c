"""``doctor`` says before the first job whether one can run on these nodes, ``report`` after a job why it was slow."""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import I64
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
_NUMBER = 4096  # of a host's rows, all read at a time, and of the words of a request for neighbours
_ROW_BYTES = 400
_PATIENCE = 12.0  # timeouts that compiling the kernels may take


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register both commands."""
    _add_report(commands)
    parser = commands.add_parser(
        "doctor",
        help="say whether a job can run on these nodes",
        description="Start it as a job is started. Prints what the ranks find, tries how rows and neighbours travel, "
        "and exits with 0 if a job can run, else with 1 and the reason. Takes seconds, a minute to compile kernels.",
    )
    parser.add_argument("--num_servers", type=int, metavar="N", help="servers on each node (MPIGRAPH_NUM_SERVERS)")
    parser.set_defaults(run=lambda arguments: run(arguments.num_servers))


@collective("comm")
def run(num_servers: int | None = None, comm: Any = None) -> int:
    """Print what a job would find with ``num_servers`` on each node; return 0 if it can run, else 1.

    ``comm`` are the ranks that take part, all by default.
    """
    import torch  # noqa: F401 - its version is compared, too

    first = (launcher_rank() if comm is None else comm.rank) == 0
    try:
        with working_world("doctor", comm, num_servers) as world:
            for name, text in _findings(world):
                print(f"{name:<24}{text}\n" if first else "", end="", flush=True)
    except MPIGraphError as error:
        print(f"A job cannot run here: {error}\n" if first or not error.everywhere else "", end="", flush=True)
        return 1
    print("A job can run here.\n" if first else "", end="", flush=True)
    return 0


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
    """Read random rows in all ways that work, on the first trainer of each node; the slowest one counts."""
    from mpigraph.mpi.agree import allgather_bytes
    from mpigraph.mpi.wait import until
    from mpigraph.rows.service import RowService
    from mpigraph.rows.trial import choose_transport
    from mpigraph.rows.window import RowWindow

    service = RowService(world)
    rates = choose_transport(service)
    window = RowWindow(service, np.arange(len(world.hosts) + 1) * _NUMBER, (_ROW_BYTES,), "u1")
    seconds = np.zeros(1)
    if world.local_trainer == 0:
        hosts = np.flatnonzero(world.is_local)
        ids = np.random.default_rng(world.rank).permutation(np.arange(_NUMBER) + np.resize(hosts, _NUMBER) * _NUMBER)
        seconds[:] = _seconds(partial(window.gather, ids))
    with world.watch("reading rows"):
        until(world.comm.Ibarrier().Test, moves=service.hosts.progress)
        window.close()
        slowest = np.frombuffer(b"".join(allgather_bytes(world.comm, seconds.tobytes()))).max()
    yield "rows of the node", f"{_NUMBER * _ROW_BYTES / slowest / 1e9:.2f} GB/s"
    for name, rate in rates.items():
        use = ", which jobs use" * (service.transport is not None and name == service.transport.name)
        yield f"rows, {name}", f"{rate / 1e9:.2f} GB/s{use}"


@collective("world.comm")
def _neighbours(world: Any) -> Iterator[tuple[str, str]]:
    """Ask all hosts of other nodes at once, in each way that neighbours can travel; the slowest trainer counts."""
    from mpigraph.mpi.agree import allgather_bytes
    from mpigraph.mpi.hosts import Hosts
    from mpigraph.mpi.messages import HEAD
    from mpigraph.sampling.exchanges import EXCHANGES, open_exchange

    def answer(words: I64) -> I64:
        return np.concatenate([np.zeros(HEAD, np.int64), words])

    hosts = Hosts(world)
    chosen = open_exchange(hosts, answer)
    able = [kind for kind in EXCHANGES if world.threads_may_communicate or not kind.needs_threads]
    for kind in [] if world.all_local else able:
        exchange = chosen if isinstance(chosen, kind) else kind(hosts, answer)
        seconds = np.zeros(1)
        if world.is_trainer:
            asked = {rank: np.full(1 + _NUMBER, rank) for rank in world.hosts[~world.is_local].tolist()}
            seconds[:] = _seconds(partial(exchange.ask, asked, lambda: None, "the trial"))
            exchange.leave()
        with world.watch("asking for neighbours"):
            request = world.comm.Ibarrier()
            while not request.Test():
                if not any([hosts.progress(), exchange.progress()]):
                    time.sleep(1e-5)
            slowest = np.frombuffer(b"".join(allgather_bytes(world.comm, seconds.tobytes()))).max()
        text = f"{1e3 * slowest:.3f} ms for {in_units(8 * _NUMBER)} to and from each host of other nodes"
        yield f"neighbours, {kind.name}", text + ", which jobs use" * (exchange is chosen)


def _seconds(work: Callable[[], object]) -> float:
    """Return the median seconds of some calls."""
    spent = []
    for _ in range(9):
        with span("measure") as timed:
            work()
        spent.append(timed.seconds)
    return float(np.median(spent))


def _add_report(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "report",
        help="say why a job was slow, from the report that it wrote",
        description="Write DIR/report.html again from the summary beside it and print the verdict: the rank or stage "
        "that makes the job slow.",
    )
    parser.add_argument("folder", metavar="DIR", help="the folder of a report (MPIGRAPH_REPORT, mg.report)")
    parser.set_defaults(run=_show_report)


def _show_report(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.folder)
    summary = read(folder)
    print(judge(summary).text)
    write_page(folder, summary)
    print(folder / "report.html")
    return 0
