"""Sending every node and edge, in new ids, to the rank that writes its part: and the features that travel with them.

New ids of nodes are ordered by part, then by original id. Each rank knows the new ids of the nodes that it owns, and
asks the owners for others. Ranks own ranges of *global* original ids, which number the nodes of all types, type after
type. New ids are numbered within a type.

Edges are sorted by (new destination, new source, original edge). Relations that share tables travel as one
(:class:`EdgeTable`), by a key that is ordered by part, relation and destination, so that thousands of relations cost as
much as one with as many edges.

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

from mpigraph.arrays import I32, I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.kernels.csr import by_key, count_keys
from mpigraph.partition.assigning import Task
from mpigraph.partition.exchange import Exchange, Progress, Route, even_bounds, owners_of
from mpigraph.partition.loops import number_by_key, sort_rows
from mpigraph.partition.row_arrays import RowArray, reads_blocks, release
from mpigraph.partition.source import EDGES_PER_CHUNK, Features, GraphSource, edge_chunks
from mpigraph.partition.spill import Scratch, Spill
from mpigraph.storage.format import index_dtype

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


class Numbering:
    """New ids of all nodes; ``parts`` are int32[own nodes].

    Attributes:
        exchange: the ranks.
        bounds: int64[ranks + 1], the nodes that each rank owns.
        bases: int64[types + 1], where each type begins.
        offsets: for each type int64[parts + 1], the new ids of each part.
        first_nodes: int64[types * parts], the first node of each type and part, new ids of types one after the other.
        new_ids: int64[own nodes].
    """

    @collective("ranks")
    def __init__(self, task: Task, parts: I32) -> None:
        self.exchange = exchange = task.exchange
        self.bounds = task.bounds
        self.bases = bases = task.source.node_bases
        self._num_parts = num_parts = task.num_parts
        self.own = task.own_of
        num_types = len(bases) - 1
        groups = parts.astype(np.int64)
        for ntype_id in range(num_types):
            groups[self.own(ntype_id)] += ntype_id * num_parts
        table = np.zeros((exchange.size, num_types * num_parts), np.int64)
        table[exchange.rank] = np.bincount(groups, minlength=num_types * num_parts)
        table = exchange.total(table)
        totals = table.sum(axis=0).reshape(num_types, num_parts)
        self.offsets = [np.concatenate([[0], np.cumsum(counts)]).astype(np.int64) for counts in totals]
        first = np.concatenate([offsets[:-1] for offsets in self.offsets])
        # among the new ids of all types, one after the other
        self.first_nodes = first + np.repeat(bases[:-1], num_parts)
        self.new_ids = np.empty(len(groups), np.int64)
        number_by_key(groups, first + table[: exchange.rank].sum(axis=0), self.new_ids)
        self._dtype = np.int32 if bases[-1] < 2**31 else np.int64

    def parts(self, new_ids: Array) -> tuple[I64, I64]:
        """Return the parts of nodes, int64[n], and their places in ``first_nodes``.

        New ids, int[n], are those of types one after the other.
        """
        places: I64 = np.searchsorted(self.first_nodes, new_ids, side="right") - 1
        return (places if len(self.bases) == 2 else places % self._num_parts), places

    @collective("ranks")
    def of(self, ids: I64, met: I64 | None = None) -> Array:
        """Return the new ids of nodes: int32[n], or int64[n] in a graph of 2**31 nodes and more.

        Args:
            ids: int64[n], global original ids.
            met: int64[own nodes], counts how often ranks asked for each node.
        """
        route = Route(self.exchange, owners_of(self.bounds, ids))
        asked = route.there(ids.astype(self._dtype)[:, None])[:, 0].astype(np.int64)
        asked -= self.bounds[self.exchange.rank]
        if met is not None:
            count_keys(asked, 0, met)
        return route.back(self.new_ids[asked].astype(self._dtype)[:, None])[:, 0]


class EdgeTable:
    """The edges of relations that share tables, or those of one relation, and what is known of them.

    Attributes:
        relations: their ids, ascending.
        ends: int64[relations, 2], the node types of source and destination.
        first_edges: int64[relations + 1], the first edge of each relation in the table.
        keys: int64[parts * relations + 1], the first key of each part and relation.
        shuffle: their way.
        degrees: that of the source nodes of one relation, with the "degree" of each.
    """

    def __init__(
        self, source: GraphSource, relations: Sequence[int], numbering: Numbering, writers: Writers, arrays: Arrays
    ) -> None:
        self.relations = relations
        self.ends = source.schema.all_ends[list(relations)]
        self.first_edges = np.append(0, np.cumsum([source.edge_counts[r] for r in relations])).astype(np.int64)
        nodes = np.diff(np.array(numbering.offsets), axis=1)[self.ends[:, 1]].T
        self.keys = np.append(0, np.cumsum(nodes)).astype(np.int64)
        columns = {"source": index_dtype(max(source.num_nodes[t] for t in self.ends[:, 0]))}
        self.shuffle = Shuffle(writers, self.keys[:: len(relations)], int(self.first_edges[-1]), columns, arrays)
        source_type = self.ends[0, 0]
        of_type = numbering.offsets[source_type], source.num_nodes[source_type]
        self.degrees = Shuffle(writers, *of_type, {"degree": np.int64})


class Arrivals:
    """The nodes and edges that come to the rank that writes their parts.

    Nothing travels to parts that are ``done`` (bool[parts]), and they are not written.

    Attributes (besides ``source`` and ``numbering``):
        parts: a range; this rank writes those that are not done.
        nodes: the nodes of each type; their numbers are original ids.
        tables: the edges; numbers are positions in the table.
        counts: int64[parts, relations], the edges of all parts, and ``cut``, how many come from other parts.
    """

    def __init__(self, task: Task, numbering: Numbering, done: Mask) -> None:
        self.source = source = task.source
        self.numbering = numbering
        self._writers = writers = Writers(task.exchange, done, task.scratch)
        self.parts = writers.parts
        of_nodes, of_edges = arrays_of(source)
        offsets = numbering.offsets
        self.nodes = [Shuffle(writers, offsets[t], n, arrays=of_nodes[t]) for t, n in enumerate(source.num_nodes)]
        groups = ([list(source.shared)] if source.shared else []) + [[r] for r in source.own]
        self.tables = [
            EdgeTable(source, relations, numbering, writers, of_edges[relations[0]] if len(relations) == 1 else {})
            for relations in groups
        ]
        self.counts: I64 = np.zeros((len(done), len(source.edges)), np.int64)
        self.cut = 0

    @collective("ranks")
    def receive(self, progress: Progress) -> None:
        """Send this rank's nodes, and edges as they are read; receive those of this rank's parts."""
        exchange = self.numbering.exchange
        for ntype_id, shuffle in enumerate(self.nodes):
            self._send_nodes(shuffle, ntype_id)
        done = 0
        for table in self.tables:
            degrees = np.zeros(len(self.numbering.new_ids), np.int64)
            done = self._send_edges(table, degrees, progress, done)
            if len(table.relations) == 1:
                self._send_nodes(table.degrees, int(table.ends[0, 0]), degree=degrees)
        self.counts = exchange.total(self.counts)
        self.cut = exchange.sum_of(self.cut)
        progress("relabel edges", done, done)

    def close(self) -> None:
        """Forget all."""
        self._writers.spill.close()

    def _send_nodes(self, shuffle: Shuffle, ntype_id: int, **columns: I64) -> None:
        """Send the own nodes of a type; columns have a number of each own node of all types."""
        numbering = self.numbering
        own = numbering.own(ntype_id)
        first_id = own.start + int(numbering.bounds[numbering.exchange.rank] - numbering.bases[ntype_id])
        most = int(np.diff(numbering.bounds.clip(*numbering.bases[ntype_id : ntype_id + 2])).max())
        for begin in range(0, most, EDGES_PER_CHUNK):
            here = slice(min(own.start + begin, own.stop), min(own.start + begin + EDGES_PER_CHUNK, own.stop))
            new_ids = numbering.new_ids[here]
            parts = owners_of(numbering.offsets[ntype_id], new_ids)
            of_nodes = {name: values[here] for name, values in columns.items()}
            shuffle.send(parts, new_ids, first_id + here.start - own.start, **of_nodes)

    def _send_edges(self, table: EdgeTable, degrees: I64, progress: Progress, done: int) -> int:
        """Send the edges that this rank reads, count them, and the edges from each own node (int64[own nodes]).

        Return how many edges all ranks have read then; ``done`` before.
        """
        numbering = self.numbering
        exchange = numbering.exchange
        relations = table.relations
        counts = np.zeros(len(self.counts) * len(relations), np.int64)
        end = done + int(table.first_edges[-1])
        for first, place, src, dst in edge_chunks(self.source, relations, exchange.rank, exchange.size):
            progress("relabel edges", done, sum(self.source.edge_counts))
            done = min(done + len(src) * exchange.size, end)
            src_base, dst_base = numbering.bases[table.ends[place]].T
            new_src = numbering.of(src + src_base, degrees)
            keys = numbering.of(dst + dst_base)
            src_part, _ = numbering.parts(new_src + src_base)
            part, of_type = numbering.parts(keys + dst_base)
            if len(relations) > 1:
                keys = table.keys[part * len(relations) + place] + keys + dst_base - numbering.first_nodes[of_type]
            self.cut += int(np.count_nonzero(src_part != part))
            count_keys(part * len(relations) + place, 0, counts)
            table.shuffle.send(part, keys, first, source=new_src)
        self.counts[:, relations] = counts.reshape(-1, len(relations))
        return end
