"""The graph to measure on: the user's, or one that trainer 0 generates for the job."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from mpigraph.cli.bench.settings import Settings
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import InvalidArgumentError
from mpigraph.mpi.agree import allgather_bytes, together
from mpigraph.mpi.world import World
from mpigraph.storage.part_config import PartConfig

__all__ = ["Place", "feature_of", "place_of_graph"]

_NAME = "bench"


class Place(NamedTuple):
    """Where a partitioned graph is."""

    name: str
    config: str


@contextmanager
def place_of_graph(world: World, settings: Settings) -> Iterator[Place]:
    """The graph's files; a generated graph is removed at the end, when it is in memory. Collective on the trainers.

    Raises:
        InvalidArgumentError: the recipe cannot be met; on every trainer.
        PartitionError: the configuration is missing or damaged; on every trainer.
    """
    if settings.part_config:
        with together(world.trainers, f"reading {settings.part_config}"):
            name = PartConfig.read(settings.part_config).graph_name
        yield Place(name, settings.part_config)
        return
    directory = ""
    try:
        with together(world.trainers, "generating a graph"):  # without a deadline: large graphs take minutes
            if world.trainers.rank == 0:
                directory = tempfile.mkdtemp(prefix="mpigraph-bench-", dir=settings.dir or _shared_directory(world))
                _generate(settings, directory, len(world.hosts))
        shared = allgather_bytes(world.trainers, directory.encode())[0].decode()
        yield Place(_NAME, str(Path(shared).absolute() / f"{_NAME}.json"))
    finally:
        if directory:
            shutil.rmtree(directory, ignore_errors=True)


def feature_of(g: DistGraph) -> DistTensor:
    """The feature to gather: "feat", else the first with rows of floats.

    Raises:
        InvalidArgumentError: there is none.
    """
    wide = [name for name, tensor in g.ndata.items() if len(tensor.shape) == 2 and tensor.dtype.is_floating_point]
    if not wide:
        raise InvalidArgumentError(f"graph {g.graph_name!r} has no node feature with rows of floats to gather")
    return g.ndata["feat" if "feat" in wide else wide[0]]


def _shared_directory(world: World) -> str:
    """Where every node sees the files: here if there are several nodes, since temporary directories are local."""
    return tempfile.gettempdir() if world.all_near else "."


def _generate(settings: Settings, directory: str, num_parts: int) -> None:
    """Generate and partition in processes of their own, so that their memory does not count as this trainer's."""
    print(f"generating {settings.nodes} nodes, {settings.edges} edges", file=sys.stderr, flush=True)
    sizes: list[str | int] = ["--nodes", settings.nodes, "--edges", settings.edges, "--feat-dim", settings.feat_dim]
    _command("generate", *sizes, "-o", f"{directory}/data")
    _command("partition", f"{directory}/data", "--parts", num_parts, "--name", _NAME, "-o", directory)


def _command(*words: str | int) -> None:
    """Run a command of this command line that needs no MPI."""
    done = subprocess.run(
        [sys.executable, "-m", "mpigraph", *map(str, words)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise InvalidArgumentError(said[-1].partition("error: ")[2] or said[-1])
