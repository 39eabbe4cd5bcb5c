"""Both ways to ask owners, messages to them alone and rounds of all ranks: failures, servers, threads, ends."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from layouts import REMOTE, Job, needs_threads, on_all, own_on_layouts
from mpi4py import MPI
from worlds import answer_to, behind_head, flat_world, meet, world_of

from mpigraph.errors import ClosedError, CollectiveError, GraphDataError
from mpigraph.mpi import hosts as requests
from mpigraph.mpi.hosts import FIRST, Hosts
from mpigraph.mpi.messages import NotOpenHere
from mpigraph.mpi.world import World
from mpigraph.sampling.exchanges import ByMessages, Exchange, InRounds
from mpigraph.trace import Totals

Words = npt.NDArray[np.int64]
ECHO, BAD_DATA, NO_MEMORY, LATER = range(4)
THREADS = 3
remote = own_on_layouts(REMOTE)
both = pytest.mark.parametrize("kind", [pytest.param(ByMessages, marks=needs_threads), InRounds])


def nothing() -> None:
    pass


@contextmanager
def exchange_of(world: World, kind: type[Exchange], before: Callable[[], object] = nothing) -> Iterator[Exchange]:
    """An exchange that answers with the words and its rank, after ``before``, or as the first of the words says.

    All ranks take part in what others ask until every trainer has left.
    """
    early = [True, True]  # as often a host is asked for what is not open yet

    def answer(words: Words) -> Words:
        before()
        if words[0] == BAD_DATA:
            raise GraphDataError("weight 7 is bad: ä")
        if words[0] == NO_MEMORY:
            raise MemoryError("no memory")
        if words[0] == LATER and early:
            early.pop()
            raise NotOpenHere("not yet")
        return behind_head(answer_to(words, world.rank))

    hosts = Hosts(world)
    exchange = kind(hosts, answer)
    yield exchange
    if world.is_trainer:
        exchange.leave()
    meet(world, lambda: any([hosts.progress(), exchange.progress()]))


def asking(exchange: Exchange, asked: dict[int, Words], meanwhile: Callable[[], object] = nothing) -> Any:
    """Ask ranks, and return the words of their answers."""
    answers = exchange.ask({rank: np.append(0, words) for rank, words in asked.items()}, meanwhile, "a test")
    return {rank: answer.view(np.int64) for rank, answer in answers.items()}


def ask(world: World, exchange: Exchange, what: int = ECHO, meanwhile: Callable[[], object] = nothing) -> None:
    """Each remote host gets requests of several lengths."""
    for words in (1, 2, FIRST // 8, FIRST // 8 + 1, 100_000):
        asked = {rank: np.full(words + rank, what) for rank in world.hosts[~world.is_local].tolist()}
        got = asking(exchange, asked, meanwhile)
        assert got.keys() == asked.keys()
        assert all(np.array_equal(answer, asked[rank] + rank) for rank, answer in got.items())
    assert asking(exchange, {}) == {}


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("order", ["few first", "few last", "nobody", "one"])
def test_trainers_make_different_numbers_of_rounds(
    layout: Job, order: str, threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may be the last to leave the control call that opens what is asked for."""
    if not threads:
        monkeypatch.setattr(World, "threads_may_communicate", False)
    with world_of(layout) as world, exchange_of(world, InRounds) as rounds:
        if world.is_trainer and not world.all_local:
            index, trainers = world.trainers.rank, len(world.trainer_ranks)
            number = {"few first": index, "few last": trainers - index, "nobody": 0, "one": 3 * (index == 0)}
            for what in [LATER, *[ECHO] * number[order]][: number[order]]:
                ask(world, rounds, what)


@needs_threads
@both
@remote
def test_owners_answer_whoever_asks(layout: Job, kind: type[Exchange], monkeypatch: pytest.MonkeyPatch) -> None:
    """From several threads, some trainers more often than others; also where an owner may hold next to nothing."""
    monkeypatch.setattr(requests, "_MOST_BYTES", 1)
    with world_of(layout) as world, exchange_of(world, kind) as exchange:
        if world.is_trainer:
            index = world.trainers.rank
            threads = [Thread(target=ask, args=(world, exchange)) for _ in range(THREADS if index else 0)]
            for thread in threads:
                thread.start()
            for _ in range(3 * index):
                ask(world, exchange)
            for thread in threads:
                thread.join()
            ask(world, exchange, LATER)


@both
@remote
def test_an_error_is_its_askers_and_the_others_go_on(layout: Job, kind: type[Exchange]) -> None:
    done: list[str] = []
    with world_of(layout) as world, exchange_of(world, kind) as exchange:
        if world.is_trainer and world.trainers.rank == 0:
            rank = int(world.hosts[~world.is_local][0])
            with pytest.raises(GraphDataError, match=rf"sampling request failed on rank {rank}: weight 7 is bad: ä"):
                asking(exchange, {rank: np.array([BAD_DATA])})
            with pytest.raises(CollectiveError, match=rf"failed on rank {rank}: MemoryError: no memory"):
                asking(exchange, {rank: np.array([NO_MEMORY])})
            assert asking(exchange, {rank: np.array([ECHO])}, lambda: done.append("meanwhile")).keys() == {rank}
            assert done == ["meanwhile"]
        if world.is_trainer:
            ask(world, exchange)
        if world.is_trainer and kind is ByMessages:
            exchange.retire()
            with pytest.raises(ClosedError):
                ask(world, exchange)


@both
@remote
def test_own_work_that_fails_is_raised_once_the_others_have_answered(layout: Job, kind: type[Exchange]) -> None:
    with world_of(layout) as world, exchange_of(world, kind) as exchange:

        def fail() -> None:
            raise ZeroDivisionError("own work")

        if world.is_trainer:
            if world.trainers.rank == 0:
                with pytest.raises(ZeroDivisionError, match="own work"):
                    ask(world, exchange, ECHO, fail)
            ask(world, exchange)


@needs_threads
@pytest.mark.parametrize("comm", [2], indirect=True)
def test_an_exchange_tells_work_from_waiting(comm: MPI.Intracomm) -> None:
    """Rank 0 takes its time for its own work, for which nobody waits; then for its answer, for which rank 1 does."""
    naps: list[bool] = []

    def nap() -> None:
        if naps:
            time.sleep(0.3)

    with flat_world(comm) as world, exchange_of(world, InRounds, nap) as rounds:
        for own in (True, False):
            naps[:] = [True] * (comm.rank == 0 and not own)
            comm.Barrier()
            asked = {1 - comm.rank: np.zeros(2, np.int64)}
            with Totals() as totals:
                rounds.ask(asked, partial(time.sleep, 0.3 * (own and comm.rank == 0)), "a test")
            worked, spent = map(totals.snapshot().seconds, ("answer", "meet"))
            waits = spent - worked >= 0.15 if comm.rank and not own else spent >= worked
            on_all(comm, waits and (worked >= 0.3 or comm.rank or not own), f"{worked} s of work in {spent} s")
