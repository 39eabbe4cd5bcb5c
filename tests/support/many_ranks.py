"""One rank's hop in a job of many simulated ranks, in one process: what it sends, and what it does in Python.

The rank, every library class of it, is real; the communicator is not. What the rank sends is counted, and what the
owners answer is made, outside of the time that counts, by the classes that answer in a job.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from mpigraph.config import Config
from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import Schema
from mpigraph.mpi.messages import HEAD, OK, REQUEST
from mpigraph.mpi.world import World
from mpigraph.sampling.answering import Answers
from mpigraph.sampling.in_step import RoundChannel, RoundOperation
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.sampling.protocol import RelationRequest
from mpigraph.sampling.sparse import Sparse
from mpigraph.sampling.strategies import Uniform
from mpigraph.store.store import Store
from mpigraph.store.topology import Adjacency, InMemoryTopology

I64 = npt.NDArray[np.int64]
NODES, DEGREE = 1000, 8  # of each rank; in-neighbours of each node


class Done:
    """A request that has completed."""

    def Test(self, status: Any = None) -> bool:
        return True


class Traffic:
    """The traffic of a rank, and the time that passed on other ranks."""

    def __init__(self) -> None:
        self.messages = self.bytes = 0
        self.away = False
        self.elsewhere = 0.0  # seconds

    @contextmanager
    def at_others(self) -> Iterator[None]:
        """Count the time inside as that of other ranks."""
        begin, self.away = time.thread_time(), True
        try:
            yield
        finally:
            self.elsewhere += time.thread_time() - begin
            self.away = False

    def moved(self, messages: int, nbytes: int) -> None:
        self.messages += messages
        self.bytes += nbytes


class PointToPoint:
    """A communicator on which every owner answers at once."""

    def __init__(self, traffic: Traffic, answer: Callable[[int, I64], I64]) -> None:
        self.size, self.rank = 2, 0  # an error ends the job, as in any communicator with others
        self._traffic = traffic
        self._answer = answer
        self._buffers: dict[tuple[int, int], I64] = {}
        self._rest: dict[tuple[int, int], I64] = {}

    def Irecv(self, spec: list[Any], rank: int, tag: int) -> Done:
        if (rank, tag) in self._rest:
            spec[0][:] = self._rest.pop((rank, tag))
        else:
            self._buffers[rank, tag] = spec[0]
        return Done()

    def Isend(self, spec: list[Any], rank: int, tag: int) -> Done:
        assert tag == REQUEST
        with self._traffic.at_others():
            words = spec[0]
            buffer = self._buffers.pop((rank, int(words[0])))
            answer = self._answer(rank, words[1:])
            here = min(len(answer), len(buffer) - 2)
            buffer[:2] = OK, len(answer)
            buffer[2 : 2 + here] = answer[:here]
            if here < len(answer):
                self._rest[rank, int(words[0])] = answer[here:]
            self._traffic.moved(2 + (here < len(answer)), words.nbytes + 16 + answer.nbytes)
        return Done()


class AllToAll:
    """A communicator on which the other ranks take part in each step, and ask nothing. Every pair is a message."""

    def __init__(self, traffic: Traffic, size: int, answer: Callable[[int, I64], I64]) -> None:
        self.size, self.rank = size, 0
        self._traffic = traffic
        self._answer = answer
        self._answers: dict[int, I64] = {}

    def Ialltoall(self, sent: I64, received: I64) -> Done:
        self._traffic.moved(2 * (self.size - 1), 2 * (self.size - 1) * sent.nbytes // self.size)
        received[:] = 0
        if sent.ndim == 2:
            received[:, 0], received[:, 1] = RoundOperation.SAMPLE, OK
        else:
            for rank, answer in self._answers.items():
                received[rank] = len(answer)
        return Done()

    def Ialltoallv(self, sent: list[Any], received: list[Any]) -> Done:
        words, counts, _ = sent
        self._traffic.moved(2 * (self.size - 1), words.nbytes + received[0].nbytes)
        with self._traffic.at_others():
            if self._answers:
                received[0].view(np.int64)[:] = np.concatenate(list(self._answers.values()))
                self._answers = {}
            else:
                ends = np.cumsum(counts)
                for rank in np.flatnonzero(counts).tolist():
                    self._answers[rank] = self._answer(rank, words[ends[rank] - counts[rank] : ends[rank]])
        return Done()


def watched(*_: object, **__: object) -> AbstractContextManager[None]:
    return nullcontext()


def store_of(rank: int, ranks: int, comm: Any) -> Store:
    """The store of a rank with one relation; every rank has the same number of nodes, whose rows are alike."""
    schema = Schema(("node",), (("node", "to", "node"),))
    hosts = RangeBook(schema, np.arange(ranks + 1)[None] * NODES, np.arange(ranks + 1)[None] * NODES * DEGREE)
    indptr = np.arange(NODES + 1, dtype=np.int64) * DEGREE
    indices = np.sort((np.arange(NODES * DEGREE, dtype=np.int32) * 7919) % (NODES * ranks))
    edges = Adjacency(indptr, indices, rank * NODES, rank * NODES * DEGREE)
    store = Store(World.alone(Config()), 0)
    store.add_in_memory(InMemoryTopology(hosts, [(edges, np.empty(0, np.int64))]))
    world: Any = SimpleNamespace(
        rank=rank,
        size=ranks,
        comm=SimpleNamespace(Dup=lambda: comm),
        dup=lambda: comm,
        hosts=np.arange(ranks),
        host_index=rank,
        is_local=np.arange(ranks) == rank,
        all_local=False,
        is_host=False,
        is_trainer=True,
        trainer_ranks=np.arange(ranks),
        watch=watched,
        meeting=watched,
        config=SimpleNamespace(num_worker_threads=1),
    )
    store.world = world
    return store


class Hop:
    """A hop of one rank.

    Attributes:
        messages: that it sends and receives; a collective step has one each way for each other rank.
        bytes: their bytes.
    """

    def __init__(self, way: str, ranks: int, asked: int, frontier: int = 1000) -> None:
        """Prepare a hop in a job of so many ranks, whose frontier lies on some of them, a part on this one."""
        self._traffic = Traffic()
        answers: dict[int, Answers] = {}

        def answer(rank: int, words: I64) -> I64:
            if rank not in answers:
                answers[rank] = Answers(store_of(rank, ranks, None))
            return answers[rank].answer([words])[0][HEAD:]

        comm = PointToPoint(self._traffic, answer) if way == "sparse" else AllToAll(self._traffic, ranks, answer)
        store = store_of(0, ranks, comm)
        own = Answers(store)
        if way == "sparse":
            channel: Any = Sparse(store.world, lambda: own.answer).open(1)
        else:
            channel = RoundChannel(store.world, 1, own.answer)
        self._service = NeighborService(store, channel)
        owners = np.arange(asked + 1) * (ranks // (asked + 1))
        ids = np.random.default_rng(0).integers(0, NODES, frontier) + NODES * owners[np.arange(frontier) % len(owners)]
        self._requests = [RelationRequest(1, 0, ids, Uniform(5), True, np.uint64(7))]
        self.make()
        self.messages, self.bytes = self._traffic.messages, self._traffic.bytes

    def make(self) -> I64:
        """Make it once; return the sources that were drawn."""
        (neighbors,) = self._service.sample(self._requests).values()
        return neighbors.src.copy()

    def seconds(self, repeats: int = 50) -> float:
        """The median of the processor time that this rank takes, without the owners."""
        taken = []
        for _ in range(repeats):
            self._traffic.elsewhere = 0.0
            begin = time.thread_time()
            self.make()
            taken.append(time.thread_time() - begin - self._traffic.elsewhere)
        return float(np.median(taken))

    def lines(self) -> int:
        """Count the lines of the library that this rank runs, without those of the owners."""
        count = 0

        def see(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal count
            if not frame.f_globals.get("__name__", "").startswith("mpigraph."):
                return None
            count += event == "line" and not self._traffic.away
            return see

        before = sys.gettrace()
        sys.settrace(see)
        try:
            self.make()
        finally:
            sys.settrace(before)
        return count
