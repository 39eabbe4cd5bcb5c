"""Waits for other ranks: a named policy for each reason to wait, and one function.

MPI's own blocking calls spin. A wait here tests, some turns without a pause, then between sleeps that grow. Longer
sleeps leave core and interpreter lock to threads that compute. Shorter sleeps notice the end earlier, and MPI moves
bytes only while it is called. The better choice depends on the rank that is waited for: a policy names it.
"""

import os
import threading
import time
from typing import NamedTuple

from mpi4py import MPI

from mpigraph.mpi.interrupts import UNINTERRUPTED, end_if_overdue


class Policy(NamedTuple):
    """The times at which a wait tests again.

    Attributes:
        spins: turns without a pause.
        first: seconds of the first sleep; each one is half as long again.
        longest: seconds of a sleep at most.
        yields: turns between spins and sleeps that give the core to another process.
        quiet: seconds of a sleep at most after the first :data:`PATIENCE` sleeps, if that is more.
    """

    spins: int
    first: float
    longest: float
    yields: int = 0
    quiet: float = 0.0

    def seconds(self, turn: int) -> float:
        """Return the seconds to sleep in a turn, the first being turn 0."""
        slept = turn - self.spins - self.yields
        if slept < 0:
            return 0.0
        longest = self.longest if slept < PATIENCE else max(self.longest, self.quiet)
        return min(self.first * 1.5 ** min(slept, 64), longest)


PATIENCE = 1000
"""Sleeps after which nothing is expected soon: at 1 ms each, a second."""


IN_ROUND = Policy(spins=5, first=1e-5, longest=1e-4)
"""The others take part now. Sleeps of milliseconds turn a round of 0.1 ms into one of 2.5 ms (4 ranks on 2 cores).
Spinning delays the model in another thread, which then waits for the interpreter lock at each operation."""

TRANSFER = Policy(spins=2, first=2e-5, longest=3e-4)
"""Rows are travelling in pieces: MPI moves them when it is called, so longer sleeps delay them. Sockets buffer a stream
of a few GB/s meanwhile. With sleeps of 0.1 ms polling takes a tenth of the time that moving rows takes."""

BLOCKED = Policy(spins=100, first=2e-5, longest=2e-5, yields=300)
"""This process can do nothing before the result is here, and a torch collective takes tens of microseconds. On a busy
core a yield costs milliseconds, so it is not the first thing to do."""

BULK = Policy(spins=50, first=2e-5, longest=1e-4, yields=100_000)
"""Megabytes travel between ranks that are all here and do nothing else. MPICH moves one cell of its shared memory at a
call: with sleeps 50 MB/s, with yields 10 times that."""

PEERS_COMPUTE = Policy(spins=5, first=2e-5, longest=2e-3)
"""The others come when their work is done, which may take seconds, and may need this core for it."""

PROGRESS = Policy(spins=20, first=2e-5, longest=2e-4)
"""Operations that advance beside computing: an all_reduce of 4 MB over 1 Gbit/s then takes 6 ms of 52 ms of computing
instead of 32 ms after it."""

IDLE_SERVER_REMOTE = Policy(spins=2, first=1e-4, longest=1e-3, quiet=2e-2)
"""Requests for rows or rounds may come at any moment, or not for hours. A trainer asks again after milliseconds at the
earliest, and each look costs its core tens of microseconds, mostly because of cold caches. So a request waits 1 ms at
most (3 % of a core), or 20 ms (50 looks a second) if the last one was more than a second ago."""

IDLE_SERVER_LOCAL = Policy(spins=5, first=1e-4, longest=2e-2)
"""Only control calls can come, since trainers read this memory themselves; they wait for all ranks anyway."""


class Backoff:
    """The pauses of a loop that polls: they grow from turn to turn until something moves."""

    def __init__(self) -> None:
        self._turn = 0

    def reset(self) -> None:
        """Something moved: begin again without sleeping."""
        self._turn = 0

    def next(self, policy: Policy) -> float:
        """Return the seconds to sleep in this turn."""
        if UNINTERRUPTED.since:
            end_if_overdue()
        self._turn += 1
        return policy.seconds(self._turn - 1)

    def pause(self, policy: Policy) -> None:
        """Wait one turn."""
        seconds = self.next(policy)
        if seconds:
            time.sleep(seconds)
        elif self._turn > policy.spins:
            os.sched_yield()


def wait(request: MPI.Request, policy: Policy, status: MPI.Status | None = None) -> None:
    """Complete a request and fill ``status``. Blocking."""
    backoff = Backoff()
    while not request.Test(status):
        backoff.pause(policy)


def join(thread: threading.Thread) -> None:
    """Wait until a thread has ended. Ctrl-C leaves this wait, and the thread runs on.

    Not by ``Thread.join``: if an exception leaves that one, Python 3.11 takes the thread for ended (bpo-45274).
    """
    backoff = Backoff()
    while is_running(thread):
        backoff.pause(PEERS_COMPUTE)


def is_running(thread: threading.Thread) -> bool:
    """Return whether a thread runs; ``Thread.is_alive`` alone has the fault of ``Thread.join``."""
    with UNINTERRUPTED:
        return thread.is_alive()
