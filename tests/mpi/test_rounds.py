"""Rounds: who asks whom for how much, the words, and the answers."""

import numpy as np
from mpi4py import MPI
from worlds import answer_to, asked_of, flat_world, words_between

from mpigraph.mpi.coroutine import run
from mpigraph.mpi.rounds import FAILED, OK, Header, Received, exchange_answers, exchange_requests, in_rank_order
from mpigraph.mpi.wait import IN_ROUND, wait


def test_a_round_carries_words_and_answers(comm: MPI.Intracomm) -> None:
    with flat_world(comm) as world:
        me, size = comm.rank, comm.size
        asked = asked_of(me, size)
        words, counts = in_rank_order(asked, size)
        assert counts.tolist() == [len(words_between(me, target)) for target in range(size)]
        words = np.empty(0, np.int64) if words is None else words
        header = Header(world.comm, 40 + me, FAILED if me == 0 else OK, counts)
        wait(header.request, IN_ROUND)
        assert header.operations.tolist() == [40 + rank for rank in range(size)]
        assert header.statuses.tolist() == [FAILED] + [OK] * (size - 1)
        assert header.counts.tolist() == [len(words_between(rank, me)) for rank in range(size)]
        requests = run(exchange_requests(world.comm, words, counts, header))
        assert requests.senders == [asker for asker in range(size) if me in asked_of(asker, size)]
        for asker in range(size):
            assert np.array_equal(requests.of(asker), words_between(asker, me))
        answers = {rank: answer_to(requests.of(rank), me) for rank in requests.senders}
        received = run(exchange_answers(world.comm, answers))
        assert isinstance(received, Received) and received.senders == sorted(asked)
        for target in asked:
            assert np.array_equal(received.of(target).view(np.int64), asked[target] + target)
        assert run(exchange_answers(world.comm, None if me in (0, 2) else answers)) is None
