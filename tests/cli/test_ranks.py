"""Commands on any number of ranks: started alone or by mpiexec; errors on every rank, on one, and in a round."""

import re
import sys
from pathlib import Path

import pytest
from jobs import clean_environment, mpiexec, run_job, warm_python
from mpi4py import MPI

from mpigraph.cli.main import main
from mpigraph.cli.ranks import run_on_ranks
from mpigraph.config import alone, launch
from mpigraph.errors import StorageError
from mpigraph.partition.exchange import Exchange

SIZES = ["--nodes", "2000", "--edges", "30000", "--feat-dim", "4", "--classes", "6"]
FAILING = """
import re
import sys
from mpigraph.cli.main import main
from mpigraph.config import launcher_rank
from mpigraph.partition import random_pairs

def fail(*args):
    raise MemoryError("no memory for pairs")

if launcher_rank() == 1:
    random_pairs.place_values = fail
sys.exit(main(sys.argv[1:]))
"""


def generate(ranks: int, *words: object, start: tuple[object, ...] = ("-m", "mpigraph")):
    return run_job([*mpiexec(ranks), *warm_python(), *start, "generate", *words], clean_environment())


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_generate_by_mpiexec_writes_what_one_process_does(tmp_path: Path, capsys) -> None:
    done = generate(3, *SIZES, "-o", tmp_path / "three")
    assert done.status == 0, done.output
    assert done.stdout == f"{tmp_path / 'three'}: 2000 nodes, 30000 directed edges, 6 classes\n"
    assert len(re.findall("write features +100%", done.stderr)) == 1, done.stderr  # one bar
    assert main(["generate", *SIZES, "-o", str(tmp_path / "one")]) == 0
    assert contents(tmp_path / "three") == contents(tmp_path / "one")


@pytest.mark.slow
def test_errors_of_a_started_command_are_told_once(tmp_path: Path) -> None:
    done = generate(2, "--nodes", 1, "--edges", 4, "-o", tmp_path / "x")
    assert done.status == 2 and done.stderr == "mpigraph generate: error: num_nodes must be >= 2 (got 1)\n", done.output
    (tmp_path / "file").write_text("")
    done = generate(2, *SIZES, "-o", tmp_path / "file")
    assert done.status == 2 and done.stderr.count("error: ") == 1 and "Not a directory" in done.stderr, done.output


@pytest.mark.slow
def test_a_rank_without_memory_ends_the_job(tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text(FAILING)
    done = generate(2, *SIZES, "-o", tmp_path / "x", start=(script,))
    assert done.status not in (0, 2) and "no memory for pairs" in done.stderr, done.output


@pytest.mark.parametrize("comm", [1, 2], indirect=True)
def test_the_work_gets_the_ranks(comm: MPI.Intracomm, capsys) -> None:
    seen = []

    def work(exchange: Exchange) -> None:
        seen.append((exchange.rank, exchange.size, exchange.sum_of(1)))
        with exchange.together("working"):
            if exchange.rank == exchange.size - 1:
                raise StorageError("a disk\nis full")

    status = run_on_ranks("x", work, comm)
    error = f"mpigraph x: error: working failed on {'rank 1' if comm.size > 1 else 'every rank'}: a disk is full\n"
    assert (status, seen) == (2, [(comm.rank, comm.size, comm.size)])
    assert capsys.readouterr().err == (error if comm.rank == 0 else "")


def test_without_a_launcher_there_is_no_mpi() -> None:
    check = (
        "import sys; from mpigraph.cli.main import main; assert main(sys.argv[1:]) == 2; "
        "assert not {'mpi4py.MPI', 'torch'} & set(sys.modules)"
    )
    done = run_job(
        [sys.executable, "-c", check, "generate", "--nodes", 1, "--edges", 4, "-o", "x"], clean_environment()
    )
    assert done.status == 0, done.output


@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_a_process_that_a_rank_starts_is_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "3")
    assert launch() is not None and name not in alone()
    for other in set(alone()) ^ {name, *alone()}:
        monkeypatch.delenv(other)
    assert launch() is None
