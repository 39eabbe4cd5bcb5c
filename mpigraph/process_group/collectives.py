"""Collectives that go on while their caller computes: begun by one call, waited for later, or never.

Exposition: who makes an operation advance. MPI advances a non-blocking operation only inside MPI calls. So whoever
waits for one tests it again and again; and an operation that nobody waits for yet is tested by a thread, if MPI allows
calls from several threads. The thread sleeps while nothing is under way, and leaves an operation to whoever waits for
it; where both test the same one, a lock in :class:`Pending` keeps them apart.

All ranks of a communicator must begin its operations in the same order. Arrays are one-dimensional and contiguous;
they belong to the operation until it is complete.
"""

import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from mpi4py import MPI

from mpigraph.arrays import Array
from mpigraph.errors import ClosedError, InvalidArgumentError
from mpigraph.mpi.watch import Backoff

__all__ = ["ANY_RANK", "Collectives", "Pending"]

Watch = Callable[[str], AbstractContextManager[None]]

ANY_RANK = MPI.ANY_SOURCE
_OPS = {
    "SUM": MPI.SUM,
    "PRODUCT": MPI.PROD,
    "MIN": MPI.MIN,
    "MAX": MPI.MAX,
    "BAND": MPI.BAND,
    "BOR": MPI.BOR,
    "BXOR": MPI.BXOR,
}


class Pending:
    """One operation under way. It keeps its arrays alive.

    Attributes:
        what: the operation, for messages.
        finish: called once, before the operation counts as complete, in the thread that notices; set it at the start.
        source: the rank that a received message came from, or -1.
        error: what went wrong, once complete, or None.
        attended: whether somebody already sees that it advances without being waited for.
    """

    def __init__(self, what: str, request: MPI.Request, arrays: Sequence[Array | None], expected: int = -1) -> None:
        self.what = what
        self.finish: Callable[[], None] | None = None
        self.source = -1
        self.error: Exception | None = None
        self.attended = False
        self._request = request
        self._arrays = arrays
        self._expected = expected
        self._done = False
        self._awaited = False
        self._lock = threading.Lock()
        self._after: list[Callable[[], None]] = []

    def poll(self) -> bool:
        """Let the operation advance; say whether it is complete."""
        if self._done:
            return True
        with self._lock:
            if self._done:
                return True
            try:
                if not self._test():
                    return False
                if self.finish is not None:
                    self.finish()
            except Exception as error:  # for the thread that asks, which need not be this one
                self.error = error
            self._done = True
            after, self._after, self._arrays, self.finish = self._after, [], (), None
        for call in after:
            call()
        return True

    def nudge(self) -> bool:
        """:meth:`poll`, unless somebody waits and polls anyway; say whether it is complete."""
        return self._done if self._awaited else self.poll()

    def _test(self) -> bool:
        status = MPI.Status()
        if not self._request.Test(status):
            return False
        if self._expected >= 0:
            self.source = status.Get_source()
            if status.Get_count(MPI.BYTE) != self._expected:
                raise InvalidArgumentError(
                    f"{self.what}: rank {self.source} sent {status.Get_count(MPI.BYTE)} bytes, "
                    f"the tensor has {self._expected}"
                )
        return True

    def then(self, call: Callable[[], None]) -> None:
        """Call something once complete, in the thread that notices, or now. It must not raise."""
        with self._lock:
            if not self._done:
                self._after.append(call)
                return
        call()

    def wait(self, seconds: float = 0.0) -> bool:
        """Wait politely, as long as it takes or for some seconds; say whether it is complete."""
        end = time.monotonic() + seconds if seconds > 0 else float("inf")
        self._awaited = True
        try:
            for turn in itertools.count():
                if self.poll():
                    break
                if time.monotonic() > end:
                    return False
                if turn > 400:
                    time.sleep(2e-5)
                elif turn > 100:
                    os.sched_yield()
        finally:
            self._awaited = False
        return True


class _Progress:
    """A thread that tests operations until they are complete; it sleeps while there are none."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._inbox: queue.SimpleQueue[Pending | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mpigraph-collectives", daemon=True)
        self._thread.start()

    def add(self, pending: Pending) -> None:
        deadline = ExitStack()
        deadline.enter_context(self._watch(pending.what))
        pending.then(deadline.close)
        self._inbox.put(pending)

    def close(self) -> None:
        """Complete what is under way and end."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        active: list[Pending] = []
        open_ = True
        backoff = Backoff(spins=20, first=2e-5, longest=2e-4)
        while open_ or active:
            try:
                arrived = self._inbox.get(block=not active)
                open_ = open_ and arrived is not None
                if arrived is not None:
                    active.append(arrived)
                continue
            except queue.Empty:
                pass
            left = [pending for pending in active if not pending.nudge()]
            if len(left) < len(active):
                backoff.reset()
            active = left
            if active:
                backoff.pause()


