"""One run: start the job, measure part by part, report once."""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from mpigraph.cli.bench import report
from mpigraph.cli.bench.figures import collect
from mpigraph.cli.bench.machine import describe, measure_memory
from mpigraph.cli.bench.micro import measure_copy, measure_rounds, measure_rows
from mpigraph.cli.bench.settings import Settings
from mpigraph.cli.bench.step import TrainingStep
from mpigraph.cli.bench.verdict import FLOAT16, METIS, NO_SERVERS, verdict
from mpigraph.config import alone, launcher_rank
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import InvalidArgumentError
from mpigraph.mpi.agree import allgather_bytes, together
from mpigraph.mpi.world import World
from mpigraph.session.context import Session, current, exit_client, initialize
from mpigraph.storage.part_config import PartConfig

__all__ = ["run"]

# fractions of Settings.seconds
_COPY = 0.1
_ROWS = 0.3
_ROUNDS = 0.1
_STAGES = 0.25
_PREFETCHING = 0.25
_NAME = "bench"  # of the generated graph


def run(settings: Settings, age: float | None, comm: Any = None) -> int:
    """Measure and report; on a server, serve.

    Args:
        settings: what to measure on.
        age: seconds since this process was started, or None.
        comm: the ranks that take part; all by default.

    Returns:
        The exit status, on trainers.

    Raises:
        MPIGraphError: the job could not be started or the report not written; on every trainer.
        SystemExit: on a server, when the job is over.

    Collective on ``comm``.
    """
    if settings.plot:
        report.need_matplotlib()
    rank = launcher_rank() if comm is None else comm.rank
    _say("starting the ranks; kernels are compiled where they are not cached", rank)
    begin = time.perf_counter()
    initialize(num_servers=settings.num_servers, comm=comm)
    start = {"start_python": age, "start_initialize": time.perf_counter() - begin}
    session = current()
    try:
        _measure_and_report(session, settings, start)
    except Exception as error:
        if session.world.size > 1 and not getattr(error, "everywhere", False):
            sys.excepthook(type(error), error, error.__traceback__)  # the others wait for this rank: end the job
        raise
    exit_client()
    return 0


def _measure_and_report(session: Session, settings: Settings, start: dict[str, float | None]) -> None:
    world = session.world
    with together(world.trainers, "checking --out and --plot"):
        if session.rank == 0:
            for path in filter(None, (settings.out, settings.plot)):
                report.check_file_writable(path)
    measured, in_force = _measure(session, settings, start)
    figures = collect(world, start | measured)
    found = report.document(world, settings, describe(), figures, verdict(figures, in_force))
    with world.together("writing the report"):
        if session.rank == 0:
            print(report.table(found), flush=True)
            if settings.out:
                report.write(found, settings.out)
            if settings.plot:
                report.draw(found, settings.plot)


def _measure(
    session: Session, settings: Settings, start: dict[str, float | None]
) -> tuple[dict[str, float | None], set[str]]:
    """Return every figure of this trainer except those of the start, and the advice that the job follows already.

    Collective on the trainers.
    """
    world = session.world
    seconds = settings.seconds
    with _files_of_graph(world, settings) as files:
        _say("loading the graph", session.rank)
        begin = time.perf_counter()
        g = DistGraph(files.name, part_config=files.config)
        loaded = time.perf_counter() - begin
        method = PartConfig.read(files.config).part_method
    _say("making a loader and the first minibatch", session.rank)
    feature = _feature_of(g)
    training = TrainingStep(session, g, feature, settings)
    mine: dict[str, float | None] = {"start_load": loaded, "start_first": training.measure_first()}
    stages = [*start.values(), *mine.values()]
    mine["start_total"] = None if None in stages else sum(stage for stage in stages if stage is not None)
    _say("measuring memory and rows", session.rank)
    mine |= measure_copy(world, _COPY * seconds)
    mine |= measure_rows(world, feature, _ROWS * seconds)
    _say("measuring rounds", session.rank)
    mine |= measure_rounds(session, _ROUNDS * seconds)
    _say("measuring the training step, stage by stage", session.rank)
    mine |= training.measure_stages(_STAGES * seconds)
    _say("measuring the training step with prefetching", session.rank)
    mine |= training.measure_prefetching(_PREFETCHING * seconds, mine["step_total"] or 1.0)
    if not world.all_near:
        _say("sampling an epoch, for caches of other sizes", session.rank)
        mine |= training.simulate_caches()
    return mine | measure_memory(world), _in_force(world, feature, method)


