"""The watchdog of all waits: it ends a job that hangs, with the place of each rank, and not one that works.

There are two kinds of waits for other ranks. *Inside a protocol step* all ranks take part now, so the wait has a
deadline, :meth:`Watchdog.watch`. At a *meeting* a trainer waits for others that come when the user's code lets them,
which may evaluate for hours: :meth:`Watchdog.meeting` has no deadline. It leads to a warning with the names of the
trainers that wait and of those that do not. It ends the job in these cases only:

* every trainer waits at a meeting that another trainer cannot come to, since that one waits elsewhere;
* every trainer waits, for the deadline, and nothing moves: no process works beside its main thread's wait, as one
  does in which another thread computes what others wait for (:mod:`.idle`);
* a process shows no sign of life for the deadline, while a trainer has waited as long.

A :class:`Watchdog` is one daemon thread a process. It writes this rank's state on its node's :class:`.Board`. One rank
of each node reads the board; on several nodes these leaders report to the first one (:class:`.Reports`), which decides
and speaks for all. Trainers agree to stop in the same way (:mod:`.stopping`). The clock is the watchdog's own: it
stands still while the process is stopped, by a debugger or by ``scontrol suspend``.

A wait is a span (:mod:`mpigraph.trace`) and one dictionary entry. The message that ends the job has the last spans of
each rank.
"""

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from enum import Enum
from types import FrameType
from typing import NamedTuple

from mpi4py import MPI

from mpigraph.collective import collective
from mpigraph.log import get_logger, line_calling
from mpigraph.mpi.abort import abort
from mpigraph.mpi.board import Board, Record, Reports, Summary
from mpigraph.mpi.idle import ForeignWait, Idle, look_at_frame, unsent
from mpigraph.mpi.stopping import NEVER, STOP, Decider, Node, Stopping
from mpigraph.trace import span

Meeting = Callable[..., AbstractContextManager[None]]
""":meth:`Watchdog.meeting`."""

_TICK = 0.5  # seconds
_HURRY = 0.05  # seconds between ticks while trainers agree to stop
_LATE = 4  # ticks: a process that comes later has been stopped, or nearly so
_SOON = 5.0  # seconds of waiting from which on trainers may be waiting for one another in vain
_SURE = 6.0  # seconds for which that must be seen again and again, more than _FRESH: a message may be late
_FIRST_WARNING = 0.2  # of the timeout; the next one comes when the time has doubled
_FRESH = 5.0  # seconds: an older report does not show the present state of a node
_SPEAKING_TIME = 5.0  # seconds that the other ranks of a node give to the one that speaks
_STUCK = 124  # status of a job that is ended


class _Kind(Enum):
    STEP = "inside a protocol step"
    MEETING = "for other trainers"
    LIMITED = "for other trainers, with a time of the user's own"
    OWN = "for another thread of this rank"


class _Wait(NamedTuple):
    kind: _Kind
    what: str
    place: str
    since: float
    limit: float
    thread: int


