"""What the ranks that cut a graph tell one another: rows and sums. Here one rank, without MPI; over MPI a subclass."""

from contextlib import AbstractContextManager, nullcontext

import numpy as np

from mpigraph.arrays import I64, Array

__all__ = ["Exchange", "Route"]


class Exchange:
    """The ranks that cut a graph together; here, one alone.

    Attributes:
        rank: this rank.
        size: number of ranks.
    """

    rank = 0
    size = 1

    def all_to_all(self, rows: Array, counts: I64) -> tuple[Array, I64]:
        """Send ``counts[r]`` consecutive rows to rank r. Collective on the ranks.

        Args:
            rows: [n, columns], of the same dtype and number of columns on every rank.
            counts: int64[size].

        Returns:
            The rows received, those of rank 0 first, and how many came from each rank.
        """
        return rows, counts

    def total(self, values: I64) -> I64:
        """Return the sum of every rank's array (int64, of one shape). Collective on the ranks."""
        return values

    def sum_of(self, value: int) -> int:
        """Return the sum of every rank's number. Collective on the ranks."""
        return int(self.total(np.array([value], np.int64))[0])

    def together(self, doing: str) -> AbstractContextManager[None]:
        """Run local code, which is ``doing`` something; if it raised on any rank, raise on every rank.

        Collective on the ranks.
        """
        return nullcontext()


class Route:
    """The way of rows to chosen ranks, and of their answers back.

    Args:
        exchange: the ranks.
        ranks: int64[n], where each row goes.
    """

    def __init__(self, exchange: Exchange, ranks: I64) -> None:
        self._exchange = exchange
        self.counts = np.bincount(ranks, minlength=exchange.size).astype(np.int64)
        narrow = ranks.astype(np.min_scalar_type(exchange.size))  # numpy sorts 16 bits by radix, five times as fast
        self.order = np.argsort(narrow, kind="stable") if exchange.size > 1 else None
        self.coming = self.counts

    def there(self, rows: Array) -> Array:
        """Send each row ([n, columns]) on its way; return those that came here. Collective on the ranks."""
        leaving = rows if self.order is None else rows[self.order]
        arrived, self.coming = self._exchange.all_to_all(np.ascontiguousarray(leaving), self.counts)
        return arrived

    def back(self, answers: Array) -> Array:
        """Answer each row that came here; return the answers to the own rows, in their order.

        Collective on the ranks.
        """
        arrived, _ = self._exchange.all_to_all(np.ascontiguousarray(answers), self.coming)
        if self.order is None:
            return arrived
        result = np.empty_like(arrived)
        result[self.order] = arrived
        return result
