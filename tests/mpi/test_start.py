"""Processes that were started together and that MPI does not connect, and variables that contradict the job."""

import os
import sys
from pathlib import Path

import pytest
from jobs import SOON, clean_environment, run_job, run_script
from mpi4py import MPI

from mpigraph.errors import InvalidArgumentError
from mpigraph.mpi.start import check_connected

FAST_BOXES = "OMPI_MCA_btl_sm_fbox_max"
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4", "RANK": "0"}
LAUNCHES = {
    "torchrun": (TORCHRUN, "torchrun started 4 processes"),
    "dgl": ({"DGL_ROLE": "client", "DGL_NUM_CLIENT": "2", "DGL_NUM_SERVER": "1"}, "python -m mpigraph launch"),
    "openmpi": ({"OMPI_COMM_WORLD_SIZE": "4", "SLURM_STEP_NUM_TASKS": "2"}, "Open MPI's mpirun started 4 processes"),
    "mpich": ({"PMI_SIZE": "4", "SLURM_STEP_NUM_TASKS": "2"}, "MPICH's mpiexec started 4 processes"),
    "srun": ({"SLURM_STEP_NUM_TASKS": "4"}, "srun started 4 processes.*--mpi=list"),
    "pmi2": ({"SLURM_STEP_NUM_TASKS": "4", "PMI_SIZE": "4"}, "srun started 4 processes.*--mpi=list"),
}
ALONE = [{}, {"PMI_SIZE": "1"}, {"SLURM_NTASKS": "4"}, {"WORLD_SIZE": "4"}, {"SLURM_STEP_NUM_TASKS": "x"}]


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment of a process that nothing has launched."""
    for name in os.environ.keys() - clean_environment().keys():
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize("case", LAUNCHES)
def test_processes_that_mpi_does_not_connect_are_one_error(variables: pytest.MonkeyPatch, case: str) -> None:
    given, words = LAUNCHES[case]
    for name, value in given.items():
        variables.setenv(name, value)
    with pytest.raises(InvalidArgumentError, match=f"{words}.*initialize.comm=MPI.COMM_SELF") as caught:
        check_connected(1, "an MPI")
    assert "mpi4py runs an MPI" in str(caught.value) and "mpiexec" in str(caught.value)
    variables.setenv("PMI_RANK", "1")
    with pytest.raises(SystemExit):
        check_connected(1, "an MPI")
    check_connected(2, "an MPI")


@pytest.mark.parametrize("given", ALONE, ids=str)
def test_a_process_that_was_started_alone_may_be_alone(variables: pytest.MonkeyPatch, given: dict[str, str]) -> None:
    for name, value in given.items():
        variables.setenv(name, value)
    check_connected(1, "an MPI")


@pytest.mark.parametrize("rank, lines", [("", None), ("0", 1), ("1", 0)], ids=["alone", "first", "another"])
def test_no_mpi_is_one_line_of_advice(rank: str, lines: int | None) -> None:
    started = {"PMI_SIZE": "2", "PMI_RANK": rank} if rank else {}
    env = clean_environment() | {"MPI4PY_LIBMPI": "/nowhere/libmpi.so"} | started
    done = run_job([sys.executable, "-c", "import mpigraph.mpi"], env)
    assert done.status == 1
    assert lines is None or len(done.output.splitlines()) == lines, done.output
    assert lines == 0 or "mpi4py finds no MPI" in done.output.splitlines()[-1], done.output


@pytest.mark.parametrize(
    "first, given, then",
    [("mpigraph", None, "0"), ("mpigraph", "4", "4"), ("mpi4py.MPI", None, "None")],
    ids=["mpigraph first", "as the user wants", "MPI runs already"],
)
def test_open_mpi_starts_without_its_fast_boxes(first: str, given: str | None, then: str) -> None:
    env = {name: value for name, value in clean_environment().items() if name != FAST_BOXES}
    env |= {FAST_BOXES: given} if given else {}
    text = f"import {first}, mpi4py.MPI, mpigraph, os; from mpigraph.mpi.compat import may_lose_messages; "
    done = run_job([sys.executable, "-c", text + f"print(os.environ.get({FAST_BOXES!r}), may_lose_messages())"], env)
    of_five = MPI.get_vendor()[0] == "Open MPI" and MPI.get_vendor()[1] >= (5, 0, 0)
    assert done.output.split() == [then, str(of_five and then != "0")], done.output


@pytest.mark.slow
def test_torchrun_ends_with_one_error(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import mpigraph.distributed as dist\ndist.initialize()\nprint('went on')")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script]
    done = run_job(command, clean_environment())
    assert done.status != 0 and "went on" not in done.output
    assert done.output.count("InvalidArgumentError: torchrun started 2 processes") == 1, done.output


@pytest.mark.parametrize(
    "variable, words",
    [
        ("WORLD_SIZE", "WORLD_SIZE is 7 in the environment, and this job has 2 trainers"),
        ("RANK", "RANK is 7 in the environment, and this job has 1 as this trainer's rank"),
    ],
)
def test_variables_that_contradict_the_job_are_one_error(tmp_path: Path, oracle, variable: str, words: str) -> None:
    before = f"""
import os
from mpigraph.config import launcher_rank
if launcher_rank() == 1: os.environ[{variable!r}] = '7'
"""
    status, output, seconds = run_script(tmp_path, oracle(2), "", before=before)
    assert status != 0 and seconds < SOON
    assert output.count(f"on rank 1: {words}") == 1, output
