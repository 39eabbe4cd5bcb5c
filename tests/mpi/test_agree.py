"""Agreement: what fails on one rank is raised on every rank."""

import random
import re
import socket
from contextlib import AbstractContextManager

import numpy as np
import pytest
from layouts import on_all
from mpi4py import MPI

from mpigraph.errors import CollectiveError, InvalidArgumentError, MPIGraphError, NodeTypeError, PartitionError
from mpigraph.mpi.agree import Sameness, agree, allgather_bytes, gather_bytes, hash64, same, together
from mpigraph.mpi.coroutine import run


def raised(step: AbstractContextManager[None], error: Exception | None) -> MPIGraphError | None:
    """Return the error that ``step`` raises in place of this rank's."""
    try:
        with step:
            if error is not None:
                raise error
    except MPIGraphError as joint:
        return joint
    return None


def test_one_failure_is_raised_on_every_rank(comm: MPI.Intracomm) -> None:
    assert raised(together(comm, "reading"), None) is None
    for error in (InvalidArgumentError("k must be >= 1 (got 0)"), NodeTypeError("no type 'x'")):
        last = comm.size - 1
        joint = raised(together(comm, "reading part 3"), error if comm.rank == last else None)
        where = "every rank" if comm.size == 1 else f"rank {last}"
        on_all(comm, type(joint) is type(error), repr(joint))  # the class is kept
        on_all(comm, str(joint) == f"reading part 3 failed on {where}: {error}", str(joint))
        assert joint is not None and (joint.__cause__ is error) == (comm.rank == last)


def test_the_same_failure_everywhere_is_said_once(comm: MPI.Intracomm) -> None:
    joint = raised(together(comm, "reading"), PartitionError("no parts"))
    assert type(joint) is PartitionError
    assert str(joint) == "reading failed on every rank: no parts"


@pytest.mark.parametrize("comm", [2, 3, 4], indirect=True)
def test_different_failures_are_all_named(comm: MPI.Intracomm) -> None:
    own = [PartitionError("no parts"), InvalidArgumentError("bad"), None, PartitionError("no parts")][comm.rank]
    joint = raised(together(comm, "reading"), own)
    first = "rank 0, 3" if comm.size == 4 else "rank 0"
    assert type(joint) is CollectiveError
    assert str(joint) == f"reading failed on {first}: no parts; on rank 1: bad"


def test_foreign_errors_become_collective_errors(comm: MPI.Intracomm) -> None:
    joint = raised(together(comm, "dividing"), ZeroDivisionError("by 0") if comm.rank == 0 else None)
    assert type(joint) is CollectiveError
    assert re.search(r": ZeroDivisionError: by 0 \(at test_agree.py:\d+\)$", str(joint))
    joint = raised(together(comm, "reading"), StopIteration("no more") if comm.rank == 0 else None)
    assert type(joint) is CollectiveError and ": StopIteration: no more (at test_agree.py:" in str(joint)
    with pytest.raises(CollectiveError, match=r"every rank|on trainer 0: OSError: gone"):
        run(agree(comm, "opening", OSError("gone") if comm.rank == 0 else None, "trainer"))
    run(agree(comm, "opening", None))
    texts = [b"x" * rank for rank in range(comm.size)]
    assert allgather_bytes(comm, texts[comm.rank]) == texts  # nothing from rank 0


def test_bytes_of_all_ranks_reach_one(comm: MPI.Intracomm) -> None:
    for root in range(comm.size):
        gathered = gather_bytes(comm, bytes([comm.rank]) * (comm.rank + root) * 1000, root)
        expected = [bytes([rank]) * (rank + root) * 1000 for rank in range(comm.size)]
        on_all(comm, gathered == (expected if comm.rank == root else []))


def test_a_difference_is_seen_on_every_rank() -> None:
    """Also where an easy hash has the same sum as if there were none: of numbers in arithmetic progression."""
    rng = random.Random(3)
    for number in range(5_000):
        ranks, step = rng.randrange(2, 9), rng.randrange(1, 1 << rng.randrange(1, 40))
        first = rng.randrange(1 << 40)
        values = [first + step * rank for rank in range(ranks)]
        if number % 2:
            values = [rng.choice([first, first + step]) for _ in range(ranks - 1)] + [first + 2 * step]
        if number % 3 == 0:
            values = [first] * ranks
        tests = [Sameness(("all_reduce", [value])) for value in values]
        largest = np.max([test.words for test in tests], axis=0)
        for test in tests:
            test.words[:] = type(test.words)("Q", largest.tolist())
        assert {test.holds for test in tests} == {len(set(values)) == 1}, values


def test_hashes_have_no_structure() -> None:
    numbers = {hash64(number) for number in range(10_000)}
    assert len(numbers) == 10_000 and hash64(("a", 1)) == hash64(("a", 1)) < 2**64
    bits = np.unpackbits(np.array(list(numbers), np.uint64).view(np.uint8)).reshape(-1, 64).mean(axis=0)
    assert (abs(bits - 0.5) < 0.05).all()


@pytest.mark.parametrize("comm", [2, 3, 4], indirect=True)
def test_different_calls_are_named_whether_they_failed_or_not(comm: MPI.Intracomm, monkeypatch) -> None:
    is_last = comm.rank == comm.size - 1
    if is_last:  # its script's name is no UTF-8
        monkeypatch.setattr("mpigraph.mpi.agree.line_calling", lambda frame: "b\udcff.py:1")
    step = together(comm, "a step", call="loading" if is_last else "saving")
    joint = raised(step, PartitionError("no parts") if is_last else None)
    others, last = ", ".join(map(str, range(comm.size - 1))), re.escape(r"loading at b\udcff.py:1 on trainer")
    assert type(joint) is CollectiveError and joint.everywhere
    first = rf"trainers make different calls: saving at test_agree.py:\d+ on trainer {others}"
    assert re.match(f"{first}; {last} {comm.size - 1}. A call that", str(joint)), joint


@pytest.mark.parametrize("comm", [2, 3, 4], indirect=True)
def test_values_that_differ_are_named_with_their_ranks(comm: MPI.Intracomm) -> None:
    same(comm, "do as I do", {"seed": 3.0 if comm.rank else np.int64(3), "name": "x", "time": float("inf")})
    with pytest.raises(InvalidArgumentError) as caught:
        same(comm, "do as I do", {"seed": 3, "name": "y" * comm.rank, "time": 0.5 + (comm.rank == 1)})
    host = socket.gethostname()
    lines = str(caught.value).splitlines()
    assert lines[0] == "do as I do" and not any("seed" in line for line in lines) and len(lines) == 3
    assert lines[1].startswith(f"  name: not set on rank 0 (first on {host}); y on rank 1 (first on {host})")
    others = ", ".join(str(rank) for rank in range(comm.size) if rank != 1)
    assert lines[2] == f"  time: 0.5 on rank {others} (first on {host}); 1.5 on rank 1 (first on {host})"
    assert caught.value.everywhere
