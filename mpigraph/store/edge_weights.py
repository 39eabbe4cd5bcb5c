"""Edge weights for sampling: the tensor of weights, and, once prepared, tables to draw from beside it.

The tables (``kernels/weighted.py``, ``kernels/masked.py``) are made by each host for its own edges, in a window of
their own, so that all ranks of a node read the same copy. They cost eight bytes an edge (four for masks). Weights that
are written later, in whichever way, count from the next collective call of the trainers on (``g.barrier()``): the
tables are then made anew in other memory, since a loader's thread may be drawing from the old ones.
"""

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I32, Array
from mpigraph.errors import GraphDataError
from mpigraph.kernels.masked import list_allowed
from mpigraph.kernels.weighted import alias_tables
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.rows.window import RowWindow
from mpigraph.store.renewed import Renewed
from mpigraph.store.topology import Topology

__all__ = ["EdgeWeights", "WeightTables"]

_NOBODY = np.empty(0, np.int32)


class WeightTables:
    """Tables of a relation's edges, which nobody changes. Who draws from them holds this object."""

    def __init__(self, table: RowWindow, num_drawable: RowWindow) -> None:
        """Give access to a window of edges and one of destinations."""
        self._table = table
        self._num_drawable = num_drawable

    def table(self, host: int) -> Array:
        """uint64, or uint32 of a mask, [edges of near ``host``], to draw from."""
        return self._table.memory(host)

    def num_drawable(self, host: int) -> I32:
        """int32[destinations of near ``host``], how many edges can be drawn."""
        return self._num_drawable.memory(host)


class _NoTables:
    """In the place of :class:`WeightTables` where none were made."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._none: Array = np.empty(0, dtype)

    def table(self, host: int) -> Array:
        """[0]."""
        return self._none

    def num_drawable(self, host: int) -> I32:
        """int32[0]."""
        return _NOBODY


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
        relation, hosts = tensor.policy.type_id, topology.hosts
        of_nodes = hosts.node_offsets[hosts.schema.ends(relation)[1]]
        dtype = np.uint32 if self.is_mask else np.uint64
        columns = ((hosts.edge_offsets[relation], dtype), (of_nodes, np.int32))
        self._none = _NoTables(dtype)
        self._tables = Renewed(tensor.window.service, columns, WeightTables)

    def values(self, host: int) -> Array:
        """[edges of near ``host``], the weights."""
        return self.tensor.window.memory(host)  # a read-only array would be another type to the compiler

    @property
    def tables(self) -> WeightTables | _NoTables:
        """The tables that count now; empty ones before :meth:`prepare`."""
        return self._tables.tables or self._none

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
            GraphDataError: a weight is negative, infinite or NaN; on every rank.
            SharedMemoryError: a node's shared memory cannot hold them twice; on every rank.

        The old tables stay if it fails. Collective on ``world.comm``.
        """
        self.sound = False
        version = self.tensor.version
        try:
            self._tables.make(f"preparing edge weights {self.tensor.name!r}", self._fill)
        except GraphDataError:  # on every rank
            self._version = version  # bad weights are reported once
            raise
        self._version = version
        self.sound = True

    def _fill(self, tables: WeightTables, host: int) -> None:
        near = self._topology.adjacency(self.tensor.policy.type_id, host)
        weights = self.values(host)
        make = list_allowed if self.is_mask else alias_tables
        bad = make(near.indptr, weights, tables.table(host), tables.num_drawable(host))
        if bad >= 0:
            raise GraphDataError(self.complaint(near.first_edge + bad, weights[bad]))

    def close(self) -> None:
        """Free the tables, if there are any. Collective on ``world.comm``."""
        self._tables.close()