def _in_force(world: World, feature: DistTensor, part_method: str) -> set[str]:
    """Return the advice that a job follows already."""
    found = set() if world.num_servers else set(NO_SERVERS)
    if part_method != "random":
        found.add(METIS)
    if feature.storage_dtype.itemsize == 2:
        found.add(FLOAT16)
    transport = feature.rows.window.service.transport
    return found if transport is None else found | {f"MPIGRAPH_TRANSPORT={transport.name}"}


class _Files(NamedTuple):
    """A partitioned graph on disk: its name and its configuration."""

    name: str
    config: str


@contextmanager
def _files_of_graph(world: World, settings: Settings) -> Iterator[_Files]:
    """The files of the user's graph, or of one that trainer 0 generates for the job and that is removed at the end.

    Raises:
        InvalidArgumentError: the recipe cannot be met; on every trainer.
        PartitionError: the configuration is missing or damaged; on every trainer.

    Collective on the trainers.
    """
    if settings.part_config:
        with together(world.trainers, f"reading {settings.part_config}"):
            name = PartConfig.read(settings.part_config).graph_name
        yield _Files(name, settings.part_config)
        return
    directory = ""
    try:
        with together(world.trainers, "generating a graph"):  # without a deadline: large graphs take minutes
            if world.trainers.rank == 0:
                directory = tempfile.mkdtemp(prefix="mpigraph-bench-", dir=settings.dir or _shared_directory(world))
                _generate(settings, directory, len(world.hosts))
        shared = allgather_bytes(world.trainers, directory.encode())[0].decode()
        yield _Files(_NAME, str(Path(shared).absolute() / f"{_NAME}.json"))
    finally:
        if directory:
            shutil.rmtree(directory, ignore_errors=True)


def _shared_directory(world: World) -> str:
    """Where every node sees the files: here if there are several nodes, since temporary directories are local."""
    return tempfile.gettempdir() if world.all_near else "."


def _generate(settings: Settings, directory: str, num_parts: int) -> None:
    """Generate and partition in processes of their own, so that their memory does not count as this trainer's."""
    _say(f"generating a graph of {settings.nodes} nodes and {settings.edges} edges", 0)
    sizes: list[str | int] = ["--nodes", settings.nodes, "--edges", settings.edges, "--feat-dim", settings.feat_dim]
    _command("generate", *sizes, "-o", f"{directory}/data")
    _say(f"partitioning it into {num_parts} part(s)", 0)
    _command("partition", f"{directory}/data", "--parts", num_parts, "--name", _NAME, "-o", directory)


def _command(*words: str | int) -> None:
    """Run a command of this command line in one process, without MPI."""
    done = subprocess.run(
        [sys.executable, "-m", "mpigraph", *map(str, words)], capture_output=True, text=True, check=False, env=alone()
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise InvalidArgumentError(lines[-1].partition("error: ")[2] or lines[-1])


def _feature_of(g: DistGraph) -> DistTensor:
    """Return the feature to gather: "feat", else the first with rows of floats.

    Raises:
        InvalidArgumentError: there is none.
    """
    names = [name for name, tensor in g.ndata.items() if len(tensor.shape) == 2 and tensor.dtype.is_floating_point]
    if not names:
        raise InvalidArgumentError(f"graph {g.graph_name!r} has no node feature with rows of floats to gather")
    return g.ndata["feat" if "feat" in names else names[0]]


def _say(what: str, rank: int) -> None:
    """Say on rank 0 what begins."""
    if rank == 0:
        print(f"bench: {what}", file=sys.stderr, flush=True)
