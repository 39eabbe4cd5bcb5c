"""Tracebacks of this library's errors: the user's lines and the message.

``import mpigraph`` puts a hook before ``sys.excepthook``, which only uncaught errors reach: a caught one has all its
frames. With ``MPIGRAPH_LOG_LEVEL=DEBUG`` the hook shows all of them.
"""

import os
import sys
from collections.abc import Callable
from functools import cache
from types import FrameType, TracebackType

from mpigraph.config import debugging, launch, launcher_rank
from mpigraph.errors import MPIGraphError, NotInitializedError

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_INSTALLED = f"{os.sep}site-packages{os.sep}"
_NOT_THE_USERS = (_HERE, "<frozen", os.path.dirname(os.__file__) + os.sep)
INTERRUPTED = 130  # a shell's status of a process that Ctrl-C ended
_LINK = "\nThe above exception was the direct cause of the following exception:\n\n"
_MOST = 10  # errors of a chain to show
_NOT_STARTED = (
    "mpigraph.distributed.initialize() sets RANK and the other variables that torch reads: call it before "
    "torch.distributed.init_process_group()\n"
)


@cache
def is_users(path: str) -> bool:
    """Return whether a source file is the user's: neither of this library, nor of Python, nor installed."""
    return not path.startswith(_NOT_THE_USERS) and _INSTALLED not in path


def line_calling(frame: FrameType | None) -> str:
    """Return the innermost of the user's lines among a frame and its callers, as "train.py:12"; "" without one."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def stack_level(frame: FrameType | None) -> int:
    """Return the ``stacklevel`` that makes a warning in a frame show the user's line."""
    level = 1
    while frame is not None and not is_users(frame.f_code.co_filename):
        level += 1
        frame = frame.f_back
    return level


def line_of(error: BaseException) -> str:
    """Return the last of the user's lines in an error's traceback, as "train.py:12"; "" without one."""
    line = ""
    trace = error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if is_users(path):
            line = f"{os.path.basename(path)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line


def format_error(error: BaseException) -> str:
    """Return the traceback of an uncaught error; for an error of this library only the user's lines and the message.

    The causes of the error that passed through the user's code, such as an ``init_func`` or a layer, are included.
    """
    import traceback  # only now, so that programs without torch start fast

    if not isinstance(error, MPIGraphError) or debugging():
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    parts: list[str] = []
    shown: BaseException | None = error
    while shown is not None and len(parts) < _MOST:
        is_library_error = isinstance(shown, MPIGraphError)
        if shown is error or (not is_library_error and line_of(shown)):
            stack = traceback.extract_tb(shown.__traceback__)
            users = [i for i, frame in enumerate(stack) if is_users(frame.filename)]
            if is_library_error:
                stack[:] = [stack[i] for i in users] or stack[-1:]  # of a thread
            else:  # calls of the user's code belong to it
                stack[:] = [frame for frame in stack[users[0] :] if not frame.filename.startswith(_HERE)]
            lines = [*stack.format(), *traceback.format_exception_only(type(shown), shown)]
            parts.insert(0, "Traceback (most recent call last):\n" + "".join(lines))
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)
    return _LINK.join(parts)


def install() -> None:
    """Install the hook that shortens uncaught errors of this library; other errors look as before."""
    before: Callable[..., object] = sys.excepthook

    def show(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, MPIGraphError) and sys.stderr is not None:
            alike = isinstance(error, NotInitializedError) and launcher_rank() > 0  # the first rank shows more
            sys.stderr.write(f"{type(error).__name__}: {error}\n" if alike else format_error(error))
            return
        if kind is KeyboardInterrupt and launch() is not None and not debugging():  # while this library is imported
            if launcher_rank() == 0:
                os.write(2, b"[mpigraph] process 0 was interrupted; the job is ended\n")
            os._exit(INTERRUPTED)
        before(kind, error, trace)
        if isinstance(error, ValueError) and "environment variable RANK expected" in str(error):
            sys.stderr.write(_NOT_STARTED)

    sys.excepthook = show
