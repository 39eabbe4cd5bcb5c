"""What the ranks that cut a graph tell one another: rows and sums. Here one rank, without MPI; over MPI a subclass."""

from contextlib import AbstractContextManager, nullcontext

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective

__all__ = ["ALONE", "Exchange", "Route", "even_bounds", "owners_of"]


class Exchange:
    """The ranks that cut a graph together; here, one alone.

    Attributes:
        rank: this rank.
        size: number of ranks.
    """

    rank = 0
    size = 1

    @collective("ranks")
    def all_to_all(self, rows: Array, counts: I64) -> tuple[Array, I64]:
        """Send ``counts[r]`` consecutive rows to rank r.

        Args:
            rows: [n, columns], of the same dtype and number of columns on every rank.
            counts: int64[size].

        Returns:
            The rows received, those of rank 0 first, and how many came from each rank.
        """
        return rows, counts

    @collective("ranks")
    def total(self, values: I64) -> I64:
        """Return the sum of every rank's array (int64, of one shape)."""
        return values

    @collective("ranks")
    def together(self, doing: str) -> AbstractContextManager[None]:
        """Run local code; if it raised on any rank, raise on every rank.

        Args:
            doing: what, for the message.
        """
        return nullcontext()

    def no_way_back(self) -> AbstractContextManager[None]:
        """Inside, the others wait for this rank: an error that not every rank raises ends the job."""
        return nullcontext()

    @collective("ranks")
    def sum_of(self, value: int) -> int:
        """Return the sum of every rank's number."""
        return int(self.total(np.array([value], np.int64))[0])

    @collective("ranks")
    def gather(self, rows: Array) -> Array:
        """Return every rank's rows ([n, columns]), those of rank 0 first, on every rank."""
        return self._from_all(rows)[0]

    @collective("ranks")
    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Give every rank the bytes of every rank, in rank order."""
        arrived, lengths = self._from_all(np.frombuffer(data, np.uint8)[:, None])
        ends = np.cumsum(lengths).tolist()
        return [arrived[end - n : end].tobytes() for end, n in zip(ends, lengths.tolist(), strict=True)]

    @collective("ranks")
    def _from_all(self, rows: Array) -> tuple[Array, I64]:
        """Give every rank every rank's rows, and how many are of each."""
        counts = np.full(self.size, len(rows), np.int64)
        return self.all_to_all(np.ascontiguousarray(np.concatenate([rows] * self.size)), counts)

    @collective("ranks")
    def gather_to_first(self, rows: Array) -> Array:
        """Return every rank's rows ([n, columns]) on rank 0, and none elsewhere."""
        counts = np.zeros(self.size, np.int64)
        counts[0] = len(rows)
        return self.all_to_all(np.ascontiguousarray(rows), counts)[0]

    @collective("ranks")
    def scatter(self, rows: Array, bounds: I64) -> Array:
        """Return ``rows[bounds[r]:bounds[r + 1]]`` of what rank 0 gave, on rank r.

        Args:
            rows: [n, columns] on rank 0; elsewhere [0, columns] of that dtype.
            bounds: int64[size + 1].
        """
        counts = np.diff(bounds) if self.rank == 0 else np.zeros(self.size, np.int64)
        return self.all_to_all(np.ascontiguousarray(rows), counts)[0]


ALONE = Exchange()


class Route:
    """The way of rows to chosen ranks, and of their answers back.

    Args:
        exchange: the ranks.
        ranks: int[n], where each row goes.
    """

    def __init__(self, exchange: Exchange, ranks: Array) -> None:
        self._exchange = exchange
        self.counts = np.bincount(ranks, minlength=exchange.size).astype(np.int64)
        small = np.int16 if exchange.size < 2**15 else np.int64  # of which numpy makes a radix sort
        self.order = np.argsort(ranks.astype(small), kind="stable") if exchange.size > 1 else None
        self.coming = self.counts

    @collective("ranks")
    def there(self, rows: Array) -> Array:
        """Send each row ([n, columns]) on its way; return those that came here."""
        leaving = rows if self.order is None else rows.take(self.order, axis=0)
        arrived, self.coming = self._exchange.all_to_all(np.ascontiguousarray(leaving), self.counts)
        return arrived

    @collective("ranks")
    def back(self, answers: Array) -> Array:
        """Answer each row that came here; return the answers to the own rows, in their order."""
        arrived, _ = self._exchange.all_to_all(np.ascontiguousarray(answers), self.coming)
        if self.order is None:
            return arrived
        places = np.empty(len(self.order), np.int64)
        places[self.order] = np.arange(len(places))
        return arrived.take(places, axis=0)  # ten times as fast as storing to rows that are chosen


def even_bounds(count: int, size: int) -> I64:
    """Return int64[size + 1]: ranges of nearly equal length."""
    return np.array([count * rank // size for rank in range(size + 1)], np.int64)


def owners_of(bounds: I64, ids: Array) -> I64:
    """Return int64[n], the ranges (int64[ranges + 1]) in which some ids lie."""
    if len(bounds) == 2:
        return np.zeros(len(ids), np.int64)
    return np.searchsorted(bounds[1:], ids, side="right").astype(np.int64)
