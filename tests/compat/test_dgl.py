"""The alias ``dgl``: what it offers under which name, what it refuses, and that it is there only when asked for."""

import argparse
import os
import shlex
import sys
from importlib import import_module
from itertools import product
from pathlib import Path
from types import ModuleType

import dgl_names
import numpy as np
import pytest
import torch
from jobs import clean_environment, run_job
from layouts import SharedJob
from oracle import NUM_NODES

import mpigraph as mg
import mpigraph.distributed as dist
from mpigraph.cli.main import main
from mpigraph.compat.dgl import MODULES, install
from mpigraph.errors import InvalidArgumentError
from mpigraph.session import context

# Names that scripts for DGL take, in the places where they take them from.
TAKEN = """
dgl: NID EID NTYPE ETYPE ALL DGLError DGLGraph DGLHeteroGraph graph heterograph to_bidirected to_block to_homogeneous
dgl: distributed dataloading nn function data sampling transforms ops from_networkx from_scipy backend_name __version__
dgl.base: DGLError NID EID
dgl.data: register_data_args load_data
dgl.data.utils: load_graphs save_graphs load_tensors save_tensors Subset makedirs split_dataset generate_mask_tensor
dgl.dataloading: NeighborSampler MultiLayerNeighborSampler MultiLayerFullNeighborSampler BlockSampler NodeCollator
dgl.dataloading: EdgeCollator DistNodeDataLoader DistEdgeDataLoader DistDataLoader DataLoader negative_sampler
dgl.dataloading: as_edge_prediction_sampler
dgl.dataloading dgl.dataloading.pytorch dgl.sampling: NodeDataLoader EdgeDataLoader MultiLayerNeighborSampler
dgl.dataloading.negative_sampler: Uniform GlobalUniform PerSourceUniform
dgl.distributed: initialize exit_client DistGraph DistTensor DistEmbedding DistDataLoader DistNodeDataLoader node_split
dgl.distributed: DistEdgeDataLoader edge_split partition_graph load_partition load_partition_book load_partition_feats
dgl.distributed: GraphPartitionBook RangePartitionBook PartitionPolicy NodePartitionPolicy EdgePartitionPolicy optim
dgl.distributed: nn role sample_neighbors sample_etype_neighbors in_subgraph find_edges in_degrees out_degrees
dgl.distributed: NodeCollator EdgeCollator constants get_rank get_num_client client_barrier SparseAdam SparseAdagrad
dgl.distributed.constants: DEFAULT_NTYPE DEFAULT_ETYPE MAX_QUEUE_SIZE
dgl.distributed.dist_dataloader: NodeCollator EdgeCollator DistDataLoader
dgl.distributed.dist_graph: DistGraph node_split edge_split
dgl.distributed.dist_tensor: DistTensor
dgl.distributed.graph_partition_book: RangePartitionBook PartitionPolicy
dgl.distributed.nn dgl.distributed.nn.pytorch: DistEmbedding
dgl.distributed.optim dgl.distributed.optim.pytorch: SparseAdam SparseAdagrad
dgl.distributed.partition: partition_graph load_partition
dgl.distributed.role: get_global_rank get_trainer_rank get_num_trainers get_rank get_role
dgl.function: u_dot_v copy_u sum mean
dgl.nn dgl.nn.pytorch dgl.nn.pytorch.conv: SAGEConv GraphConv GATConv HeteroGraphConv RelGraphConv HGTConv
dgl.nn: WeightBasis EdgePredictor
dgl.nn.functional dgl.ops: edge_softmax
dgl.sampling: sample_neighbors
dgl.transforms: to_block to_bidirected
dgl.utils: expand_as_pair
"""


def test_every_name_that_scripts_take_is_there(dgl: ModuleType) -> None:
    for line in TAKEN.strip().splitlines():
        modules, _, names = line.partition(": ")
        for module, name in product(modules.split(), names.split()):
            assert getattr(import_module(module), name) is not None, line
            exec(f"from {module} import {name}", {})


