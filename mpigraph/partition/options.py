"""Checks and digests of the arguments of ``partition_source``, equal on any number of ranks."""

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from mpigraph.arrays import I64, U64, Array
from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError, check_integer
from mpigraph.kernels.rng import combine
from mpigraph.partition.assign import GIVEN, METHODS, PART_METHODS
from mpigraph.partition.exchange import Exchange
from mpigraph.partition.loops import add_digest
from mpigraph.partition.row_arrays import RowArray, release
from mpigraph.partition.source import GraphSource, feature_infos
from mpigraph.storage.part_config import check_graph_name

_SAMPLES = 3  # rows: each may cost the reading of a block of many


@dataclass(frozen=True)
class Choice:
    """The chosen method to assign nodes; arguments of :func:`~mpigraph.partition.pipeline.partition_source`."""

    name: str
    num_parts: int
    seed: int
    objtype: str
    balance_edges: bool


def check_options(
    graph_name: str, num_parts: int, part_method: str = "metis", objtype: str = "cut", seed: int = 0
) -> None:
    """Check the arguments of ``partition_source`` that need no graph. Raises InvalidArgumentError."""
    check_graph_name(graph_name)
    check_integer("num_parts", num_parts, 1, 2**31 - 1)
    if part_method not in PART_METHODS:
        raise InvalidArgumentError(f"part_method must be one of {list(PART_METHODS)} (got {part_method!r})")
    known = METHODS[part_method].objectives
    if objtype not in known:
        raise InvalidArgumentError(f"objtype of {part_method!r} must be one of {list(known)} (got {objtype!r})")
    check_integer("seed", seed, -(2**63), 2**64 - 1)


def check_assignment(graph_name: str, num_parts: int, part_method: str, assignment: Array, num_nodes: int) -> None:
    """Check the arguments for an assignment that was computed elsewhere."""
    if part_method != GIVEN:
        raise InvalidArgumentError(f"part_method must be {GIVEN!r} (got {part_method!r})")
    check_options(graph_name, num_parts)
    expected = f"assignment must hold a part in [0, {num_parts}) for each of {num_nodes} nodes"
    if assignment.shape != (num_nodes,) or assignment.dtype.kind not in "iu":
        raise InvalidArgumentError(f"{expected} (got {assignment.dtype}{list(assignment.shape)})")
    bad = np.flatnonzero((assignment < 0) | (assignment >= num_parts))
    if len(bad):
        raise InvalidArgumentError(f"{expected} (got {assignment[bad[0]]} for node {bad[0]})")


class Digest:
    """A sum of hashes of numbered values, which ranks add in any order."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._sum = np.zeros(2, np.uint64)

    def add(self, kind: int, first: int, values: Array) -> None:
        """Add hashes of values, int[n], numbered from ``first``; ``kind`` is any number."""
        self.add_pairs(np.array([combine(kind)]), np.array([0, first + len(values)]), first, values, values)

    def add_pairs(self, kinds: U64, begins: I64, first: int, values: Array, second: Array) -> None:
        """Add hashes of pairs, int[n] each, of several kinds, as :func:`.add_digest`."""
        add_digest(kinds, begins, first, values, second, self._sum)

    @collective("ranks")
    def total(self) -> tuple[int, ...]:
        """Return the sum of what all ranks have added."""
        sums: I64 = self._exchange.total(self._sum.view(np.int64))
        return tuple(sums.tolist())


def sampled(array: RowArray) -> bytes:
    """Return a few rows of an array, from the first to the last at equal distances."""
    count = min(len(array), _SAMPLES)
    rows = np.arange(count) * (len(array) - 1) // max(count - 1, 1)
    sample = b"".join(np.ascontiguousarray(array[row : row + 1]).tobytes() for row in rows.tolist())
    release(array)
    return sample


def word_of(*known: object) -> str:
    """Return 32 hexadecimal digits, a hash of plain values."""
    return blake2b(repr(known).encode(errors="surrogatepass"), digest_size=16).hexdigest()


@collective("ranks")
def word_of_tables(source: GraphSource, exchange: Exchange) -> str:
    """Return a hash of features and original ids: dtypes, shapes, and a few rows, the same in every form of input."""

    def few(_: int) -> str:
        return word_of([sampled(rows) for _, rows in source.tables()])

    (word,) = exchange.map("reading a few rows of the features", 1, few)
    return word_of(feature_infos(source), source.node_ids is None, source.edge_ids is None, word)
