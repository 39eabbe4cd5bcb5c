"""DistTensor: every index, dtype, life cycle and write, local and remote, with and without servers."""

import gc

import numpy as np
import pytest
import torch
from layouts import API, Layout, SharedJob, on_layouts, several
from oracle import NUM_NODES

import mpigraph.distributed as dist
from mpigraph.errors import ClosedError, CollectiveError, InvalidArgumentError, PartitionError, TensorMismatchError
from mpigraph.session.context import current

NAMES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64"
DTYPES = [getattr(torch, name) for name in NAMES.split()]


def test_every_index_reads_its_rows(g: dist.DistGraph) -> None:
    feat = g.ndata["feat"]
    rows = feat[np.arange(NUM_NODES)]
    everything = g.ndata["orig"][:].to(torch.float32)[:, None].expand(-1, 3)
    assert torch.equal(rows, everything)
    random = np.random.default_rng(g.rank()).integers(0, NUM_NODES, 300)
    mask = np.zeros(NUM_NODES, bool)
    mask[random[:20]] = True
    for index in (
        random,
        random.astype(np.int32),
        torch.from_numpy(random),
        torch.from_numpy(random).to(torch.int32),
        random.tolist(),
        mask,
        torch.from_numpy(mask),
        slice(None),
        slice(5, -7, 3),
        slice(None, None, -1),
        slice(50, 50),
    ):
        got = feat[index]
        at = np.asarray(index) if not isinstance(index, slice) else index
        assert torch.equal(got, torch.from_numpy(everything.numpy()[at].copy())), index
    same = dist.DistTensor((NUM_NODES,), torch.bool, part_policy=g.get_node_partition_policy("_N"))
    if g.rank() == 0:
        same[:] = mask
    g.barrier()
    assert np.array_equal(np.asarray(same), same[:].numpy())
    assert torch.equal(feat[same], feat[same[:]]) and len(feat[same]) == same.count_nonzero() > 0
    with pytest.raises(InvalidArgumentError, match="numpy lacks bfloat16"):
        np.asarray(dist.DistTensor((NUM_NODES,), torch.bfloat16))
    assert torch.equal(feat[7], everything[7:8])
    assert feat[[]].shape == (0, 3)
    assert len(feat) == NUM_NODES
    assert feat.shape == (NUM_NODES, 3) == torch.Size((NUM_NODES, 3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_writes_and_reads(g: dist.DistGraph, dtype: torch.dtype) -> None:
    t = dist.DistTensor((NUM_NODES, 5), dtype)
    assert t.dtype == dtype
    assert not t[:].any()
    g.barrier()
    own = torch.arange(g.rank(), NUM_NODES, current().num_trainers)
    t[own] = (own % 2)[:, None].expand(-1, 5)
    g.barrier()
    assert torch.equal(t[:], (torch.arange(NUM_NODES) % 2)[:, None].expand(-1, 5).to(dtype))
    assert t.count_nonzero() == 5 * (NUM_NODES // 2)


def test_writes_broadcast_and_last_of_equal_rows_wins(g: dist.DistGraph) -> None:
    t = dist.DistTensor((NUM_NODES, 3), torch.float32)
    if g.rank() == 0:
        t[:] = 4
        t[[1, 99, 1]] = torch.tensor([[1.0], [2.0], [3.0]])
        t[torch.arange(NUM_NODES) == 50] = np.array([7, 8, 9])
        with pytest.raises(InvalidArgumentError, match=r"\(2, 2\) do not fit"):
            t[[0, 1]] = torch.zeros(2, 2)
    g.barrier()
    want = torch.full((NUM_NODES, 3), 4.0)
    want[1], want[99], want[50] = 3, 2, torch.tensor([7.0, 8, 9])
    assert torch.equal(t[:], want)


def test_rows_go_to_another_device(g: dist.DistGraph) -> None:
    """``meta`` is a device that every torch has."""
    rows = g.ndata["feat"].gather([3, 1], device="meta")
    assert rows.device.type == "meta" and rows.shape == (2, 3)
    emb = dist.DistEmbedding(NUM_NODES, 5, dtype=torch.bfloat16)
    with torch.no_grad():
        assert emb([0, 1], "meta").dtype == torch.float32 and emb([0, 1], "meta").device.type == "meta"


def test_init_func_that_raises_on_one_trainer_raises_on_all(g: dist.DistGraph) -> None:

    def init(shape: tuple, dtype: torch.dtype) -> torch.Tensor:
        if current().rank == 0:
            raise KeyError("no such vocabulary")
        return torch.zeros(shape, dtype=dtype)

    for persistent in (False, True):
        with pytest.raises(CollectiveError, match=r"init_func of tensor 'x' failed on .*no such vocabulary"):
            dist.DistTensor((NUM_NODES,), torch.float32, "x", init_func=init, persistent=persistent)
    gc.collect()  # what failed is in a cycle with its error
    t = dist.DistTensor((NUM_NODES,), torch.int32, "x")  # the name is free
    assert t.dtype is torch.int32
    tensors = current().store.tensors
    assert [tensor.number for tensor in tensors.values() if tensor.name == "x"] == [t.rows.number]


def test_names_attach_and_mismatches_raise(g: dist.DistGraph) -> None:
    a = dist.DistTensor((NUM_NODES, 2), torch.float32, "h")
    b = dist.DistTensor((NUM_NODES, 2), torch.float32, "h")
    g.barrier()
    if g.rank() == 0:
        a[:] = 5
    g.barrier()
    assert (b[:] == 5).all()
    with pytest.raises(TensorMismatchError, match=r"'h' exists with shape \(101, 2\) and dtype float32"):
        dist.DistTensor((NUM_NODES, 3), torch.float32, "h")
    with pytest.raises(AssertionError):
        dist.DistTensor((NUM_NODES, 2), torch.float64, "h")
    anonymous = [dist.DistTensor((NUM_NODES,), torch.int64) for _ in range(2)]
    anonymous[0][[0]] = 1
    g.barrier()
    assert anonymous[1].count_nonzero() == 0


def test_dropped_tensors_are_freed_and_persistent_ones_stay(g: dist.DistGraph) -> None:
    state = current().store
    kept = dist.DistTensor((NUM_NODES,), torch.int64, "kept", persistent=True)
    before = len(state.tensors)
    del kept
    for _ in range(3):  # an evaluation loop that makes tensors does not grow
        t = dist.DistTensor((NUM_NODES, 4), torch.float32, "h")
        del t
        g.barrier()
        assert len(state.tensors) == before
    dist.DistTensor((NUM_NODES, 7), torch.float32, "h")  # another shape, since the name is free
    with pytest.raises(TensorMismatchError):
        dist.DistTensor((NUM_NODES,), torch.int32, "kept")


def test_a_tensor_that_one_trainer_dropped_is_made_anew(job: SharedJob, oracle) -> None:
    """An evaluation loop in which one trainer keeps the best result."""
    g, session = job.open(oracle(3)), current()
    t = dist.DistTensor((NUM_NODES,), torch.int64, "h")
    if g.rank() == 0:
        t[:] = 7
    best = t if g.rank() == 0 else None
    del t
    again = dist.DistTensor((NUM_NODES,), torch.int64, "h")
    assert (again[:] == (7 if session.num_trainers == 1 else 0)).all()
    assert best is None or (best[:] == 7).all()
    assert dist.DistTensor((NUM_NODES,), torch.int64, "h").rows is again.rows
    del best
    g.barrier()
    assert [tensor for tensor in session.store.tensors.values() if tensor.name == "h"] == [again.rows]


def test_union_of_masks(g: dist.DistGraph) -> None:
    third, other = g.ndata["third"], dist.DistTensor((NUM_NODES,), torch.bool)
    if g.rank() == 0:
        other[[0, 1, 2]] = True
    g.barrier()
    both = third | other
    want = third[:].clone()
    want[:3] = True
    assert torch.equal(both[:], want)
    assert both.count_nonzero() == int(want.sum())


@on_layouts([*API, Layout(4, 1, 0)])
def test_local_partition_is_the_local_part(job: SharedJob, g: dist.DistGraph) -> None:
    book, t = g.get_partition_book(), dist.DistTensor((NUM_NODES, 2), torch.int64)
    ids = book.partid2nids(book.partid)
    assert torch.equal(g.ndata["orig"].local_partition, g.ndata["orig"][ids])
    edges = book.partid2eids(book.partid)
    assert torch.equal(g.edata["edge"].local_partition, g.edata["edge"][edges])
    parts = job.trainers.allgather(book.partid)
    if parts.index(book.partid) == g.rank():  # several trainers may have one part
        t.local_partition[:] = g.rank() + 1
    g.barrier()
    want = torch.tensor([parts.index(part) + 1 if part in parts else 0 for part in book.nid2partid(range(NUM_NODES))])
    assert torch.equal(t[:], want[:, None].expand(-1, 2))


@on_layouts([Layout(2, 0, 0), Layout(2, 0, 1), Layout(3, 1, 0)])
@pytest.mark.parametrize("closed", [False, True])
def test_a_view_keeps_the_rows(job: SharedJob, oracle, closed: bool) -> None:
    """Another tensor does not get the memory of a closed or dropped one as long as a trainer has a view of it."""
    g = job.open(oracle(1 if job.layout.servers else 2))
    tensors = g.session.store.tensors
    before = len(tensors)
    t = dist.DistTensor((NUM_NODES,), torch.float32)
    view = t.local_partition if g.rank() == 0 else None
    if closed:
        t.close()
        with pytest.raises(ClosedError):
            t[[0]]
    del t
    g.barrier()
    g.barrier()
    assert len(tensors) == before + 1
    second = dist.DistTensor((NUM_NODES,), torch.float32)
    if view is not None:
        view.fill_(7)
    g.barrier()
    assert not second[:].any()
    del view, second
    g.barrier()
    g.barrier()
    assert len(tensors) == before


@on_layouts([Layout(3, 2, 0), Layout(2, 0, 1)])
def test_no_local_partition_of_a_part_on_two_hosts(job: SharedJob, oracle) -> None:
    g = job.open(oracle(1))
    with pytest.raises(PartitionError, match=r"'orig' has no local_partition: .* part 0, from 0 up to 101, .*partid2"):
        _ = g.ndata["orig"].local_partition
    assert g.local_partition.num_edges() == g.num_edges()


@several
def test_trainers_in_different_calls_get_one_error(g: dist.DistGraph) -> None:
    with pytest.raises(CollectiveError, match=r"\(s\) 0 in barrier at test_tensor.py:\d+; .*\(s\) 1.* in DistTensor"):
        if g.rank() == 0:
            g.barrier()
        else:
            dist.DistTensor((NUM_NODES,), torch.int64)
    with pytest.raises(CollectiveError, match=r"\(s\) 0 in saving a tensor at .*:\d+; .*\(s\) 1.* in barrier"):
        if g.rank() == 0:
            g.ndata["feat"].save("alone.npy")
        else:
            g.barrier()
    with pytest.raises(CollectiveError, match="with different arguments"):
        dist.DistTensor((NUM_NODES,), torch.int64, f"mine-{g.rank()}")
    with pytest.raises(CollectiveError, match="with different arguments.*'filled': False"):  # no wait for the others
        dist.DistTensor((NUM_NODES,), torch.int64, init_func=torch.ones if g.rank() == 0 else None)
    with pytest.raises(TensorMismatchError, match="no node or edge type has 17 rows"):
        dist.DistTensor((17 if g.rank() == 0 else NUM_NODES,), torch.int64)
    assert len(dist.DistTensor((NUM_NODES,), torch.int64)) == NUM_NODES  # all count what has no name alike
    g.barrier()


def test_torch_saves_the_rows(g: dist.DistGraph, tmp_path) -> None:
    """On any trainer alone, as a plain tensor."""
    t = dist.DistTensor((NUM_NODES, 2), torch.float32)
    if g.rank() == 0:
        t[:] = torch.arange(NUM_NODES)[:, None]
        torch.save({"rows": t}, tmp_path / "rows.pt")
        rows = torch.load(tmp_path / "rows.pt", weights_only=True)["rows"]
        assert torch.equal(rows, torch.arange(NUM_NODES).float()[:, None].expand(-1, 2))
        assert (tmp_path / "rows.pt").stat().st_size < 10_000
    g.barrier()
