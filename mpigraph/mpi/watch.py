"""Every wait has a deadline: the watchdog ends a job that hangs, and says where each rank hangs.

A :class:`Watchdog` is one daemon thread a process. Code that is about to wait for others enters ``watch(what)``; when
a wait outlasts the timeout, the thread prints role, rank and last operation of every rank on its node (read from a
board in shared memory), the Python stacks of this process, and aborts the job. The board is written by the watchdog
threads alone, so a wait itself costs one dictionary entry.

:func:`guard` makes an uncaught exception, in any thread of any rank, end the job within seconds.
"""

import faulthandler
import itertools
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

import numpy as np
from mpi4py import MPI

from mpigraph.mpi.compat import as_array

__all__ = ["Backoff", "Stop", "Watchdog", "guard", "keep_progress", "wait_politely"]

_SLOT = 256  # bytes a rank has on the board
_SPEAKING_TIME = 5.0  # seconds that the speaker has to print an error that every rank raises


class Backoff:
    """Wait in a polling loop: spin shortly, then sleep a little longer each time."""

    def __init__(self, spins: int = 200, first: float = 2e-5, longest: float = 2e-3) -> None:
        """Spin ``spins`` times, then sleep from ``first`` up to ``longest`` seconds a turn."""
        self._spins, self._first, self._longest = spins, first, longest
        self.reset()

    def reset(self) -> None:
        """Start again with spinning."""
        self._left, self._pause = self._spins, self._first

    def pause(self, longest: float = math.inf) -> None:
        """Wait one turn, for no longer than ``longest`` seconds."""
        if self._left > 0:
            self._left -= 1
            return
        time.sleep(min(self._pause, longest))
        self._pause = min(1.5 * self._pause, self._longest)


def wait_politely(request: MPI.Request) -> None:
    """Wait for ranks that are in the same round, in naps that leave core and interpreter lock to whoever computes.

    A thread that polls without sleeping takes the lock again and again, and each operation of a model in another
    thread then waits for it.
    """
    backoff = Backoff(spins=5, first=1e-5, longest=1e-4)
    while not request.Test():
        backoff.pause()


class Watchdog:
    """Ends the job when a wait of this process outlasts ``timeout`` seconds.

    Collective on ``node``: construction and :meth:`close`.
    """

    def __init__(self, node: MPI.Intracomm, identity: str, timeout: float) -> None:
        """Share a board on ``node`` and start watching; ``identity`` names this rank ("trainer 3 (rank 5)")."""
        self._identity = identity
        self._timeout = timeout
        self._waits: dict[int, tuple[str, float, float]] = {}
        self._tokens = itertools.count()
        self._last = "started"
        self._win = MPI.Win.Allocate_shared(_SLOT, 1, comm=node)
        self._board = [as_array(self._win.Shared_query(r)[0], np.uint8) for r in range(node.size)]
        self._mine = self._board[node.rank]
        self._done = threading.Event()
        self._write_board()
        node.Barrier()
        self._thread = threading.Thread(target=self._run, name="mpigraph-watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def watch(self, what: str, patience: float = 1.0) -> Iterator[None]:
        """Say that this thread is about to wait for ``what``, for ``patience`` timeouts at most."""
        token = next(self._tokens)  # waits begin in several threads
        self._waits[token] = (what, time.monotonic(), patience * self._timeout)
        try:
            yield
        finally:
            del self._waits[token]
            self._last = what

    def close(self) -> None:
        """Stop watching and free the board."""
        self._done.set()
        self._thread.join()
        win, self._win = self._win, MPI.WIN_NULL
        if win:
            self._board = []
            del self._mine
            win.Free()

    def _run(self) -> None:
        while not self._done.wait(min(0.5, self._timeout / 4)):
            self._write_board()
            now = time.monotonic()
            for what, since, limit in list(self._waits.values()):
                if now - since > limit:
                    self._abort(what, now - since)

    def _write_board(self) -> None:
        now = time.monotonic()
        waits = [f"waiting {now - since:.0f} s in {what}" for what, since, _ in list(self._waits.values())]
        text = f"{self._identity}: {'; '.join(waits) or 'running, last wait was ' + self._last}"
        data = text.encode()[:_SLOT]
        self._mine[:] = np.frombuffer(data.ljust(_SLOT, b"\0"), np.uint8)

    def _abort(self, what: str, seconds: float) -> None:
        lines = [bytes(slot).rstrip(b"\0").decode(errors="replace") for slot in self._board]
        sys.stderr.write(
            f"[mpigraph] {self._identity} waited {seconds:.0f} s in {what}: the job is stuck and is ended "
            f"(MPIGRAPH_TIMEOUT sets the limit). The ranks of this node:\n  " + "\n  ".join(lines) + "\n"
        )
        faulthandler.dump_traceback(all_threads=True)
        sys.stderr.flush()
        MPI.COMM_SELF.Abort(124)
        os._exit(124)


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
        MPI.COMM_SELF.Abort(1)
        os._exit(1)

    def stop_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit:
            stop(args.exc_type, args.exc_value, args.exc_traceback)

    sys.excepthook = stop
    threading.excepthook = stop_thread
    try:
        yield
    finally:
        sys.excepthook, threading.excepthook = main_hook, thread_hook


Stop = Callable[[], None]


def keep_progress(poke: Callable[[], bool], longest: float = 1e-3) -> Stop:
    """Poke the MPI library from a thread, so that others can read this rank's rows while it computes.

    MPI need not serve a passive target while its process is outside MPI (MPI 4.1, section 12.7.3), and many fabrics
    do not: a trainer that waits in torch for a trainer that reads from it would wait for ever.

    Args:
        poke: calls MPI, and says whether there was something to do; then it is called again at once.
        longest: most seconds between pokes.

    Returns:
        A function that ends the thread.
    """
    done = threading.Event()

    def run() -> None:
        backoff = Backoff(spins=2, first=1e-4, longest=longest)
        while not done.is_set():
            if poke():
                backoff.reset()
            else:
                backoff.pause()

    thread = threading.Thread(target=run, name="mpigraph-progress", daemon=True)
    thread.start()

    def stop() -> None:
        done.set()
        thread.join()

    return stop
