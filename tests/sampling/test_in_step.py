"""Rounds of all ranks: trainers that make different numbers of them, failures, servers, ends."""

import threading
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from layouts import REMOTE, Job, Layout, on_all, own_on_layouts
from mpi4py import MPI
from worlds import answer_to, asked_of, behind_head, flat_world, meet, world_of

from mpigraph.errors import CollectiveError, GraphDataError, InvalidArgumentError
from mpigraph.mpi.messages import NotOpenHere
from mpigraph.mpi.world import World
from mpigraph.sampling.exchanges import RoundChannel
from mpigraph.trace import Totals

Words = npt.NDArray[np.int64]


def channel_of(world: World, number: int, before: Callable[[], object] = lambda: None) -> RoundChannel:
    """A channel that answers as every test expects, after ``before``."""

    def answer(words: Words) -> Words:
        before()
        return behind_head(answer_to(words, world.rank))

    return RoundChannel(world, number, answer)


def ask_all(channel: RoundChannel, world: World, error: Exception | None = None) -> None:
    """One round on a channel, with its answer checked."""
    asked = asked_of(world.rank, world.size)
    before = channel.messages, channel.bytes
    answers = channel.ask(asked, error=error)
    assert answers.keys() == asked.keys()
    for target, got in answers.items():
        assert np.array_equal(got.view(np.int64), asked[target] + target)
    others = [len(words) for target, words in asked.items() if target != world.rank]
    assert channel.messages - before[0] == 2 * len(others)  # an answer is as long as its request
    assert channel.bytes - before[1] == 2 * 8 * sum(others)


def serve(channel: RoundChannel, world: World) -> None:
    """Answer on a server or an idle trainer until all trainers are idle, and every rank knows."""
    if world.is_trainer:
        channel.serve_until_idle()
    poll_together(world, [channel])


def poll_together(world: World, channels: list[RoundChannel]) -> None:
    """Poll on servers until every rank is here."""
    meet(world, lambda: any([channel.poll() for channel in channels]))
    world.comm.Barrier()


@pytest.mark.parametrize("order", ["few first", "few last", "nobody", "one"])
def test_trainers_make_different_numbers_of_rounds(layout: Job, order: str) -> None:
    with world_of(layout) as world:
        channel = channel_of(world, 7)
        index = world.trainers.rank if world.is_trainer else 0
        trainers = len(world.trainer_ranks)
        rounds = {"few first": 2 * index, "few last": 2 * (trainers - index), "nobody": 0, "one": 5 * (index == 0)}
        if world.all_local:  # nothing is ever asked
            channel.serve_until_idle()
            assert channel.poll() is False
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
        channel = channel_of(world, 3)
        if world.is_trainer:
            channel.close()
        while not world.all_local and not world.is_trainer and not channel.poll():
            time.sleep(1e-3)
        assert world.is_trainer or channel.poll() is False
        channel.close()
        world.comm.Barrier()


@own_on_layouts(REMOTE)
def test_a_failed_round_raises_for_all_and_the_channel_goes_on(layout: Job) -> None:
    with world_of(layout) as world:
        broken: list[bool] = []

        def fail() -> None:
            if broken:
                raise GraphDataError("cannot answer")

        channel = channel_of(world, 1, fail)
        if world.is_trainer:
            first = world.rank == 0
            ask_all(channel, world)
            with pytest.raises(InvalidArgumentError, match="sampling failed on rank 0: seeds are bad"):
                ask_all(channel, world, InvalidArgumentError("seeds are bad") if first else None)
            if first:
                broken.append(True)
            with pytest.raises(GraphDataError, match="answering a sampling request failed on rank 0: cannot answer"):
                ask_all(channel, world)
            broken.clear()
            ask_all(channel, world)
        serve(channel, world)
        assert channel.rounds == 4
        channel.close()


