"""The ranks of an MPI communicator as an :class:`~mpigraph.partition.exchange.Exchange`. Imports MPI."""

from contextlib import AbstractContextManager

from mpigraph.arrays import I32, I64, Array
from mpigraph.mpi.agree import no_way_back, together
from mpigraph.mpi.alltoall import Comm, exchange_rows, sum_over_ranks
from mpigraph.partition.exchange import Exchange
from mpigraph.partition.multilevel.assign import assign
from mpigraph.partition.multilevel.dist_csr import GraphSlice

__all__ = ["MPIExchange", "assign_over"]


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

    def total(self, values: I64) -> I64:
        """As in the base class. Collective on the ranks."""
        return sum_over_ranks(self._comm, values)


def assign_over(comm: Comm, graph: GraphSlice, weights: I64, num_parts: int, *, seed: int = 0) -> I32:
    """Assign every node to a part, as :func:`~mpigraph.partition.multilevel.assign.assign` does.

    Collective on ``comm``. The others count on each rank, so what is no error of this library ends the job.
    """
    with no_way_back(comm):
        return assign(MPIExchange(comm), graph, weights, num_parts, seed=seed)
