"""Worlds without a session, for tests of what lies below it."""

from collections.abc import Iterator
from contextlib import contextmanager

from conftest import WAIT, Job
from mpi4py import MPI

from mpigraph.config import Config
from mpigraph.mpi.window import shared_query_works
from mpigraph.mpi.world import World


def window_kinds() -> list[str]:
    """The ways of allocating windows that this MPI has."""
    win = MPI.Win.Allocate(8, 1, comm=MPI.COMM_SELF)
    works = shared_query_works(win, [0], 8)
    win.Free()
    return ["allocate", "create"] if works else ["create"]


KINDS = window_kinds()


@contextmanager
def world_of(job: Job, **settings: object) -> Iterator[World]:
    config = Config(ranks_per_node=job.layout.ranks_per_node, timeout=WAIT, **settings)
    world = World(job.comm, job.layout.servers, config)
    yield world
    world.close()


@contextmanager
def flat_world(comm: MPI.Intracomm) -> Iterator[World]:
    """Every rank a node of its own."""
    world = World(comm, 0, Config(ranks_per_node=1, timeout=WAIT))
    yield world
    world.close()
