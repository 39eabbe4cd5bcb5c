"""Layer by layer over all nodes, against the whole graph in memory and float64; and what goes wrong."""

import copy
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from layer_checks import sums
from layouts import SharedJob, everywhere, on_all, shared_folder
from oracle import NUM_NODES, oracle_source, partitioned, whole, write_oracle
from torch import nn
from worlds import counted

import mpigraph as mg
import mpigraph.distributed as dist
import mpigraph.function as fn
from mpigraph.graphs.aggregate import TableRows
from mpigraph.graphs.fields import EID, NID
from mpigraph.inference import layerwise
from mpigraph.metadata.schema import Schema
from mpigraph.partition.source import Feature, GraphSource

WIDTH = 6
SIZES = [(WIDTH, 8), (8, 5), (5, 4)]


def rows_of(g: dist.DistGraph, ntype: str, dtype: torch.dtype = torch.float32) -> dist.DistTensor:
    """Rows that are a function of a node's id."""
    ids = torch.arange(g.num_nodes(ntype), dtype=torch.float64)[:, None]
    x = dist.DistTensor((len(ids), WIDTH), dtype, part_policy=g.get_node_partition_policy(ntype))
    if g.rank() == 0:
        x[:] = torch.sin(ids * torch.arange(1, WIDTH + 1) + len(ntype))
    g.barrier()
    return x


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    same = found.shape == wanted.shape
    return same and bool(((found.double() - wanted).abs() <= 1e-5 * wanted.abs().max()).all() if len(wanted) else True)


def in_float64(layers: list[nn.Module], graph: Any, x: Any) -> Any:
    """The layers on the whole graph."""
    with torch.no_grad():
        for layer in layers:
            x = copy.deepcopy(layer).double().eval()(graph, x)
    return x


class Heads(nn.Module):
    """GAT, its heads averaged."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.conv = mg.nn.GATConv(width, out, 2, feat_drop=0.3, attn_drop=0.3, allow_zero_in_degree=True)

    def forward(self, graph: Any, h: Any) -> torch.Tensor:
        return torch.as_tensor(self.conv(graph, h).mean(1))


def gcn(norm: str) -> Callable[[int, int], nn.Module]:
    return lambda a, b: mg.nn.GraphConv(a, b, norm, activation=torch.relu, allow_zero_in_degree=True)


PLAIN: dict[str, Callable[[int, int], nn.Module]] = {
    "SAGE": lambda a, b: mg.nn.SAGEConv(a, b, "mean", feat_drop=0.5, activation=torch.relu),
    "SAGE pool": lambda a, b: mg.nn.SAGEConv(a, b, "pool"),
    "GCN both": gcn("both"),
    "GCN left": gcn("left"),
    "GCN right": gcn("right"),
    "GCN none": gcn("none"),
    "GAT": Heads,
    "GIN": lambda a, b: mg.nn.GINConv(nn.Linear(a, b), "max"),
}


def test_three_layers_equal_the_whole_graph(job: SharedJob, g: dist.DistGraph) -> None:
    x = rows_of(g, g.ntypes[0])
    graph = whole(g)
    kinds = PLAIN if job.trainers.size == 1 else ["SAGE", "GCN both", "GCN left", "GAT"]  # a block has no ranks
    for kind in kinds:
        make = PLAIN[kind]
        torch.manual_seed(3)
        layers = [make(a, b) for a, b in SIZES]
        layers[1].eval()
        wanted = in_float64(layers, graph, x[:].double())
        found = layerwise(g, layers, x, batch_size=7 if job.trainers.size == 1 else 17)  # of 101
        on_all(job.trainers, close(found[:], wanted), kind)
        assert [layer.training for layer in layers] == [True, False, True]
    assert torch.is_grad_enabled()


@pytest.mark.slow
def test_typed_layers_equal_the_whole_graph(job: SharedJob, typed_oracle: str) -> None:
    g = job.open(typed_oracle)
    x = {ntype: rows_of(g, ntype) for ntype in g.ntypes}
    graph = whole(g)
    num = len(g.canonical_etypes)
    norms = {r[1]: ("both", "left")[i % 2] for i, r in enumerate(g.canonical_etypes)}
    kinds: dict[str, Callable[[int, int], nn.Module]] = {
        "GCN by relation": lambda a, b: mg.nn.HeteroGraphConv({r: gcn(norm)(a, b) for r, norm in norms.items()}, "sum"),
        "RGCN": lambda a, b: mg.nn.RelGraphConv(a, b, num, activation=torch.relu),
        "RGCN bases": lambda a, b: mg.nn.RelGraphConv(a, b, num, "basis", 2, dropout=0.4),
        "HGT": lambda a, b: mg.nn.HGTConv(a, b, 1, len(g.ntypes), num, dropout=0.4, use_norm=True),
    }
    for kind, make in kinds.items():
        torch.manual_seed(4)
        layers = [make(a, b) for a, b in SIZES[:2]]
        wanted = in_float64(layers, graph, {t: rows[:].double() for t, rows in x.items()})
        found = layerwise(g, layers, x, batch_size=5 if kind == "RGCN" else 20)
        assert isinstance(found, dict)
        bad = [t for t in found if not close(found[t][:], wanted[t])]
        on_all(job.trainers, not bad and found.keys() == wanted.keys(), f"{kind}: {bad}, {set(found)}")


class Model(nn.Module):
    """What lies between layers depends on the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(mg.nn.SAGEConv(a, b, "mean") for a, b in SIZES)
        self.norms = nn.ModuleList(nn.BatchNorm1d(b) for _, b in SIZES)
        for norm in self.norms:
            norm.running_mean.uniform_(-1, 1)

    def forward_layer(self, i: int, block: Any, h: torch.Tensor) -> torch.Tensor:
        h = self.norms[i](self.layers[i](block, h))
        return nn.functional.dropout(torch.relu(h), 0.5, self.training)

    def forward(self, blocks: Any, h: torch.Tensor) -> torch.Tensor:
        for i, block in enumerate(blocks):
            h = self.forward_layer(i, block, h)
        return h


