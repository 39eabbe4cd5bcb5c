"""Loaders on graphs in memory: what they yield, and that it is what a distributed graph gives for the same seeds."""

import pickle

import pytest
import torch
from batches import SAMPLERS, batch
from layouts import SharedJob
from oracle import NUM_NODES, oracle_source
from typed_oracle import FORWARD, REVERSE

import mpigraph as mg
import mpigraph.distributed as dist
from mpigraph.dataloading import (
    BlockSampler,
    DataLoader,
    DistNodeDataLoader,
    EdgeDataLoader,
    EdgePredictionSampler,
    LaborSampler,
    MultiLayerFullNeighborSampler,
    NeighborSampler,
    NodeDataLoader,
    RandomWalkNeighborSampler,
    Sampler,
    ShaDowKHopSampler,
    as_edge_prediction_sampler,
    sample_neighbors,
)
from mpigraph.dataloading.negative_sampler import GlobalUniform, InBatch, LocalUniform, Uniform
from mpigraph.errors import (
    EdgeTypeError,
    FieldNameError,
    GraphDataError,
    InvalidArgumentError,
    NodeTypeError,
    OutOfRangeError,
)
from mpigraph.graphs.fields import EID, NID


def in_memory(g, mixed=False):
    """All of a distributed graph, its edges in the order of their ids, or mixed up."""
    orders = {r: torch.arange(g.num_edges(r)) for r in g.canonical_etypes}
    if mixed:
        orders = {r: torch.randperm(len(o), generator=torch.Generator().manual_seed(1)) for r, o in orders.items()}
    edges = {r: g.find_edges(order, r) for r, order in orders.items()}
    copy = mg.heterograph(edges, {t: g.num_nodes(t) for t in g.ntypes})
    for ntype in g.ntypes:
        copy.nodes[ntype].data.update({name: values[:] for name, values in g.nodes[ntype].data.items()})
    for r, order in orders.items():
        copy.edges[r].data.update({name: values[order] for name, values in g.edges[r].data.items()})
    return copy


def same(mine, theirs, g):
    """Whether two minibatches have the same nodes, and the same edges by what their features say."""
    for one, other in zip(mine, theirs, strict=True):
        if isinstance(one, torch.Tensor):
            assert torch.equal(one, other)
        elif isinstance(one, dict):
            assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
        elif isinstance(one, list):
            same(one, other, g)
        else:
            assert one.canonical_etypes == other.canonical_etypes
            for ntype in one.dsttypes:
                assert torch.equal(one.srcnodes[ntype].data[NID], other.srcnodes[ntype].data[NID])
                assert torch.equal(one.dstnodes[ntype].data[NID], other.dstnodes[ntype].data[NID])
            for r in one.canonical_etypes:
                assert torch.equal(one.edge_index(r), other.edge_index(r))
                if EID in other.edges[r].data:
                    assert torch.equal(one.edges[r].data["edge"], g.edges[r].data["edge"][other.edges[r].data[EID]])


