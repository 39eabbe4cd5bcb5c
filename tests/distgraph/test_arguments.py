"""Arguments that make no sense: one clear error each, at once, on every trainer where the call is collective."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from layouts import ALONE, Layout, SharedJob, on_layouts
from mpi4py import MPI
from oracle import NUM_NODES

import mpigraph
import mpigraph.distributed as dist
from mpigraph.dataloading import NeighborSampler
from mpigraph.errors import (
    InvalidArgumentError,
    MaskLengthError,
    MPIGraphError,
    OutOfRangeError,
    PartitionError,
)
from mpigraph.session.context import Session, current

local_and_remote = on_layouts([ALONE, Layout(2, 0, 1)])
HUGE = 2**70

TENSORS: list[tuple[dict[str, Any], str]] = [
    ({"shape": (NUM_NODES + 0.5,)}, "each size of shape must be an integer >= 0 .got 101.5"),
    ({"shape": (NUM_NODES, -1)}, "each size of shape must be an integer >= 0 .got -1"),
    ({"shape": (NUM_NODES, HUGE)}, "each size of shape must be an integer <= "),
    ({"shape": (NUM_NODES, 2**40)}, "a row must not be larger than 2147483647 bytes"),
    ({"shape": NUM_NODES}, "shape must be a sequence of integers .got 101"),
    ({"part_policy": "x"}, "part_policy must be a PartitionPolicy .got 'x'"),
    ({"name": 5}, "name must be a string .got 5"),
    ({"init_func": 5}, "init_func must be callable .got 5"),
    ({"dtype": "float32"}, "dtype must be a torch.dtype .got 'float32'"),
]
EMBEDDINGS: list[tuple[dict[str, Any], str]] = [
    ({"num_embeddings": 17}, "no node or edge type has 17 rows"),
    ({"embedding_dim": 0}, "embedding_dim must be an integer >= 1 .got 0"),
    ({"embedding_dim": 2.5}, "got 2.5"),
    ({"dtype": torch.int64}, "torch.bfloat16 .got torch.int64"),
    ({"dtype": "float32"}, "got 'float32'"),
    ({"init_func": 0.5}, "init_func must be callable .got 0.5"),
    ({"name": 5}, "name must be a string .got 5"),
]
LOADERS: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 2.5}, "batch_size must be an integer >= 1 .got 2.5"),
    ({"batch_size": HUGE}, "batch_size must be an integer <= "),
    ({"num_prefetch": "x"}, "num_prefetch must be an integer >= 0 .got 'x'"),
    ({"seed": "x"}, "seed must be an integer"),
    ({"device": "abc"}, "there is no device 'abc'"),
    ({"features": 5}, "features are given by name .got 5"),
    ({"graph_sampler": 5}, "graph_sampler must have sample_blocks .got 5"),
    ({"nids": [2.5]}, "nids must be integers"),
    ({"nids": None}, "nids: expected numbers .got None"),
    ({"nids": torch.ones(NUM_NODES, dtype=torch.bool)}, "nids must be integers .got a mask of bool: give the ids"),
]


def test_a_tensor_is_told_how_to_become_a_feature(g: dist.DistGraph) -> None:
    with pytest.raises(InvalidArgumentError, match=r"DistTensor\(\(101, 2\), torch.float32, 'x'\)") as caught:
        g.ndata["x"] = torch.zeros(NUM_NODES, 2)
    x = eval(str(caught.value).split("t = ")[1].split(";")[0], {"mpigraph": mpigraph, "torch": torch})
    x[[3]] = torch.ones(1, 2)
    g.ndata["x"] = x
    assert g.ndata["x"][3].tolist() == [[1, 1]]
    g.barrier()


def test_initialize_again_is_harmless_with_the_same_arguments(g: dist.DistGraph) -> None:
    session = current()
    dist.initialize(**session.arguments)
    assert current() is session and g.num_nodes() == NUM_NODES
    with pytest.raises(InvalidArgumentError, match=r"other arguments .seed=7, before 0.: call exit_client"):
        dist.initialize(**session.arguments | {"seed": 7})


@pytest.mark.slow
@on_layouts([ALONE, Layout(2, 0, 1), Layout(3, 1, 0)])
@pytest.mark.parametrize("everywhere", [True, False])
def test_what_is_made_together_fails_together(job: SharedJob, g: dist.DistGraph, everywhere: bool) -> None:
    bad = everywhere or g.rank() == job.trainers.size - 1
    good = {"shape": (NUM_NODES,), "dtype": torch.float32, "name": "t"}
    for wrong, words in TENSORS:
        called = repr(wrong.get("name", "t")) if bad else "'t'"
        with pytest.raises(InvalidArgumentError, match=f"creating tensor {called} failed on .*: {words}"):
            dist.DistTensor(**good | (wrong if bad else {}))
    embedding = {"num_embeddings": NUM_NODES, "embedding_dim": 2, "name": "e"}
    for wrong, words in EMBEDDINGS:
        with pytest.raises(MPIGraphError, match=f"creating embedding .* failed on .*{words}"):
            dist.DistEmbedding(**embedding | (wrong if bad else {}))
    loader = {"g": g, "nids": [1, 2], "graph_sampler": NeighborSampler([2])}
    for wrong, words in LOADERS:
        with pytest.raises(InvalidArgumentError, match=f"creating a loader failed on .*: {words}"):
            dist.DistNodeDataLoader(**loader | (wrong if bad else {}))
    with pytest.raises(InvalidArgumentError, match="failed on .*collate_fn must be callable .got 7"):
        dist.DistDataLoader([1, 2], 1, collate_fn=7 if bad else None)
    edges = {"g": g, "eids": [1, 2], "graph_sampler": NeighborSampler([2])}
    with pytest.raises(InvalidArgumentError, match="failed on .*there is no device 'abc'"):
        dist.DistEdgeDataLoader(**edges | ({"device": "abc"} if bad else {}))
    assert len(list(dist.DistNodeDataLoader(**loader))) == 2
    assert not dist.DistTensor(**good)[:].any()


CALLS: list[tuple[Callable[[dist.DistGraph], object], type[Exception], str]] = [
    (lambda g: g.ndata["feat"]["x"], InvalidArgumentError, "index of tensor 'feat': expected numbers"),
    (lambda g: g.ndata["feat"][[[1], [2, 3]]], InvalidArgumentError, "expected numbers .got lists of several lengths"),
    (lambda g: g.ndata["feat"][[3, 101]], OutOfRangeError, "tensor 'feat': row 101 at position 1 is out of range"),
    (lambda g: g.ndata["feat"][torch.tensor([-1])], IndexError, "row -1"),
    (lambda g: g.ndata["feat"].__setitem__([500], 1), OutOfRangeError, "row 500"),
    (lambda g: g.ndata["feat"][torch.ones(5, dtype=torch.bool)], MaskLengthError, "must have 101 entries"),
    (lambda g: g.ndata["feat"][torch.tensor([0.5])], InvalidArgumentError, "must be integers"),
    (lambda g: g.ndata["feat"][:, 0], InvalidArgumentError, "rows alone can be chosen"),
    (lambda g: g.ndata.__setitem__(5, g.ndata["feat"]), InvalidArgumentError, "name of a feature must be a string"),
    (lambda g: g.ndata["feat"][np.zeros(2, np.longdouble)], InvalidArgumentError, "expected numbers"),
    (lambda g: g.ndata["feat"][np.zeros(2, "i4,i4")], InvalidArgumentError, "expected numbers"),
    (lambda g: g.ndata["feat"][slice("a", 2)], InvalidArgumentError, "index of tensor 'feat': slice indices"),
    (lambda g: g.ndata["feat"][::0], InvalidArgumentError, "index of tensor 'feat': slice step"),
    (lambda g: g.ndata["feat"].gather([1], out="x"), InvalidArgumentError, "out must be a tensor"),
    (lambda g: g.ndata["feat"].gather([1], device="abc"), InvalidArgumentError, "there is no device 'abc'"),
    (lambda g: NeighborSampler(5), InvalidArgumentError, "fanouts must be a list with a fanout for each layer .got 5"),
    (lambda g: NeighborSampler([2, HUGE]), InvalidArgumentError, "fanout must be an integer <= "),
    (lambda g: g.sample_blocks([1], 5), InvalidArgumentError, "fanouts must be a list"),
    (lambda g: g.sample_blocks([1], [2], num_threads=-1), InvalidArgumentError, "num_threads must be an integer >= 1"),
    (lambda g: g.sample_blocks([1], [2], seed=0.5), InvalidArgumentError, "seed must be an integer"),
    (
        lambda g: dist.node_split(torch.arange(NUM_NODES) + 1),
        InvalidArgumentError,
        "not their ids .got .*from 1 to 101",
    ),
    (lambda g: dist.node_split(g.ndata["orig"]), InvalidArgumentError, "not their ids"),
    (lambda g: dist.node_split(torch.arange(5)), MaskLengthError, "one entry for each of 101 nodes"),
    (lambda g: dist.node_split(["a"] * NUM_NODES), InvalidArgumentError, "expected numbers"),
    (lambda g: dist.node_split(torch.ones(NUM_NODES), rank="x"), InvalidArgumentError, "rank must be an integer"),
    (lambda g: dist.node_split(torch.ones(NUM_NODES), "x"), InvalidArgumentError, "partition_book must be"),
    (lambda g: g.get_partition_book().partid2nids(0.5), PartitionError, "partid must be in"),
    (lambda g: dist.PartitionPolicy("node", "x"), InvalidArgumentError, "a policy is a string and a book"),
]


@local_and_remote
def test_what_a_trainer_does_alone_fails_alone(g: dist.DistGraph) -> None:
    for call, kind, words in CALLS:
        with pytest.raises(kind, match=words):
            call(g)
    for dtype in (torch.int64, torch.bfloat16, torch.complex64):
        assert dist.node_split(torch.ones(NUM_NODES, dtype=dtype), force_even=False).numel() > 0
    for dtype in (np.longlong, np.ulonglong, ">i4"):  # numpy has more kinds of integers than torch
        assert g.get_partition_book().nid2partid(np.array([0, 100, 1], dtype)[::2]).tolist() == [0, 0]


@local_and_remote
def test_names_that_are_no_unicode(job: SharedJob, oracle) -> None:
    """Paths may hold any bytes, which Python shows as surrogates; names of tensors may not."""
    g = job.open(oracle(3))
    path = Path(oracle(3))
    folder = path.parent.with_name("bytes\udcff")
    with suppress(FileExistsError):
        folder.symlink_to(path.parent)
    again = dist.DistGraph(g.graph_name, part_config=folder / path.name)
    assert again.num_nodes() == NUM_NODES
    with pytest.raises(
        PartitionError, match=r"no\\udcff/g.json: cannot read the partition configuration: No such file"
    ):
        dist.DistGraph("g", part_config=folder / "no\udcff" / "g.json")
    for make in (
        lambda name: dist.DistTensor((NUM_NODES,), torch.int8, name),
        lambda name: dist.DistEmbedding(NUM_NODES, 2, name),
    ):
        with pytest.raises(InvalidArgumentError, match=r"name must be without surrogates and NUL .got 'emb\\udcff'"):
            make("emb\udcff")


WRITES: list[tuple[torch.dtype, Any, str]] = [
    (torch.float32, torch.zeros(1, dtype=torch.complex64), "are complex"),
    (torch.int64, float("nan"), "must be from .* in torch.int64 .got nan"),
    (torch.int64, torch.tensor([float("inf")]), "got inf"),
    (torch.int64, 1e30, "got 1e"),
    (torch.int64, float(2**63), "got 9"),
    (torch.int64, np.array([2**63], np.uint64), "got 9223372036854775808"),
    (torch.int8, 300, "must be from -128 to 127 in torch.int8 .got 300"),
    (torch.uint8, torch.tensor([-1]), "got -1"),
    (torch.int32, HUGE, "expected numbers"),
    (torch.float32, "x", "expected numbers"),
    (torch.float32, None, "expected numbers"),
]


@local_and_remote
def test_values_that_do_not_exist_in_a_dtype(job: SharedJob, g: dist.DistGraph) -> None:
    dtypes = {torch.complex64, torch.uint16, *(dtype for dtype, *_ in WRITES)}
    tensors = {dtype: dist.DistTensor((NUM_NODES,), dtype) for dtype in sorted(dtypes, key=str)}
    for dtype, value, words in WRITES:
        with pytest.raises(InvalidArgumentError, match=words):
            tensors[dtype][[1]] = value
        with pytest.raises(InvalidArgumentError, match=f"failed on every rank: .*{words}"):
            dist.DistTensor((NUM_NODES,), dtype, init_func=lambda shape, _, value=value: value)
    for dtype, value, want in ((torch.int64, 2.5, 2), (torch.int8, torch.tensor([-128]), -128), (torch.float32, 7, 7),
                               (torch.complex64, 2.5, 2.5), (torch.complex64, 1j, 1j)):  # fmt: skip
        tensors[dtype][[job.rank]] = value
        assert tensors[dtype][job.rank].item() == want
    assert tensors[torch.uint16].count_nonzero() == 0  # torch counts none of this dtype


BAD_STARTS: list[tuple[dict[str, Any], str]] = [
    ({"seed": "x"}, "seed must be an integer"),
    ({"seed": HUGE}, "seed must be an integer <= "),
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
        with pytest.raises(InvalidArgumentError, match=words):
            dist.initialize(**{"comm": MPI.COMM_SELF} | options)  # all ranks of a job compare what they are given
        assert Session.running is None
