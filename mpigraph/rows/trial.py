"""One trial at start: whether one-sided ``Get`` reads the right rows here, and which way to read remote rows is faster.

Some MPI libraries refuse windows where ranks have threads; some silently read other rows than the requested ones. So a
job of several nodes first reads known rows of hosts on all nodes, in runs and one by one, in one thread of each
trainer, then in two where MPI allows. If ``Get`` fails, rows are packed by their hosts. Otherwise the faster way reads
them: that depends on the fabric and on the MPI library's treatment of lists of rows. The slowest trainer counts, since
the others wait for it, so all ranks decide alike.

A ``Get`` that hangs cannot be cancelled, so it ends the job, and the message says which variable to set.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import CollectiveError, InvalidArgumentError, MPIGraphError
from mpigraph.log import get_logger
from mpigraph.mpi.agree import allgather_bytes, describe, everywhere
from mpigraph.mpi.compat import library_version
from mpigraph.mpi.wait import until
from mpigraph.mpi.world import World
from mpigraph.rows.packed import PackedTransport
from mpigraph.rows.service import RowService
from mpigraph.rows.transport import Transport
from mpigraph.rows.window import RowWindow
from mpigraph.trace import span

_LONGEST = 60.0  # seconds for as many pairs as follow, on a busy machine; usually 0.1
_PAIRS = 240  # of a trainer and a host that it tries: 62 trainers on two cores have 992 and take minutes
_HELD = 4097  # rows of a host, and so many are timed
_WORDS = 101  # int32, of a row: an odd number of such rows ends, and the next host's begin, at no multiple of 8 bytes
_RUN = 300  # rows of a host that are read in a run
_SINGLE = 64  # rows of a host read one by one
_TARGETS = 16  # hosts that a trainer tries
_REPEATS = 5
_TIMED = 0.2  # seconds for a transport


@collective("service.world.comm")
def choose_transport(service: RowService) -> dict[str, float]:
    """Leave the fastest of the ways of ``service`` that work to it. Servers answer meanwhile.

    Returns:
        Bytes a second of each way that works, on the slowest trainer that tried; empty on one node.

    Raises:
        InvalidArgumentError: the way that the user chose does not work; on every rank.
        CollectiveError: no way works; on every rank.
    """
    rates: dict[str, float] = {}
    while service.transports and not rates:
        faults, rates = _try(service)
        for way in tuple(service.transports):
            if fault := faults[way.name]:
                _drop(service, way, fault)
    if rates:
        service.transports = [max(service.transports, key=lambda way: rates[way.name])]
        if service.world.rank == 0:
            told = sorted(((rate, name) for name, rate in rates.items()), reverse=True)
            get_logger().info("transport: %s", "; ".join(f"{name} {rate / 1e9:.2f} GB/s" for rate, name in told))
    return rates


def _drop(service: RowService, way: Transport, fault: str) -> None:
    """Read no rows in a way that has a fault."""
    library = library_version()
    if service.world.config.transport == "rma":
        raise everywhere(
            InvalidArgumentError(f"transport 'rma' does not work with {library} here ({fault}): use auto or packed")
        )
    if isinstance(way, PackedTransport):
        raise everywhere(CollectiveError(f"{library} does not work on these nodes: {fault}"))
    service.transports.remove(way)
    if service.world.rank == 0:
        get_logger().warning(
            "%s: windows between nodes do not work here (%s); remote rows go by messages", library, fault
        )


@collective("service.world.comm")
def _try(service: RowService) -> tuple[dict[str, str], dict[str, float]]:
    """Return the fault of each way, "" if it works; and if all work, their bytes a second."""
    world = service.world
    doing = "the trial of reading remote rows (MPIGRAPH_TRANSPORT=packed needs no windows)"
    busy = np.array([os.getloadavg()[0] / (os.cpu_count() or 1)])  # processes a core
    world.comm.Allreduce(MPI.IN_PLACE, busy, op=MPI.MAX)
    with world.watch(doing, patience(world, busy[0])):
        try:
            trial = _Trial(service)
        except MPI.Exception as error:  # a library without such windows says so on every rank
            names = [way.name for way in service.transports]
            return dict.fromkeys(names, "") | {names[0]: _first_of_all(world, str(error))}, {}
        faults = trial.faults()
        rates = {} if any(faults.values()) else trial.rates()
        trial.window.close()
    return faults, rates


def patience(world: World, busy: float) -> float:
    """Return the trial's limit in timeouts of the job: more for many pairs of ranks, and ``busy`` processes a core."""
    pairs = len(world.trainer_ranks) * min(len(world.hosts), _TARGETS)
    return min(1.0, _LONGEST / world.config.timeout) * max(1.0, pairs / _PAIRS) * max(1.0, busy)


