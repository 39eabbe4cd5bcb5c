"""Every wait has a deadline: the watchdog ends a job that hangs, and says where each rank hangs.

A :class:`Watchdog` is one daemon thread a process. Code that is about to wait for others enters ``watch(what)``; when
a wait outlasts the timeout, the thread prints role, rank and last operation of every rank on its node (read from a
board in shared memory), the Python stacks of this process, and aborts the job. The board is written by the watchdog
threads alone, so a wait itself costs one dictionary entry.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
from mpi4py import MPI

from mpigraph.mpi.abort import abort
from mpigraph.mpi.compat import as_array

__all__ = ["Watch", "Watchdog"]

Watch = Callable[[str], AbstractContextManager[None]]
"""Puts a deadline on the wait inside the ``with`` block; its argument says what for."""

_SLOT = 256  # bytes a rank has on the board


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
        """Stop watching and free the board. Collective on ``node``."""
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
        text = (
            f"[mpigraph] {self._identity} waited {seconds:.0f} s in {what}: the job is stuck and is ended "
            f"(MPIGRAPH_TIMEOUT sets the limit). The ranks of this node:\n  " + "\n  ".join(lines) + "\n"
        )
        abort(124, text, stacks=True)
