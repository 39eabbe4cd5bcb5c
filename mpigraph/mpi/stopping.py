"""Agreement of the trainers on the call at which all of them stop, without messages and without waits in a step.

A signal reaches a few ranks, at different moments. The trainers must leave at the same step: if one saves while another
waits for it inside a collective of the next step, they deadlock. Each trainer asks at its step boundaries
(:meth:`Stopping.call`), at positions that grow, and stops at a position that all agree on.

Each trainer has a *word* in its node's shared memory, and each node a *target*. A call at position ``p``

1. writes into the word that the trainer passes ``p``, and then reads the target;
2. is over, with the answer "go on", if ``p`` < target, which is always so until a rank has been asked to stop;
3. else writes into the word that the trainer is held at ``p``, and waits until the target grows beyond ``p``, which
   is "go on", or is :data:`STOP`.

Leaders never wait for a trainer. The leader of each node reads the words of its node (:meth:`Decider.look`), the
leaders reduce what they have read by MAX (:class:`.Rounds`), and each decides by the same numbers and writes the same
target on its node, before it reads the words for the next round. It chooses

a. 0, once a rank was asked to stop: every trainer is held at its next call;
b. the largest position that a trainer is at, or will be at next, if it is beyond the target;
c. STOP, if all are held at the same position;
d. if not all come while one has been held for some seconds, a position that the held ones have not reached: the others
   may wait for them in a collective, as in a step that not every trainer makes. Next time it takes twice as long, and
   the position is twice as far.

*They agree.* After the first, targets only grow, and a trainer held at ``p`` goes on only when it reads a target
beyond ``p``. STOP is chosen only if each trainer has written that it is held at ``p``, and the latest target, which
every node had when its words were read, is not beyond ``p``: so all are still there, and read STOP next.

*No trainer waits for ever.* A held trainer waits for the leaders, which wait for one another alone, and choose anew
after some seconds. Once a trainer has left for good, at :data:`LEFT`, there is no stop any more.

*Mostly they do not wait for those seconds.* A trainer has written that it passes ``p`` before it reads a target from
before (a), and the leader writes the target before it reads the word. With a fence between on both sides one of them
sees the other (Dekker): so either the trainer is held, or (b) chooses a position that it has not reached. While no
trainer passes a call, each can come to its next: a step's collectives need only the steps before.

A non-blocking reduction of a flag, begun in each call and read in the next, would be less code. But all trainers must
read its result at the same call, so each call would wait until the slowest trainer has made the one before, also in
jobs that are never asked to stop, and for ever where trainers make different numbers of calls, or one has left.

A coordinator that holds every process and then commits is coordinated checkpointing (Koo and Toueg, Checkpointing and
rollback-recovery for distributed systems, 1987), here at a point of the program that is in the future of all.
"""

from collections.abc import Callable, Sequence

import numpy as np

from mpigraph.arrays import I64
from mpigraph.errors import InvalidArgumentError, check_integer
from mpigraph.log import get_logger
from mpigraph.mpi.deadlines import WAITS
from mpigraph.mpi.wait import IDLE, until

STOP = -1
"""A target: all stop where they are held."""
LEFT = 2**61
"""The position of a trainer that makes no call any more."""
NEVER = LEFT + 1
"""A target: no trainer is held."""

_CALLS = 32  # bits of a position: calls since all trainers have met
_PATIENCE = 5.0  # seconds that a trainer is held for others that do not come, the first time
_NOT_A_TRAINER = -1

_signals: list[str] = []  # that have asked this process to stop: handlers are the process's, too


def ask(name: str) -> None:
    """Note that this process was asked to stop, by the signal ``name``. For signal handlers."""
    if name not in _signals:
        _signals.append(name)


def asked() -> str:
    """Return the signals that have asked this process to stop, "" if none has."""
    return " and ".join(_signals)


def forget() -> None:
    """Forget that this process was asked to stop."""
    _signals.clear()


def word(position: int, held: bool) -> int:
    """Return the word of a trainer that is held at a position, or beyond it. Half of it may be its next position."""
    return 2 * position + 1 if held else 2 * position + 2