def test_the_whole_table_leads_somewhere(dgl: ModuleType) -> None:
    for name, homes in MODULES.items():
        module = import_module(name)
        shown = homes[-1:] if homes[-1] == "mpigraph.nn" else homes  # of layers no others, which hide a script's own
        names = {listed for home in shown for listed in import_module(home).__all__}
        assert names <= set(dir(module)) and all(hasattr(module, listed) for listed in names), name
        exec(f"from {name} import *", given := {})
        assert {listed for listed in names if listed[0] != "_"} <= given.keys()
        assert shown == homes or "DataLoader" not in given


def test_what_the_library_gets_later_comes_through(dgl: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(sys.meta_path)
    install()  # a second time
    assert sys.meta_path == before and import_module("dgl") is dgl
    new = type("NewConv", (torch.nn.Module,), {})
    monkeypatch.setattr(mg.nn, "NewConv", new, raising=False)
    monkeypatch.setattr(mg.nn, "__all__", [*mg.nn.__all__, "NewConv"])
    assert dgl.nn.NewConv is dgl.nn.pytorch.NewConv is new
    assert not hasattr(dgl.nn, "torch")


ROOMS = ("dataloading", "sampling")
WALKS = ("random_walk", "pack_traces", "PinSAGESampler", "RandomWalkNeighborSampler")


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        ("dgl.distributed", "KVServer", "DistTensor"),
        ("dgl.distributed", "rpc", "torch.distributed or mpi4py"),
        ("dgl.distributed", "start_server", "num_servers"),
        ("dgl.distributed", "dgl_partition_to_graphbolt", "no conversion"),
        ("dgl", "graphbolt", "no conversion"),
        ("dgl.data", "FakeNewsBatches", "mpigraph partition reads"),
        ("dgl", "khop_in_subgraph", "DGL or PyG"),
        ("dgl.transforms", "compact_graphs", "DGL or PyG"),
        ("dgl.nn", "TAGConv", "edge_index"),
        ("dgl.nn.pytorch", "JumpingKnowledge", "edge_index"),
        ("dgl", "knn_graph", "stands in for dgl"),
        *((f"dgl.{room}", name, "walks follow out-edges.*--add-reverse") for room, name in product(ROOMS, WALKS)),
        *((f"dgl.{room}", "ShaDowKHopSampler", "use NeighborSampler") for room in ROOMS),
    ],
)
def test_what_cannot_exist_says_what_to_do(dgl: ModuleType, module: str, name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"no {module}.{name}: .*{instead}|no {module}.{name} .*{instead}"):
        getattr(import_module(module), name)
    with pytest.raises(ImportError, match=instead):
        exec(f"from {module} import {name}", {})
    with pytest.raises(ImportError, match=instead):
        import_module(f"{module}.{name}")


def test_nothing_happens_on_import_and_the_real_one_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import mpigraph, mpigraph.compat, sys\nassert not [f for f in sys.meta_path if 'mpigraph' in repr(f)]\n"
    code += "try:\n    import dgl\nexcept ModuleNotFoundError:\n    print('none')"
    done = run_job([sys.executable, "-c", code], clean_environment())
    assert done.status == 0 and done.stdout == "none\n", done.output
    monkeypatch.setitem(sys.modules, "dgl", ModuleType("dgl"))
    before = list(sys.meta_path)
    with pytest.raises(InvalidArgumentError, match="dgl is loaded already"):
        install()
    assert sys.meta_path == before


