"""The collective calls of a process group, compared across its ranks before they begin.

MPI trusts its callers: where counts, dtypes, roots or calls differ it gives wrong values, crashes or hangs. So each
call begins with a comparison (:class:`.Sameness`) of the arguments that must be the same on all ranks. It is the same
MPI operation for every call, on a communicator of its own, and has the same result on every rank: either all begin the
call's own operation, in the order of the calls, or none does and all raise an error.
"""

import sys
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import NamedTuple, NoReturn

import numpy as np
import torch
from mpi4py import MPI

from mpigraph.collective import collective
from mpigraph.errors import CollectiveError
from mpigraph.log import line_calling
from mpigraph.mpi.agree import Sameness, everywhere
from mpigraph.mpi.coroutine import Coroutine

_LONGEST = 400  # bytes of a call's description
_TAGS = 2**15 - 1  # MPI has at least as many
_LOOKS = 20  # a few microseconds: where the ranks come at the same time, it is faster than to yield


class Call(NamedTuple):
    """A collective call of one rank, the same on all.

    Attributes:
        kind: such as "all_reduce".
        dtype: of the tensors; None without one.
        values: number of values of the tensor that each rank gives, or of the one that each gets if that is smaller.
        op: the reduction, such as "SUM"; "" for none.
        root: the rank that is the source, or None.
    """

    kind: str
    dtype: torch.dtype | None = None
    values: int = 0
    op: str = ""
    root: int | None = None

    def text(self, trainers: Sequence[int]) -> str:
        """Return a description for people."""
        parts = [f"{self.kind}({self.op})" if self.op else self.kind]
        if self.dtype is not None:
            parts.append(f"of {self.values} {self.dtype}")
        if self.root is not None:
            parts.append(f"with root {trainers[self.root]}")
        return " ".join(parts)


class _Turn:
    """A call that waits for its operation to begin: a request, for coroutines."""

    def __init__(self, calls: "Calls", call: Call, begin: Callable[[], MPI.Request]) -> None:
        self.calls, self.call, self.begin = calls, call, begin
        self.sameness = Sameness(call)
        self.compared = calls.comm.Iallreduce(MPI.IN_PLACE, self.sameness.words, MPI.MAX)
        self.request: MPI.Request | None = None
        self.error: Exception | None = None
        self.same = True
        self.done = False

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether the operation was begun, or the calls differ."""
        if not self.done:
            self.calls.proceed()
        return self.done

    def conclude(self) -> None:
        """Begin the operation if the comparison, which is complete, shows that all ranks have made the same call."""
        self.same = self.sameness.holds
        if self.same and self.request is None:
            try:
                self.request = self.begin()
            except Exception as error:  # for the thread that waits, which need not be this one
                self.error = error
        self.done = True


class Calls:
    """Compares the calls of a group and begins their operations, in the same order on every rank.

    Attributes:
        comm: carries comparisons; ``size`` is the number of its ranks.
    """

    @collective("group")
    def __init__(self, comm: MPI.Intracomm, trainers: Sequence[int], name: str, at_once: bool) -> None:
        """Begin.

        Args:
            comm: the group's.
            trainers: the numbers of its ranks.
            name: names the group in messages.
            at_once: begin each operation beside its comparison: no thread would begin it while this one computes.
        """
        self.comm = comm.Dup()
        self.size = comm.size
        self._trainers, self._name, self._at_once = trainers, name, at_once
        self._lock = Lock()
        self._turns: deque[_Turn] = deque()
        self._in_vain: list[_Turn] = []
        self._number = 0

    @collective("group")
    def together(self, call: Call, begin: Callable[[], MPI.Request]) -> Coroutine[MPI.Request]:
        """Begin an operation once every rank has made the same call, and return its request.

        Raises CollectiveError if the calls differ; on every rank, with all calls, lines and trainers.
        """
        if self.size == 1:
            return begin()
        with self._lock:
            self._number += 1
            number = self._number
            turn = _Turn(self, call, begin)
            self._turns.append(turn)
            if self._at_once:
                turn.request = begin()
        looks = 0
        while not turn.Test() and looks < _LOOKS:
            looks += 1
        # the caller is on the stack until the first yield
        line = "" if turn.done and turn.same else line_calling(sys._getframe())
        if not turn.done:
            yield turn  # type: ignore[misc]
        if not turn.same:
            yield from self._explain(call, line, number)
        if turn.error is not None:
            raise turn.error
        assert turn.request is not None
        return turn.request

    def proceed(self) -> None:
        """Begin the operations whose calls were compared, in order. For any thread."""
        with self._lock:
            while self._turns and self._turns[0].compared.Test():
                turn = self._turns.popleft()
                turn.conclude()
                if not turn.same and turn.request is not None:
                    self._in_vain.append(turn)  # with the memory that MPI may write to

    def _explain(self, call: Call, line: str, number: int) -> Coroutine[NoReturn]:
        """Raise an error with every rank's call; by messages, since comparisons of later calls may have begun."""
        sent = np.zeros(_LONGEST, np.uint8)
        text = f"{call.text(self._trainers)}{f' at {line}' if line else ''}".encode(errors="backslashreplace")
        text = text[-_LONGEST:]
        sent[: len(text)] = np.frombuffer(text, np.uint8)
        texts = np.zeros((self.size, _LONGEST), np.uint8)
        tag = number % _TAGS
        requests = [self.comm.Irecv(texts[rank], rank, tag) for rank in range(self.size)]
        requests += [self.comm.Isend(sent, rank, tag) for rank in range(self.size)]
        while requests:
            yield requests.pop()
        calls: dict[str, list[int]] = {}
        for trainer, words in zip(self._trainers, texts, strict=True):
            calls.setdefault(words.tobytes().rstrip(b"\0").decode(errors="replace"), []).append(trainer)
        lines = [f"\n  trainer(s) {', '.join(map(str, ranks))}: {text}" for text, ranks in calls.items()]
        error = CollectiveError(
            f"call {number} of {self._name} is not the same on all its trainers, which must make the same calls in the "
            f"same order:{''.join(lines)}"
        )
        raise everywhere(error) if 0 in self._trainers else error

    @property
    def broken(self) -> bool:
        """True if operations of calls that differ were begun, which MPI may never complete."""
        return bool(self._in_vain)

    @collective("group")
    def close(self) -> None:
        """Free the communicator."""
        self.comm.Free()
