"""Every line of the migration table in examples/README.md, on one rank: what it names is called, with what it says."""

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from jobs import ROOT, clean_environment, run_job, warm_python
from layouts import ALONE, SharedJob, on_layouts
from oracle import NUM_NODES

import mpigraph as mg
from mpigraph import distributed as dist, nn
from mpigraph.cli.main import main
from mpigraph.dataloading import negative_sampler

WRITES, WRITTEN = ("author", "writes", "paper"), ("paper", "rev_writes", "author")


class At(NamedTuple):
    """The environment of a tried line: a graph without types, a folder, and the alias."""

    g: dist.DistGraph
    folder: Path
    dgl: ModuleType

    def typed(self, **options: Any) -> dist.DistGraph:
        """A graph with types, in two parts, whose edges have reverse ones."""
        config = self.folder / "typed" / "typed.json"
        if not config.exists():
            mg.distributed.partition_graph(in_memory(), "typed", 2, config.parent, part_method="random")
        return dist.DistGraph("typed", part_config=config, **options)


def in_memory() -> mg.HeteroGraph:
    u, v = torch.arange(12) % 4, torch.arange(12) * 5 % 6
    g = mg.heterograph({WRITES: (u, v), WRITTEN: (v, u)}, {"author": 4, "paper": 6})
    g.nodes["paper"].data["feat"] = torch.arange(12.0).reshape(6, 2)
    g.edges[WRITES].data["label"] = torch.arange(12)
    return g


LINES: dict[str, Callable[[At], None]] = {}
PROCESSES = (1, 15)  # lines whose tests start some


def line(cell: str) -> Callable[[Callable[[At], None]], Callable[[At], None]]:
    """Tries the line of the table that begins with ``cell``."""

    def keep(run: Callable[[At], None]) -> Callable[[At], None]:
        LINES[cell] = run
        return run

    return keep


def table() -> dict[str, str]:
    """First cell of each line of the table -> all of the line."""
    text = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    rows = text.split("| DGL | mpigraph | what is different |\n|---|---|---|\n")[1].split("\n\n")[0].splitlines()
    return {row.split("|")[1].strip(): row for row in rows}


def names(row: str) -> set[str]:
    """Return the names that a line's code calls: the last name of a path, an option of a command, a command."""
    result = set()
    for code in re.findall(r"`([^`]+)`", row):
        if code.startswith("--"):
            result.add("at.dgl" if code == "--as-dgl" else code)
        elif code.startswith("python -m mpigraph ") or code.endswith((".py", ".txt")):
            result.add(re.split(r"[ /]", code)[-1].partition(".")[0])
        elif not code.startswith("if "):
            result.add(re.findall(r"^[\w.]*", code.strip('"'))[0].rpartition(".")[2])
    return result - {"as", "MPI_THREAD_MULTIPLE", ""}


def test_every_line_of_the_table_has_a_test_that_names_what_it_names() -> None:
    assert LINES.keys() == table().keys()
    for cell, row in table().items():
        source = inspect.getsource(LINES[cell]).partition("\n")[2]  # without the line's own cell
        missing = {name for name in names(row) if not re.search(rf"(?<![\w-]){re.escape(name)}(?!\w)", source)}
        assert not missing, f"the test of the line {cell} lacks these"


@on_layouts([ALONE])
@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(cell, id=str(number), marks=[pytest.mark.slow] if number in PROCESSES else [])
        for number, cell in enumerate(table())
    ],
)
def test_line(cell: str, job: SharedJob, oracle, dgl: ModuleType, tmp_path: Path) -> None:
    LINES[cell](At(job.open(oracle(3)), tmp_path, dgl))


@line("`import dgl`, `import dgl.nn.pytorch as dglnn`")
def imports(at: At) -> None:
    given: dict[str, Any] = {}
    exec("import mpigraph as dgl\nimport mpigraph.nn.pytorch as dglnn", given)
    assert given["dgl"].nn.SAGEConv is given["dglnn"].SAGEConv


def run(folder: Path, *code: str) -> None:
    (folder / "script.py").write_text("\n".join(("import torch, mpigraph as dgl", *code)))
    done = run_job([*warm_python(), folder / "script.py"], clean_environment(), cwd=folder)
    assert done.status == 0, done.output


@line("`dgl.distributed.initialize(ip_config)`")
def initialize(at: At) -> None:
    run(
        at.folder,
        "ip_config = 'nowhere.txt'",
        "dgl.distributed.initialize(ip_config, num_servers=0, seed=3)",
        "torch.distributed.init_process_group('gloo')",
        "assert torch.distributed.get_world_size() == 1",
    )