def test_a_model_says_what_is_between_its_layers(job: SharedJob, g: dist.DistGraph) -> None:
    torch.manual_seed(5)
    model = Model()
    for dtype in (torch.float32, torch.float16):
        x = rows_of(g, g.ntypes[0], dtype)
        with torch.no_grad():
            wanted = copy.deepcopy(model).double().eval()([whole(g)] * 3, x[:].double())
        found = layerwise(g, model, x, batch_size=10)
        on_all(job.trainers, close(found[:], wanted))
    assert model.training and all(norm.training for norm in model.norms)


def test_edges_have_weights(job: SharedJob, g: dist.DistGraph) -> None:

    def weighted(block: Any, h: Any) -> torch.Tensor:
        with block.local_scope():
            block.srcdata["h"] = h[0]
            block.edata["w"] = g.edata["weight"][block.edata[EID]][:, None].to(h[0])
            block.update_all(fn.u_mul_e("h", "w", "m"), fn.sum("m", "out"))
            return torch.as_tensor(block.dstdata["out"])

    x = rows_of(g, g.ntypes[0], torch.float64)
    src, dst = g.find_edges(torch.arange(g.num_edges()))
    weight = g.edata["weight"][:].double()
    matrix = torch.zeros(g.num_nodes(), g.num_nodes(), dtype=torch.float64).index_put((dst, src), weight, True)
    found = layerwise(g, [weighted, weighted], x, batch_size=9)
    on_all(job.trainers, close(found[:], matrix @ matrix @ x[:]))


@everywhere
def test_no_bit_depends_on_batches_or_layout(job: SharedJob, oracle) -> None:
    path = oracle(3)

    def body(batch_sizes: tuple[int, ...]) -> list[torch.Tensor]:
        g = job.open(path) if len(batch_sizes) > 1 else dist.DistGraph("oracle", part_config=path)
        return [layerwise(g, [sums] * 3, g.ndata["feat"], batch_size=size)[:].clone() for size in batch_sizes]

    alone = job.alone(lambda: body((1000,)))
    here = body((4, 1000))
    on_all(job.trainers, all(torch.equal(rows, alone[0]) for rows in here), f"{here}, alone {alone}")


