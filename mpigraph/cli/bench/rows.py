"""Random rows: what the machine allows, near rows by the library, far rows by each transport."""

from functools import partial
from statistics import median

import numpy as np
import torch

from mpigraph.arrays import I64, Mask
from mpigraph.cli.bench.clock import Work, alone_then_together, meet, time_local
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.mpi.world import World
from mpigraph.rows.window import RowWindow

__all__ = ["is_far", "measure_rows"]

_NUM_ROWS = 100_000


def is_far(window: RowWindow, ids: I64) -> Mask:
    """bool[n]: which rows are on another node."""
    far: Mask = ~window.world.near[window.host_of(ids)]
    return far


def measure_rows(world: World, feature: DistTensor, seconds: float) -> dict[str, float | None]:
    """Gather random rows into reused buffers: near ones plainly and by the library, far ones by each transport.

    Plainly is ``torch.index_select(out=)`` on one thread, on the same memory (of the largest near host).

    Collective on the trainers.
    """
    window, share = feature.rows.window, seconds / (1 if world.all_near else 2)
    near = _some_rows(window, near=True)
    buffer = np.empty((len(near), *window.row_shape), window.dtype)
    works = [_plain(window, len(near)), lambda: window.gather(near, buffer)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone, all_at_once = alone_then_together(world, works, share)
    finally:
        torch.set_num_threads(threads)
    spent = dict(zip(("rows_one", "near_one", "rows_all", "near_all"), [*alone, *all_at_once], strict=True))
    figures = {name: None if each is None else buffer.nbytes / each / 1e9 for name, each in spent.items()}
    if not world.all_near:
        figures |= _measure_far(window, share)
        meet(world, "measuring far rows")
    return figures


def _plain(window: RowWindow, count: int) -> Work:
    """Gather ``count`` random rows of the largest near host with torch."""
    world = window.world
    rows = max((window.memory(int(host)) for host in np.flatnonzero(world.near)), key=len)
    table = torch.from_numpy(rows)
    ids = torch.from_numpy(np.random.default_rng(world.rank).integers(0, max(1, len(rows)), count))
    out = torch.empty((count, *table.shape[1:]), dtype=table.dtype)
    return lambda: torch.index_select(table, 0, ids, out=out)


def _measure_far(window: RowWindow, seconds: float) -> dict[str, float | None]:
    """Gather far rows, the transports in turn."""
    ids = _some_rows(window, near=False)
    buffer = np.empty((len(ids), *window.row_shape), window.dtype)
    transports = window.service.transports
    spent = time_local([partial(window.gather, ids, buffer, transport) for transport in transports], seconds)
    speeds = [buffer.nbytes / median(times) / 1e9 for times in spent]
    return {f"far_{transport.name}": speed for transport, speed in zip(transports, speeds, strict=True)}


def _some_rows(window: RowWindow, near: bool) -> I64:
    """Random rows, near or far: int64[<= 100,000]."""
    hosts = np.flatnonzero(window.world.near == near)
    sizes = np.diff(window.offsets)[hosts]
    count = min(_NUM_ROWS, int(sizes.sum()))
    place = np.random.default_rng(window.world.rank).integers(0, max(1, int(sizes.sum())), count)
    ends = np.cumsum(sizes)
    which = np.searchsorted(ends, place, side="right")
    rows: I64 = window.offsets[hosts[which]] + place - (ends - sizes)[which] if count else np.empty(0, np.int64)
    return rows
