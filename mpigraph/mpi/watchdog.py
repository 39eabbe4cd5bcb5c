"""The watchdog of all waits: it ends a job that hangs, with the place of each rank, and not one that works.

A wait inside a protocol step has a deadline (:meth:`.Waits.watch`), a meeting of trainers has none
(:meth:`.Waits.meeting`): it leads to a warning with the trainers that do not wait. It ends the job in these cases only:

* every trainer waits, for the deadline, and nothing moves: no process works beside its main thread's wait, as one
  does in which another thread computes what others wait for (:mod:`.idle`);
* a process shows no sign of life for the deadline, while a trainer has waited as long.

A :class:`Watchdog` is one daemon thread a process. It writes this rank's row on its node's :class:`.Board`. One rank of
each node, its leader, reads the rows. The leaders of several nodes share the maxima (:class:`.Rounds`), by which all
decide the same; trainers agree to stop in the same way (:mod:`.stopping`). The clock is the watchdog's own: it stands
still while the process is stopped, by a debugger or by ``scontrol suspend``.

The message that ends the job has the last spans of each rank.
"""

import math
import threading
import time
from collections.abc import Callable
from types import FrameType

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64
from mpigraph.collective import collective
from mpigraph.log import get_logger, line_calling
from mpigraph.mpi.abort import abort
from mpigraph.mpi.agree import gathering
from mpigraph.mpi.board import Board, Rounds
from mpigraph.mpi.coroutine import Task, advance
from mpigraph.mpi.deadlines import ON_ALL, WAITS, Wait, Waits
from mpigraph.mpi.idle import Idle, look_at_frame
from mpigraph.mpi.stopping import Decider, Stopping
from mpigraph.mpi.wait import IDLE
from mpigraph.trace import leave

_TICK = 0.5  # seconds
_HURRY = 0.05  # seconds between ticks while trainers agree to stop
_LATE = 4  # ticks: a process that comes later has been stopped, or nearly so
_FIRST_WARNING = 0.2  # of the timeout; the next one comes when the time has doubled
_SPEAKING_TIME = 5.0  # seconds that the other nodes have to tell what their ranks do, and the first to say it
_APART = 0.5  # seconds between the ranks of a node that end the job because of equal waits: the first speaks for them
_LINES = 200  # in a message
_STUCK = 124  # status of a job that is ended
_STOPPING = slice(5, 9)  # of the numbers that leaders share; those before it: see Watchdog._numbers