class Collectives:
    """Non-blocking operations on a communicator, which it owns.

    Every operation begins when its method is called; the result is a :class:`Pending`. Each has a deadline: from its
    beginning if it was given to the thread (:meth:`go_on`), else in the wait.

    Collective on ``comm``: :meth:`close` and every operation but :meth:`send` and :meth:`recv`.
    """

    def __init__(self, comm: MPI.Intracomm, watch: Watch, threaded: bool) -> None:
        """Own ``comm``; ``threaded``: a thread may make operations advance that nobody waits for."""
        self._comm: MPI.Comm = comm
        self._watch = watch
        self._threaded = threaded
        self._progress: _Progress | None = None
        self._kept: list[Pending] = []
        self.rank, self.size = comm.rank, comm.size

    @property
    def comm(self) -> MPI.Comm:
        """The communicator.

        Raises:
            ClosedError: it was freed.
        """
        if not self._comm:
            raise ClosedError("the process group was closed, by destroy_process_group() or exit_client()")
        return self._comm

    def wait(self, pending: Pending, seconds: float = 0.0) -> bool:
        """Wait with the deadline of every wait."""
        with self._watch(pending.what):
            return pending.wait(seconds)

    def go_on(self, pending: Pending) -> None:
        """Keep an operation that may not be waited for, and see that it advances if a thread can do that.

        A second call for the same operation does nothing.
        """
        if pending.attended or pending.poll():
            return
        pending.attended = True
        if not self._threaded:
            self._kept = [*(kept for kept in self._kept if not kept.poll()), pending]
            return
        if self._progress is None:
            self._progress = _Progress(self._watch)
        self._progress.add(pending)

    def finish_alone(self, pending: Pending) -> None:
        """See that an operation completes though nobody will wait for it: without a thread, wait here."""
        self.go_on(pending)
        if not self._threaded:
            self.wait(pending)

    def allreduce(self, array: Array, op: str) -> Pending:
        """Reduce in place. Collective on ``comm``."""
        return Pending("all_reduce", self.comm.Iallreduce(MPI.IN_PLACE, array, op=_OPS[op]), [array])

    def reduce(self, array: Array, op: str, root: int) -> Pending:
        """Reduce, in place on ``root``. Collective on ``comm``."""
        ends: tuple[Any, Any] = (MPI.IN_PLACE, array) if self.rank == root else (array, None)
        return Pending("reduce", self.comm.Ireduce(ends[0], ends[1], op=_OPS[op], root=root), [array])

    def reduce_scatter(self, out: Array, array: Array, counts: Sequence[int], op: str) -> Pending:
        """Reduce; rank r gets ``counts[r]`` consecutive items. Collective on ``comm``."""
        request = self.comm.Ireduce_scatter(array, out, recvcounts=list(counts), op=_OPS[op])
        return Pending("reduce_scatter", request, [out, array])

    def broadcast(self, array: Array, root: int) -> Pending:
        """Give every rank what ``root`` has. Collective on ``comm``."""
        return Pending("broadcast", self.comm.Ibcast(array, root=root), [array])

    def allgather(self, out: Array, array: Array, counts: Sequence[int]) -> Pending:
        """Give every rank every rank's items, ``counts[r]`` from rank r. Collective on ``comm``."""
        return Pending("all_gather", self.comm.Iallgatherv(array, [out, list(counts)]), [out, array])

    def gather(self, out: Array | None, array: Array, counts: Sequence[int], root: int) -> Pending:
        """Give ``root`` every rank's items; ``out`` is None elsewhere. Collective on ``comm``."""
        end = None if out is None else [out, list(counts)]
        return Pending("gather", self.comm.Igatherv(array, end, root=root), [out, array])

    def scatter(self, out: Array, array: Array | None, counts: Sequence[int], root: int) -> Pending:
        """Deal the items of ``root``; ``array`` is None elsewhere. Collective on ``comm``."""
        end = None if array is None else [array, list(counts)]
        return Pending("scatter", self.comm.Iscatterv(end, out, root=root), [out, array])

    def alltoall(self, out: Array, array: Array, out_counts: Sequence[int], counts: Sequence[int]) -> Pending:
        """Send ``counts[r]`` consecutive items to rank r, get ``out_counts[r]`` from it. Collective on ``comm``."""
        request = self.comm.Ialltoallv([array, list(counts)], [out, list(out_counts)])
        return Pending("all_to_all", request, [out, array])

    def barrier(self) -> Pending:
        """Complete when every rank has begun it. Collective on ``comm``."""
        return Pending("barrier", self.comm.Ibarrier(), [])

    def send(self, array: Array, to: int, tag: int) -> Pending:
        """Send to one rank, which receives."""
        return Pending(f"send to {to}", self.comm.Isend(array, dest=to, tag=tag), [array])

    def recv(self, array: Array, source: int, tag: int) -> Pending:
        """Receive from one rank, or from any (:data:`ANY_RANK`), exactly as many bytes as the array has."""
        name = "anyone" if source == ANY_RANK else str(source)
        request = self.comm.Irecv(array, source=source, tag=tag)
        return Pending(f"recv from {name}", request, [array], expected=array.nbytes)

    def close(self) -> None:
        """Complete what is under way and free the communicator; a second call does nothing.

        Collective on ``comm``.
        """
        if not self._comm:
            return
        for pending in self._kept:
            self.wait(pending)
        if self._progress is not None:
            with self._watch("the end of a process group's operations"):
                self._progress.close()
        comm, self._comm = self._comm, MPI.COMM_NULL
        comm.Free()
