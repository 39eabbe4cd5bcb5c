"""The topology of a partitioned graph in the hosts' memory, readable by every rank.

For each relation three tables, divided among the hosts like the nodes and edges themselves: ``indptr`` (a host's own
offsets, starting at 0, one more than it has destinations), ``indices`` (global source ids in CSC order) and
``out_degrees`` (of the relation's sources). Edge ids are positions: nothing else is needed to find an edge. All
relations use the same windows. Relations with few edges have smaller tables (``edge_tables.py``).
"""

import numpy as np

from mpigraph.arrays import I64
from mpigraph.collective import collective
from mpigraph.errors import MPIGraphError, ShardFormatError
from mpigraph.kernels.csr import hash_of_degrees, hash_of_sources
from mpigraph.metadata.book import RangeBook, check_ids
from mpigraph.mpi.agree import everywhere, together
from mpigraph.rows.segments import check_shared_memory
from mpigraph.rows.service import RowService
from mpigraph.storage.contents import PartFiles, StoredRows, check_sources, overlaps, read_rows
from mpigraph.storage.format import index_dtype, relation_dataset_name
from mpigraph.storage.part_config import PartConfig
from mpigraph.store.edge_tables import Adjacency, SharedEdges, TableWindow, last_begin
from mpigraph.store.host_ranges import host_memory


