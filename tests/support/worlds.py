"""Worlds without a session, and rows for their windows, for tests of what lies below a session."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from layouts import WAIT, Job
from mpi4py import MPI

from mpigraph.config import Config
from mpigraph.mpi.messages import HEAD
from mpigraph.mpi.world import World
from mpigraph.rows.service import RowService
from mpigraph.rows.window import RowWindow
from mpigraph.trace import sums

HELD = 300  # rows that each host has in a window of :func:`filled_window`


def counted(name: str) -> int:
    """Return the sum of a counter that has hosts, of all threads and hosts."""
    return sum(value for one in sums()[1].values() for key, value in one.counts.items() if key[0] == name)


@contextmanager
def world_of(job: Job, **settings: object) -> Iterator[World]:
    config = Config(ranks_per_node=job.layout.ranks_per_node, timeout=WAIT, **settings)
    world = World(job.comm, job.layout.servers, config)
    yield world
    world.close()


@contextmanager
def rows_of(job: Job, **settings: object) -> Iterator[RowService]:
    with world_of(job, **settings) as world:
        yield RowService(world)


@contextmanager
def flat_world(comm: MPI.Intracomm) -> Iterator[World]:
    """Every rank a node of its own."""
    world = World(comm, 0, Config(ranks_per_node=1, timeout=WAIT))
    yield world
    world.close()


def simulated_world(nodes: int, ranks_per_node: int, servers: int, rank: int = 0) -> World:
    """What a rank of a large job knows of the others, without any communicator."""
    world = World.__new__(World)
    world.rank, world.size = rank, nodes * ranks_per_node
    world.num_nodes, world.node_index = nodes, rank // ranks_per_node
    world.node_of = np.repeat(np.arange(nodes), ranks_per_node)
    world.machine_of = world.node_of
    world.domains = np.full(world.size, -1)
    world.assign_roles(servers)
    return world


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called from Python: what grows with the ranks where Python loops over them."""
    count = 0

    def note(frame: object, event: str, _: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def meet(world: World, progress: Callable[[], bool]) -> None:
    """A barrier in which servers make progress; ``progress`` returns whether there was anything to do."""
    request = world.comm.Ibarrier()
    while not request.Test():
        if world.is_trainer or not progress():
            time.sleep(1e-4)


def row_values(ids: npt.NDArray[np.int64], shape: tuple[int, ...], dtype: str) -> npt.NDArray[np.generic]:
    """Rows that say their numbers in every element, as far as the dtype goes."""
    width = int(np.prod(shape))
    return ((ids[:, None] * 7 + np.arange(width)) % 251 + 1).astype(dtype).reshape(len(ids), *shape)


def words_between(asker: int, target: int) -> npt.NDArray[np.int64]:
    """What ``asker`` asks of ``target``: sometimes nothing."""
    return np.arange((asker + 2 * target) % 4, dtype=np.int64) + 100 * asker + 10 * target


def answer_to(words: npt.NDArray[np.int64], me: int) -> npt.NDArray[np.int64]:
    """An asker gets its words back, ``me`` added."""
    return words + me


def behind_head(answer: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """An answer as an exchange wants it."""
    return np.concatenate([np.zeros(HEAD, np.int64), answer])


def asked_of(asker: int, size: int) -> dict[int, npt.NDArray[np.int64]]:
    """By rank what ``asker`` asks of it: :func:`words_between`, where that is anything."""
    return {target: words_between(asker, target) for target in range(size) if len(words_between(asker, target))}


def filled_window(service: RowService, shape: tuple[int, ...], dtype: str) -> RowWindow:
    world = service.world
    window = RowWindow(service, np.arange(len(world.hosts) + 1) * HELD, shape, dtype)
    if world.is_host:
        mine = np.arange(HELD) + world.host_index * HELD
        window.memory(world.host_index)[:] = row_values(mine, shape, dtype)
    window.sync()
    world.comm.Barrier()
    window.sync()
    return window


WAYS = ("rma", "packed")
"""Of reading remote rows: with windows that reach other nodes, and without."""
