"""In-edges as plain arrays, and the windows that they lie in; relations of few edges, which share tables."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.errors import ShardFormatError
from mpigraph.metadata.book import RangeBook
from mpigraph.mpi.agree import together
from mpigraph.mpi.messages import exchange_rows, sum_over_ranks
from mpigraph.rows.service import RowService
from mpigraph.rows.window import RowWindow
from mpigraph.storage.contents import PartFiles, check_shared
from mpigraph.storage.format import index_dtype, shared_dataset_name
from mpigraph.store.host_ranges import parts_of_hosts


@dataclass(frozen=True)
class Adjacency:
    """One relation's in-edges on one local host, as plain arrays.

    Attributes:
        indptr: int64[n + 1], from 0.
        indices: int32 or int64 [nnz], global source ids, rising inside a row.
        first_node: global id of the first destination.
        first_edge: global id of the first edge.
        rows: int32 or int64[n], the destinations that have edges, ascending, counted from the first; None: each
            destination has a row.
    """

    indptr: I64
    indices: Array
    first_node: int
    first_edge: int
    rows: Array | None = None

    def rows_of(self, ids: I64) -> tuple[I64, Mask]:
        """Return int64[n], the row of each destination (int64[n], global ids), and whether it has one, bool[n].

        Of an adjacency with :attr:`rows`.
        """
        assert self.rows is not None
        local = ids - self.first_node
        row = np.searchsorted(self.rows, local)
        known = row < len(self.rows)
        known[known] = self.rows[row[known]] == local[known]
        return row, known

    def into(self, begin: int, end: int) -> slice:
        """Return the edges into the destinations ``[begin, end)``, counted from the first."""
        if self.rows is not None:
            begin, end = np.searchsorted(self.rows, (begin, end)).tolist()
        return slice(int(self.indptr[begin]), int(self.indptr[end]))

    def destinations(self) -> I64:
        """Return int64[nnz], the global destination of each edge."""
        rows = np.arange(len(self.indptr) - 1) if self.rows is None else self.rows.astype(np.int64)
        return self.first_node + np.repeat(rows, np.diff(self.indptr))


class TableWindow:
    """Tables that are divided among the hosts, each in its own way."""

    @collective("world.comm")
    def __init__(self, service: RowService, tables: Sequence[I64] | I64, dtype: npt.DTypeLike) -> None:
        """Allocate zeros; host h holds the rows ``[offsets[h], offsets[h + 1])`` of each table's offsets."""
        hosts = len(service.world.hosts)
        self._tables = np.array(tables, np.int64).reshape(len(tables), hosts + 1)
        sizes = np.diff(self._tables, axis=1)
        self._starts = np.concatenate([np.zeros((1, hosts), np.int64), np.cumsum(sizes, axis=0)])
        self._window = RowWindow(service, np.append(0, np.cumsum(sizes.sum(axis=0))), (), dtype)

    def segment(self, table: int, host: int) -> Array:
        """Return a table's rows on a local host, a writable view of the window's memory."""
        begin, end = self._starts[table : table + 2, host]
        return self._window.memory(host)[begin:end]

    @property
    def offsets(self) -> I64:
        """int64[H + 1]; host h holds the rows ``[offsets[h], offsets[h + 1])`` of all tables."""
        return self._window.offsets

    def begins(self, host: int) -> I64:
        """Return int64[tables + 1], where the rows of each table begin among those of a host."""
        return np.ascontiguousarray(self._starts[:, host])

    def numbers(self, table: int, ids: I64) -> I64:
        """Return the numbers of a table's rows (int64[n], all valid) among those of all tables and hosts."""
        offsets = self._tables[table]
        host = np.searchsorted(offsets, ids, side="right") - 1
        begins = self.offsets[:-1] + self._starts[table] - offsets[:-1]
        numbers: I64 = ids + begins[host]
        return numbers

    def gather(self, table: int, ids: I64) -> Array:
        """Read rows of a table in the order of ``ids`` (int64[n], all valid). One-sided."""
        return self._window.gather(self.numbers(table, ids))

    def memory(self, host: int) -> Array:
        """Return all tables' rows on a local host, one after another."""
        return self._window.memory(host)

    def sync(self) -> None:
        """Order the plain stores and loads of this process with those of the others."""
        self._window.sync()

    def retire(self) -> None:
        """See :meth:`.RowWindow.retire`."""
        self._window.retire()

    @collective("world.comm")
    def close(self) -> None:
        """Free the memory; a second call does nothing."""
        self._window.close()


