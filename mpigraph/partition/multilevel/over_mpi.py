"""The ranks of an MPI communicator as an :class:`~mpigraph.partition.multilevel.exchange.Exchange`. Imports MPI."""

from mpigraph.arrays import I64, Array
from mpigraph.mpi.alltoall import Comm, exchange_rows, sum_over_ranks
from mpigraph.partition.multilevel.exchange import Exchange

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

    def total(self, values: I64) -> I64:
        """As in the base class. Collective on the ranks."""
        return sum_over_ranks(self._comm, values)
