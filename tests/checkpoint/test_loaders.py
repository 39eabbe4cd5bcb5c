"""Loaders that go on: by the same minibatches on as many trainers, else with exactly the seeds that are left."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import digest
from layouts import SharedJob, alone, everywhere, needs_threads, on_all, rotated
from oracle import NUM_NODES, open_graph

import mpigraph.distributed as dist
from mpigraph import checkpoint
from mpigraph.dataloading import NeighborSampler
from mpigraph.dataloading.negative_sampler import Uniform
from mpigraph.distgraph.graph import DistGraph
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.fields import EID, SEED_TIME

Batch = tuple[list[int], Any]


def nodes(g: DistGraph, shuffle: bool = True, depth: int = 2, batch_size: int = 3, **options: Any) -> Any:
    own = dist.node_split(np.ones(NUM_NODES))
    options = {"batch_size": batch_size, "shuffle": shuffle, "num_prefetch": depth} | options
    return dist.DistNodeDataLoader(g, own, NeighborSampler([2, 2]), **options)


def edges(g: DistGraph, shuffle: bool = True, depth: int = 2) -> Any:
    own = dist.edge_split(np.ones(g.num_edges(), np.bool_))
    options = {"batch_size": 40, "shuffle": shuffle, "num_prefetch": depth, "negative_sampler": Uniform(1)}
    return dist.DistEdgeDataLoader(g, own, NeighborSampler([2]), **options)


def ids(g: DistGraph, shuffle: bool = True, depth: int = 2) -> Any:
    """Ids of two types, some of them twice, in batches that a function makes, which samples."""
    seeds = {"a": np.arange(g.rank(), 40, world(g)), "b": np.repeat(np.arange(g.rank(), 20, world(g)), 2)}

    def collate(items: list[tuple[str, int]]) -> Any:
        sources = dist.sample_neighbors(g, [number for _, number in items], 2).edges()[0]
        return [number + (1000 if kind == "b" else 0) for kind, number in items], sources.tolist()

    return dist.DistDataLoader(seeds, 5, shuffle, collate, num_prefetch=depth)


def timed(g: DistGraph, shuffle: bool = True, depth: int = 2) -> Any:
    """Nodes at two times each; the edge ids are the times of edges."""
    own = np.repeat(dist.node_split(np.ones(NUM_NODES)).numpy(), 2)
    options = {
        "batch_size": 7,
        "shuffle": shuffle,
        "num_prefetch": depth,
        "input_time": own * np.resize([3, 5], len(own)),
    }
    return dist.DistNodeDataLoader(g, own, NeighborSampler([2, 2], time_attr="edge"), **options)


LOADERS: dict[str, Callable[..., Any]] = {"nodes": nodes, "edges": edges, "ids": ids, "timed": timed}


def world(g: DistGraph) -> int:
    return g.session.num_trainers


def skew(g: DistGraph) -> int:
    """Return how many steps this trainer is ahead: 0 where sampling may need the others, who wait in ``save``."""
    return g.rank() if g.session.world.all_local else 0


def one(batch: Any) -> Batch:
    """The seeds of a batch, and what it holds."""
    if isinstance(batch, tuple) and isinstance(batch[0], list):
        return batch
    seeds = batch[1] if isinstance(batch[1], torch.Tensor) else batch[1].edata[EID]
    if SEED_TIME in batch[-1][-1].dstdata:
        seeds = seeds + 1000 * batch[-1][-1].dstdata[SEED_TIME]
    return seeds.tolist(), digest(batch)


def some(batches: Iterator[Any], count: int) -> list[Batch]:
    return [one(batch) for _, batch in zip(range(count), batches, strict=False)]


def seeds_of(batches: list[Batch]) -> list[int]:
    return sorted(seed for seeds, _ in batches for seed in seeds)


@pytest.mark.slow
@everywhere
@rotated(4)
@pytest.mark.parametrize("kind", LOADERS)
def test_the_same_minibatches_come(g: dist.DistGraph, shared_path: Path, kind: str) -> None:
    """Whatever is prefetched, and where trainers are at different steps; at the beginning and at the end, too."""
    make, path = LOADERS[kind], shared_path / "c"
    expected = [[one(batch) for batch in loader] for loader in [make(g)] for _ in range(3)]
    for number, (epoch, taken) in enumerate([(0, 0), (1, 2 + skew(g)), (1, 10**6), (2, 1)]):
        loader = make(g, depth=(number + skew(g)) % 3)
        loader.set_epoch(epoch)
        batches = iter(loader)
        assert some(batches, min(taken, len(loader))) == expected[epoch][:taken]  # not its end, which is later
        checkpoint.save({"loader": loader}, checkpoint_id=path)
        batches.close()
        again = make(g, depth=number % 3)
        checkpoint.load({"loader": again}, checkpoint_id=path)
        assert again.epoch == epoch
        again.set_epoch(again.epoch)
        assert [one(batch) for batch in again] == expected[epoch][taken:]
        checkpoint.save({"loader": again}, checkpoint_id=path)  # between two epochs
        assert again.epoch == epoch + 1
        checkpoint.load({"loader": loader}, checkpoint_id=path)
        assert [one(batch) for batch in loader] == [one(batch) for batch in again]
    g.barrier()


@pytest.mark.slow
@everywhere
@rotated(4)
@pytest.mark.parametrize("kind", LOADERS)
def test_other_trainers_share_what_is_left(job: SharedJob, oracle, shared_path: Path, kind: str) -> None:
    """One trainer begins an epoch, many go on, are stopped and go on again, and one ends it: each seed comes once."""
    first, second, third = (shared_path / name for name in ("first", "second", "third"))
    make = LOADERS[kind]

    def begin() -> tuple[list[int], list[Batch]]:
        loader = make(open_graph(oracle(3)))
        everything = seeds_of([one(batch) for batch in loader])
        batches = iter(loader)
        used = some(batches, 5)
        checkpoint.save({"loader": loader}, checkpoint_id=first)
        return everything, used

    everything, used = job.one_has(lambda: alone(begin))
    g = job.open(oracle(3))
    loader = make(g)
    following = [[one(batch) for batch in loader] for _ in range(3)][2]
    loader = make(g)
    checkpoint.load({"loader": loader}, checkpoint_id=first)
    assert loader.epoch == 1
    batches = iter(loader)
    own = some(batches, 1 + skew(g) % 2)
    checkpoint.save({"loader": loader}, checkpoint_id=second)
    rest = [one(batch) for batch in batches]
    again = make(g, depth=0)
    checkpoint.load({"loader": again}, checkpoint_id=second)
    batches = iter(again)
    own += some(batches, 1)
    assert own[-1:] == rest[:1] or not rest
    checkpoint.save({"loader": again}, checkpoint_id=third)
    assert [one(batch) for batch in batches] == rest[1:]
    assert [one(batch) for batch in again] == following  # as of a job that began with these trainers

    def end() -> list[list[Batch]]:
        loader = make(open_graph(oracle(3)))
        checkpoint.load({"loader": loader}, checkpoint_id=third)
        return [[one(batch) for batch in loader] for _ in range(2)]

    by_all = [seeds_of(some) for some in job.trainers.allgather(own)]
    last, next_epoch = job.one_has(lambda: alone(end)) if g.rank() == 0 else job.one_has(lambda: None)
    result = sorted([*seeds_of(used), *(seed for some in by_all for seed in some), *seeds_of(last)])
    on_all(job.trainers, result == everything and seeds_of(next_epoch) == everything, f"{result}")


def test_another_batch_size_shares_what_is_left(job: SharedJob, g: dist.DistGraph, shared_path: Path) -> None:
    loader = nodes(g)
    batches = iter(loader)
    used = some(batches, 3)
    checkpoint.save({"loader": loader}, checkpoint_id=shared_path / "c")
    again = nodes(g, batch_size=7)
    checkpoint.load({"loader": again}, checkpoint_id=shared_path / "c")
    rest = [one(batch) for batch in again]
    assert max(len(seeds) for seeds, _ in rest) == 7 or job.layout.trainers > 2
    result = job.trainers.allgather(seeds_of(used + rest))
    assert sorted(seed for some in result for seed in some) == list(range(NUM_NODES))
    batches.close()


def test_no_trainer_makes_a_batch_alone_of_what_is_left(job: SharedJob, oracle, shared_path: Path) -> None:
    """If seeds that fill no batch are dropped, all trainers have equally many batches, also of a remainder."""

    def begin() -> None:
        loader = nodes(open_graph(oracle(3)), batch_size=10, drop_last=True)
        batches = iter(loader)
        some(batches, 4)
        checkpoint.save({"loader": loader}, checkpoint_id=shared_path / "c")  # 61 seeds are left

    job.one_has(lambda: alone(begin))
    g = job.open(oracle(3))
    loader = nodes(g, batch_size=-(-61 // world(g)), drop_last=True)
    checkpoint.load({"loader": loader}, checkpoint_id=shared_path / "c")
    counts = job.trainers.allgather(len([one(batch) for batch in loader]))
    assert len(set(counts)) == 1, counts


@needs_threads  # else a finished trainer waits there for the others
def test_a_trainer_that_was_through_waits_for_the_next_epoch(
    job: SharedJob, g: dist.DistGraph, shared_path: Path
) -> None:
    """Trainers have different numbers of batches; all go on in one epoch, which brings it nothing."""

    def make() -> Any:
        own = np.arange(20) if g.rank() else np.arange(1)
        return dist.DistNodeDataLoader(g, own, NeighborSampler([2]), batch_size=3, shuffle=True)

    loader = make()
    expected = [[one(batch) for batch in loader] for _ in range(2)]
    loader = make()
    batches = iter(loader)
    used = some(batches, 2)  # the first trainer has one
    checkpoint.save({"loader": loader}, checkpoint_id=shared_path / "c")
    rest = [one(batch) for batch in batches]
    again = make()
    checkpoint.load({"loader": again}, checkpoint_id=shared_path / "c")
    epochs = job.trainers.allgather(again.epoch)
    if world(g) > 1:
        assert set(epochs) == {0}, epochs
    assert used + rest == expected[0]
    again.set_epoch(again.epoch)
    if again.epoch == 0:
        assert [one(batch) for batch in again] == rest
    assert [one(batch) for batch in again] == expected[1]


def test_a_pass_that_was_left_is_over(job: SharedJob, g: dist.DistGraph, shared_path: Path) -> None:
    """As in the job that was not disturbed, where the next pass begins another epoch."""
    loader, other = nodes(g), nodes(g)
    for _ in loader:
        break
    assert loader.epoch == 1
    checkpoint.save({"other": 0}, checkpoint_id=shared_path / "c")  # of every loader the epoch
    again = nodes(g)
    again.set_epoch(5)
    loader.set_epoch(7)
    checkpoint.load({"other": 0}, checkpoint_id=shared_path / "c")
    assert (loader.epoch, other.epoch) == (1, 0)


def forged(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """States that no loader gives: of other forms, or of another loader."""
    yield {}
    for name in state:
        yield {other: value for other, value in state.items() if other != name}
        yield state | {name: torch.zeros(2)}
    yield state | {"fingerprint": state["fingerprint"] | {"seed": torch.zeros(2)}}


def test_a_forged_state_is_one_error_on_every_trainer(job: SharedJob, g: dist.DistGraph) -> None:
    """Also where only one has it; and the loader goes on as if there had been none."""
    loader = ids(g)
    batches = iter(loader)
    some(batches, 1)
    state = loader.state_dict()
    batches.close()
    expected = [one(batch) for batch in loader]
    for number, wrong in enumerate(forged(state)):
        with pytest.raises(InvalidArgumentError, match="state") as caught:
            loader.load_state_dict(wrong if number % job.trainers.size == job.rank else state)
        on_all(job.trainers, caught.value.everywhere)
    loader.set_epoch(1)
    assert [one(batch) for batch in loader] == expected
