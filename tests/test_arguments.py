"""What makes no sense: one table of public calls, with what is wrong and the error that names it, at once.

``TOGETHER`` has calls that all trainers make: whoever is wrong, all have the error, and the job goes on. ``ALONE`` has
calls of one trainer, whose error is its own.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from layouts import ALONE as ONE, Layout, SharedJob, on_layouts
from mpi4py import MPI
from oracle import NUM_NODES
from typed_oracle import NUM_NODES as TYPED_NODES

import mpigraph
import mpigraph.distributed as dist
from mpigraph.dataloading import LaborSampler, NeighborSampler, as_edge_prediction_sampler
from mpigraph.dataloading.negative_sampler import GlobalUniform, JointUniform, Uniform
from mpigraph.errors import (
    CollectiveError,
    EdgeTypeError,
    FieldNameError,
    GraphDataError,
    InvalidArgumentError,
    MaskLengthError,
    MPIGraphError,
    NodeTypeError,
    NotInitializedError,
    OutOfRangeError,
    PartitionError,
    TensorMismatchError,
)
from mpigraph.graphs.fields import EID
from mpigraph.session.context import Session, current

layouts = on_layouts([ONE, Layout(2, 0, 1), Layout(3, 1, 0)])
NUM_EDGES = 591
HUGE = 2**70
BLOCKS = NeighborSampler([2])
TIMED = NeighborSampler([2], time_attr="edge")
INT, BOOL, FLOAT = torch.int64, torch.bool, torch.float32
MASK = np.ones(NUM_EDGES, np.uint8)
ERROR = InvalidArgumentError
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
Graph = dist.DistGraph
Wrong = tuple[Any, type[Exception], str]  # options, or a function of the graph that gives them

# What all trainers call: the call, options that are right, what the error says of it, and options that are wrong


def emb(name: str | None = "emb") -> dist.DistEmbedding:
    return dist.DistEmbedding(NUM_NODES, 2, name)


LOADER: list[Wrong] = [  # of loaders of nodes and of edges
    ({"batch_size": 0}, ERROR, "batch_size must be an integer >= 1"),
    ({"batch_size": HUGE}, ERROR, "batch_size must be an integer <= "),
    ({"num_prefetch": "x"}, ERROR, "num_prefetch must be an integer >= 0 .got 'x'"),
    ({"seed": "x"}, ERROR, "seed must be an integer"),
    ({"device": "abc"}, ERROR, "there is no device 'abc'"),
    ({"features": 5}, ERROR, "features are given by name .got 5"),
    ({"features": ["nothing"]}, FieldNameError, "no feature 'nothing' on nodes"),
    ({"labels": ["nothing"]}, FieldNameError, "no feature 'nothing'"),
    ({"graph_sampler": 5}, ERROR, "graph_sampler must have sample_blocks.*got 5"),
    ({"graph_sampler": NeighborSampler([2], prob="feat")}, FieldNameError, "no feature 'feat' on edges"),
    ({"sampler": object()}, ERROR, "takes no sampler: .*shuffle=True"),
    ({"load_input": {"feat": 1}}, ERROR, "takes no load_input: .*features="),
    ({"collate_fn": list}, ERROR, r"takes no collate_fn: .*DistDataLoader\("),
    ({"batchsize": 3}, ERROR, r"unknown argument 'batchsize' of Dist\w+ \(do you mean batch_size\?\)"),
    ({"output": "tf"}, ERROR, r"output must be 'dgl' or 'pyg' \(got 'tf'\)"),
    *(({"cache": size}, ERROR, "cache must be a size") for size in ("much", -1, True, {"feat": "1GiB"}, "1 potato")),
    *(({"lookahead": number}, ERROR, "lookahead") for number in (-1, 1.5)),
]
TOGETHER: list[tuple[Callable[..., Any], Callable[[Graph], dict[str, Any]], str, list[Wrong]]] = [
    (
        dist.DistTensor,
        lambda g: {"shape": (NUM_NODES,), "dtype": FLOAT, "name": "t"},
        "creating tensor .*",
        [
            ({"shape": (NUM_NODES + 0.5,)}, ERROR, "each size of shape must be an integer >= 0 .got 101.5"),
            ({"shape": (NUM_NODES, HUGE)}, ERROR, "each size of shape must be an integer <= "),
            ({"shape": (NUM_NODES, 2**40)}, ERROR, "a row must not be larger than 2147483647 bytes"),
            ({"shape": NUM_NODES}, ERROR, "shape must be a sequence of integers .got 101"),
            ({"shape": (17,)}, TensorMismatchError, "no node or edge type has 17 rows"),
            ({"part_policy": "x"}, ERROR, "part_policy must be a PartitionPolicy .got 'x'"),
            ({"name": 5}, ERROR, "name must be a string .got 5"),
            ({"name": "emb\udcff"}, ERROR, r"name must be without surrogates and NUL .got 'emb\\udcff'"),
            ({"name": None, "persistent": True}, TensorMismatchError, "needs a name"),
            ({"init_func": 5}, ERROR, "init_func must be callable .got 5"),
            ({"dtype": "float32"}, ERROR, "dtype must be a torch.dtype .got 'float32'"),
        ],
    ),
    (
        dist.DistEmbedding,
        lambda g: {"num_embeddings": NUM_NODES, "embedding_dim": 2, "name": "e"},
        "creating embedding .*",
        [
            ({"num_embeddings": 17}, TensorMismatchError, "no node or edge type has 17 rows"),
            ({"embedding_dim": 0}, ERROR, "embedding_dim must be an integer >= 1 .got 0"),
            ({"dtype": INT}, ERROR, "torch.bfloat16 .got torch.int64"),
            ({"init_func": 0.5}, ERROR, "init_func must be callable .got 0.5"),
            ({"name": 5}, ERROR, "name must be a string .got 5"),
            ({"name": "emb\udcff"}, ERROR, "name must be without surrogates and NUL"),
        ],
    ),
    (
        dist.DistNodeDataLoader,
        lambda g: {"g": g, "nids": [1, 2], "graph_sampler": BLOCKS},
        "creating a loader",
        [
            *LOADER,
            ({"nids": [2.5]}, ERROR, "nids must be integers"),
            ({"nids": None}, ERROR, "nids: expected numbers .got None"),
            ({"nids": np.ones(NUM_NODES, bool)}, ERROR, "nids must be integers .got a mask of bool: give the ids"),
            ({"graph_sampler": TIMED}, ERROR, "input_time is needed"),
            ({"input_time": [1, 2]}, ERROR, "input_time needs a sampler with time_attr"),
            *(({"graph_sampler": TIMED, "input_time": times}, ERROR, "input_time") for times in
              ([1], np.ones(2, np.float32), np.full(2, 2**63, np.uint64))),
        ],
    ),
    (
        dist.DistEdgeDataLoader,
        lambda g: {"g": g, "eids": [1, 2], "graph_sampler": BLOCKS},
        "creating a loader",
        [
            *LOADER,
            ({"exclude": "reverse_types"}, ERROR, "exclude='reverse_types' needs reverse_etypes"),
            ({"exclude": "both"}, ERROR, "exclude must be None, 'self', 'reverse_id'"),
            ({"exclude": "reverse_id", "reverse_eids": [0.5] * 8}, ERROR, "reverse_eids must be integers"),
            ({"exclude": "reverse_id", "reverse_eids": MASK}, ERROR, "reverse_eids of uint8 look like a mask"),
            (lambda g: {"exclude": "reverse_id", "reverse_eids": g.edata["weight"]}, ERROR, "must be a tensor"),
            ({"graph_sampler": as_edge_prediction_sampler(BLOCKS), "exclude": "self"}, ERROR,
             "to as_edge_prediction_sampler"),
            ({"negative_sampler": 3}, ERROR, "negative_sampler must be callable"),
            (lambda g: {"g_sampling": g}, ERROR, "DistEdgeDataLoader takes no g_sampling: neighbours are sampled from"),
            *(({"eids": of(MASK), "output": output}, ERROR, "eids of uint8 look like a mask")
              for of in (np.array, torch.tensor, lambda mask: {"_E": mask}) for output in ("dgl", "pyg")),
            ({"eids": np.ones(NUM_EDGES, bool)}, ERROR, "eids must be integers .got a mask of bool"),
            ({"eids": {"x": [1]}}, EdgeTypeError, "'x' does not exist"),
            ({"graph_sampler": TIMED}, ERROR, "edge_label_time is needed"),
            ({"edge_label_time": [1, 2]}, ERROR, "edge_label_time needs a sampler with time_attr"),
            *(({"graph_sampler": TIMED, "edge_label_time": times}, ERROR, "edge_label_time") for times in
              ([1], np.ones(2, np.float32), np.full(2, 2**63, np.uint64))),
        ],
    ),
    (
        dist.DistDataLoader,
        lambda g: {"dataset": [1, 2], "batch_size": 1},
        "creating a loader",
        [
            ({"collate_fn": 7}, ERROR, "collate_fn must be callable .got 7"),
            ({"generator": torch.Generator()}, ERROR, "DistDataLoader takes no generator: .*seed="),
        ],
    ),
    (
        dist.SparseAdam,
        lambda g: {"params": [emb()], "lr": 0.1},
        "creating SparseAdam",
        [
            ({"params": [torch.nn.Embedding(3, 2)]}, ERROR, "params must be DistEmbeddings .got a Embedding among"),
            (lambda g: {"params": [emb(), emb().weight]}, ERROR, "params must be DistEmbeddings .got a DistTensor"),
            (lambda g: {"params": emb()}, ERROR, "params must be a list of DistEmbeddings .got a DistEmbedding"),
            ({"params": []}, ERROR, "params are empty: give at least one DistEmbedding"),
            (lambda g: {"params": [emb(), emb()]}, ERROR, "two of the embeddings are called 'emb'"),
            ({"betas": (0.9, 1.0)}, ERROR, "each of betas must be a number from 0 to 1 .got 1.0"),
            ({"betas": 0.9}, ERROR, "betas must be two numbers .got 0.9"),
        ],
    ),
    (
        dist.SparseAdagrad,
        lambda g: {"params": [emb()], "lr": 0.1},
        "creating SparseAdagrad",
        [
            ({"lr": -0.1}, ERROR, r"lr must be a number from 0 to 1e\+30 .got -0.1"),
            ({"lr": float("nan")}, ERROR, "got nan"),
            ({"eps": -1}, ERROR, "eps must be a number from 0"),
            ({"reduction": "max"}, ERROR, "reduction must be 'mean' or 'sum' .got 'max'"),
        ],
    ),
]  # fmt: skip


@layouts
@pytest.mark.parametrize("everywhere", [True, False])
def test_what_is_made_together_fails_together(job: SharedJob, g: dist.DistGraph, everywhere: bool) -> None:
    bad = everywhere or job.rank == job.trainers.size - 1
    for make, right, what, rows in TOGETHER:
        for wrong, kind, words in rows:
            options, good = wrong(g) if callable(wrong) else wrong, right(g)
            with pytest.raises(kind, match=f"{what} failed on .*{words}") as caught:
                make(**good | (options if bad else {}))
            assert caught.value.everywhere, (make, options)
        made = make(**right(g))
        made.close() if hasattr(made, "close") else None
    reverse = {"g": g, "eids": [1, 2], "graph_sampler": BLOCKS, "exclude": "reverse_id"}
    with pytest.raises(GraphDataError, match="edge .* has no reverse edge in"):
        dist.DistEdgeDataLoader(**reverse)
    if g.session.world.num_nodes > 1:  # which have caches of remote rows
        with pytest.raises(CollectiveError, match="different arguments"):
            dist.DistNodeDataLoader(g, [1], BLOCKS, features=["feat"], lookahead=5 + (job.rank == 0))
    foreign = {"g_sampling": None, "use_ddp": True, "gb_padding": 1, "num_workers": 2, "timeout": 9}
    dist.DistEdgeDataLoader(g, [1], BLOCKS, prefetch_factor=2, **foreign).close()  # of which none changes anything


# What a trainer calls alone

Call = tuple[Callable[[Graph], object], type[Exception], str]
OF_ONE_TYPE: list[Call] = [
    (lambda g: g.ndata["feat"]["x"], ERROR, "index of tensor 'feat': expected numbers"),
    (lambda g: g.ndata["feat"][[3, 101]], OutOfRangeError, "tensor 'feat': row 101 at position 1 is out of range"),
    (lambda g: g.ndata["feat"].__setitem__([500], 1), OutOfRangeError, "row 500"),
    (lambda g: g.ndata["feat"][torch.ones(5, dtype=BOOL)], MaskLengthError, "must have 101 entries"),
    (lambda g: g.ndata["feat"][torch.tensor([0.5])], ERROR, "must be integers"),
    (lambda g: g.ndata["feat"][:, 0], ERROR, "rows alone can be chosen"),
    (lambda g: g.ndata.__setitem__(5, g.ndata["feat"]), ERROR, "name of a feature must be a string"),
    (lambda g: g.ndata["feat"][np.zeros(2, "i4,i4")], ERROR, "expected numbers"),
    (lambda g: g.ndata["feat"][slice("a", 2)], ERROR, "index of tensor 'feat': slice indices"),
    (lambda g: g.ndata["feat"].gather([1], device="abc"), ERROR, "there is no device 'abc'"),
    *((lambda g, ids=ids: emb("bad")(ids), kind, words) for ids, kind, words in (
        ([3, 101], OutOfRangeError, r"'bad': row 101 at position 1 is out of range \(valid: 0 to 100\)"),
        (torch.tensor([-1]), IndexError, "'bad': row -1"),
        (torch.tensor([0.5]), ERROR, "'bad' must be integers"),
        (torch.zeros(2, 2, dtype=INT), ERROR, "'bad' must be integers in one dimension"))),
    (lambda g: NeighborSampler(5), ERROR, "fanouts must be a list with a fanout for each layer .got 5"),
    (lambda g: NeighborSampler([2, -2]), ERROR, r"fanout must be an integer >= -1 \(got -2\)"),
    (lambda g: NeighborSampler([2], num_threads=0), ERROR, "num_threads"),
    (lambda g: LaborSampler([2], importance_sampling=1), ERROR,
     "importance_sampling must be 0 .*all in-neighbours of a hop's destinations in one"),
    (lambda g: LaborSampler([2], replace=True), ERROR, "replace must be False.*NeighborSampler can draw with"),
    (lambda g: LaborSampler([2], disjoint=True), ERROR, "disjoint trees share none; use NeighborSampler"),
    (lambda g: LaborSampler([2], time_attr="time"), ERROR, "disjoint trees share none; use NeighborSampler"),
    (lambda g: LaborSampler([2], batch_dependency=0), ERROR, "batch_dependency must be an integer >= 1 .got 0"),
    (lambda g: LaborSampler([2], prob="p", mask="m"), ERROR, "give prob or mask"),
    *((lambda g, kind=kind, k=k: kind(k), ERROR, "k must be an integer >= 1")
      for kind in (Uniform, GlobalUniform, JointUniform) for k in (0, -1, 1.5, True, "3", None)),
    *((lambda g, r=r: GlobalUniform(2, redundancy=r), ERROR, "redundancy must be a number >= 1")
      for r in (0.9, float("nan"), float("inf"))),
    (lambda g: as_edge_prediction_sampler([2, 2]), ERROR, "sampler must have sample_blocks"),
    (lambda g: as_edge_prediction_sampler(BLOCKS, "reverse_types", reverse_etypes={"_E": "_E"}).sample(g, [1]), ERROR,
     "needs reverse_eids: DistEdgeDataLoader looks them up"),
    (lambda g: dist.EdgeCollator(g, [1], BLOCKS, g), ERROR, "EdgeCollator takes no g_sampling: neighbours are"),
    *((lambda g, how=how: dist.sample_neighbors(g, **{"nodes": [0], "fanout": 2} | how), kind, words)
      for how, kind, words in (
        ({"nodes": [5, 101]}, OutOfRangeError, "node id of type '_N' 101 at position 1 is out of range"),
        ({"nodes": [0.5]}, ERROR, "node ids must be integers"),
        ({"nodes": np.ones(NUM_NODES, np.uint8)}, ERROR, "node ids of uint8 look like a mask"),
        ({"fanout": -2}, ERROR, "fanout must be an integer >= -1"),
        ({"seed": "x"}, ERROR, "seed must be an integer"),
        ({"prob": 5}, ERROR, "features are given by name"),
        ({"prob": "nothing"}, FieldNameError, "no feature 'nothing'"),
        ({"edge_dir": "out"}, ERROR, "edge_dir must be 'in' .got 'out'.*--add-reverse"))),
    *((lambda g, call=call, edges=edges: call(g, edges), kind, f"exclude_edges.*{words}")
      for call in (lambda g, edges: g.sample_neighbors([0, 5], 2, exclude_edges=edges),
                   lambda g, edges: NeighborSampler([2, 2]).sample_blocks(g, [0, 5], edges))
      for edges, kind, words in (
        ([3, NUM_EDGES], OutOfRangeError, rf"edge id .* {NUM_EDGES} at position 1"),
        (torch.tensor([-1]), OutOfRangeError, "edge id .* -1 at position 0"),
        (np.zeros(NUM_EDGES, bool), ERROR, "must be integers"),
        (torch.zeros(2, 2).long(), ERROR, "must be integers in one dimension"))),
    (lambda g: g.sample_neighbors([0], 2, exclude_edges={"likes": [1]}), EdgeTypeError, "'likes' does not exist"),
    *((lambda g, times=times: TIMED.sample_blocks(g, [0, 1, 2], input_time=times), ERROR, "input_time")
      for times in ([1, 1], np.ones(3), None)),
    (lambda g: g.sample_blocks([1], 5), ERROR, "fanouts must be a list"),
    (lambda g: g.sample_blocks([101], []), OutOfRangeError, "101"),
    (lambda g: g.sample_blocks([1], [2], num_threads=-1), ERROR, "num_threads must be an integer >= 1"),
    (lambda g: g.sample_blocks([1], [2], seed=0.5), ERROR, "seed must be an integer"),
    (lambda g: dist.node_split(torch.arange(NUM_NODES) + 1), ERROR, "not their ids .got .*from 1 to 101"),
    (lambda g: dist.node_split(g.ndata["orig"]), ERROR, "not their ids"),
    (lambda g: dist.node_split(torch.arange(5)), MaskLengthError, "one entry for each of 101 nodes"),
    (lambda g: dist.node_split(["a"] * NUM_NODES), ERROR, "expected numbers"),
    (lambda g: dist.node_split(torch.ones(NUM_NODES), rank="x"), ERROR, "rank must be an integer"),
    (lambda g: dist.node_split(torch.ones(NUM_NODES), "x"), ERROR, "partition_book must be"),
    *((lambda g, wrong=wrong, dtype=dtype: dist.node_split(
        np.where(np.arange(NUM_NODES) == 50, wrong, 1).astype(dtype), rank=0), ERROR, "a mask has 0 or 1")
      for wrong, dtype in ((-1, "i1"), (2, "i8"), (-1, "f4"), (2, "f4"), (0.5, "f4"), (np.nan, "f4"))),
    (lambda g: g.get_partition_book().partid2nids(0.5), PartitionError, "partid must be in"),
    (lambda g: dist.PartitionPolicy("node", "x"), ERROR, "a policy is a string and a book"),
    (lambda g: Uniform(2)(g, [0, NUM_EDGES]), OutOfRangeError, "edge id .*591"),
    (lambda g: Uniform(2)(g, {"likes": [1]}), EdgeTypeError, "'likes' does not exist"),
]  # fmt: skip
OF_TYPES: list[Call] = [
    *((lambda g, nodes=nodes, fanout=fanout, how=how: g.sample_blocks(nodes, [fanout], **how), kind, words)
      for nodes, fanout, how, kind, words in (
        ([0], 2, {}, NodeTypeError, "node ids must be a dict by node type"),
        ({"book": [0]}, 2, {}, NodeTypeError, "node type 'book' does not exist"),
        ({"venue": [3]}, 2, {}, OutOfRangeError, "node id of type 'venue' 3 at position 0 is out of range"),
        ({"paper": [0]}, {"cites": 2}, {}, EdgeTypeError, "a dict of fanouts needs every edge type"),
        ({"paper": [0]}, {"eats": 2}, {}, EdgeTypeError, "edge type 'eats' does not exist"),
        ({"paper": [0]}, 2, {"prob": "mass"}, FieldNameError, "no feature 'mass' on any of"),
        ({"paper": [0]}, 2, {"prob": {"in": "weight"}}, FieldNameError, "no feature 'weight' on edges of relation"),
        ({"paper": [0]}, 2, {"exclude_edges": [0]}, EdgeTypeError, "edge type is ambiguous"))),
    (lambda g: dist.node_split(np.ones(53)), NodeTypeError, "node type is ambiguous"),
    (lambda g: dist.node_split(np.ones(53), ntype="topic"), KeyError, "'topic' does not exist"),
    (lambda g: dist.node_split(np.ones(53), ntype="paper"), MaskLengthError, "each of 101 nodes"),
    (lambda g: dist.node_split(g.nodes["paper"].data["year"], ntype="author"), TensorMismatchError,
     "'node~paper', not of 'author'"),
    (lambda g: dist.edge_split(np.ones(200)), EdgeTypeError, "edge type is ambiguous"),
    (lambda g: dist.edge_split(g.nodes["paper"].data["year"]), EdgeTypeError, "edge type is ambiguous"),
    (lambda g: dist.edge_split(np.ones(9), etype=("paper", "writes", "author")), EdgeTypeError, "not exist"),
    (lambda g: dist.edge_split(np.ones(9), etype="writes"), MaskLengthError, r"each of \d+ edges"),
    (lambda g: dist.NodeCollator(g, [1, 2], BLOCKS), NodeTypeError, "must be a dict by node type"),
    (lambda g: dist.EdgeCollator(g, [1, 2], BLOCKS), EdgeTypeError, "ambiguous"),
]  # fmt: skip
OF_LOADERS: list[tuple[dict[str, Any], type[Exception], str]] = [  # with types; those of edges have eids
    ({"nids": [0]}, NodeTypeError, "nids must be a dict by node type"),
    ({"nids": {"paper": [0]}, "graph_sampler": TIMED, "input_time": {"paper": [1], "author": [1]}}, ERROR,
     "input_time must have one time for each of 0"),
    ({"eids": [0]}, EdgeTypeError, "ambiguous"),
    ({"eids": {"writes": [0, 1], WRITES: [2]}}, ERROR, "eids: relation .*'writes'.* is given twice"),
    ({"eids": {WRITES: [0]}, "graph_sampler": TIMED, "edge_label_time": {WRITES: [1], CITES: [1]}}, ERROR,
     "edge_label_time of .* must have one time for each of 0"),
]  # fmt: skip


def check(g: Graph, calls: list[Call]) -> None:
    for call, kind, words in calls:
        with pytest.raises(kind, match=words):
            call(g)


@layouts
def test_what_a_trainer_does_alone_fails_alone(g: dist.DistGraph) -> None:
    check(g, OF_ONE_TYPE)
    for dtype in (INT, torch.bfloat16, torch.complex64):
        assert dist.node_split(torch.ones(NUM_NODES, dtype=dtype), force_even=False).numel() > 0
    for dtype in (np.longlong, np.ulonglong, ">i4"):  # numpy has more kinds of integers than torch
        assert g.get_partition_book().nid2partid(np.array([0, 100, 1], dtype)[::2]).tolist() == [0, 0]
    frontier = dist.sample_neighbors(g, [0, 5], -1)  # and the job goes on
    assert frontier.edata[EID].tolist() == g.in_edges([0, 5], "eid").tolist()


@layouts
def test_what_is_wrong_with_types(job: SharedJob, typed_oracle: str) -> None:
    g = job.open(typed_oracle)
    check(g, OF_TYPES)
    for wrong, kind, words in OF_LOADERS:
        make = dist.DistEdgeDataLoader if "eids" in wrong else dist.DistNodeDataLoader
        with pytest.raises(kind, match=words):
            make(**{"g": g, "graph_sampler": BLOCKS} | wrong)
    assert len(g.sample_blocks({"paper": [0]}, [2])[0]["paper"]) <= TYPED_NODES["paper"]


WRONG_GRAPHS: list[tuple[Callable[[str], object], type[Exception], str]] = [
    (lambda path: dist.DistGraph("products", part_config=path), PartitionError, "holds graph 'oracle', not 'products'"),
    (lambda path: dist.DistGraph("oracle", part_config="nowhere.json"), MPIGraphError, "nowhere.json"),
    (lambda path: dist.DistGraph("oracle"), PartitionError, "give part_config"),
    (lambda path: dist.DistGraph("oracle", part_config=path, storage="disk"), ERROR,
     r"storage='disk': .* in 16 bits .* or use more nodes"),
]  # fmt: skip


@layouts
def test_graphs_that_are_not_there(g: dist.DistGraph, oracle) -> None:
    """Paths may hold any bytes, which Python shows as surrogates."""
    path = Path(oracle(3))
    for call, kind, words in WRONG_GRAPHS:
        with pytest.raises(kind, match=words):
            call(str(path))
    folder = path.parent.with_name("bytes\udcff")
    with suppress(FileExistsError):
        folder.symlink_to(path.parent)
    assert dist.DistGraph(g.graph_name, part_config=folder / path.name).num_nodes() == NUM_NODES
    with pytest.raises(PartitionError, match=r"no\\udcff/g.json: cannot read the partition configuration: No such"):
        dist.DistGraph("g", part_config=folder / "no\udcff" / "g.json")


def test_a_tensor_is_told_how_to_become_a_feature(g: dist.DistGraph) -> None:
    with pytest.raises(ERROR, match=r"DistTensor\(\(101, 2\), torch.float32, 'x'\)") as caught:
        g.ndata["x"] = torch.zeros(NUM_NODES, 2)
    x = eval(str(caught.value).split("t = ")[1].split(";")[0], {"mpigraph": mpigraph, "torch": torch})
    x[[3]] = torch.ones(1, 2)
    g.ndata["x"] = x
    assert g.ndata["x"][3].tolist() == [[1, 1]]
    g.barrier()


VALUES: list[tuple[torch.dtype, Any, str]] = [
    (FLOAT, torch.zeros(1, dtype=torch.complex64), "are complex"),
    (INT, float("nan"), "must be from .* in torch.int64 .got nan"),
    (INT, 1e30, "got 1e"),
    (INT, np.array([2**63], np.uint64), "got 9223372036854775808"),
    (torch.int8, 300, "must be from -128 to 127 in torch.int8 .got 300"),
    (torch.int32, HUGE, "expected numbers"),
    (FLOAT, "x", "expected numbers"),
    (FLOAT, None, "expected numbers"),
]


@layouts
def test_values_that_do_not_exist_in_a_dtype(job: SharedJob, oracle) -> None:
    job.open(oracle(3))
    dtypes = {torch.complex64, torch.uint16, *(dtype for dtype, *_ in VALUES)}
    tensors = {dtype: dist.DistTensor((NUM_NODES,), dtype) for dtype in sorted(dtypes, key=str)}
    for dtype, value, words in VALUES:
        with pytest.raises(ERROR, match=words):
            tensors[dtype][[1]] = value
        with pytest.raises(ERROR, match=f"failed on every rank: .*{words}"):
            dist.DistTensor((NUM_NODES,), dtype, init_func=lambda shape, _, value=value: value)
    for dtype, value, want in ((INT, 2.5, 2), (torch.int8, torch.tensor([-128]), -128), (FLOAT, 7, 7),
                               (torch.complex64, 2.5, 2.5), (torch.complex64, 1j, 1j)):  # fmt: skip
        tensors[dtype][[job.rank]] = value
        assert tensors[dtype][job.rank].item() == want
    assert tensors[torch.uint16].count_nonzero() == 0  # torch counts none of this dtype


# Starts

BAD_STARTS: list[tuple[dict[str, Any], str]] = [
    ({"seed": "x"}, "seed must be an integer"),
    ({"num_servers": 1.5}, "num_servers must be an integer >= 0 .got 1.5"),
    ({"num_worker_threads": 0}, "num_worker_threads must be an integer >= 1"),
    ({"ranks_per_node": "a"}, "ranks_per_node must be an integer"),
    ({"timeout": "x"}, "timeout must be > 0 seconds .got 'x'"),
    ({"comm": 5}, "comm must be an mpi4py.MPI.Intracomm"),
]


def test_a_job_does_not_start_with_what_makes_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "running", None)
    monkeypatch.setattr(Session, "servers_ended", False)
    for options, words in BAD_STARTS:
        with pytest.raises(ERROR, match=words):
            dist.initialize(**{"comm": MPI.COMM_SELF} | options)  # all ranks of a job compare what they are given
        assert Session.running is None
    for call in (
        lambda: dist.DistGraph("oracle", part_config="x.json"),
        lambda: dist.DistTensor((3,), FLOAT),
        lambda: dist.node_split(np.ones(3)),
    ):
        with pytest.raises(NotInitializedError, match="initialize"):
            call()


def test_initialize_again_is_harmless_with_the_same_arguments(g: dist.DistGraph) -> None:
    session = current()
    dist.initialize(**session.arguments)
    assert current() is session and g.num_nodes() == NUM_NODES
    with pytest.raises(ERROR, match=r"other arguments .seed=7, before 0.: call exit_client"):
        dist.initialize(**session.arguments | {"seed": 7})
