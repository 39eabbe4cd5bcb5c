"""Choice of the transport that reads remote rows: measured at start, unless it was set.

The faster one depends on the fabric and on the MPI library's treatment of lists of rows. So a job of several nodes
tries all transports that work there (``rows/self_test.py``) on a small window. The slowest trainer counts, since the
others wait for it. A note beside the compiled kernels keeps the rates for the next jobs on the same nodes, for days.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from mpi4py import MPI

from mpigraph.collective import collective
from mpigraph.kernels.cache import read_note, write_note
from mpigraph.log import get_logger
from mpigraph.mpi.agree import allgather_bytes
from mpigraph.mpi.compat import library_version
from mpigraph.rows.self_test import find_working_windows
from mpigraph.rows.service import RowService
from mpigraph.rows.window import RowWindow
from mpigraph.trace import span

_ROWS = 4096  # held by each host, and read at a time
_ROW_BYTES = 400
_REPEATS = 5
_LONGEST = 0.2  # seconds for a transport
_KEPT = 7 * 86400.0  # seconds: the fabric may change, or have been busy


@collective("world.comm")
def choose_transport(service: RowService) -> dict[str, float]:
    """Set ``service.transport`` to the fastest one that works, unless the user chose or the job has one node.

    Where no job has measured yet, this takes about a quarter of a second for each transport. Servers answer meanwhile.

    Returns:
        Bytes a second of each transport, empty where nothing was measured.

    Raises:
        MPIGraphError: no transport works, or the one that the user chose does not; on every rank.
    """
    if service.world.config.self_test:
        find_working_windows(service)
    measured = _rates(service) if service.automatic and len(service.transports) > 1 else {}
    if measured:
        service.transport = max(service.transports, key=lambda transport: measured[transport.name])
    if service.transport is not None and service.world.rank == 0:
        name = service.transport.name
        other = "".join(f"; {key} {rate / 1e9:.2f} GB/s" for key, rate in measured.items() if key != name)
        speed = f" ({measured[name] / 1e9:.2f} GB/s{other})" if measured else ""
        get_logger().info("transport: %s%s", name, speed)
    return measured


@collective("world.comm")
def _rates(service: RowService) -> dict[str, float]:
    """Return the rates of a recent note for these nodes, else measure. Rank 0 decides."""
    world = service.world
    if world.config.ranks_per_node:  # simulated nodes are for tests
        return _measure(service)
    names = [transport.name for transport in service.transports]
    nodes = allgather_bytes(world.comm, b"" if world.node.rank else MPI.Get_processor_name().encode())
    sources = [path.stat() for path in sorted(Path(__file__).parent.glob("*.py"))]
    words = [library_version(), names, sorted(nodes), [(file.st_mtime_ns, file.st_size) for file in sources]]
    note = f"transports-{hashlib.sha256(repr(words).encode()).hexdigest()[:16]}"
    rates = np.zeros(len(names))
    if world.rank == 0:
        rates[:] = _noted(note, len(names))
    world.comm.Bcast(rates)
    if rates.all():
        return dict(zip(names, rates.tolist(), strict=True))
    measured = _measure(service)
    if world.rank == 0:
        write_note(note, json.dumps([time.time(), *(measured[name] for name in names)]))
    return measured


def _noted(note: str, count: int) -> list[float]:
    """Return the rates in a note, zeros if it is missing or old."""
    try:
        when, *rates = map(float, json.loads(read_note(note)))
    except (ValueError, TypeError, OverflowError, RecursionError):  # other ranks wait for an answer
        return [0.0] * count
    fresh = 0 <= time.time() - when < _KEPT and len(rates) == count and all(0 < rate < math.inf for rate in rates)
    return rates if fresh else [0.0] * count


@collective("world.comm")
def _measure(service: RowService) -> dict[str, float]:
    """Return bytes a second of each transport on the slowest trainer that tried."""
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
        service.complete(world.comm.Iallreduce(MPI.IN_PLACE, seconds, op=MPI.MAX))
        window.close()
    return {way.name: _ROWS * _ROW_BYTES / took for way, took in zip(transports, seconds.tolist(), strict=True)}


def _median_time(read: Callable[[], object]) -> float:
    """Return the median seconds of a few reads after the first."""
    read()
    times: list[float] = []
    while len(times) < _REPEATS and sum(times) < _LONGEST:
        with span("measure") as timed:
            read()
        times.append(timed.seconds)
    return float(np.median(times))
