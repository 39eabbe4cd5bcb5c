"""Ctrl-C in the middle of communication: it is raised once what MPI writes to has arrived.

Python raises KeyboardInterrupt between any two of its instructions: also between the begin of a receive and the line
that would have kept its memory, or between two steps that every rank must take. A script that catches it, to save its
state, would go on with rows that MPI still writes to. So the code that communicates runs inside of
:data:`UNINTERRUPTED`, and there the handler only notes the signal. Rows arrive within milliseconds. Where other ranks
keep this one waiting, the job ends instead (:func:`end_if_overdue`). It also ends where one of the user's own signal
handlers raises there, such as a ``TimeoutError`` after ``signal.alarm``, and on any other exception that is no
``Exception``.
"""

import signal
import sys
import threading
import time
from inspect import CO_VARARGS
from types import FrameType, TracebackType
from typing import Any

from mpigraph.mpi.abort import abort
from mpigraph.tracebacks import INTERRUPTED

_PATIENCE = 5.0  # seconds that an interrupted wait may last


class Uninterrupted:
    """A ``with`` block in which Ctrl-C waits; reentrant, and empty in other threads, which get no signals.

    Attributes:
        identity: names this rank; "" in a job of one rank, where exceptions pass and Ctrl-C does not wait.
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
            sys.excepthook(type(error), error, error.__traceback__)
            abort(1)

    def begin(self, identity: str, serves: bool) -> None:
        """End the job on fatal errors from now on, and hold Ctrl-C back, unless the script has a handler of its own.

        A rank that ``serves`` ignores it: trainers decide whether the job ends, and servers serve them until then.
        """
        self.identity = identity
        is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if threading.get_ident() == self._home and is_default:
            self._before = signal.signal(signal.SIGINT, signal.SIG_IGN if serves else self._note)

    def end(self) -> None:
        """Undo :meth:`begin`."""
        before, self._before = self._before, None
        if before is not None and signal.getsignal(signal.SIGINT) in (self._note, signal.SIG_IGN):
            signal.signal(signal.SIGINT, before)
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


def end_if_overdue() -> None:
    """End the job if Ctrl-C has waited for other ranks for some seconds."""
    if UNINTERRUPTED.since and time.monotonic() - UNINTERRUPTED.since > _PATIENCE:
        who = UNINTERRUPTED.identity
        abort(INTERRUPTED, f"[mpigraph] {who} was interrupted while it waits for other ranks; the job is ended\n")
