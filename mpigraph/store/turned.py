"""Out-edges: the relations of a graph turned around, and edge weights in that order.

Parts hold the in-edges of their nodes. To follow edges forward, the hosts make a second copy of a relation, in which
each holds the out-edges of its nodes, sorted by edge id. The copy has the form of a graph with the relation turned, so
that requests, strategies and answers are the same for both. A relation is turned once, when it is first needed.
"""

from itertools import chain
from typing import cast

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import MPIGraphError
from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import Schema
from mpigraph.mpi.messages import NotOpenHere, exchange_rows, sum_over_ranks
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.rows.service import RowService
from mpigraph.rows.window import RowWindow
from mpigraph.storage.format import index_dtype
from mpigraph.store.derived import EdgeWeights, WeightTables, fetch_together
from mpigraph.store.edge_tables import Adjacency
from mpigraph.store.topology import Topology


class TurnedTopology(Topology):
    """The out-edges of a graph's nodes: relation r has the edges of the graph's relation r, from their ends.

    Edges have ids of their own, by source and then by their id in the graph. A turned relation takes 8 to 16 bytes an
    edge, and 8 bytes a source.

    Attributes:
        number: the number of the graph of out-edges in requests.
    """

    @collective("world.comm")
    def __init__(self, service: RowService, topology: Topology, number: int) -> None:
        """Turn no relation yet."""
        self.number = number
        self.name = topology.name
        self.world = topology.world
        self._service = service
        self._forward = topology
        self._windows: dict[int, tuple[RowWindow, RowWindow, RowWindow]] = {}
        schema, nodes = topology.hosts.schema, topology.hosts.node_offsets
        counts = np.zeros((len(schema.relations), len(self.world.hosts)), np.int64)
        if self.world.is_host:
            for relation in range(len(counts)):
                counts[relation, self.world.host_index] = topology.count_out_edges(relation, self.world.host_index)
        with self.world.watch("counting out-edges"):
            counts = sum_over_ranks(self.world.comm, counts)
        turned = Schema(schema.ntypes, tuple((dst, name, src) for src, name, dst in schema.relations))
        self.hosts = RangeBook(turned, nodes, tuple(np.append(0, np.cumsum(of_hosts)) for of_hosts in counts))

    def is_turned(self, relation: int) -> bool:
        """Return whether a relation was turned; the same on every rank."""
        return relation in self._windows

    @collective("world.comm")
    def turn(self, relation: int) -> None:
        """Turn a relation, if that was not done.

        Raises SharedMemoryError if a node's shared memory cannot hold the out-edges; on every rank.
        """
        if self.is_turned(relation):
            return
        world, nodes = self.world, self.hosts.node_offsets[self.hosts.schema.ends(relation)[1]]
        edges = self.hosts.edge_offsets[relation]
        what = f"the out-edges of relation {self._forward.hosts.schema.relations[relation]}"
        doing = f"making {what}"
        columns = (
            (nodes + np.arange(len(nodes)), np.dtype(np.int64)),
            (edges, self.index_dtype(relation)),
            (edges, index_dtype(int(edges[-1]))),
        )
        windows: list[RowWindow] = []
        try:
            for offsets, dtype in columns:
                windows.append(RowWindow(self._service, offsets, (), dtype, what))
        except MPIGraphError:  # on every rank
            for window in windows:
                window.close()
            raise
        indptr, ends, eids = windows
        with world.watch(doing):
            rows = self._out_edges(relation)
        if world.is_host:
            host = world.host_index
            degrees = np.bincount(rows[:, 0] - nodes[host], minlength=int(nodes[host + 1] - nodes[host]))
            np.cumsum(degrees, out=indptr.memory(host)[1:])
            ends.memory(host)[:] = rows[:, 1]
            eids.memory(host)[:] = rows[:, 2]
        for window in windows:
            window.sync()
        world.barrier(doing)
        for window in windows:
            window.sync()
        self._windows[relation] = indptr, ends, eids

    @collective("world.comm")
    def _out_edges(self, relation: int) -> Array:
        """Return the out-edges of this host's nodes, [n, 3]: source, destination and id, by source, then id."""
        world, hosts = self.world, self._forward.hosts
        src_type, dst_type = hosts.schema.ends(relation)
        largest = max(hosts.num_nodes(src_type), hosts.num_nodes(dst_type), hosts.num_edges(relation))
        rows = np.empty((0, 3), index_dtype(largest))
        counts = np.zeros(world.size, np.int64)
        if world.is_host:
            edges = self._forward.adjacency(relation, world.host_index)
            owners = hosts.node_owner(edges.indices, src_type)
            np.add.at(counts, world.hosts, np.bincount(owners, minlength=len(world.hosts)))
            order = np.argsort(world.hosts[owners], kind="stable")
            rows = np.empty((len(order), 3), rows.dtype)
            rows[:, 0] = edges.indices[order]
            rows[:, 1] = edges.destinations()[order]
            rows[:, 2] = edges.first_edge + order
        received, _ = exchange_rows(world.comm, rows, counts)
        return received[np.lexsort((received[:, 2], received[:, 0]))]

    def adjacency(self, relation: int, host: int) -> Adjacency:
        """Return the out-edges on a local host, as in-edges of the turned relation.

        Raises NotOpenHere if the relation was not turned.
        """
        if not self.is_turned(relation):
            raise NotOpenHere(f"relation {relation} was not turned on rank {self.world.rank}")
        indptr, ends, _ = self._windows[relation]
        nodes = self.hosts.node_range(host, self.hosts.schema.ends(relation)[1])[0]
        return Adjacency(indptr.memory(host), ends.memory(host), nodes, self.hosts.edge_range(host, relation)[0])

    def eids(self, relation: int, edges: I64) -> I64:
        """Return int64[n], the ids in the graph of edges of a turned relation, local or remote. One-sided."""
        ids: I64 = self._windows[relation][2].gather(edges).astype(np.int64)
        return ids

    def local_eids(self, relation: int, host: int) -> Array:
        """Return the ids in the graph of all edges on a local host."""
        return self._windows[relation][2].memory(host)

    def edge_id(self, edge: int, relation: int) -> int:
        """Return the id by which the user knows an edge."""
        return int(self.eids(relation, np.array([edge]))[0])

    def retire(self) -> None:
        """See :meth:`.Topology.retire`."""
        for window in chain(*self._windows.values()):
            window.retire()

    @collective("world.comm")
    def close(self) -> None:
        """Free the memory."""
        for window in chain(*self._windows.values()):
            window.close()