class Topology:
    """All relations of one graph, spread over the hosts.

    Attributes:
        config: the partitioned graph on disk; ``config.book`` has the parts.
        name: of the graph.
        hosts: the book whose owners are the hosts.
        shared: the relations that share tables, if there are any.
        place_of_shared: by relation id its place among them.
    """

    shared: SharedEdges | None = None

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
        self.place_of_shared = config.place_of_shared
        nodes = np.array(hosts.node_offsets)
        own = np.zeros((len(config.schema.relations), 1), np.int64)  # 1: tables of their own, which others have not
        own[config.own] = 1
        if config.own:
            src, dst = config.schema.all_ends.T
            self._indptr = TableWindow(service, own * (nodes[dst] + np.arange(nodes.shape[1])), np.int64)
            self._out_degrees = TableWindow(service, own * nodes[src], np.int64)
        dtypes = {r: self.index_dtype(r) for r in config.own}
        self._indices = {}
        for dtype in sorted(set(dtypes.values())):
            having = np.zeros_like(own)
            having[[r for r, of in dtypes.items() if of == dtype]] = 1
            self._indices[dtype] = TableWindow(service, having * hosts.edge_table, dtype)
        try:
            if config.shared:
                self.shared = SharedEdges(service, files, hosts)
            with together(world.comm, f"loading graph {config.graph_name!r}"):
                for relation in config.own:
                    if world.is_host:
                        self._load(relation, files)
            self._check_degrees()
        except MPIGraphError:  # on every rank
            self.close()
            raise
        self._sync()

    def index_dtype(self, relation: int) -> np.dtype[np.generic]:
        """Return the dtype of a relation's source ids in memory and on the wire."""
        if self.shared and relation in self.place_of_shared:
            return self.shared.dtype
        src = self.hosts.schema.ends(relation)[0]
        return index_dtype(self.hosts.num_nodes(src))

    def row_offsets(self, relation: int) -> I64:
        """Return int64[H + 1], the rows of each host: of its :meth:`adjacency`."""
        if self.shared and relation in self.place_of_shared:
            return self.shared.row_offsets(self.place_of_shared[relation])
        return self.hosts.node_offsets[self.hosts.schema.ends(relation)[1]]

    def _indices_of(self, relation: int) -> TableWindow:
        return self._indices[self.index_dtype(relation)]

    def _load(self, relation: int, files: PartFiles) -> None:
        """Fill this host's rows of one relation."""
        book = self.config.book
        host = self.world.host_index
        src, dst = self.config.schema.ends(relation)
        key = self.config.schema.relation_key(relation)
        first_edge = self.hosts.edge_range(host, relation)[0]
        for field, tables, offsets, begin in (
            ("indices", self._indices_of(relation), book.edge_offsets[relation], first_edge),
            ("out_degrees", self._out_degrees, book.node_offsets[src], self.hosts.node_range(host, src)[0]),
        ):
            name = relation_dataset_name(key, field)
            read_rows(files, StoredRows.alone("part_graph", name, offsets), begin, tables.segment(relation, host))
        indptr = self._indptr.segment(relation, host)
        at = 0
        edges = 0
        for part, first, last in overlaps(book.node_offsets[dst], *self.hosts.node_range(host, dst)):
            begins = files.read_indptr(relation, part, first, last)
            indptr[at : at + len(begins)] = begins - begins[0] + edges
            at += last - first
            edges = int(indptr[at])
        indices = self._indices_of(relation).segment(relation, host)
        if edges != len(indices):
            raise ShardFormatError(f"{self.config.path}: {len(indices)} edges of {key} have {edges} destinations")
        check_sources(self.config, relation, first_edge, indptr, indices)

    @collective("world.comm")
    def _check_degrees(self) -> None:
        """Compare the out-degrees of all hosts with the edges of all hosts.

        Raises ShardFormatError if they are not of one graph; on every rank.
        """
        schema = self.config.schema
        own = np.zeros(len(schema.relations), np.uint64)
        if self.world.is_host:
            host = self.world.host_index
            for relation in self.config.own:  # of others out-degrees were counted, not read
                first = self.hosts.node_range(host, schema.ends(relation)[0])[0]
                degrees = hash_of_degrees(self._out_degrees.segment(relation, host), first)
                sources = hash_of_sources(self._indices_of(relation).segment(relation, host))
                own[relation] = (int(degrees) - int(sources)) % 2**64
        total = np.empty_like(own)
        with self.world.watch("loading a graph"):
            self.world.comm.Allreduce(own, total)
        for relation in np.flatnonzero(total).tolist():
            path, key = self.config.path, schema.relation_key(relation)
            raise everywhere(
                ShardFormatError(f"{path}: the out-degrees of {key} in its parts are not those of their edges")
            )

    def adjacency(self, relation: int, host: int) -> Adjacency:
        """Return the in-edges on a local host, as plain arrays."""
        if self.shared and relation in self.place_of_shared:
            return self.shared.adjacency(self.place_of_shared[relation], host)
        dst = self.config.schema.ends(relation)[1]
        return Adjacency(
            self._indptr.segment(relation, host),
            self._indices_of(relation).segment(relation, host),
            self.hosts.node_range(host, dst)[0],
            self.hosts.edge_range(host, relation)[0],
        )

    def in_degrees(self, ids: I64, relation: int) -> I64:
        """Return int64[n], the in-degrees of destinations ``ids``, local or remote. One-sided.

        Raises OutOfRangeError if an id does not exist.
        """
        if self.shared and relation in self.place_of_shared:
            return self.shared.in_degrees(ids, self.place_of_shared[relation])
        dst = self.config.schema.ends(relation)[1]
        rows = ids + self.hosts.node_owner(ids, dst)
        degrees: I64 = self._indptr.gather(relation, rows + 1) - self._indptr.gather(relation, rows)
        return degrees

    def out_degrees(self, ids: I64, relation: int) -> I64:
        """Return int64[n], the out-degrees of sources ``ids``, local or remote. One-sided.

        Raises OutOfRangeError if an id does not exist.
        """
        src = self.config.schema.ends(relation)[0]
        check_ids(ids, self.config.book.num_nodes(src), f"node id of type {self.config.schema.ntypes[src]!r}")
        if self.shared and relation in self.place_of_shared:
            return self.shared.out_degrees(ids, self.place_of_shared[relation])
        return self._out_degrees.gather(relation, ids)

    def find_edges(self, eids: I64, relation: int) -> tuple[I64, I64]:
        """Return int64[n] sources and int64[n] destinations of edges, local or remote. One-sided.

        A binary search in the hosts' ``indptr`` gives the destinations, all edges in step, so that a batch costs about
        log2(nodes per host) reads. Raises OutOfRangeError if an edge does not exist.
        """
        if self.shared and relation in self.place_of_shared:
            return self.shared.find_edges(eids, self.place_of_shared[relation])
        owner = self.hosts.edge_owner(eids, relation)
        src = self._indices_of(relation).gather(relation, eids).astype(np.int64)
        nodes = self.hosts.node_offsets[self.config.schema.ends(relation)[1]]
        local = eids - self.hosts.edge_offsets[relation][owner]
        return src, last_begin(self._indptr, relation, nodes[owner], nodes[owner + 1] - 1, owner, local)

    def _sync(self) -> None:
        """Make the stores of the hosts visible to all loads."""
        for tables in self._all():
            tables.sync()
        with self.world.watch("loading a graph"):
            self.world.comm.Barrier()
        for tables in self._all():
            tables.sync()

    def _all(self) -> list[TableWindow]:
        shared = [] if self.shared is None else self.shared.windows()
        own = [self._indptr, self._out_degrees, *self._indices.values()] if self.config.own else []
        return own + shared

    def retire(self) -> None:
        """Refuse reads from now on, and wait for those of other threads; while hosts answer."""
        for tables in self._all():
            tables.retire()

    @collective("world.comm")
    def close(self) -> None:
        """Free the memory."""
        for tables in self._all():
            tables.close()
