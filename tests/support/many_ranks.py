"""The work of one rank in a job of many simulated ranks, in one process: what it sends, and what it does in Python.

The rank, every library class of it, is real; the communicator is not. What the rank sends is counted, and what the
owners of nodes answer is made, outside of what counts, by the classes that answer in a job.
"""

import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from mpigraph.config import Config
from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import Schema
from mpigraph.mpi.coroutine import run
from mpigraph.mpi.hosts import REQUEST, Hosts
from mpigraph.mpi.messages import HEAD, OK
from mpigraph.rows.lookahead import CachedRows, UpcomingReads
from mpigraph.rows.owners import Outgoing, RowOwners, push_rows
from mpigraph.rows.packed import PackedTransport
from mpigraph.rows.row_cache import RowCache
from mpigraph.rows.row_tensor import Policy, RowTensor
from mpigraph.rows.segments import RowPool
from mpigraph.rows.window import RowWindow
from mpigraph.sampling.exchanges import ByMessages, InRounds
from mpigraph.sampling.local import Answers
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.sampling.protocol import SamplingRequest
from mpigraph.sampling.strategies import Uniform
from mpigraph.store.edge_tables import Adjacency
from mpigraph.store.store import LoadedGraph, Store
from mpigraph.store.topology import Topology

I64 = npt.NDArray[np.int64]
NODES, DEGREE = 1000, 8  # of each rank; in-neighbours of each node
WIDTH = 32  # float32 of each row, which all are the number of its node


class Done:
    """A request that has completed."""

    nbytes = 0

    def Test(self, status: Any = None) -> bool:
        if status is not None:
            status.Set_elements(MPI.BYTE, self.nbytes)
        return True


