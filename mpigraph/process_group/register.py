"""Registers the process group with torch as "mpi4py", and makes groups of the running job's trainers."""

import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import HashStore, register_rendezvous_handler  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import default_pg_timeout

from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError
from mpigraph.process_group.process_group import NAME, REST, MPIProcessGroup
from mpigraph.session.context import current

__all__ = ["MPIProcessGroup"]


@collective("those trainers")
def _create(options: Any, _: Any = None) -> MPIProcessGroup:
    """Make a group of the trainers that torch names."""
    session = current()
    world = session.world
    members = list(options.global_ranks_in_group) or list(range(session.num_trainers))
    expected = members.index(session.rank), len(members)
    if (options.group_rank, options.group_size) != expected:
        raise InvalidArgumentError(
            f"torch's rank and world size are {options.group_rank} and {options.group_size}, "
            f"the trainer's are {expected[0]} and {expected[1]}: unset RANK and WORLD_SIZE"
        )
    given = getattr(options, "timeout", None) or default_pg_timeout
    seconds = math.inf if given == default_pg_timeout else given.total_seconds()
    name = f"process group {options.group_id}"
    place = name if len(members) == session.num_trainers else ""
    group = MPIProcessGroup(world.group(members), world.meeting, world.progress, seconds, place, name, members)

    def end() -> None:
        with world.watch(REST):  # every trainer is here
            group.shutdown()

    world.at_close(end)
    return group


def _rendezvous(url: str, timeout: timedelta | None = None, **_: Any) -> Iterator[tuple[HashStore, int, int]]:
    """The rank and size by MPI, and a store that nobody else sees."""
    session = current()
    yield HashStore(), session.rank, session.num_trainers


dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
register_rendezvous_handler(NAME, _rendezvous)  # type: ignore[no-untyped-call]
