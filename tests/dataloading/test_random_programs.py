"""Random programs of a user: every trainer gets the exception that it should, the others none, and nobody hangs.

What a program does is drawn from its seed, the same on every trainer, and with it what each trainer does differently:
how many seeds it has, when it leaves a loop, and who makes the mistake.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from layouts import ALONE, Layout, SharedJob, on_layouts
from oracle import NUM_NODES

import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler
from mpigraph.errors import ClosedError, CollectiveError, InvalidArgumentError, OutOfRangeError

SAMPLING_WAYS = ("alltoallv", "sparse", "everywhere")
LAYOUTS = [ALONE, Layout(2, 0, 1), Layout(3, 1, 0), Layout(4, 0, 2)]
STATEMENTS = 3


class _Mine(Exception):
    """The user's own exception."""


class Trainer:
    """A trainer in a program. What it draws is the same on every trainer, also where each uses a part of its own.

    Attributes:
        expected: what the statement in progress is to raise here.
    """

    def __init__(self, g: dist.DistGraph, seed: int) -> None:
        self.g = g
        self.rank, self.count = g.rank(), g.session.num_trainers
        self.rng = np.random.default_rng(seed)
        self.expected: type[BaseException] | None = None

    def one_of_us(self) -> bool:
        return int(self.rng.integers(self.count)) == self.rank

    def own(self, below: int) -> int:
        """A number that every trainer has one of its own of."""
        return int(self.rng.integers(0, below, self.count)[self.rank])

    def loader(self, collate: Callable[..., object] | None = None) -> dist.DistDataLoader:
        """A loader with seeds of uneven number, none on some trainers."""
        seeds = np.arange(self.own(4) * self.own(9))
        options = {"batch_size": int(self.rng.integers(1, 7)), "num_prefetch": int(self.rng.integers(3))}
        options["shuffle"] = bool(self.rng.integers(2))
        if collate is None:
            return dist.DistNodeDataLoader(self.g, seeds, NeighborSampler([2, 2]), **options)
        return dist.DistDataLoader(seeds, collate_fn=collate, **options)


def leave_early(t: Trainer) -> None:
    steps = t.own(6)
    for number, _ in enumerate(t.loader()):
        if number == steps:
            break


def interleave(t: Trainer) -> None:
    steps = t.own(6)
    for number, _ in enumerate(zip(t.loader(), t.loader(), strict=False)):
        if number == steps:
            break


def nest(t: Trainer) -> None:
    """Passes over one loader inside a pass over another; every trainer begins as many."""
    outer, inner = iter(t.loader()), t.loader()
    leaving = [t.own(4) for _ in range(int(t.rng.integers(1, 4)))]
    for steps in leaving:
        next(outer, None)
        for number, _ in enumerate(inner):
            if number == steps:
                break


def raise_in_a_loop(t: Trainer) -> None:
    loader = t.loader()
    who, step = t.one_of_us(), t.own(3)
    t.expected = _Mine if who and step < len(loader) else None
    for number, _ in enumerate(loader):
        if who and number == step:
            raise _Mine


def raise_in_collate(t: Trainer) -> None:
    who, step, made = t.one_of_us(), t.own(3), iter(range(1000))

    def collate(seeds: list[int]) -> Any:
        if next(made) == step and who:
            raise _Mine
        return dist.sample_neighbors(t.g, seeds, 2)

    loader = t.loader(collate)
    t.expected = _Mine if who and step < len(loader) else None
    assert sum(1 for _ in loader) == len(loader)


def supersede(t: Trainer) -> None:
    loader, t.expected = t.loader(), ClosedError
    for _ in zip(loader, loader, strict=False):
        pass


def sample_what_is_not_there(t: Trainer) -> None:
    who, seeds = t.one_of_us(), np.arange(t.own(9))
    t.expected = OutOfRangeError if who else None
    t.g.sample_blocks([NUM_NODES] if who else seeds, [2, 3])


def make_what_cannot_be(t: Trainer) -> None:
    who, which, t.expected = t.one_of_us(), int(t.rng.integers(3)), InvalidArgumentError
    if which == 0:
        dist.DistTensor((NUM_NODES, 0.5 if who else 1), torch.float32)
    elif which == 1:
        dist.DistDataLoader([1, 2], 2.5 if who else 2)
    else:
        dist.DistEmbedding(NUM_NODES, 0 if who else 2)


def go_astray(t: Trainer) -> None:
    t.expected = CollectiveError if t.count > 1 else None
    if t.one_of_us():
        t.g.barrier()
    else:
        dist.DistTensor((NUM_NODES,), torch.float32)


