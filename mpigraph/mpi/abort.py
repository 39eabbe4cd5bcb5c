"""Ending the whole job when one of its processes cannot continue.

Printing never delays the end of the job for long: standard error may be a full disk, a closed file or a full pipe.
"""

import array
import atexit
import faulthandler
import fcntl
import gc
import os
import signal
import stat
import sys
import termios
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from opcode import opname
from types import FrameType, TracebackType
from typing import Any, NoReturn

from mpi4py import MPI

from mpigraph.config import launch, launcher_rank
from mpigraph.errors import ClosedError, MPIGraphError
from mpigraph.mpi.start import end_unstarted, is_worker
from mpigraph.remedies import format_error
from mpigraph.trace import leave

INTERRUPTED = 130  # a shell's status of a process that Ctrl-C ended
_SPEAKING_TIME = 15.0  # seconds that the first has to print an error that every rank raises, and MPI to end them
_INTERRUPTED_TIME = 2.0  # the same for Ctrl-C: the first may be where Python cannot be interrupted
_MOMENT = 1.0  # seconds that others give the first, who may have the same error, and the witness
_APART = 0.05  # seconds between one rank and the next, so that the launcher ends the others before they speak, too
_PRINTING_TIME = 10.0  # seconds that printing and MPI_Abort may take before the process just ends, and with it the job
_READING_TIME = 5.0  # seconds that the launcher has to read what was printed: some drop what they have not read


def say(text: str) -> None:
    """Print to standard error, if that is possible.

    Not by ``sys.stderr``: torch's init_process_group puts a hook before ours, and a buffer in its place that it prints
    when our hook has returned, which it never does.
    """
    with suppress(Exception):
        if sys.__stderr__ is None:
            return  # closed from the start: its number may be that of another file
        with suppress(Exception):
            sys.__stderr__.flush()
        data = text.encode(errors="backslashreplace")
        while data:
            data = data[os.write(sys.__stderr__.fileno(), data) :]


def abort(status: int, text: str = "", stacks: bool = False) -> NoReturn:
    """End every process of the job with exit status ``status`` (1 to 255); a fork of one ends alone.

    Before that, print ``text`` and, if ``stacks``, the stack of each thread.
    """
    try:
        _ignore_interrupts()
        if _is_fork():
            say(text)
            os._exit(status)
        while not _ending.acquire(blocking=False):
            time.sleep(1.0)  # another thread ends the job
        with suppress(Exception):
            faulthandler.dump_traceback_later(_PRINTING_TIME, exit=True, file=open(os.devnull, "w"))
        say(text)
        leave()
        if stacks and sys.__stderr__ is not None:
            with suppress(Exception):
                faulthandler.dump_traceback(sys.__stderr__.fileno(), all_threads=True)
        with suppress(Exception):
            sys.stdout.flush()  # what the script has printed before
        with suppress(Exception):
            _wait_until_read(_READING_TIME)
        # Not COMM_SELF: of that MPICH 5.0 tells its launcher nothing, which then must see that this process has ended,
        # and does not where it is told so before it finds the process's socket closed.
        if MPI.Is_initialized():
            MPI.COMM_WORLD.Abort(status)
        end_unstarted(status)
    finally:
        os._exit(status)


def _wait_until_read(seconds: float) -> None:
    """Wait until the launcher has read what this process wrote to it through pipes, but not for longer than this.

    MPICH's looks at messages to it before it looks at output, and at an abort it ends at once.
    """
    end = time.monotonic() + seconds
    unread = array.array("i", [0])
    for number in (1, 2):
        while stat.S_ISFIFO(os.fstat(number).st_mode) and time.monotonic() < end:
            fcntl.ioctl(number, termios.FIONREAD, unread)
            if not unread[0]:
                break
            time.sleep(0.001)


class _Exit(SystemExit):
    """The exception of ``sys.exit`` while a job runs: unlike a built-in exception, it can be weakly referenced."""


_exits: list[weakref.ref[_Exit]] = []
_uncaught: list[Any] = []  # the argument of a ``sys.exit`` that was not caught
_ending = threading.RLock()
_before: list[tuple[Any, Any, Any]] = []  # the hooks, and ``sys.exit``, in whose place ours are
_guarded: list[int] = []  # the process whose errors end the job


def _is_fork() -> bool:
    """Return whether this process was forked from one that is guarded: it has no part in the job."""
    return bool(_guarded) and _guarded[0] != os.getpid()


def _ignore_interrupts() -> None:
    """Let no Ctrl-C come between an error and its report."""
    with suppress(ValueError):  # another thread than the main one, which gets none
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _exit(status: Any = None) -> NoReturn:
    def freed(_: object) -> None:
        if sys._getframe().f_back is None:  # no Python code runs any more
            _uncaught.append(status)

    error = _Exit(status)
    _exits.append(weakref.ref(error, freed))
    try:
        raise error
    finally:
        del error  # or it would hold itself, by the traceback


def _has_failed(frame: FrameType) -> bool:
    """Return whether the code of a frame is a script's, which did not reach its end."""
    code = frame.f_code
    is_script = frame.f_back is None and code.co_name == "<module>"
    return is_script and not opname[code.co_code[frame.f_lasti]].startswith("RETURN")