@line("`partition_graph`, `load_partition*`")
def partition_graph(at: At) -> None:
    mg.distributed.partition_graph(
        in_memory(), "few", 5, at.folder, balance_ntypes={"paper": torch.arange(6) % 2, "author": torch.zeros(4)}
    )
    config = at.folder / "few.json"
    *_, book, name, ntypes, etypes = dist.load_partition(config, 4)
    assert (name, book.num_partitions()) == ("few", 5) and set(ntypes) == {"author", "paper"} and len(etypes) == 2
    assert dist.load_partition_book(config, 0)[0].num_partitions() == 5
    feats = [dist.load_partition_feats(config, part)[0].get("paper/feat", torch.empty(0, 2)) for part in range(5)]
    assert sorted(torch.cat(feats)[:, 0].tolist()) == list(range(0, 12, 2))


@line("`DistGraph(name, part_config=)`, `RangePartitionBook`")
def dist_graph(at: At) -> None:
    g = at.typed(feat_dtype="float16")  # opens dist.DistGraph("typed", part_config=...)
    assert isinstance(g, dist.DistGraph) and isinstance(g.get_partition_book(), dist.RangePartitionBook)
    assert g.nodes["paper"].data["feat"].storage_dtype == torch.float16 and g.rank() == 0
    _, dst = g.find_edges(torch.arange(12), WRITES)
    assert torch.equal(torch.bincount(dst, minlength=6), g.in_degrees(torch.arange(6), WRITES))


@line("`g._client.barrier()`, `torch.save(tensor)`")
def save(at: At) -> None:
    at.g._client.barrier()
    tensor = at.g.ndata["feat"]
    torch.save(tensor, at.folder / "rows.pt")
    assert torch.equal(torch.load(at.folder / "rows.pt", weights_only=True), tensor[:])
    tensor.save(at.folder / "rows.npy")
    assert np.load(at.folder / "rows.npy")[:, 0].tolist() == list(range(NUM_NODES))


@line("`g.ndata[...]`, `DistTensor`")
def dist_tensor(at: At) -> None:
    g = at.g
    t = dist.DistTensor((NUM_NODES, 2), torch.int32)
    t[:] = 3
    t[torch.arange(4, dtype=torch.int32)] = torch.tensor([1, 2])
    assert t[:].sum() == 6 * NUM_NODES - 12 and (g.ndata["feat"][t[:][:, 1] == 2][:, 0].shape) == (4,)
    with pytest.raises(mg.errors.InvalidArgumentError):
        t[:] = float("nan")
    assert sorted(t.local_partition.unique().tolist()) in ([1, 2, 3], [3])
    t.close()


@line("`node_split`, `edge_split`")
def splits(at: At) -> None:
    mask = at.g.ndata["third"]
    assert torch.equal(dist.node_split(mask), mask[:].nonzero().squeeze(1))
    assert torch.equal(dist.edge_split(at.g.edata["even"]), at.g.edata["even"][:].nonzero().squeeze(1))


@line("`sample_neighbors`, `sample_etype_neighbors`, `in_subgraph`")
def sampling(at: At) -> None:
    g, nodes = at.g, torch.arange(NUM_NODES)
    first, same = (dist.sample_neighbors(g, nodes, 3, seed=5).edata[mg.EID] for _ in range(2))
    assert torch.equal(first, same)
    few = dist.sample_etype_neighbors(g, nodes, {"_E": 3}, exclude_edges=first, seed=5)
    assert not set(few.edata[mg.EID].tolist()) & set(first.tolist())
    everything = dist.in_subgraph(g, nodes)
    assert everything.num_edges() == g.num_edges()
    left = everything.in_degrees() - torch.bincount(g.find_edges(first)[1], minlength=NUM_NODES)
    assert torch.equal(few.in_degrees(), left.clamp(max=3))


@line("`NeighborSampler`, `MultiLayerNeighborSampler`, `MultiLayerFullNeighborSampler`")
def samplers(at: At) -> None:
    options: dict[str, Any] = {"prefetch_node_feats": ["feat"], "prefetch_labels": ["third"], "num_threads": 2}
    seeds = torch.arange(20)
    for sampler, edges in (
        (mg.dataloading.NeighborSampler([2, 2], **options), True),
        (mg.dataloading.MultiLayerNeighborSampler([2, 2], **options), True),
        (mg.dataloading.MultiLayerFullNeighborSampler(2, return_eids=False), False),
    ):
        loader = dist.DistNodeDataLoader(at.g, seeds, sampler, batch_size=20)
        ((nodes, out, blocks),) = loader
        assert torch.equal(out, seeds) and (mg.EID in blocks[0].edata) == edges
        assert not edges or torch.equal(blocks[0].srcdata["feat"], at.g.ndata["feat"][nodes])
        loader.close()


