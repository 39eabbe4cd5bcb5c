"""A test of MPI's windows on this machine: known rows, written and read at start. A way that fails is not used.

Some MPI libraries refuse windows where ranks have threads; some silently read other rows than the requested ones. So a
job of several nodes first makes all its operations on a small window: reads of runs and of single rows by every
transport, writes, and additions under the lock, whose sum is right only if the lock excludes. Trainers do so in one
thread, then in two where MPI allows, to hosts on all nodes; each host then checks its rows.

An operation that hangs cannot be cancelled, so it ends the job, and the message says which variable to set.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from mpi4py import MPI

from mpigraph.arrays import I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.errors import MPIGraphError
from mpigraph.kernels.row_ops import as_words
from mpigraph.mpi.agree import allgather_bytes, describe
from mpigraph.mpi.world import World
from mpigraph.rows.rma import RmaTransport
from mpigraph.rows.service import RowService
from mpigraph.rows.transport import RemoteRows, Transport
from mpigraph.rows.window import RowWindow

_LONGEST = 60.0  # seconds for as many pairs as follow, on a busy machine; usually 0.1
_PAIRS = 240  # of a trainer and a host that it tries: 62 trainers on two cores have 992 and take minutes
_HELD = 300  # rows of a host that are read
_WORDS = 5  # int32, of a row: an odd number of such rows ends, and the next host's begin, at no multiple of 8 bytes
_SINGLE = 64  # rows of a host read one by one
_TARGETS = 16  # hosts that a trainer tries
_ADDITIONS = 3  # under the lock, by each attempt


@collective("service.world.comm")
def find_working_windows(service: RowService) -> None:
    """Make ``service`` use the first way to allocate windows that works. Does nothing on one node.

    Raises MPIGraphError if no way works; on every rank.
    """
    while service.transports and (fault := _find_fault(service)):
        service.mutex.close()
        service.drop(fault)


@collective("service.world.comm")
def _find_fault(service: RowService) -> str:
    """Return the fault of the windows in use, "" if they work."""
    world = service.world
    doing = f"the test of windows of kind {service.kind!r} (MPIGRAPH_TRANSPORT=packed needs none)"
    busy = np.array([os.getloadavg()[0] / (os.cpu_count() or 1)])  # processes a core
    world.comm.Allreduce(MPI.IN_PLACE, busy, op=MPI.MAX)
    with world.watch(doing, patience(world, busy[0])):
        try:
            trial = _Trial(service)
        except MPI.Exception as error:  # a library without such windows says so on every rank
            return _first_of_all(service, str(error))
        faults: list[str] = []
        if world.is_trainer:
            # alone first: MPICH 5.0 over TCP can crash where two threads are the first to reach a rank
            faults = [trial.attempt(0)]
            with ThreadPoolExecutor(2, "mpigraph-self-test") as threads:
                faults += threads.map(trial.attempt, range(1, trial.num_attempts))
        service.complete(world.comm.Ibarrier())
        fault = _first_of_all(service, next(filter(None, faults), ""))
        if not fault:
            fault = _first_of_all(service, trial.look() if world.is_host else "")
        trial.window.close()
        return fault


def patience(world: World, busy: float) -> float:
    """Return the test's limit in timeouts of the job: more for many pairs of ranks, and ``busy`` processes a core."""
    pairs = len(world.trainer_ranks) * min(len(world.hosts), _TARGETS)
    return min(1.0, _LONGEST / world.config.timeout) * max(1.0, pairs / _PAIRS) * max(1.0, busy)


@collective("service.world.comm")
def _first_of_all(service: RowService, fault: str) -> str:
    """Return the fault of the first rank that has one, with its rank."""
    faults = allgather_bytes(service.world.comm, fault.encode())
    return next((f"rank {rank}: {text.decode()}" for rank, text in enumerate(faults) if text), "")