class Watchdog:
    """Watches the waits of this process and, with the job's other watchdogs, whether anything moves.

    Attributes:
        board: the rows of this node.
        stopping: this rank's part in the agreement of trainers to stop.
        waits: those that it judges.
    """

    @collective("``node`` and on ``leaders``")
    def __init__(
        self,
        node: MPI.Intracomm,
        identity: str,
        timeout: float,
        *,
        trains: bool = True,
        leader: int = 0,
        leaders: MPI.Intracomm | None = None,
        threads: bool = True,
        waits: Waits = WAITS,
        watches: bool = True,
    ) -> None:
        """Make a board on ``node`` and start to watch.

        Args:
            node: the ranks of this node; one of them trains.
            identity: names this rank ("trainer 3/8 (rank 5)").
            timeout: seconds.
            trains: this is a trainer.
            leader: the rank in ``node`` that reads its rows.
            leaders: on leaders, those of all nodes, if there are several; else None, also on the other ranks.
            threads: the watchdog's thread may call MPI. If not, a leader calls :meth:`exchange`.
            waits: those to judge.
            watches: begin a thread. If not, the caller advances ``waits.now`` and calls :meth:`look`.
        """
        self._who, self._trains, self._timeout, self._threads = identity, trains, timeout, threads
        self._tick = min(_TICK, timeout / 10)
        self.waits = waits
        self.own, self.working = waits.own, waits.working
        self._home = waits.home = threading.get_ident()
        self._idle: Idle | None = None
        self._warned = _FIRST_WARNING * timeout
        self._rounds = Rounds(leaders) if leaders is not None else None
        self._exchanged = -1.0
        self._closing = False
        self.board = board = Board(node, identity)
        train = np.empty(node.size, np.int8)
        node.Allgather(np.array([trains], np.int8), train)
        self._train: list[int] = np.flatnonzero(train).tolist()
        self._order = sorted(range(node.size), key=lambda rank: rank != leader)
        self._alone = alone = node.size == 1 and leaders is None
        self.stopping = Stopping(board.stopping, node.rank, leader, board.fence, trains, alone)
        self._decider = Decider(board.stopping, leader, board.fence)
        self._done = threading.Event()
        self._write()
        node.Barrier()
        self._thread: threading.Thread | None = None
        if watches:
            self._thread = threading.Thread(target=self._run, name="mpigraph-watchdog", daemon=True)
            self._thread.start()

    def recognise(self, waits: Callable[[FrameType], str], polling: Callable[[FrameType], str]) -> None:
        """Count the main thread's waits inside foreign code as meetings; both arguments are those of :class:`.Idle`.

        From now on a process that works is not blocked, whichever wait its main thread is in.
        """
        self._idle = Idle(self._home, waits, polling)

    @collective("``node`` and on ``leaders``")
    def close(self) -> None:
        """Stop watching and free the board."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        self._closing = True
        if self._rounds is not None:
            self._rounds.close(self._numbers, lambda maxima: not maxima[4])
            self._rounds = None
        self.board.close()

    def exchange(self) -> None:
        """Take part in the rounds of leaders, on a leader whose watchdog may not: call it again and again."""
        if self._rounds is not None and not self._threads and self.waits.now > self._exchanged:
            self._exchanged = self.waits.now
            self._lead(self._rounds)

    def _run(self) -> None:
        while not self._done.wait(min(_HURRY, self._tick) if self._decider.hurries else self._tick):
            self.waits.tick(time.monotonic(), _LATE * self._tick, self._tick)
            self.look()

    def look(self) -> None:
        """Make one tick: publish this rank's state, end the job if a wait is overdue, and speak for others if due."""
        self._write()
        self.stopping.pass_on()
        place = self._order.index(self.board.rank)
        for wait in self.waits.all():
            if self.waits.now - wait.since > wait.patience * self._timeout + _APART * place:
                self._end(f"{self._who} waited {self.waits.now - wait.since:.0f} s in {wait.what}: the job is stuck")
        self.board.look(self.waits.now)
        if any(self.board.still(rank, self.waits.now) <= self._timeout for rank in self._order[:place]):
            return
        if place:  # the leader is stopped, and with it this node's news of other nodes
            self._judge_still(self._numbers())
        elif self._rounds is None:
            self._decide(self._numbers())
        elif self._threads:
            self._lead(self._rounds)

    def _numbers(self) -> I64:
        """Return what is to be known of this node's ranks, to be reduced by MAX.

        Returns:
            int64[9]: the fewest milliseconds for which a trainer has waited for others, negative, and the most; whether
            a rank is inside a protocol step; the most milliseconds without a sign of life; whether this node goes on;
            and those of :meth:`.Decider.look`.
        """
        board, ranks = self.board, range(len(self.board.names))
        waited = [int(1000 * board.waited(rank, self.waits.now)) for rank in self._train]
        in_step = any(board.in_step(rank, self.waits.now) for rank in ranks)
        still = int(1000 * max(board.still(rank, self.waits.now) for rank in ranks))
        numbers = [-min(waited), max(waited), in_step, still, not self._closing]
        return np.array([*numbers, *self._decider.look(self.waits.now)], np.int64)

    def _lead(self, rounds: Rounds) -> None:
        """Act by the last round of leaders, and begin the next one."""
        if (maxima := rounds.result()) is not None:
            self._decide(maxima)
        numbers = self._numbers()  # once the target is written
        rounds.begin(numbers, self.waits.now)
        silence = self.waits.now - rounds.begun if rounds.begun is not None else 0.0
        if min(silence, numbers[1] / 1000) > self._timeout:
            self._end(f"another node has shown no sign of life for {silence:.0f} s: the job is stuck")

    def _decide(self, maxima: I64) -> None:
        """Choose where trainers stop, and warn or end the job, given the states of all ranks: on every leader alike."""
        if not self._alone:  # a single rank stops by itself
            self._decider.choose(maxima[_STOPPING])
        self._judge_still(maxima)
        shortest, longest = -maxima[0] / 1000, maxima[1] / 1000
        if shortest > self._timeout and not maxima[2]:
            self._end("every trainer waits: the job is stuck", self._rounds, ON_ALL)
        if longest < _FIRST_WARNING * self._timeout:
            self._warned = _FIRST_WARNING * self._timeout
        elif longest > self._warned:
            self._warned = 2 * longest
            awaited = [rank for rank in self._train if not self.board.waited(rank, self.waits.now)]
            text = "\n  ".join(self.board.lines(self.waits.now, awaited or self._train)[:_LINES])
            if awaited:
                get_logger().warning("trainers have waited for others for %.0f s; these do not:\n  %s", longest, text)
            elif shortest >= _FIRST_WARNING * self._timeout:
                get_logger().warning("every trainer waits for others, for %.0f s:\n  %s", shortest, text)

    def _judge_still(self, maxima: I64) -> None:
        """End the job if a trainer waits and a process shows no sign of life."""
        if min(maxima[1], maxima[3]) > 1000 * self._timeout:
            self._end("a process is stopped or lost: the job is stuck", self._rounds)

    def _end(self, why: str, rounds: Rounds | None = None, remedy: str = "") -> None:
        """End the job; ``rounds``: all their leaders do so now, and the first one says what all ranks do."""
        self.board.look(self.waits.now)
        lines = self.board.lines(self.waits.now)
        place = rounds.comm.rank if rounds is not None else 0
        if rounds is not None:
            gather = Task(gathering(rounds.comm, "\n".join(lines).encode(), 0))
            if advance([gather], IDLE, _SPEAKING_TIME) and not place:
                lines = [line for node in gather.result() for line in node.decode().split("\n")]
        text = "\n  ".join([line for line in lines if line][:_LINES])
        text = f"[mpigraph] {why} and is ended (MPIGRAPH_TIMEOUT is {self._timeout:g} s). The ranks:\n  {text}\n"
        text += f"{remedy}\n" if remedy else ""
        if place:
            leave()  # so the launcher kills no rank that the witness would name
            time.sleep(_SPEAKING_TIME)
        abort(_STUCK, text, stacks=not remedy)

    def _write(self) -> None:
        """Publish this rank's present state."""
        innermost = self.waits.innermost()
        quiet = 0.0  # since when this process has done nothing
        if self._idle is not None:
            foreign = self._idle.look(self.waits.now, innermost)
            quiet = self._idle.since
            if foreign:
                innermost[self._home] = Wait(foreign, quiet, math.inf, False, self._home)
        threads = [self._home, *list(self.waits.workers)]
        waits = [innermost[thread] for thread in threads if thread in innermost]
        waited = 0.0
        if self._trains and len(waits) == len(threads) and all(wait.patience == math.inf for wait in waits):
            if not all(wait.own for wait in waits):
                waited = max(self.waits.now - max(quiet, *(wait.since for wait in waits)), 1e-3)
        what, since = self.waits.before
        text = f"running{self._line()} (last in {what})" if self._trains else "serving"
        if waits:
            text = " and ".join(dict.fromkeys(f"waiting in {wait.what}" for wait in waits)) + self._line()
            since = max(wait.since for wait in waits)
        in_step = any(wait.patience < math.inf for wait in innermost.values())
        self.board.write(waited, in_step, f"{text} for {self.waits.now - since:.0f} s")

    def _line(self) -> str:
        """Return the main thread's line in the user's code (neither this library's nor installed); "" if in none."""
        line = look_at_frame(self._home, line_calling) if self._trains else ""
        return f" at {line}" if line else ""