@pytest.mark.slow
def test_loaders_of_older_versions(dgl: ModuleType, job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    seeds = torch.arange(g.rank(), 40)
    sampler = dgl.dataloading.MultiLayerNeighborSampler([None, 3], return_eids=True)
    options = {"batch_size": 9, "seed": 2}
    made = dgl.dataloading.NodeDataLoader(g, seeds, sampler, "cpu", use_ddp=True, num_workers=4, **options)
    other = dgl.dataloading.DataLoader(g, seeds, sampler, persistent_workers=True, prefetch_factor=2, **options)
    same = dist.DistNodeDataLoader(g, seeds, mg.dataloading.NeighborSampler([-1, 3]), **options)
    assert isinstance(made, dist.DistNodeDataLoader) and len(made.dataset) == len(seeds)
    for ours, more, theirs in zip(made, other, same, strict=True):
        assert torch.equal(ours[0], theirs[0]) and torch.equal(more[0], theirs[0])
    with pytest.raises(InvalidArgumentError, match=r"fanouts come first.*NeighborSampler\(\[10, 25\]\)"):
        dgl.dataloading.NeighborSampler(g, [10, 25], None, "cpu")
    g.barrier()


def test_positional_options_in_the_order_of_dgl(dgl: ModuleType, job: SharedJob, oracle) -> None:
    """The same minibatches, whether options have names or not."""
    g, ids, of = job.open(oracle(3)), torch.arange(30), dgl.dataloading
    plain = mg.dataloading.NeighborSampler([2])
    named = {"batch_size": 8, "drop_last": True, "shuffle": True, "seed": 1}
    for sampler in (plain, of.as_edge_prediction_sampler(plain)):
        there = of.DataLoader(g, ids, sampler, "cpu", False, 0, 8, True, True, seed=1)
        also = of.DataLoader(g, ids, sampler, **named)
        assert len(there) == len(also) == 3
        for first, second in zip(there, also, strict=True):
            assert torch.equal(first[0], second[0])
    negative = of.negative_sampler.Uniform(2)
    more = of.EdgeDataLoader(g, ids, plain, "cpu", False, 0, "self", None, None, negative, batch_size=10)
    batches = list(more)
    assert len(batches) == 3 and all(len(batch) == 4 for batch in batches)  # with negatives
    for _, positive, _, (block,) in batches:
        assert not torch.isin(block.edata[mg.EID], positive.edata[mg.EID]).any()  # which are excluded
    with pytest.raises(TypeError, match="positional arguments"):
        of.DataLoader(g, ids, plain, "cpu", False, 0, 8, True, True, 4)
    with pytest.raises(TypeError, match="multiple values for argument 'batch_size'"):
        of.DataLoader(g, ids, plain, "cpu", False, 0, 8, batch_size=4)


def test_graphs_in_memory_are_not_sampled(dgl: ModuleType) -> None:
    g, says = mg.graph(([0, 1], [1, 0])), "g must be a DistGraph .got HeteroGraph.: partition_graph.. writes one"
    sampler, of = mg.dataloading.NeighborSampler([2]), dgl.dataloading
    for call in (
        lambda: of.DataLoader(g, [0], sampler),
        lambda: of.EdgeDataLoader(g, [0], sampler),
        lambda: dgl.sampling.sample_neighbors(g, [0], 2),
        lambda: sampler.sample(g, [0]),
        lambda: of.as_edge_prediction_sampler(sampler).sample(g, [0]),
        lambda: of.negative_sampler.Uniform(2)(g, [0]),
    ):
        with pytest.raises(InvalidArgumentError, match=says):
            call()


def test_functions_on_homogeneous_ids(dgl: ModuleType, job: SharedJob, typed_oracle: str) -> None:
    g = job.open(typed_oracle)
    book = g.get_partition_book()
    nodes = torch.arange(g.rank(), g.num_nodes(), 5)
    frontier = dgl.distributed.in_subgraph(g, nodes)
    assert frontier.num_nodes() == g.num_nodes()
    src, dst = dgl.distributed.find_edges(g, frontier.edata[dgl.EID])
    assert torch.equal(torch.stack(frontier.edges()), torch.stack([src, dst]))
    assert torch.equal(frontier.in_degrees(nodes), dgl.distributed.in_degrees(g, nodes))
    kinds, ids = book.map_to_per_ntype(nodes)
    out = torch.zeros_like(ids)
    for relation in g.canonical_etypes:
        own = kinds == g.get_ntype_id(relation[0])
        out[own] += g.out_degrees(ids[own], relation)
    assert torch.equal(dgl.distributed.out_degrees(g, nodes), out)
    by_type = dgl.distributed.sample_neighbors(g, {"paper": [1, 2]}, 2)
    assert by_type.canonical_etypes == g.canonical_etypes
    g.barrier()


def test_what_differs_is_as_the_table_of_the_readme_says(
    dgl: ModuleType, job: SharedJob, typed_oracle: str, caplog: pytest.LogCaptureFixture
) -> None:
    g = job.open(typed_oracle)
    book, part = g.get_partition_book(), g.local_partition
    for ntype in g.ntypes:
        own = part.nodes[ntype].data["inner_node"].nonzero().squeeze(1)
        assert torch.equal(own, book.partid2nids(book.partid, ntype)) and part.num_nodes(ntype) == g.num_nodes(ntype)
    for relation in g.canonical_etypes:
        data = part.edges[relation].data
        assert torch.equal(data[dgl.EID], book.partid2eids(book.partid, relation)) and data["inner_edge"].all()
    ids = torch.arange(3, dtype=torch.int32)
    some = next(iter(g.nodes["paper"].data.values()))
    assert torch.equal(some[ids], some[ids.long()])
    name = next(name for r in g.canonical_etypes for name in g.edges[r].data)
    g.add_edge_attribute(name, padding=1)
    with pytest.raises(InvalidArgumentError, match="padding must be above 0"):
        g.add_edge_attribute(name, 0)
    dgl.seed(3)
    assert "initialize(seed=)" in caplog.text
    g.barrier()


def test_the_list_of_names_that_are_not_there_is_fresh(dgl: ModuleType) -> None:
    assert len(dgl_names.listed()) > 100
    assert dgl_names.LIST.read_text("utf-8") == dgl_names.generated(), "run python tests/support/dgl_names.py"


def test_a_dataset_can_be_imported_and_not_made(dgl: ModuleType) -> None:
    from dgl.data import DGLDataset, RedditDataset  # type: ignore[import-not-found]

    for name in (RedditDataset, type("Mine", (DGLDataset,), {})):
        with pytest.raises(InvalidArgumentError, match=r"no dgl.data.\w+Dataset: .*mpigraph partition reads"):
            name(raw_dir="data")


def test_arguments_of_version_0_5(dgl: ModuleType, job: SharedJob, oracle) -> None:
    job.open(oracle(3))
    g = dgl.distributed.DistGraph("ip_config.txt", Path(oracle(3)).stem, conf_file=oracle(3))
    made = dgl.distributed.DistTensor(g, (NUM_NODES, 2), torch.float32, "of_0_5")
    assert made.shape == (NUM_NODES, 2) and len(dgl.distributed.DistTensor((NUM_NODES,), torch.int64)) == NUM_NODES
    own = type("Own", (dgl.distributed.DistTensor,), {})
    assert isinstance(g.ndata["feat"], dgl.distributed.DistTensor) and not isinstance(g.ndata["feat"], own)
    assert isinstance(dist.DistGraph(Path(oracle(3)).stem, part_config=oracle(3)), dgl.distributed.DistGraph)
    assert os.environ["DGL_NUM_SERVER"].isdecimal()
    g.barrier()


def test_ranks_and_constants(dgl: ModuleType, job: SharedJob, oracle) -> None:
    g = job.open(oracle(3))
    role = dgl.distributed.role
    assert role.get_global_rank() == role.get_trainer_rank() == role.get_rank("default") == g.rank()
    assert role.get_num_trainers() == job.trainers.size and role.get_role() == "default"
    assert dgl.distributed.constants.DEFAULT_ETYPE == ("_N", "_E", "_N") == g.canonical_etypes[0]
    assert len(g.ndata["feat"]) == NUM_NODES
    dgl.distributed.client_barrier()


def test_positional_arguments_of_initialize(dgl: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, object]] = []
    monkeypatch.setattr(context, "initialize", lambda ip_config, **options: given.append(options))
    dgl.distributed.initialize("ip_config.txt", 2, 4, 20 << 30, "socket", 3, seed=1)
    dgl.distributed.initialize("ip_config.txt", dgl.distributed.MAX_QUEUE_SIZE, None, 3, True)
    dgl.distributed.initialize(ip_config=None, num_worker_threads=2)
    assert given == [
        {"num_servers": 2, "num_workers": 4, "max_queue_size": 20 << 30, "net_type": "socket", "num_worker_threads": 3}
        | {"seed": 1},
        {"max_queue_size": 20 << 30, "net_type": None, "num_worker_threads": 3, "use_graphbolt": True},
        {"num_worker_threads": 2},
    ]
    with pytest.raises(InvalidArgumentError, match="at most 4 more"):
        dgl.distributed.initialize(None, 20 << 30, None, 1, False, 7)


