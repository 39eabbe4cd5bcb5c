"""The ranks of an MPI communicator as an :class:`~mpigraph.partition.exchange.Exchange`. Imports MPI."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from mpigraph.arrays import I64, Array
from mpigraph.mpi.abort import abort
from mpigraph.mpi.agree import together
from mpigraph.mpi.alltoall import Comm, exchange_rows, sum_over_ranks
from mpigraph.partition.exchange import Exchange

__all__ = ["MPIExchange"]


class MPIExchange(Exchange):
    """The ranks of a communicator, which nobody else uses meanwhile."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self.rank = comm.rank
        self.size = comm.size

    def all_to_all(self, rows: Array, counts: I64) -> tuple[Array, I64]:
        """As in the base class. Collective on the ranks."""
        return exchange_rows(self._comm, rows, counts)

    def together(self, doing: str) -> AbstractContextManager[None]:
        """As in the base class. Collective on the ranks."""
        return together(self._comm, doing)

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

    def total(self, values: I64) -> I64:
        """As in the base class. Collective on the ranks."""
        return sum_over_ranks(self._comm, values)
