"""The server's life: answer control calls and sampling requests until the trainers shut the job down."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mpigraph.collective import collective
from mpigraph.mpi.wait import IDLE_SERVER_LOCAL, IDLE_SERVER_REMOTE, IN_ROUND, TRANSFER, Backoff, Policy
from mpigraph.session.control import Control, Operation
from mpigraph.store.store import Store

_LONG = 0.1  # seconds of a control call after which a second thread answers rounds


@collective("store.world.comm", "in step with the trainers' calls")
def serve(store: Store, control: Control) -> None:
    """Serve until the trainers call shutdown, then free everything.

    An idle server sleeps between polls, so that it leaves its core to a trainer; it may be idle for hours. Where
    every trainer reads its memory directly it has only control calls to wait for, and sleeps longer.
    """
    rounds = _Rounds(store)
    backoff = Backoff()
    while True:
        operation = control.poll(rounds.answered_meanwhile)
        moved = rounds.poll() or operation is not None
        control.reporting.follow()
        if store.world.watchdog.needs_exchange:
            store.world.watchdog.exchange()
        if operation is Operation.SHUTDOWN:
            if store.world.watchdog.stopping.agreed:  # the batch system sends SIGTERM once more; the job ends itself
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            store.close()
            return
        if moved:
            backoff.reset()
        else:
            backoff.pause(rounds.policy)


class _Rounds:
    """Requests of other ranks to a server beside control calls: for neighbours, and for rows."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._idle = IDLE_SERVER_LOCAL if store.world.all_local else IDLE_SERVER_REMOTE

    def poll(self) -> bool:
        """Advance the requests without waiting; return whether anything moved. One thread at a time."""
        moved = self._store.rows.progress()
        return self._store.exchange.progress() or moved

    @property
    def policy(self) -> Policy:
        """The way to wait when nothing moves."""
        if self._store.rows.outstanding:
            return TRANSFER
        return IN_ROUND if self._store.exchange.outstanding else self._idle

    @contextmanager
    def answered_meanwhile(self) -> Iterator[None]:
        """Let another thread answer while this one is in a control call, which may load a graph for minutes.

        Where MPI does not allow that, no trainer samples beside a control call.
        """
        world = self._store.world
        if world.all_local or not world.threads_may_communicate:
            yield
            return
        over = threading.Event()
        thread = threading.Thread(target=self._answer_until, args=(over,), name="mpigraph-rounds", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _answer_until(self, over: threading.Event) -> None:
        if over.wait(_LONG):
            return
        backoff = Backoff()
        while not over.is_set():
            if self.poll():
                backoff.reset()
            else:
                backoff.pause(self.policy)
