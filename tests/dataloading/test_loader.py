"""Loaders: who yields what, in which order, how often, and that nothing depends on being in step."""

import re
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from batches import digest
from layouts import Layout, SharedJob, everywhere, on_all, on_layouts
from oracle import NUM_NODES, open_graph

import mpigraph.distributed as dist
from mpigraph.dataloading import MultiLayerFullNeighborSampler, NeighborSampler
from mpigraph.dataloading.negative_sampler import Uniform
from mpigraph.dataloading.seeds import agreed_steps, batch_bounds
from mpigraph.distgraph.sampled_graph import SampledGraph
from mpigraph.errors import InvalidArgumentError, MPIGraphError
from mpigraph.graphs.fields import EID
from mpigraph.kernels.sample import copy_neighbours
from mpigraph.log import get_logger
from mpigraph.session.context import current


def seeds_of(rank: int, sizes: list[int]) -> np.ndarray:
    begin = sum(sizes[:rank])
    return np.arange(begin, begin + sizes[rank])


def test_missing_layers_and_features_say_what_to_give(g: dist.DistGraph) -> None:
    loader = dist.DistNodeDataLoader(g, [1, 2], NeighborSampler([2]), batch_size=5, labels="label")
    words = "DistNodeDataLoader(1 minibatches of at most 5 from 2 seeds, NeighborSampler([2], prob=None), epoch 0)"
    assert repr(loader) == words
    for _, _, blocks in loader:
        with pytest.raises(IndexError, match="no block 1: this minibatch has 1, one for each fanout"):
            blocks[1]
        assert blocks[-1] is blocks[0] is next(iter(blocks)) and len(blocks[:1]) == 1
        with blocks[0].local_scope(), pytest.raises(KeyError, match=r"features=\['feat'\] for blocks\[0\].srcdata"):
            blocks[0].srcdata["feat"]
        assert "label" in blocks[0].dstdata


