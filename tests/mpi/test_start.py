"""Processes that were started together and that MPI does not connect, and variables that contradict the job."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from jobs import SOON, clean_environment, mpiexec, run_job, run_script, warm_python
from mpi4py import MPI

from mpigraph import config
from mpigraph.errors import InvalidArgumentError
from mpigraph.mpi.start import check_connected, end_unstarted

FAST_BOXES = "OMPI_MCA_btl_sm_fbox_max"
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4", "RANK": "0"}
LAUNCHES = {
    "torchrun": (TORCHRUN, "torchrun started 4 processes"),
    "dgl": ({"DGL_ROLE": "client", "DGL_NUM_CLIENT": "2", "DGL_NUM_SERVER": "1"}, "python -m mpigraph launch"),
    "openmpi": ({"OMPI_COMM_WORLD_SIZE": "4", "SLURM_STEP_NUM_TASKS": "2"}, "Open MPI's mpirun started 4 processes"),
    "mpich": ({"PMI_SIZE": "4", "SLURM_STEP_NUM_TASKS": "2"}, "MPICH's mpiexec started 4 processes"),
    "mvapich": ({"MV2_COMM_WORLD_SIZE": "4"}, "MVAPICH's launcher started 4 processes"),
    "intel": ({"MPI_LOCALNRANKS": "4"}, "Intel MPI's or MVAPICH's mpiexec started 4 processes"),
    "jsrun": ({"JSM_NAMESPACE_SIZE": "4"}, "jsrun started 4 processes"),
    "flux": ({"FLUX_JOB_SIZE": "4"}, "flux run started 4 processes"),
    "srun": ({"SLURM_STEP_NUM_TASKS": "4"}, "srun started 4 processes.*--mpi=list"),
    "pmi2": ({"SLURM_STEP_NUM_TASKS": "4", "PMI_SIZE": "4"}, "srun started 4 processes.*--mpi=list"),
}
ALONE = [{}, {"PMI_SIZE": "1"}, {"SLURM_NTASKS": "4"}, {"WORLD_SIZE": "4"}, {"SLURM_STEP_NUM_TASKS": "x"}]

TCP_SETTINGS = [  # of the user, and whether UCX may use TCP and has no setting of its own
    ({}, True),
    ({"UCX_TLS": "tcp,self"}, True),
    ({"UCX_TLS": "^ib"}, True),
    ({"UCX_TLS": "^tcp"}, False),
    ({"UCX_TLS": "rc,sm,self"}, False),
    ({"UCX_NET_DEVICES": "mlx5_0:1,eth0"}, True),
    ({"UCX_NET_DEVICES": "mlx5_0:1"}, False),
    ({"UCX_TCP_RX_SEG_SIZE": "64k"}, False),
]


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment of a process that nothing has launched."""
    for name in os.environ.keys() - clean_environment().keys():
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize("case", LAUNCHES)
def test_processes_that_mpi_does_not_connect_are_one_error(variables: pytest.MonkeyPatch, case: str) -> None:
    setting, words = LAUNCHES[case]
    for name, value in setting.items():
        variables.setenv(name, value)
    with pytest.raises(InvalidArgumentError, match=f"{words}.*initialize.comm=MPI.COMM_SELF") as caught:
        check_connected(1, "an MPI")
    assert "mpi4py runs an MPI" in str(caught.value) and "mpiexec" in str(caught.value)
    variables.setenv("PMI_RANK", "1")
    variables.setenv("MPIGRAPH_TIMEOUT", "0.1")  # the others leave the word to the first as long as a wait may last
    with pytest.raises(SystemExit):
        check_connected(1, "an MPI")
    check_connected(2, "an MPI")


@pytest.mark.parametrize(("setting", "tuned"), TCP_SETTINGS, ids=str)
def test_tcp_is_tuned_where_ucx_may_use_it(variables: pytest.MonkeyPatch, setting: dict[str, str], tuned: bool) -> None:
    for name in ("UCX_TLS", "UCX_NET_DEVICES", "UCX_TCP_TX_SEG_SIZE", "UCX_TCP_RX_SEG_SIZE"):
        variables.setenv(name, "")  # to be deleted again in the end
        variables.delenv(name)
    for name, value in setting.items():
        variables.setenv(name, value)
    config.tune_tcp()
    assert ("UCX_TCP_TX_SEG_SIZE" in os.environ) == tuned


