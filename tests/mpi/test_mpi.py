"""The MPI floor: roles, agreement, rounds and channels, on every layout."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import numpy.typing as npt
import pytest
from layouts import WAIT, Job, Layout, on_all
from mpi4py import MPI
from worlds import flat_world, meet, world_of

from mpigraph.config import Config
from mpigraph.errors import (
    ClosedError,
    CollectiveError,
    GraphDataError,
    InvalidArgumentError,
    MPIGraphError,
    NodeTypeError,
    PartitionError,
)
from mpigraph.mpi.agree import agree, allgather_bytes, together
from mpigraph.mpi.coroutine import Coroutine, Task, finish, run
from mpigraph.mpi.progress import Progress
from mpigraph.mpi.rounds import FAILED, OK, Header, Requests, exchange_answers, exchange_requests
from mpigraph.mpi.wait import IN_ROUND, Policy, wait
from mpigraph.mpi.world import World
from mpigraph.sampling.channel import Answer, Channel

# Roles


def test_roles(layout: Job) -> None:
    ranks, servers, per_node = layout.layout
    per_node = per_node or ranks
    nodes = [list(range(ranks))[i : i + per_node] for i in range(0, ranks, per_node)]
    kept = 0 if ranks == 1 else servers
    trainers = [rank for node in nodes for rank in node[: len(node) - kept]]
    serving = [rank for node in nodes for rank in node[len(node) - kept :]]
    hosts = serving or list(range(ranks))
    with world_of(layout) as world:
        mine = next(node for node in nodes if world.rank in node)
        assert (world.rank, world.size) == (layout.comm.rank, ranks)
        assert (world.num_nodes, world.node_index) == (len(nodes), nodes.index(mine))
        assert (world.node.size, world.node.rank) == (len(mine), mine.index(world.rank))
        assert world.trainer_ranks.tolist() == trainers
        assert world.hosts.tolist() == hosts
        assert world.near.tolist() == [host in mine for host in hosts]
        assert world.all_near == (len(nodes) == 1)
        assert world.is_trainer == (world.rank in trainers)
        assert world.is_host == (world.rank in hosts)
        assert world.host_index == (hosts.index(world.rank) if world.is_host else -1)
        assert world.num_local_trainers == len(mine) - kept
        for index, host in enumerate(hosts):
            node = next(node for node in nodes if host in node)
            assert world.trainers_of_host(index) == [rank for rank in node if rank in trainers]
        for index, trainer in enumerate(trainers):
            node = next(node for node in nodes if trainer in node)
            near = [i for i, host in enumerate(hosts) if host in node]
            assert world.neighbourhood(index) == (near, node.index(trainer), len(node) - kept)
        if world.is_trainer:
            assert world.trainers.rank == trainers.index(world.rank)
            assert world.local_trainer == mine.index(world.rank)
            assert world.identity == f"trainer {world.trainers.rank}/{len(trainers)} (rank {world.rank})"
            assert world.allreduce_sum(world.rank) == sum(trainers)
            assert world.allreduce_minmax(world.rank, largest=True) == max(trainers)
            assert world.allreduce_minmax(world.rank, largest=False) == min(trainers)
            address, port = world.rendezvous()
            assert set(world.trainers.allgather((address, port))) == {(address, port)}
            assert 0 < port < 65536
        else:
            assert world.trainers == MPI.COMM_NULL and world.local_trainer == -1
            assert world.identity == f"server (rank {world.rank})"
    world.close()  # a second time
    with pytest.raises(ClosedError):
        world.dup()


def test_impossible_roles_raise_on_every_rank(comm: MPI.Intracomm) -> None:
    with pytest.raises(InvalidArgumentError, match=r"num_servers must be >= 0 \(got -1\)"):
        World(comm, -1, Config(timeout=WAIT))
    if comm.size > 1:
        with pytest.raises(InvalidArgumentError, match=rf"node 0, which has {comm.size} rank"):
            World(comm, comm.size, Config(timeout=WAIT))
        with pytest.raises(InvalidArgumentError, match=r"node 0, which has 1 rank"):
            World(comm, 1, Config(ranks_per_node=1, timeout=WAIT))
    comm.Barrier()


# Waiting


class Later:
    """A request that completes at its ``tests``-th test."""

    def __init__(self, tests: int) -> None:
        self.left = tests

    def Test(self, status: MPI.Status | None = None) -> bool:
        self.left -= 1
        return self.left <= 0


def add_up(requests: list[Later], error: Exception | None = None) -> Coroutine[int]:
    taken = 0
    for request in requests:
        assert isinstance((yield request), MPI.Status)
        taken += 1
    if error is not None:
        raise error
    return taken


def test_policies_sleep_longer_and_longer_up_to_a_limit() -> None:
    policy = Policy(spins=2, first=1e-5, longest=4e-5)
    assert [policy.seconds(turn) for turn in (0, 1)] == [0, 0]
    assert [policy.seconds(turn) for turn in (2, 3, 5, 10**6)] == pytest.approx([1e-5, 1.5e-5, 3.375e-5, 4e-5])


def test_waits_end_with_what_they_wait_for_or_in_time() -> None:
    later = Later(20)
    wait(later, IN_ROUND)
    assert later.left == 0
    start = time.monotonic()
    endless = Task(add_up([Later(10**9)]))
    assert not finish([endless], IN_ROUND, 0.05)
    assert 0.05 <= time.monotonic() - start < WAIT
    assert finish([], IN_ROUND, 0.0)


def test_coroutines_are_run_or_advanced() -> None:
    assert run(add_up([Later(3), Later(1)])) == 2
    with pytest.raises(KeyError):
        run(add_up([Later(1)], KeyError("x")))
    called: list[str] = []
    task = Task(add_up([Later(2), Later(1), Later(3)]), "adding")
    task.then(lambda: called.append("first"))
    assert [task.advance(), task.taken] == [False, 0]
    assert [task.advance(), task.taken] == [True, 1]
    assert [task.advance(), task.taken, task.done] == [True, 2, False]
    assert not called
    other = Task(add_up([Later(1)]))
    assert finish([task, other], IN_ROUND) and task.result() == 3 and called == ["first"] and other.result() == 1
    task.then(lambda: called.append("second"))
    assert called == ["first", "second"] and not task.advance()
    assert Task(add_up([])).result() == 0
    broken = Task(add_up([Later(2)], KeyError("x")))
    assert finish([broken], IN_ROUND)
    with pytest.raises(KeyError):
        broken.result()


class Asked:
    """Something that the progress thread listens for."""

    outstanding = False
    calls = 0

    def progress(self) -> bool:
        self.calls += 1
        return self.calls % 2 == 0


def soon(done: Callable[[], bool]) -> bool:
    """Whether something happens in another thread."""
    end = time.monotonic() + WAIT
    while not done() and time.monotonic() < end:
        time.sleep(1e-3)
    return done()


def test_the_progress_thread_advances_and_listens() -> None:
    watched: list[str] = []

    @contextmanager
    def watch(what: str) -> Iterator[None]:
        watched.append(f"{what} begins")
        yield
        watched.append(f"{what} ends")

    progress, asked = Progress(watch), Asked()
    for listening in (False, True):
        stop = progress.listen(asked) if listening else None
        left, awaited = Task(add_up([Later(30), Later(2)]), "a"), Task(add_up([Later(30)]), "b")
        awaited.awaited = True
        for task in (left, left, awaited):
            progress.add(task)
        assert soon(lambda left=left: left.done)
        assert awaited.taken == 0 and finish([awaited], IN_ROUND)
        assert soon(lambda: len(watched) == 4) and sorted(watched) == ["a begins", "a ends", "b begins", "b ends"]
        watched.clear()
        if stop is not None:
            assert soon(lambda: asked.calls > 30)
            stop()
            before = asked.calls
            time.sleep(0.02)
            assert asked.calls == before
    progress.close()


# Agreement


def raised(step: AbstractContextManager[None], error: Exception | None) -> MPIGraphError | None:
    """What ``step`` turns this rank's error into."""
    try:
        with step:
            if error is not None:
                raise error
    except MPIGraphError as joint:
        return joint
    return None


