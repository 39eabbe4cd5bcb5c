"""Writes of rows in every way: all ranks see a new version, and data derived from the rows follows."""

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from layouts import SharedJob, everywhere, needs_threads, rotated, several
from mpi4py import MPI
from oracle import NUM_NODES

import mpigraph.distributed as dist
from mpigraph import EID, checkpoint
from mpigraph.dataloading import NeighborSampler
from mpigraph.distgraph.dtypes import to_torch
from mpigraph.distributed.optim import SparseAdam
from mpigraph.kernels.row_ops import split_by_range
from mpigraph.mpi.agree import gathering
from mpigraph.mpi.coroutine import Coroutine
from mpigraph.sampling.local import Buffers, LocalSampling, Workers
from mpigraph.sampling.protocol import SamplingRequest
from mpigraph.sampling.strategies import Masked
from mpigraph.session import control
from mpigraph.session.context import current
from mpigraph.session.control import Operation
from mpigraph.store.derived import EdgeWeights

Write = Callable[[dist.DistTensor, torch.Tensor], None]


def by_scatter_of_the_first(t: dist.DistTensor, values: torch.Tensor) -> None:
    """Local rows and remote ones."""
    if current().rank == 0:
        t[:] = values


def by_scatter_of_all(t: dist.DistTensor, values: torch.Tensor) -> None:
    """Each trainer some rows of every host."""
    own = torch.arange(current().rank, len(t), current().num_trainers)
    t[own] = values[own]


def by_memory(t: dist.DistTensor, values: torch.Tensor) -> None:
    for owned in t.owned():
        with t.rows.writing(owned.host) as rows:
            rows[owned.rows] = values[owned.first : owned.last].numpy()


def through_views(t: dist.DistTensor, values: torch.Tensor) -> None:
    for owned in t.owned():
        to_torch(t.rows.lend(owned.host, owned.rows), t.rows.dtype)[:] = values[owned.first : owned.last]


WRITES = [by_scatter_of_the_first, by_scatter_of_all, by_memory, through_views]


def one_edge_each(g: dist.DistGraph, last: bool) -> torch.Tensor:
    """The first or last edge of each destination that has any."""
    counts = g.find_edges(torch.arange(g.num_edges()))[1].unique(return_counts=True)[1]
    ends = counts.cumsum(0)
    return ends - 1 if last else ends - counts


def weights_of(edges: torch.Tensor, count: int) -> torch.Tensor:
    values = torch.zeros(count)
    values[edges] = 2.0
    return values


def drawn(loader: dist.DistNodeDataLoader) -> torch.Tensor:
    """The edges of one epoch, sorted; every trainer draws for all nodes."""
    (batch,) = list(loader)
    edges: torch.Tensor = batch[2][0].edata[EID]
    return edges.sort().values


def weighted_loader(g: dist.DistGraph, name: str) -> dist.DistNodeDataLoader:
    """Has the tables of the weights made."""
    return dist.DistNodeDataLoader(g, np.arange(NUM_NODES), NeighborSampler([1], prob=name), batch_size=NUM_NODES)


def versions(job: SharedJob, t: dist.DistTensor) -> int:
    """The version, which is the same on every trainer."""
    numbers: set[int] = set(job.trainers.allgather(t.rows.version))
    assert len(numbers) == 1
    return numbers.pop()


@everywhere
@rotated(4)
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_draws_follow_written_weights(job: SharedJob, g: dist.DistGraph, write: Write) -> None:
    policy = g.edata["weight"].part_policy
    t = g.edata["w"] = dist.DistTensor((g.num_edges(),), torch.float32, part_policy=policy)
    loader = weighted_loader(g, "w")
    assert len(drawn(loader)) == 0
    before = versions(job, t)
    for round_, last in enumerate((False, True, False)):
        edges = one_edge_each(g, last)
        write(t, weights_of(edges, g.num_edges()))
        g.barrier()
        assert torch.equal(drawn(loader), edges)
        assert versions(job, t) == before + 1 + round_
    tables = current().store.derived(EdgeWeights, t.rows.number)
    g.barrier()
    assert versions(job, t) == before + 3 and not tables.stale and tables.sound  # no rank wrote
    del g.edata["w"]


