"""The edges of relations that share tables, in the hosts' memory.

Each host has, relation after relation, the destinations that have edges (*rows*), where the edges of each row begin,
and the sources; and the sources that have out-edges with their number. All is proportional to the edges, however many
relations there are.
"""

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import ShardFormatError
from mpigraph.metadata.book import RangeBook
from mpigraph.mpi.agree import together
from mpigraph.mpi.messages import exchange_rows, sum_over_ranks
from mpigraph.rows.service import RowService
from mpigraph.storage.contents import PartFiles, check_shared
from mpigraph.storage.format import index_dtype, shared_dataset_name
from mpigraph.store.edge_tables import Adjacency, TableWindow
from mpigraph.store.staging import parts_of_hosts

__all__ = ["SharedEdges", "last_begin"]


class SharedEdges:
    """The relations of a graph that share tables. A relation is named by its place among them.

    Attributes:
        dtype: of source ids.
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
        self._relations = relations
        self._hosts = hosts
        self._ends = np.array([config.schema.ends(r) for r in relations], np.int64).reshape(-1, 2)
        self._edges = np.array([hosts.edge_offsets[r] for r in relations], np.int64).reshape(-1, num_hosts + 1)
        self._nodes = np.array(hosts.node_offsets, np.int64)
        self.dtype = index_dtype(int(self._nodes[:, -1].max()))
        place, rows, sources = (np.empty(0, np.int64) for _ in range(3))
        with together(world.comm, f"loading graph {config.graph_name!r}"):
            if world.is_host:
                place, rows, sources = self._read(files, world.host_index)
        host_places, out_rows, degrees = self._out_degrees(place, sources)
        first = np.flatnonzero(_changes(place, rows))
        counts = np.zeros((2, len(relations), num_hosts), np.int64)
        if world.is_host:
            for table, places in zip(counts, (place[first], host_places), strict=True):
                table[:, world.host_index] = np.bincount(places, minlength=len(relations))
        with world.watch("loading a graph"):
            counts = sum_over_ranks(world.comm, counts)
        zeros = np.zeros((len(relations), 1), np.int64)
        self._rows_of, self._sources_of = (np.append(zeros, np.cumsum(table, axis=1), axis=1) for table in counts)
        local = index_dtype(int(np.diff(self._nodes, axis=1).max()))
        self._rows = TableWindow(service, list(self._rows_of), local)
        self._indptr = TableWindow(service, list(self._rows_of + np.arange(num_hosts + 1)), np.int64)
        self._indices = TableWindow(service, list(self._edges), self.dtype)
        self._sources = TableWindow(service, list(self._sources_of), local)
        self._degrees = TableWindow(service, list(self._sources_of), np.int64)
        if world.is_host:
            host = world.host_index
            in_relation = np.diff(self._edges, axis=1)[:, host]
            begins = np.append(0, np.cumsum(in_relation))
            self._rows.memory(host)[:] = rows[first]
            indptr = self._indptr.memory(host)
            indptr[np.arange(len(first)) + place[first]] = first - begins[place[first]]
            indptr[np.cumsum(counts[0, :, host]) + np.arange(len(relations))] = in_relation
            self._indices.memory(host)[:] = sources
            self._sources.memory(host)[:] = out_rows
            self._degrees.memory(host)[:] = degrees

    def windows(self) -> list[TableWindow]:
        """Return the windows."""
        return [self._rows, self._indptr, self._indices, self._sources, self._degrees]

    def adjacency(self, place: int, host: int) -> Adjacency:
        """Return the in-edges on a local host, as plain arrays."""
        return Adjacency(
            self._indptr.segment(place, host),
            self._indices.segment(place, host),
            int(self._nodes[self._ends[place, 1], host]),
            int(self._edges[place, host]),
            self._rows.segment(place, host),
        )

    def row_offsets(self, place: int) -> I64:
        """Return int64[hosts + 1], the rows of each host."""
        offsets: I64 = self._rows_of[place]
        return offsets

    def count_out_edges(self, place: int, host: int) -> int:
        """Return the number of edges out of a local host's nodes."""
        return int(self._degrees.segment(place, host).sum())

    def in_degrees(self, ids: I64, place: int) -> I64:
        """See :meth:`.Topology.in_degrees`."""
        ntype = int(self._ends[place, 1])
        owner = self._hosts.node_owner(ids, ntype)
        row, known = self._find(self._rows, self._rows_of, place, owner, ids - self._nodes[ntype, owner])
        degrees = np.zeros(len(ids), np.int64)
        row += owner[known]
        degrees[known] = self._indptr.gather(place, row + 1) - self._indptr.gather(place, row)
        return degrees

    def out_degrees(self, ids: I64, place: int) -> I64:
        """See :meth:`.Topology.out_degrees`."""
        ntype = int(self._ends[place, 0])
        owner = self._hosts.node_owner(ids, ntype)
        row, known = self._find(self._sources, self._sources_of, place, owner, ids - self._nodes[ntype, owner])
        degrees = np.zeros(len(ids), np.int64)
        degrees[known] = self._degrees.gather(place, row)
        return degrees

    def find_edges(self, eids: I64, place: int) -> tuple[I64, I64]:
        """See :meth:`.Topology.find_edges`."""
        owner = self._hosts.edge_owner(eids, self._relations[place])
        low, high = self._rows_of[place, owner], self._rows_of[place, owner + 1] - 1
        row = last_begin(self._indptr, place, low, high, owner, eids - self._edges[place, owner])
        destinations = self._rows.gather(place, row) + self._nodes[self._ends[place, 1], owner]
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
        first, last = self._nodes[self._ends[:, 1], host : host + 2].T
        for part in parts_of_hosts([host], len(self._world.hosts), config.num_parts):
            shard = files.open(part, "part_graph")
            destinations, indices = (shard.read(shared_dataset_name(field)) for field in ("destinations", "indices"))
            check_shared(config, part, destinations, indices)
            place = np.repeat(np.arange(len(self._ends)), np.diff(config.shared_begins[:, part]))
            of_part = np.array([offsets[part] for offsets in config.book.node_offsets])
            nodes = destinations + of_part[self._ends[place, 1]]
            own = (nodes >= first[place]) & (nodes < last[place])
            columns.append(np.stack([place, nodes - first[place], indices])[:, own])
        edges = np.concatenate(columns, axis=1)
        place, rows, sources = edges[:, np.argsort(edges[0], kind="stable")]
        held = np.bincount(place, minlength=len(self._ends))
        for bad in np.flatnonzero(held != np.diff(self._edges, axis=1)[:, host])[:1].tolist():
            key = config.schema.relation_key(self._relations[bad])
            raise ShardFormatError(f"{config.path}: edges of {key} contradict the numbers of edges of its parts")
        return place, rows, sources

    @collective("world.comm")
    def _out_degrees(self, place: I64, sources: I64) -> tuple[I64, I64, I64]:
        """Return the sources on this host that have out-edges: places, rows, out-degrees; by place and row."""
        world = self._world
        bases = np.append(0, np.cumsum(self._nodes[:, -1]))[:-1]
        firsts = (self._nodes[:, :-1] + bases[:, None]).reshape(-1)  # of each type and host, among all nodes
        nodes = sources + bases[self._ends[place, 0]]
        of_type = np.searchsorted(firsts, nodes, side="right") - 1
        ranks = world.hosts[of_type % len(world.hosts)]
        going = np.stack([place, nodes - firsts[of_type]], axis=1)[np.argsort(ranks, kind="stable")]
        with world.watch("loading a graph"):
            came, _ = exchange_rows(world.comm, going, np.bincount(ranks, minlength=world.size).astype(np.int64))
        came = came[np.lexsort((came[:, 1], came[:, 0]))]
        begin = np.flatnonzero(_changes(came[:, 0], came[:, 1]))
        return came[begin, 0], came[begin, 1], np.diff(np.append(begin, len(came)))


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
