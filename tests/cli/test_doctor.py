"""``python -m mpigraph doctor``: its page on each layout; what keeps a job from running is one line and status 1."""

import os
import re
from collections.abc import Callable

import pytest
from jobs import clean_environment, mpiexec, run_job, warm_python
from layouts import LAYOUTS, WAIT, Job, on_all, own_on_layouts
from mpi4py import MPI

from mpigraph.cli.doctor import doctor
from mpigraph.cli.grammar import Doctor
from mpigraph.mpi import world as worlds
from mpigraph.rows import segments

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPIGRAPH_TIMEOUT", str(WAIT))


def examined(
    layout: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], servers: int | None = None
) -> tuple[int, str]:
    """Run on all ranks of a layout; return the status, and what rank 0 printed."""
    monkeypatch.setenv("MPIGRAPH_RANKS_PER_NODE", str(layout.layout.ranks_per_node))
    status = doctor(Doctor(layout.layout.servers if servers is None else servers), layout.comm)
    printed = capsys.readouterr().out
    on_all(layout.comm, layout.comm.rank == 0 or not printed, printed)
    on_all(layout.comm, status == layout.comm.bcast(status), f"status {status}")
    return status, layout.comm.bcast(printed)


@own_on_layouts(LAYOUTS)
def test_the_page(layout: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, page = examined(layout, monkeypatch, capsys)
    lines = page.splitlines()
    ranks, per_node = layout.layout.ranks, layout.layout.ranks_per_node
    nodes, trainers = -(-ranks // per_node) if per_node else 1, layout.layout.trainers
    hosts = ranks - trainers or ranks
    assert status == 0 and lines[-1] == "A job can run here."
    assert f" {trainers} trainer(s), {hosts} host(s), {nodes} node(s)" in lines[3]
    assert [line.split()[0] for line in lines[:3]] == ["launcher", "MPI", "software"]
    assert all(re.match(f"node {k} +{os.uname().nodename}: ", lines[4 + k]) for k in range(nodes))
    ways = sorted(line.split("  ")[0] for line in lines[4 + nodes : -1])
    assert len(ways) == (3 if nodes > 1 else 0), page
    if nodes > 1:
        assert sum(", which jobs use" in line for line in lines) == 1
        assert ways[0].startswith("neighbours, ") and ways[1:] == ["rows, packed", "rows, rma"]


@pytest.mark.parametrize("comm", [2, 3], indirect=True)
def test_what_keeps_a_job_from_running(comm: MPI.Intracomm, run_on: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def last_of(num_servers: int) -> str:
        status, out, err = run_on(doctor, Doctor(num_servers))
        assert status == 1 and not err
        return out.splitlines()[-1]

    assert "num_servers=7 leaves no trainer on node 0" in last_of(7)
    with monkeypatch.context() as changed:
        changed.setenv("MPIGRAPH_SAMPLING", "pigeon")
        assert "sampling must be auto, alltoallv or sparse (got 'pigeon')" in last_of(1)
        changed.setenv("MPIGRAPH_SAMPLING", "auto")
        changed.setenv("MPIGRAPH_TIMEOUT", "soon")
        assert "MPIGRAPH_TIMEOUT must be a float (got 'soon')" in last_of(1)
    with monkeypatch.context() as changed:
        changed.setattr(worlds, "software", lambda: f"mpigraph {comm.rank}")
        assert re.match(r"  software: mpigraph 0.* on rank 0 .*; mpigraph 1.* on rank 1 ", last_of(1))
    monkeypatch.setattr(segments, "_shared_memory", lambda: (1 << 20, 64 << 20))
    status, out, _ = run_on(doctor, Doctor(1))
    lines = out.splitlines()
    assert status == 1 and lines[-1].startswith("A job cannot run here: too little for graphs on a node")
    assert "1.0 MiB of 64.0 MiB free for graphs (/dev/shm)" in lines[-2]


def test_ranks_that_cannot_start_end_with_one_line() -> None:
    done = run_job([*mpiexec(2), *warm_python(), "-m", "mpigraph", "doctor", "--servers", "5"], clean_environment())
    assert done.status == 1 and done.stdout.count("A job cannot run here: num_servers=5 leaves no trainer") == 1