def test_arguments_of_layers_of_older_versions(dgl: ModuleType) -> None:
    """``low_mem`` stood before the dropout rate, and can be neither mistaken for it nor lost."""
    layers = import_module("dgl.nn.pytorch")
    assert layers.RelGraphConv is import_module("dgl.nn").RelGraphConv
    for low_mem in (False, True):
        by_place = layers.RelGraphConv(4, 3, 2, "basis", 2, True, None, False, low_mem, 0.25)
        by_name = layers.RelGraphConv(4, 3, 2, "basis", 2, self_loop=False, low_mem=low_mem, dropout=0.25)
        as_now = layers.RelGraphConv(4, 3, 2, "basis", 2, True, None, False, 0.25)
        for layer in (by_place, by_name, as_now):
            assert isinstance(layer, mg.nn.RelGraphConv)
            assert layer.dropout.p == 0.25 and layer.loop_weight is None and layer.layer_norm_weight is None


def test_helpers_of_data(dgl: ModuleType, tmp_path: Path) -> None:
    """Those that scripts import and may not call say what to use."""
    parser = argparse.ArgumentParser()
    dgl.data.register_data_args(parser)
    arguments = parser.parse_args(["--dataset", "reddit"])
    for module, name, instead in (
        ("dgl", "save_graphs", "use torch.save"),
        ("dgl", "load_graphs", "DGL's parts are read"),
        ("dgl.data.utils", "load_tensors", "use torch.save"),
        ("dgl.data.utils", "split_dataset", "torch.utils.data"),
        ("dgl.data", "load_data", "datasets are not downloaded"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"no {module}.{name}: .*{instead}"):
            getattr(import_module(module), name)(arguments)
    dgl.data.utils.makedirs(tmp_path / "a/b")
    assert (tmp_path / "a/b").is_dir()
    assert dgl.data.utils.idx2mask([1, 3], 4).tolist() == [False, True, False, True]
    assert dgl.data.utils.generate_mask_tensor(np.array([1, 0])).dtype == torch.bool


def test_run_is_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, helper, dgl\nprint(sys.argv, __name__, __file__, sys.modules['__main__'].dgl is dgl)\nsys.exit(3)"
    )
    (tmp_path / "helper.py").write_text("")
    python = [sys.executable, "-m", "mpigraph", "run"]
    done = run_job([*python, "--as-dgl", script, "--as-dgl", "-m", "x"], clean_environment(), cwd=tmp_path.parent)
    assert done.status == 3, done.output
    assert done.stdout == f"{[str(script), '--as-dgl', '-m', 'x']} __main__ {script} True\n"
    done = run_job([*python, script], clean_environment())
    assert done.status == 1 and "No module named 'dgl'" in done.stderr and "Traceback" in done.stderr
    done = run_job([*python, "--as-dgl", "-m", "script", "1"], clean_environment(), cwd=tmp_path)
    assert done.status == 3 and "'1'] __main__" in done.stdout, done.output
    script.write_text(
        "import atexit, pickle\nclass A: ...\natexit.register(lambda: print(pickle.loads(pickle.dumps(A))))"
    )
    piped = f'cat "$0" | {shlex.join(python)} /dev/stdin'
    for command in ([*python, script], ["sh", "-c", piped, script]):
        done = run_job(command, clean_environment())
        assert done.stdout == "<class '__main__.A'>\n", done.output
    assert main(["run", str(tmp_path / "missing.py")]) == 2
    assert "cannot read" in capsys.readouterr().err
