"""What a partitioning is known by: digests of the graph and of the assignment, the same on any number of ranks."""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.kernels.digest import add_digest
from mpigraph.kernels.rng import combine
from mpigraph.partition.exchange import Exchange
from mpigraph.partition.source import RowArray, release

__all__ = ["Digest", "word_of", "word_of_samples"]

_SAMPLE = 16  # rows of a table


class Digest:
    """A sum of hashes of numbered values, which ranks add in any order.

    Args:
        exchange: the ranks.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._sum = np.zeros(2, np.uint64)

    def add(self, kind: int, first: int, values: Array, others: Array | None = None) -> None:
        """Add values.

        Args:
            kind: what they are.
            first: number of the first.
            values: int[n].
            others: int[n], a second value of each.
        """
        add_digest(combine(kind), first, values, values if others is None else others, self._sum)

    def total(self) -> tuple[int, ...]:
        """Return the sum of what all ranks have added. Collective on the ranks."""
        sums: I64 = self._exchange.total(self._sum.view(np.int64))
        return tuple(sums.tolist())


def word_of(*known: object) -> str:
    """Return 32 hexadecimal digits, a hash of plain values."""
    return blake2b(repr(known).encode(errors="surrogatepass"), digest_size=16).hexdigest()


def word_of_samples(tables: Iterable[RowArray]) -> str:
    """Return 32 hexadecimal digits, a hash of a few rows of each table, from the first to the last."""
    samples = []
    for values in tables:
        rows = np.unique(np.linspace(0, max(len(values) - 1, 0), min(_SAMPLE, len(values))).astype(np.int64))
        samples.append(np.ascontiguousarray(values[rows]).tobytes())
        release(values)
    return word_of(samples)