@pytest.mark.slow
def test_who_draws_while_a_mask_is_prepared_anew_draws_by_the_old_one(g: dist.DistGraph) -> None:
    state = current().store
    t = g.edata["w"] = dist.DistTensor((g.num_edges(),), torch.bool, part_policy=g.edata["weight"].part_policy)
    by_scatter_of_the_first(t, torch.ones(g.num_edges(), dtype=torch.bool))
    weighted_loader(g, "w")
    nodes = np.arange(NUM_NODES)
    by_host = split_by_range(nodes, g.loaded.topology.hosts.node_offsets[0])
    local = [(host, positions) for host, positions in by_host if state.world.is_local[host]]
    how, one = Masked(2, False, t.rows.number), np.ones(1, np.bool_)
    tensors = np.array([[t.rows.number]])
    request = SamplingRequest(g.loaded.number, 0, one, nodes, how, True, np.uint64(1), tensors=tensors)

    def begin() -> LocalSampling:
        return LocalSampling(state, request, local, Buffers(), Workers(1))

    expected, part = begin().finish().edges, begin()
    by_scatter_of_the_first(t, weights_of(one_edge_each(g, True), g.num_edges()).bool())
    g.barrier()
    assert np.array_equal(part.finish().edges, expected) and not np.array_equal(begin().finish().edges, expected)
    del g.edata["w"]


def test_draws_follow_a_view_that_is_kept(job: SharedJob, g: dist.DistGraph) -> None:
    t = g.edata["w"] = dist.DistTensor((g.num_edges(),), torch.float32, part_policy=g.edata["weight"].part_policy)
    loader = weighted_loader(g, "w")
    (owned,) = t.owned()
    view = to_torch(t.rows.lend(owned.host, owned.rows), t.rows.dtype)
    part = view[1:].reshape(-1)  # keeps the memory after its parent is gone
    for last in (False, True):
        edges = one_edge_each(g, last)
        values = weights_of(edges, g.num_edges())[owned.first : owned.last]
        view[:] = values
        g.barrier()
        assert torch.equal(drawn(loader), edges)
        job.trainers.Barrier()  # no rank writes while another draws; not the graph's barrier, which counts versions
    before = versions(job, t)
    g.barrier()
    assert versions(job, t) == before + 1  # the view may have been written
    del view, values
    g.barrier()
    assert versions(job, t) == before + 2
    del part
    g.barrier()  # it may have been written just before it went
    g.barrier()
    assert versions(job, t) == before + 3
    del g.edata["w"]