@collective("world.comm")
def _first_of_all(world: World, fault: str) -> str:
    """Return the fault of the first rank that has one, with its rank."""
    faults = allgather_bytes(world.comm, fault.encode())
    return next((f"rank {rank}: {text.decode()}" for rank, text in enumerate(faults) if text), "")


class _Trial:
    """A window in which each host holds known rows."""

    @collective("service.world.comm")
    def __init__(self, service: RowService) -> None:
        self._service = service
        self._world = world = service.world
        self.window = RowWindow(service, np.arange(len(world.hosts) + 1) * _HELD, (_WORDS,), "i4")
        if world.is_host:
            rows = np.arange(_HELD) + world.host_index * _HELD
            self.window.memory(world.host_index)[:] = known_rows(rows)
        self.window.sync()
        world.comm.Barrier()
        self.window.sync()

    @collective("service.world.comm")
    def faults(self) -> dict[str, str]:
        """Read rows in each way; return the fault of each, "" if all read the right rows."""
        world = self._world
        threads = np.array([2 if world.threads_may_communicate else 0], np.int64)
        world.comm.Allreduce(MPI.IN_PLACE, threads, op=MPI.MIN)
        attempts: list[dict[str, str]] = []
        if world.is_trainer:
            # alone first: MPICH 5.0 over TCP can crash where two threads are the first to reach a rank
            attempts = [self._attempt(0)]
            if threads[0]:
                with ThreadPoolExecutor(2, "mpigraph-trial") as pool:
                    attempts += pool.map(self._attempt, (1, 2))
        until(world.comm.Ibarrier().Test, moves=self._service.hosts.progress)
        names = [way.name for way in self._service.transports]
        return {name: _first_of_all(world, next(filter(None, (its[name] for its in attempts)), "")) for name in names}

    def _attempt(self, number: int) -> dict[str, str]:
        """Read rows of some hosts in each way; return the fault of each. One-sided."""
        hosts, trainers = len(self._world.hosts), len(self._world.trainer_ranks)
        trainer = int(np.searchsorted(self._world.trainer_ranks, self._world.rank))
        targets = (trainer * hosts // trainers + np.arange(min(hosts, _TARGETS))) % hosts  # all trainers try all hosts
        runs = (targets[:, None] * _HELD + np.arange(_RUN)).ravel()
        single = np.random.default_rng([trainer, number]).choice(runs, _SINGLE * len(targets))
        read = {"runs of rows": runs, "single rows": single}
        return {
            way.name: next(filter(None, (self._fault(way, *item) for item in read.items())), "")
            for way in self._service.transports
        }

    def _fault(self, way: Transport, which: str, ids: I64) -> str:
        try:
            wrong = np.flatnonzero((self.window.gather(ids, transport=way) != known_rows(ids)).any(axis=1))
        except (MPI.Exception, MPIGraphError) as error:
            return describe(error)
        if not len(wrong):
            return ""
        host, row = divmod(int(ids[wrong[0]]), _HELD)
        rank = self._world.hosts[host]
        return f"reading {which} {way.how}: row {row} of rank {rank} is wrong ({len(wrong)} of {len(ids)} rows are)"

    @collective("service.world.comm")
    def rates(self) -> dict[str, float]:
        """Return bytes a second of each way for random rows of the next node, on the slowest of the first trainers."""
        world, ways = self._world, self._service.transports
        seconds = np.zeros(len(ways))
        if world.is_trainer and world.local_trainer == 0:
            host = world.hosts_of_node((world.node_index + 1) % world.num_nodes)[0]
            ids = np.random.default_rng(world.rank).integers(0, _HELD, _HELD) + host * _HELD
            out = np.empty((_HELD, _WORDS), np.int32)
            seconds[:] = [_median_seconds(partial(self.window.gather, ids, out, way)) for way in ways]
        until(world.comm.Iallreduce(MPI.IN_PLACE, seconds, op=MPI.MAX).Test, moves=self._service.hosts.progress)
        return {way.name: _HELD * _WORDS * 4 / took for way, took in zip(ways, seconds.tolist(), strict=True)}


def _median_seconds(read: "partial[Array]") -> float:
    """Return the median seconds of a few reads after the first."""
    read()
    times: list[float] = []
    while len(times) < _REPEATS and sum(times) < _TIMED:
        with span("measure") as timed:
            read()
        times.append(timed.seconds)
    return float(np.median(times))


def known_rows(rows: I64) -> Array:
    """Return int32[n, _WORDS]: rows of the window that have their numbers as values."""
    return (rows[:, None] * _WORDS + np.arange(_WORDS) + 1).astype(np.int32)