class Decider:
    """Reads the words of a node's ranks and writes the node's target, on its leader."""

    def __init__(self, slots: Sequence[I64], leader: int, fence: Callable[[], None]) -> None:
        """Take arguments as of :class:`Stopping`."""
        self._slots = slots
        self._target = slots[leader][2:3]
        self._fence = fence
        self._since = [(0, 0.0)] * len(slots)  # the word, and since when it has been there
        self._step = 1
        self._over = False

    @property
    def hurries(self) -> bool:
        """True while trainers agree to stop."""
        return int(self._target[0]) not in (NEVER, STOP)

    def look(self, now: float) -> I64:
        """Return the state of the node's trainers at the time ``now``, to be reduced by MAX.

        Returns:
            int64[4]: whether a rank was asked to stop, the smallest word, negative, the largest one, and the most
            milliseconds for which a trainer has been held.
        """
        target = int(self._target[0])
        self._fence()
        words = [int(slot[1]) for slot in self._slots]
        self._since = [
            before if before[0] == latest else (latest, now) for before, latest in zip(self._since, words, strict=True)
        ]
        held = [now - since for latest, since in self._since if latest & 1 and latest >> 1 >= target]
        trainers = [latest for latest in words if latest != _NOT_A_TRAINER]
        was_asked = any(int(slot[0]) for slot in self._slots)
        return np.array([was_asked, -min(trainers), max(trainers), int(1000 * max(held, default=0.0))], np.int64)

    def choose(self, state: I64) -> None:
        """Write the next target, given the maxima of all nodes' states, which were read after the one before it."""
        if not self._over:
            self._target[0] = self._next(int(self._target[0]), *state.tolist())

    def _next(self, target: int, was_asked: int, first: int, last: int, held: int) -> int:
        furthest = last >> 1
        if target == NEVER:
            return 0 if was_asked else NEVER
        if furthest >= LEFT:
            self._over = True
            return NEVER
        if furthest >= target and -first == last == word(furthest, held=True):
            self._over = True
            return STOP
        if furthest > target:
            return furthest
        if held > 1000 * _PATIENCE * self._step:
            if self._step == 1:
                get_logger().warning(
                    "asked to stop, but not every trainer comes to the same call of preempted() in %.0f s: they go on, "
                    "and try again (where trainers make different numbers of calls, give it the step: preempted(at=))",
                    _PATIENCE,
                )
            self._step *= 2  # the others may be slow, or make no calls for a while
            return furthest + self._step // 2
        return target


class Stopping:
    """One rank's part: it passes on that it was asked to stop, and a trainer makes calls.

    Attributes:
        calls: the number of calls that this trainer has made since all trainers last met.
    """

    def __init__(
        self, slots: Sequence[I64], rank: int, leader: int, fence: Callable[[], None], trains: bool, alone: bool
    ) -> None:
        """Begin without a request to stop.

        Args:
            slots: for each rank of the node int64[3] in shared memory: whether it was asked to stop, its word, and, in
                the leader's, the target.
            rank: this rank's place in the node.
            leader: that of the leader.
            fence: orders writes before it and reads after it.
            trains: this is a trainer.
            alone: this is the only rank of the job.
        """
        self._slot = slots[rank]
        self._leader = slots[leader]
        self._fence = fence
        self._alone = alone
        self._meetings = 0
        self.calls = 0
        self._counts: bool | None = None  # whether positions are counted here, once there was a call
        self._position = -1
        self._slot[:] = 0, 0 if trains else _NOT_A_TRAINER, NEVER

    @property
    def agreed(self) -> bool:
        """True once all trainers stop."""
        return int(self._leader[2]) == STOP

    def pass_on(self) -> None:
        """Let the node's leader see whether this process was asked to stop."""
        if _signals:
            self._slot[0] = 1

    def meet(self) -> None:
        """Count calls anew: every trainer has come here."""
        self._meetings += 1
        self.calls = 0

    def call(self, at: int | None) -> bool:
        """Return whether all stop here; wait, if they may.

        Args:
            at: the position of the call, the same on every trainer; by default the number of the call.

        Raises:
            InvalidArgumentError: ``at`` does not grow from call to call, or only some calls have it.
        """
        if self.agreed:
            return True
        stops = self.arrive(at)
        if stops is None:
            with WAITS.watch("stopping all trainers at the same step"):
                until(lambda: self.answer() is not None, IDLE)
            return self.agreed
        return stops

    def arrive(self, at: int | None) -> bool | None:
        """Begin a call; return its answer if there is one, None if this trainer is held. See :meth:`call`."""
        self._position = self._next(at)
        if self._alone:
            if _signals:
                self._leader[2] = STOP
            return self.agreed
        self._slot[1] = word(self._position, held=False)
        self._fence()
        if self._position < int(self._leader[2]):
            return False
        self._slot[1] = word(self._position, held=True)
        return self.answer()

    def answer(self) -> bool | None:
        """Return whether all stop at the call that this trainer is held in; None if it is held on."""
        target = int(self._leader[2])
        if target == STOP:
            return True
        if self._position >= target:
            return None
        self._slot[1] = word(self._position, held=False)
        return False

    def _next(self, at: int | None) -> int:
        if self._counts is None:
            self._counts = at is None
        if self._counts != (at is None):
            raise InvalidArgumentError("give at= in every call of preempted(), or in none")
        if at is not None:
            return check_integer("at", at, self._position + 1, LEFT - 1)
        self.calls += 1
        return (self._meetings << _CALLS) + self.calls

    def leave(self) -> None:
        """Note that this trainer makes no call any more."""
        self._slot[1] = word(LEFT, held=False)
