"""Ctrl-C in the middle of communication: it is raised once what MPI writes to has arrived.

Python raises KeyboardInterrupt between any two of its instructions: also between the begin of a receive and the line
that would have kept its memory, or between two steps that every rank must take. A script that catches it, to save its
state, would go on with rows that MPI still writes to. So the code that communicates runs inside of
:data:`UNINTERRUPTED`, and there the handler only notes the signal. Rows arrive within milliseconds. Where other ranks
keep this one waiting, the job ends instead (:func:`end_if_overdue`). It also ends on any other exception there that is
no ``Exception``, such as one of the user's own signal handler.
"""

import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from mpigraph.mpi.abort import abort
from mpigraph.tracebacks import INTERRUPTED

__all__ = ["UNINTERRUPTED", "Uninterrupted", "end_if_overdue"]

_PATIENCE = 5.0  # seconds that an interrupted wait may last


class Uninterrupted:
    """A ``with`` block in which Ctrl-C waits; reentrant, and empty in other threads, which get no signals.

    Attributes:
        identity: names this rank; "" in a job of one rank, where Ctrl-C does not wait.
        since: the time of Ctrl-C on the clock of ``time.monotonic``; 0.0 if there was none.
    """

    __slots__ = ("_before", "_depth", "_home", "identity", "since")

    def __init__(self) -> None:
        self.identity = ""
        self.since = 0.0
        self._depth = 0
        self._home = threading.main_thread().ident
        self._before: Any = None

    def __enter__(self) -> None:
        if threading.get_ident() == self._home:
            self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.identity and kind is not None and not issubclass(kind, (Exception, GeneratorExit)):
            sys.excepthook(kind, error, traceback)  # type: ignore[arg-type]
            abort(1)  # MPI may write to memory that is not ours any more
        if threading.get_ident() == self._home:
            self._depth -= 1
            if self.since and not self._depth:
                self.since = 0.0
                raise KeyboardInterrupt

    def begin(self, identity: str, serves: bool) -> None:
        """Hold Ctrl-C back from now on, unless the script has a handler of its own.

        A rank that ``serves`` ignores it: trainers decide whether the job ends, and servers serve them until then.
        """
        if self.identity:
            self.identity = identity
        elif threading.get_ident() == self._home and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self.identity = identity
            self._before = signal.signal(signal.SIGINT, signal.SIG_IGN if serves else self._note)

    def end(self) -> None:
        """Undo :meth:`begin`."""
        if self.identity and signal.getsignal(signal.SIGINT) in (self._note, signal.SIG_IGN):
            signal.signal(signal.SIGINT, self._before)
        self.identity = ""
        self.since = 0.0

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._depth:
            self.since = self.since or time.monotonic()
        else:
            self.since = 0.0
            raise KeyboardInterrupt


UNINTERRUPTED = Uninterrupted()
"""The process's instance: a signal goes to a process."""


def end_if_overdue() -> None:
    """End the job if Ctrl-C has waited for other ranks for some seconds."""
    if UNINTERRUPTED.since and time.monotonic() - UNINTERRUPTED.since > _PATIENCE:
        who = UNINTERRUPTED.identity
        abort(INTERRUPTED, f"[mpigraph] {who} was interrupted while it waits for other ranks; the job is ended\n")