@line("`LaborSampler`, `sampling.sample_labors`")
def labor(at: At) -> None:
    seeds, degrees = torch.arange(20), at.g.in_degrees(torch.arange(NUM_NODES))
    assert isinstance(at.g, dist.DistGraph)
    sampler = at.dgl.dataloading.LaborSampler([2, 2], batch_dependency=2)
    _, _, blocks = sampler.sample_blocks(at.g, seeds)
    assert torch.equal(blocks[1].in_degrees(), degrees[seeds].clamp(max=2)) and "edge_weights" not in blocks[1].edata
    frontier, _ = at.dgl.sampling.sample_labors(at.g, seeds, 2)
    assert torch.equal(frontier.in_degrees()[seeds], degrees[seeds].clamp(max=2))
    with pytest.raises(mg.MPIGraphError, match="importance_sampling must be 0"):
        at.dgl.dataloading.LaborSampler([2], importance_sampling=1)


@line("`DistDataLoader`, `DistNodeDataLoader`")
def loaders(at: At) -> None:
    plain = dist.DistDataLoader(torch.arange(10), 4)
    assert [len(ids) for ids in plain] == [4, 4, 2] and len(plain) == 3
    assert mg.dataloading.DistNodeDataLoader is mg.distributed.DistNodeDataLoader
    options: dict[str, Any] = {"features": ["feat"], "labels": "third", "num_prefetch": 2, "gpu_cache": {}}
    sampler = mg.dataloading.NeighborSampler([2])
    loader = dist.DistNodeDataLoader(at.g, torch.arange(9), sampler, batch_size=9, cache="2GiB", **options)
    ((nodes, _, blocks),) = loader
    assert torch.equal(blocks[0].srcdata["feat"], at.g.ndata["feat"][nodes]) and loader.stats().wait_seconds > 0
    for some in (plain, loader):
        some.close()


@line("`DistEdgeDataLoader`")
def edge_loader(at: At) -> None:
    assert mg.dataloading.DistEdgeDataLoader is dist.DistEdgeDataLoader
    g, eids = at.typed(), {WRITES: torch.arange(12)}
    pairs = {WRITES: WRITTEN, WRITTEN: WRITES}
    reverse_eids = mg.dataloading.reverse_edges(g, pairs)
    there, back = g.find_edges(torch.arange(12), WRITES), g.find_edges(reverse_eids[WRITES][:], WRITTEN)
    assert torch.equal(torch.stack(there), torch.stack(back[::-1]))
    everything = {relation: torch.arange(12) for relation in pairs}
    ways: list[dict[str, Any]] = [
        {"exclude": "reverse_types", "reverse_etypes": pairs},
        {"exclude": "reverse_types", "reverse_etypes": pairs, "reverse_eids": reverse_eids},
        {"exclude": everything},
        {"exclude": lambda eids: everything},
    ]
    for way in ways:
        sampler = mg.dataloading.NeighborSampler([-1])
        loader = dist.DistEdgeDataLoader(
            g, eids, sampler, batch_size=12, features={"paper": ["feat"]}, labels={WRITES: ["label"]}, **way
        )
        ((_, graph, (block,)),) = loader
        assert block.num_edges() == 0  # all edges are seeds, so all, and their reverse, are left out
        assert torch.equal(graph.edges[WRITES].data["label"], g.edges[WRITES].data["label"][:])
        loader.close()


@line("`as_edge_prediction_sampler`, `negative_sampler.Uniform`, `GlobalUniform`")
def negatives(at: At) -> None:
    assert isinstance(at.g, dist.DistGraph)
    for name in ("Uniform", "GlobalUniform", "JointUniform", "LocalUniform", "InBatch"):
        negative = getattr(negative_sampler, name)(2)
        sampler = mg.dataloading.as_edge_prediction_sampler(
            mg.dataloading.NeighborSampler([2]), negative_sampler=negative
        )
        _, graph, others, _ = sampler.sample(at.g, torch.arange(8))
        assert graph.num_edges() == 8 and 0 < others.num_edges() <= 16


