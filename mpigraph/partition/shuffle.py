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
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.kernels.csr import by_key
from mpigraph.partition.exchange import Exchange, Route, even_bounds, owners_of
from mpigraph.partition.loops import sort_rows
from mpigraph.partition.row_arrays import RowArray, reads_blocks, release
from mpigraph.partition.source import Features, GraphSource
from mpigraph.partition.spill import Scratch, Spill

Arrays: TypeAlias = Mapping[str, RowArray]
"""Features and original ids of a type, by name."""
ORIGINAL_IDS = ""  # the name among features, whose names are longer
BUCKET_BYTES = 48 << 20  # of rows that are put in order at a time
_PIECE_BYTES = 32 << 20  # of rows that are written at a time
_ROUND_BYTES = 16 << 20  # of rows with features that a rank reads and sends at a time
_SPARSE = 4  # keys for each row, beyond which rows are compared, not counted


class Writers:
    """The ranks that write the parts, nearly as many each; nothing travels to parts that are done.

    Attributes:
        exchange: the ranks.
        done: bool[parts].
        bounds: int64[ranks + 1], the parts of each rank.
        parts: this rank's; some may be done.
        spill: the place where rows wait.
    """

    def __init__(self, exchange: Exchange, done: Mask, scratch: Scratch) -> None:
        self.exchange = exchange
        self.done = done
        self.spill = Spill(scratch)
        missing_before = np.append(0, np.cumsum(~done))
        self.bounds = np.searchsorted(missing_before, even_bounds(int(missing_before[-1]), exchange.size))
        self.bounds[-1] = len(done)
        self.parts = range(*self.bounds[exchange.rank : exchange.rank + 2].tolist())


class Shuffle:
    """Rows of one kind on their way to the writers of their parts; :meth:`take` has them as records.

    A record has the fields "key", "number", those of ``columns``, and those in ``carried``.

    Args:
        writers: the ranks.
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
        offsets: I64,
        count: int,
        columns: Mapping[str, npt.DTypeLike] = {},
        arrays: Mapping[str, RowArray] = {},
    ) -> None:
        self._writers = writers
        self._arrays = to_carry(arrays)
        self.carried = {name: f"array{i}" for i, name in enumerate(self._arrays)}
        wide = max(int(offsets[-1]), count) >= 2**31
        self._dtype = _record(self._arrays, np.int64 if wide else np.int32, columns)
        size = self._dtype.itemsize
        self._pieces = pieces = -(-count * size // (len(writers.done) * BUCKET_BYTES)) or 1  # of each part
        own = offsets[writers.parts.start : writers.parts.stop + 1]
        cuts = own[:-1, None] + np.diff(own)[:, None] * np.arange(pieces) // pieces  # of nearly equal length
        self._cuts = np.append(cuts.reshape(-1), own[-1])
        self._first_group = writers.spill.new_groups(len(self._cuts) - 1)

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

    def _send(self, parts: I64, keys: Array, first: int, columns: Mapping[str, Array]) -> None:
        writers = self._writers
        records = np.zeros(len(keys), self._dtype)
        records["key"] = keys
        records["number"] = np.arange(first, first + len(keys))
        for name, values in columns.items():
            records[name] = values
        if self.carried:
            with writers.exchange.together("reading features"):
                for name, array in () if writers.done[parts].all() else self._arrays.items():
                    records[self.carried[name]] = array[first : first + len(keys)]
                    release(array)
        if writers.done.any():
            leaving = ~writers.done[parts]
            records, parts = records[leaving], parts[leaving]
        route = Route(writers.exchange, owners_of(writers.bounds, parts))
        came = route.there(records.view(np.uint8).reshape(len(records), self._dtype.itemsize))
        came = came.reshape(-1).view(self._dtype)
        if len(came):
            self._writers.spill.add(
                self._first_group + np.searchsorted(self._cuts, came["key"], side="right") - 1, came
            )

    def take(self, part: int) -> Iterator[Array]:
        """Yield the records of a part of this rank in order, some MiB at a time; once."""
        first = (part - self._writers.parts.start) * self._pieces
        step = max(1, _PIECE_BYTES // self._dtype.itemsize)
        for piece in range(first, first + self._pieces):
            records = self._writers.spill.take(self._first_group + piece, self._dtype, mapped=bool(self.carried))
            order = _order(records, bool(self.carried), *self._cuts[piece : piece + 2].tolist())
            for at in range(0, len(order), step):
                yield records.take(order[at : at + step])
                release(records)


def _order(records: Array, by_number: bool, first: int, last: int) -> I64:
    """Return the order of records with keys in ``[first, last)``: by key, source, number or as they came."""
    names = [name for name in ("number", "source", "key") if name in (records.dtype.names or ())]
    if by_number or last - first > _SPARSE * len(records):
        order: I64 = np.lexsort([records[name] for name in (names if by_number else names[1:])])
        return order
    bounds, order = by_key(records["key"] - first, last - first)
    if "source" in names:
        sort_rows(bounds, records["source"].take(order), order)
    return order


def arrays_of(source: GraphSource) -> tuple[list[Arrays], list[Arrays]]:
    """Return for each node type, and for each relation, its features and original ids, by name."""

    def arrays(names: Iterable[str], tables: Features, ids: Sequence[RowArray] | None) -> list[Arrays]:
        named: list[Arrays] = [{n: feature.values for n, feature in tables.get(owner, {}).items()} for owner in names]
        return [{**table, ORIGINAL_IDS: own} for table, own in zip(named, ids, strict=True)] if ids else named

    of_nodes = arrays(source.schema.ntypes, source.node_feats, source.node_ids)
    return of_nodes, arrays(source.schema.relation_keys, source.edge_feats, source.edge_ids)


def to_carry(arrays: Arrays) -> Arrays:
    """Return the arrays that are slow to read at random."""
    return {name: array for name, array in arrays.items() if reads_blocks(array)}


def carried_bytes(source: GraphSource) -> int:
    """Return the bytes of the rows of a graph that travel, as they lie in temporary files."""
    tables = [table for table in map(to_carry, chain(*arrays_of(source))) if table]
    return sum(_record(table).itemsize * len(next(iter(table.values()))) for table in tables)


def _record(
    arrays: Arrays, dtype: npt.DTypeLike = np.int64, columns: Mapping[str, npt.DTypeLike] = {}
) -> np.dtype[np.void]:
    """Return the dtype of a row, with rows of several arrays."""
    fields = [(f"array{i}", array.dtype, array.shape[1:]) for i, array in enumerate(arrays.values())]
    return np.dtype([("key", dtype), ("number", dtype), *columns.items(), *fields])
