"""Rounds of requests and answers between all ranks of a communicator.

A round is four collective steps, the same for every operation::

    Ialltoall(headers)           what I ask of you: operation, status, number of request words
    Ialltoallv(request words)    int64
    Ialltoall(answer sizes)      in words; -1 to everybody: answering failed here
    Ialltoallv(answers)          words of eight bytes, since MPI-3 counts are 32-bit

All are non-blocking (:mod:`.coroutine`). So a server takes part in the rounds of several channels at once and sleeps
meanwhile; an asker does its own part of the work while the others make their answers; and a rank that waits inside a
round gives its core to whoever shares it, since blocking MPI calls spin.

Knows nothing of what is asked. One thread at a time on a communicator. MPI sees all ranks in each step; Python code
only those that ask something.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, U8, Array
from mpigraph.mpi.coroutine import Coroutine

__all__ = ["FAILED", "OK", "Header", "Received", "exchange_answers", "exchange_requests", "in_rank_order"]


OK, FAILED = 0, 1
_WORDS = 3  # operation, status, request words

Values = TypeVar("Values", bound=Array)


@dataclass(frozen=True)
class Received(Generic[Values]):
    """What came from every rank: ``values[bounds[r]:bounds[r + 1]]`` from rank r."""

    values: Values
    bounds: I64

    def of(self, rank: int) -> Values:
        """What came from ``rank``, a view."""
        return cast(Values, self.values[self.bounds[rank] : self.bounds[rank + 1]])

    @property
    def senders(self) -> list[int]:
        """The ranks that sent anything, ascending."""
        ranks: list[int] = np.flatnonzero(np.diff(self.bounds)).tolist()
        return ranks


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


def in_rank_order(parts: Mapping[int, Values], size: int) -> tuple[Values | None, I64]:
    """What goes to some ranks as one array, and how many elements go to each rank.

    Args:
        parts: by rank what it gets, 1-D and of one dtype.
        size: how many ranks there are.

    Returns:
        The parts in rank order, or None if there are none; and int64[size].
    """
    counts = np.zeros(size, np.int64)
    ranks = sorted(parts)
    if not ranks:
        return None, counts
    counts[ranks] = [len(parts[rank]) for rank in ranks]
    return cast(Values, np.concatenate([parts[rank] for rank in ranks])), counts


def _bounds(counts: I64) -> I64:
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds


def exchange_requests(comm: MPI.Comm, words: I64, counts: I64, header: Header) -> Coroutine[Received[I64]]:
    """Send request words; ``counts[r]`` consecutive words of ``words`` go to rank r. Collective on ``comm``."""
    bounds = _bounds(header.counts)
    received = np.empty(int(bounds[-1]), np.int64)
    yield comm.Ialltoallv([words, counts, MPI.INT64_T], [received, header.counts, MPI.INT64_T])
    return Received(received, bounds)


def exchange_answers(
    comm: MPI.Comm, answers: Mapping[int, U8] | None, meanwhile: Callable[[], None] | None = None
) -> Coroutine[Received[U8] | None]:
    """Send ranks their answers. Collective on ``comm``.

    Args:
        comm: the channel.
        answers: ``answers[r]`` (uint8, in eights) goes to rank r, nothing to ranks without; None if answering failed on
            this rank.
        meanwhile: what to do while the other ranks make their answers.

    Returns:
        The answers received; None on every rank where answering failed on some.
    """
    leaving, counts = in_rank_order(answers or {}, comm.size)
    sizes = counts // 8 if answers is not None else np.full(comm.size, -1, np.int64)
    incoming = np.empty(comm.size, np.int64)
    request = comm.Ialltoall(sizes, incoming)
    if meanwhile is not None:
        meanwhile()
    yield request
    if (incoming < 0).any():
        return None
    bounds = _bounds(8 * incoming)
    received = np.empty(int(bounds[-1]), np.uint8)
    leaving = np.empty(0, np.uint8) if leaving is None else leaving
    yield comm.Ialltoallv([leaving, sizes, MPI.INT64_T], [received, incoming, MPI.INT64_T])
    return Received(received, bounds)
