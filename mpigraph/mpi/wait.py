"""How to wait for other ranks: a named policy for each reason, and one function.

MPI's own blocking calls spin. Here a wait tests, some turns without a pause, then in sleeps that grow. Longer sleeps
leave core and interpreter lock to whoever computes; shorter ones notice the end earlier, and MPI moves bytes only while
it is called. Which matters more depends on whom one waits for, and that is what a policy names.
"""

import os
import time
from typing import NamedTuple

from mpi4py import MPI

from mpigraph.mpi.interrupts import UNINTERRUPTED, end_if_overdue

__all__ = [
    "BLOCKED",
    "BULK",
    "IDLE_SERVER_FAR",
    "IDLE_SERVER_NEAR",
    "IN_ROUND",
    "PEERS_COMPUTE",
    "PROGRESS",
    "TRANSFER",
    "Backoff",
    "Policy",
    "wait",
]


class Policy(NamedTuple):
    """When to test again.

    Attributes:
        spins: so many turns at once,
        first: then after this many seconds, and half as many more each turn,
        longest: up to this many.
        yields: turns between spins and sleeps in which whoever shares the core gets it.
    """

    spins: int
    first: float
    longest: float
    yields: int = 0

    def seconds(self, turn: int) -> float:
        """How long to sleep in a turn, the first being turn 0."""
        slept = turn - self.spins - self.yields
        return 0.0 if slept < 0 else min(self.first * 1.5 ** min(slept, 64), self.longest)


IN_ROUND = Policy(spins=5, first=1e-5, longest=1e-4)
"""The others take part now. Sleeps of milliseconds make a round of 0.1 ms one of 2.5 ms (4 ranks on 2 cores); spinning
holds up the model in another thread, which then waits for the interpreter lock at each operation."""

TRANSFER = Policy(spins=2, first=2e-5, longest=3e-4)
"""Rows are travelling in pieces: MPI moves them when it is called, so longer sleeps hold them up. Sockets hold what a
stream of some GB/s brings meanwhile; with sleeps of 0.1 ms polling takes a tenth of the time that moving rows takes."""

BLOCKED = Policy(spins=100, first=2e-5, longest=2e-5, yields=300)
"""This process can do nothing before the result is here, and a torch collective takes tens of microseconds. On a busy
core a yield costs milliseconds, so it is not the first thing to do."""

BULK = Policy(spins=50, first=2e-5, longest=1e-4, yields=100_000)
"""Megabytes travel between ranks that do nothing else, and that all are here. MPICH moves one cell of its shared memory
at a call: with sleeps 50 MB/s, with yields 10 times that."""

PEERS_COMPUTE = Policy(spins=5, first=2e-5, longest=2e-3)
"""The others come when their work is done, which may take seconds, and may need this core for it."""

PROGRESS = Policy(spins=20, first=2e-5, longest=2e-4)
"""Operations that nobody waits for yet, beside computing: an all_reduce of 4 MB over 1 Gbit/s then takes 6 ms of 52 ms
of computing instead of 32 ms after it."""

IDLE_SERVER_FAR = Policy(spins=2, first=1e-4, longest=1e-3)
"""Rows or rounds may be asked for at any moment, or not for hours: below 3 % of a core. A trainer asks again after
milliseconds at the earliest, and each look costs its core tens of microseconds, mostly since it begins with cold
caches."""

IDLE_SERVER_NEAR = Policy(spins=5, first=1e-4, longest=2e-2)
"""Only control calls can come, since trainers read this memory themselves; they wait for all ranks anyway."""


class Backoff:
    """The pauses of a loop that polls: they grow from turn to turn until something moves."""

    def __init__(self) -> None:
        self._turn = 0

    def reset(self) -> None:
        """Something moved: begin again without sleeping."""
        self._turn = 0

    def pause(self, policy: Policy) -> None:
        """Wait one turn."""
        if UNINTERRUPTED.since:
            end_if_overdue()
        turn = self._turn
        self._turn += 1
        seconds = policy.seconds(turn)
        if seconds:
            time.sleep(seconds)
        elif turn >= policy.spins:
            os.sched_yield()


def wait(request: MPI.Request, policy: Policy, status: MPI.Status | None = None) -> None:
    """Complete a request, of which ``status`` then tells. Blocking, for as long as those take whom it needs."""
    backoff = Backoff()
    while not request.Test(status):
        backoff.pause(policy)
