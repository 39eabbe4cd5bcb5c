"""Requests to hosts: answers, errors, refusals, bounds, chunks, ends."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pytest
from layouts import WAIT, needs_threads, on_all
from mpi4py import MPI
from worlds import behind_head, flat_world

from mpigraph.errors import GraphDataError
from mpigraph.mpi.coroutine import Coroutine, finish
from mpigraph.mpi.hosts import FIRST, Chunk, Hosts, Kind, Request, complete
from mpigraph.mpi.messages import HEAD, NotOpenHere
from mpigraph.mpi.wait import until

pytestmark = needs_threads
Words = npt.NDArray[np.int64]
BAD, LATER = -1, -2


def sums(early: list[int]) -> Callable[[Words], Words]:
    """The answer: the words again and their sum; errors, and answers that come too early."""

    def answer(words: Words) -> Words:
        if words[0] == BAD:
            raise GraphDataError("weight 7 is bad: ä")
        if words[0] == LATER and early:
            early.pop()
            raise NotOpenHere("not yet")
        return behind_head(np.append(words, words.sum()))

    return answer


@contextmanager
def hosts_of(comm: MPI.Intracomm, answer: Callable[[Words], Words], thread: bool = True) -> Iterator[Hosts]:
    """Every rank is a host, with a thread that answers or without."""
    with flat_world(comm) as world:
        progress = world.progress
        if not thread:
            world.progress = None
        hosts = Hosts(world)
        world.progress = progress
        hosts.handlers[Kind.SAMPLE] = hosts.answering(answer)
        comm.Barrier()
        yield hosts
        until(comm.Ibarrier().Test, moves=hosts.progress)


def sum_of(hosts: Hosts, rank: int, words: Words) -> Coroutine[Words]:
    return hosts.call(rank, Kind.SAMPLE, np.append(0, words), "summing")


@pytest.mark.parametrize("comm", [2, 3, 4], indirect=True)
def test_hosts_answer_every_rank(comm: MPI.Intracomm) -> None:
    """Short and long messages from several threads; an error is that of its asker alone."""
    with hosts_of(comm, sums([1, 2])) as hosts:
        wrong: list[str] = []

        def ask_all(seed: int) -> None:
            for length in (1, 2, FIRST // 8 - 1, FIRST // 8, 100_000):
                words = np.arange(length) + seed
                got = finish((sum_of(hosts, r, words) for r in range(comm.size)), "sums", asked=range(comm.size))
                wrong.extend("sum" for answer in got if not np.array_equal(answer, np.append(words, words.sum())))
            for what in (BAD, LATER):
                asked = [sum_of(hosts, 0, np.array([first])) for first in (what, 7)]
                try:
                    wrong.extend("later" for answer in finish(asked, "sums") if len(answer) != 2)
                except GraphDataError as error:
                    wrong.extend(["error"] if "summing failed on rank 0: weight 7 is bad: ä" not in str(error) else [])

        threads = [threading.Thread(target=ask_all, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(comm.Ibarrier().Test, moves=hosts.progress)
        while hosts.outstanding:
            time.sleep(1e-3)
        on_all(comm, not wrong and hosts.held == 0, f"{wrong}")


@pytest.mark.parametrize("comm", [2], indirect=True)
def test_a_host_whose_replies_wait_takes_in_no_more(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    many, words = 40, 1 << 17  # answers of 1 MiB, which MPI does not send before they are received
    monkeypatch.setattr("mpigraph.mpi.hosts._MOST_BYTES", 8 << 20)
    answered: list[int] = []

    def answer(asked: Words) -> Words:
        answered.append(int(asked[0]))
        return behind_head(np.full(words, asked[0]))

    taken = 8
    with hosts_of(comm, answer, thread=False) as hosts:
        if comm.rank == 0:
            comm.Barrier()
            quiet = 0
            while quiet < 1000:
                quiet = 0 if hosts.progress() else quiet + 1
            taken = len(answered)
            comm.Barrier()
            end = time.monotonic() + WAIT
            while len(answered) < many or hosts.outstanding:
                hosts.progress()
                assert time.monotonic() < end
            assert answered == list(range(many))
        else:
            first = int(Kind.SAMPLE) << 31
            sending = [hosts.comm.Isend(np.array([first + k + 1, k]), 0, 0) for k in range(many)]
            comm.Barrier()
            comm.Barrier()
            for k in range(many):
                head, rest = np.empty(HEAD + FIRST // 8, np.int64), np.empty(words - FIRST // 8, np.int64)
                hosts.comm.Recv(head, 0, k + 1)
                hosts.comm.Recv(rest, 0, k + 1)
                assert head[:HEAD].tolist() == [0, words] and (head[HEAD:] == k).all() and (rest == k).all()
            MPI.Request.Waitall(sending)
    on_all(comm, 8 <= taken <= 9, f"{taken}")


@pytest.mark.parametrize("comm", [2], indirect=True)
def test_a_host_that_cannot_answer_yet_has_nothing_to_do(comm: MPI.Intracomm) -> None:
    closed, tries, moved = [True], list[int](), list[bool]()

    def answer(words: Words) -> Words:
        tries.append(1)
        if closed:
            raise NotOpenHere("not yet")
        return behind_head(words)

    with hosts_of(comm, answer, thread=False) as hosts:
        if comm.rank == 0:
            while not tries:
                hosts.progress()
            moved = [hosts.progress() for _ in range(100)]
            assert hosts.outstanding and tries == [1] * 101
            closed.clear()
        else:
            (got,) = finish([sum_of(hosts, 0, np.array([6]))], "it")
            assert got.tolist() == [6]
    on_all(comm, not any(moved))


@pytest.mark.parametrize("comm", [2], indirect=True)
def test_own_work_that_fails_is_raised_once_all_have_answered(comm: MPI.Intracomm) -> None:
    """Until then MPI writes to the memory of the answers."""
    answered: list[Words] = []
    with hosts_of(comm, sums([])) as hosts:

        def ask() -> Coroutine[None]:
            answered.append((yield from sum_of(hosts, 0, np.array([1, 2]))))

        def fail() -> None:
            raise ZeroDivisionError("own work")

        if comm.rank:
            with pytest.raises(ZeroDivisionError, match="own work"):
                finish([ask(), ask()], "sums", meanwhile=fail)
    on_all(comm, comm.rank == 0 or [words.tolist() for words in answered] == [[1, 2, 3]] * 2)


@pytest.mark.parametrize("comm", [2], indirect=True)
@pytest.mark.parametrize("sent", [5, 3, 0])
def test_chunks_are_put_into_their_places_until_one_refuses(comm: MPI.Intracomm, sent: int) -> None:
    with hosts_of(comm, sums([])) as hosts:

        def handle(request: Request) -> Coroutine[None]:
            parts = [np.full(2, k) for k in range(sent)] + ([np.empty(0)] if sent < 5 else [])
            yield from complete([hosts.reply(request, part) for part in parts])

        hosts.handlers[Kind.READ] = handle
        comm.Barrier()
        placed: list[int] = []

        def chunks() -> Iterator[Chunk]:
            for _ in range(5):
                memory = np.empty(2, np.int64)
                yield Chunk(memory, lambda memory=memory: placed.extend(memory.tolist()))

        if comm.rank:
            for ahead in (1, 2, 5):
                placed.clear()
                asking = hosts.ask(0, Kind.READ, np.zeros(1, np.int64), chunks(), ahead)
                assert finish([asking], "chunks") == [sent == 5]
                assert placed == [k for k in range(sent) for _ in range(2)]


@pytest.mark.parametrize("comm", [2, 3, 4], indirect=True)
def test_what_threads_tell_hosts_arrives_before_they_close(comm: MPI.Intracomm) -> None:
    told: list[int] = []
    with hosts_of(comm, sums([])) as hosts:

        def note(request: Request) -> Coroutine[None]:
            told.append(int(request.words[0]))
            yield from ()

        hosts.handlers[Kind.ROUND] = note
        comm.Barrier()

        def tell(number: int) -> None:
            for _ in range(200):
                for rank in range(comm.size):
                    hosts.tell(rank, Kind.ROUND, number)

        threads = [threading.Thread(target=tell, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    counts = np.bincount(told, minlength=3).tolist()
    on_all(comm, counts == [200 * comm.size] * 3, f"{counts}")
