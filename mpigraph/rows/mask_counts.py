"""How many rows of a mask are selected, block by block: what a trainer must know of rows that are another's.

Each host counts its own rows, and every rank keeps the counts of all: 32 KiB for a mask, or 8 bytes for each host where
there are more hosts than blocks. So whoever divides the selected rows reads its own alone.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.mpi.wait import IN_ROUND, wait
from mpigraph.mpi.world import World
from mpigraph.rows.row_tensor import RowTensor

__all__ = ["MaskCounts", "block_bounds", "count_masks", "is_mask"]

_BLOCKS = 1 << 12  # of all hosts together
_ROWS = 1 << 4  # of a block, at least, where a host has more than one
_MASKS = ("bool", "uint8", "int8")


class MaskCounts:
    """The counts of one mask.

    Attributes:
        bounds: int64[H, B + 1]; block b of host h has the rows ``[bounds[h, b], bounds[h, b + 1])``.
        counts: int64[H, B], how many of them are not zero.
    """

    __slots__ = ("_mask", "_version", "bounds", "counts")

    def __init__(self, mask: RowTensor, bounds: I64, counts: I64, version: int) -> None:
        self.bounds = bounds
        self.counts = counts
        self._mask = mask
        self._version = version

    @classmethod
    def unprepared(cls, topology: object, mask: RowTensor) -> "MaskCounts":
        """Return counts that are stale."""
        return cls(mask, np.empty((0, 1), np.int64), np.empty((0, 0), np.int64), -1)

    @property
    def stale(self) -> bool:
        """Whether rows were written since they were counted; the same on every rank."""
        return self._version != self._mask.version

    @property
    def current(self) -> bool:
        """Whether the counts are those of the rows as this rank knows them."""
        return not self.stale and not self._mask.written

    def close(self) -> None:
        """Do nothing: the counts lie in this rank's memory."""

    def blocks(self, hosts: Sequence[int] | slice = slice(None)) -> tuple[I64, I64, I64]:
        """The blocks of some hosts that have selected rows: first rows, rows behind them, counts, each int64[n]."""
        firsts, lasts, counts = (
            table[hosts].ravel() for table in (self.bounds[:, :-1], self.bounds[:, 1:], self.counts)
        )
        some = counts > 0
        return firsts[some], lasts[some], counts[some]


def is_mask(tensor: RowTensor) -> bool:
    """Whether the rows of a tensor may select nodes or edges, at a byte each."""
    return len(tensor.shape) == 1 and tensor.dtype in _MASKS


def block_bounds(offsets: I64) -> I64:
    """int64[H, B + 1]: the rows of each host in as many blocks, which differ by a row at most.

    Args:
        offsets: int64[H + 1]; host h holds the rows ``[offsets[h], offsets[h + 1])``.
    """
    rows = np.diff(offsets)
    blocks = max(1, min(_BLOCKS // len(rows), int(rows.max()) // _ROWS))
    bounds: I64 = offsets[:-1, None] + rows[:, None] * np.arange(blocks + 1) // blocks
    return bounds


@collective("world.comm")
def count_masks(world: World, masks: Sequence[RowTensor]) -> list[MaskCounts]:
    """Count the selected rows of some masks, the same ones on every rank."""
    if not masks:
        return []
    bounds = [block_bounds(mask.window.offsets) for mask in masks]
    blocks = sum(table.shape[1] - 1 for table in bounds)  # of a host
    counted = np.empty((len(world.hosts), blocks), np.int64)
    mine = np.empty(0, np.int64)
    if world.is_host:
        host = world.host_index
        mine = np.concatenate(
            [_count(mask.segment(host), table[host]) for mask, table in zip(masks, bounds, strict=True)]
        )
    of_ranks = np.zeros(world.size, np.int64)
    of_ranks[world.hosts] = blocks
    with world.watch("counting the selected rows of masks"):
        wait(world.comm.Iallgatherv(mine, [counted, of_ranks]), IN_ROUND)
    ends = np.cumsum([table.shape[1] - 1 for table in bounds])[:-1]
    return [
        MaskCounts(mask, table, counts, mask.version)
        for mask, table, counts in zip(masks, bounds, np.split(counted, ends, axis=1), strict=True)
    ]


def _count(rows: Array, bounds: I64) -> I64:
    ends = (bounds - bounds[0]).tolist()
    found = [np.count_nonzero(rows[begin:end] != 0) for begin, end in pairwise(ends)]
    return np.array(found, np.int64)
