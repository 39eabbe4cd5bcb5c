"""The ranks of a command, those of a launcher or this process alone, without MPI; and the progress of its stages.

Progress goes to stderr: a bar in a terminal, and in a log a line at most every ten seconds.
"""

import math
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from mpigraph.cli.main import QUIET, say
from mpigraph.collective import collective
from mpigraph.config import launch
from mpigraph.partition.exchange import ALONE, Exchange, Progress, silent
from mpigraph.storage.part_config import PartConfig

if TYPE_CHECKING:  # it loads MPI, and one process needs none
    from mpigraph.mpi.world import World


@contextmanager
@collective("comm")
def working_ranks(command: str, comm: Any = None) -> Iterator[Exchange]:
    """Run a command on the ranks that a launcher started with this process, or on this process alone.

    Arguments and errors are those of :func:`working_world`.
    """
    if comm is None and launch() is None:
        yield ALONE
        return
    from mpigraph.partition.over_mpi import MPIExchange

    with working_world(command, comm) as world:
        yield MPIExchange(world.comm)


@contextmanager
@collective("comm")
def working_world(command: str, comm: Any = None, num_servers: int | None = 0) -> Iterator["World"]:
    """Run a command on all ranks of a job, by MPI.

    An error that every rank raises is raised; an error of one rank, for which the others would wait, ends the job.

    Args:
        command: its name, for the message.
        comm: the ranks that take part, all by default.
        num_servers: on each node; None for the number of the environment.
    """
    from mpigraph.mpi.abort import abort, unguard
    from mpigraph.mpi.world import open_world

    world = open_world(comm, num_servers)
    try:
        yield world
    except Exception as error:
        if not getattr(error, "everywhere", False) and world.size > 1:
            text = str(error).replace("\n", " ") or type(error).__name__
            abort(2, f"mpigraph {command}: error on rank {world.rank}: {text}\n")
        world.close()
        unguard()
        raise
    world.close()
    unguard()


@collective("ranks")
def read_config(exchange: Exchange, part_config: str) -> PartConfig:
    """Read a partition configuration, which must be the same on all ranks.

    Raises PartitionError: it is missing or damaged; CollectiveError: it differs between ranks; on every rank.
    """
    with exchange.together(f"reading {part_config}"):
        config = PartConfig.read(part_config)
    exchange.same(f"{part_config}: nodes have different graphs there", {"checksum": config.checksum})
    return config


_SECONDS_IN_TERMINAL = 0.2
_SECONDS_IN_LOG = 10.0


class ProgressBar:
    """A display of stages, called as :data:`.Progress` says: tqdm's bar, which begins anew with each stage."""

    def __init__(self) -> None:
        self._stage = ""
        self._begin = self._shown = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` steps of a stage are over."""
        if total == 0:
            return
        now, in_terminal = time.monotonic(), sys.stderr is not None and sys.stderr.isatty()
        if stage != self._stage:
            self._stage, self._begin, self._shown = stage, now, -math.inf
        if done < total and now - self._shown < (_SECONDS_IN_TERMINAL if in_terminal else _SECONDS_IN_LOG):
            return
        self._shown = now
        columns = shutil.get_terminal_size().columns - 1 if in_terminal else None
        line = tqdm.format_meter(done, total, now - self._begin, columns, stage)
        stays = done >= total or not in_terminal  # else the next line is written over it
        say(f"\r{line}" if in_terminal else line, end="\n" if stays else "")


def progress_of(exchange: Exchange) -> Progress:
    """Return the display of the first rank's work; other ranks, and quiet commands, show nothing."""
    return ProgressBar() if exchange.rank == 0 and not QUIET.get() else silent
