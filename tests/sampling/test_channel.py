"""Channels: rounds of trainers that make different numbers of them, failures, servers, ends."""

import threading
import time

import numpy as np
import numpy.typing as npt
import pytest
from layouts import FAR, Job, Layout, on_all, own_on_layouts
from mpi4py import MPI
from worlds import answer_to, flat_world, meet, words_between, world_of

from mpigraph.errors import (
    GraphDataError,
    InvalidArgumentError,
)
from mpigraph.mpi.rounds import Requests
from mpigraph.mpi.world import World
from mpigraph.sampling.channel import Answer, Channel


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


@own_on_layouts(FAR)
def test_a_failed_round_raises_for_all_and_the_channel_goes_on(layout: Job) -> None:
    with world_of(layout) as world:
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


@pytest.mark.parametrize("comm", [2, 3, 4], indirect=True)
def test_idle_ranks_survive_the_failure_of_one_that_asks(comm: MPI.Intracomm) -> None:
    with flat_world(comm) as world:
        channel = Channel(world, 1)
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
