"""Edge weights for sampling: the tensor of weights, and, once prepared, their prefix sums beside it.

The sums are made by each host for its own edges, in a window of their own, so that all ranks of a node read the same
copy. They cost eight bytes an edge (four for masks). Weights that are written later count from the next collective
call of the trainers on (``g.barrier()``), as any row that was written.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from mpigraph.errors import GraphDataError
from mpigraph.kernels.weighted import prefix_sums
from mpigraph.mpi.agree import together
from mpigraph.mpi.window import RowWindow
from mpigraph.store.tensors import RowTensor
from mpigraph.store.topology import Topology

__all__ = ["EdgeWeights"]

_NONE = np.empty(0, np.float64)
_NOBODY = np.empty(0, np.int32)


class EdgeWeights:
    """The weights of one relation's edges, as samplers read them.

    Attributes:
        tensor: the weights.
        sound: whether the sums were made, and no weight was bad.

    Local; no communication: construction. Collective on ``world.comm``: :meth:`prepare` and :meth:`close`.
    """

    def __init__(self, topology: Topology, tensor: RowTensor) -> None:
        self.tensor = tensor
        self.sound = False
        self._topology = topology
        self._sums: RowWindow | None = None
        self._alive: RowWindow | None = None

    def values(self, host: int) -> npt.NDArray[Any]:
        """[edges of near ``host``], the weights. Local; no communication."""
        return self.tensor.segment(host)

    def sums(self, host: int) -> npt.NDArray[Any]:
        """[edges of near ``host``], prefix sums within each destination; empty if not prepared.

        Local; no communication.
        """
        return _NONE if self._sums is None else self._sums.segment(host)

    def alive(self, host: int) -> npt.NDArray[np.int32]:
        """int32[destinations of near ``host``], how many edges can be drawn; empty if not prepared.

        Local; no communication.
        """
        return _NOBODY if self._alive is None else self._alive.segment(host)

    def complaint(self, edge: int, weight: float) -> str:
        """What to say of a bad weight. Local; no communication."""
        return f"edge weight {self.tensor.name!r} of edge {edge} must be finite and >= 0 (got {weight})"

    def prepare(self, kind: str) -> None:
        """Make the prefix sums, or make them anew; ``kind`` is how windows are allocated.

        Raises:
            GraphDataError: a weight is negative, infinite or NaN; on every rank. What the sums are then is not defined.

        Collective on ``world.comm``.
        """
        self.sound = False
        world, relation = self._topology.world, self.tensor.policy.type_id
        if self._sums is None or self._alive is None:
            hosts = self._topology.hosts
            exact = np.uint32 if self.tensor.dtype == "bool" else np.float64  # sums of a mask are counts
            dst = hosts.schema.ends(relation)[1]
            self._sums = RowWindow(world, hosts.edge_offsets[relation], (), exact, kind)
            self._alive = RowWindow(world, hosts.node_offsets[dst], (), np.int32, kind)
        with together(world.comm, f"preparing edge weights {self.tensor.name!r}"):
            if world.is_host:
                self._add_up(world.host_index, relation)
        windows = (self._sums, self._alive)
        for window in windows:
            window.sync()
        with world.watch("preparing edge weights"):
            world.comm.Barrier()
        for window in windows:
            window.sync()
        self.sound = True

    def _add_up(self, host: int, relation: int) -> None:
        near, weights = self._topology.adjacency(relation, host), self.values(host)
        bad = prefix_sums(near.indptr, weights, self.sums(host), self.alive(host))
        if bad >= 0:
            raise GraphDataError(self.complaint(near.first_edge + bad, weights[bad]))

    def close(self) -> None:
        """Free the sums, if there are any. Collective on ``world.comm``."""
        for window in (self._sums, self._alive):
            if window is not None:
                window.close()
        self._sums = self._alive = None