def _watch_end() -> None:
    """Have Python's flush of standard error at the end of a script find the ``SystemExit`` that was raised there.

    Where Python has run a file, it flushes before it handles what was raised. That error has the script's traceback,
    or, before Python 3.12 and if nothing has caught it yet, none.
    """
    stream: Any = sys.stderr
    flush: Any = getattr(stream, "flush", None)

    def flush_and_look() -> None:
        flush()
        if sys._getframe().f_back is not None:
            return
        del stream.flush
        objects = gc.get_objects()
        raised = [trace for trace in objects if type(trace) is TracebackType and _has_failed(trace.tb_frame)]
        # not isinstance, which asks objects what they say they are
        exits = [one for one in objects if issubclass(type(one), SystemExit)]
        handled = [one.__context__ for one in exits]
        uncaught = [one for one in exits if one.__traceback__ in (None, *raised) and one not in handled]
        _uncaught.extend(one.code for one in uncaught if raised)

    if "flush" not in getattr(stream, "__dict__", ("flush",)):  # not yet watched, and no stream of the user's
        stream.flush = flush_and_look


def exit_status() -> int:
    """Return the status with which this process is ending, for functions that are called at exit.

    It is 1 for an uncaught error that went to a hook of the user's instead of ours. That of ``raise SystemExit(3)`` is
    seen only where Python runs a file, see :func:`_watch_end`; else such a process counts as one that leaves early.
    """
    code = _uncaught[0] if _uncaught else None  # then come those that it followed
    if code is None:
        return int(bool(_before) and getattr(sys, "last_value", None) is not None)
    return code & 0xFF if isinstance(code, int) else 1


def _stop_on(error: BaseException, identity: str) -> NoReturn:
    """Print an uncaught error, and end the job."""
    _ignore_interrupts()
    status = error.status if isinstance(error, MPIGraphError) else 1
    text = f"[mpigraph] uncaught {type(error).__name__} on {identity}; the job is ended\n"
    with suppress(BaseException):  # no memory, an error that cannot be printed, or a signal's handler raises
        if isinstance(error, KeyboardInterrupt):
            status, text = INTERRUPTED, f"[mpigraph] {identity} was interrupted; the job is ended\n"
        else:
            text = f"[mpigraph] uncaught exception on {identity}; the job is ended\n{format_error(error)}"
    abort(status, text)


def _pause(error: BaseException, order: int) -> float:
    """Return the seconds that a rank waits before it prints an error and ends the job: another may do so for all."""
    if not order:
        lost = isinstance(error, (RuntimeError, OSError)) and not isinstance(error, MPIGraphError)
        return _MOMENT if lost else 0.0
    interrupted = isinstance(error, KeyboardInterrupt)
    shared = getattr(error, "everywhere", False)
    return (_SPEAKING_TIME if shared else _INTERRUPTED_TIME if interrupted else _MOMENT) + order * _APART


def guard(identity: str, order: int) -> None:
    """Have an uncaught exception in any thread print one traceback and abort the whole job.

    An error that every rank raises, or Ctrl-C, is printed by the rank of order 0 alone; the others give it the time to.
    They wait for a moment in other cases, too: all ranks may have made the same mistake. After a lost connection, as in
    gloo, every rank waits: the launcher or the witness ends the job if another rank has died. A fork of this process
    has no part in the job, and fails alone. A second call replaces both arguments.

    Args:
        identity: names this rank.
        order: the number of ranks that speak before this one.
    """

    def stop(kind: type[BaseException], error: BaseException | None, tb: TracebackType | None) -> None:
        if _is_fork():
            _before[0][0](kind, error, tb)
            return
        error = kind() if error is None else error
        with suppress(KeyboardInterrupt):
            time.sleep(_pause(error, order))
        _stop_on(error, identity)

    def stop_thread(args: threading.ExceptHookArgs) -> None:
        if _is_fork():
            _before[0][1](args)
        elif not issubclass(args.exc_type, SystemExit):
            stop(args.exc_type, args.exc_value, args.exc_traceback)

    if not _before:
        _before.append((sys.excepthook, threading.excepthook, sys.exit))
        _watch_end()
    _guarded[:] = [os.getpid()]
    sys.excepthook = stop
    threading.excepthook = stop_thread
    sys.exit = _exit


def guard_launched() -> None:
    """Have errors of this process end the job before ``initialize()``: others wait for it to start or end MPI."""
    if launch() is not None and not is_worker():
        guard(f"process {launcher_rank()}", launcher_rank())
        atexit.register(_end_failed_job)


def _end_failed_job() -> None:
    status = exit_status()
    if status and _before and not _is_fork():  # no session has ended
        if launcher_rank():
            time.sleep(_MOMENT)  # the first may be about to tell an error of all
        if MPI.Is_initialized() and not MPI.Is_finalized():
            abort(status)
        end_unstarted(status)


def unguard() -> None:
    """Undo :func:`guard`.

    A ``with`` block would not do: the traceback of an error inside would keep it open until the garbage collector
    closes it, maybe in the middle of the next job.
    """
    if _before:
        sys.excepthook, threading.excepthook, sys.exit = _before.pop()
    _guarded.clear()


@contextmanager
def leaving() -> Iterator[None]:
    """Let the user's threads read on inside: what they find closed ends them, and neither the job nor its status."""
    before = threading.excepthook

    def ignore_closed(args: threading.ExceptHookArgs) -> None:
        if not issubclass(args.exc_type, ClosedError):
            before(args)
        elif args.thread is None or not args.thread.daemon:  # Python ends daemon threads without a word
            threading.__excepthook__(args)

    threading.excepthook = ignore_closed
    try:
        yield
    finally:
        if threading.excepthook is ignore_closed:
            threading.excepthook = before
