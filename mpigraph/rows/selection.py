"""Which transport reads far rows: measured at start, unless it was set.

Which one is faster depends on the fabric and on the MPI library's way with lists of rows, so a job of several nodes
tries on a small window all of those that work there (``rows/self_test.py``). The slowest trainer counts, since the
others wait for it, and all agree on one.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from mpi4py import MPI

from mpigraph.collective import collective
from mpigraph.log import get_logger
from mpigraph.mpi.wait import TRANSFER, Backoff
from mpigraph.rows.self_test import find_working_windows
from mpigraph.rows.service import RowService
from mpigraph.rows.window import RowWindow
from mpigraph.trace import span

__all__ = ["choose_transport"]

_ROWS = 4096  # held by each host, and read at a time
_ROW_BYTES = 400
_REPEATS = 5
_LONGEST = 0.2  # seconds for a transport


@collective("world.comm")
def choose_transport(service: RowService) -> dict[str, float]:
    """Set ``service.transport`` to the fastest one that works, unless the user chose or the job has one node.

    Takes about a quarter of a second for each transport. Servers answer meanwhile.

    Returns:
        Bytes a second of each transport, empty where nothing was measured.

    Raises:
        MPIGraphError: no transport works, or the one that the user chose does not; on every rank.
    """
    wanted = np.array([service.world.config.self_test], np.int64)  # the environment may differ between nodes
    service.world.comm.Allreduce(MPI.IN_PLACE, wanted, op=MPI.MAX)
    if wanted[0]:
        find_working_windows(service)
    measured = _measure(service) if service.automatic and len(service.transports) > 1 else {}
    if measured:
        service.transport = max(service.transports, key=lambda transport: measured[transport.name])
    if service.transport is not None and service.world.rank == 0:
        name = service.transport.name
        other = "".join(f"; {key} {rate / 1e9:.2f} GB/s" for key, rate in measured.items() if key != name)
        speed = f" ({measured[name] / 1e9:.2f} GB/s{other})" if measured else ""
        get_logger().info("transport: %s%s", name, speed)
    return measured


@collective("world.comm")
def _measure(service: RowService) -> dict[str, float]:
    """Bytes a second of each transport on the slowest trainer that tried."""
    world = service.world
    transports = service.transports
    window = RowWindow(service, np.arange(len(world.hosts) + 1, dtype=np.int64) * _ROWS, (_ROW_BYTES,), "u1")
    seconds = np.zeros(len(transports))
    host = world.hosts_of_node((world.node_index + 1) % world.num_nodes)[0]
    if world.is_trainer and world.local_trainer == 0:
        ids = np.random.default_rng(world.rank).integers(0, _ROWS, _ROWS) + host * _ROWS
        out = np.empty((_ROWS, _ROW_BYTES), np.uint8)
        seconds[:] = [_median_time(partial(window.gather, ids, out, transport)) for transport in transports]
    with world.watch("measuring the transports"):
        request = world.comm.Iallreduce(MPI.IN_PLACE, seconds, op=MPI.MAX)
        backoff = Backoff()
        while not request.Test():
            if not world.is_trainer and service.progress():
                backoff.reset()
            else:
                backoff.pause(TRANSFER)
        window.close()
    return {way.name: _ROWS * _ROW_BYTES / took for way, took in zip(transports, seconds.tolist(), strict=True)}


def _median_time(read: Callable[[], object]) -> float:
    """Median seconds of a few reads, after one that warms up; fewer if they are slow."""
    read()
    times: list[float] = []
    while len(times) < _REPEATS and sum(times) < _LONGEST:
        with span("measure") as timed:
            read()
        times.append(timed.seconds)
    return float(np.median(times))
