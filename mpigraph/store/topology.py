"""The topology of a partitioned graph in the hosts' memory, readable by every rank.

All relations lie in the same windows, relation after relation on each host, as one table of each:

* *rows*, the destinations: ``indptr`` has the first edge of each row, counted from the host's first, and the end;
* ``indices``: global source ids, by row and source;
* ``degrees``: out-degrees of the relation's sources.

A relation has a row for each destination of the host. One of few edges is *listed*: it has rows for the destinations,
and the sources, that have edges, and lists which these are. Edge ids are positions: nothing else is needed to find one.
"""

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.errors import MPIGraphError, ShardFormatError
from mpigraph.metadata.book import RangeBook
from mpigraph.mpi.agree import together
from mpigraph.mpi.messages import sum_over_ranks
from mpigraph.rows.segments import check_shared_memory
from mpigraph.rows.service import RowService
from mpigraph.rows.window import RowWindow, copy_to_nodes
from mpigraph.storage.contents import PartFiles, StoredRows, check_sources, overlaps, read_rows
from mpigraph.storage.format import index_dtype, relation_dataset_name
from mpigraph.storage.part_config import PartConfig
from mpigraph.store.edge_tables import Adjacency, ListedEdges, ListedRows
from mpigraph.store.host_ranges import host_memory


