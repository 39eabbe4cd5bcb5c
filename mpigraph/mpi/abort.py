"""Ending the whole job when one of its processes cannot continue."""

import faulthandler
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NoReturn

from mpi4py import MPI

__all__ = ["abort", "guard"]

_SPEAKING_TIME = 5.0  # seconds that the speaker has to print an error that every rank raises


def abort(status: int, text: str = "", stacks: bool = False) -> NoReturn:
    """End every process of the job with an exit status, after printing a text and what each thread does."""
    sys.stderr.write(text)
    sys.stderr.flush()
    if stacks:
        faulthandler.dump_traceback(all_threads=True)
    MPI.COMM_SELF.Abort(status)
    os._exit(status)


@contextmanager
def guard(identity: str, speaker: bool) -> Iterator[None]:
    """While active, an uncaught exception in any thread prints one traceback and aborts the whole job.

    Of an error that every rank raises, only the rank with ``speaker`` prints; the others give it the time to.
    """
    main_hook, thread_hook = sys.excepthook, threading.excepthook

    def stop(kind: type[BaseException], error: BaseException | None, tb: TracebackType | None) -> None:
        if getattr(error, "everywhere", False) and not speaker:
            time.sleep(_SPEAKING_TIME)
        text = "".join(traceback.format_exception(kind, error, tb))
        # torch's init_process_group puts a hook before this one, and a buffer in the place of sys.stderr that it prints
        # when this one has returned, which it never does
        stderr = sys.__stderr__ or sys.stderr
        stderr.write(f"[mpigraph] uncaught exception on {identity}; the job is ended\n{text}")
        stderr.flush()
        abort(1)

    def stop_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit:
            stop(args.exc_type, args.exc_value, args.exc_traceback)

    sys.excepthook = stop
    threading.excepthook = stop_thread
    try:
        yield
    finally:
        sys.excepthook, threading.excepthook = main_hook, thread_hook
