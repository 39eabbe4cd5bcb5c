"""Rounds of all ranks: trainers that make different numbers of them, failures, servers, threads, ends."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
from layouts import REMOTE, Job, Layout, needs_threads, on_all, own_on_layouts
from mpi4py import MPI
from worlds import answer_to, asked_of, behind_head, flat_world, meet, world_of

from mpigraph.errors import CollectiveError, GraphDataError
from mpigraph.mpi.hosts import Hosts
from mpigraph.mpi.messages import NotOpenHere
from mpigraph.mpi.world import World
from mpigraph.sampling.exchanges import InRounds
from mpigraph.trace import Totals

Words = npt.NDArray[np.int64]
IN_STEP = [Layout(4, 1, 2), Layout(3, 1, 0)]


@contextmanager
def rounds_of(world: World, before: Callable[[], object] = lambda: None) -> Iterator[InRounds]:
    """Rounds whose answers are as every test expects, after ``before``; others take part until all have left."""

    def answer(words: Words) -> Words:
        before()
        return behind_head(answer_to(words, world.rank))

    hosts = Hosts(world)
    rounds = InRounds(hosts, answer)
    yield rounds
    if world.is_trainer:
        rounds.leave()
    meet(world, lambda: any([hosts.progress(), rounds.progress()]))


def ask_all(rounds: InRounds, world: World, own: Callable[[], object] = lambda: None) -> None:
    """One round, with its answer checked."""
    asked = asked_of(world.rank, world.size)
    answers = rounds.ask({rank: np.append(0, words) for rank, words in asked.items()}, own, "a test")
    assert answers.keys() == asked.keys()
    for target, got in answers.items():
        assert np.array_equal(got.view(np.int64), asked[target] + target)


def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "threads_may_communicate", False)


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("order", ["few first", "few last", "nobody", "one"])
def test_trainers_make_different_numbers_of_rounds(
    layout: Job, order: str, threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not threads:
        without_threads(monkeypatch)
    with world_of(layout) as world, rounds_of(world) as rounds:
        index = world.trainers.rank if world.is_trainer else 0
        trainers = len(world.trainer_ranks)
        number = {"few first": 2 * index, "few last": 2 * (trainers - index), "nobody": 0, "one": 5 * (index == 0)}
        for _ in range(number[order] if world.is_trainer and not world.all_local else 0):
            ask_all(rounds, world)


@own_on_layouts(REMOTE)
def test_an_error_is_its_askers_and_the_rounds_go_on(layout: Job) -> None:
    broken: list[bool] = []

    def fail() -> None:
        if broken:
            raise GraphDataError("cannot answer")

    with world_of(layout) as world, rounds_of(world, fail) as rounds:
        host = int(world.hosts[0])
        if world.is_trainer:
            ask_all(rounds, world)
        meet(world, rounds.progress)
        if world.rank == host:
            broken.append(True)
        world.comm.Barrier()
        if world.is_trainer:
            others = [rank for rank in world.hosts.tolist() if rank != host]
            with pytest.raises(GraphDataError, match=f"answering a sampling request failed on rank {host}: cannot"):
                rounds.ask({host: np.array([0, 7])}, lambda: None, "a test")
            answers = rounds.ask({rank: np.array([0, 7]) for rank in others}, lambda: None, "a test")
            assert {rank: answer.view(np.int64).tolist() for rank, answer in answers.items()} == {
                rank: [7 + rank] for rank in others
            }
        meet(world, rounds.progress)
        broken.clear()
        world.comm.Barrier()
        if world.is_trainer:
            ask_all(rounds, world)


@own_on_layouts([Layout(4, 1, 2)])
@pytest.mark.parametrize("threads", [False, True])
def test_a_server_answers_once_what_is_asked_for_is_open(
    layout: Job, threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the last to leave the control call that opens it."""
    if not threads:
        without_threads(monkeypatch)
    with world_of(layout) as world:
        early: list[bool] = [] if world.is_trainer else [True, True]

        def open_later() -> None:
            if early:
                early.pop()
                raise NotOpenHere("times of edges number 8 are not open here")

        with rounds_of(world, open_later) as rounds:
            if world.is_trainer:
                ask_all(rounds, world)
        assert not early


@own_on_layouts(REMOTE)
def test_own_work_that_fails_is_raised_once_the_round_is_over(layout: Job) -> None:
    with world_of(layout) as world, rounds_of(world) as rounds:

        def fail() -> None:
            raise ZeroDivisionError("own work")

        if world.is_trainer:
            if world.rank == int(world.trainer_ranks[0]):
                with pytest.raises(ZeroDivisionError, match="own work"):
                    ask_all(rounds, world, fail)
            else:
                ask_all(rounds, world)
            ask_all(rounds, world)


@needs_threads
@pytest.mark.parametrize("comm", [2], indirect=True)
def test_an_exchange_tells_work_from_waiting(comm: MPI.Intracomm) -> None:
    """Rank 0 takes its time for its own work, for which nobody waits; then for its answer, for which rank 1 does."""
    naps: list[bool] = []

    def nap() -> None:
        if naps:
            time.sleep(0.3)

    with flat_world(comm) as world, rounds_of(world, nap) as rounds:
        for own in (True, False):
            naps[:] = [True] * (comm.rank == 0 and not own)
            comm.Barrier()
            asked = {1 - comm.rank: np.zeros(2, np.int64)}
            with Totals() as totals:
                rounds.ask(asked, partial(time.sleep, 0.3 * (own and comm.rank == 0)), "a test")
            worked, spent = map(totals.snapshot().seconds, ("answer", "meet"))
            waits = spent - worked >= 0.15 if comm.rank and not own else spent >= worked
            on_all(comm, waits and (worked >= 0.3 or comm.rank or not own), f"{worked} s of work in {spent} s")


@own_on_layouts([*REMOTE, Layout(3, 0, 1)])
@needs_threads
def test_threads_of_several_trainers_ask_at_once(layout: Job) -> None:
    """Nobody is in step: some trainers ask more often than others, from several threads, and one not at all."""
    wrong: list[str] = []
    with world_of(layout) as world, rounds_of(world) as rounds:

        def ask() -> None:
            try:
                for _ in range(20 * world.trainers.rank):
                    ask_all(rounds, world)
            except (AssertionError, CollectiveError) as error:
                wrong.append(str(error))

        threads = [threading.Thread(target=ask) for _ in range(3 if world.is_trainer else 0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