@pytest.mark.slow
@everywhere
def test_no_bit_depends_on_the_layout_where_nodes_have_whole_parts(job: SharedJob) -> None:
    """Products of matrices round differently in other blocks: blocks are the same ones on every layout."""
    path = job.write(write_oracle, 12, "random")

    def body(g: dist.DistGraph) -> torch.Tensor:
        torch.manual_seed(6)
        x = rows_of(g, g.ntypes[0])
        layers = [PLAIN["SAGE"](WIDTH, 8), PLAIN["GAT"](8, 5), PLAIN["GCN both"](5, 3)]
        return layerwise(g, layers, x, batch_size=5)[:].clone()

    alone = job.alone(lambda: body(dist.DistGraph("oracle", part_config=path)))
    on_all(job.trainers, torch.equal(body(job.open(path)), alone))


@everywhere
def test_a_row_comes_once_to_a_trainer_in_a_layer(job: SharedJob, g: dist.DistGraph) -> None:
    x, sent, own = g.ndata["feat"], dict[int, int](), set[int]()

    def noting(layer: int) -> Callable[[Any, Any], torch.Tensor]:
        def step(block: Any, h: Any) -> torch.Tensor:
            sent.setdefault(layer, counted("sent_bytes"))
            own.update(block.dstdata[NID].tolist())
            return sums(block, h)

        return step

    layerwise(g, [noting(layer) for layer in range(3)], x, batch_size=5)
    owners = np.empty(g.num_nodes(), np.int64)
    for trainer, nodes in enumerate(job.trainers.allgather(own)):
        owners[[*nodes]] = trainer
    moved = sum(job.trainers.allgather(sent[2] - sent[1] if own else 0))
    src, dst = (ends.numpy() for ends in g.find_edges(torch.arange(g.num_edges())))
    unique = np.unique(np.stack([owners[dst], src], 1)[owners[src] != owners[dst]], axis=0)
    assert moved == x.shape[1] * x.dtype.itemsize * len(unique), (moved, unique.shape)


@everywhere
def test_a_remote_degree_comes_once_for_all_layers(
    job: SharedJob, g: dist.DistGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology, local, reads = g.loaded.topology, g.session.world.is_local, list[np.ndarray]()
    read = topology.out_degrees

    def noted(ids: np.ndarray, relation: int) -> np.ndarray:
        reads.append(ids[~local[topology.hosts.node_owner(ids, 0)]])
        return read(ids, relation)

    monkeypatch.setattr(topology, "out_degrees", noted)
    layers = [PLAIN[f"GCN {norm}"](WIDTH, WIDTH) for norm in ("both", "left")]
    layerwise(g, layers, rows_of(g, g.ntypes[0]), batch_size=5)
    remote = np.concatenate([np.empty(0, np.int64), *reads])
    on_all(job.trainers, len(np.unique(remote)) == len(remote), str(remote))


def test_sums_over_neighbours_gather_no_rows(job: SharedJob, g: dist.DistGraph) -> None:
    """The rows that a trainer reads lie in one table."""
    states: list[bool] = []

    def watched(layer: nn.Module) -> Callable[[Any, Any], torch.Tensor]:
        def step(block: Any, h: Any) -> torch.Tensor:
            made = torch.as_tensor(layer(block, h))
            states.append(isinstance(h[0], TableRows) and h[0].in_place)
            return made

        return step

    layers = [watched(PLAIN["SAGE"](a, b).eval()) for a, b in SIZES]
    layerwise(g, layers, rows_of(g, g.ntypes[0]), batch_size=5)
    on_all(job.trainers, all(states), str(states))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layers_may_keep_and_change_their_rows(job: SharedJob, g: dist.DistGraph, dtype: torch.dtype) -> None:
    x = rows_of(g, g.ntypes[0], dtype)
    wanted = x[:].clone()
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keeps(block: Any, h: Any) -> torch.Tensor:
        kept.append((h[0], block.srcdata[NID].clone()))
        return torch.as_tensor(h[1])

    def writes_sources(block: Any, h: Any) -> torch.Tensor:
        h[0].zero_()
        block.srcdata[NID].zero_()
        return torch.as_tensor(h[1])

    def writes_destinations(block: Any, h: Any) -> torch.Tensor:
        h[1].zero_()
        return h[0][: block.num_dst_nodes()] + 0

    for layer in (writes_sources, writes_destinations, keeps):
        found = layerwise(g, [layer, layer], x, batch_size=5)
        on_all(job.trainers, torch.equal(found[:], wanted) and torch.equal(x[:], wanted), layer.__name__)
    found.close()
    x.close()
    g.barrier()
    on_all(job.trainers, all(torch.equal(rows + 0, wanted[ids]) for rows, ids in kept))


def test_memory_is_a_table_new_rows_and_a_batch_whatever_the_number_of_layers(
    job: SharedJob, g: dist.DistGraph
) -> None:
    width, own, read, most = 1000, set[int](), set[int](), list[int]()
    x = dist.DistTensor((g.num_nodes(), width), torch.float64, part_policy=g.get_node_partition_policy())

    def live() -> int:
        """Bytes of all tensors of two dimensions."""
        gc.collect()
        tensors = [one for one in gc.get_objects() if type(one) is torch.Tensor and one.dim() == 2]
        return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}.values())

    def noting(block: Any, h: Any) -> torch.Tensor:
        own.update(block.dstdata[NID].tolist())
        read.update(block.srcdata[NID].tolist())
        most.append(live() - before)
        return torch.as_tensor(h[1])

    before = live()
    layerwise(g, [noting] * 4, x, batch_size=1)
    batch = int(g.in_degrees(torch.arange(g.num_nodes())).max()) + 3
    ok = max(most, default=0) <= 8 * width * (len(own) + len(read | own) + batch)
    on_all(job.trainers, ok, f"{[n / 8 / width for n in most]} {len(own)} {len(read | own)} {batch}")