# The edges of relations that share tables, in the hosts' memory.
#
# Each host has, relation after relation, the destinations that have edges (*rows*), where the edges of each row begin,
# and the sources; the rows into each node type once more, by destination; and the sources that have out-edges with
# their number. All is proportional to the edges, however many relations there are.


@dataclass(frozen=True)
class RowsInto:
    """The rows into one node type on a local host, as the kernels in ``kernels/csr.py`` take them.

    Attributes:
        first_node: global id of the host's first destination.
        listed: int32 or int64 [n], by destination and relation, the number of each row among all of the host.
        nodes: int32 or int64 [rows], the destination of each row of the host, counted from the first.
        indptr: int64[rows + relations], relation after relation the first edges of its rows and their end, from 0.
        indices: int32 or int64 [edges], global source ids of all relations.
        row_begins: int64[relations + 1], the first row of each relation.
        edge_begins: int64[relations + 1], the first edge of each.
    """

    first_node: int
    listed: Array
    nodes: Array
    indptr: I64
    indices: Array
    row_begins: I64
    edge_begins: I64


@dataclass(frozen=True)
class HostTables:
    """The edges of one host.

    Attributes (as in :class:`RowsInto`, besides):
        listed: the rows into all types, one after the other.
        list_begins: int64[types + 1], where those into each begin.
    """

    rows: I64
    indptr: I64
    indices: Array
    listed: I64
    row_begins: I64
    edge_begins: I64
    list_begins: I64

    @classmethod
    def of(cls, place: I64, destinations: I64, sources: Array, ends: I64, num_types: int) -> "HostTables":
        """Make the tables.

        Args:
            place: int64[m], the relation of each edge, not falling.
            destinations: int64[m], counted from the host's first, not falling in a relation.
            sources: int[m].
            ends: int64[relations, 2], node type ids.
            num_types: number of node types.
        """
        relations = np.arange(len(ends) + 1)
        first = np.flatnonzero(_changes(place, destinations))
        of_rows = place[first]
        rows = destinations[first]
        row_begins = np.searchsorted(of_rows, relations)
        edge_begins = np.searchsorted(place, relations)
        indptr = np.empty(len(rows) + len(ends), np.int64)
        indptr[np.arange(len(rows)) + of_rows] = first - edge_begins[of_rows]
        indptr[row_begins[1:] + relations[:-1]] = np.diff(edge_begins)
        types = ends[of_rows, 1]
        width = int(rows.max(initial=0)) + 1
        listed = np.argsort((types * width + rows) * len(ends) + of_rows)  # by type, row, relation: all differ
        list_begins = np.searchsorted(types[listed], np.arange(num_types + 1))
        return cls(rows, indptr, sources, listed, row_begins, edge_begins, list_begins)


