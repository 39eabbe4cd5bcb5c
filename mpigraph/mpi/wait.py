"""Waits for other ranks: one loop that polls, three policies, and Ctrl-C in the middle of communication.

MPI's own blocking calls spin. A wait here tests, some turns without a pause, then between sleeps that grow. Longer
sleeps leave core and interpreter lock to threads that compute. Shorter sleeps notice the end earlier, and MPI moves
bytes only while it is called. The better choice depends on the rank that is waited for: a policy names it.
"""

import math
import os
import signal
import sys
import threading
import time
from _signal import getsignal  # type: ignore[import-not-found]  # that of signal takes 20 times as long
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import CO_VARARGS
from types import FrameType, TracebackType
from typing import NamedTuple, NoReturn

from mpigraph.errors import MPIGraphError
from mpigraph.mpi.abort import INTERRUPTED, abort

# Ctrl-C in the middle of communication: it is raised once what MPI writes to has arrived.
#
# Python raises KeyboardInterrupt between any two of its instructions: also between the begin of a receive and the line
# that would have kept its memory, or between two steps that every rank must take. A script that catches it, to save its
# state, would go on with rows that MPI still writes to. So the code that communicates runs inside of
# :data:`UNINTERRUPTED`, and there the handler only notes the signal. Rows arrive within milliseconds. Where other ranks
# keep this one waiting, the job ends instead (:func:`_end_if_overdue`). It also ends where one of the user's own signal
# handlers raises there, such as a ``TimeoutError`` after ``signal.alarm``, and on any other exception that is no
# ``Exception``.
#
# A job of one rank, as in a notebook, holds locks in such blocks, too. There no other rank is kept waiting, so nothing
# ends the job: the user's code inside, such as a ``collate_fn`` that does not end, is left by a second Ctrl-C some
# seconds later.

_PATIENCE = 5.0  # seconds that an interrupted wait may last, and after which a second Ctrl-C is not held back


class Uninterrupted:
    """A ``with`` block in which Ctrl-C waits; reentrant, and empty in other threads, which get no signals.

    Attributes:
        identity: names this rank; "" in a job of one rank, where exceptions pass.
        since: the time of Ctrl-C on the clock of ``time.monotonic``; 0.0 if there was none.
    """

    __slots__ = ("_depth", "_holds", "_home", "_ignores", "identity", "since")

    def __init__(self) -> None:
        self.identity = ""
        self.since = 0.0
        self._depth = 0
        self._home = threading.main_thread().ident
        self._holds = self._ignores = False

    def __enter__(self) -> None:
        if threading.get_ident() == self._home:
            if self._holds and not self._depth and getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, self._note)  # here, as Jupyter puts the default back before each cell
            self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.end_if_fatal(error)
        if threading.get_ident() == self._home:
            self._depth -= 1
            if self.since and not self._depth:
                self.since = 0.0
                raise KeyboardInterrupt

    def end_if_fatal(self, error: BaseException) -> None:
        """End the job on an error that code inside did not raise itself: MPI may write to memory that is freed."""
        if self.identity and (not isinstance(error, (Exception, GeneratorExit)) or _of_handler(error.__traceback__)):
            self.end_on(error)

    def end_on(self, error: BaseException) -> NoReturn:
        """Print an error, and end the job."""
        sys.excepthook(type(error), error, error.__traceback__)
        abort(1)

    def begin(self, identity: str, serves: bool) -> None:
        """End the job on fatal errors from now on, and hold Ctrl-C back, unless the script has a handler of its own.

        A rank that ``serves`` ignores it: trainers decide whether the job ends, and servers serve them until then.
        """
        self.identity = identity
        self._holds = not serves
        is_default = getsignal(signal.SIGINT) is signal.default_int_handler
        self._ignores = serves and is_default and threading.get_ident() == self._home
        if self._ignores:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end(self) -> None:
        """Undo :meth:`begin`."""
        if threading.get_ident() == self._home and (self._ignores or getsignal(signal.SIGINT) == self._note):
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._holds = self._ignores = False
        self.identity = ""

    def _note(self, number: int, frame: FrameType | None) -> None:
        _end_if_overdue()
        if self._depth and not _is_overdue():
            self.since = self.since or time.monotonic()
        else:
            self.since = 0.0
            raise KeyboardInterrupt


UNINTERRUPTED = Uninterrupted()
"""The process's instance: a signal goes to a process."""


