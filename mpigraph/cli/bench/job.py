"""One run: start the job, measure part by part, report once."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpigraph.cli.bench.micro import measure_copy, measure_rounds, measure_rows
from mpigraph.cli.bench.report import check_file_writable, document, table
from mpigraph.cli.bench.settings import Settings
from mpigraph.cli.bench.step import TrainingStep
from mpigraph.collective import collective
from mpigraph.config import alone, launcher_rank
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import InvalidArgumentError, MPIGraphError
from mpigraph.mpi.agree import allgather_bytes, together
from mpigraph.mpi.world import World
from mpigraph.session.context import Session, current, exit_client, initialize
from mpigraph.session.reporting import prepare_folder
from mpigraph.storage.part_config import PartConfig
from mpigraph.trace import span

# fractions of Settings.seconds
_COPY = 0.1
_ROWS = 0.2
_ROUNDS = 0.1
_STAGES = 0.2
_PREFETCHING = 0.2
_TRAINERS = 0.2
_NAME = "bench"  # of the generated graph


@collective("comm")
def run(settings: Settings, age: float | None, comm: Any = None) -> int:
    """Measure and report, and return the exit status; on a server, serve.

    ``age`` is the number of seconds since this process was started, if known; ``comm`` the ranks that take part, all by
    default.

    Raises:
        MPIGraphError: the job could not be started or the report not written; on every trainer.
        SystemExit: on a server, when the job is over.
    """
    rank = launcher_rank() if comm is None else comm.rank
    _say("starting the ranks; kernels are compiled where they are not cached", rank)
    with span("initialize") as timed:
        initialize(num_servers=settings.num_servers, comm=comm)
    start = {"start_python": age, "start_initialize": timed.seconds}
    session = current()
    failure: MPIGraphError | None = None
    try:
        _measure_and_report(session, settings, start)
    except Exception as error:
        if session.world.size > 1 and not getattr(error, "everywhere", False):
            sys.excepthook(type(error), error, error.__traceback__)  # the others wait for this rank: end the job
        if not isinstance(error, MPIGraphError):
            raise
        failure = error
    exit_client()  # which does not end a job while an exception is being handled
    if failure is not None:
        raise failure
    return 0


def _measure_and_report(session: Session, settings: Settings, start: dict[str, float | None]) -> None:
    world = session.world
    with together(world.trainers, "checking --out and --report"):
        if session.rank == 0 and settings.out:
            check_file_writable(settings.out)
        if session.rank == 0 and settings.report:
            prepare_folder(settings.report)
    report = document(world, settings, _machine(), _measure(session, settings, start))
    with world.together("writing the report"):
        if session.rank == 0:
            print(table(report), flush=True)
            if settings.out:
                Path(settings.out).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


@collective("trainers")
def _measure(session: Session, settings: Settings, start: dict[str, float | None]) -> dict[str, float | None]:
    with _files_of_graph(session.world, settings) as (name, config):
        _say("loading the graph", session.rank)
        with span("load") as timed:
            g = DistGraph(name, part_config=config)
        return _measure_loaded(session, settings, g, start | {"start_load": timed.seconds})


@collective("trainers")
def _measure_loaded(
    session: Session, settings: Settings, g: DistGraph, start: dict[str, float | None]
) -> dict[str, float | None]:
    world = session.world
    seconds = settings.seconds
    _say("making a loader and the first minibatch", session.rank)
    feature = _feature_of(g)
    training = TrainingStep(session, g, feature, settings)
    figures: dict[str, float | None] = start | {"start_first": training.measure_first()}
    stages = list(figures.values())
    figures["start_total"] = None if None in stages else sum(stage for stage in stages if stage is not None)
    _say("measuring memory and rows", session.rank)
    figures |= measure_copy(world, _COPY * seconds)
    figures |= measure_rows(world, feature, _ROWS * seconds)
    _say("measuring rounds", session.rank)
    figures |= measure_rounds(session, _ROUNDS * seconds)
    _say("measuring the training step, stage by stage", session.rank)
    figures |= training.measure_stages(_STAGES * seconds)
    _say("measuring the training step with prefetching", session.rank)
    figures |= training.measure_prefetching(_PREFETCHING * seconds, figures["step_total"] or 1.0, settings.report)
    figures |= _memory(world)  # before minibatches that are larger than asked for
    _say("measuring one trainer with all threads", session.rank)
    return figures | training.measure_trainers(_TRAINERS * seconds)


@contextmanager
@collective("trainers")
def _files_of_graph(world: World, settings: Settings) -> Iterator[tuple[str, str]]:
    """Name and configuration of the user's graph, or of one that trainer 0 generates and removes at the end."""
    if settings.part_config:
        with together(world.trainers, f"reading {settings.part_config}"):
            name = PartConfig.read(settings.part_config).graph_name
        yield name, settings.part_config
        return
    directory = ""
    place = tempfile.gettempdir() if world.all_local else "."  # temporary directories are each node's own
    try:
        with together(world.trainers, "generating a graph"):  # without a deadline: large graphs take minutes
            if world.trainers.rank == 0:
                directory = tempfile.mkdtemp(prefix="mpigraph-bench-", dir=settings.dir or place)
                _generate(settings, directory, len(world.hosts))
        shared = allgather_bytes(world.trainers, directory.encode())[0].decode()
        yield _NAME, str(Path(shared).absolute() / f"{_NAME}.json")
    finally:
        if directory:
            shutil.rmtree(directory, ignore_errors=True)


