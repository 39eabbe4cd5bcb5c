"""Fail together: a check that can fail on one rank is agreed on, so that every rank raises the same error.

Runs on the communicator that it is given. For set-up, not for the hot path (there the status rides in the headers of a
round, see ``mpi/rounds.py``).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from mpi4py import MPI

from mpigraph import errors
from mpigraph.errors import CollectiveError, MPIGraphError
from mpigraph.mpi.coroutine import Coroutine, run
from mpigraph.mpi.watch import Backoff

__all__ = ["allgather_bytes", "joint_error", "raise_together", "together", "wait_asleep"]


def allgather_bytes(comm: MPI.Comm, data: bytes) -> list[bytes]:
    """Give every rank the bytes of every rank, in rank order. Collective on ``comm``."""
    return run(_gather_bytes(comm, data))


def _gather_bytes(comm: MPI.Comm, data: bytes) -> Coroutine[list[bytes]]:
    length, lengths = np.array([len(data)], np.int64), np.empty(comm.size, np.int64)
    yield comm.Iallgather(length, lengths)
    mine, total = np.frombuffer(data, np.uint8), np.empty(int(lengths.sum()), np.uint8)
    yield comm.Iallgatherv(mine, [total, lengths])
    ends = np.cumsum(lengths)
    return [total[end - length : end].tobytes() for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]


def describe(error: BaseException) -> str:
    """One line for an error: its own words, with the class where the words are not ours."""
    return str(error) if isinstance(error, MPIGraphError) else f"{type(error).__name__}: {error}"


def wait_asleep(request: MPI.Request) -> None:
    """Wait for ranks that may work for seconds, without taking a core from them."""
    backoff = Backoff()
    while not request.Test():
        backoff.pause()


def raise_together(comm: MPI.Comm, doing: str, error: BaseException | None, *, label: str = "rank") -> None:
    """Raise on every rank if any rank has an error.

    If all failing ranks failed with the same error of this library's own, the error of the same class is raised
    everywhere; else a :class:`CollectiveError`. Both name the step and the failing ranks.

    Args:
        comm: who agrees.
        doing: what was being done ("reading part 3"), for the message.
        error: this rank's error, or None.
        label: how the ranks of ``comm`` are called in the message.

    Collective on ``comm``.
    """
    failed = np.array([error is not None], np.int8)
    any_failed = np.empty(1, np.int8)
    wait_asleep(comm.Iallreduce(failed, any_failed, op=MPI.MAX))
    if not any_failed[0]:
        return
    raise run(joint_error(comm, doing, error, label)) from error


def joint_error(
    comm: MPI.Comm, doing: str, error: BaseException | None, label: str = "rank"
) -> Coroutine[MPIGraphError]:
    """The error that every rank raises, once it is known that some rank has one; see :func:`raise_together`.

    Collective on ``comm``.
    """
    texts = yield from _gather_bytes(comm, describe(error).encode() if error is not None else b"")
    kinds = yield from _gather_bytes(comm, type(error).__name__.encode() if error is not None else b"")
    by_text: dict[str, list[int]] = {}
    for rank, data in enumerate(texts):
        if data:
            by_text.setdefault(data.decode(), []).append(rank)
    parts = []
    for text, ranks in by_text.items():
        where = "every rank" if len(ranks) == comm.size else f"{label} {', '.join(map(str, ranks))}"
        parts.append(f"on {where}: {text}")
    names = {kind.decode() for kind in kinds if kind}
    kind = getattr(errors, names.pop(), CollectiveError) if len(names) == 1 else CollectiveError
    joint: MPIGraphError = kind(f"{doing} failed " + "; ".join(parts))
    joint.everywhere = True
    return joint


@contextmanager
def together(comm: MPI.Comm, doing: str) -> Iterator[None]:
    """Run local code; if it raised on any rank, raise on every rank, naming the culprits.

    The code inside must not communicate on ``comm``.

    Collective on ``comm``.
    """
    error = None
    try:
        yield
    except Exception as exc:  # carried to every rank by the next line
        error = exc
    raise_together(comm, doing, error)
