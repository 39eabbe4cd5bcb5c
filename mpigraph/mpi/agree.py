"""Fail together: the ranks agree on a check that can fail on one of them, so that all raise the same error.

:func:`agree` is a coroutine; :func:`together` does the same around a block of local code. Where a status is part of
headers that are exchanged anyway (``mpi/messages.py``), the ranks agree only if one has failed.
"""

import json
import socket
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from hashlib import blake2b
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from mpigraph import errors
from mpigraph.collective import collective
from mpigraph.errors import CollectiveError, InvalidArgumentError, MPIGraphError
from mpigraph.log import line_calling, line_of
from mpigraph.mpi.coroutine import Coroutine, run
from mpigraph.mpi.deadlines import ON_ALL, WAITS
from mpigraph.mpi.wait import IDLE, NOW, UNINTERRUPTED, until
from mpigraph.trace import count

Error = TypeVar("Error", bound=MPIGraphError)

_ONES = 2**64 - 1
_SHOWN = 8  # ranks in a message
_BULK = 1 << 26  # bytes that may travel to or from one rank


@collective("comm")
def allgather_bytes(comm: MPI.Comm, data: bytes) -> list[bytes]:
    """Give every rank the bytes of every rank, in rank order."""
    return run(gathering(comm, data))


@collective("comm")
def gather_bytes(comm: MPI.Comm, data: bytes, root: int) -> list[bytes]:
    """Give one rank, ``root``, the bytes of every rank, in rank order; the others get none."""
    return run(gathering(comm, data, root), policy=NOW, nbytes=_BULK)


@collective("comm")
def gathering(comm: MPI.Comm, data: bytes, root: int | None = None, call: str = "") -> Coroutine[list[bytes]]:
    """Return the steps of :func:`gather_bytes`; of :func:`allgather_bytes` if ``root`` is None.

    Where trainers may have come from different calls, ``call`` names theirs. Raises CollectiveError, on every rank: it
    differs.
    """
    own, head = np.frombuffer(data, np.uint8), np.array([len(data), hash64(call) >> 1], np.int64)
    heads, total = np.empty((comm.size, 2), np.int64), np.empty(0, np.uint8)
    yield comm.Iallgather(head, heads)
    if (heads[:, 1] != head[1]).any():
        line = line_calling(sys._getframe())
        words = f"{call or 'another call'}{f' at {line}' if line else ''}"
        calls = yield from gathering(comm, words.encode(errors="backslashreplace"))  # a file may have any name
        raise different_calls([call.decode() for call in calls])
    lengths = heads[:, 0].copy()
    if root is None and not lengths.any():
        return [b""] * comm.size
    if root in (None, comm.rank):
        total = np.empty(int(lengths.sum()), np.uint8)
    if root is None:
        count("collective_bytes", len(data) * (comm.size - 1))
        yield comm.Iallgatherv(own, [total, lengths])
    else:
        yield comm.Igatherv(own, [total, lengths] if root == comm.rank else None, root)
        if root != comm.rank:
            return []
    everything, ends = total.tobytes(), np.cumsum(lengths)
    return [everything[begin:end] for begin, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True)]


@collective("comm")
def share_bytes(comm: MPI.Comm, data: bytes) -> bytes:
    """Give every rank the bytes of rank 0."""
    return run(_share_bytes(comm, data), policy=NOW, nbytes=_BULK)


def _share_bytes(comm: MPI.Comm, data: bytes) -> Coroutine[bytes]:
    length = np.array([len(data)], np.int64)
    yield comm.Ibcast(length)
    count("collective_bytes", int(length[0]))
    shared = np.empty(int(length[0]), np.uint8) if comm.rank else np.frombuffer(data, np.uint8)
    yield comm.Ibcast(shared)
    return shared.tobytes()


def hash64(value: object) -> int:
    """Return a hash of a value's ``repr``, below 2**64, the same in every process; its bits depend on all of it."""
    return int.from_bytes(blake2b(repr(value).encode(errors="backslashreplace"), digest_size=8).digest())


class Sameness:
    """A test whether a value is the same on all ranks, whose answer is the same on all ranks, too.

    Attributes:
        words: uint64[2], the value's hash and its complement; to be reduced by MAX, in place.
    """

    def __init__(self, value: object) -> None:
        number = hash64(value)
        self.words = array("Q", [number, number ^ _ONES])

    @property
    def holds(self) -> bool:
        """After the reduction: the largest of all hashes is the smallest."""
        return self.words[0] == self.words[1] ^ _ONES


@collective("comm")
def same(
    comm: MPI.Comm,
    what: str,
    values: Mapping[str, object],
    kind: type[MPIGraphError] = InvalidArgumentError,
    label: str = "rank",
) -> None:
    """Check that all ranks have the same values; numbers by their value, all else by ``str``.

    Args:
        comm: the ranks.
        values: by name; a name that a rank lacks differs.
        what: begins the message.
        kind: the class of the error.
        label: the word for a rank of ``comm`` in the message.

    Raises:
        MPIGraphError: some differ; on every rank, with the name of each of these, its values and their ranks.
    """
    texts = {
        name: str(int(x) if isinstance(x, int | float | np.integer) and x % 1 == 0 else x) for name, x in values.items()
    }
    sameness = Sameness(sorted(texts.items()))
    with UNINTERRUPTED:  # MPI writes to the words
        until(comm.Iallreduce(MPI.IN_PLACE, sameness.words, op=MPI.MAX).Test, IDLE)
    if sameness.holds:
        return
    of_ranks = [json.loads(data) for data in allgather_bytes(comm, json.dumps([socket.gethostname(), texts]).encode())]
    lines = []
    for name in dict.fromkeys(name for _, texts in of_ranks for name in texts):
        column = [texts.get(name, "") for _, texts in of_ranks]
        kinds = {text: [rank for rank, other in enumerate(column) if other == text] for text in dict.fromkeys(column)}
        if len(kinds) > 1:
            hosts = {text: of_ranks[ranks[0]][0] for text, ranks in kinds.items()}
            parts = [f"{text or 'not set'} on {label} {_named(ranks, hosts[text])}" for text, ranks in kinds.items()]
            lines.append(f"\n  {name}: {'; '.join(parts)}")
    raise everywhere(kind(what + "".join(lines)))


