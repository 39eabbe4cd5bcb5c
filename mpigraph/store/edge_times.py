"""Times of edges for temporal sampling: each host's edges again, sorted by time within each destination.

The time of an edge is its own, or that of its source. Whoever owns a destination does not hold its neighbours' times:
they are fetched once, by all ranks together, and kept per edge. It costs twelve bytes an edge, its time and its place
in the row before it was sorted. Times that are written later count from the next collective call of the trainers on:
the edges are then sorted anew in other memory, since a loader's thread may be drawing from the old one, and a row that
is sorted by half would show it edges that are too new. See :class:`.Renewed`.
"""

import numpy as np

from mpigraph.arrays import I32, I64
from mpigraph.kernels.temporal import sort_rows
from mpigraph.mpi.alltoall import exchange_rows
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.rows.window import RowWindow
from mpigraph.store.renewed import Renewed
from mpigraph.store.topology import Topology

__all__ = ["EdgeTimes", "SortedEdges"]


class SortedEdges:
    """A relation's edges by destination and time, which nobody changes. Who draws from them holds this object."""

    def __init__(self, times: RowWindow, order: RowWindow) -> None:
        """Give access to two windows of edges."""
        self._times = times
        self._order = order

    def times(self, host: int) -> I64:
        """int64[edges of near ``host``], ascending within each destination."""
        return self._times.memory(host)

    def order(self, host: int) -> I32:
        """int32[edges of near ``host``], the place of each among its destination's edges."""
        return self._order.memory(host)


class EdgeTimes:
    """The times of one relation's edges, as samplers read them.

    Attributes:
        tensor: the times, int64: of the relation's edges, or of its sources.
        relation: relation id.

    Collective on ``world.comm``: construction, :meth:`prepare` and :meth:`close`.
    """

    def __init__(self, topology: Topology, tensor: RowTensor, relation: int) -> None:
        """Fetch and sort the times."""
        self.tensor = tensor
        self.relation = relation
        self._topology = topology
        offsets = topology.hosts.edge_offsets[relation]
        columns = ((offsets, np.int64), (offsets, np.int32))
        self._sorted = Renewed(tensor.window.service, columns, SortedEdges)
        self.prepare()

    @property
    def edges(self) -> SortedEdges:
        """The edges, sorted by the times that count now."""
        assert self._sorted.tables is not None
        return self._sorted.tables

    @property
    def stale(self) -> bool:
        """Whether times were written since they were sorted; the same on every rank."""
        return self._version != self.tensor.version

    def prepare(self) -> None:
        """Sort the edges anew.

        Raises:
            SharedMemoryError: a node's shared memory cannot hold them twice; on every rank. The old ones stay.

        Collective on ``world.comm``.
        """
        version = self.tensor.version
        doing = f"sorting edges by {self.tensor.name!r}"
        with self.tensor.window.world.watch(doing):
            times = self._of_sources() if self.tensor.policy.is_node else self._of_edges()

        def fill(edges: SortedEdges, host: int) -> None:
            indptr = self._topology.adjacency(self.relation, host).indptr
            sort_rows(indptr, times, edges.times(host), edges.order(host))

        self._sorted.make(doing, fill)
        self._version = version  # of the times that were sorted

    def _of_edges(self) -> I64:
        """int64[edges of this host]: their times."""
        world = self.tensor.window.world
        return self.tensor.window.memory(world.host_index) if world.is_host else np.empty(0, np.int64)

    def _of_sources(self) -> I64:
        """int64[edges of this host]: the times of their sources, each asked of its host once.

        Collective on ``world.comm``.
        """
        world, window = self.tensor.window.world, self.tensor.window
        sources = np.empty(0, np.int64)
        if world.is_host:
            sources = self._topology.adjacency(self.relation, world.host_index).indices.astype(np.int64)
        wanted, place = np.unique(sources, return_inverse=True)
        counts = np.zeros(world.size, np.int64)
        np.add.at(counts, world.hosts[np.searchsorted(window.offsets, wanted, side="right") - 1], 1)
        asked, coming = exchange_rows(world.comm, wanted[:, None], counts)
        known = np.empty((0, 1), np.int64)
        if world.is_host:
            host = world.host_index
            known = np.ascontiguousarray(window.memory(host)[asked[:, 0] - window.offsets[host]])[:, None]
        answers, _ = exchange_rows(world.comm, known, coming)
        times: I64 = answers[:, 0][place]
        return times

    def close(self) -> None:
        """Free the memory. Collective on ``world.comm``."""
        self._sorted.close()
