"""The waits of this process, with how long each may last: the watchdog (:mod:`.watchdog`) ends the job after that.

There are two kinds of waits for other ranks. *Inside a protocol step* all ranks take part now, so the wait has a
deadline, :meth:`Waits.watch`. At a *meeting* a trainer waits for others that come when the user's code lets them, which
may evaluate for hours: :meth:`Waits.meeting` has no deadline. A wait is a span (:mod:`mpigraph.trace`) and one
dictionary entry.
"""

import itertools
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from mpigraph.errors import CollectiveError
from mpigraph.trace import span

ON_ALL = (
    "A call that waits for the other trainers belongs on all of them, in the same order: not under if g.rank() == 0"
)


class Wait(NamedTuple):
    """A wait of a thread of this process.

    Attributes:
        what: names it in messages.
        since: when it began, on the clock of :class:`Waits`.
        patience: timeouts after which the job ends; infinite at a meeting.
        own: it is for another thread of this rank.
        thread: that waits.
    """

    what: str
    since: float
    patience: float
    own: bool
    thread: int


class Waits:
    """The waits of this process, and what each kind of them may last; the watchdog judges them.

    Attributes:
        now: the seconds that have passed, without those in which the process was stopped (:meth:`tick`).
        before: the last wait that is over, and its end.
        workers: threads that work for a trainer beside its main thread.
        home: the main thread.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.before = ("starting", 0.0)
        self.workers: set[int] = set()
        self.home = threading.get_ident()
        self._ticked = 0.0
        self._waits: dict[int, Wait] = {}
        self._tokens = itertools.count()  # waits begin in several threads
        self._apart: dict[int, str] = {}  # threads, and what they do
        self._owed: list[Callable[[], None]] = []

    def tick(self, clock: float, most: float, instead: float) -> None:
        """Let the time pass to ``clock``; ``instead`` if it is more than ``most``: the process was stopped."""
        passed, self._ticked = clock - self._ticked, clock
        self.now += passed if passed < most else instead

    def innermost(self) -> dict[int, Wait]:
        """Return the innermost wait of each thread that is in one."""
        return {wait.thread: wait for wait in list(self._waits.values())}

    def all(self) -> list[Wait]:
        """Return all waits."""
        return list(self._waits.values())

    @contextmanager
    def _waiting(self, what: str, patience: float, stage: str = "meet") -> Iterator[Callable[[], None]]:
        token = next(self._tokens)
        began = Wait(what, self.now, patience, stage == "own", threading.get_ident())

        def met() -> None:
            self._waits[token] = began._replace(since=self.now, patience=1.0)

        try:  # Ctrl-C may come anywhere
            self._waits[token] = began
            with span(stage, detail=what):
                yield met
        finally:
            self._waits.pop(token, None)
            self.before = what, self.now

    def watch(self, what: str, patience: float = 1.0, stage: str = "meet") -> AbstractContextManager[object]:
        """Put a deadline of ``patience`` timeouts on this thread's wait for ``what`` inside a protocol step."""
        return self._waiting(what, patience, stage)

    def meeting(self, what: str) -> AbstractContextManager[Callable[[], None]]:
        """Watch this thread's wait for other trainers, who come to ``what`` when the user's code lets them.

        Yields a function: after its call all are here, and what is left is a protocol step with a deadline. Before the
        wait, the main thread makes the calls that :meth:`in_main_thread` left. Raises CollectiveError if this thread is
        inside of :meth:`forbid_meetings`.
        """
        if doing := self._apart.get(threading.get_ident()):
            raise CollectiveError(f"{what}: {doing} cannot do it, as trainers are not in step there")
        self._do_owed()
        return self._waiting(what, math.inf)

    def own(self, what: str) -> AbstractContextManager[object]:
        """Watch this thread's wait for another thread of this rank, which is inside :meth:`working`."""
        return self._waiting(what, math.inf, "own")

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count the trainer as working while this thread, inside the ``with`` block, is in no wait."""
        thread = threading.get_ident()
        self.workers.add(thread)
        try:
            yield
        finally:
            self.workers.discard(thread)

    @contextmanager
    def forbid_meetings(self, doing: str) -> Iterator[None]:
        """Refuse meetings of this thread inside: it runs the user's code as often as its own work needs."""
        thread = threading.get_ident()
        before = self._apart.get(thread, "")
        self._apart[thread] = doing
        try:
            yield
        finally:
            self._apart[thread] = before

    def in_main_thread(self, call: Callable[[], None]) -> None:
        """Make a call that communicates, in the main thread and not in the middle of another wait.

        Make it now if the caller is there; else, as from a finalizer, when the main thread next waits for others.
        """
        self._owed.append(call)
        self._do_owed()

    def forget_calls(self) -> None:
        """Forget what :meth:`in_main_thread` has left: the world that it communicates in has ended."""
        self._owed.clear()

    def _do_owed(self) -> None:
        if self._owed and threading.get_ident() == self.home and self.home not in self.innermost():
            while self._owed:
                self._owed.pop(0)()


WAITS = Waits()
"""Those of this process."""