def _ones(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def test_draws_follow_init_functions_and_unions(job: SharedJob, g: dist.DistGraph) -> None:
    policy = g.edata["weight"].part_policy
    ones = dist.DistTensor((g.num_edges(),), torch.float32, init_func=_ones, part_policy=policy)
    g.edata["w"] = ones
    assert versions(job, ones) > 0
    destinations = g.find_edges(torch.arange(g.num_edges()))[1].unique()
    assert len(drawn(weighted_loader(g, "w"))) == len(destinations)
    first, last = (dist.DistTensor((g.num_edges(),), torch.bool, part_policy=policy) for _ in range(2))
    edges = one_edge_each(g, True)
    if g.rank() == 0:
        last[edges] = True
    g.barrier()
    g.edata["w"] = first | last
    assert versions(job, g.edata["w"]) > 0
    assert torch.equal(drawn(weighted_loader(g, "w")), edges)
    del g.edata["w"]


def test_optimizers_and_checkpoints_write_rows(job: SharedJob, g: dist.DistGraph, tmp_path) -> None:
    emb = dist.DistEmbedding(NUM_NODES, 2, "e")
    optimizer = SparseAdam([emb], lr=0.1)
    tensors = [emb.weight, *emb.optm_state.values()]
    before = [versions(job, t) for t in tensors]
    emb(torch.arange(NUM_NODES)).sum().backward()
    optimizer.step()
    g.barrier()
    assert [versions(job, t) for t in tensors] == [version + 1 for version in before]
    emb(torch.arange(0)).sum().backward()
    optimizer.step()  # nothing to update, which no trainer knows of the others
    g.barrier()
    before = [version + 1 for version in before]
    assert [versions(job, t) for t in tensors] == [version + 1 for version in before]
    path = job.one_has(lambda: str(tmp_path / "saved"))
    checkpoint.save({"emb": emb, "optimizer": optimizer}, checkpoint_id=path)
    g.barrier()
    assert [versions(job, t) for t in tensors] == [version + 1 for version in before]  # reading is no writing
    checkpoint.load({"emb": emb, "optimizer": optimizer}, checkpoint_id=path)
    g.barrier()
    assert [versions(job, t) for t in tensors] == [version + 2 for version in before]


def test_every_trainer_knows_at_once_what_an_optimizer_writes(job: SharedJob, g: dist.DistGraph, tmp_path) -> None:
    """Also who owns none of the rows: it may have copies of them."""
    emb = dist.DistEmbedding(NUM_NODES, 2, "e")
    optimizer = SparseAdam([emb], lr=0.1)
    current().control.call(Operation.BARRIER)
    assert not emb.weight.rows.written
    emb(torch.arange(1 if current().rank == 0 else 0)).sum().backward()
    optimizer.step()
    assert emb.weight.rows.written
    path = job.one_has(lambda: str(tmp_path / "saved"))
    optimizer.save(path)
    current().control.call(Operation.BARRIER)
    assert not emb.weight.rows.written
    before = emb.weight.rows.version
    optimizer.load(path)
    assert emb.weight.rows.version > before and not emb.weight.rows.written  # loading tells it itself


@needs_threads
@several
def test_what_a_thread_writes_during_a_control_call_is_told_by_the_next(
    job: SharedJob, g: dist.DistGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = dist.DistTensor((NUM_NODES,), torch.int64)
    g.barrier()
    before = versions(job, t)

    def write() -> None:
        t[0] = 1

    def told(comm: MPI.Comm, own: bytes) -> Coroutine[list[bytes]]:
        thread = threading.Thread(target=write)  # after this rank has said what it wrote
        thread.start()
        thread.join()
        return gathering(comm, own)

    if g.rank() == 0:
        write()
        monkeypatch.setattr(control, "gathering", told)
    g.barrier()
    assert versions(job, t) == before + 1
    monkeypatch.undo()
    assert t.rows.written == (g.rank() == 0)
    g.barrier()
    assert versions(job, t) == before + 2 and not t.rows.written


def test_loading_writes_rows(job: SharedJob, g: dist.DistGraph) -> None:
    g.barrier()
    assert all(versions(job, t) == 1 for t in (g.ndata["feat"], g.edata["weight"]))


def test_stray_writes_raise(g: dist.DistGraph) -> None:
    t = dist.DistTensor((NUM_NODES, 3), torch.float32)
    rows = t.rows
    for host in np.flatnonzero(current().world.is_local).tolist():
        with pytest.raises(ValueError, match="read-only"):
            rows.segment(host)[:] = 1
        with rows.writing(host) as segment:
            pass
        with pytest.raises(ValueError, match="read-only"):
            segment[:] = 1
    assert t.count_nonzero() == 0


def test_a_view_of_no_rows(g: dist.DistGraph) -> None:
    t = dist.DistTensor((NUM_NODES, 0), torch.float32)
    assert t.local_partition.shape[1] == 0
    assert t.rows.lend(t.owned()[0].host, slice(0, 0)).shape == (0, 0)
