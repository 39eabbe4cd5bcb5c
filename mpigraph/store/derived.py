"""Tables that hosts derive from the rows of a tensor: to draw by edge weights, or by time; counts of masks.

Each host makes the tables of its own edges, in windows of their own, so that all ranks of a node read the same copy.
Writes take effect at the trainers' next collective call (``g.barrier()``): new tables are then made beside the old
ones, from which a loader's thread may be drawing.
"""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError, MPIGraphError
from mpigraph.kernels.sample import list_allowed
from mpigraph.kernels.temporal import sort_rows
from mpigraph.kernels.weighted import alias_tables
from mpigraph.mpi.messages import NotOpenHere, exchange_rows, sum_over_ranks
from mpigraph.mpi.wait import until
from mpigraph.mpi.world import World
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.rows.window import RowWindow
from mpigraph.store.topology import Topology

_Windows = Mapping[str, RowWindow]
_BLOCKS = 1 << 12  # of all hosts together
_ROWS = 1 << 4  # of a block, at least, where a host has more than one
_MASKS = ("bool", "uint8", "int8")


class HostTables:
    """Columns of numbers, each of a host's edges or destinations, that are made for each host."""

    def __init__(self, dtypes: Mapping[str, npt.DTypeLike], windows: _Windows) -> None:
        """Give access to windows by name; to empty columns of ``dtypes`` without windows."""
        self._dtypes = dtypes
        self.windows = windows

    def of(self, column: str, host: int) -> Array:
        """Return [rows of local ``host``] of a column; [0] if the tables were not prepared."""
        return self.windows[column].memory(host) if self.windows else np.empty(0, self._dtypes[column])


class VersionedTables(ABC):
    """Tables of one version of a tensor's rows.

    A reader takes :attr:`tables` once, and reads that object from its first look to its last. The memory of old tables
    is freed by a later :meth:`prepare`, once no rank holds their object any more.

    Attributes:
        tensor: the rows.
        tables: the current tables; empty ones before the first :meth:`prepare`.
    """

    doing: ClassVar[str]

    def __init__(self, topology: Topology, tensor: RowTensor, columns: Mapping[str, tuple[I64, npt.DTypeLike]]) -> None:
        """Make no table yet; ``columns`` are the offsets, int64[H + 1], and the dtype of each column."""
        self.tensor = tensor
        self._topology = topology
        self._columns = columns
        self._dtypes = {name: dtype for name, (_, dtype) in columns.items()}
        self.tables = HostTables(self._dtypes, {})
        self._version = -1
        self._failed = False
        self._outdated: list[tuple[weakref.ref[Any], _Windows]] = []

    @classmethod
    @abstractmethod
    def unprepared(cls, topology: Topology, tensor: RowTensor, *numbers: int) -> "VersionedTables":
        """Return a stand-in for tables that were not prepared on this rank.

        Raises NotOpenHere if this kind of tables has no stand-in.
        """

    @abstractmethod
    def _fill(self, tables: HostTables, host: int) -> None:
        """Make the tables of one local host."""

    @property
    def stale(self) -> bool:
        """True if rows were written since the tables were made; the same on every rank."""
        return self._version != self.tensor.version

    @property
    def sound(self) -> bool:
        """True if the tables are those of the current rows, and no row was bad; the same on every rank."""
        return not self.stale and not self._failed

    @collective("world.comm")
    def prepare(self) -> None:
        """Make the tables, or make them anew beside the old ones, and switch to them.

        Raises:
            GraphDataError: a row cannot be used; on every rank.
            SharedMemoryError: a node's shared memory cannot hold the tables beside the old ones; on every rank.

        The old tables stay if it fails.
        """
        service, world = self.tensor.window.service, self.tensor.window.world
        version = self.tensor.version
        doing = f"{self.doing} {self.tensor.name!r}"
        windows: dict[str, RowWindow] = {}
        self._failed = True
        try:
            for name, (offsets, dtype) in self._columns.items():
                windows[name] = RowWindow(service, offsets, (), dtype)
            tables = HostTables(self._dtypes, windows)
            with world.on_all_ranks(doing):
                if world.is_host:
                    self._fill(tables, world.host_index)
        except MPIGraphError as error:  # on every rank
            _close(windows)
            if isinstance(error, GraphDataError):
                self._version = version  # bad rows are reported once
            raise
        service.segments.sync()
        world.barrier(doing)
        service.segments.sync()
        self._outdated.append((weakref.ref(self.tables), self.tables.windows))
        self.tables, self._version, self._failed = tables, version, False
        self._free_outdated(doing)

    @collective("world.comm")
    def _free_outdated(self, doing: str) -> None:
        """Free the tables that no rank reads any more."""
        world = self.tensor.window.world
        held = np.array([tables() is not None for tables, _ in self._outdated], np.int64)
        with world.watch(doing):
            held = sum_over_ranks(world.comm, held)
        for (_, windows), holders in zip(self._outdated, held, strict=True):
            _close({} if holders else windows)
        self._outdated = [one for one, holders in zip(self._outdated, held, strict=True) if holders]

    @collective("world.comm")
    def close(self) -> None:
        """Free all memory."""
        for windows in (*(windows for _, windows in self._outdated), self.tables.windows):
            _close(windows)
        self._outdated = []


