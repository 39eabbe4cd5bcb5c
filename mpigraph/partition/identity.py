"""Digests of a graph and of an assignment, the same on any number of ranks."""

from hashlib import blake2b

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.kernels.id_hashes import add_digest
from mpigraph.kernels.rng import combine
from mpigraph.partition.exchange import Exchange
from mpigraph.partition.row_arrays import RowArray, numpy_under, release
from mpigraph.partition.source import GraphSource, feature_infos

__all__ = ["Digest", "sampled", "word_of", "word_of_tables"]

_SAMPLES = 64  # rows
_SAMPLES_OF_FILES = 3  # where a row costs the reading of a block of many


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

    @collective("ranks")
    def total(self) -> tuple[int, ...]:
        """Return the sum of what all ranks have added."""
        sums: I64 = self._exchange.total(self._sum.view(np.int64))
        return tuple(sums.tolist())


def sampled(array: RowArray) -> bytes:
    """Return some rows of an array, from the first to the last at equal distances: equal for equal arrays."""
    count = min(len(array), _SAMPLES if isinstance(next(numpy_under(array), None), np.ndarray) else _SAMPLES_OF_FILES)
    rows = np.linspace(0, len(array) - 1, count, dtype=np.int64).tolist()
    sample = b"".join(np.ascontiguousarray(array[row : row + 1]).tobytes() for row in rows)
    release(array)
    return sample


def word_of(*known: object) -> str:
    """Return 32 hexadecimal digits, a hash of plain values."""
    return blake2b(repr(known).encode(errors="surrogatepass"), digest_size=16).hexdigest()


@collective("ranks")
def word_of_tables(source: GraphSource, exchange: Exchange) -> str:
    """Return 32 hexadecimal digits, a hash of features and original ids: dtypes, shapes, and a few rows of each."""
    with exchange.together("reading a few rows of the features"):
        own = word_of([sampled(rows) for _, rows in source.tables()]) if exchange.rank == 0 else ""
    samples = exchange.gather_bytes(own.encode())[0]
    return word_of(feature_infos(source), source.node_ids is None, source.edge_ids is None, samples)