@line("`DistEmbedding`, `distributed.optim.SparseAdagrad`, `SparseAdam`")
def embeddings(at: At) -> None:
    optim = mg.distributed.optim
    for make in (optim.SparseAdagrad, optim.SparseAdam, optim.SparseSGD):
        emb = dist.DistEmbedding(NUM_NODES, 4, f"of_{make.__name__}", lambda shape, dtype: torch.ones(shape))
        options: dict[str, Any] = {"row_wise": True} if make is optim.SparseAdagrad else {}
        optimizer = make([emb], lr=0.1, reduction="sum", **options)
        emb(torch.tensor([2, 2, 7])).sum().backward()
        optimizer.step()
        assert (emb.weight[:] != 1).any(1).nonzero().squeeze(1).tolist() == [2, 7]
        emb.save(at.folder / "emb.npy")
        trained = emb.weight[:]
        emb.weight[:] = 0
        emb.load(at.folder / "emb.npy")
        assert torch.equal(emb.weight[:], trained)
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5)
        assert [group["lr"] for group in optimizer.param_groups] == [0.05]


@line("`dgl.nn.EdgePredictor`")
def edge_predictor(at: At) -> None:
    x, y = torch.rand(5, 3), torch.rand(5, 3)
    assert torch.allclose(nn.EdgePredictor("dot")(x, y).squeeze(), (x * y).sum(1))
    assert torch.equal(nn.EdgePredictor("ele")(x, y), x * y) and nn.EdgePredictor("cat")(x, y).shape == (5, 6)
    with pytest.raises(mg.errors.InvalidArgumentError, match="normalise"):
        nn.EdgePredictor("cos")


@line('`init_process_group("gloo")`')
def process_groups(at: At) -> None:
    for start in ("'gloo'", "'mpi4py', init_method='mpi4py://'", "'mpi4py'"):  # the last over torch's MASTER_PORT
        run(
            at.folder,
            "dgl.distributed.initialize()",
            f"torch.distributed.init_process_group({start})",
            "x = torch.ones(3); torch.distributed.all_reduce(x); assert x.sum() == 3",
            "torch.distributed.new_group(backend='gloo')" if start == "'mpi4py'" else "",
        )


@line(
    "`dgl.nn.SAGEConv`, `GraphConv`, `GATConv`, `RelGraphConv`, `HGTConv`, `HeteroGraphConv`, `WeightBasis`, "
    "`dgl.function`"
)
def layers(at: At) -> None:
    g = mg.graph(([0, 1, 2, 0], [1, 2, 0, 0]))
    x, e = torch.rand(3, 4), torch.rand(4, 2)
    types = torch.tensor([0, 1, 0, 1])
    for out in (
        nn.SAGEConv(4, 5, "mean")(g, x),
        nn.GraphConv(4, 5)(g, x),
        nn.GATConv(4, 5, 1)(g, x),
        nn.GATv2Conv(4, 5, 1)(g, x),
        nn.EdgeGATConv(4, 2, 5, 1)(g, x, e),
        nn.RelGraphConv(4, 5, 2)(g, x, types),
        nn.HGTConv(4, 5, 1, 1, 2)(g, x, torch.zeros(3, dtype=torch.int64), types),
        nn.GINConv(torch.nn.Linear(4, 5), "sum")(g, x),
        nn.GINEConv(torch.nn.Linear(4, 5))(g, x, torch.rand(4, 4)),
    ):
        assert out.reshape(3, -1).shape == (3, 5)
    assert nn.WeightBasis((4, 5), 2, 3)().shape == (3, 4, 5)
    by_type = nn.HeteroGraphConv({r[1]: nn.SAGEConv((2, 2), 5, "mean") for r in (WRITES, WRITTEN)})
    rows = {"author": torch.rand(4, 2), "paper": torch.rand(6, 2)}
    assert by_type(in_memory(), rows)["paper"].shape == (6, 5)
    g.ndata["x"] = x
    g.update_all(mg.function.copy_u("x", "m"), mg.function.sum("m", "y"))
    block = mg.to_block(g)
    assert torch.allclose(g.ndata["y"][1], x[0]) and block.edge_index().shape == (2, 4)


@line("`F.dropout(F.relu(h), p, training)`")
def relu_dropout(at: At) -> None:
    h = torch.linspace(-1, 1, 9)
    relu = torch.nn.functional.dropout(h.relu(), 0.5, False)
    assert torch.equal(nn.relu_dropout(h, 0.5, False), relu)