def _of_handler(traceback: TracebackType | None) -> bool:
    """Return whether the handler of a signal raised: Python calls it with the frame that it interrupts."""
    interrupted: FrameType | None = None
    while traceback is not None:
        frame, code = traceback.tb_frame, traceback.tb_frame.f_code
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & CO_VARARGS)
        values = [frame.f_locals.get(name) for name in code.co_varnames[:count]] if interrupted is not None else []
        if any(value is interrupted for value in values + [x for v in values if type(v) is tuple for x in v]):
            return True
        interrupted, traceback = frame, traceback.tb_next
    return False


def _end_if_overdue() -> None:
    """End the job, if it has several ranks, once Ctrl-C has waited for some seconds."""
    who = UNINTERRUPTED.identity
    if who and _is_overdue():
        abort(INTERRUPTED, f"[mpigraph] {who} was interrupted while it waits for other ranks; the job is ended\n")


def _is_overdue() -> bool:
    return bool(UNINTERRUPTED.since) and time.monotonic() - UNINTERRUPTED.since > _PATIENCE


@contextmanager
def no_way_back() -> Iterator[Callable[[Callable[[], object]], None]]:
    """End a job of several ranks on an error inside that is not this library's.

    Other ranks, or MPI itself, count on this one there. A script that caught a lack of memory in the middle of a round
    would make another collective call than the others, or free memory that MPI goes on writing to. In worlds without a
    session, as of commands, the error is raised: it ends the command.

    Yields a function that calls others, for work that may fail: their first error is raised after the ``with`` block.
    """
    failed: list[Exception] = []

    def aside(work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            failed.append(error)

    try:
        yield aside
    except Exception as error:
        if UNINTERRUPTED.identity and not isinstance(error, MPIGraphError):
            UNINTERRUPTED.end_on(error)
        raise
    if failed:
        try:
            raise failed[0]
        finally:
            failed.clear()  # else the error keeps alive all that its traceback names


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


NOW = Policy(spins=100, first=2e-5, longest=2e-5, yields=300)
"""This process can do nothing before the result is here, and the others take part: a torch collective takes tens of
microseconds. On a busy core a yield costs milliseconds, so it is not the first thing to do. Where megabytes travel
there are more yields (:func:`.finish`): MPICH moves one cell of its shared memory at a call, with sleeps 50 MB/s, with
yields 10 times that."""

TRAVELLING = Policy(spins=5, first=1e-5, longest=2e-4)
"""What was asked for is on its way, and other threads compute. Sleeps of milliseconds turn a round of 0.1 ms into one
of 2.5 ms (4 ranks on 2 cores), and delay rows in pieces, which MPI moves when it is called; sockets buffer a stream of
a few GB/s meanwhile. Spinning delays the model in another thread, which then waits for the interpreter lock at each
operation. With sleeps of 0.1 ms polling takes a tenth of the time that moving rows takes."""

IDLE = Policy(spins=5, first=1e-4, longest=1e-3, quiet=2e-2)
"""Others come when their own work is done, maybe in hours, and may need this core for it; so do requests to a host.
Each look costs tens of microseconds, mostly because of cold caches. So what comes waits 1 ms at most (3 % of a core),
or 20 ms (50 looks a second) if nothing has come for a second."""


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
            _end_if_overdue()
        self._turn += 1
        return policy.seconds(self._turn - 1)

    def pause(self, policy: Policy) -> None:
        """Wait one turn."""
        seconds = self.next(policy)
        if seconds:
            time.sleep(seconds)
        elif self._turn > policy.spins:
            os.sched_yield()


def until(
    test: Callable[[], object],
    policy: Policy = TRAVELLING,
    moves: Callable[[], bool] | None = None,
    seconds: float = math.inf,
) -> bool:
    """Wait until a test holds, or for some seconds; return whether it does. All waits for requests are this loop.

    Args:
        test: such as ``request.Test``.
        policy: when to test again.
        moves: does other work in each turn, and returns whether anything moved, after which there is no sleep.
        seconds: the longest time.
    """
    backoff, end = Backoff(), time.monotonic() + seconds
    while not test():
        if moves is not None and moves():
            if not policy.yields:  # else ranks that share a core would spin again in each step
                backoff.reset()
        elif time.monotonic() > end:
            return False
        else:
            backoff.pause(policy)
    return True


def join(thread: threading.Thread) -> None:
    """Wait until a thread has ended. Ctrl-C leaves this wait, and the thread runs on.

    Not by ``Thread.join``: if an exception leaves that one, Python 3.11 takes the thread for ended (bpo-45274).
    """
    until(lambda: not is_running(thread), IDLE)


def is_running(thread: threading.Thread) -> bool:
    """Return whether a thread runs; ``Thread.is_alive`` alone has the fault of ``Thread.join``."""
    with UNINTERRUPTED:
        return thread.is_alive()
