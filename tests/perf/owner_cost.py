"""What a host pays for a sampling request, of many that wait: 8,128 trainers of 64 nodes ask each host in every hop.

    mpiexec -n 2 python tests/perf/owner_cost.py

Rank 1 sends what so many trainers would: small requests, each with a reply of its own. Rank 0 is the host, which begins
when all have come, so that its own processor time is measured and nobody waits for the other. Both are real, MPI too;
the graph is the pretended one of ``tests/support/many_ranks.py``. ``--profile`` prints where the host's time goes.
"""

import argparse
import cProfile
import pstats
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from many_ranks import NODES, state_of

from mpigraph.mpi.messages import FIRST, REQUEST, RequestServer, answering
from mpigraph.sampling.answering import Answers
from mpigraph.sampling.protocol import RelationRequest, pack_request
from mpigraph.sampling.sparse import HELD, MOST_TOGETHER

NODES_OF_JOB, TRAINERS = 64, 127  # of the projected job: beside each server, one of which is a node's


def request(ids: int, fanout: int, number: int) -> np.ndarray:
    """The message of one trainer: the tag of its reply and a request for some nodes of rank 0."""
    frontier = np.sort(np.random.default_rng(number).integers(0, NODES, ids))
    asked = RelationRequest(1, 0, frontier, fanout, False, False, np.uint64(number))
    return np.concatenate([[number % 30_000 + 1], *pack_request(asked, frontier, np.empty(0, np.int64))])


def ask(comm: MPI.Comm, messages: list[np.ndarray]) -> None:
    """Be the trainers: all requests are there before the barrier."""
    replies = [np.empty(2 + FIRST // 8, np.int64) for _ in messages]
    receiving = [comm.Irecv(reply, 0, int(m[0])) for reply, m in zip(replies, messages, strict=True)]
    sending = [comm.Isend(m, 0, REQUEST) for m in messages]
    comm.Barrier()
    MPI.Request.Waitall(sending)
    MPI.Request.Waitall(receiving)
    assert all(reply[0] == 0 for reply in replies)


def answer(comm: MPI.Comm, answers: Answers, count: int, profile: Callable[..., None]) -> float:
    """Be the host; return the processor seconds until ``count`` requests were answered."""
    answered = [0]

    def make(messages: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        answered[0] += len(messages)
        return answers.answer(messages)

    owner = RequestServer(comm, answering(make), max_bytes=HELD, together=MOST_TOGETHER)
    comm.Barrier()
    comm.Iprobe()  # lets MPI take what has come off its hands
    profile()
    begin = time.thread_time()
    while answered[0] < count or owner.outstanding:
        owner.progress()
    return time.thread_time() - begin


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ids", type=int, nargs="+", default=[1, 16, 64, 256], help="nodes of a request")
    p.add_argument("--waiting", type=int, nargs="+", default=[1, 64], help="requests that wait together")
    p.add_argument("--fanout", type=int, default=10)
    p.add_argument("--repeats", type=int, default=60)
    p.add_argument("--profile", action="store_true")
    args = p.parse_args()
    comm = MPI.COMM_WORLD.Dup()
    if comm.rank == 0:
        print("| nodes of a request | waiting | us of the host (least) | s a hop: 1 server a node | 2 | 4 |")
        print("|---|---|---|---|---|---|")
    for ids in args.ids:
        for waiting in args.waiting:
            measure(comm, ids, waiting, args)


def measure(comm: MPI.Comm, ids: int, waiting: int, args: argparse.Namespace) -> None:
    answers = Answers(state_of(0, 2, None))
    profiler = cProfile.Profile(time.thread_time)
    spent = []
    for turn in range(args.repeats):
        if comm.rank == 1:
            ask(comm, [request(ids, args.fanout, turn * waiting + k) for k in range(waiting)])
        else:
            profile = profiler.enable if args.profile and turn > 0 else lambda: None
            spent.append(answer(comm, answers, waiting, profile))
            profiler.disable()
        comm.Barrier()
    if comm.rank == 0:
        one, least = float(np.median(spent)) / waiting, min(spent) / waiting
        hop = one * (NODES_OF_JOB - 1) * TRAINERS
        us = f"{one * 1e6:.1f} ({least * 1e6:.1f})"
        print(f"| {ids} | {waiting} | {us} | {hop:.3f} | {hop / 2:.3f} | {hop / 4:.3f} |", flush=True)
        if args.profile:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
