"""Rounds of requests and answers between all ranks of a communicator.

A round is four collective steps, the same for every operation::

    Ialltoall(headers)           what I ask of you: operation, status, number of request words
    Ialltoallv(request words)    int64
    Ialltoall(answer sizes)      in words; -1 to everybody: answering failed here
    Ialltoallv(answers)          words of eight bytes, since MPI-3 counts are 32-bit

All are non-blocking (:mod:`.coroutine`). So a server takes part in the rounds of several channels at once and sleeps
meanwhile; an asker does its own part of the work while the others make their answers; and a rank that waits inside a
round gives its core to whoever shares it, since blocking MPI calls spin.

Knows nothing of what is asked. One thread at a time on a communicator.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, U8
from mpigraph.mpi.coroutine import Coroutine

__all__ = ["FAILED", "OK", "Header", "Requests", "exchange_answers", "exchange_requests"]


OK, FAILED = 0, 1
_WORDS = 3  # operation, status, request words


@dataclass(frozen=True)
class Requests:
    """What every rank asks of this one: ``words[bounds[r]:bounds[r + 1]]`` came from rank r."""

    words: I64
    bounds: I64

    def of(self, rank: int) -> I64:
        """The request words of ``rank``."""
        return self.words[self.bounds[rank] : self.bounds[rank + 1]]


class Header:
    """The first step of a round, begun by construction.

    Attributes:
        request: completes when every rank's header is here.

    Collective on ``comm``: construction.
    """

    def __init__(self, comm: MPI.Comm, operation: int, status: int, words: I64) -> None:
        """Tell each rank operation, status and how many words follow (``words``: int64[size])."""
        self._sent = np.empty((comm.size, _WORDS), np.int64)
        self._sent[:, 0] = operation
        self._sent[:, 1] = status
        self._sent[:, 2] = words
        self._received = np.empty_like(self._sent)
        self.request = comm.Ialltoall(self._sent, self._received)

    @property
    def operations(self) -> I64:
        """int64[size]: each rank's operation, once arrived."""
        return self._received[:, 0]

    @property
    def statuses(self) -> I64:
        """int64[size]: each rank's status, once arrived."""
        return self._received[:, 1]

    @property
    def counts(self) -> I64:
        """int64[size]: how many words each rank will send me, once arrived."""
        return self._received[:, 2]


def _bounds(counts: I64) -> I64:
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds


def exchange_requests(comm: MPI.Comm, words: I64, counts: I64, header: Header) -> Coroutine[Requests]:
    """Send request words; ``counts[r]`` consecutive words of ``words`` go to rank r. Collective on ``comm``."""
    bounds = _bounds(header.counts)
    received = np.empty(int(bounds[-1]), np.int64)
    yield comm.Ialltoallv([words, counts, MPI.INT64_T], [received, header.counts, MPI.INT64_T])
    return Requests(received, bounds)


def exchange_answers(
    comm: MPI.Comm, answers: list[U8] | None, meanwhile: Callable[[], None] | None = None
) -> Coroutine[tuple[list[U8], I64]]:
    """Send each rank its answer. Collective on ``comm``.

    Args:
        comm: the channel.
        answers: ``answers[r]`` (uint8, in eights) goes to rank r; None if answering failed on this rank.
        meanwhile: what to do while the other ranks make their answers.

    Returns:
        The answers received in rank order (empty where answering failed), and the ranks where it failed.
    """
    sizes = np.full(comm.size, -1, np.int64)
    if answers is not None:
        sizes[:] = [len(answer) // 8 for answer in answers]
    incoming = np.empty(comm.size, np.int64)
    request = comm.Ialltoall(sizes, incoming)
    if meanwhile is not None:
        meanwhile()
    yield request
    failed = np.flatnonzero(incoming < 0)
    if len(failed):
        return [], failed
    assert answers is not None  # our own size came back as sent
    bounds = _bounds(incoming)
    received = np.empty(8 * int(bounds[-1]), np.uint8)
    leaving = np.concatenate(answers)
    yield comm.Ialltoallv([leaving, sizes, MPI.INT64_T], [received, incoming, MPI.INT64_T])
    return [received[8 * bounds[r] : 8 * bounds[r + 1]] for r in range(comm.size)], failed