def test_blocks_are_those_of_a_distributed_graph(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    copy = in_memory(g, mixed=True)
    seeds = torch.arange(g.rank() * 23, g.rank() * 23 + 23)
    for name, sampler in SAMPLERS.items():
        options = {"batch_size": 5, "shuffle": g.rank() == 0, "seed": 7}
        there = dist.DistNodeDataLoader(g, seeds, sampler, **options)
        here = DataLoader(copy, seeds, sampler, **options)
        assert len(here) == len(there) == 5
        for _ in range(2):  # epochs differ in their draws
            for mine, theirs in zip(here, there, strict=True):
                same(mine, theirs, g)
        assert here.epoch == 2, name
        excluded = torch.arange(0, g.num_edges(), 2)
        ids = torch.isin(copy.edata["edge"], g.edata["edge"][excluded]).nonzero().squeeze(1)
        drawn = []
        for one, out in ((copy, ids), (g, excluded)):
            found = sample_neighbors(one, seeds, 3, prob=sampler.prob, exclude_edges=out, seed=3)
            assert len(found.edata[EID]) and not torch.isin(found.edata[EID], out).any()
            drawn.append(one.edata["edge"][found.edata[EID]])
        assert torch.equal(*drawn)


def test_minibatches_of_edges_are_those_of_a_distributed_graph(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    copy = in_memory(g)
    seeds = torch.arange(g.rank() * 40, g.rank() * 40 + 40)
    negatives = [None, Uniform(2), InBatch(1), GlobalUniform(2)]
    if len(g.session.world.hosts) == 1:  # it has all nodes
        negatives.append(LocalUniform(2))
    for negative in negatives:
        how = {"exclude": "self", "negative_sampler": negative}
        options = {"batch_size": 15, "seed": 7}
        there = dist.DistEdgeDataLoader(g, seeds, NeighborSampler([3, 2]), **how, **options)
        here = DataLoader(copy, seeds, as_edge_prediction_sampler(NeighborSampler([3, 2]), **how), **options)
        old = EdgeDataLoader(copy, seeds, NeighborSampler([3, 2]), **how, **options)
        for mine, also, theirs in zip(here, old, there, strict=True):
            for one in (mine, also):
                same([one[0], one[-1]], [theirs[0], theirs[-1]], g)
                for pairs, others in zip(one[1:-1], theirs[1:-1], strict=True):
                    assert torch.equal(pairs.edge_index(), others.edge_index())
                assert torch.equal(one[1].edata["edge"], copy.edata["edge"][one[1].edata[EID]])
                assert torch.equal(one[1].ndata["orig"], copy.ndata["orig"][one[1].ndata[NID]])


@pytest.mark.slow
def test_typed_minibatches_are_those_of_a_distributed_graph(job: SharedJob, typed_oracle: str) -> None:
    g = job.open(typed_oracle)
    copy = in_memory(g, mixed=True)
    rank = g.rank()
    nodes = {"paper": torch.arange(20 * rank, 20 * rank + 20), "author": torch.arange(10 * rank, 10 * rank + 10)}
    for fanout in (2, {r: k % 3 for k, r in enumerate(g.canonical_etypes)}):
        sampler = NeighborSampler([fanout, 3], prob="weight")
        there = dist.DistNodeDataLoader(g, nodes, sampler, batch_size=8, seed=1)
        for mine, theirs in zip(DataLoader(copy, nodes, sampler, batch_size=8, seed=1), there, strict=True):
            same(mine, theirs, g)
    copy = in_memory(g)
    edges = {FORWARD: torch.arange(9 * rank, 9 * rank + 9), "cites": torch.arange(5 * rank, 5 * rank + 5)}
    there = dist.DistEdgeDataLoader(g, edges, NeighborSampler([2]), exclude="self", negative_sampler=Uniform(1), seed=1)
    sampler = as_edge_prediction_sampler(NeighborSampler([2]), exclude="self", negative_sampler=Uniform(1))
    here = DataLoader(copy, edges, sampler, seed=1)
    for mine, theirs in zip(here, there, strict=True):
        same([mine[0], mine[-1]], [theirs[0], theirs[-1]], g)
        for r in g.canonical_etypes:
            assert torch.equal(mine[2].edge_index(r), theirs[2].edge_index(r))
    assert REVERSE in copy.canonical_etypes


def plain():
    """Node v has in-neighbours v + 1, v + 2, ...; features say ids."""
    source = oracle_source()
    g = mg.graph(source.edges[0], num_nodes=NUM_NODES)
    src, dst = g.edges()
    g.ndata["orig"], g.ndata["label"] = torch.arange(NUM_NODES), torch.arange(NUM_NODES) % 7
    g.edata["edge"], g.edata["w"] = 1000 * dst + src, ((dst + src) % 4).float()
    return g


def test_a_script_before_it_is_distributed():
    g, seeds = plain(), torch.arange(0, NUM_NODES, 2)
    loader = DataLoader(g, seeds, NeighborSampler([4, 3]), batch_size=16, shuffle=True, drop_last=True, num_workers=0)
    assert len(loader) == 3 and torch.equal(loader.dataset, seeds)
    epochs = []
    for _ in range(2):
        epochs.append([])
        with loader.enable_cpu_affinity():
            for input_nodes, output_nodes, blocks in loader:
                epochs[-1] += output_nodes.tolist()
                assert torch.equal(blocks[0].srcdata["orig"], input_nodes) and len(blocks) == 2
                assert torch.equal(blocks[-1].dstdata["label"], output_nodes % 7)
                for block in blocks:
                    src, dst = (block.srcdata[NID][block.edges()[0]], block.dstdata[NID][block.edges()[1]])
                    assert torch.equal(block.edata["edge"], 1000 * dst + src)
                    assert torch.equal(g.find_edges(block.edata[EID])[0], src)
        assert len(set(epochs[-1])) == 48
    assert epochs[0] != epochs[1] and set(epochs[0]) <= set(seeds.tolist())
    again = DataLoader(g, seeds, NeighborSampler([4, 3]), batch_size=16, shuffle=True, drop_last=True)
    assert torch.cat([nodes for _, nodes, _ in again]).tolist() == epochs[0]
    again.set_epoch(1)
    assert torch.cat([nodes for _, nodes, _ in again]).tolist() == epochs[1]


def test_features_are_gathered_when_they_are_read():
    g = plain()
    (_, _, (block,)) = next(iter(DataLoader(g, [5, 6], MultiLayerFullNeighborSampler(1), batch_size=2)))
    g.ndata["orig"] = g.ndata["orig"] * 10  # after the minibatch was made
    assert sorted(block.srcdata) == [NID, "label", "orig"] and "'orig': Ellipsis" in repr(block.srcdata)
    moved = block.local_var()
    assert torch.equal(moved.srcdata["orig"], 10 * moved.srcdata[NID])
    del block.srcdata["label"]
    assert "label" not in block.srcdata and "label" in moved.srcdata
    changed = moved.changed(lambda tensor: tensor.clone(), moved.device)
    assert torch.equal(changed.srcdata["label"], changed.srcdata[NID] % 7)


def test_sampled_neighbours():
    g = plain()
    drawn = sample_neighbors(g, [5, 100, 12], 3, seed=1)
    assert torch.equal(drawn.edata["edge"], g.edata["edge"][drawn.edata[EID]]) and drawn.num_nodes() == NUM_NODES
    assert torch.bincount(drawn.edges()[1], minlength=NUM_NODES)[[5, 100, 12]].tolist() == [3, 3, 3]
    assert torch.equal(sample_neighbors(g, [5, 100, 12], 3, seed=1).edata[EID], drawn.edata[EID])
    seeds = range(NUM_NODES)  # of so many that two draws differ
    assert not torch.equal(sample_neighbors(g, seeds, 3).edata[EID], sample_neighbors(g, seeds, 3).edata[EID])
    heavy = sample_neighbors(g, [12, 11], -1, prob="w", copy_ndata=False, copy_edata=False)
    assert list(heavy.ndata) == [] and list(heavy.edata) == [EID] and (g.edata["w"][heavy.edata[EID]] > 0).all()
    out = sample_neighbors(g, [40], -1, edge_dir="out")
    assert out.edges()[0].unique().tolist() == [40] and out.num_edges() == g.out_degrees(40)
    assert torch.equal(out.edata["edge"], g.edata["edge"][out.edata[EID]])
    g.edata["w"] = torch.where(g.edges()[0] == 14, 1.0, 0.0)  # of other weights under the same name
    assert sample_neighbors(g, [12], 5, prob="w").edges()[0].tolist() == [14]
    g.edata["w"][:] = -1
    with pytest.raises(GraphDataError, match="weight 'w' of edge 0 must be finite and >= 0"):
        sample_neighbors(g, [12], 5, prob="w")


def _by_numpy(values: torch.Tensor, at: int, value: float) -> None:
    values.numpy()[at] = value


def _by_data(values: torch.Tensor, at: int, value: float) -> None:
    with torch.inference_mode(values.is_inference()):
        values.data[at] = value


@pytest.mark.parametrize("write", [_by_numpy, _by_data])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8, torch.bool])
def test_weights_count_as_they_are_however_they_were_written(write, dtype):
    g = mg.graph(([1, 2, 3], [0, 0, 0]))
    with torch.inference_mode():
        made = torch.ones(3, dtype=dtype)
    for weights in (made, torch.ones(3, dtype=dtype)):
        g.edata["w"] = weights
        for edge_dir, nodes in (("in", [0]), ("out", [1, 2, 3])):
            for place in range(3):
                write(weights, place, 1)
            found = {edge: None for edge in range(3)}
            for place in range(3):
                drawn = sample_neighbors(g, nodes, -1, edge_dir, "w")
                assert drawn.edata[EID].tolist() == list(found)
                write(weights, place, 0)
                del found[place]
            assert sample_neighbors(g, nodes, -1, edge_dir, "w").num_edges() == 0


