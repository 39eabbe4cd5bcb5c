"""The graph to measure on: the user's, or one that trainer 0 generates for the job."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from mpigraph.cli.bench.settings import Settings
from mpigraph.distributed.graph import DistGraph
from mpigraph.distributed.tensor import DistTensor
from mpigraph.errors import InvalidArgumentError
from mpigraph.metadata.schema import Schema
from mpigraph.mpi.agree import allgather_bytes, together
from mpigraph.mpi.world import World
from mpigraph.partition.generate import Recipe, generate_graph
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage.part_config import PartConfig

__all__ = ["Place", "feature_of", "place_of_graph"]

_NAME = "bench"


class Place(NamedTuple):
    """Where a partitioned graph is.

    Local; no communication.
    """

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
        with world.watch("generating a graph"), together(world.trainers, "generating a graph"):
            if world.trainers.rank == 0:
                directory = tempfile.mkdtemp(prefix="mpigraph-bench-", dir=settings.dir or _shared_directory(world))
                _generate(settings, directory, len(world.hosts))
                _forget_peak()
        shared = allgather_bytes(world.trainers, directory.encode())[0].decode()
        yield Place(_NAME, str(Path(shared).absolute() / f"{_NAME}.json"))
    finally:
        if directory:
            shutil.rmtree(directory, ignore_errors=True)


def feature_of(g: DistGraph) -> DistTensor:
    """The feature to gather: "feat", else the first with rows of floats.

    Raises:
        InvalidArgumentError: there is none.

    Local; no communication.
    """
    wide = [name for name, tensor in g.ndata.items() if len(tensor.shape) == 2 and tensor.dtype.is_floating_point]
    if not wide:
        raise InvalidArgumentError(f"graph {g.graph_name!r} has no node feature with rows of floats to gather")
    return g.ndata["feat" if "feat" in wide else wide[0]]


def _shared_directory(world: World) -> str:
    """Where every node sees the files: here if there are several nodes, since temporary directories are local."""
    return tempfile.gettempdir() if world.all_near else "."


def _generate(settings: Settings, directory: str, num_parts: int) -> None:
    print(f"generating {settings.nodes} nodes, {settings.edges} edges", file=sys.stderr, flush=True)
    data = generate_graph(Recipe(settings.nodes, settings.edges, feat_dim=settings.feat_dim))
    source = GraphSource(
        Schema.homogeneous(),
        (settings.nodes,),
        ((data["edge_src"], data["edge_dst"]),),
        {"_N": {"feat": Feature.of(data["feat"])}},
    )
    partition_source(source, _NAME, num_parts, directory, "metis", keep_edge_ids=False)


def _forget_peak() -> None:
    """Start this process's peak of resident memory again, so that generating does not count; Linux only."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return
