"""The ranks of an MPI communicator as an :class:`~mpigraph.partition.exchange.Exchange`. Imports MPI."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from mpigraph.arrays import I64, Array
from mpigraph.errors import CollectiveError
from mpigraph.mpi.abort import abort
from mpigraph.mpi.agree import agree, same
from mpigraph.mpi.coroutine import run
from mpigraph.mpi.messages import Comm, exchange_rows, sum_over_ranks
from mpigraph.mpi.wait import IDLE
from mpigraph.partition.exchange import Exchange


class MPIExchange(Exchange):
    """The ranks of a communicator that no other code uses meanwhile."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self.rank = comm.rank
        self.size = comm.size

    def all_to_all(self, rows: Array, counts: I64) -> tuple[Array, I64]:
        """As in the base class."""
        return exchange_rows(self._comm, rows, counts)

    @contextmanager
    def together(self, doing: str) -> Iterator[None]:
        """As in the base class. In nested blocks, an error that every rank has raised is not agreed on again."""
        error: Exception | None = None
        try:
            yield
        except Exception as raised:  # carried to every rank by the next lines
            if getattr(raised, "everywhere", False):
                raise
            error = raised
        run(agree(self._comm, doing, error), policy=IDLE)

    @contextmanager
    def no_way_back(self) -> Iterator[None]:
        """As in the base class."""
        try:
            yield
        except Exception as error:
            if self.size > 1 and not getattr(error, "everywhere", False):
                sys.excepthook(type(error), error, error.__traceback__)
                abort(1)
            raise

    def same(self, what: str, values: Mapping[str, object]) -> None:
        """As in the base class."""
        same(self._comm, what, values, CollectiveError)

    def total(self, values: I64) -> I64:
        """As in the base class."""
        return sum_over_ranks(self._comm, values)
