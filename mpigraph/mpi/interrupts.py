"""Ctrl-C in the middle of communication: it is raised once what MPI writes to has arrived.

Python raises KeyboardInterrupt between any two of its instructions: also between the begin of a receive and the line
that would have kept its memory, or between two steps that every rank must take. A script that catches it, to save its
state, would go on with rows that MPI still writes to. So the code that communicates runs inside of
:data:`UNINTERRUPTED`, and there the handler only notes the signal. Rows arrive within milliseconds. Where other ranks
keep this one waiting, the job ends instead (:func:`end_if_overdue`). It also ends where one of the user's own signal
handlers raises there, such as a ``TimeoutError`` after ``signal.alarm``, and on any other exception that is no
``Exception``.

A job of one rank, as in a notebook, holds locks in such blocks, too. There no other rank is kept waiting, so nothing
ends the job: the user's code inside, such as a ``collate_fn`` that does not end, is left by a second Ctrl-C some
seconds later.
"""

import signal
import sys
import threading
import time
from _signal import getsignal  # type: ignore[import-not-found]  # that of signal takes 20 times as long
from inspect import CO_VARARGS
from types import FrameType, TracebackType

from mpigraph.mpi.abort import INTERRUPTED, abort

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
        end_if_overdue()
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


def end_if_overdue() -> None:
    """End the job, if it has several ranks, once Ctrl-C has waited for some seconds."""
    who = UNINTERRUPTED.identity
    if who and _is_overdue():
        abort(INTERRUPTED, f"[mpigraph] {who} was interrupted while it waits for other ranks; the job is ended\n")


def _is_overdue() -> bool:
    return bool(UNINTERRUPTED.since) and time.monotonic() - UNINTERRUPTED.since > _PATIENCE
