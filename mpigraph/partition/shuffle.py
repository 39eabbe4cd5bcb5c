"""Sending rows to the ranks that write their parts: of nodes, of edges, of the features that travel with them.

A row travels by its *key*, a new id of a node or a number that orders edges by part and destination. It waits in a
:class:`.Spill` by ranges of keys, and each range is put in order on its own: by key, by source, in the order of the
input. Ranks read chunks of edges in turn, so they come in this order, unless features travel with them, a part of each
chunk at a time. So the result depends neither on the number of ranks nor on the ranges.

Files of compressed or checksummed blocks (parquet, HDF5, shards) are slow to read at random, because every choice of
rows unpacks nearly all blocks: their rows are read once, in the order of the file, and travel. Rows in memory and in
mapped files do not; the writer of a part gathers them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.metadata.schema import relation_key
from mpigraph.partition.exchange import Exchange, Route, even_bounds, owners_of
from mpigraph.partition.loops import sort_rows
from mpigraph.partition.row_arrays import RowArray, block_bytes, reads_blocks, release
from mpigraph.partition.source import Features, GraphSource
from mpigraph.partition.spill import Spill, by_row

ORIGINAL_IDS = ""  # the name among features, whose names are longer
BUCKET_BYTES = 48 << 20  # of rows that are put in order at a time
_PIECE_BYTES = 32 << 20  # of rows that are written at a time
_ROUND_BYTES = 16 << 20  # of rows with features that a rank reads and sends at a time
_SPARSE = 4  # keys for each row, beyond which rows are compared, not counted


@dataclass(frozen=True, eq=False)
class Writers:
    """The ranks that write the parts, nearly as many each; nothing travels to parts that are done.

    Attributes:
        exchange: the ranks.
        done: bool[parts].
        bounds: int64[ranks + 1], the parts of each rank.
        parts: this rank's; some may be done.
    """

    exchange: Exchange
    done: Mask
    bounds: I64
    parts: range

    @classmethod
    def of(cls, exchange: Exchange, done: Mask) -> "Writers":
        """Divide the parts."""
        missing_before = np.append(0, np.cumsum(~done))
        bounds = np.searchsorted(missing_before, even_bounds(int(missing_before[-1]), exchange.size)).astype(np.int64)
        bounds[-1] = len(done)
        return cls(exchange, done, bounds, range(*bounds[exchange.rank : exchange.rank + 2].tolist()))


class Shuffle:
    """Rows of one kind on their way to the writers of their parts; :meth:`take` has them as records.

    A record has the fields "key", "number", those of ``columns``, and those in ``carried``.

    Args:
        writers: the ranks.
        spill: the place where rows wait.
        offsets: int64[parts + 1], the keys of each part.
        count: number of all rows.
        columns: dtypes of further integers of a row; one that is named "source" orders rows of equal key.
        arrays: by name, rows that are numbered alike; those that are slow to read at random travel.

    Attributes:
        carried: the field of each array that travels, by its name.
    """

    def __init__(
        self,
        writers: Writers,
        spill: Spill,
        offsets: I64,
        count: int,
        columns: Mapping[str, npt.DTypeLike] = {},
        arrays: Mapping[str, RowArray] = {},
    ) -> None:
        self._writers = writers
        self._spill = spill
        self._arrays = to_carry(arrays)
        self.carried = {name: f"array{i}" for i, name in enumerate(self._arrays)}
        wide = max(int(offsets[-1]), count) >= 2**31
        self._dtype = _record(self._arrays, np.int64 if wide else np.int32, columns)
        size = self._dtype.itemsize
        self._pieces = -(-count * size // (len(writers.done) * BUCKET_BYTES)) or 1  # of each part
        self._cuts = evenly_cut(offsets[writers.parts.start : writers.parts.stop + 1], self._pieces)
        self._first_group = spill.new_groups(len(self._cuts) - 1)

    @collective("ranks")
    def send(self, parts: I64, keys: Array, first: int, **columns: Array) -> None:
        """Send rows with consecutive numbers, from ``first`` on, to their parts; keep those that arrive.

        Ranks may send unequal numbers of rows. Rows with arrays that travel go some MiB at a time.

        Args:
            parts: int64[n], the part of each row.
            keys: int[n].
            first: the first one's number, by which arrays that travel are read.
            columns: int[n] each; "number" has other numbers to tell.
        """
        most = step = max(1, len(keys))
        if self.carried:
            most = max(self._writers.exchange.gather_json(len(keys)))
            step = max(1, _ROUND_BYTES // self._dtype.itemsize)
        for begin in range(0, most, step):
            here = slice(begin, begin + step)
            self._send(parts[here], keys[here], first + begin, {name: of[here] for name, of in columns.items()})

    @collective("ranks")
    def _send(self, parts: I64, keys: Array, first: int, columns: Mapping[str, Array]) -> None:
        writers = self._writers
        records = np.zeros(len(keys), self._dtype)
        records["key"] = keys
        records["number"] = np.arange(first, first + len(keys))
        for name, values in columns.items():
            records[name] = values
        if writers.done.any():
            leaving = ~writers.done[parts]
            records, parts = records[leaving], parts[leaving]
        if self.carried:
            with writers.exchange.together("reading features"):
                for name, array in self._arrays.items() if len(records) else ():
                    rows = np.asarray(array[first : first + len(keys)])
                    records[self.carried[name]] = rows if len(records) == len(rows) else rows[leaving]
                    release(array)
        route = Route(writers.exchange, owners_of(writers.bounds, parts))
        came = route.there(records.view(np.uint8).reshape(len(records), self._dtype.itemsize))
        came = came.reshape(-1).view(self._dtype)
        if len(came):
            self._spill.add(self._first_group + np.searchsorted(self._cuts, came["key"], side="right") - 1, came)

    def take(self, part: int) -> Iterator[Array]:
        """Yield the records of a part of this rank in order, some MiB at a time; once."""
        first = (part - self._writers.parts.start) * self._pieces
        step = max(1, _PIECE_BYTES // self._dtype.itemsize)
        for piece in range(first, first + self._pieces):
            records = self._spill.take(self._first_group + piece, self._dtype, mapped=bool(self.carried))
            order = _order(records, bool(self.carried), *self._cuts[piece : piece + 2].tolist())
            for at in range(0, len(order), step):
                yield records.take(order[at : at + step])
                release(records)


def _order(records: Array, by_number: bool, first: int, last: int) -> Array:
    """Return int[n], the order of records with keys in ``[first, last)``: by key, source, number or as they came."""
    keys = records["key"].astype(np.int64)
    order = np.arange(len(records), dtype=np.int32 if len(records) < 2**31 else np.int64)
    sources = [records["source"]] if "source" in (records.dtype.names or ()) else []
    if by_number and sources:  # other keys are of one record each
        order = np.argsort(records["number"], kind="stable").astype(order.dtype)
        keys = keys[order]
        sources = [sources[0][order]]
    if last - first > _SPARSE * len(records):
        return order[np.lexsort((*sources, keys)) if sources else np.argsort(keys, kind="stable")]
    keys -= first
    indptr, (order, *sources) = by_row(keys, last - first, order, *sources)
    if sources:
        sort_rows(indptr, sources[0], order)
    return order


def evenly_cut(offsets: I64, pieces: int) -> I64:
    """Return int64[ranges * pieces + 1]: ranges (int64[ranges + 1]), each in pieces of nearly equal length."""
    cuts = offsets[:-1, None] + np.diff(offsets)[:, None] * np.arange(pieces) // pieces
    return np.append(cuts.reshape(-1), offsets[-1]).astype(np.int64)


def arrays_of(source: GraphSource) -> tuple[list[dict[str, RowArray]], list[dict[str, RowArray]]]:
    """Return for each node type, and for each relation, its features and original ids, by name."""

    def arrays(names: Iterable[str], tables: Features, ids: Sequence[RowArray] | None) -> list[dict[str, RowArray]]:
        named = [{name: feature.values for name, feature in tables.get(owner, {}).items()} for owner in names]
        for table, original in zip(named, ids or (), strict=False):
            table[ORIGINAL_IDS] = original
        return named

    keys = map(relation_key, source.schema.relations)
    of_nodes = arrays(source.schema.ntypes, source.node_feats, source.node_ids)
    return of_nodes, arrays(keys, source.edge_feats, source.edge_ids)


def to_carry(arrays: Mapping[str, RowArray]) -> dict[str, RowArray]:
    """Return the arrays that are slow to read at random."""
    return {name: array for name, array in arrays.items() if reads_blocks(array)}


class Carried(NamedTuple):
    """Sizes of the rows that travel, bytes."""

    total: int = 0  # of all rows, as they lie in temporary files
    block: int = 0  # of the blocks of files that are in memory at once


def carried_sizes(source: GraphSource) -> Carried:
    """Return the sizes of the rows of a graph that travel."""
    tables = [table for table in map(to_carry, chain(*arrays_of(source))) if table]
    total = sum(_record(table).itemsize * len(next(iter(table.values()))) for table in tables)
    return Carried(total, max([0, *(sum(map(block_bytes, table.values())) for table in tables)]))


def _record(
    arrays: Mapping[str, RowArray],
    dtype: npt.DTypeLike = np.int64,
    columns: Mapping[str, npt.DTypeLike] = {},
) -> np.dtype[np.void]:
    """Return the dtype of a row, with rows of several arrays."""
    fields = [(f"array{i}", array.dtype, array.shape[1:]) for i, array in enumerate(arrays.values())]
    return np.dtype([("key", dtype), ("number", dtype), *columns.items(), *fields])
