"""The sampling transport of a job: the one that ``MPIGRAPH_SAMPLING`` names, else the best that this MPI can do."""

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError
from mpigraph.log import get_logger
from mpigraph.mpi.agree import everywhere
from mpigraph.mpi.compat import library_version
from mpigraph.mpi.messages import Answer
from mpigraph.mpi.world import World
from mpigraph.sampling.channel import SamplingTransport
from mpigraph.sampling.in_step import InStep
from mpigraph.sampling.sparse import Sparse

EXCHANGES: tuple[type[SamplingTransport], ...] = (InStep, Sparse)
"""All transports; their names are the values of ``MPIGRAPH_SAMPLING``."""


@collective("world.comm")
def open_exchange(world: World, make_answer: Callable[[], Answer]) -> SamplingTransport:
    """Open the transport of a job; ``make_answer`` makes a function that answers requests, for one thread at a time.

    Requests go to owners alone where MPI allows it, which is faster on two hosts already (``tests/perf/README.md``).
    Nothing is measured at start: the transport also decides whether a trainer may sample alone, which must not change
    from run to run. Raises InvalidArgumentError if ``MPIGRAPH_SAMPLING`` names one that this MPI cannot do; on every
    rank.
    """
    setting = world.config.sampling
    able = np.array([world.threads_may_communicate], np.int8)
    world.comm.Allreduce(MPI.IN_PLACE, able, op=MPI.MIN)
    kind: type[SamplingTransport] = Sparse if able[0] else InStep
    if setting != "auto":
        kind = next(each for each in EXCHANGES if each.name == setting)
    if kind.needs_threads and not able[0]:
        raise everywhere(
            InvalidArgumentError(
                f"sampling {setting!r} needs MPI_THREAD_MULTIPLE, which {library_version()} was not started with: "
                "use auto or alltoallv"
            )
        )
    if world.rank == 0 and not world.all_local:
        get_logger().info("sampling requests: %s", kind.name)
    return kind(world, make_answer)
