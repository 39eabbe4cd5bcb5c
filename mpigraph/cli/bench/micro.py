"""Microbenchmarks: copies of memory, random local and remote rows, rounds; timed in step with the other trainers."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from mpigraph.arrays import I64, Mask
from mpigraph.collective import collective
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.mpi.coroutine import run
from mpigraph.mpi.messages import OK, Header, alltoall, exchange_answers
from mpigraph.mpi.wait import IN_ROUND, PEERS_COMPUTE, wait
from mpigraph.mpi.world import World
from mpigraph.rows.window import RowWindow
from mpigraph.sampling.channel import Channel
from mpigraph.sampling.in_step import RoundOperation
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.session.context import Session
from mpigraph.session.control import Operation

_COPY_BYTES = 32 << 20
_NUM_ROWS = 100_000
_ROUND_BYTES = 256 << 10  # of requests, and of answers, between each two trainers
_MIN_CALLS = 3
_MAX_CALLS = 20_000

Work = Callable[[], object]


@collective("trainers")
def measure_copy(world: World, seconds: float) -> dict[str, float | None]:
    """Copy memory by numpy, much more than caches hold."""
    source = np.ones(_COPY_BYTES, np.uint8)
    target = np.ones(_COPY_BYTES, np.uint8)
    (alone,), (at_once,) = _alone_then_at_once(world, [lambda: np.copyto(target, source)], seconds)
    return {"memcpy_one": _rate(_COPY_BYTES, alone), "memcpy_all": _rate(_COPY_BYTES, at_once)}


@collective("trainers")
def measure_rows(world: World, feature: DistTensor, seconds: float) -> dict[str, float | None]:
    """Gather random rows into reused buffers: local ones by torch and by the library, remote ones by each transport.

    Torch's part is ``torch.index_select(out=)`` on one thread, on the memory of the largest local host.
    """
    window = feature.rows.window
    seconds /= 1 if world.all_local else 2
    local = _random_rows(window, local=True)
    buffer = np.empty((len(local), *window.row_shape), window.dtype)
    works = [_torch_gather(window, len(local)), lambda: window.gather(local, buffer)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone, at_once = _alone_then_at_once(world, works, seconds)
    finally:
        torch.set_num_threads(threads)
    spent = dict(zip(("rows_one", "local_one", "rows_all", "local_all"), [*alone, *at_once], strict=True))
    figures = {name: _rate(buffer.nbytes, each) for name, each in spent.items()}
    if not world.all_local:
        figures |= _measure_remote_rows(window, seconds)
        meet(world, "measuring remote rows")
    return figures


@collective("trainers")
def measure_rounds(session: Session, seconds: float) -> dict[str, float | None]:
    """Make rounds between the trainers alone, and empty sampling rounds with the servers.

    A round is the four collective steps of ``mpi/messages.py``. One trainer makes no rounds, and one node no sampling
    rounds.
    """
    world = session.world
    figures = dict[str, float | None]()
    if session.num_trainers > 1:
        comm = world.trainers.Dup()
        try:
            empty = _time_collective(world, lambda: _round(world, comm, 0), seconds / 3)
            full = _time_collective(world, lambda: _round(world, comm, _ROUND_BYTES), seconds / 3)
        finally:
            comm.Free()
        moved = 2 * _ROUND_BYTES * (session.num_trainers - 1)
        figures |= {"round_latency": empty * 1e3, "rounds_per_s": 1 / empty, "round_rate": _rate(moved, full)}
    if not world.all_local:
        _, channel = open_service(session)
        nothing = {rank: np.empty(0, np.int64) for rank in world.hosts[~world.is_local].tolist()}
        spent = _time_collective(world, lambda: channel.ask(nothing), seconds / 3)
        figures["service_latency"] = spent * 1e3
        session.control.drop(channel.number)
    return figures


@collective("trainers")
def open_service(session: Session) -> tuple[NeighborService, Channel]:
    """Open a sampling service and its channel, which counts messages and bytes."""
    channel = session.control.call(Operation.OPEN_CHANNEL)
    return NeighborService(session.store, channel), channel


def is_remote(window: RowWindow, ids: I64) -> Mask:
    """Return bool[n], true for rows on another node."""
    remote: Mask = ~window.world.is_local[window.host_of(ids)]
    return remote


def _torch_gather(window: RowWindow, count: int) -> Work:
    """Return a function that gathers ``count`` random rows of the largest local host with torch."""
    world = window.world
    rows = max((window.memory(int(host)) for host in np.flatnonzero(world.is_local)), key=len)
    table = torch.from_numpy(rows)
    ids = torch.from_numpy(np.random.default_rng(world.rank).integers(0, max(1, len(rows)), count))
    out = torch.empty((count, *table.shape[1:]), dtype=table.dtype)
    return lambda: torch.index_select(table, 0, ids, out=out)


def _measure_remote_rows(window: RowWindow, seconds: float) -> dict[str, float | None]:
    ids = _random_rows(window, local=False)
    buffer = np.empty((len(ids), *window.row_shape), window.dtype)
    transports = window.service.transports
    spent = _time_local([partial(window.gather, ids, buffer, transport) for transport in transports], seconds)
    rates = [_rate(buffer.nbytes, median(times)) for times in spent]
    return {f"remote_{transport.name}": rate for transport, rate in zip(transports, rates, strict=True)}


def _random_rows(window: RowWindow, local: bool) -> I64:
    """Return random local or remote rows: int64[<= 100,000]."""
    hosts = np.flatnonzero(window.world.is_local == local)
    sizes = np.diff(window.offsets)[hosts]
    total = int(sizes.sum())
    if total == 0:
        return np.empty(0, np.int64)
    positions = np.random.default_rng(window.world.rank).integers(0, total, min(_NUM_ROWS, total))
    ends = np.cumsum(sizes)
    index = np.searchsorted(ends, positions, side="right")
    rows: I64 = window.offsets[hosts[index]] + positions - (ends - sizes)[index]
    return rows


def _round(world: World, comm: Any, nbytes: int) -> None:
    """Make one round in which every trainer sends every other one ``nbytes`` of requests and of answers."""
    counts = np.full(comm.size, nbytes // 8, np.int64)
    counts[comm.rank] = 0
    header = Header(comm, RoundOperation.SAMPLE, OK, counts)
    with world.meeting("a round of the benchmark"):
        wait(header.request, IN_ROUND)
    with world.watch("a round of the benchmark"):
        run(alltoall(comm, np.zeros(int(counts.sum()), np.int64), counts, header.counts))
        run(exchange_answers(comm, {rank: np.zeros(nbytes // 8, np.int64) for rank in np.flatnonzero(counts).tolist()}))


def _rate(nbytes: int, seconds: float | None) -> float | None:
    return None if seconds is None else nbytes / seconds / 1e9


def _time_local(works: Sequence[Work], seconds: float) -> list[list[float]]:
    """Return the seconds of each call of functions that need no other rank, called in turn."""
    spent: list[list[float]] = [[] for _ in works]
    for work in works:
        work()
    end = time.perf_counter() + seconds
    while len(spent[0]) < _MIN_CALLS or (time.perf_counter() < end and len(spent[0]) < _MAX_CALLS):
        for work, times in zip(works, spent, strict=True):
            begin = time.perf_counter()
            work()
            times.append(time.perf_counter() - begin)
    return spent


@collective("world.trainers")
def _time_collective(world: World, work: Work, seconds: float) -> float:
    work()
    begin = time.perf_counter()
    work()
    first = max(time.perf_counter() - begin, 1e-6)
    calls = world.allreduce_minmax(int(seconds / first), largest=False)
    spent: list[float] = []
    for _ in range(min(_MAX_CALLS, max(_MIN_CALLS, calls))):
        begin = time.perf_counter()
        work()
        spent.append(time.perf_counter() - begin)
    return median(spent)


@collective("world.trainers")
def _alone_then_at_once(world: World, works: Sequence[Work], seconds: float) -> tuple[list[float | None], list[float]]:
    """Time local functions on one trainer of each node while the others sleep, then on all trainers at once.

    The functions take turns, so that they can be compared. Alone the fastest call counts, so that the load of other
    processes does not.

    Returns:
        Seconds of each function alone (None on the trainers that slept), and at once (the median).
    """
    alone: list[float | None] = [None] * len(works)
    if world.local_trainer == 0:
        alone = [min(times) for times in _time_local(works, seconds / 2)]
    meet(world, "measuring one trainer of each node")
    at_once = [median(times) for times in _time_local(works, seconds / 2)]
    meet(world, "measuring all trainers")
    return alone, at_once


@collective("world.trainers")
def meet(world: World, what: str) -> None:
    """Sleep until all trainers are here; others may be measuring meanwhile."""
    with world.meeting(what):
        wait(world.trainers.Ibarrier(), PEERS_COMPUTE)
