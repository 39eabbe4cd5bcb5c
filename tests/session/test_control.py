"""A server beside control calls: it answers other ranks."""

from typing import Any

import numpy as np
import pytest
from jobs import soon
from layouts import Job, Layout, needs_threads, own_on_layouts
from oracle import open_graph

import mpigraph.distributed as dist
from mpigraph.sampling.local import Answers
from mpigraph.session import control
from mpigraph.session.control import Operation
from mpigraph.store.store import Store

SAMPLING_WAYS = ("alltoallv", "sparse")  # so that servers are asked


@needs_threads
@own_on_layouts([Layout(4, 1, 2)])
def test_a_server_in_a_long_control_call_goes_on_answering(
    layout: Job, oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the call lasts until a thread of a trainer has asked some times, which the server must answer."""
    path, answered, answers = oracle(3), list[bool](), list[None]()
    answer = Answers.answer

    def note(self: Answers, words: Any) -> Any:
        answers.append(None)
        return answer(self, words)

    def work(store: Store, args: dict[str, Any]) -> None:
        if store.world.is_trainer:
            return
        before = len(answers)
        answered.append(soon(lambda: len(answers) >= before + 4))

    def body() -> None:
        g = open_graph(path)
        everything = np.arange(g.num_nodes())
        options = {"collate_fn": lambda _: dist.sample_neighbors(g, everything, 2), "num_prefetch": 2}
        batches = iter(dist.DistDataLoader(everything, 1, **options))
        next(batches)
        g.barrier()  # which trainers leave at once
        for _ in range(10):  # more than are prefetched
            next(batches)
        batches.close()

    monkeypatch.setattr(Answers, "answer", note)
    monkeypatch.setitem(control._HANDLERS, Operation.BARRIER, work)
    layout.run(body)
    assert answered == ([] if layout.comm.rank in (0, 2) else [True])