def _generate(settings: Settings, directory: str, num_parts: int) -> None:
    """Generate and partition in processes of their own, so that their memory does not count as this trainer's."""
    _say(f"generating a graph of {settings.nodes} nodes and {settings.edges} edges", 0)
    sizes: list[str | int] = ["--nodes", settings.nodes, "--edges", settings.edges, "--feat-dim", settings.feat_dim]
    _command("generate", *sizes, "-o", f"{directory}/data")
    _say(f"partitioning it into {num_parts} part(s)", 0)
    _command("partition", f"{directory}/data", "--parts", num_parts, "--name", _NAME, "-o", directory)


def _command(*words: str | int) -> None:
    argv = [sys.executable, "-m", "mpigraph", *map(str, words)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=alone())
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise InvalidArgumentError(lines[-1].partition("error: ")[2] or lines[-1])


def _feature_of(g: DistGraph) -> DistTensor:
    """Return the feature to gather: "feat", else the first with rows of floats; InvalidArgumentError without one."""
    names = [name for name, tensor in g.ndata.items() if len(tensor.shape) == 2 and tensor.dtype.is_floating_point]
    if not names:
        raise InvalidArgumentError(f"graph {g.graph_name!r} has no node feature with rows of floats to gather")
    return g.ndata["feat" if "feat" in names else names[0]]


def _say(text: str, rank: int) -> None:
    if rank == 0:
        print(f"bench: {text}", file=sys.stderr, flush=True)


def process_age() -> float | None:
    """Return the seconds since this process was started, None where the system does not tell."""
    try:
        after_name = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2]
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(after_name.split()[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):  # not Linux
        return None


def _machine() -> dict[str, Any]:
    return {
        "processor": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_GiB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
    }


def _memory(world: World) -> dict[str, float | None]:
    """Return peaks in MB: of this trainer; on the first trainer of a node also of its servers and of the node."""
    figures = {"memory_trainer": _megabytes(os.getpid(), "status", "VmHWM")}
    if world.local_trainer == 0:
        local_hosts = np.flatnonzero(world.is_local)
        trainers = world.trainers_of_host(int(local_hosts[0]))
        servers = sorted(set(world.hosts[local_hosts].tolist()) - set(trainers))
        peaks = [_megabytes(int(world.pids[rank]), "status", "VmHWM") for rank in servers]
        figures["memory_server"] = max(filter(None, peaks), default=None)
        sizes = [_megabytes(int(world.pids[rank]), "smaps_rollup", "Pss") for rank in [*trainers, *servers]]
        figures["memory_node"] = None if None in sizes else sum(filter(None, sizes))
    return figures


def _megabytes(pid: int, name: str, field: str) -> float | None:
    """Return a field of ``/proc/PID/NAME``, None where it cannot be read."""
    text = _field(f"/proc/{pid}/{name}", field)
    return int(text.removesuffix(" kB")) * 1024 / 1e6 if text else None


def _field(path: str, name: str) -> str:
    """Return the value of the first line ``name: value`` of a file of Linux's ``/proc``, empty if it is unreadable."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    line = re.search(rf"^{name}\s*:\s*(.*)$", text, re.MULTILINE)
    return line.group(1) if line else ""
