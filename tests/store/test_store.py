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