def _close(windows: _Windows) -> None:
    for window in windows.values():
        window.close()


class EdgeWeights(VersionedTables):
    """The weights of one relation's edges, and tables to draw by them (``kernels/weighted.py``, ``kernels/sample.py``).

    The columns: "table", uint64, or uint32 of a mask, for each edge; and "num_drawable", int32 for each destination,
    the edges that can be drawn.

    Attributes:
        is_mask: the weights are bool.
    """

    doing = "preparing edge weights"

    def __init__(self, topology: Topology, tensor: RowTensor) -> None:
        self.is_mask = tensor.dtype == "bool"
        relation, hosts = tensor.policy.type_id, topology.hosts
        of_edges = hosts.edge_offsets[relation], np.uint32 if self.is_mask else np.uint64
        super().__init__(topology, tensor, {"table": of_edges, "num_drawable": (topology.rows[relation], np.int32)})

    @classmethod
    def unprepared(cls, topology: Topology, tensor: RowTensor, *numbers: int) -> "EdgeWeights":
        """Return weights that are drawn from without tables, and checked at each draw."""
        return cls(topology, tensor)

    def values(self, host: int) -> Array:
        """[edges of local ``host``], the weights."""
        return self.tensor.memory(host)  # a read-only array would be another type to the compiler

    def complaint(self, edge: int, weight: float) -> str:
        """Return the error text for a bad weight."""
        return f"edge weight {self.tensor.name!r} of edge {edge} must be finite and >= 0 (got {weight})"

    def _fill(self, tables: HostTables, host: int) -> None:
        weights = self.values(host)
        edges = self._topology.adjacency(self.tensor.policy.type_id, host)
        make = list_allowed if self.is_mask else alias_tables
        bad = make(edges.indptr, weights, tables.of("table", host), tables.of("num_drawable", host))
        if bad >= 0:
            raise GraphDataError(self.complaint(edges.first_edge + bad, weights[bad]))


class EdgeTimes(VersionedTables):
    """A relation's edges, sorted within each destination by their times or those of their sources.

    The columns, twelve bytes an edge: "times", int64, ascending; "order", int32, the place of each among its
    destination's edges.

    The owner of a destination does not hold the times of its neighbours: all ranks fetch them together, once.

    Attributes:
        relation: relation id.
    """

    doing = "sorting edges by"

    def __init__(self, topology: Topology, tensor: RowTensor, relation: int) -> None:
        self.relation = relation
        offsets = topology.hosts.edge_offsets[relation]
        super().__init__(topology, tensor, {"times": (offsets, np.int64), "order": (offsets, np.int32)})
        self._of_edges = np.empty(0, np.int64)

    @classmethod
    def unprepared(cls, topology: Topology, tensor: RowTensor, *numbers: int) -> "EdgeTimes":
        """Raise NotOpenHere: edges must be sorted before they are drawn from."""
        rank = tensor.window.world.rank
        raise NotOpenHere(f"edges of relation {numbers[0]} are not sorted by {tensor.name!r} on rank {rank}")

    @collective("world.comm")
    def prepare(self) -> None:
        """See :class:`VersionedTables`."""
        world = self.tensor.window.world
        with world.watch(f"{self.doing} {self.tensor.name!r}"):
            if self.tensor.policy.is_node:
                self._of_edges = self._of_sources()
            elif world.is_host:
                self._of_edges = self.tensor.memory(world.host_index)
        super().prepare()
        self._of_edges = np.empty(0, np.int64)  # a slice would keep them

    def _fill(self, tables: HostTables, host: int) -> None:
        indptr = self._topology.adjacency(self.relation, host).indptr
        sort_rows(indptr, self._of_edges, tables.of("times", host), tables.of("order", host))

    @collective("world.comm")
    def _of_sources(self) -> I64:
        """int64[edges of this host]: the times of their sources."""
        world = self.tensor.window.world
        sources = np.empty(0, np.int64)
        if world.is_host:
            sources = self._topology.adjacency(self.relation, world.host_index).indices.astype(np.int64)
        return fetch_together(self.tensor.window, self.tensor.numbers(sources))


