"""Whole jobs, started as a user starts them: below MPI_THREAD_MULTIPLE, and what they leave on stderr when they end."""

import os
import re
import sys
from dataclasses import fields
from unittest.mock import patch

import pytest
from jobs import DEADLINE, clean_environment, mpiexec, run_job, run_script, warm_python
from layouts import on_all
from mpi4py import MPI

import mpigraph.distributed as dist
from mpigraph.config import MAY_DIFFER, Config
from mpigraph.errors import InvalidArgumentError
from mpigraph.mpi.abort import unguard

BATCHES = """
import hashlib
from mpi4py import MPI
words = hashlib.sha256()
sampler = NeighborSampler([3, 4], prefetch_node_feats=["feat"])
loader = dist.DistNodeDataLoader(g, torch.arange(rank, g.num_nodes(), 2), sampler, batch_size=5, shuffle=True)
for epoch in range(2):
    for inputs, seeds, blocks in loader:
        for thing in (inputs, seeds, blocks[0].srcdata["feat"], *blocks[0].edges(), *blocks[1].edges()):
            words.update(thing.contiguous().numpy().tobytes())
level = MPI.Query_thread() == MPI.THREAD_MULTIPLE
print(f"trainer {rank} multiple {level} batches {words.hexdigest()}", flush=True)
"""
SERIALIZED = "import mpi4py\nmpi4py.rc.thread_level = 'serialized'\n"
NAMED = BATCHES + "t = dist.DistTensor((g.num_nodes(), 3), torch.float32, 'kept')\nt[t.shape[0] - 1] = 1\n"
SAYS = r"trainer (\d) multiple {} batches ([0-9a-f]{{64}})"  # ranks that print at once share lines
# Open MPI 5 says this wherever it has UCX and UCX has no fabric: github.com/open-mpi/ompi/issues/14086
KNOWN = "OSC UCX component priority set inside component query failed"


@pytest.mark.slow
def test_without_threads_in_mpi_loaders_do_not_prefetch(tmp_path, oracle) -> None:
    """A warning says so, and the batches are the same, with local and remote rows and neighbours."""
    options = {"ranks": 4, "seconds": DEADLINE / 2.5, "MPIGRAPH_RANKS_PER_NODE": "2", "MPIGRAPH_TIMEOUT": "60"}
    free, tied = (run_script(tmp_path, oracle(3), BATCHES, before=before, **options) for before in ("", SERIALIZED))
    assert free[0] == tied[0] == 0, free[1] + tied[1]
    assert "prefetching" not in free[1]
    assert "MPI lacks MPI_THREAD_MULTIPLE: batches are made without prefetching" in tied[1]
    batches = dict(re.findall(SAYS.format("True"), free[1]))
    assert len(batches) == 2 and batches == dict(re.findall(SAYS.format("False"), tied[1]))


@pytest.mark.parametrize(
    ("end", "per_node"),
    [
        pytest.param("dist.exit_client()", "2", id="called", marks=pytest.mark.slow),
        pytest.param("", "2", id="left", marks=pytest.mark.slow),
        pytest.param("next(iter(loader))", "0", id="loop"),
    ],
)
def test_a_job_says_nothing_when_it_ends(tmp_path, oracle, end: str, per_node: str) -> None:
    """Neither this library nor MPI and what lies below it, whose warnings tell of windows that were not freed."""
    status, output, _ = run_script(tmp_path, oracle(3), NAMED + end, ranks=4, MPIGRAPH_RANKS_PER_NODE=per_node)
    assert status == 0, output
    said = "\n".join(line for line in output.splitlines() if KNOWN not in line)
    assert len(re.findall(SAYS.format("True"), said)) == (2 if per_node == "2" else 3)
    assert not re.sub(SAYS.format("True"), "", said).strip(), output


def test_a_server_imports_only_what_stands_above_the_start(tmp_path) -> None:
    """No torch, if the script imports it later; the trainers have torch's backend all the same."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, mpigraph.distributed as dist\n"
        "try: dist.initialize(num_servers=1)\n"
        "except SystemExit: print('server', 'torch' in sys.modules); raise\n"
        "import torch.distributed\n"
        "torch.distributed.init_process_group('mpi4py', init_method='mpi4py://')\n"
        "print('trainer', torch.distributed.get_world_size())"
    )
    done = run_job([*mpiexec(3), sys.executable, script], clean_environment())
    assert done.status == 0 and sorted(done.stdout.splitlines()) == ["server False", "trainer 2", "trainer 2"], done


@pytest.mark.slow
def test_bad_weights_at_the_end_do_not_keep_the_job(tmp_path, oracle) -> None:
    """The tables of edge weights that were written are not made anew only to be freed."""
    body = """
