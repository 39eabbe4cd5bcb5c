"""Requests and their servers, the gate, arrays from every rank to every rank, rounds."""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from layouts import WAIT, needs_threads, on_all
from mpi4py import MPI
from worlds import answer_to, asked_of, behind_head, flat_world, words_between

from mpigraph.errors import ClosedError, GraphDataError
from mpigraph.mpi.coroutine import NOT_YET, Coroutine, Task, finish, run
from mpigraph.mpi.messages import (
    FAILED,
    FIRST,
    HEAD,
    OK,
    REQUEST,
    Gate,
    Header,
    NotOpenHere,
    Received,
    Request,
    Requester,
    RequestServer,
    alltoall,
    answering,
    exchange_answers,
    exchange_rows,
    in_rank_order,
    sum_over_ranks,
)
from mpigraph.mpi.wait import IN_ROUND, wait

Words = npt.NDArray[np.int64]
BAD, LATER = -1, -2


def sums(early: list[int]) -> Callable[[Sequence[Words]], list[Words]]:
    """The handler: the sum of what it got, behind the words again; errors, and answers that come too early."""

    def answer(words: Words) -> Words:
        if words[0] == BAD:
            raise GraphDataError("weight 7 is bad: ä")
        if words[0] == LATER and early:
            early.pop()
            raise NotOpenHere("not yet")
        return behind_head(np.append(words, words.sum()))

    return answer