class SharedEdges:
    """The relations of a graph that share tables. A relation is named by its place among them.

    Attributes:
        relations: int64[n], the relation ids, ascending.
        ends: int64[n, 2], node type ids of source and destination.
        dtype: of source ids.
        edges_of_hosts: int64[H + 1]; host h holds the edges ``[edges_of_hosts[h], edges_of_hosts[h + 1])``, where edges
            of all these relations are numbered by host, relation and id.
    """

    @collective("world.comm")
    def __init__(self, service: RowService, files: PartFiles, hosts: RangeBook) -> None:
        """Read this host's edges from the shards; exchange out-degrees.

        Raises:
            ShardFormatError: a shard is missing, damaged or contradicts itself on some rank; raised on every rank.
            SharedMemoryError: a node cannot hold them; on every rank.
        """
        config, self._world = files.config, service.world
        world, num_hosts, relations = self._world, len(self._world.hosts), config.shared
        self.relations = np.array(relations, np.int64)
        self._hosts = hosts
        self.ends = config.shared_ends
        self._edges = hosts.edge_table[self.relations]
        self._nodes = np.array(hosts.node_offsets, np.int64)
        self.dtype = index_dtype(int(self._nodes[:, -1].max()))
        place, rows, sources = (np.empty(0, np.int64) for _ in range(3))
        with together(world.comm, f"loading graph {config.graph_name!r}"):
            if world.is_host:
                place, rows, sources = self._read(files, world.host_index)
        host_places, out_rows, degrees = self._out_degrees(place, sources)
        own = HostTables.of(place, rows, sources, self.ends, len(self._nodes))
        counts = np.zeros((3, max(len(relations), len(self._nodes)), num_hosts), np.int64)
        if world.is_host:
            of_sources = np.bincount(host_places, minlength=len(relations))
            for table, sizes in zip(
                counts, (np.diff(own.row_begins), of_sources, np.diff(own.list_begins)), strict=True
            ):
                table[: len(sizes), world.host_index] = sizes
        with world.watch("loading a graph"):
            counts = sum_over_ranks(world.comm, counts)
        ends = np.pad(np.cumsum(counts, axis=2), ((0, 0), (0, 0), (1, 0)))
        self._rows_of, self._sources_of = ends[:2, : len(relations)]
        local = index_dtype(int(np.diff(self._nodes, axis=1).max()))
        of_rows = index_dtype(int(counts[0].sum(axis=0).max()))
        self._rows = TableWindow(service, self._rows_of, local)
        self._indptr = TableWindow(service, self._rows_of + np.arange(num_hosts + 1), np.int64)
        self._indices = TableWindow(service, self._edges, self.dtype)
        self._listed = TableWindow(service, ends[2, : len(self._nodes)], of_rows)
        self._sources = TableWindow(service, self._sources_of, local)
        self._degrees = TableWindow(service, self._sources_of, np.int64)
        self.edges_of_hosts = self._indices.offsets
        if world.is_host:
            for window, values in zip(
                self.windows(), (own.rows, own.indptr, own.indices, own.listed, out_rows, degrees), strict=True
            ):
                window.memory(world.host_index)[:] = values

    def windows(self) -> list[TableWindow]:
        """Return the windows."""
        return [self._rows, self._indptr, self._indices, self._listed, self._sources, self._degrees]

    def adjacency(self, place: int, host: int) -> Adjacency:
        """Return the in-edges on a local host, as plain arrays."""
        return Adjacency(
            self._indptr.segment(place, host),
            self._indices.segment(place, host),
            int(self._nodes[self.ends[place, 1], host]),
            int(self._edges[place, host]),
            self._rows.segment(place, host),
        )

    def rows_into(self, ntype: int, host: int) -> RowsInto:
        """Return the rows into a node type on a local host."""
        return RowsInto(
            int(self._nodes[ntype, host]),
            self._listed.segment(ntype, host),
            self._rows.memory(host),
            self._indptr.memory(host),
            self._indices.memory(host),
            self._rows.begins(host),
            self._indices.begins(host),
        )

    def numbers(self, place: int, eids: I64) -> I64:
        """Return the numbers (int64[n]) of edges among those of all these relations, see :attr:`edges_of_hosts`."""
        return self._indices.numbers(place, eids)

    def num_edges(self, host: int) -> int:
        """Return the number of edges of a host."""
        return int(self.edges_of_hosts[host + 1] - self.edges_of_hosts[host])

    def eid_shifts(self, host: int) -> I64:
        """Return int64[relations], what makes the number of an edge, counted from the host's first, its id."""
        shifts: I64 = self._edges[:, host] - self._indices.begins(host)[:-1]
        return shifts

    def row_offsets(self, place: int) -> I64:
        """Return int64[hosts + 1], the rows of each host."""
        offsets: I64 = self._rows_of[place]
        return offsets

    def in_degrees(self, ids: I64, place: int) -> I64:
        """See :meth:`.Topology.in_degrees`."""
        ntype = int(self.ends[place, 1])
        owner = self._hosts.node_owner(ids, ntype)
        row, known = self._find(self._rows, self._rows_of, place, owner, ids - self._nodes[ntype, owner])
        degrees = np.zeros(len(ids), np.int64)
        row += owner[known]
        degrees[known] = self._indptr.gather(place, row + 1) - self._indptr.gather(place, row)
        return degrees

    def out_degrees(self, ids: I64, place: int) -> I64:
        """See :meth:`.Topology.out_degrees`."""
        ntype = int(self.ends[place, 0])
        owner = self._hosts.node_owner(ids, ntype)
        row, known = self._find(self._sources, self._sources_of, place, owner, ids - self._nodes[ntype, owner])
        degrees = np.zeros(len(ids), np.int64)
        degrees[known] = self._degrees.gather(place, row)
        return degrees

    def find_edges(self, eids: I64, place: int) -> tuple[I64, I64]:
        """See :meth:`.Topology.find_edges`."""
        owner = self._hosts.edge_owner(eids, int(self.relations[place]))
        low, high = self._rows_of[place, owner], self._rows_of[place, owner + 1] - 1
        row = last_begin(self._indptr, place, low, high, owner, eids - self._edges[place, owner])
        destinations = self._rows.gather(place, row) + self._nodes[self.ends[place, 1], owner]
        return self._indices.gather(place, eids).astype(np.int64), destinations.astype(np.int64)

    def _find(self, table: TableWindow, offsets: I64, place: int, owner: Array, wanted: I64) -> tuple[I64, Array]:
        """Find numbers (int64[n]) in the tables of their owners by binary search, all in step.

        Returns:
            The rows of those that are there, and which these are, bool[n].
        """
        low, end = offsets[place, owner], offsets[place, owner + 1]
        high = end.copy()
        while (open_ := np.flatnonzero(low < high)).size:
            middle = (low[open_] + high[open_]) // 2
            below = table.gather(place, middle) < wanted[open_]
            low[open_[below]] = middle[below] + 1
            high[open_[~below]] = middle[~below]
        known = low < end
        known[known] = table.gather(place, low[known]) == wanted[known]
        return low[known], known

    def _read(self, files: PartFiles, host: int) -> tuple[I64, I64, I64]:
        """Return the place, the row and the source of each edge of a host, in the order of the tables."""
        config = files.config
        columns = [np.empty((3, 0), np.int64)]
        first, last = self._nodes[self.ends[:, 1], host : host + 2].T
        for part in parts_of_hosts([host], len(self._world.hosts), config.num_parts):
            place, nodes, indices = read_shared(files, part)
            own = (nodes >= first[place]) & (nodes < last[place])
            columns.append(np.stack([place, nodes - first[place], indices])[:, own])
        edges = np.concatenate(columns, axis=1)
        # few bits are sorted by counting, not by comparing
        few = edges[0].astype(np.min_scalar_type(len(self.ends)), copy=False)
        place, rows, sources = edges.take(np.argsort(few, kind="stable"), axis=1)
        held = np.bincount(place, minlength=len(self.ends))
        for bad in np.flatnonzero(held != np.diff(self._edges, axis=1)[:, host])[:1].tolist():
            key = config.schema.relation_key(int(self.relations[bad]))
            raise ShardFormatError(f"{config.path}: edges of {key} contradict the numbers of edges of its parts")
        return place, rows, sources

    @collective("world.comm")
    def _out_degrees(self, place: I64, sources: I64) -> tuple[I64, I64, I64]:
        """Return the sources on this host that have out-edges: places, rows, out-degrees; by place and row."""
        world = self._world
        bases = np.append(0, np.cumsum(self._nodes[:, -1]))[:-1]
        firsts = (self._nodes[:, :-1] + bases[:, None]).reshape(-1)  # of each type and host, among all nodes
        nodes = sources + bases[self.ends[place, 0]]
        of_type = np.searchsorted(firsts, nodes, side="right") - 1
        ranks = world.hosts[of_type % len(world.hosts)]
        width = int(np.diff(self._nodes, axis=1).max())  # nodes of a host: place and row as one number
        going = (place * width + nodes - firsts[of_type])[np.argsort(ranks, kind="stable"), None]
        with world.watch("loading a graph"):
            came, _ = exchange_rows(world.comm, going, np.bincount(ranks, minlength=world.size).astype(np.int64))
        numbers, degrees = np.unique(came, return_counts=True)
        return numbers // width, numbers % width, degrees