def test_embeddings_are_in_the_original_order(job: SharedJob, oracle) -> None:
    g = job.open(oracle(7))
    found = layerwise(g, [sums] * 2, g.ndata["feat"], batch_size=20)
    ((src, dst),) = oracle_source().edges
    matrix = 2 * np.eye(NUM_NODES, dtype=np.int64)
    np.add.at(matrix, (dst, src), 1)
    wanted = matrix @ matrix @ np.arange(NUM_NODES)
    with shared_folder(job.trainers) as folder:
        found.save(f"{folder}/e.npy")
        g.barrier()
        assert [path.name for path in folder.iterdir()] == ["e.npy"]
        values = np.load(folder / "e.npy")
    on_all(job.trainers, values.dtype == np.float32 and np.array_equal(values, np.repeat(wanted[:, None], 3, axis=1)))


def write_small(directory: Path, nodes: int, edges: int) -> str:
    """A graph in two parts, with fewer nodes than there may be trainers."""
    ids = np.arange(edges) % max(nodes, 1)
    feat = Feature.of(np.arange(2 * nodes, dtype=np.float32).reshape(nodes, 2))
    source = GraphSource(Schema.homogeneous(), (nodes,), ((ids, (ids + 1) % max(nodes, 1)),), {"_N": {"feat": feat}})
    return partitioned(source, "small", 2, directory)


@pytest.mark.parametrize(("nodes", "edges"), [(1, 0), (2, 2), (3, 9)])
def test_small_graphs(job: SharedJob, nodes: int, edges: int) -> None:
    g = job.open(job.write(write_small, nodes, edges))
    feat = g.ndata["feat"]
    src, dst = g.find_edges(torch.arange(edges))
    matrix = 2 * torch.eye(nodes)
    matrix.index_put_((dst, src), torch.ones(edges), accumulate=True)
    found = layerwise(g, [sums, lambda block, h: sums(block, h).bfloat16()], feat, batch_size=1)
    on_all(job.trainers, found.dtype == torch.bfloat16 and torch.equal(found[:].float(), matrix @ matrix @ feat[:]))
    half = rows_of(g, "_N", torch.float16)
    found = layerwise(g, [lambda block, h: h[1]], half, batch_size=2)
    on_all(job.trainers, found.dtype == torch.float16 and torch.equal(found[:], half[:]))
