"""The limits of MPI: an error in time, on every rank, and the job goes on."""

import gc

import pytest
import torch
from layouts import ALONE, Layout, SharedJob, on_layouts
from mpi4py import MPI
from oracle import NUM_NODES

import mpigraph.distributed as dist
from mpigraph.errors import CollectiveError
from mpigraph.store import store

MOST = 1 << 12  # communicators; an MPI that has more of them is not brought to its end here


@on_layouts([ALONE, Layout(2, 0, 1)])
def test_no_communicators_are_left_for_a_tensor(job: SharedJob, oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    g = job.open(oracle(2))
    first = dist.DistTensor((NUM_NODES,), torch.int64)
    monkeypatch.setattr(store, "MANY", 1)
    held: list[MPI.Intracomm] = []
    try:
        while len(held) < MOST:
            held.append(g.session.world.comm.Dup())
    except MPI.Exception:
        held.pop().Free()
        for make in (lambda: dist.DistTensor((NUM_NODES,), torch.int64), lambda: dist.DistDataLoader([1], 1)):
            with pytest.raises(CollectiveError, match="no communicators left .*for another tensor or loader"):
                make()
    finally:
        for comm in held:
            comm.Free()
    second = dist.DistTensor((NUM_NODES,), torch.int64)
    assert not (first[:] | second[:]).any()
    gc.collect()
