"""Communication of ranks that partition a graph: rows, sums, progress.

One rank needs no MPI; ``over_mpi`` has a subclass.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective


class Exchange:
    """The ranks that partition a graph together; this class is one rank alone. ``rank`` is this rank, ``size`` the
    number.
    """

    rank = 0
    size = 1

    @collective("ranks")
    def all_to_all(self, rows: Array, counts: I64) -> tuple[Array, I64]:
        """Send ``counts[r]`` (int64[size]) consecutive rows to rank r; return the rows received, those of rank 0 first,
        and how many came from each rank.

        Rows are [n, columns], of the same dtype and number of columns on every rank.
        """
        return rows, counts

    @collective("ranks")
    def total(self, values: I64) -> I64:
        """Return the sum of every rank's array (int64, of one shape)."""
        return values

    @collective("ranks")
    def together(self, doing: str) -> AbstractContextManager[None]:
        """Run local code; if it raised on any rank, raise on every rank. ``doing`` stands in the message."""
        return nullcontext()

    def no_way_back(self) -> AbstractContextManager[None]:
        """Run local code for which other ranks wait: an error that not every rank raises ends the job."""
        return nullcontext()

    @collective("ranks")
    def same(self, what: str, values: Mapping[str, object]) -> None:
        """Check that all ranks have the same values, by name; raise CollectiveError, which begins with ``what``."""

    @collective("ranks")
    def sum_of(self, value: int) -> int:
        """Return the sum of every rank's number."""
        return int(self.total(np.array([value], np.int64))[0])

    @collective("ranks")
    def gather(self, rows: Array) -> Array:
        """Return every rank's rows ([n, columns]), those of rank 0 first, on every rank."""
        return self.all_to_all(np.concatenate([rows] * self.size), np.full(self.size, len(rows), np.int64))[0]

    @collective("ranks")
    def gather_json(self, value: Any) -> list[Any]:
        """Give every rank the value of every rank, in rank order; as JSON has it."""
        data = json.dumps(value).encode()
        counts = np.full(self.size, len(data), np.int64)
        arrived, lengths = self.all_to_all(np.frombuffer(data * self.size, np.uint8)[:, None], counts)
        return [json.loads(text.tobytes()) for text in np.split(arrived, np.cumsum(lengths)[:-1])]

    @collective("ranks")
    def map(self, doing: str, count: int, make: Callable[[int], Any]) -> list[Any]:
        """Return the values that ``make`` returns for the numbers below ``count``, in order, on every rank.

        Each rank makes its share of them; an error of one is raised on all, and ``doing`` stands in the message.
        Values are as JSON has them.
        """
        with self.together(doing):
            own = [make(number) for number in range(self.rank, count, self.size)]
        of_ranks = self.gather_json(own)
        return [of_ranks[number % self.size][number // self.size] for number in range(count)]

    @collective("ranks")
    def gather_to_first(self, rows: Array) -> Array:
        """Return every rank's rows ([n, columns]) on rank 0, and no rows elsewhere."""
        counts = np.zeros(self.size, np.int64)
        counts[0] = len(rows)
        return self.all_to_all(np.ascontiguousarray(rows), counts)[0]

    @collective("ranks")
    def scatter(self, rows: Array, bounds: I64) -> Array:
        """Return rows ``bounds[r]:bounds[r + 1]`` (int64[size + 1]) of rank 0 on rank r.

        Rows are [n, columns] on rank 0; elsewhere [0, columns] of that dtype.
        """
        counts = np.diff(bounds) if self.rank == 0 else np.zeros(self.size, np.int64)
        return self.all_to_all(np.ascontiguousarray(rows), counts)[0]


ALONE = Exchange()


class Route:
    """The way of rows to chosen ranks (int[n], the destination of each row), and of their answers back."""

    def __init__(self, exchange: Exchange, ranks: Array) -> None:
        self._exchange = exchange
        self.counts = np.bincount(ranks, minlength=exchange.size).astype(np.int64)
        small = np.int16 if exchange.size < 2**15 else np.int64  # numpy sorts int16 by radix
        self.order = np.argsort(ranks.astype(small), kind="stable") if exchange.size > 1 else None
        self.coming = self.counts

    @collective("ranks")
    def there(self, rows: Array) -> Array:
        """Send each row ([n, columns]) to its rank; return the rows that arrive here."""
        leaving = rows if self.order is None else rows.take(self.order, axis=0)
        arrived, self.coming = self._exchange.all_to_all(np.ascontiguousarray(leaving), self.counts)
        return arrived

    @collective("ranks")
    def back(self, answers: Array) -> Array:
        """Send an answer to each row that arrived; return the answers to this rank's rows, in their order."""
        arrived, _ = self._exchange.all_to_all(np.ascontiguousarray(answers), self.coming)
        if self.order is None:
            return arrived
        places = np.empty(len(self.order), np.int64)
        places[self.order] = np.arange(len(places))
        return arrived.take(places, axis=0)  # ten times as fast as storing to chosen rows


def even_bounds(count: int, size: int) -> I64:
    """Return int64[size + 1]: ranges of nearly equal length."""
    return np.array([count * rank // size for rank in range(size + 1)], np.int64)


def owners_of(bounds: I64, ids: Array) -> I64:
    """Return int64[n], the range (of int64[ranges + 1]) in which each id lies."""
    if len(bounds) == 2:
        return np.zeros(len(ids), np.int64)
    return np.searchsorted(bounds[1:], ids, side="right").astype(np.int64)


Progress: TypeAlias = Callable[[str, int, int], None]
"""Is called with (stage, done, total). A stage begins with its first call, before its first step, and ends when
``done`` reaches ``total``, an estimate until then. A stage of one step has no known progress, such as METIS."""


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""