w = dist.DistTensor((g.num_edges(),), torch.float32, "w", part_policy=g.get_edge_partition_policy())
w[torch.arange(g.num_edges())] = torch.ones(g.num_edges())
g.edata["w"] = w
loader = dist.DistNodeDataLoader(g, [0, 1], NeighborSampler([2], prob="w"), batch_size=1)
print(f"batches {len(list(loader))}", flush=True)
w[0] = float("nan")
"""
    status, output, _ = run_script(
        tmp_path, oracle(2), body, ranks=4, MPIGRAPH_RANKS_PER_NODE="2", MPIGRAPH_TIMEOUT="60"
    )
    assert status == 0 and output.count("batches 2") == 2, output


@pytest.mark.slow
def test_staging_needs_no_threads_in_mpi(tmp_path, oracle) -> None:
    script = tmp_path / "stage.py"
    imports = "from mpigraph.cli.grammar import Stage\nfrom mpigraph.cli.stage import stage"
    call = f"stage(Stage({oracle(2)!r}, {str(tmp_path / 'staged')!r}, 1))"
    script.write_text(f"{SERIALIZED}{imports}\nassert {call} == 0")
    env = clean_environment() | {"MPIGRAPH_RANKS_PER_NODE": "2"}
    done = run_job([*mpiexec(4), *warm_python(), script], env)
    assert done.status == 0 and done.stdout.strip().endswith("staged/oracle.json"), done.output


def differs(comm: MPI.Intracomm, name: str, arguments: dict[str, object], variables: dict[str, str]) -> None:
    """Start a job in which the last rank alone has some arguments and variables: one error names the setting."""
    last = comm.rank == comm.size - 1
    text = ""
    with patch.dict(os.environ, variables if last else {}):
        try:
            dist.initialize(comm=comm, **{"num_servers": 0} | (arguments if last else {}))
        except InvalidArgumentError as error:
            text = str(error) if error.everywhere else "not everywhere"
        finally:
            unguard()
    on_all(
        comm, bool(re.search(rf"\n  {name}.*: .* on rank 0.*; .* on rank {comm.size - 1} ", text)), f"{name}: {text}"
    )


ARGUMENTS = {"num_servers": 1, "seed": 5, "ranks_per_node": 1, "timeout": 77.5}


@pytest.mark.parametrize("comm", [2, 3, 4], indirect=True)
def test_settings_that_differ_are_one_error_on_all_ranks(comm: MPI.Intracomm) -> None:
    """Before anything depends on them, so no rank waits for another in vain; also where a value is none."""
    for name, value in ARGUMENTS.items():
        differs(comm, name, {name: value}, {})
    differs(comm, "seed", {"seed": "x"}, {})
    names = [field.name for field in fields(Config) if field.name not in MAY_DIFFER]
    for name in [name for name in names if name != "num_servers"]:
        variable = f"MPIGRAPH_{name.upper()}"
        differs(comm, name, {}, {variable: "2" if os.environ.get(variable) != "2" else "3"})
    differs(comm, "what is refused", {"num_worker_threads": 0}, {})  # others may differ, but must be possible
    for variable, value in (("LOG_LEVEL", "LOUD"), ("NUM_WORKER_THREADS", "many"), ("KEEP_MEMORY", "7")):
        differs(comm, "what is refused", {}, {f"MPIGRAPH_{variable}": value})


@pytest.mark.parametrize("comm", [2], indirect=True)
def test_some_settings_may_differ(comm: MPI.Intracomm) -> None:
    with patch.dict(os.environ, {"MPIGRAPH_LOG_LEVEL": "ERROR", "MPIGRAPH_KEEP_MEMORY": "0"} if comm.rank else {}):
        dist.initialize(comm=comm, num_servers=0, num_worker_threads=1 + comm.rank, seed=3)
    dist.exit_client()