@pytest.mark.parametrize("setting", ALONE, ids=str)
def test_a_process_that_was_started_alone_may_be_alone(variables: pytest.MonkeyPatch, setting: dict[str, str]) -> None:
    for name, value in setting.items():
        variables.setenv(name, value)
    check_connected(1, "an MPI")


@pytest.mark.parametrize("rank, lines", [("", None), ("0", 1), ("1", 0)], ids=["alone", "first", "another"])
def test_no_mpi_is_one_line_of_advice(rank: str, lines: int | None) -> None:
    started = {"PMI_SIZE": "2", "PMI_RANK": rank} if rank else {}
    env = clean_environment() | {"MPI4PY_LIBMPI": "/nowhere/libmpi.so", "MPIGRAPH_TIMEOUT": "1"} | started
    done = run_job([sys.executable, "-c", "import mpigraph.mpi"], env)
    assert done.status == 1
    assert lines is None or len(done.output.splitlines()) == lines, done.output
    assert lines == 0 or "mpi4py finds no MPI" in done.output.splitlines()[-1], done.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "first, setting, then",
    [("mpigraph", None, "0"), ("mpigraph", "4", "4"), ("mpi4py.MPI", None, "None")],
    ids=["mpigraph first", "as the user wants", "MPI runs already"],
)
def test_open_mpi_starts_without_its_fast_boxes(first: str, setting: str | None, then: str) -> None:
    env = {name: value for name, value in clean_environment().items() if name != FAST_BOXES}
    env |= {FAST_BOXES: setting} if setting else {}
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
        pytest.param(
            "RANK", "RANK is 7 in the environment, and this job has 1 as this trainer's rank", marks=pytest.mark.slow
        ),
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


BEFORE_INITIALIZE = """
import os, sys, time
import mpigraph.distributed as dist
from mpi4py import MPI
from mpigraph.config import launcher_rank
assert not MPI.Is_initialized()
if launcher_rank() == 1:
    {how}
dist.initialize()
"""


@pytest.mark.parametrize(
    "how, status, words",
    [
        ("raise ValueError('bad argument')", 1, ["uncaught exception on process 1", "ValueError: bad argument"]),
        pytest.param("sys.exit(3)", 3, [], marks=pytest.mark.slow),
        pytest.param("os.kill(os.getpid(), 9)", 9, [], marks=pytest.mark.slow),
    ],
)
def test_an_error_before_initialize_ends_the_job(how: str, status: int, words: list[str]) -> None:
    done = run_job([*mpiexec(2), sys.executable, "-c", BEFORE_INITIALIZE.format(how=how)], clean_environment())
    assert done.status != 0 and done.seconds < SOON
    assert done.status == status or how.startswith("os.kill")
    for text in words:
        assert done.output.count(text) == 1, done.output


@pytest.mark.slow
def test_an_error_after_mpi_was_started_ends_the_job() -> None:
    script = "import sys, mpi4py.MPI, mpigraph\nif mpigraph.config.launcher_rank() == 1: sys.exit(3)\n"
    script += "mpigraph.distributed.initialize()"
    done = run_job([*mpiexec(2), sys.executable, "-c", script], clean_environment())
    assert done.status != 0 and done.seconds < SOON, done.output


def test_a_subprocess_of_a_rank_writes_to_no_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the rank's variables, in which PMI_FD is the number of a socket that it does not have."""
    path = tmp_path / "data"
    with open(path, "w") as file:
        monkeypatch.setenv("PMI_FD", str(file.fileno()))
        end_unstarted(1)
    assert path.read_bytes() == b""


def test_a_process_that_stays_away_is_named_and_ends_the_job() -> None:
    script = BEFORE_INITIALIZE.format(how="time.sleep(600)")
    done = run_job([*mpiexec(2), *warm_python(), "-c", script], clean_environment() | {"MPIGRAPH_TIMEOUT": "3"})
    assert done.status != 0 and done.seconds < SOON
    assert done.output.count("MPI_Init waits on process 0 of 2") == 1 and "/dev/shm" in done.output


