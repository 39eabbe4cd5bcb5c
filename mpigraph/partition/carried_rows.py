"""Rows that are read once, in the order of their file, and wait in temporary files where their part is written.

Files of compressed or checksummed blocks (parquet, HDF5, shards) are slow to read at random: every choice of rows
unpacks nearly all blocks. So these rows travel with the nodes and edges that they belong to. Rows of arrays in memory
and of mapped files do not: they are gathered when their part is written.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.errors import MPIGraphError
from mpigraph.metadata.schema import relation_key
from mpigraph.partition.exchange import Exchange, Route, owners_of
from mpigraph.partition.row_arrays import RowArray, block_bytes, reads_blocks, release
from mpigraph.partition.source import GraphSource
from mpigraph.partition.spill import Scratch, Spill

__all__ = [
    "NOTHING_CARRIED",
    "ORIGINAL_IDS",
    "Carried",
    "CarriedRows",
    "arrays_of",
    "carried_sizes",
    "evenly_cut",
    "to_carry",
]

ORIGINAL_IDS = ""  # the name among features, all of which have longer ones
_GROUP_BYTES = 32 << 20  # of rows that are put in order at a time
_ROUND_BYTES = 16 << 20  # of rows that a rank reads and sends at a time


class CarriedRows:
    """The rows of several arrays of one length, on their way and where they wait.

    A row goes where its *key* does: the new id of its node, or of its edge's destination.

    Args:
        arrays: by name; at least one.
        exchange: the ranks.
        scratch: where the rows wait.
        offsets: int64[parts + 1], the keys of each part.
        part_bounds: int64[ranks + 1], the parts of each rank.
        buckets: ranges of keys of a part that are asked for separately.
    """

    def __init__(
        self,
        arrays: Mapping[str, RowArray],
        exchange: Exchange,
        scratch: Scratch,
        offsets: I64,
        part_bounds: I64,
        buckets: int = 1,
    ) -> None:
        self._arrays = arrays
        self._exchange = exchange
        self._dtype = _record(arrays)
        self._bounds = offsets[part_bounds]
        self._first_part, last_part = part_bounds[exchange.rank : exchange.rank + 2].tolist()
        self._buckets = buckets
        size = len(next(iter(arrays.values()))) * self._dtype.itemsize
        self._groups = -(-size // ((len(offsets) - 1) * buckets * _GROUP_BYTES)) or 1  # of each bucket
        self._cuts = evenly_cut(offsets[self._first_part : last_part + 1], buckets * self._groups)
        self._spill = Spill(scratch, len(self._cuts) - 1, self._dtype.itemsize, np.uint8)
        self._error: MPIGraphError | None = None

    @collective("ranks")
    def send(self, most: int, first: int, keys: Array, numbers: Array, leaving: Mask | slice) -> None:
        """Read consecutive rows and send them on their way, and take what comes.

        Args:
            most: the largest number of rows that any rank gives to this call.
            first: the first row.
            keys: int[n], of the rows.
            numbers: int[n], by which :meth:`take` tells rows apart.
            leaving: which of them are sent.
        """
        step = max(1, _ROUND_BYTES // self._dtype.itemsize)
        leaves = np.zeros(len(keys), np.bool_)
        leaves[leaving] = True
        for begin in range(0, most, step):
            end = min(begin + step, len(keys))
            chosen = np.flatnonzero(leaves[begin:end])
            records = np.zeros(len(chosen), self._dtype)
            records["key"] = keys[begin:end][chosen]
            records["number"] = numbers[begin:end][chosen]
            if len(chosen):
                self._read(records, first + begin, first + end, chosen)
            route = Route(self._exchange, owners_of(self._bounds, records["key"]))
            came = route.there(records.view(np.uint8).reshape(len(records), self._dtype.itemsize))
            groups = np.searchsorted(self._cuts, came.reshape(-1).view(self._dtype)["key"], side="right") - 1
            self._spill.add(groups, came)

    @collective("ranks")
    def settle(self) -> None:
        """Move all rows that have come to the disk. If some could not be read, that is an error on every rank."""
        self._spill.flush()
        with self._exchange.together("reading features"):
            if self._error is not None:
                raise self._error

    def take(self, part: int, bucket: int, numbers: Array, indptr: I64) -> Iterator[dict[str, Array]]:
        """Yield the rows of a bucket, by name; about 32 MiB at a time, and once.

        Args:
            part: one of this rank's.
            bucket: which of the part's.
            numbers: int[n], in the order in which the rows are wanted; rising by keys.
            indptr: int64[keys + 1], where the rows of each key of the bucket begin.
        """
        first = ((part - self._first_part) * self._buckets + bucket) * self._groups
        cuts = self._cuts[first : first + self._groups + 1]
        ends = indptr[cuts - cuts[0]].tolist()
        step = max(1, _GROUP_BYTES // self._dtype.itemsize)
        for group, (begin, end) in enumerate(itertools.pairwise(ends), first):
            rows = self._spill.take(group, mapped=True)
            places = np.empty(end - begin, np.int64)
            places[np.argsort(numbers[begin:end])] = np.argsort(rows.reshape(-1).view(self._dtype)["number"])
            for at in range(0, len(places), step):
                records = rows.take(places[at : at + step], axis=0).reshape(-1).view(self._dtype)
                yield {name: np.ascontiguousarray(records[_field(i)]) for i, name in enumerate(self._arrays)}
                release(rows)

    def close(self) -> None:
        """Forget all."""
        self._spill.close()

    def _read(self, records: Array, begin: int, end: int, chosen: I64) -> None:
        """Fill in the chosen ones of consecutive rows; after an error nothing more is read."""
        if self._error is not None:
            return
        try:
            for i, array in enumerate(self._arrays.values()):
                rows = np.asarray(array[begin:end])
                records[_field(i)] = rows if len(chosen) == end - begin else rows[chosen]
                release(array)
        except MPIGraphError as error:
            self._error = error


def evenly_cut(offsets: I64, pieces: int) -> I64:
    """Return int64[ranges * pieces + 1]: ranges, each cut into as many pieces of nearly equal length.

    Args:
        offsets: int64[ranges + 1].
        pieces: of each range.
    """
    cuts = offsets[:-1, None] + np.diff(offsets)[:, None] * np.arange(pieces) // pieces
    return np.append(cuts.reshape(-1), offsets[-1]).astype(np.int64)


def arrays_of(source: GraphSource) -> tuple[list[dict[str, RowArray]], list[dict[str, RowArray]]]:
    """Return for each node type, and for each relation, its features and given original ids, by name."""
    keys = [relation_key(relation) for relation in source.schema.relations]
    found = []
    for names, tables, ids in (
        (source.schema.ntypes, source.node_feats, source.node_ids),
        (keys, source.edge_feats, source.edge_ids),
    ):
        arrays: list[dict[str, RowArray]] = [
            {feature_name: feature.values for feature_name, feature in tables.get(name, {}).items()} for name in names
        ]
        for table, original in zip(arrays, ids or (), strict=False):
            table[ORIGINAL_IDS] = original
        found.append(arrays)
    return found[0], found[1]


def to_carry(arrays: Mapping[str, RowArray]) -> dict[str, RowArray]:
    """Return those arrays of which choosing rows is slow."""
    return {name: array for name, array in arrays.items() if reads_blocks(array)}


class Carried(NamedTuple):
    """The sizes of what is carried, bytes.

    Attributes:
        total: of all rows, as they wait in temporary files.
        block: of the blocks of files that are in memory at once.
    """

    total: int
    block: int


NOTHING_CARRIED = Carried(0, 0)


def carried_sizes(source: GraphSource) -> Carried:
    """Return how much is carried of a graph."""
    total = 0
    block = 0
    for arrays in itertools.chain(*arrays_of(source)):
        carried = to_carry(arrays)
        if carried:
            total += _record(carried).itemsize * len(next(iter(carried.values())))
            block = max(block, sum(map(block_bytes, carried.values())))
    return Carried(total, block)


def _record(arrays: Mapping[str, RowArray]) -> np.dtype[np.void]:
    """Return the dtype of a row of several arrays, with its key and its number."""
    fields = [(_field(i), array.dtype, array.shape[1:]) for i, array in enumerate(arrays.values())]
    return np.dtype([("key", np.int64), ("number", np.int64), *fields])


def _field(number: int) -> str:
    return f"array{number}"