@line("`dgl.graph`, `dgl.heterograph`, `to_bidirected`, `to_homogeneous`, `to_simple`, ...")
def graphs(at: At) -> None:
    scipy = pytest.importorskip("scipy.sparse")
    g = mg.convert.as_graph(scipy.coo_matrix(([1, 1], ([0, 1], [1, 2])), shape=(3, 3)))
    assert g.num_edges() == mg.graph(([0, 1], [1, 2])).num_edges() == 2
    assert mg.to_bidirected(g).num_edges() == 4 and mg.to_simple(mg.graph(([0, 0], [1, 1]))).num_edges() == 1
    assert mg.to_homogeneous(mg.heterograph({WRITES: ([0], [1])})).num_nodes() == 3


@line("`NodeDataLoader`, `EdgeDataLoader`, `DataLoader` on a DistGraph (0.7 to 2.x), fanouts of `None`")
def older_loaders(at: At) -> None:
    sampler = at.dgl.dataloading.NeighborSampler([None])
    for name in ("NodeDataLoader", "EdgeDataLoader", "DataLoader"):
        make = getattr(at.dgl.dataloading, name)
        loader = make(at.g, torch.arange(10), sampler, batch_size=10, num_workers=2, use_ddp=True)
        ((nodes, _, _),) = loader
        assert len(nodes) >= 10
        loader.close()


@line("ids without types in typed graphs: `sample_neighbors(g, homogeneous_ids, ...)`, `find_edges`, `in_degrees`, ...")
def homogeneous_ids(at: At) -> None:
    g, of = at.typed(), at.dgl.distributed
    nodes = torch.arange(10)
    frontier = of.sample_neighbors(g, nodes, -1)
    assert torch.equal(torch.stack(of.find_edges(g, frontier.edata[mg.EID])), torch.stack(frontier.edges()))
    assert torch.equal(of.in_degrees(g, nodes), frontier.in_degrees(nodes))
    book: dist.RangePartitionBook = g.get_partition_book()
    kinds, ids = book.map_to_per_ntype(nodes)
    authors = kinds == g.get_ntype_id("author")
    assert torch.equal(book.map_to_homo_nid(ids[authors], "author"), nodes[authors])


@line("`save_graphs`, `load_graphs`, `save_tensors`, `load_tensors`, `dgl.data.utils`")
def files(at: At) -> None:
    utils = at.dgl.data.utils
    at.dgl.save_graphs(at.folder / "g.bin", [in_memory()])
    (g,), _ = at.dgl.load_graphs(at.folder / "g.bin")
    assert g.num_edges(WRITES) == 12
    utils.save_tensors(at.folder / "t.bin", {"x": torch.arange(3)})
    assert utils.load_tensors(at.folder / "t.bin")["x"].tolist() == [0, 1, 2]


def printed(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "mpigraph", *map(str, words)], env=clean_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@line("`tools/launch.py`, `ip_config.txt`, ssh")
def launch(at: At) -> None:
    (at.folder / "ip_config.txt").write_text("127.0.0.1 30050\n127.0.0.2 30050\n")
    words = ["launch", "--dry-run", "--workspace", at.folder, "--ip_config", "ip_config.txt", "--num_trainers", 2]
    more = ["--keep_alive", "--server_name", "x", "--num_server_threads", 1, "--graph_format", "csc"]
    command = printed(*words, *more, "--num_servers", 1, "--part_config", "g.json", "python3 train.py")
    assert re.search(r"\b(srun|mpiexec)\b", command) and command.rstrip().endswith("train.py")
    in_a_shell = printed(*words, "--num_servers", 1, "sh -c 'cd x && python3 $NAME'")
    assert in_a_shell.rstrip().endswith("sh -c 'cd x && python3 $NAME'")


@line("`tools/copy_files.py`")
def copy_files(at: At) -> None:
    (at.folder / "ip_config.txt").write_text("127.0.0.1\n127.0.0.2\n")
    mg.distributed.partition_graph(in_memory(), "g", 2, at.folder / "g", part_method="random")
    assert json.loads((at.folder / "g" / "g.json").read_text())
    both = ["--workspace", at.folder, "--ip_config", at.folder / "ip_config.txt", "--tool", "scp"]
    more = ["--rel_data_path", "data", "--script_folder", at.folder, "--part_config", at.folder / "g" / "g.json"]
    assert main([str(word) for word in ("copy", "--dry-run", *both, *more)]) == 0