@own_on_layouts([Layout(4, 1, 2)])
def test_a_server_answers_once_what_is_asked_for_is_open(layout: Job) -> None:
    """Its second thread answers beside a control call that opens it, which this server may leave last."""
    with world_of(layout) as world:
        early: list[bool] = [] if world.is_trainer else [True, True]

        def open_later() -> None:
            if early:
                early.pop()
                raise NotOpenHere("times of edges number 8 are not open here")

        channel = channel_of(world, 1, open_later)
        if world.is_trainer:
            ask_all(channel, world)
        serve(channel, world)
        assert not early
        if world.is_trainer:  # it would not be here
            early.append(True)
            with pytest.raises(CollectiveError, match="number 8 are not open"):
                ask_all(channel, world)
        serve(channel, world)
        channel.close()


@own_on_layouts([Layout(4, 1, 2)])
def test_a_server_that_cannot_answer_yet_has_nothing_to_do(layout: Job) -> None:
    with world_of(layout) as world:
        closed, tries = [not world.is_trainer], list[bool]()

        def look() -> None:
            tries.append(True)
            if any(closed):
                raise NotOpenHere("times of edges number 8 are not open here")

        channel = channel_of(world, 1, look)
        moved: list[bool] = []
        if world.is_trainer:
            ask_all(channel, world)
        else:
            while not tries:
                channel.poll()
            before = len(tries)
            moved = [channel.poll() for _ in range(100)]
            assert channel.in_round and len(tries) == before + 100
            closed.clear()
        serve(channel, world)
        assert not any(moved)
        channel.close()


@own_on_layouts(REMOTE)
def test_own_work_that_fails_is_raised_once_the_round_is_over(layout: Job) -> None:
    with world_of(layout) as world:
        channel = channel_of(world, 1)

        def fail() -> None:
            raise ZeroDivisionError("own work")

        if world.is_trainer:
            if world.rank == int(world.trainer_ranks[0]):
                with pytest.raises(ZeroDivisionError, match="own work"):
                    channel.ask(asked_of(world.rank, world.size), fail)
            else:
                ask_all(channel, world)
            ask_all(channel, world)
        serve(channel, world)
        assert channel.rounds == 2
        channel.close()


@pytest.mark.parametrize("comm", [2], indirect=True)
def test_a_channel_tells_work_from_waiting(comm: MPI.Intracomm) -> None:
    """One rank takes its time, first to answer, then for its own work; the other waits for it."""
    naps: list[bool] = []

    def nap() -> None:
        if naps:
            time.sleep(0.3)

    with flat_world(comm) as world:
        channel = channel_of(world, 1, nap)
        asked = {1 - comm.rank: np.zeros(1, np.int64)}
        for napping in (0, 1):
            if comm.rank == napping:
                naps.append(True)
            with Totals() as totals:
                channel.ask(asked, None if napping == 0 else nap)
            worked, spent = map(totals.snapshot().seconds, ("answer", "meet"))
            good = worked >= 0.3 if comm.rank == napping else spent - worked >= 0.15
            on_all(comm, good and spent >= worked, f"{worked} s of work in {spent} s")
            naps.clear()
        serve(channel, world)
        channel.close()


@pytest.mark.parametrize("comm", [2, 3, 4], indirect=True)
def test_idle_ranks_survive_the_failure_of_one_that_asks(comm: MPI.Intracomm) -> None:
    with flat_world(comm) as world:
        channel = channel_of(world, 1)
        if comm.rank == 0:
            with pytest.raises(InvalidArgumentError, match="seeds are bad"):
                ask_all(channel, world, InvalidArgumentError("seeds are bad"))
            ask_all(channel, world)
        serve(channel, world)
        assert channel.rounds == 2
        channel.close()


@own_on_layouts([Layout(4, 1, 2)])
def test_servers_may_meet_the_rounds_of_two_channels_in_different_orders(layout: Job) -> None:
    with world_of(layout) as world:
        channels = [channel_of(world, number) for number in (1, 2)]

        def ask(channel: RoundChannel) -> None:
            ask_all(channel, world)
            channel.serve_until_idle()

        if not world.is_trainer:
            assert [channel.poll() for channel in channels] == [False, False]
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
                mine.poll()
        poll_together(world, channels)
        assert [channel.rounds for channel in channels] == [1, 1]
        for channel in channels:
            channel.close()