@everywhere
def test_every_seed_once_per_epoch_in_agreed_steps(job: SharedJob, oracle) -> None:
    path = oracle(3)
    sizes = [23, 17, 5, 0]

    def body() -> list:
        g = job.open(path)
        mine = seeds_of(g.rank(), sizes)
        result = []
        for drop_last in (False, True):
            loader = dist.DistNodeDataLoader(
                g, mine, NeighborSampler([2, 2]), batch_size=5, shuffle=True, drop_last=drop_last
            )
            orders = []
            for _ in range(2):
                batches = [seeds for _, seeds, _ in loader]
                assert len(batches) == len(loader) == loader.expected_idxs
                assert all(0 < len(batch) <= 5 for batch in batches)
                orders.append(torch.cat(batches).tolist() if batches else [])
            if len(mine) > 10:
                assert orders[0] != orders[1]
            if not drop_last:
                assert sorted(orders[0]) == sorted(orders[1]) == mine.tolist()
            result.append((len(mine), len(loader)))
        return result

    found = job.trainers.allgather(body())
    keeping = {steps for size, steps in (ranks[0] for ranks in found) if size > 4}
    dropping = {steps for size, steps in (ranks[1] for ranks in found) if size > 4}
    assert len(keeping) == len(dropping) == 1  # DDP can go in step


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_line_of_an_epoch_counts_all_of_its_minibatches(
    g: dist.DistGraph, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that are made ahead, before the script asks for the first one."""
    lines: list[str] = []
    monkeypatch.setattr(get_logger(), "info", lambda text, *args: lines.append(text % args))
    loader = dist.DistNodeDataLoader(g, np.arange(30), NeighborSampler([2]), batch_size=4, num_prefetch=depth)
    for _ in range(3):
        batches = iter(loader)
        time.sleep(0.05)
        assert len(list(batches)) == len(loader) == 8
    epochs = [line for line in lines if line.startswith("epoch ")]
    assert [re.findall(r"(\d+) minibatches", line) for line in epochs] == [["8"]] * 3, epochs
    assert not current().world.all_local or not any("remote" in line for line in epochs)


def test_evaluation_loaders_do_not_pile_up(g: dist.DistGraph) -> None:
    mine = dist.node_split(g.ndata["third"])
    counts = []
    for _ in range(4):
        for _ in dist.DistNodeDataLoader(g, mine, NeighborSampler([2]), batch_size=10):
            pass
        g.barrier()
        g.barrier()
        counts.append(len(current().store.caches))
    assert counts[-1] <= 4


def drawn(sample: tuple) -> tuple:
    """The edges of a minibatch's blocks, and the ends of its negatives, if it has some."""
    *others, blocks = sample
    negatives = [torch.cat(pairs.edges()) for pairs in others[2:]]
    return tuple(tuple(tensor.tolist()) for tensor in [*(block.edata[EID] for block in blocks), *negatives])


@everywhere
def test_minibatches_draw_anew_for_what_others_drew_for(job: SharedJob, oracle) -> None:
    """For equal seeds, and for nodes that are not their seeds; on all ranks alike, ahead or not."""
    path = oracle(3)
    nodes = torch.arange(NUM_NODES)

    def body() -> list:
        g = open_graph(path)
        ways = [{}, {"replace": True}, {"prob": "weight"}, {"mask": "even"}, {"disjoint": True}]
        result = []
        for how in ways:
            for depth in (0, 2):
                options = {"batch_size": NUM_NODES, "num_prefetch": depth, "seed": 5}
                loader = dist.DistNodeDataLoader(g, nodes.repeat(4), NeighborSampler([2, 2], **how), **options)
                result.append([drawn(sample) for sample in loader])
            assert result[-1] == result[-2] and len(set(result[-1])) == 4
        edges = torch.arange(60).repeat(3)
        ends = dist.DistEdgeDataLoader(g, edges, NeighborSampler([2]), batch_size=60, negative_sampler=Uniform(1))
        result.append([drawn(sample) for sample in ends])
        parts = zip(*((sample[0], sample[1]) for sample in result[-1]), strict=True)
        assert [len(set(part)) for part in parts] == [3, 3]  # blocks, and negatives

        def collate(_: list[int]) -> list:
            return [str(g.sample_neighbors(nodes, 2).edata[EID].tolist()) for _ in range(3)]

        for depth in (0, 2):  # of a function that draws several times for a minibatch
            loader = dist.DistDataLoader(range(6), 2, collate_fn=collate, num_prefetch=depth, seed=4)
            result.append([list(loader), list(loader)])
        assert result[-1] == result[-2] and len({draw for epoch in result[-1] for some in epoch for draw in some}) == 18
        once = dist.DistDataLoader(range(6), 2, collate_fn=lambda ids: g.sample_blocks(nodes, [2]), seed=4)
        drawn_first = [str(blocks[0].edata[EID].tolist()) for _, _, blocks in once]
        assert drawn_first == [some[0] for some in result[-1][0]]
        return result

    job.open(path)
    on_all(job.trainers, body() == job.alone(body))


@everywhere
@pytest.mark.parametrize("what", ["weight", "mask", "time"])
@pytest.mark.parametrize("closed", [False, True], ids=["dropped", "closed"])
def test_what_a_minibatch_draws_by_is_kept_until_it_is_drawn(
    job: SharedJob, g: dist.DistGraph, monkeypatch: pytest.MonkeyPatch, what: str, closed: bool
) -> None:
    """While a loader's thread is in the middle of a hop, its weights, mask or times are dropped or closed.

    The thread of trainer 0 is held there; those of the others have begun, and in rounds wait for it.
    """
    data, rows = (g.ndata, NUM_NODES) if what == "time" else (g.edata, g.num_edges())
    dtype = {"weight": torch.float32, "mask": torch.bool, "time": torch.int64}[what]
    begun, drawing, freed = threading.Event(), threading.Event(), threading.Event()

    def keep_and_tell(self: SampledGraph, *args: Any) -> None:
        keep_tensors(self, *args)
        begun.set()

    def copy_and_wait(*args: object) -> None:
        in_loader = threading.current_thread().name == "mpigraph-prefetch"
        if in_loader and g.rank() == 0 and not drawing.is_set():
            drawing.set()
            assert freed.wait(60)
        copy_neighbours(*args)

    def made() -> dist.DistTensor:
        return dist.DistTensor((rows,), dtype, init_func=lambda shape, dtype: torch.ones(shape, dtype=dtype))

    data["p"] = made()
    sampler = NeighborSampler([2, 2], **({"time_attr": "p"} if what == "time" else {"prob": "p"}))
    options = {"batch_size": 30, "num_prefetch": 1, "seed": 3}
    if what == "time":
        options["input_time"] = torch.ones(NUM_NODES, dtype=torch.int64)
    want = [drawn(sample) for sample in dist.DistNodeDataLoader(g, torch.arange(NUM_NODES), sampler, **options)]
    keep_tensors = SampledGraph.keep_tensors
    monkeypatch.setattr(SampledGraph, "keep_tensors", keep_and_tell)
    monkeypatch.setattr("mpigraph.sampling.local.copy_neighbours", copy_and_wait)
    batches = iter(dist.DistNodeDataLoader(g, torch.arange(NUM_NODES), sampler, **options))
    assert begun.wait(60) and (g.rank() or drawing.wait(60))
    old, number = data["p"], data["p"].rows.number
    if what == "time":  # new times would have to be sorted first
        del data["p"]
    else:
        data["p"] = made()
    if closed:
        old.close()
    del old
    g.barrier()
    kept = number in g.session.store.tensors
    freed.set()
    assert drawn(next(batches)) == want[0]
    if what == "time":
        with pytest.raises(MPIGraphError, match="'p'"):
            list(batches)
    else:
        assert [drawn(sample) for sample in batches] == want[1:]
        del data["p"]
    g.barrier()
    on_all(job.trainers, kept and number not in g.session.store.tensors)


@everywhere
def test_equal_minibatches_go_on_after_a_checkpoint(job: SharedJob, g: dist.DistGraph) -> None:

    seeds = g.in_degrees(torch.arange(NUM_NODES)).argmax().repeat(12)

    def draws(shuffle: bool, state: dict | None = None, most: int = 12) -> tuple[list, dict]:
        options = {"batch_size": 1, "shuffle": shuffle, "seed": 2}  # another order: a pass over the rest
        loader = dist.DistNodeDataLoader(g, seeds, NeighborSampler([5]), **options)
        if state is not None:
            loader.load_state_dict(state)
        made = []
        for sample in loader:
            made.append(drawn(sample))
            state = loader.state_dict()
            if len(made) == most:
                break
        assert state is not None
        return made, state

    whole, _ = draws(False)
    taken, state = draws(False, most=4)
    of_rest, state_of_rest = draws(True, state, most=3)
    assert len(set(whole)) == len(whole) == 12 and taken == whole[:4]
    assert draws(False, state)[0] == whole[4:]
    rest = draws(True, state)[0]
    assert of_rest == rest[:3] and draws(True, state_of_rest)[0] == rest[3:]
    on_all(job.trainers, len(set(taken + rest)) == 12)


@pytest.mark.parametrize(
    "given", [{"fanouts": [4, 1]}, {"prob": "weight"}, {"replace": True}, {"disjoint": True}, {"return_eids": False}]
)
def test_arguments_of_a_sampler_may_be_set_later(job: SharedJob, g: dist.DistGraph, given: dict[str, object]) -> None:
    """As in DGL; its scripts also read them where they override ``sample_blocks``."""
    before, changed = NeighborSampler([3]), NeighborSampler([3])
    for name, value in given.items():
        setattr(changed, name, value)
    made = NeighborSampler(**{"fanouts": [3]} | given)
    drawn = [
        [digest(sample) for sample in dist.DistNodeDataLoader(g, torch.arange(40), sampler, batch_size=20, seed=1)]
        for sampler in (before, changed, made)
    ]
    on_all(job.trainers, drawn[0] != drawn[1] == drawn[2] and changed.needs == made.needs)
    changed.fanouts = [-2]
    with pytest.raises(InvalidArgumentError, match=r"fanout must be an integer >= -1 \(got -2\)"):
        changed.sample_blocks(g, [1])


def test_steps_and_bounds_of_the_docstring() -> None:
    sizes = [9, 8, 3, 0]
    steps = max(-(-n // 4) for n in sizes)
    assert [np.diff(batch_bounds(n, 4, False, steps)).tolist() for n in sizes] == [[4, 4, 1], [3, 3, 2], [1, 1, 1], []]
    fewest = agreed_steps(9, 4, True, lambda value, largest: min(value, 2))
    assert fewest == 2 and np.diff(batch_bounds(9, 4, True, fewest)).tolist() == [4, 4]
    assert agreed_steps(0, 4, True, lambda value, largest: value) == 0


def test_two_graphs_are_sampled_in_different_orders_and_numbers(job: SharedJob, oracle) -> None:
    path, other = oracle(3), oracle(2, "other")
    rank = current().rank
    graphs = [job.open(path), dist.DistGraph("other", part_config=other)]
    sizes = [5 + 6 * r for r in range(current().num_trainers)]

    def collate(ids: list[int]) -> None:
        for turn in range(1 + ids[0] % 3):
            g = graphs[(rank + turn) % 2]
            frontier = g.sample_neighbors(ids, -1)
            assert frontier.num_edges() == int(g.in_degrees(ids).sum())

    seeds = seeds_of(rank, sizes)
    for depth in (0, 2):
        loader = dist.DistDataLoader(seeds, 4, collate_fn=collate, num_prefetch=depth)
        for _ in range(2):
            assert len(list(loader)) == len(loader)


@on_layouts([Layout(3, 0, 0), Layout(4, 1, 2)])
@pytest.mark.parametrize("sizes, drop_last, counts", [([11, 10, 10], False, (10, 11)), ([5, 3, 4], True, (0, 1))])
def test_unequal_numbers_of_minibatches_are_one_warning(
    job: SharedJob,
    g: dist.DistGraph,
    caplog: pytest.LogCaptureFixture,
    sizes: list[int],
    drop_last: bool,
    counts: tuple[int, int],
) -> None:
    mine = seeds_of(g.rank(), sizes)
    caplog.clear()
    batch_size = 4 if drop_last else 1
    loader = dist.DistNodeDataLoader(g, mine, NeighborSampler([2]), batch_size=batch_size, drop_last=drop_last)
    warned = job.trainers.allgather([m for m in caplog.messages if "DDP needs equal numbers" in m])
    made = job.trainers.allgather(len(loader))
    assert (min(made), max(made)) == counts
    (message,) = sum(warned, [])
    assert f"trainer {made.index(counts[0])} has {counts[0]} minibatches" in message
    assert f"has {counts[1]}:" in message and "model.join()" in message
    caplog.clear()
    dist.DistNodeDataLoader(g, seeds_of(g.rank(), [12, 10, 10]), NeighborSampler([2]), batch_size=2)
    assert not any("DDP needs equal numbers" in m for m in caplog.messages)


@pytest.mark.parametrize("output", ["dgl", "pyg"])
def test_a_feature_with_gaps_is_named_once_with_its_rows(
    job: SharedJob, g: dist.DistGraph, caplog: pytest.LogCaptureFixture, output: str
) -> None:
    rows = dist.DistTensor((NUM_NODES, 2), torch.float32, part_policy=g.get_node_partition_policy())
    rows[torch.tensor([3, 5])] = torch.tensor([[0.0, torch.nan], [torch.nan, torch.nan]])
    g.ndata["age"] = rows
    g.ndata["size"] = dist.DistTensor((NUM_NODES,), torch.float32, part_policy=g.get_node_partition_policy())
    g.barrier()
    caplog.clear()
    loader = dist.DistNodeDataLoader(
        g, np.arange(8), NeighborSampler([2]), batch_size=8, features=["age", "feat", "size"], output=output
    )
    for _ in range(2):
        list(loader)
    warned = job.trainers.allgather([m for m in caplog.messages if "NaN" in m])
    (message,) = warned[0]
    assert re.match(r"feature 'age' of _N is NaN in 2 of \d+ rows of the first minibatch \(rows 3, 5\)", message)
    assert not any(warned[1:])
    del g.ndata["age"], g.ndata["size"]


@everywhere
def test_new_times_under_a_loader_must_be_prepared(job: SharedJob, g: dist.DistGraph) -> None:
    """Its thread cannot have the hosts sort by them, beside the main thread's calls."""

    def renew() -> None:
        of_nodes = dist.DistTensor(
            (NUM_NODES,), torch.int64, init_func=lambda shape, dtype: torch.ones(shape).to(dtype)
        )
        g.ndata["p"] = of_nodes

    renew()
    times = torch.ones(NUM_NODES, dtype=torch.int64)
    sampler = NeighborSampler([2, 2], time_attr="p")
    options = {"batch_size": 2, "num_prefetch": 1, "seed": 3, "input_time": times}
    loader = dist.DistNodeDataLoader(g, torch.arange(NUM_NODES), sampler, **options)
    batches = iter(loader)
    want = drawn(next(batches))
    renew()
    if job.layout.ranks > 1:
        with pytest.raises(MPIGraphError, match="sorting edges by 'p'.*main thread"):
            list(batches)
    g.prepare_times("p")
    loader.set_epoch(0)
    on_all(job.trainers, drawn(next(iter(loader))) == want)
    loader.close()


MADE: dict[str, tuple[list[dict[str, Any]], int]] = {  # loaders that are made one after the other, and warnings
    "the same": ([{}, {}, {}, {"batch_size": 5}, {"batch_size": 5}], 1),
    "negatives are draws": ([{"make": dist.DistEdgeDataLoader, "sampler": MultiLayerFullNeighborSampler(1),
                              "negative_sampler": Uniform(1), "shuffle": False}] * 2, 1),
    "nothing drawn": ([{"sampler": MultiLayerFullNeighborSampler(1), "shuffle": False}] * 3, 0),
    "a seed": ([{"seed": 5}] * 3, 0),
    "seed 0": ([{"seed": 0}] * 3, 0),
    "others": ([{}, {"seeds": 19}, {"batch_size": 9}, {"sampler": NeighborSampler([3])}, {"drop_last": True}], 0),
    "their epoch": ([{"epoch": number} for number in range(3)], 0),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_a_loader_that_is_made_in_each_epoch_is_warned_of_once(
    job: SharedJob, oracle, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = job.open(oracle(2))
    monkeypatch.setattr(g.session, "loaders_begun", set())
    said: list[str] = []
    monkeypatch.setattr(get_logger(), "warning", lambda text, *args: said.append(text % args))
    for given in MADE[name][0]:
        options = {"batch_size": 8, "shuffle": True} | given
        seeds, sampler = torch.arange(options.pop("seeds", 20)), options.pop("sampler", NeighborSampler([2]))
        make, epoch = options.pop("make", dist.DistNodeDataLoader), options.pop("epoch", 0)
        loader = make(g, seeds, sampler, **options)
        loader.set_epoch(epoch) if epoch else None
        assert len(list(loader)) == len(loader) > 0
    warned = sum("was made before, and repeats its order and draws" in text for text in said)
    on_all(job.trainers, warned == MADE[name][1] * (g.rank() == 0), str(warned))