@pytest.mark.parametrize("write", [_by_numpy, _by_data])
@pytest.mark.parametrize("of_nodes", [True, False])
def test_times_count_as_they_are_however_they_were_written(write, of_nodes):
    g = mg.graph(([1, 2, 3], [0, 0, 0]))
    with torch.inference_mode():
        made = torch.arange(4 if of_nodes else 3)
    sampler = NeighborSampler([3], time_attr="t")
    for times in (made, made.clone()):
        (g.ndata if of_nodes else g.edata)["t"] = times
        shift = int(of_nodes)  # node 1 has time 1, edge 0 time 0
        for place, now in ((0, 0), (1, 9), (1, 1), (2, 8)):
            write(times, place + shift, now)
            wanted = [edge for edge in range(3) if int(times[edge + shift]) <= 2]
            block = sampler.sample_blocks(g, torch.tensor([0]), input_time=torch.tensor([2]))[2][0]
            assert sorted(block.edata[EID].tolist()) == wanted
        for place in range(3):
            write(times, place + shift, place + shift)


def test_samplers_of_ones_own():
    class Whole(BlockSampler):
        def sample_blocks(self, g, seed_nodes, exclude_eids=None):
            frontier = mg.in_subgraph(g, seed_nodes)
            block = mg.to_block(frontier, seed_nodes)
            block.edata[EID] = frontier.edata[EID]
            return block.srcdata[NID], seed_nodes, [block]

    class Ids:
        def sample(self, g, indices):
            return g.num_nodes(), indices

    g = plain()
    for inputs, _, (block,) in DataLoader(g, torch.arange(20, 26), Whole(), batch_size=3):
        assert (
            torch.equal(block.srcdata["orig"], inputs) and block.num_edges() == g.in_degrees(block.dstdata[NID]).sum()
        )
    assert [ids.tolist() for _, ids in DataLoader(g, torch.arange(3), Ids(), batch_size=2)] == [[0, 1], [2]]

    class Named(Ids, Sampler):
        pass

    assert [ids.tolist() for _, ids in DataLoader(g, torch.arange(3), Named(), batch_size=3)] == [[0, 1, 2]]
    doubled = DataLoader(g, [1, 2], Ids(), batch_size=2, collate_fn=lambda found: found[1] * 2)
    assert [found.tolist() for found in doubled] == [[2, 4]]
    pairs = EdgePredictionSampler(Whole(), negative_sampler=lambda g, eids: (eids % 2, eids % 3))
    for _, positive, negative, (block,) in DataLoader(g, torch.arange(8), pairs, batch_size=4, device="cpu"):
        assert torch.equal(negative.ndata["orig"][negative.edges()[0]], positive.edata[EID] % 2)
        assert torch.equal(block.dstdata[NID], positive.ndata[NID])


