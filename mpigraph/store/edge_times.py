"""Times of edges for temporal sampling: each host's edges again, sorted by time within each destination.

The time of an edge is its own, or that of its source. Whoever owns a destination does not hold its neighbours' times:
they are fetched once, by all ranks together, and kept per edge. It costs twelve bytes an edge, its time and its place
in the row before it was sorted. Times that are written later count from the next collective call of the trainers on:
the edges are then sorted anew in other memory, since a loader's thread may be drawing from the old one, and a row that
is sorted by half would show it edges that are too new. The old memory is freed once no rank draws from it any more.
"""

import weakref

import numpy as np

from mpigraph.arrays import I32, I64
from mpigraph.errors import MPIGraphError
from mpigraph.kernels.temporal import sort_rows
from mpigraph.mpi.agree import together
from mpigraph.mpi.alltoall import exchange_rows, sum_over_ranks
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.rows.window import RowWindow
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
        edges: the edges, sorted by the times that count now.

    Collective on ``world.comm``: construction, :meth:`prepare` and :meth:`close`.
    """

    def __init__(self, topology: Topology, tensor: RowTensor, relation: int) -> None:
        """Fetch and sort the times."""
        self.tensor = tensor
        self.relation = relation
        self._topology = topology
        self._outdated: list[tuple[weakref.ref[SortedEdges], tuple[RowWindow, ...]]] = []
        self.edges, self._windows = self._sort()
        self._version = tensor.version  # of the times that were sorted

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
        newer = self._sort()
        self._outdated.append((weakref.ref(self.edges), self._windows))
        self.edges, self._windows = newer
        self._version = version
        self._free_outdated()

    def _sort(self) -> tuple[SortedEdges, tuple[RowWindow, ...]]:
        """Fetch the times and sort the edges by them, in new windows. Collective on ``world.comm``."""
        service = self.tensor.window.service
        world = service.world
        offsets = self._topology.hosts.edge_offsets[self.relation]
        first = RowWindow(service, offsets, (), np.int64)
        try:
            windows = first, RowWindow(service, offsets, (), np.int32)
        except MPIGraphError:  # on every rank
            first.close()
            raise
        edges = SortedEdges(*windows)
        with world.watch(f"sorting edges by {self.tensor.name!r}"):
            times = self._of_sources() if self.tensor.policy.is_node else self._of_edges()
        with together(world.comm, f"sorting edges by {self.tensor.name!r}"):
            if world.is_host:
                host = world.host_index
                indptr = self._topology.adjacency(self.relation, host).indptr
                sort_rows(indptr, times, edges.times(host), edges.order(host))
        for window in windows:
            window.sync()
        with world.watch(f"sorting edges by {self.tensor.name!r}"):
            world.comm.Barrier()
        for window in windows:
            window.sync()
        return edges, windows

    def _free_outdated(self) -> None:
        """Free what no rank draws from any more. Collective on ``world.comm``."""
        world = self.tensor.window.world
        mine = np.array([edges() is not None for edges, _ in self._outdated], np.int64)
        with world.watch("freeing edges that were sorted by older times"):
            used = sum_over_ranks(world.comm, mine)
        for (_, windows), users in zip(self._outdated, used, strict=True):
            for window in windows if not users else ():
                window.close()
        self._outdated = [one for one, users in zip(self._outdated, used, strict=True) if users]

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
        for windows in (*(windows for _, windows in self._outdated), self._windows):
            for window in windows:
                window.close()