class Cost(NamedTuple):
    """What one piece of work costs a rank.

    Attributes:
        messages: that it sends and receives; a collective step has one each way for each other rank.
        bytes: their bytes.
        lines: of the library that it runs.
        allocated: bytes that these lines allocate, whether they are kept or not; without lines of less than a KiB.
    """

    messages: int
    bytes: int
    lines: int
    allocated: int


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

    def cost_of(self, work: Callable[[], object]) -> Cost:
        """Do some work, and count what it costs without the work of the owners."""
        lines = allocated = known = 0

        def see(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal lines, allocated, known
            if not frame.f_globals.get("__name__", "").startswith("mpigraph."):
                return None
            if not self.away:
                lines += event == "line"
                new = tracemalloc.get_traced_memory()[1] - known
                allocated += new if new >= 1024 else 0
            tracemalloc.reset_peak()
            known = tracemalloc.get_traced_memory()[0]
            return see

        self.messages = self.bytes = 0
        before = sys.gettrace()
        tracemalloc.start()
        sys.settrace(see)
        try:
            work()
        finally:
            sys.settrace(before)
            tracemalloc.stop()
        return Cost(self.messages, self.bytes, lines, allocated)


class PointToPoint:
    """A communicator on which every owner answers at once."""

    def __init__(self, traffic: Traffic, answer: Callable[[int, I64], npt.NDArray[Any]], head: bool = True) -> None:
        """``head``: an answer follows its status and length, and its rest a first message that is full."""
        self.size, self.rank = 2, 0  # an error ends the job, as in any communicator with others
        self._traffic = traffic
        self._answer = answer
        self._head = head
        self._posted: dict[tuple[int, int], tuple[Any, Done]] = {}
        self._rest: dict[tuple[int, int], I64] = {}

    def Irecv(self, spec: list[Any], rank: int, tag: int) -> Done:
        done = Done()
        if (rank, tag) in self._rest:
            rest = self._rest.pop((rank, tag))
            spec[0].view(np.int64)[:] = rest
            done.nbytes = rest.nbytes
        else:
            self._posted[rank, tag] = spec[0], done
        return done

    def Isend(self, spec: Any, rank: int, tag: int) -> Done:
        assert tag == REQUEST
        with self._traffic.at_others():
            words = spec[0] if isinstance(spec, list) else spec
            tag = int(words[0]) % (1 << 15)
            buffer, done = self._posted.pop((rank, tag))
            answer = self._answer(rank, words[1:])
            if not self._head:
                done.nbytes = answer.nbytes
                buffer[: answer.nbytes] = answer.reshape(-1).view(np.uint8)
                self._traffic.moved(2, words.nbytes + answer.nbytes)
                return Done()
            buffer = buffer.view(np.int64)
            here = min(len(answer), len(buffer) - 2)
            buffer[:2] = OK, len(answer)
            buffer[2 : 2 + here] = answer[:here]
            done.nbytes = 16 + 8 * here
            if here < len(answer):
                self._rest[rank, tag] = answer[here:]
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
            received[:, 0], received[:, 1] = 1, OK  # they ask
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
                    answer = self._answer(rank, words[ends[rank] - counts[rank] : ends[rank]])
                    self._answers[rank] = np.concatenate([[OK, len(answer)], answer])
        return Done()


def watched(*_: object, **__: object) -> AbstractContextManager[None]:
    return nullcontext()


def world_of_many(rank: int, ranks: int, comm: Any) -> Any:
    """What a rank knows of the job; each rank is a node, hosts and trains."""
    one = np.arange(ranks) == rank
    alone = SimpleNamespace(
        Dup=lambda: comm, Barrier=lambda: None, Allreduce=lambda *_, **__: None, Get_attr=lambda _: 32767
    )
    return SimpleNamespace(
        rank=rank,
        size=ranks,
        comm=alone,
        dup=lambda: comm,
        hosts=np.arange(ranks),
        host_index=rank,
        node_index=rank,
        nodes_of_hosts=np.arange(ranks),
        nodes_of_trainers=np.arange(ranks),
        hosts_of_node=lambda node: [node],
        num_local_trainers=1,
        local_trainer=0,
        is_local=one,
        all_local=False,
        closed=False,
        is_host=True,
        is_trainer=True,
        trainer_ranks=np.arange(ranks),
        progress=None,
        at_close=watched,
        watch=watched,
        meeting=watched,
        config=Config(),
    )


def book_of_many(ranks: int) -> RangeBook:
    """The nodes of each rank and their edges, of one relation."""
    schema = Schema(("node",), (("node", "to", "node"),))
    return RangeBook(schema, np.arange(ranks + 1)[None] * NODES, np.arange(ranks + 1)[None] * NODES * DEGREE)


class OneHost(Topology):
    """One relation in this process's memory, as its host has it. Nothing communicates."""

    everywhere = False

    def __init__(self, hosts: RangeBook, edges: Adjacency) -> None:
        self.hosts, self.listed, self._edges = hosts, np.zeros(1, np.bool_), edges
        self.dtype = edges.indices.dtype
        starts = np.array([[0], [NODES * DEGREE]]).repeat(hosts.num_parts, axis=1)
        self.edges: Any = SimpleNamespace(starts=starts, offsets=hosts.edge_table[0], numbers=lambda _, ids: ids)

    def adjacency(self, relation: int, host: int) -> Adjacency:
        return self._edges


def store_of(rank: int, ranks: int, comm: Any) -> Store:
    """The store of a rank with one relation; all ranks are alike."""
    indptr = np.arange(NODES + 1, dtype=np.int64) * DEGREE
    indices = np.sort((np.arange(NODES * DEGREE, dtype=np.int32) * 7919) % (NODES * ranks))
    edges = Adjacency(indptr, indices, rank * NODES, rank * NODES * DEGREE)
    store = Store.__new__(Store)  # without transports
    store.world, store.graphs, store.graph_of_number, store.tensors = world_of_many(rank, ranks, comm), {}, {}, {}
    store._next, store._derived = 0, {}
    graph = LoadedGraph(store.new_number(), OneHost(book_of_many(ranks), edges))
    store.graphs["S"] = store.graph_of_number[graph.number] = graph
    return store


class Hop:
    """A hop of one rank."""

    def __init__(self, way: str, ranks: int, asked: int) -> None:
        """Prepare a hop in a job of so many ranks, whose frontier lies on some of them, a part on this one."""
        answers: dict[int, Answers] = {}

        def answer(rank: int, words: I64) -> I64:
            if rank not in answers:
                answers[rank] = Answers(store_of(rank, ranks, None))
            return answers[rank].answer(words)[HEAD:]

        traffic = self._traffic = Traffic()
        comm = PointToPoint(traffic, answer) if way == "sparse" else AllToAll(traffic, ranks, answer)
        store = store_of(0, ranks, comm)
        kind = ByMessages if way == "sparse" else InRounds
        store.exchange = kind(Hosts(store.world), Answers(store).answer)
        self._service = NeighborService(store)
        owners = np.arange(asked + 1) * (ranks // (asked + 1))
        ids = np.random.default_rng(0).integers(0, NODES, NODES) + NODES * owners[np.arange(NODES) % len(owners)]
        self._requests = [SamplingRequest(1, 0, np.ones(1, np.bool_), ids, Uniform(5), True, np.uint64(7))]
        self.make()

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

    def cost(self) -> Cost:
        """What it costs to make it once more."""
        return self._traffic.cost_of(self.make)


class _Segments:
    """Memory of a node whose ranks are this process."""

    def __init__(self) -> None:
        self.begin = 0
        self.win = SimpleNamespace(Sync=lambda: None)

    def take(self, sizes: I64, remote: bool, what: str) -> Any:
        held = np.zeros(int(sizes[0]), np.uint8)
        return SimpleNamespace(begin=0, win=self.win, memory=lambda host: held)


class Reads:
    """The reads of minibatches whose rows are known ahead, with a cache or without."""

    def __init__(self, ranks: int, asked: int, slots: int) -> None:
        """Prepare them in a job of so many ranks, of which the first have all rows that are read.

        Args:
            ranks: of the job.
            asked: ranks that have rows besides this one.
            slots: of the cache; 0 for none.
        """
        self._traffic, self._nodes = Traffic(), NODES * (asked + 1)
        world = world_of_many(0, ranks, PointToPoint(self._traffic, self._rows_of, head=False))
        nothing: Any = None
        way = PackedTransport(Hosts(world), RowPool(), nothing)
        service: Any = SimpleNamespace(
            world=world, segments=_Segments(), one_sided=False, transport=way, packed=way, number_window=lambda: 1
        )
        self._window = window = RowWindow(service, book_of_many(ranks).node_offsets[0], (WIDTH,), "f4")
        window.memory(0)[:] = np.arange(NODES)[:, None]
        rows = RowTensor(window, 0, 1, "g", "feat", Policy(True, 0), "float32", "float32")
        self._upcoming = UpcomingReads(window)
        self._cached = CachedRows(rows, RowCache(world, 1, window, slots, 4), self._upcoming) if slots else None
        self.make(20)

    def _rows_of(self, rank: int, words: I64) -> npt.NDArray[np.float32]:
        """The rows that a host answers with, of which it is asked in ids of 32 bits."""
        asked = words[3:].view(np.uint32)[: words[1]] + NODES * rank
        return np.repeat(asked[:, None], WIDTH, axis=1).astype(np.float32)

    def make(self, number: int) -> None:
        """Make so many, four of which are known at a time, and check their rows."""
        random = np.random.default_rng(number)
        rows = np.empty((1000, WIDTH), np.float32)
        for batch in range(0, number + 4):
            if batch < number:
                read, fresh = self._upcoming.announce(batch, random.permutation(self._nodes)[:1000])
                if self._cached:
                    self._cached.announce(read, fresh)
            if batch >= 4:
                read = self._upcoming.reads[0]
                self._cached.read(read, rows) if self._cached else self._window.gather(read.ids, rows)
                self._upcoming.done()
                assert (rows == read.ids[:, None]).all()

    def cost(self) -> Cost:
        """What ten more of them cost."""
        return self._traffic.cost_of(lambda: self.make(10))


class _Pushes:
    """A communicator on which the other trainers take part in a push, without gradients."""

    def __init__(self, traffic: Traffic, size: int) -> None:
        self.size, self.rank = size, 0
        self._traffic = traffic

    def Ialltoall(self, sent: I64, received: I64) -> Done:
        self._traffic.moved(2 * (self.size - 1), 2 * sent.nbytes)
        received[:] = sent[0, 0], OK, 0
        received[0] = sent[0]
        return Done()

    def Ialltoallv(self, sent: list[Any], received: list[Any]) -> Done:
        rows, counts, _ = sent
        self._traffic.moved(2 * (self.size - 1), rows.nbytes)
        received[0][:] = rows[: counts[0]]
        return Done()


class Push:
    """Gradients of some rows of this rank and of others, on their way to their owners."""

    def __init__(self, ranks: int, asked: int, rows: int = 1000) -> None:
        """Prepare it in a job of so many ranks; the rows belong to the first ones."""
        self._traffic = Traffic()
        self._comm = _Pushes(self._traffic, ranks)
        world: Any = world_of_many(0, ranks, self._comm)
        self._owners = RowOwners(world, book_of_many(ranks).node_offsets[0])
        self._ids = np.random.default_rng(0).integers(0, NODES * (asked + 1), rows)
        self.make()

    def make(self) -> None:
        """Make it once."""
        order, counts = self._owners.route(self._ids)
        outgoing = Outgoing(self._ids[order], np.zeros((len(order), WIDTH), np.float32), order, counts)
        comm: Any = self._comm
        pushed = run(push_rows(comm, "a push", 1, "gradients", outgoing, np.empty))
        assert np.array_equal(pushed.ids, self._ids[self._ids < NODES])

    def cost(self) -> Cost:
        """What it costs to make it once more."""
        return self._traffic.cost_of(self.make)