class _Trial:
    """A window in which each host holds known rows, then one for each attempt to write, then one to add to.

    Attributes:
        service: the transports and the way to allocate the window.
        window: the window.
        num_attempts: of each trainer: the first alone, the others in threads.
    """

    @collective("service.world.comm")
    def __init__(self, service: RowService) -> None:
        self.service = service
        self.world = world = service.world
        self._trainer = int(np.searchsorted(world.trainer_ranks, world.rank))
        attempts = np.array([3 if world.threads_may_communicate else 1], np.int64)
        world.comm.Allreduce(MPI.IN_PLACE, attempts, op=MPI.MIN)
        self.num_attempts = int(attempts[0])
        self.held = (_HELD + len(world.trainer_ranks) * self.num_attempts + 1) | 1
        self.window = RowWindow(service, np.arange(len(world.hosts) + 1) * self.held, (_WORDS,), "i4")
        if world.is_host:
            begin = world.host_index * self.held
            self.window.memory(world.host_index)[:_HELD] = known_rows(np.arange(begin, begin + _HELD))
        self.window.sync()
        world.comm.Barrier()
        self.window.sync()

    def targets(self, trainer: int) -> I64:
        """Return the hosts that a trainer tries: consecutive ones, so that all trainers together try all."""
        hosts = len(self.world.hosts)
        return (trainer * hosts // len(self.world.trainer_ranks) + np.arange(min(hosts, _TARGETS))) % hosts

    def triers(self, host: int) -> I64:
        """Return the trainers that try a host."""
        hosts, trainers = len(self.world.hosts), len(self.world.trainer_ranks)
        return np.flatnonzero((host - np.arange(trainers) * hosts // trainers) % hosts < min(hosts, _TARGETS))

    def slots(self, trainer: int, number: int) -> I64:
        """Return the rows that an attempt of a trainer writes: one of each of its targets."""
        return self.targets(trainer) * self.held + _HELD + trainer * self.num_attempts + number

    def look(self) -> str:
        """Return the fault of this host's rows, "" if they are right, once all trainers are done."""
        self.window.sync()
        host = self.world.host_index
        begin = host * self.held
        expected = np.zeros((self.held, _WORDS), np.int32)
        expected[:_HELD] = known_rows(np.arange(begin, begin + _HELD))
        trainers = self.triers(host)
        slots = (_HELD + trainers[:, None] * self.num_attempts + np.arange(self.num_attempts)).ravel()
        expected[slots] = known_rows(begin + slots)
        adding = int(self.adds_to(trainers, host).sum())
        expected[-1, 0] += _ADDITIONS * self.num_attempts * adding
        wrong = np.flatnonzero((self.window.memory(host) != expected).any(axis=1))
        if not len(wrong):
            return ""
        if wrong[0] == self.held - 1:
            count = self.window.memory(host)[-1, 0]
            return f"the lock does not exclude: of {expected[-1, 0]} additions {count} are there"
        return f"row {wrong[0]} here is wrong after others wrote"

    def adds_to(self, trainers: I64, host: int) -> Mask:
        """Return bool[n], the trainers that can hold the lock of a host, and read and write meanwhile."""
        is_local: Mask = self.world.nodes_of_trainers[trainers] == self.world.nodes_of_hosts[host]
        return is_local | isinstance(self.service.transports[0], RmaTransport)

    def attempt(self, number: int) -> str:
        """Make all operations that a job makes on windows; return the fault, "" if all went well. One-sided."""
        try:
            return self._attempt(number)
        except (MPI.Exception, MPIGraphError) as error:
            return describe(error)

    def _attempt(self, number: int) -> str:
        targets = self.targets(self._trainer)
        begins = targets * self.held
        runs = (begins[:, None] + np.arange(_HELD)).ravel()
        random = np.random.default_rng([self._trainer, number])
        single = random.choice(runs, _SINGLE * len(targets))
        written = self.slots(self._trainer, number)
        self.window.scatter(written, known_rows(written))
        for way in self.service.transports:
            for ids, which in ((runs, "runs of rows"), (single, "single rows"), (written, "rows just written")):
                if fault := self._read(way, ids, which):
                    return fault
        for host in targets.tolist():
            if self.adds_to(np.array([self._trainer]), host)[0]:
                for _ in range(_ADDITIONS):
                    self._add_one(host)
        return ""

    def _read(self, way: Transport, ids: I64, which: str) -> str:
        wrong = np.flatnonzero((self.window.gather(ids, transport=way) != known_rows(ids)).any(axis=1))
        if not len(wrong):
            return ""
        host, row = divmod(int(ids[wrong[0]]), self.held)
        rank = self.world.hosts[host]
        return f"reading {which} {way.how}: row {row} of rank {rank} is wrong ({len(wrong)} of {len(ids)} rows are)"

    def _add_one(self, host: int) -> None:
        """Read, add, write back: without the lock additions would be lost."""
        window = self.window
        with self.service.mutex.hold(host):
            if self.world.is_local[host]:
                window.sync()
                window.memory(host)[-1, 0] += 1
                window.sync()
                return
            writer = self.service.transports[0]
            assert isinstance(writer, RmaTransport)
            row = window.gather(np.array([(host + 1) * self.held - 1]), transport=writer)
            row[0, 0] += 1
            last = np.array([self.held - 1])
            there = RemoteRows(int(self.world.hosts[host]), self.held, last, np.zeros(1, np.int64))
            writer.put(window.handle, there, as_words(row))


def known_rows(rows: I64) -> Array:
    """Return int32[n, _WORDS]: rows of the window that have their numbers as values."""
    return (rows[:, None] * _WORDS + np.arange(_WORDS) + 1).astype(np.int32)
