"""Times of edges for temporal sampling: each host's edges again, sorted by time within each destination.

The time of an edge is its own, or that of its source. Whoever owns a destination does not hold its neighbours' times:
they are fetched once, by all ranks together, and kept per edge. It costs twelve bytes an edge, its time and its place
in the row before it was sorted. Times that are written later count from the next collective call of the trainers on.
"""

import numpy as np

from mpigraph.arrays import I32, I64
from mpigraph.kernels.temporal import sort_rows
from mpigraph.mpi.agree import together
from mpigraph.mpi.alltoall import exchange_rows
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.rows.window import RowWindow
from mpigraph.store.topology import Topology

__all__ = ["EdgeTimes"]


class EdgeTimes:
    """The times of one relation's edges, as samplers read them.

    Attributes:
        tensor: the times, int64: of the relation's edges, or of its sources.
        relation: relation id.

    Collective on ``world.comm``: construction, :meth:`prepare` and :meth:`close`.
    """

    def __init__(self, topology: Topology, tensor: RowTensor, relation: int) -> None:
        self.tensor = tensor
        self.relation = relation
        self._topology = topology
        self._version = -1  # of the times that were sorted
        service = tensor.window.service
        offsets = topology.hosts.edge_offsets[relation]
        self._times = RowWindow(service, offsets, (), np.int64)
        self._order = RowWindow(service, offsets, (), np.int32)

    def times(self, host: int) -> I64:
        """int64[edges of near ``host``], ascending within each destination."""
        return self._times.memory(host)

    def order(self, host: int) -> I32:
        """int32[edges of near ``host``], the place of each among its destination's edges."""
        return self._order.memory(host)

    @property
    def stale(self) -> bool:
        """Whether times were written since they were sorted; the same on every rank."""
        return self._version != self.tensor.version

    def prepare(self) -> None:
        """Fetch and sort the times, or do it anew. Collective on ``world.comm``."""
        self._version = self.tensor.version
        world = self.tensor.window.world
        with world.watch(f"sorting edges by {self.tensor.name!r}"):
            times = self._of_sources() if self.tensor.policy.is_node else self._of_edges()
        with together(world.comm, f"sorting edges by {self.tensor.name!r}"):
            if world.is_host:
                host = world.host_index
                sort_rows(
                    self._topology.adjacency(self.relation, host).indptr, times, self.times(host), self.order(host)
                )
        for window in (self._times, self._order):
            window.sync()
        with world.watch(f"sorting edges by {self.tensor.name!r}"):
            world.comm.Barrier()
        for window in (self._times, self._order):
            window.sync()

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
        self._times.close()
        self._order.close()