class Topology:
    """All relations of one graph, spread over the hosts.

    Attributes:
        config: the partitioned graph on disk; ``config.book`` has the parts.
        name: of the graph.
        hosts: the book whose owners are the hosts.
        dtype: of source ids in memory and on the wire.
        listed: bool[relations], true for those that list the destinations that have edges.
        rows: int64[relations, H + 1], the rows of each host.
        edges: the sources of all edges; numbers of edges are those among its rows, by host, relation and id.
        everywhere: each node has the in-edges of all hosts.
    """

    @collective("world.comm")
    def __init__(self, service: RowService, files: PartFiles, hosts: RangeBook, kept: PartConfig) -> None:
        """Allocate the windows and read this host's rows from the shards.

        Args:
            service: the job's transports and windows.
            files: of the partitioned graph.
            hosts: the book whose owners are the hosts.
            kept: the graph with the features that will lie in memory, and the dtypes that they will have there.

        Raises:
            ShardFormatError: a shard is missing, damaged or contradicts itself on some rank; raised on every rank.
            SharedMemoryError: a node cannot hold its hosts' topology and features; on every rank.
        """
        self.config = config = files.config
        self.name = config.graph_name
        self.world = world = service.world
        self.hosts = hosts
        check_shared_memory(world, host_memory(kept, hosts), f"graph {config.graph_name!r}")
        self._nodes = np.array(hosts.node_offsets)
        self.dtype = index_dtype(int(self._nodes[:, -1].max()))
        self.listed: Mask = np.zeros(len(config.schema.relations), np.bool_)
        self.listed[list(config.shared)] = True
        self.everywhere = world.all_local
        self._windows: list[RowWindow] = []
        try:
            with together(world.comm, f"loading graph {config.graph_name!r}"):
                listed = ListedEdges.nothing()
                if world.is_host and config.shared:
                    listed = ListedEdges.read(files, hosts, world.host_index)
            self._allocate(service, listed)
            with together(world.comm, f"loading graph {config.graph_name!r}"):
                for relation in config.own:
                    if world.is_host:
                        self._load(relation, files)
        except MPIGraphError:  # on every rank
            self.close()
            raise
        service.segments.sync()  # the stores of the hosts are there for all loads
        with world.watch("loading a graph"):
            world.comm.Barrier()
        service.segments.sync()

    @collective("world.comm")
    def _allocate(self, service: RowService, listed: ListedEdges) -> None:
        """Make the windows, and fill in the rows of listed relations."""
        world, shared = self.world, self.config.shared
        src, dst = self.config.schema.all_ends.T
        num_relations, num_hosts = len(self.listed), len(world.hosts)
        begins = listed.begins()
        of_rows, nodes = listed.relation[begins], listed.rows[begins]
        types = dst[of_rows]
        order = np.lexsort((of_rows, nodes, types))
        of_sources, sources, degrees = listed.count_sources(world, self.hosts) if shared else listed.nothing()
        counts = np.zeros((3, max(num_relations, len(self._nodes)), num_hosts), np.int64)
        if world.is_host:
            for table, keys in zip(counts, (of_rows, of_sources, types), strict=True):
                table[:, world.host_index] = np.bincount(keys, minlength=len(table))
        if shared:
            with world.watch("loading a graph"):
                counts = sum_over_ranks(world.comm, counts)
        ends = np.pad(np.cumsum(counts, axis=2), ((0, 0), (0, 0), (1, 0)))
        few, of_types = ends[:2, :num_relations], ends[2, : len(self._nodes)]
        self.rows, self._sources_of = np.where(self.listed[:, None], few, self._nodes[[dst, src]])
        local = index_dtype(int(np.diff(self._nodes, axis=1).max(initial=0)))
        of_host = index_dtype(int(counts[0].sum(axis=0).max(initial=0)))

        self._indptr = self._window(service, self.rows + np.arange(num_hosts + 1), np.int64)
        self.edges = self._window(service, self.hosts.edge_table, self.dtype)
        self._degrees = self._window(service, self._sources_of, np.int64)
        # of listed relations: the destination of each row, the sources, and the rows by type and destination
        self._destinations, self._sources = (self._window(service, of_hosts, local) for of_hosts in few)
        self._order = self._window(service, of_types, of_host)
        if not world.is_host or not shared:
            return
        host = world.host_index
        for of_all, numbers in ((self._destinations, nodes), (self._sources, sources), (self._order, order)):
            of_all.memory(host)[:] = numbers
        first_edges, end_edges = (
            np.searchsorted(listed.relation, shared),
            np.searchsorted(listed.relation, shared, "right"),
        )
        place = np.searchsorted(shared, of_rows)
        indptr = np.empty(len(begins) + len(shared), np.int64)  # each relation has an end behind its rows
        indptr[np.arange(len(begins)) + place] = begins - first_edges[place]
        indptr[np.searchsorted(of_rows, shared, "right") + np.arange(len(shared))] = end_edges - first_edges
        for of_each, numbers in ((self._indptr, indptr), (self.edges, listed.sources), (self._degrees, degrees)):
            at = 0
            for relation in shared:
                rows = of_each.segment(relation, host)
                rows[:] = numbers[at : at + len(rows)]
                at += len(rows)

    @collective("world.comm")
    def _window(self, service: RowService, tables: I64, dtype: npt.DTypeLike) -> RowWindow:
        self._windows.append(RowWindow(service, tables, (), dtype, f"the topology of graph {self.name!r}"))
        return self._windows[-1]

    def _load(self, relation: int, files: PartFiles) -> None:
        """Fill this host's rows of one relation with a row for each destination."""
        book = self.config.book
        host = self.world.host_index
        src, dst = self.config.schema.ends(relation)
        key = self.config.schema.relation_key(relation)
        first_edge = self.hosts.edge_range(host, relation)[0]
        for field, tables, offsets, ends in (
            ("indices", self.edges, book.edge_offsets[relation], self.hosts.edge_range(host, relation)),
            ("out_degrees", self._degrees, book.node_offsets[src], self.hosts.node_range(host, src)),
        ):
            stored = StoredRows.alone("part_graph", relation_dataset_name(key, field), offsets)
            read_rows(files, stored, [ends], tables.segment(relation, host))
        indptr = self._indptr.segment(relation, host)
        at = 0
        edges = 0
        for part, first, last in overlaps(book.node_offsets[dst], *self.hosts.node_range(host, dst)):
            begins = files.read_indptr(relation, part, first, last)
            indptr[at : at + len(begins)] = begins - begins[0] + edges
            at += last - first
            edges = int(indptr[at])
        indices = self.edges.segment(relation, host)
        if edges != len(indices):
            raise ShardFormatError(f"{self.config.path}: {len(indices)} edges of {key} have {edges} destinations")
        check_sources(self.config, relation, first_edge, indptr, indices)

    def _in_edges(self) -> tuple[RowWindow, ...]:
        return self._indptr, self.edges, self._destinations, self._order

    def bytes_elsewhere(self) -> I64:
        """Return int64[nodes], the bytes of in-edges that other nodes hold."""
        return sum((window.bytes_elsewhere() for window in self._in_edges()), np.zeros(self.world.num_nodes, np.int64))

    @collective("world.comm")
    def copy_to_nodes(self) -> None:
        """Give each node the in-edges of all hosts: each host sends its own, which it has read and checked.

        Raises:
            SharedMemoryError: a node's shared memory cannot hold them; on every rank.
        """
        copy_to_nodes(self._in_edges(), f"copying the topology of graph {self.name!r} to every node")
        self.everywhere = True

    def adjacency(self, relation: int, host: int) -> Adjacency:
        """Return the in-edges on a host whose memory this rank can load, as plain arrays."""
        return Adjacency(
            self._indptr.segment(relation, host),
            self.edges.segment(relation, host),
            int(self._nodes[self.config.schema.ends(relation)[1], host]),
            self.hosts.edge_range(host, relation)[0],
            self._destinations.segment(relation, host) if self.listed[relation] else None,
        )

    def num_edges(self, host: int) -> int:
        """Return the number of edges of a host."""
        return int(self.edges.offsets[host + 1] - self.edges.offsets[host])

    def id_shifts(self, relations: I64, host: int | I64) -> I64:
        """Return int64[n], by how much ids of edges exceed their numbers among those of a host, or of each one's."""
        shifts: I64 = self.hosts.edge_table[relations, host] - self.edges.starts[relations, host]
        return shifts

    def listed_rows(self, ntype: int, host: int) -> ListedRows:
        """Return the rows of listed relations into a node type on a local host."""
        return ListedRows(
            int(self._nodes[ntype, host]),
            self._order.segment(ntype, host),
            self._destinations.memory(host),
            self._destinations.begins(host),
            self.edges.begins(host),
            self._indptr.begins(host),
            self._indptr.memory(host),
        )

    def in_degrees(self, ids: I64, relation: int) -> I64:
        """Return int64[n], the in-degrees of destinations ``ids``, local or remote. One-sided.

        Raises OutOfRangeError if an id does not exist.
        """
        dst = self.config.schema.ends(relation)[1]
        owner, rows, known = self._find(self._destinations, self.rows, relation, dst, ids)
        degrees = np.zeros(len(ids), np.int64)
        degrees[known] = _read(self._indptr, relation, rows + owner + 1) - _read(self._indptr, relation, rows + owner)
        return degrees

    def out_degrees(self, ids: I64, relation: int) -> I64:
        """Return int64[n], the out-degrees of sources ``ids``, local or remote. One-sided.

        Raises OutOfRangeError if an id does not exist.
        """
        src = self.config.schema.ends(relation)[0]
        _, rows, known = self._find(self._sources, self._sources_of, relation, src, ids)
        degrees = np.zeros(len(ids), np.int64)
        degrees[known] = _read(self._degrees, relation, rows)
        return degrees

    def _find(
        self, listed: RowWindow, offsets: I64, relation: int, ntype: int, ids: I64
    ) -> tuple[Array, I64, Array | slice]:
        """Find nodes (int64[n], global ids) among the rows of a relation, whose hosts' ranges are ``offsets``.

        Of a listed relation by binary search in ``listed``, all nodes in step.

        Returns:
            The owners and rows of the nodes that have a row; and which these are, as an index.
        """
        owner = self.hosts.node_owner(ids, ntype)
        if not self.listed[relation]:
            return owner, ids, slice(None)
        wanted = ids - self._nodes[ntype, owner]
        low, end = offsets[relation, owner], offsets[relation, owner + 1]
        high = end.copy()
        while (open_ := np.flatnonzero(low < high)).size:
            middle = (low[open_] + high[open_]) // 2
            below = _read(listed, relation, middle) < wanted[open_]
            low[open_[below]] = middle[below] + 1
            high[open_[~below]] = middle[~below]
        known = low < end
        known[known] = _read(listed, relation, low[known]) == wanted[known]
        return owner[known], low[known], known

    def find_edges(self, eids: I64, relation: int) -> tuple[I64, I64]:
        """Return int64[n] sources and int64[n] destinations of edges, local or remote. One-sided.

        A binary search in the hosts' ``indptr`` gives the destinations, all edges in step, so that a batch costs about
        log2(rows per host) reads. Raises OutOfRangeError if an edge does not exist.
        """
        owner = self.hosts.edge_owner(eids, relation)
        local = eids - self.hosts.edge_offsets[relation][owner]
        low, high = self.rows[relation, owner], self.rows[relation, owner + 1] - 1
        while (low < high).any():  # the last row whose first edge is not behind the edge
            middle = (low + high + 1) // 2
            begins = _read(self._indptr, relation, middle + owner)
            low = np.where(begins <= local, middle, low)
            high = np.where(begins <= local, high, middle - 1)
        if self.listed[relation]:
            low = _read(self._destinations, relation, low) + self._nodes[self.config.schema.ends(relation)[1], owner]
        return _read(self.edges, relation, eids).astype(np.int64), low.astype(np.int64)

    def retire(self) -> None:
        """Refuse reads from now on, and wait for those of other threads; while hosts answer."""
        for window in self._windows:
            window.retire()

    @collective("world.comm")
    def close(self) -> None:
        """Free the memory."""
        for window in self._windows:
            window.close()


def _read(window: RowWindow, table: int, ids: I64) -> Array:
    """Read rows of a table in the order of ``ids`` (int64[n], all valid). One-sided."""
    return window.gather(window.numbers(table, ids))
