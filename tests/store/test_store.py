"""The limits of MPI: tensors that share windows, an error in time, on every rank, and the job goes on."""

import gc

import pytest
import torch
from layouts import ALONE, Layout, SharedJob, on_layouts
from oracle import NUM_NODES

import mpigraph.distributed as dist
from mpigraph.errors import CollectiveError
from mpigraph.rows import segments

LARGE = 1 << 12  # columns


@pytest.mark.slow
@on_layouts([ALONE, Layout(2, 0, 1)])
def test_no_windows_are_left(job: SharedJob, oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors need none, nor do loaders on one node; a large tensor fails, and the job goes on."""
    g = job.open(oracle(2))
    first = dist.DistTensor((NUM_NODES,), torch.int64)
    monkeypatch.setattr(segments, "_MOST_WINDOWS", len(g.session.store.rows.segments))
    with pytest.raises(CollectiveError, match="there is no window for .* are open"):
        dist.DistTensor((NUM_NODES, LARGE), torch.int64)
    second = dist.DistTensor((NUM_NODES,), torch.int64)
    assert not (first[:] | second[:]).any()
    dist.DistDataLoader([1], 1)
    monkeypatch.undo()
    third = dist.DistTensor((NUM_NODES, LARGE), torch.int64)
    assert not third[:].any()
    gc.collect()


@on_layouts([ALONE, Layout(2, 0, 1)])
def test_many_tensors_share_windows(job: SharedJob, oracle) -> None:
    """Rows of all are apart, also where new tensors take the memory of closed ones, which are zero again."""
    g = job.open(oracle(2))
    own = dist.node_split(torch.ones(g.num_nodes(), dtype=torch.bool))
    held = g.session.store.rows.segments

    def make(number: int) -> dist.DistTensor:
        tensor = dist.DistTensor((NUM_NODES, 1 + number % 3), torch.int32)
        assert not tensor[own].any()
        tensor[own] = own[:, None] + number
        return tensor

    tensors = {number: make(number) for number in range(60)}
    before = len(held)
    for number in range(0, 60, 7):
        tensors.pop(number).close()
    tensors |= {number: make(number) for number in range(100, 109)}
    g.barrier()
    assert len(held) == before < 20
    nodes = torch.arange(NUM_NODES)
    for number, tensor in tensors.items():
        assert torch.equal(tensor[nodes].long(), (nodes[:, None] + number).expand(-1, 1 + number % 3)), number
