"""All ranks of a job, and a world of them without a session, for commands that need neither rows nor torch."""

from mpi4py import MPI

from mpigraph.collective import collective
from mpigraph.config import Config
from mpigraph.errors import MPIGraphError
from mpigraph.log import set_identity
from mpigraph.mpi.abort import guard
from mpigraph.mpi.agree import everywhere
from mpigraph.mpi.compat import library_version, unlink_segments
from mpigraph.mpi.start import check_connected, start_mpi
from mpigraph.mpi.world import World

__all__ = ["job_comm", "open_world"]


if MPI.Is_initialized():  # by the script: from now on what kills this process leaves nothing
    unlink_segments()


def job_comm(comm: MPI.Intracomm | None) -> MPI.Intracomm:
    """Return the ranks that take part, by default all; start MPI unless it runs.

    From now on, an uncaught exception ends the job; also one of its start.
    """
    start_mpi()
    unlink_segments()  # what kills this process leaves nothing from now on
    everyone = MPI.COMM_WORLD if comm is None else comm
    if comm is None:
        check_connected(everyone.size, library_version())
    if everyone.size > 1:
        guard(f"rank {everyone.rank}", everyone.rank)
    return everyone


@collective("comm", "or by default all ranks")
def open_world(comm: MPI.Intracomm | None) -> World:
    """Make a world of trainers without a session, for what needs ranks and nodes but no rows, and so no threads of MPI.

    Until ``unguard`` is called, an exception that nobody catches ends the job.

    Raises:
        MPIGraphError: what the environment says of the job is wrong; on every rank.
    """
    everyone = job_comm(comm)
    try:
        config = Config.from_env(num_servers=0)
        world = World(everyone, config.num_servers, config)
    except MPIGraphError as error:
        everywhere(error)  # all ranks decide by the same numbers
        raise
    set_identity(world.identity, config.log_level)
    return world