def test_old_names_on_a_distributed_graph(job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    mine = dist.node_split(torch.ones(NUM_NODES, dtype=torch.bool))
    loader = NodeDataLoader(g, mine, NeighborSampler([2]), batch_size=9, num_workers=0, use_ddp=True)
    assert isinstance(loader, DistNodeDataLoader) and sum(len(nodes) for _, nodes, _ in loader) == len(mine)
    edges = EdgeDataLoader(g, dist.edge_split(torch.ones(g.num_edges())), NeighborSampler([2]), batch_size=90)
    assert isinstance(edges, dist.DistEdgeDataLoader)


def test_positional_options_in_the_order_of_dgl(job: SharedJob, oracle) -> None:
    """The same minibatches on a distributed graph, whether options have names or not, as on the graph in memory."""
    g = job.open(oracle(3))
    copy, ids = in_memory(g), torch.arange(30)
    plain, pairs = NeighborSampler([2]), as_edge_prediction_sampler(NeighborSampler([2]))
    named = {"batch_size": 8, "drop_last": True, "shuffle": True, "seed": 1}
    for sampler in (plain, pairs):
        there = DataLoader(g, ids, sampler, "cpu", False, 0, 8, True, True, seed=1)
        also = DataLoader(g, ids, sampler, **named)
        assert len(there) == len(also) == 3 and type(there).__name__.startswith("Dist")
        for first, second in zip(there, also, strict=True):
            assert torch.equal(first[0], second[0])
        here = DataLoader(copy, ids, sampler, "cpu", False, 0, 8, True, True, seed=1)
        assert len(here) == 3
    negative = Uniform(2)
    for graph in (g, copy):
        more = EdgeDataLoader(graph, ids, plain, "cpu", False, 0, "self", None, None, negative, batch_size=10)
        batches = list(more)
        assert len(batches) == 3 and all(len(batch) == 4 for batch in batches)  # with negatives
        for _, positive, _, (block,) in batches:
            assert not torch.isin(block.edata[EID], positive.edata[EID]).any()  # which are excluded
        with pytest.raises(TypeError, match="too many positional"):
            DataLoader(graph, ids, plain, "cpu", False, 0, 8, True, True, 4)
        with pytest.raises(TypeError, match="multiple values for argument 'batch_size'"):
            DataLoader(graph, ids, plain, "cpu", False, 0, 8, batch_size=4)
        with pytest.raises(InvalidArgumentError, match="do you mean batch_size"):
            DataLoader(graph, ids, plain, batchsize=4)


def test_shares_of_ddp(monkeypatch):
    g, seeds = plain(), torch.arange(10)
    with pytest.raises(InvalidArgumentError, match="init_process_group"):
        DataLoader(g, seeds, NeighborSampler([2]), use_ddp=True)
    found = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    for rank in range(3):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        loader = NodeDataLoader(g, seeds, NeighborSampler([2]), use_ddp=True, batch_size=3, shuffle=True)
        batches = [nodes.tolist() for _, nodes, _ in loader]
        assert [len(nodes) for nodes in batches] == [3, 1]
        found += [node for nodes in batches for node in nodes]
    assert sorted(found) == sorted([*range(10), 0, 1])  # as many on each rank


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda g: DataLoader(g, [0], NeighborSampler([2]), batch_size=0), InvalidArgumentError, "batch_size"),
        (lambda g: DataLoader(g, [0], NeighborSampler([2]), batchsize=4), InvalidArgumentError, "'batchsize'"),
        (lambda g: DataLoader(g, [0], [2]), InvalidArgumentError, "must have sample"),
        (lambda g: DataLoader(g, [0.5], NeighborSampler([2])), InvalidArgumentError, "must be integers"),
        (lambda g: next(iter(DataLoader(g, [999], NeighborSampler([2])))), OutOfRangeError, "999"),
        (lambda g: DataLoader(g, {"x": [0]}, NeighborSampler([2])), NodeTypeError, "'x'"),
        (lambda g: EdgeDataLoader(g, {"x": [0]}, NeighborSampler([2])), EdgeTypeError, "'x'"),
        (lambda g: DataLoader(g, [0], NeighborSampler([2]), "nowhere"), InvalidArgumentError, "no device 'nowhere'"),
        (lambda g: sample_neighbors(g, [0], 2, prob="orig"), FieldNameError, "orig"),
        (lambda g: sample_neighbors(g, [0], 2, prob="edge"), InvalidArgumentError, "one bool, uint8, float32"),
        (lambda g: sample_neighbors(g, [0], 2, "both"), InvalidArgumentError, "edge_dir"),
    ],
)
def test_misuse_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make(plain())


