"""Commands that run inside the ranks of a test."""

from collections.abc import Callable

import pytest
from layouts import on_all
from mpi4py import MPI

from mpigraph.errors import MPIGraphError

Outcome = tuple[int, str, str]


@pytest.fixture
def run_on(comm: MPI.Intracomm, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command's function on ``comm``; return its status, and the output of its first rank."""

    def run(command: Callable[..., int], *arguments: object, **options: object) -> Outcome:
        raised = ""
        try:
            status = command(*arguments, comm=comm, **options)
        except MPIGraphError as error:  # the command line prints it, once
            on_all(comm, error.everywhere, f"{error!r} is not known to be on every rank")
            status, raised = 2, f"error: {error}\n"
        printed = capsys.readouterr()
        on_all(comm, comm.rank == 0 or printed.out + printed.err == "", f"{printed} on another rank than 0")
        on_all(comm, status == comm.bcast(status), f"status {status}")
        return comm.bcast((status, printed.out, printed.err + raised))

    return run