@collective("comm")
def gather_unlike(comm: MPI.Comm, data: bytes) -> list[bytes]:
    """Give every rank the bytes of every rank, in rank order; where all have the same, by one small reduction."""
    sameness = Sameness(data)
    with UNINTERRUPTED:  # MPI writes to the words
        until(comm.Iallreduce(MPI.IN_PLACE, sameness.words, op=MPI.MAX).Test, IDLE)
    return [data] * comm.size if sameness.holds else allgather_bytes(comm, data)


def _named(ranks: list[int], host: str) -> str:
    more = ", ..." if len(ranks) > _SHOWN else ""
    return f"{', '.join(map(str, ranks[:_SHOWN]))}{more} (first on {host})"


def describe(error: BaseException) -> str:
    """Return one line for an error: its text; with class and line of the user's code if it is not this library's."""
    if isinstance(error, MPIGraphError):
        return str(error)
    line = line_of(error)
    return f"{type(error).__name__}: {error}{f' (at {line})' if line else ''}"


def to_wire(error: BaseException) -> bytes:
    """Return the class and the description of an error, for :func:`from_wire`."""
    return f"{type(error).__name__}:{describe(error)}".encode(errors="backslashreplace")


def from_wire(data: bytes) -> tuple[type[MPIGraphError], str]:
    """Return the class for an error of another rank, which is this library's, and its description."""
    name, _, text = data.decode().partition(":")
    return getattr(errors, name, CollectiveError), text


def everywhere(error: Error) -> Error:
    """Mark an error that every rank raises, so that one of them speaks for all."""
    error.everywhere = True
    return error


def different_calls(calls: Sequence[str]) -> CollectiveError:
    """Return the error that every trainer raises if they make different calls, given by trainer."""
    made = {call: [str(trainer) for trainer, other in enumerate(calls) if other == call] for call in calls}
    text = "; ".join(f"{call} on trainer {', '.join(trainers)}" for call, trainers in made.items())
    return everywhere(CollectiveError(f"trainers make different calls: {text}. {ON_ALL}"))


def joint_error(doing: str, told: Sequence[bytes], label: str = "rank") -> MPIGraphError:
    """Return the error that every rank raises; see :func:`agree`.

    ``told``: by rank, its error as :func:`to_wire` writes it, or nothing.
    """
    by_text: dict[str, list[int]] = {}
    kinds = set[type[MPIGraphError]]()
    for rank, data in enumerate(told):
        if data:
            kind, text = from_wire(data)
            kinds.add(kind)
            by_text.setdefault(text, []).append(rank)
    parts = []
    for text, ranks in by_text.items():
        where = "every rank" if len(ranks) == len(told) else f"{label} {', '.join(map(str, ranks))}"
        parts.append(f"on {where}: {text}")
    common = kinds.pop() if len(kinds) == 1 else CollectiveError
    return everywhere(common(f"{doing} failed " + "; ".join(parts)))


@collective("comm")
def agree(
    comm: MPI.Comm, doing: str, error: BaseException | None, label: str = "rank", call: str = ""
) -> Coroutine[None]:
    """Wait until every rank is here, and raise on every rank if any has an error.

    The error has the class of the failing ranks' errors if that is one class of this library, else it is a
    :class:`CollectiveError`. It names the step and the failing ranks.

    Args:
        comm: the ranks that agree.
        doing: the step ("reading part 3"), for the message.
        error: this rank's error, or None.
        label: the word for a rank of ``comm`` in the message.
        call: see :func:`gathering`.
    """
    told = yield from gathering(comm, b"" if error is None else to_wire(error), call=call)
    if any(told):
        raise joint_error(doing, told, label) from error


@contextmanager
@collective("comm")
def together(comm: MPI.Comm, doing: str, label: str = "rank", meets: bool = False, call: str = "") -> Iterator[None]:
    """Run local code; if it raised on any rank, raise on every rank: :func:`agree` as a ``with`` block.

    The code inside must not communicate on ``comm``. The ranks wait for the slowest without a deadline of their own;
    ``meets``: for trainers, whom the watchdog knows to be there then. ``call``: see :func:`gathering`.
    """
    error: Exception | None = None
    try:
        yield
    except StopIteration as exc:  # contextlib would raise it again in place of the common error
        error = CollectiveError(describe(exc))
        error.__cause__ = exc
    except Exception as exc:  # carried to every rank by the next lines
        error = exc
    try:
        with WAITS.meeting(doing) if meets else nullcontext():
            run(agree(comm, doing, error, label, call), policy=IDLE)
    finally:
        del error  # else it keeps alive all that its traceback names