def test_two_calls_outside_a_loader_differ():
    g = plain()
    first, second = (NeighborSampler([2]).sample(g, batch(0)) for _ in range(2))
    assert torch.equal(first[1], second[1]) and not torch.equal(first[0], second[0])


@pytest.mark.parametrize("kind", ["labor", "walks", "subgraphs"])
def test_other_processes_may_sample(kind: str) -> None:
    """As workers of torch's loader do: graphs and samplers reach them, and minibatches with features come back."""
    src, dst = torch.randint(0, 50, (2, 600), generator=torch.Generator().manual_seed(0))
    g = mg.graph((src, dst), num_nodes=50)
    g.ndata["x"], g.edata["w"] = torch.arange(50), torch.ones(600)
    sampler = {
        "labor": lambda: LaborSampler([3, 3], prob="w"),
        "walks": lambda: RandomWalkNeighborSampler(g, 2, 0.3, 4, 5),
        "subgraphs": lambda: ShaDowKHopSampler([3, 3]),
    }[kind]()
    for _ in range(2):  # before the graph is sorted for sampling, and after
        there, other = pickle.loads(pickle.dumps((g, sampler)))
        samples = []
        for graph, how in ((g, sampler), (there, other)):
            torch.manual_seed(3)
            samples.append(how.sample(graph, torch.arange(9)))
        for nodes, _, drawn in (samples[1], pickle.loads(pickle.dumps(samples[0]))):
            x = drawn.ndata["x"] if kind == "subgraphs" else drawn[0].srcdata["x"]
            assert torch.equal(nodes, samples[0][0]) and torch.equal(x, nodes)


@pytest.mark.parametrize("exclude", ["self", "ids", "function", "reverse_id"])
def test_other_processes_may_sample_edges(exclude: str) -> None:
    src, dst = torch.randint(0, 50, (2, 600), generator=torch.Generator().manual_seed(0))
    g = mg.graph((src, dst), num_nodes=50)
    how = {"ids": torch.arange(0, 600, 2), "function": torch.neg}.get(exclude, exclude)
    reverse = torch.arange(599, -1, -1) if exclude == "reverse_id" else None
    sampler = as_edge_prediction_sampler(NeighborSampler([3]), how, reverse)
    other = pickle.loads(pickle.dumps(sampler))
    seeds = torch.zeros(3, dtype=torch.int64) if exclude == "function" else torch.arange(9)
    samples = []
    for one in (sampler, other):
        torch.manual_seed(3)
        samples.append(one.sample(g, seeds)[2][0].edata[EID])
    assert len(samples[0]) and torch.equal(*samples)
