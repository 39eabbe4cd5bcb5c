"""The saves of a job: at most one at a time is written in the background, by a thread of every trainer."""

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpigraph.checkpoint.folder import Peers, Writer
from mpigraph.checkpoint.saving import Save
from mpigraph.collective import collective
from mpigraph.errors import MPIGraphError
from mpigraph.log import get_logger
from mpigraph.mpi.messages import Comm
from mpigraph.mpi.wait import join
from mpigraph.rows.segments import RowPool
from mpigraph.rows.transport import nothing
from mpigraph.session.context import BackgroundLoop, Session
from mpigraph.trace import clock

_NICE = 10
SHARE = 0.08  # of a core: what training loses where all cores are busy
_KEPT = 1000  # copies of one size, for the next save
_LOOP = 0  # channels, the other loops of a session, have numbers from 1 on


class Saver(BackgroundLoop):
    """The saves of one job; ``writer`` is its right to write."""

    def __init__(self, session: Session) -> None:
        """Save nothing yet."""
        self._session = session
        self.writer = Writer()
        self._copies = RowPool(kept=_KEPT, largest=sys.maxsize)
        self._comm: Comm | None = None
        self._thread: threading.Thread | None = None
        self._pace = Pace()
        self._error: MPIGraphError | None = None

    @collective("trainers")
    def save(self, state_dict: dict[str, Any], directory: Path, keep: int | None, background: bool) -> None:
        """Wait for the save before, whose error is raised here, and save a state dict."""
        self.finish()
        session = self._session
        background = background and session.world.threads_may_communicate
        self._pace = Pace()
        copies, pause = (self._copies, self._pace.pause) if background else (None, nothing)
        save = Save(session, self.writer, state_dict, directory, keep, copies, pause)
        if not background:
            save.run(Peers(session.world))
            return
        if self._comm is None:
            self._comm = session.world.group(range(session.num_trainers))
        session.loops[_LOOP] = self
        self._thread = threading.Thread(
            target=self._run, args=(save, self._comm), name="mpigraph-checkpoint", daemon=True
        )
        self._thread.start()

    def finish(self) -> None:
        """Wait for the save in the background. Raises its error, the same on every trainer."""
        self._join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _join(self) -> None:
        if self._thread is not None:
            self._pace.urgent.set()
            with self._session.world.watchdog.own("the writing of a checkpoint"):
                join(self._thread)  # the user may interrupt it, and wait again later
            self._thread = None

    def abandon(self, because: str) -> None:
        """Do nothing: the save is written to its end."""

    @collective("trainers")
    def stop(self, because: str) -> None:
        """Wait for the save in the background, and log its error."""
        self._join()
        if self._error is not None and self._session.rank == 0:
            get_logger().error("the last checkpoint was not written: %s", self._error)
        if self._comm is not None:
            self._comm.Free()
            self._comm = None

    def _run(self, save: Save, comm: Comm) -> None:
        """Run the thread; foreign errors end the job, as in any thread."""
        world = self._session.world
        with world.watchdog.working():
            try:
                self._pace.step_back()
                save.copy_rows(Peers(world, comm))
                save.run(Peers(world, comm))
            except MPIGraphError as error:  # on every trainer
                self._error = error


class Pace:
    """Keeps a thread at a small share of a core.

    A low priority alone does not suffice: a trainer that needs the core is often asleep, waiting for a peer that waits
    for a core. So the thread rests after each piece of work. Waiting for the disk counts as rest.
    """

    def __init__(self) -> None:
        self.urgent = threading.Event()  # somebody waits: rest no more
        self.begun = self.worked = 0.0  # clock and processor time at the begin of a piece of work

    def step_back(self) -> None:
        """Begin, at the lowest priority."""
        if sys.platform == "linux":  # where threads have priorities of their own
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        self._work()

    def pause(self) -> None:
        """Rest in proportion to the work since the last call."""
        took, worked = clock() - self.begun, time.thread_time() - self.worked
        self.urgent.wait(max(0.0, worked / SHARE - took))
        self._work()

    def _work(self) -> None:
        self.begun = clock()
        self.worked = time.thread_time()


def saver_of(session: Session) -> Saver:
    """Return the saver of a job, the same on each call."""
    if session.saver is None:
        session.saver = Saver(session)
    assert isinstance(session.saver, Saver)
    return session.saver
