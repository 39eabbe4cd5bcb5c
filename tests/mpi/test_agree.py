"""Agreement: what fails on one rank is raised on every rank."""

import re
from contextlib import AbstractContextManager

import pytest
from layouts import on_all
from mpi4py import MPI

from mpigraph.errors import CollectiveError, InvalidArgumentError, MPIGraphError, NodeTypeError, PartitionError
from mpigraph.mpi.agree import agree, allgather_bytes, gather_bytes, together
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