class Watchdog:
    """Watches the waits of this process and, with the job's other watchdogs, whether anything moves.

    Attributes:
        stopping: this rank's part in the agreement of trainers to stop.
        steps: see :attr:`.Board.steps`.
        now: the seconds that have passed, without those in which the process was stopped.
    """

    @collective("``node`` and on ``leaders``")
    def __init__(
        self,
        node: MPI.Intracomm,
        identity: str,
        timeout: float,
        *,
        number: int = 0,
        trains: bool = True,
        trainers: int = 1,
        leader: int = 0,
        leaders: MPI.Intracomm | None = None,
        threads: bool = True,
        clock: Callable[[], float] | None = time.monotonic,
    ) -> None:
        """Make a board on ``node`` and start to watch.

        Args:
            node: the ranks of this node.
            identity: names this rank ("trainer 3/8 (rank 5)").
            timeout: seconds.
            number: index of a trainer, rank of a server.
            trains: this is a trainer.
            trainers: the number of trainers in the job.
            leader: the rank in ``node`` that speaks for it.
            leaders: on leaders, those of all nodes, if there are several.
            threads: the watchdog's thread may call MPI. If not, a leader calls :meth:`exchange`.
            clock: returns seconds. With None no thread watches, and the caller advances ``now`` and calls
                :meth:`look`.
        """
        self._who = (identity, number, trains)
        self._timeout = timeout
        self._trainers = trainers
        self._threads = threads
        self._tick = min(_TICK, timeout / 10)
        self.now = 0.0
        self._last_tick = clock() if clock is not None else 0.0
        self._waits: dict[int, _Wait] = {}
        self._tokens = itertools.count()
        self._home = threading.get_ident()
        self._workers: set[int] = set()
        self._idle: Idle | None = None
        self._before = ("starting", 0.0)
        self._warned = _FIRST_WARNING * timeout
        self._apart_since = 0.0
        self._reports = Reports(leaders) if leaders is not None else None
        self._summary = Summary()
        self._order = sorted(range(node.size), key=lambda rank: rank != leader)
        self._board = Board(node)
        self._alone = node.size == 1 and leaders is None
        self.stopping = Stopping(self._board.stopping, node.rank, leader, self._board.fence, trains, self._alone)
        self.steps = self._board.steps
        self._node = Node(self._board.stopping, leader, self._board.fence)
        self._decider = Decider()
        self._done = threading.Event()
        self._board.write(self.record())
        node.Barrier()
        self._thread: threading.Thread | None = None
        if clock is not None:
            self._thread = threading.Thread(target=self._run, args=(clock,), name="mpigraph-watchdog", daemon=True)
            self._thread.start()

    def watch(self, what: str, patience: float = 1.0, whom: Sequence[int] = ()) -> AbstractContextManager[None]:
        """Put a deadline of ``patience`` timeouts on this thread's wait for ``what`` inside a protocol step.

        ``whom``: the ranks that it waits for, where they are known.
        """
        return self._waiting(_Kind.STEP, what, "", patience * self._timeout, whom)

    def meeting(self, what: str, place: str = "", limited: bool = False) -> AbstractContextManager[None]:
        """Watch this thread's wait for other trainers to come to ``what`` when their own work is done.

        Args:
            what: for messages.
            place: a name that all trainers which wait for one another share, and no other wait, if every trainer must
                come; else "".
            limited: the wait ends by itself, after a time that the user gave.
        """
        return self._waiting(_Kind.LIMITED if limited else _Kind.MEETING, what, place, math.inf)

    @contextmanager
    def step_after_meeting(self, what: str, place: str = "") -> Iterator[Callable[[], None]]:
        """Watch a protocol step that begins with a meeting; a call of the function that is yielded ends the meeting."""
        with ExitStack() as waiting:
            waiting.enter_context(self.meeting(what, place))

            def met() -> None:
                waiting.close()
                waiting.enter_context(self.watch(what))

            yield met

    def recognise(self, waits: Callable[[FrameType], ForeignWait | None]) -> None:
        """Count the main thread's waits inside foreign code as meetings; ``waits`` knows them by their frames.

        From now on a process that works is not blocked, whichever wait its main thread is in.
        """
        self._idle = Idle(self._home, waits)

    def own(self, what: str) -> AbstractContextManager[None]:
        """Watch this thread's wait for another thread of this rank, which is inside :meth:`working`."""
        return self._waiting(_Kind.OWN, what, "", math.inf)

    @contextmanager
    def _waiting(self, kind: _Kind, what: str, place: str, limit: float, whom: Sequence[int] = ()) -> Iterator[None]:
        token = next(self._tokens)  # waits begin in several threads
        try:  # Ctrl-C may come anywhere
            self._waits[token] = _Wait(kind, what, place, self.now, limit, threading.get_ident())
            with span("own" if kind is _Kind.OWN else "meet", detail=what, whom=whom):
                yield
        finally:
            self._waits.pop(token, None)
            self._before = what, self.now

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count the trainer as working while this thread, inside the ``with`` block, is in no wait."""
        thread = threading.get_ident()
        self._workers.add(thread)
        try:
            yield
        finally:
            self._workers.discard(thread)

    @property
    def waits(self) -> bool:
        """True if this thread is in a wait, for example while the garbage collector runs in it."""
        thread = threading.get_ident()
        return any(wait.thread == thread for wait in list(self._waits.values()))

    @collective("``node`` and on ``leaders``")
    def close(self) -> None:
        """Stop watching and free the board."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        if self._reports is not None:
            self._reports.close()
            self._reports = None
        self._board.close()

    def exchange(self) -> None:
        """On a leader, exchange reports with other nodes' leaders if it is time to."""
        if self._reports is not None:
            self._reports.exchange(self._summary, self.now)

    @property
    def needs_exchange(self) -> bool:
        """True if a thread other than the watchdog's must call :meth:`exchange` again and again."""
        return self._reports is not None and not self._threads

    def _run(self, clock: Callable[[], float]) -> None:
        while not self._done.wait(self._tick if self._node.target in (NEVER, STOP) else min(_HURRY, self._tick)):
            passed = clock() - self._last_tick
            self._last_tick += passed
            self.now += passed if passed < _LATE * self._tick else self._tick
            self.look()

    def look(self) -> None:
        """Make one tick: publish this rank's state, end the job if a wait is overdue, and speak for others if due."""
        self._board.write(self.record())
        self.stopping.pass_on()
        for wait in list(self._waits.values()):
            if self.now - wait.since > wait.limit:
                self._overdue(wait)
        self._board.look(self.now)
        first = next(rank for rank in self._order if self._board.still(rank, self.now) <= self._timeout)
        if first != self._board.rank:
            return
        summary = self._board.summary(self.now, min(_SOON, self._timeout / 2))
        if first == self._order[0]:
            self._lead(summary)
        else:  # the leader is stopped, and with it this node's news of other nodes
            self._judge_still(summary)

    def _lead(self, summary: Summary) -> None:
        """Speak for this node."""
        summary.said = self._node.look(self.now)
        self._summary = summary
        reports = self._reports
        if reports is None:
            self._lead_only_node(summary)
            return
        reports.hurry = self._node.target not in (NEVER, STOP)
        if self._threads:
            self.exchange()
        if reports.leads:
            self._lead_all_nodes(reports)
        else:
            self._lead_other_node(reports, summary)

    def _lead_only_node(self, summary: Summary) -> None:
        if not self._alone:  # a single rank stops by itself
            self._node.set_target(self._decider.choose([summary.said]))
        self.judge(summary)

    def _lead_all_nodes(self, reports: Reports) -> None:
        """Choose where trainers stop, and judge all nodes, on the leader that they report to."""
        total = Summary.decode(self._summary.encode())
        said = [total.said]
        fresh = reports.complete
        for node, age, summary in reports.others(self.now):
            total.add(summary)
            said.append(summary.said)
            fresh &= age < _FRESH
            if age > self._timeout and self._threads:
                total.still.append((f"node {node}", age))
        if reports.complete:
            reports.target = self._decider.choose(said)
        self._node.set_target(reports.target)
        if fresh:
            self.judge(total)
        else:
            self._apart_since = self.now
            self._judge_still(total)

    def _lead_other_node(self, reports: Reports, summary: Summary) -> None:
        self._node.set_target(reports.target)
        if self._threads and reports.silence(self.now) > self._timeout:
            summary.still.append(("the first node's leader", reports.silence(self.now)))
            self._judge_still(summary)

    def judge(self, summary: Summary) -> None:
        """Warn or end the job, given the states of all ranks."""
        self._judge_still(summary)
        all_wait = summary.blocked == self._trainers and not summary.in_step
        self._judge_apart(summary, all_wait and summary.known)
        if all_wait and summary.shortest > self._timeout:
            self._end("every trainer waits: the job is stuck", summary)
        if summary.longest < _FIRST_WARNING * self._timeout:
            self._warned = _FIRST_WARNING * self._timeout
        elif summary.longest > self._warned:
            self._warned = 2 * summary.longest
            text = "\n  ".join(summary.lines())
            get_logger().warning("trainers have waited for others for %.0f s:\n  %s", summary.longest, text)

    def _judge_apart(self, summary: Summary, all_wait: bool) -> None:
        """End the job if every trainer waits at a place where another one does not, and that is seen for long."""
        apart = all_wait and all(count < self._trainers for count in summary.at.values())
        if not apart or summary.shortest < min(_SOON, self._timeout / 2):
            self._apart_since = self.now
        elif self.now - self._apart_since > min(_SURE, self._timeout / 2):
            self._end("trainers wait for one another in different calls: the job is stuck", summary)

    def _judge_still(self, summary: Summary) -> None:
        """End the job if a trainer waits and a process shows no sign of life."""
        if summary.longest > self._timeout and any(seconds > self._timeout for _, seconds in summary.still):
            self._end("a process is stopped or lost: the job is stuck", summary)

    def _end(self, why: str, summary: Summary) -> None:
        lines = "\n  ".join(summary.lines())
        text = f"{why} and is ended (MPIGRAPH_TIMEOUT is {self._timeout:g} s). The ranks:\n  {lines}"
        abort(_STUCK, f"[mpigraph] {text}\n")

    def _overdue(self, wait: _Wait) -> None:
        """End the job because of a wait inside a protocol step; one rank of a node prints."""
        if not self._board.claim(self._tick):
            time.sleep(_SPEAKING_TIME)
        self._board.look(self.now)
        lines = self._board.summary(self.now, min(_SOON, self._timeout / 2), last=True).lines()
        text = (
            f"[mpigraph] {self._who[0]} waited {self.now - wait.since:.0f} s in {wait.what}: the job is stuck and is "
            f"ended (MPIGRAPH_TIMEOUT sets the limit). The ranks of this node:\n  " + "\n  ".join(lines) + "\n"
        )
        abort(_STUCK, text, stacks=True)

    def record(self) -> Record:
        """Return this rank's present state."""
        identity, number, trains = self._who
        innermost = {wait.thread: wait for wait in list(self._waits.values())}
        quiet = 0.0  # since when this process has done nothing
        if self._idle is not None:
            foreign = self._idle.look(self.now, innermost)
            quiet = self._idle.since
            if foreign is not None:
                kind = _Kind.LIMITED if foreign.limited else _Kind.MEETING
                innermost[self._home] = _Wait(kind, foreign.what, foreign.place, quiet, math.inf, self._home)
        record = Record(identity, number, trains)
        record.in_step = any(wait.kind is _Kind.STEP for wait in innermost.values())
        threads = [self._home, *list(self._workers)]
        waits = [innermost[thread] for thread in threads if thread in innermost]
        if trains and len(waits) == len(threads) and all(wait.kind in (_Kind.MEETING, _Kind.OWN) for wait in waits):
            meetings = [wait for wait in waits if wait.kind is _Kind.MEETING]
            if meetings:
                record.blocked = max(self.now - max(quiet, *(wait.since for wait in waits)), 1e-3)
                record.known = all(wait.place for wait in meetings) and not _strangers(self._workers)
                if record.known and self._idle is not None and record.blocked > 1:  # a wait in torch may be for those
                    record.known = not unsent()
        record.places = sorted({wait.place for wait in innermost.values() if wait.place})
        where = _line_of_script(self._home) if trains else ""
        if waits:
            record.text = " and ".join(dict.fromkeys(f"waiting in {wait.what}" for wait in waits)) + where
            record.seconds = self.now - max(wait.since for wait in waits)
        else:
            what, since = self._before
            record.text = f"running{where} (last in {what})" if trains else "serving"
            record.seconds = self.now - since
        return record


def _strangers(workers: set[int]) -> bool:
    """Return whether threads of the user run, which may come to a meeting, too."""
    return any(
        thread.ident not in workers and not thread.daemon and thread is not threading.main_thread()
        for thread in threading.enumerate()
    )


def _line_of_script(thread: int) -> str:
    """Return a thread's line in the user's code (neither this library's nor installed); "" if it is in none."""
    line = look_at_frame(thread, line_calling)
    return f" at {line}" if line else ""