class OutTables(WeightTables):
    """The weights of a relation's out-edges, and tables to draw by them."""

    def values(self, host: int) -> Array:
        """[out-edges of local ``host``], the weights."""
        return self._windows[2].memory(host)


class OutWeights(EdgeWeights):
    """The weights of one relation's edges in the order of its out-edges: copies, and their tables.

    The owner of a source does not hold the weights of its out-edges: all ranks fetch them together, once a version.
    """

    doing = "preparing weights of out-edges"

    def __init__(self, topology: Topology, tensor: RowTensor) -> None:
        assert isinstance(topology.turned, TurnedTopology)
        super().__init__(topology.turned, tensor)
        self._turned = topology.turned
        edges = self._turned.hosts.edge_offsets[tensor.policy.type_id]
        self._columns = (*self._columns, (edges, tensor.window.dtype))
        self._copies: Array = np.empty(0, tensor.window.dtype)

    @classmethod
    def unprepared(cls, topology: Topology, tensor: RowTensor, *numbers: int) -> "OutWeights":
        """Raise NotOpenHere: the weights must be copied before edges are drawn by them."""
        rank = tensor.window.world.rank
        raise NotOpenHere(f"weights {tensor.name!r} were not copied to out-edges on rank {rank}")

    def values(self, host: int) -> Array:
        """[out-edges of local ``host``], the weights."""
        return cast(OutTables, self.tables).values(host)

    @collective("world.comm")
    def prepare(self) -> None:
        """See :class:`.VersionedTables`."""
        world, relation = self.tensor.window.world, self.tensor.policy.type_id
        edges = np.empty(0, np.int64)
        if world.is_host:
            edges = self._turned.local_eids(relation, world.host_index).astype(np.int64)
        with world.watch(f"{self.doing} {self.tensor.name!r}"):
            self._copies = fetch_together(self.tensor.window, edges)
        super().prepare()
        self._copies = np.empty(0, self._copies.dtype)  # a slice would keep them

    def _access(self, *windows: RowWindow) -> OutTables:
        return OutTables(self._dtype, *windows)

    def _fill(self, tables: WeightTables, host: int) -> None:
        values = cast(OutTables, tables).values(host)
        values[:] = self._copies
        self._fill_from(values, tables, host)
