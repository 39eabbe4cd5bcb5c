"""Named tensors of rows, one row per node of a type or per edge of a relation, spread over the hosts.

numpy only: rows have a storage dtype here (bfloat16 as uint16, bool as uint8) and carry the name of their logical
dtype for the layer that makes torch tensors of them.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from mpigraph.arrays import I64, Array
from mpigraph.metadata.book import RangeBook, check_ids
from mpigraph.mpi.world import World
from mpigraph.rows.mutex import HostMutex
from mpigraph.rows.window import RowWindow
from mpigraph.storage.format import storage_dtype

__all__ = ["Policy", "RowTensor"]


@dataclass(frozen=True)
class Policy:
    """What the rows of a tensor are: the nodes of a type, or the edges of a relation.

    Attributes:
        is_node: nodes, else edges.
        type_id: id of the node type or of the relation.
    """

    is_node: bool
    type_id: int

    def offsets(self, book: RangeBook) -> I64:
        """int64[owners + 1]: which owner holds which rows."""
        table = book.node_offsets if self.is_node else book.edge_offsets
        return table[self.type_id]


class RowTensor:
    """One tensor of rows.

    Attributes:
        number: the same on every rank, never used twice in a job.
        graph: name of the graph whose nodes or edges the rows are.
        name: the user's name for it.
        policy: what its rows are.
        dtype: logical dtype ("float32", "bfloat16", ...).
        shape: ``(rows, *row_shape)``.
        written: whether this rank wrote rows since the last collective call.

    Collective on ``world.comm``: construction and :meth:`close`.
    """

    def __init__(
        self,
        world: World,
        mutex: HostMutex,
        book: RangeBook,
        *,
        number: int,
        graph: str,
        name: str,
        policy: Policy,
        row_shape: Sequence[int],
        dtype: str,
        kind: str,
    ) -> None:
        """Allocate zeros; ``book`` says which host holds what, ``kind`` how windows are allocated."""
        self.number = number
        self.graph = graph
        self.name = name
        self.policy = policy
        self.dtype = dtype
        self.written = False
        self._mutex = mutex
        self.window = RowWindow(world, policy.offsets(book), row_shape, storage_dtype(dtype), kind)
        self.shape = (len(self.window), *row_shape)

    def gather(self, ids: I64, out: Array | None = None) -> Array:
        """Read rows in the order of ``ids`` (int64[n]). One-sided; the target does nothing.

        Raises:
            OutOfRangeError: an id is not a row; names the tensor and the id.
        """
        check_ids(ids, self.shape[0], f"tensor {self.name!r}: row")
        return self.window.gather(ids, out)

    def scatter(self, ids: I64, values: Array) -> None:
        """Write ``values`` to rows ``ids``, holding each host's mutex. One-sided; the target does nothing.

        Complete at the target when the call returns. Of two writers of one row one wins, never a mix.

        Raises:
            OutOfRangeError: an id is not a row.
        """
        check_ids(ids, self.shape[0], f"tensor {self.name!r}: row")
        self.written = True
        self.window.scatter(ids, values, self._hold)

    def segment(self, host: int) -> Array:
        """The rows on near host ``host``, a writable view."""
        return self.window.segment(host)

    def _hold(self, host: int) -> AbstractContextManager[None]:
        return self._mutex.hold(host)

    def close(self) -> None:
        """Free the rows; a second call does nothing."""
        self.window.close()