def read_shared(files: PartFiles, part: int) -> tuple[I64, I64, Array]:
    """Return the place, the destination and the source of each edge of a part, in the order of its file.

    Raises ShardFormatError if the file is missing, damaged or contradicts itself.
    """
    config = files.config
    shard = files.open(part, "part_graph")
    destinations, indices = (shard.read(shared_dataset_name(field)) for field in ("destinations", "indices"))
    place = check_shared(config, part, destinations, indices)
    of_part = np.array(config.book.node_offsets)[config.shared_ends[:, 1], part]
    return place, destinations + of_part[place], indices


def last_begin(indptr: TableWindow, table: int, low: I64, high: I64, owner: Array, edges: I64) -> I64:
    """Return the last row whose first edge is not behind an edge, int64[n], by binary search of all in step.

    Args:
        indptr: tables of first edges, counted from the host's first, with one entry more than rows on each host.
        table: the number of the table.
        low: int64[n], the first row of the host of each edge.
        high: int64[n], the last.
        owner: int[n], the host.
        edges: int64[n], counted from the host's first.
    """
    low, high = low.copy(), high.copy()
    while (low < high).any():
        middle = (low + high + 1) // 2
        begins = indptr.gather(table, middle + owner)
        low = np.where(begins <= edges, middle, low)
        high = np.where(begins <= edges, high, middle - 1)
    return low


def _changes(*columns: I64) -> Array:
    """Return bool[n]: an entry differs from the one before it."""
    changed = np.zeros(len(columns[0]), np.bool_)
    changed[:1] = True
    for column in columns:
        changed[1:] |= column[1:] != column[:-1]
    return changed