def test_one_failure_is_raised_on_every_rank(comm: MPI.Intracomm) -> None:
    assert raised(together(comm, "reading"), None) is None
    for error in (InvalidArgumentError("k must be >= 1 (got 0)"), NodeTypeError("no type 'x'")):
        last = comm.size - 1
        joint = raised(together(comm, "reading part 3"), error if comm.rank == last else None)
        where = "every rank" if comm.size == 1 else f"rank {last}"
        on_all(comm, type(joint) is type(error), repr(joint))  # the class is kept
        on_all(comm, str(joint) == f"reading part 3 failed on {where}: {error}", str(joint))
        assert joint is not None and (joint.__cause__ is error) == (comm.rank == last)


def test_the_same_failure_everywhere_is_said_once(comm: MPI.Intracomm) -> None:
    joint = raised(together(comm, "reading"), PartitionError("no parts"))
    assert type(joint) is PartitionError
    assert str(joint) == "reading failed on every rank: no parts"


def test_different_failures_are_all_named(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    mine = [PartitionError("no parts"), InvalidArgumentError("bad"), None, PartitionError("no parts")][comm.rank]
    joint = raised(together(comm, "reading"), mine)
    first = "rank 0, 3" if comm.size == 4 else "rank 0"
    assert type(joint) is CollectiveError
    assert str(joint) == f"reading failed on {first}: no parts; on rank 1: bad"


def test_foreign_errors_become_collective_errors(comm: MPI.Intracomm) -> None:
    joint = raised(together(comm, "dividing"), ZeroDivisionError("by 0") if comm.rank == 0 else None)
    assert type(joint) is CollectiveError
    assert str(joint).endswith(": ZeroDivisionError: by 0")
    with pytest.raises(CollectiveError, match=r"every rank|on trainer 0: OSError: gone"):
        run(agree(comm, "opening", OSError("gone") if comm.rank == 0 else None, "trainer"))
    run(agree(comm, "opening", None))
    texts = [b"x" * rank for rank in range(comm.size)]
    assert allgather_bytes(comm, texts[comm.rank]) == texts  # nothing from rank 0


# Rounds


def words_between(asker: int, target: int) -> npt.NDArray[np.int64]:
    """What ``asker`` asks of ``target``: sometimes nothing."""
    return np.arange((asker + 2 * target) % 4, dtype=np.int64) + 100 * asker + 10 * target


def answer_to(requests: Requests, me: int, size: int) -> list[npt.NDArray[np.uint8]]:
    """Each asker gets its words back, ``me`` added."""
    return [(requests.of(asker) + me).view(np.uint8) for asker in range(size)]


def test_a_round_carries_words_and_answers(comm: MPI.Intracomm) -> None:
    with flat_world(comm) as world:
        me, size = comm.rank, comm.size
        words = [words_between(me, target) for target in range(size)]
        counts = np.array([len(w) for w in words])
        header = Header(world.comm, 40 + me, FAILED if me == 0 else OK, counts)
        wait(header.request, IN_ROUND)
        assert header.operations.tolist() == [40 + rank for rank in range(size)]
        assert header.statuses.tolist() == [FAILED] + [OK] * (size - 1)
        assert header.counts.tolist() == [len(words_between(rank, me)) for rank in range(size)]
        requests = run(exchange_requests(world.comm, np.concatenate(words), counts, header))
        for asker in range(size):
            assert np.array_equal(requests.of(asker), words_between(asker, me))
        received, failed = run(exchange_answers(world.comm, answer_to(requests, me, size)))
        assert len(failed) == 0
        for target in range(size):
            assert np.array_equal(received[target].view(np.int64), words[target] + target)
        received, failed = run(exchange_answers(world.comm, None if me in (0, 2) else answer_to(requests, me, size)))
        assert received == [] and failed.tolist() == [rank for rank in (0, 2) if rank < size]


def ask_all(channel: Channel, world: World, error: Exception | None = None, broken: bool = False) -> None:
    """One round on a channel, with its answer checked."""

    def answer(requests: Requests) -> list[npt.NDArray[np.uint8]]:
        if broken:
            raise GraphDataError("cannot answer")
        return answer_to(requests, world.rank, world.size)

    words = [words_between(world.rank, target) for target in range(world.size)]
    before = channel.messages, channel.bytes
    for target, got in enumerate(channel.ask(answer, words, error=error)):
        assert np.array_equal(got.view(np.int64), words[target] + target)
    others = [len(asked) for target, asked in enumerate(words) if target != world.rank]
    assert channel.messages - before[0] == 2 * np.count_nonzero(others)  # an answer is as long as its request
    assert channel.bytes - before[1] == 2 * 8 * sum(others)


def serve(channel: Channel, world: World) -> None:
    """Answer on a server or an idle trainer until all trainers are idle, and every rank knows."""

    def answer(requests: Requests) -> list[npt.NDArray[np.uint8]]:
        return answer_to(requests, world.rank, world.size)

    if world.is_trainer:
        channel.serve_until_idle(answer)
    poll_together(world, [channel], answer)


def poll_together(world: World, channels: list[Channel], answer: Answer) -> None:
    """Poll on servers until every rank is here."""
    meet(world, lambda: any([channel.poll(answer) for channel in channels]))
    world.comm.Barrier()


@pytest.mark.parametrize("order", ["few first", "few last", "nobody", "one"])
def test_trainers_make_different_numbers_of_rounds(layout: Job, order: str) -> None:
    with world_of(layout) as world:
        channel = Channel(world, 7)
        index = world.trainers.rank if world.is_trainer else 0
        trainers = len(world.trainer_ranks)
        rounds = {"few first": 2 * index, "few last": 2 * (trainers - index), "nobody": 0, "one": 5 * (index == 0)}
        if world.all_near:  # nothing is ever asked
            channel.serve_until_idle(lambda _: [])
            assert channel.poll(lambda _: []) is False
        else:
            for _ in range(rounds[order] if world.is_trainer else 0):
                ask_all(channel, world)
            serve(channel, world)
            most = {"few first": 2 * (trainers - 1), "few last": 2 * trainers, "nobody": 0, "one": 5}[order]
            assert channel.rounds == most
        channel.close()
        channel.close()


def test_a_server_may_meet_the_end_of_a_channel_before_it_closes_it(layout: Job) -> None:
    with world_of(layout) as world:
        channel = Channel(world, 3)
        if world.is_trainer:
            channel.close()
        while not world.all_near and not world.is_trainer and not channel.poll(lambda _: []):
            time.sleep(1e-3)
        assert world.is_trainer or channel.poll(lambda _: []) is False
        channel.close()
        world.comm.Barrier()


def test_a_failed_round_raises_for_all_and_the_channel_goes_on(layout: Job) -> None:
    with world_of(layout) as world:
        if world.all_near:
            return
        channel = Channel(world, 1)
        if world.is_trainer:
            first = world.rank == 0
            ask_all(channel, world)
            with pytest.raises(InvalidArgumentError, match="sampling failed on rank 0: seeds are bad"):
                ask_all(channel, world, InvalidArgumentError("seeds are bad") if first else None)
            with pytest.raises(GraphDataError, match="answering a sampling request failed on rank 0: cannot answer"):
                ask_all(channel, world, broken=first)
            ask_all(channel, world)
        serve(channel, world)
        assert channel.rounds == 4
        channel.close()


@pytest.mark.parametrize("comm", [2], indirect=True)
def test_a_channel_tells_work_from_waiting(comm: MPI.Intracomm) -> None:
    """One rank takes its time, first to answer, then for its own work; the other waits for it."""

    def nap(*_: object) -> list[npt.NDArray[np.uint8]]:
        time.sleep(0.3)
        return at_once()

    def at_once(*_: object) -> list[npt.NDArray[np.uint8]]:
        return [np.zeros(8, np.uint8)] * 2

    with flat_world(comm) as world:
        channel = Channel(world, 1)
        words = [np.zeros(1, np.int64)] * 2
        for napping in (0, 1):
            worked, spent = channel.work_seconds, channel.seconds
            if napping == 0:
                channel.ask(nap if comm.rank == 0 else at_once, words)
            else:
                channel.ask(at_once, words, meanwhile=nap if comm.rank == 1 else None)
            worked, spent = channel.work_seconds - worked, channel.seconds - spent
            good = worked >= 0.3 if comm.rank == napping else spent - worked >= 0.15
            on_all(comm, good and spent >= worked, f"{worked} s of work in {spent} s")
        serve(channel, world)
        channel.close()


def test_idle_ranks_survive_the_failure_of_one_that_asks(comm: MPI.Intracomm) -> None:
    with flat_world(comm) as world:
        if world.all_near:
            return
        channel = Channel(world, 1)
        if comm.rank == 0:
            with pytest.raises(InvalidArgumentError, match="seeds are bad"):
                ask_all(channel, world, InvalidArgumentError("seeds are bad"))
            ask_all(channel, world)
        serve(channel, world)
        assert channel.rounds == 2
        channel.close()


@pytest.mark.parametrize("layout", [Layout(4, 1, 2)], indirect=True)
def test_servers_may_meet_the_rounds_of_two_channels_in_different_orders(layout: Job) -> None:
    with world_of(layout) as world:
        channels = [Channel(world, number) for number in (1, 2)]

        def ask(channel: Channel) -> None:
            ask_all(channel, world)
            channel.serve_until_idle(answer)

        def answer(requests: Requests) -> list[npt.NDArray[np.uint8]]:
            return answer_to(requests, world.rank, world.size)

        if not world.is_trainer:
            assert [channel.poll(answer) for channel in channels] == [False, False]
        world.comm.Barrier()
        if world.is_trainer:
            threads = [threading.Thread(target=ask, args=(channel,)) for channel in channels]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        else:
            mine = channels[world.host_index]
            while mine.rounds == 0:  # the other server meets the other one first; a poll may make the whole round
                mine.poll(answer)
        poll_together(world, channels, answer)
        assert [channel.rounds for channel in channels] == [1, 1]
        for channel in channels:
            channel.close()