WORKERS = """
import sys
import torch
import mpigraph.distributed as dist
from mpi4py import MPI

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, i):
        assert torch.utils.data.get_worker_info() is not None
        if sys.argv[1] == "fork": return i
        assert not MPI.Is_initialized()
        for call in (dist.initialize, lambda: dist.node_split(torch.ones(3, dtype=torch.bool))):
            try: call()
            except Exception as error: assert "process that multiprocessing started" in str(error), error
            else: raise AssertionError(call)
        return i

if __name__ == "__main__":
    dist.initialize()
    loader = torch.utils.data.DataLoader(Rows(), num_workers=1, multiprocessing_context=sys.argv[1], timeout=100)
    assert sorted(int(i) for i in loader) == list(range(6))
    if torch.distributed.is_available(): print("read all", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_data_loader_are_no_ranks(tmp_path: Path, method: str) -> None:
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    done = run_job([*mpiexec(2), *warm_python(), script, method], clean_environment() | {"MPIGRAPH_NUM_SERVERS": "0"})
    assert done.status == 0 and done.output.count("read all") == 2, done.output


@pytest.mark.slow
def test_a_node_where_mpi_does_not_start_imports_the_library() -> None:
    env = clean_environment() | {"PMI_FD": "99", "PMI_RANK": "0", "PMI_SIZE": "2"}  # MPI_Init would end the process
    done = run_job([sys.executable, "-c", "import mpigraph.distributed as d; print(d.is_initialized())"], env)
    assert done.status == 0 and done.output.split() == ["False"], done.output


@pytest.mark.slow
@pytest.mark.skipif(MPI.get_vendor()[0] != "MPICH", reason="other MPIs start without a common /dev/shm")
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a /dev/shm: needs root")
def test_a_private_shared_memory_of_ranks_that_do_not_see_each_other_ends_the_job() -> None:
    apart = ["unshare", "-m", "-p", "-f", "--kill-child", "--mount-proc"]  # they do not see each other
    own = [*apart, "sh", "-c", 'mount -t tmpfs -o size=100m tmpfs /dev/shm; "$@"; exit $?', "sh"]
    script = BEFORE_INITIALIZE.format(how="pass")
    env = clean_environment() | {"MPIGRAPH_TIMEOUT": "5"}
    done = run_job([*mpiexec(2), *own, sys.executable, "-c", script], env)
    assert done.status != 0 and "do not share one /dev/shm" in done.output


PRIVATE = 'mount -t tmpfs none /dev/shm && exec "$@"'
INITIALIZE = "import mpigraph.distributed as dist; dist.initialize(num_servers=0); print('started')"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_processes_in_one_container_share_its_memory() -> None:
    one = ["sh", "-c", f"{shlex.join([*mpiexec(2), sys.executable, '-c', INITIALIZE])}"]
    done = run_job(["unshare", "-m", "sh", "-c", PRIVATE, "sh", *one], clean_environment())  # all in one container
    assert done.status == 0 and done.stdout.count("started") == 2, done.output


def test_different_software_is_one_error() -> None:
    script = (
        "import os, mpigraph as mg; name = 'PMI_RANK' if 'PMI_RANK' in os.environ else 'OMPI_COMM_WORLD_RANK'; "
        "mg.__version__ += '.1' * (os.environ[name] == '1'); "
    )
    done = run_job([*mpiexec(3), *warm_python(), "-c", script + INITIALIZE], clean_environment())
    said = re.findall(r"  software: mpigraph .* on rank 0, 2 \(first on .*\); mpigraph .* on rank 1 \(", done.stderr)
    assert done.status != 0 and len(said) == 1 and done.seconds < SOON, done.output


@pytest.mark.skipif(MPI.get_vendor()[0] != "MPICH", reason="Open MPI has PMIx")
def test_mpich_without_pmix_is_told_before_mpi_ends_the_process(tmp_path: Path) -> None:
    """As under ``srun --mpi=pmix``."""
    script = tmp_path / "script.py"
    script.write_text("import mpigraph.distributed as dist\ndist.initialize()\nprint('started')\n")
    env = clean_environment() | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_MPI_TYPE": "pmix_v4"}
    env |= {"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.1.0"}
    done = run_job([*warm_python(), script], env, SOON)
    words = "srun started 2 processes that MPI does not connect (mpi4py runs MPICH"
    assert done.status != 0 and words in done.output and "PMI version" not in done.output, done.output
