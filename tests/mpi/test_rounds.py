"""Rounds: who asks whom for how much, the words, and the answers."""

import numpy as np
from mpi4py import MPI
from worlds import answer_to, flat_world, words_between

from mpigraph.mpi.coroutine import run
from mpigraph.mpi.rounds import FAILED, OK, Header, exchange_answers, exchange_requests
from mpigraph.mpi.wait import IN_ROUND, wait


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
