"""The ranks of a command, those of a launcher or this process alone, without MPI; and the progress of its stages.

Progress goes to stderr: a bar in a terminal, and a line every ten seconds in a log. A thread redraws, so that the
elapsed time advances while a stage computes.
"""

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from mpigraph.cli.main import QUIET
from mpigraph.collective import collective
from mpigraph.compiling import REPORT
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


_BAR = "{desc:<22} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}]"
_CLOCK = "{desc:<22} {elapsed_s:.1f} s"  # for a stage of one step
_SECONDS_IN_TERMINAL = 0.2
_SECONDS_IN_LOG = 10.0
_SCALED = 10_000  # numbers of steps from here on are shown as 12.3k


class ProgressBar:
    """A display of stages, called as :data:`.Progress` says. A context manager."""

    def __init__(self) -> None:
        self._at: tuple[str, int, int, float] | None = None  # the stage in progress, steps done and all, its beginning
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._redraw, name="mpigraph-bar", daemon=True)

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` steps of a stage are over."""
        if total == 0:
            return
        with self._lock:
            if self._at and self._at[0] != stage:
                self._end()
            self._at = stage, done, total, self._at[3] if self._at else time.monotonic()
            if done >= total:
                self._end()

    def __enter__(self) -> "ProgressBar":
        self._thread.start()
        REPORT.tell = lambda text: _write(text, is_last=True)
        return self

    def __exit__(self, *_: object) -> None:
        REPORT.tell = None
        self._stop.set()
        self._thread.join()
        self._end()

    def _end(self) -> None:
        if self._at:
            self._draw(*self._at, is_last=True)
            self._at = None

    def _redraw(self) -> None:
        while not self._stop.wait(_SECONDS_IN_TERMINAL if sys.stderr.isatty() else _SECONDS_IN_LOG):
            with self._lock:
                if self._at:
                    self._draw(*self._at)

    def _draw(self, stage: str, done: int, total: int, begin: float, is_last: bool = False) -> None:
        status = "" if is_last else REPORT.status()
        line = tqdm.format_meter(
            done,
            total,
            time.monotonic() - begin,
            ncols=shutil.get_terminal_size().columns if sys.stderr.isatty() else None,
            prefix=f"{stage} ({status})" if status else stage,
            unit="",
            unit_scale=total >= _SCALED,
            bar_format=_CLOCK if total == 1 else _BAR,
        )
        _write(line.rstrip(), is_last)


def progress_of(exchange: Exchange) -> AbstractContextManager[Progress]:
    """Return the display of the first rank's work; other ranks, and quiet commands, show nothing."""
    return ProgressBar() if exchange.rank == 0 and not QUIET.get() else nullcontext(silent)


def _write(line: str, is_last: bool) -> None:
    """Write a line, in a terminal over the bar; the next one overwrites it unless it is the last."""
    if sys.stderr.isatty():
        line = f"\r{line:<{shutil.get_terminal_size().columns - 1}}"
    print(line, end="\n" if is_last or not sys.stderr.isatty() else "", file=sys.stderr, flush=True)