class MaskCounts(NamedTuple):
    """The counts of one mask.

    Attributes:
        version: of the mask's rows.
        bounds: int64[H, B + 1]; block b of host h has the rows ``[bounds[h, b], bounds[h, b + 1])``.
        counts: int64[H, B], how many of them are not zero.
    """

    version: int
    bounds: I64
    counts: I64

    def blocks(self, hosts: Sequence[int] | slice = slice(None)) -> tuple[I64, I64, I64]:
        """Return the blocks of some hosts that have selected rows: first rows, rows behind them, counts, int64[n]."""
        counts = self.counts[hosts].ravel()
        firsts, lasts = self.bounds[hosts, :-1].ravel(), self.bounds[hosts, 1:].ravel()
        selected = counts > 0
        return firsts[selected], lasts[selected], counts[selected]


@collective("world.comm")
def fetch_together(window: RowWindow, rows: I64) -> Array:
    """Return the numbers in ``rows`` (int64[n], another one on each rank) of a window with one number a row.

    Each is asked of its host once. For calls in which hosts answer no other messages.
    """
    world = window.world
    if world.all_local:
        return window.gather(rows)
    distinct, place = np.unique(rows, return_inverse=True)
    counts = np.zeros(world.size, np.int64)
    np.add.at(counts, world.hosts[np.searchsorted(window.offsets, distinct, side="right") - 1], 1)
    asked, coming = exchange_rows(world.comm, distinct[:, None], counts)
    known = np.empty((0, 1), window.dtype)
    if world.is_host:
        host = world.host_index
        known = np.ascontiguousarray(window.memory(host)[asked[:, 0] - window.offsets[host]])[:, None]
    answers, _ = exchange_rows(world.comm, known, coming)
    fetched: Array = answers[:, 0][place]
    return fetched


def is_mask(tensor: RowTensor) -> bool:
    """Return whether the rows of a tensor may select nodes or edges, at a byte each."""
    return len(tensor.shape) == 1 and tensor.dtype in _MASKS


def block_bounds(offsets: I64) -> I64:
    """Divide the rows of each host (``offsets`` int64[H + 1]) into B blocks of equal sizes: int64[H, B + 1]."""
    rows = np.diff(offsets)
    blocks = max(1, min(_BLOCKS // len(rows), int(rows.max()) // _ROWS))
    bounds: I64 = offsets[:-1, None] + rows[:, None] * np.arange(blocks + 1) // blocks
    return bounds


@collective("world.comm")
def count_masks(world: World, masks: Sequence[RowTensor]) -> list[MaskCounts]:
    """Count the selected rows of some masks, the same ones on every rank."""
    if not masks:
        return []
    bounds = [block_bounds(mask.offsets) for mask in masks]
    blocks = sum(table.shape[1] - 1 for table in bounds)  # of a host
    counted = np.empty((len(world.hosts), blocks), np.int64)
    own = np.empty(0, np.int64)
    if world.is_host:
        host = world.host_index
        own = np.concatenate(
            [_count(mask.segment(host), table[host]) for mask, table in zip(masks, bounds, strict=True)]
        )
    of_ranks = np.zeros(world.size, np.int64)
    of_ranks[world.hosts] = blocks
    with world.watch("counting the selected rows of masks"):
        until(world.comm.Iallgatherv(own, [counted, of_ranks]).Test)
    ends = np.cumsum([table.shape[1] - 1 for table in bounds])[:-1]
    return [
        MaskCounts(mask.version, table, counts)
        for mask, table, counts in zip(masks, bounds, np.split(counted, ends, axis=1), strict=True)
    ]


def _count(rows: Array, bounds: I64) -> I64:
    ends = (bounds - bounds[0]).tolist()
    return np.array([np.count_nonzero(rows[begin:end] != 0) for begin, end in pairwise(ends)], np.int64)
