"""Worlds without a session, for tests of what lies below it."""

from collections.abc import Iterator
from contextlib import contextmanager

from conftest import WAIT, Job
from mpi4py import MPI

from mpigraph.config import Config
from mpigraph.mpi.world import World


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
