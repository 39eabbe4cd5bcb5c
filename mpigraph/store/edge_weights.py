"""Edge weights for sampling: the tensor of weights, and, once prepared, tables to draw from beside it.

The tables (``kernels/weighted.py``, ``kernels/masked.py``) are made by each host for its own edges, in a window of
their own, so that all ranks of a node read the same copy. They cost eight bytes an edge (four for masks). Weights that
are written later, in whichever way, count from the next collective call of the trainers on (``g.barrier()``).
"""

import numpy as np

from mpigraph.arrays import I32, Array
from mpigraph.errors import GraphDataError
from mpigraph.kernels.masked import list_allowed
from mpigraph.kernels.weighted import alias_tables
from mpigraph.mpi.agree import together
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.rows.window import RowWindow
from mpigraph.store.topology import Topology

__all__ = ["EdgeWeights"]

_NONE: dict[bool, Array] = {
    True: np.empty(0, np.uint32),
    False: np.empty(0, np.uint64),
}  # by whether the weights are a mask
_NOBODY = np.empty(0, np.int32)


class EdgeWeights:
    """The weights of one relation's edges, as samplers read them.

    Attributes:
        tensor: the weights.
        is_mask: whether the weights are bool.
        sound: whether the tables were made, and no weight was bad.

    Collective on ``world.comm``: :meth:`prepare` and :meth:`close`.
    """

    def __init__(self, topology: Topology, tensor: RowTensor) -> None:
        self.tensor = tensor
        self.is_mask = tensor.dtype == "bool"
        self.sound = False
        self._version = -1  # of the weights that the tables were made of
        self._topology = topology
        self._table: RowWindow | None = None
        self._num_drawable: RowWindow | None = None

    def values(self, host: int) -> Array:
        """[edges of near ``host``], the weights."""
        return self.tensor.window.memory(host)  # a read-only array would be another type to the compiler

    def table(self, host: int) -> Array:
        """uint64, or uint32 of a mask, [edges of near ``host``], to draw from; empty if not prepared."""
        return _NONE[self.is_mask] if self._table is None else self._table.memory(host)

    def num_drawable(self, host: int) -> I32:
        """int32[destinations of near ``host``], how many edges can be drawn; empty if not prepared."""
        return _NOBODY if self._num_drawable is None else self._num_drawable.memory(host)

    @property
    def stale(self) -> bool:
        """Whether weights were written since the tables were made; the same on every rank."""
        return self._version != self.tensor.version

    def complaint(self, edge: int, weight: float) -> str:
        """What to say of a bad weight."""
        return f"edge weight {self.tensor.name!r} of edge {edge} must be finite and >= 0 (got {weight})"

    def prepare(self) -> None:
        """Make the tables, or make them anew.

        Raises:
            GraphDataError: a weight is negative, infinite or NaN; on every rank. The tables are not defined then.

        Collective on ``world.comm``.
        """
        self.sound = False
        self._version = self.tensor.version  # also of bad weights: they are reported once
        service = self.tensor.window.service
        world = service.world
        relation = self.tensor.policy.type_id
        if self._table is None or self._num_drawable is None:
            hosts = self._topology.hosts
            dst = hosts.schema.ends(relation)[1]
            self._table = RowWindow(service, hosts.edge_offsets[relation], (), _NONE[self.is_mask].dtype)
            self._num_drawable = RowWindow(service, hosts.node_offsets[dst], (), np.int32)
        with together(world.comm, f"preparing edge weights {self.tensor.name!r}"):
            if world.is_host:
                self._make(world.host_index, relation)
        windows = (self._table, self._num_drawable)
        for window in windows:
            window.sync()
        with world.watch("preparing edge weights"):
            world.comm.Barrier()
        for window in windows:
            window.sync()
        self.sound = True

    def _make(self, host: int, relation: int) -> None:
        near = self._topology.adjacency(relation, host)
        weights = self.values(host)
        make = list_allowed if self.is_mask else alias_tables
        bad = make(near.indptr, weights, self.table(host), self.num_drawable(host))
        if bad >= 0:
            raise GraphDataError(self.complaint(near.first_edge + bad, weights[bad]))

    def close(self) -> None:
        """Free the tables, if there are any. Collective on ``world.comm``."""
        for window in (self._table, self._num_drawable):
            if window is not None:
                window.close()
        self._table = self._num_drawable = None