@needs_threads
def test_a_handler_answers_every_rank(comm: MPI.Intracomm) -> None:
    """Short and long messages from several threads; an error is that of its asker alone."""
    with flat_world(comm) as world:
        requester = Requester(world, world.dup())
        server = RequestServer(requester.comm, answering(sums([1, 2])), max_bytes=1 << 20)
        wrong: list[str] = []

        def ask_all(seed: int) -> None:
            for length in (1, 2, FIRST // 8 - 1, FIRST // 8, 100_000):
                words = np.arange(length) + seed
                ranks = range(comm.size)
                got = requester.finish("sums", [requester.ask(r, words, "summing") for r in ranks], IN_ROUND)
                wrong.extend("sum" for answer in got if not np.array_equal(answer, np.append(words, words.sum())))
            for what in (BAD, LATER):
                asked = [requester.ask(0, np.array([what]), "summing"), requester.ask(0, np.array([7]), "summing")]
                try:
                    wrong.extend("later" for answer in requester.finish("sums", asked, IN_ROUND) if len(answer) != 2)
                except GraphDataError as error:
                    wrong.extend(["error"] if "summing failed on rank 0: weight 7 is bad: ä" not in str(error) else [])

        threads = [threading.Thread(target=ask_all, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            server.progress()
        meeting = comm.Ibarrier()
        while not meeting.Test():
            server.progress()
        server.drain(world, "the last sums")
        on_all(comm, not wrong and server.held == 0, f"{wrong}")


def answered_by(server: RequestServer, done: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not done() or server.outstanding:
        server.progress()
        assert time.monotonic() < end


@pytest.mark.parametrize("comm", [2], indirect=True)
def test_requests_that_wait_are_answered_together(comm: MPI.Intracomm) -> None:
    """So many at most; and the error of one is not that of the others. A message without a tag is dropped."""
    sizes: list[int] = []
    asked = [np.array([k + 1, BAD if k % 7 == 3 else k]) for k in range(30)]
    if comm.rank == 0:
        answer = answering(sums([]))

        def note(server: RequestServer, requests: list[Request]) -> Coroutine[None]:
            sizes.append(len(requests))
            for request in tuple(requests)[1:]:
                server.hand_over(requests, request)
            yield from answer(server, requests)

        server = RequestServer(comm, note, max_bytes=1 << 20, together=8)
        comm.Barrier()
        answered_by(server, lambda: bool(comm.Iprobe(1, 1)))
        comm.Recv(np.empty(0, np.int64), 1, 1)
    else:
        replies = [np.empty(100, np.int64) for _ in asked]
        receiving = [comm.Irecv(reply, 0, int(words[0])) for reply, words in zip(replies, asked, strict=True)]
        sending = [comm.Isend(words, 0, REQUEST) for words in (np.array([0]), np.empty(0, np.int64), *asked)]
        comm.Barrier()
        MPI.Request.Waitall(sending + receiving)
        comm.Send(np.empty(0, np.int64), 0, 1)
        for reply, words in zip(replies, asked, strict=True):
            if words[1] == BAD:
                assert reply[0] == FAILED and b"weight 7 is bad" in reply[HEAD : HEAD + reply[1]].tobytes()
            else:
                assert reply[: HEAD + 2].tolist() == [OK, 2, words[1], words[1]]
    on_all(comm, comm.rank == 1 or 1 < max(sizes) <= 8, f"{sizes}")


@pytest.mark.parametrize("comm", [2], indirect=True)
def test_a_server_whose_replies_wait_takes_in_no_more(comm: MPI.Intracomm) -> None:
    many, words = 40, 1 << 17  # answers of 1 MiB, which MPI does not send before they are received
    if comm.rank == 0:
        answered: list[int] = []

        def answer(asked: Words) -> Words:
            answered.append(int(asked[0]))
            return behind_head(np.full(words, asked[0]))

        server = RequestServer(comm, answering(answer), max_bytes=8 << 20)
        comm.Barrier()
        quiet = 0
        while quiet < 1000:
            quiet = 0 if server.progress() else quiet + 1
        taken = len(answered)
        comm.Barrier()
        answered_by(server, lambda: len(answered) == many)
        assert answered == list(range(many))
    else:
        sending = [comm.Isend(np.array([k + 1, k]), 0, REQUEST) for k in range(many)]
        comm.Barrier()
        comm.Barrier()
        for k in range(many):
            first, rest = np.empty(HEAD + FIRST // 8, np.int64), np.empty(words - FIRST // 8, np.int64)
            comm.Recv(first, 0, k + 1)
            comm.Recv(rest, 0, k + 1)
            assert first[:HEAD].tolist() == [OK, words] and (first[HEAD:] == k).all() and (rest == k).all()
        MPI.Request.Waitall(sending)
    on_all(comm, comm.rank == 1 or 8 <= taken <= 9)


def waiting(steps: int) -> Coroutine[int]:
    """Look so many times for something that is not there yet."""
    for _ in range(steps):
        yield NOT_YET
    return steps


def test_a_task_that_looks_again_makes_no_progress() -> None:
    task = Task(waiting(3))
    assert [task.advance() for _ in range(4)] == [False, False, True, False]
    assert task.result() == 3
    assert run(waiting(3)) == 3
    task = Task(waiting(1_000_000))
    assert not finish([task], IN_ROUND, seconds=-1.0) and task.taken == 1


@pytest.mark.parametrize("comm", [2], indirect=True)
def test_a_server_that_cannot_answer_yet_has_nothing_to_do(comm: MPI.Intracomm) -> None:
    if comm.rank == 0:
        closed, tries = [True], list[int]()

        def answer(words: Words) -> Words:
            tries.append(1)
            if closed:
                raise NotOpenHere("not yet")
            return behind_head(words)

        server = RequestServer(comm, answering(answer), max_bytes=1 << 20)
        comm.Barrier()
        while not tries:
            server.progress()
        moved = [server.progress() for _ in range(100)]
        assert server.outstanding and tries == [1] * 101
        closed.clear()
        answered_by(server, lambda: True)
    else:
        reply = np.empty(HEAD + 1, np.int64)
        receiving, sending = comm.Irecv(reply, 0, 5), comm.Isend(np.array([5, 6]), 0, REQUEST)
        comm.Barrier()
        MPI.Request.Waitall([receiving, sending])
        assert reply.tolist() == [OK, 1, 6]
    on_all(comm, comm.rank == 1 or not any(moved))


@pytest.mark.parametrize("comm", [2], indirect=True)
def test_own_work_that_fails_is_raised_once_all_have_answered(comm: MPI.Intracomm) -> None:
    """Until then MPI writes to the memory of the answers."""
    with flat_world(comm) as world:
        requester = Requester(world, world.dup())
        answered: list[Words] = []
        if comm.rank == 0:
            server = RequestServer(requester.comm, answering(sums([])), max_bytes=1 << 20)
            meeting = comm.Ibarrier()
            while not meeting.Test():
                server.progress()
            server.drain(world, "the last sums")
        else:

            def ask() -> Coroutine[None]:
                answered.append((yield from requester.ask(0, np.array([1, 2]), "summing")))

            def fail() -> None:
                raise ZeroDivisionError("own work")

            with pytest.raises(ZeroDivisionError, match="own work"):
                requester.finish("sums", [ask(), ask()], IN_ROUND, fail)
            comm.Ibarrier().Wait()
        on_all(comm, comm.rank == 0 or [words.tolist() for words in answered] == [[1, 2, 3]] * 2)


@pytest.mark.parametrize("comm", [2], indirect=True)
def test_a_request_that_is_handed_over_is_counted_once(comm: MPI.Intracomm) -> None:
    """Two of three requests that came together are answered by themselves, while the third one's reply waits."""
    tags, words = [2, 3, 4], 1 << 10
    if comm.rank == 0:
        over = False

        def handler(server: RequestServer, requests: list[Request]) -> Coroutine[None]:
            for request in tuple(requests)[1:]:
                server.hand_over(requests, request)
            while not over:
                yield NOT_YET
            assert len(requests) == 1

        server = RequestServer(comm, handler, max_bytes=1 << 20, together=8)
        comm.Barrier()
        end = time.monotonic() + WAIT
        while len(server.tasks) < len(tags) and time.monotonic() < end:
            server.progress()
        held, over = server.held, True
        answered_by(server, lambda: not server.outstanding)
        found = (held, server.held)
    else:
        sending = [comm.Isend(np.full(words, tag), 0, REQUEST) for tag in tags]
        comm.Barrier()
        MPI.Request.Waitall(sending)
        found = (8 * words * len(tags), 0)
    on_all(comm, found == (8 * words * len(tags), 0), f"{found}")


def test_a_gate_waits_for_the_present_users() -> None:
    gate, left = Gate("it was closed"), list[str]()
    inside, leave = threading.Event(), threading.Event()

    def use() -> None:
        with gate, gate:
            inside.set()
            leave.wait(WAIT)
            with gate:  # in the middle of a transfer, which cannot be left
                left.append("user")

    thread = threading.Thread(target=use)
    thread.start()
    inside.wait(WAIT)
    gate.shut()
    with pytest.raises(ClosedError, match=r"^it was closed$"), gate:
        pass
    threading.Timer(0.05, leave.set).start()
    gate.drain()
    assert left == ["user"]
    thread.join()


def test_a_forked_process_does_not_wait_for_another_thread_in_a_gate() -> None:
    gate, inside, leave = Gate("it was closed"), threading.Event(), threading.Event()

    def use() -> None:
        with gate:
            inside.set()
            leave.wait(WAIT)

    thread = threading.Thread(target=use)
    thread.start()
    inside.wait(WAIT)
    child = os.fork()
    if child == 0:
        signal.alarm(int(WAIT / 4))  # ends it
        with gate:
            pass
        gate.drain()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    leave.set()
    thread.join()
    assert status == 0


def test_rows_arrive_in_the_order_of_ranks(comm: MPI.Intracomm) -> None:
    me = comm.rank
    for dtype in (np.int32, np.int64):
        counts = np.array([(me + 2 * target) % 4 for target in range(comm.size)])
        rows = np.array([[me, target, i] for target in range(comm.size) for i in range(counts[target])], dtype)
        received, coming = exchange_rows(comm, rows.reshape(-1, 3), counts)
        expected = [(source + 2 * me) % 4 for source in range(comm.size)]
        assert coming.tolist() == expected and received.dtype == dtype
        assert received.tolist() == [[s, me, i] for s in range(comm.size) for i in range(expected[s])]


@pytest.mark.study
def test_a_message_of_more_than_2_gib() -> None:
    """More bytes than MPI-3's counts of 32 bits: they count rows."""
    rows = np.zeros(((1 << 27) + 1000, 2), np.int64)
    rows[0], rows[-1] = 1, 2
    received, coming = exchange_rows(MPI.COMM_SELF, rows, np.array([len(rows)]))
    assert received.nbytes > 1 << 31 and coming.tolist() == [len(rows)]
    assert received[0].tolist() == [1, 1] and received[-1].tolist() == [2, 2] and received.sum() == 6


def test_sums(comm: MPI.Intracomm) -> None:
    values = np.array([[comm.rank, 1], [2**40, -comm.rank]])
    ranks = sum(range(comm.size))
    assert sum_over_ranks(comm, values).tolist() == [[ranks, comm.size], [comm.size * 2**40, -ranks]]


def test_a_round_carries_words_and_answers(comm: MPI.Intracomm) -> None:
    with flat_world(comm) as world:
        me, size = comm.rank, comm.size
        asked = asked_of(me, size)
        words, counts = in_rank_order(asked, size)
        assert counts.tolist() == [len(words_between(me, target)) for target in range(size)]
        header = Header(world.comm, 40 + me, FAILED if me == 0 else OK, counts)
        wait(header.request, IN_ROUND)
        assert header.operations.tolist() == [40 + rank for rank in range(size)]
        assert header.statuses.tolist() == [FAILED] + [OK] * (size - 1)
        assert header.counts.tolist() == [len(words_between(rank, me)) for rank in range(size)]
        requests = Received(run(alltoall(world.comm, words, counts, header.counts)), header.counts)
        assert requests.senders == [asker for asker in range(size) if me in asked_of(asker, size)]
        for asker in range(size):
            assert np.array_equal(requests.of(asker), words_between(asker, me))
        answers = {rank: answer_to(requests.of(rank), me) for rank in requests.senders}
        received = run(exchange_answers(world.comm, answers))
        assert isinstance(received, Received) and received.senders == sorted(asked)
        for target in asked:
            assert np.array_equal(received.of(target), asked[target] + target)
        assert run(exchange_answers(world.comm, None if me in (0, 2) else answers)) is None