def train_rows(t: Trainer) -> None:
    emb = dist.DistEmbedding(NUM_NODES, 2)
    optimizer = dist.SparseSGD([emb], 0.1)
    rows, bad = emb(np.arange(t.own(20))), bool(t.rng.integers(2)) and t.one_of_us()
    (rows * (float("nan") if bad else 1.0)).sum().backward()
    if t.g.session.world.allreduce_sum(int(bad and len(rows) > 0)):
        t.expected = InvalidArgumentError
    optimizer.step()


def write_and_read(t: Trainer) -> None:
    tensor = dist.DistTensor((NUM_NODES,), torch.int64, "rows")
    mine = np.arange(t.rank, NUM_NODES, t.count)
    tensor[mine] = mine
    t.g.barrier()
    assert torch.equal(tensor[:], torch.arange(NUM_NODES))
    t.g.barrier()


def write_what_loaders_read(t: Trainer) -> None:
    """Between minibatches that are made when they are asked for: after a call of all trainers nobody has an old row."""
    emb = dist.DistEmbedding(NUM_NODES, 1)
    ids, mine = torch.arange(NUM_NODES), torch.arange(t.rank, NUM_NODES, t.count)
    optimizer = dist.SparseSGD([emb], 1.0, reduction="sum")
    t.g.ndata["written"] = emb.weight
    options: dict[str, Any] = {"batch_size": int(t.rng.integers(1, 9)), "features": ["written"], "num_prefetch": 0}
    loaders = []
    for _ in range(int(t.rng.integers(1, 3))):
        options["cache"] = [None, 0, 4 * NUM_NODES + int(t.rng.integers(800)), "auto"][int(t.rng.integers(4))]
        seeds, sampler = torch.arange(t.own(40)), NeighborSampler([2, 3])
        loaders.append(dist.DistNodeDataLoader(t.g, seeds, sampler, lookahead=int(t.rng.integers(9)), **options))
    now = 0.0
    passes = [iter(loader) for loader in loaders]
    for _ in range(int(t.rng.integers(1, 8))):
        how, who, again = int(t.rng.integers(5)), t.one_of_us(), t.rng.integers(5) == 0
        for number, loader in enumerate(loaders):
            if again:
                passes[number] = iter(loader)
            batch = next(passes[number], None)
            assert batch is None or (batch[2][0].srcdata["written"] == now).all()
        if how == 0:  # nobody writes
            continue
        t.g.session.world.allreduce_sum(0)  # nobody reads while another writes
        now += 1
        if how == 1 and who:
            emb.weight[ids] = now
        elif how == 2:
            emb.weight[mine] = now
        elif how == 3:
            for owned in emb.owners.ranges():
                with emb.weight.rows.writing(owned.host) as rows:
                    rows[owned.rows] = now
        elif how == 4:  # by those who own the rows
            (-emb(ids if who else ids[:0])).sum().backward()
            optimizer.step()
        if how < 4:
            t.g.barrier()
    for loader in loaders:
        loader.close()
    del t.g.ndata["written"]


ALL: list[Callable[[Trainer], None]] = [
    write_what_loaders_read,
    leave_early,
    interleave,
    nest,
    raise_in_a_loop,
    raise_in_collate,
    supersede,
    sample_what_is_not_there,
    make_what_cannot_be,
    go_astray,
    train_rows,
    write_and_read,
]
MISTAKES = (_Mine, ClosedError, OutOfRangeError, InvalidArgumentError, CollectiveError)


def wrong(g: dist.DistGraph, seed: int) -> Iterator[str]:
    """Run a program; one text for each statement that raised what it should not, or did not raise what it should."""
    t = Trainer(g, seed)
    for number in (seed % len(ALL), *t.rng.integers(0, len(ALL), STATEMENTS)):
        t.expected, raised = None, None
        try:
            ALL[number](t)
        except MISTAKES as error:
            raised = error
        if type(raised) is not (t.expected or type(None)):
            yield f"program {seed}: {ALL[number].__name__} raised {raised!r}, not {t.expected}"


def run(job: SharedJob, path: str, seeds: range) -> None:
    g = job.open(path)
    for seed in seeds:
        texts = list(wrong(g, seed))
        texts = sum(job.trainers.allgather(texts), [])  # every trainer ends its program here
        assert not texts, "\n".join(texts)


@on_layouts(LAYOUTS)
def test_a_few_programs(job: SharedJob, oracle) -> None:
    """Each statement begins one of them."""
    run(job, oracle(3), range(len(ALL)))


@pytest.mark.study
@on_layouts(LAYOUTS)
def test_five_hundred_programs(job: SharedJob, oracle) -> None:
    first = 1000 + 125 * LAYOUTS.index(job.layout)
    run(job, oracle(3), range(first, first + 125))
