"""Which transport reads far rows: measured at start, or as set.

Which one is faster depends on the fabric and on the MPI library's way with lists of rows, so a job of several nodes
tries both on a small window. The slowest trainer counts, since the others wait for it, and all agree on one.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from mpi4py import MPI

from mpigraph.log import get_logger
from mpigraph.mpi.watch import Backoff
from mpigraph.mpi.world import World
from mpigraph.rows.transport import Transport
from mpigraph.rows.window import RowWindow

__all__ = ["Choice", "choose_transport"]

_SETTINGS = ("auto", "rma", "packed")
_ROWS, _ROW_BYTES = 4096, 400  # held by each host, and read at a time
_REPEATS = 5
_LONGEST = 0.2  # seconds for a transport


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes:
        name: "rma" or "packed".
        measured: bytes a second of each transport, where they were measured.
    """

    name: str
    measured: dict[str, float] = field(default_factory=dict)


def choose_transport(world: World, kind: str) -> Choice:
    """Choose how far rows are read, and set ``world.transport``; ``kind`` is how windows are allocated.

    Takes about half a second. Servers answer meanwhile. Collective on ``world.comm``.
    """
    setting = np.array([_SETTINGS.index(world.config.transport)], np.int64)
    world.comm.Bcast(setting)
    name = _SETTINGS[int(setting[0])]
    if world.packed is None:
        return Choice("rma")
    measured = _measure(world, kind) if name == "auto" else {}
    if measured:
        name = max(measured, key=lambda key: measured[key])
    world.transport = world.packed if name == "packed" else world.rma
    if world.rank == 0:
        other = "".join(f"; {key} {rate / 1e9:.2f} GB/s" for key, rate in measured.items() if key != name)
        speed = f" ({measured[name] / 1e9:.2f} GB/s{other})" if measured else ""
        get_logger().info("transport: %s%s", name, speed)
    return Choice(name, measured)


def _measure(world: World, kind: str) -> dict[str, float]:
    """Bytes a second of both transports on the slowest trainer that tried. Collective on ``world.comm``."""
    window = RowWindow(world, np.arange(len(world.hosts) + 1, dtype=np.int64) * _ROWS, (_ROW_BYTES,), "u1", kind)
    seconds = np.zeros(2)
    host = world.hosts_of_node((world.node_index + 1) % world.num_nodes)[0]
    transports: list[Transport] = [world.rma, world.packed or world.rma]
    if world.is_trainer and world.local_trainer == 0:
        ids = np.random.default_rng(world.rank).integers(0, _ROWS, _ROWS) + host * _ROWS
        out = np.empty((_ROWS, _ROW_BYTES), np.uint8)
        seconds[:] = [_median_time(partial(window.gather, ids, out, way)) for way in transports]
    with world.watch("measuring the transports"):
        request = world.comm.Iallreduce(MPI.IN_PLACE, seconds, op=MPI.MAX)
        backoff = Backoff(longest=1e-4)
        while not request.Test():
            if world.is_trainer or not world.answer():
                backoff.pause()
        window.close()
    return {way.name: _ROWS * _ROW_BYTES / took for way, took in zip(transports, seconds.tolist(), strict=True)}


def _median_time(read: Callable[[], object]) -> float:
    """Median seconds of a few reads, after one that warms up; fewer if they are slow."""
    read()
    times: list[float] = []
    while len(times) < _REPEATS and sum(times) < _LONGEST:
        begin = time.perf_counter()
        read()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))
