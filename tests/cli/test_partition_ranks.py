"""``partition`` started by mpiexec: the files of one process, one error for all, and runs that are killed and go on."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from interrupted import state
from jobs import clean_environment, mpiexec, run, run_job, warm_python
from typed_parts import check_equal

from mpigraph.partition.generate import Recipe, write_graph


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_graph(Recipe(num_nodes=400, num_edges=4000, feat_dim=4, num_classes=3), tmp_path / "g")


def partition(ranks: int, *arguments: object) -> list[object]:
    return [*mpiexec(ranks), *warm_python(), "-m", "mpigraph", "partition", *arguments]


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage, text",
    [
        (lambda ids: ids.__setitem__(1500, 400), "edge 1500 of ('_N', '_E', '_N') has source 400, but that node type"),
        (None, "is forecast to take"),
    ],
)
def test_an_error_is_told_once(data: Path, tmp_path: Path, damage, text: str) -> None:
    if damage is not None:
        ids = np.load(data / "edge_src.npy")
        damage(ids)
        np.save(data / "edge_src.npy", ids)
    memory = [] if damage is not None else ["--memory", "1MiB"]
    done = run_job(partition(2, data, "--parts", 2, *memory, "-o", tmp_path / "out"), clean_environment())
    assert done.status != 0 and done.output.count("mpigraph partition: error") == 1 and text in done.output


@pytest.mark.slow
def test_what_is_left_out_is_told_once_and_at_the_end(data: Path, tmp_path: Path) -> None:
    np.save(data / "of_nothing.npy", np.zeros(7))
    command = partition(2, data, "--parts", 2, "--method", "random", "-o", tmp_path / "out")
    done = run_job(command, clean_environment())
    assert done.status == 0 and done.output.count("of_nothing: float64[7]") == 2, (
        done.output
    )  # a warning, the last line
    assert done.stdout.splitlines()[-1].startswith(f"left out of {data}: of_nothing: float64[7]")


@pytest.mark.slow
def test_an_error_of_one_rank_ends_the_others(data: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from mpi4py import MPI\n"
        "from mpigraph.cli.main import main\n"
        "from mpigraph.errors import StorageError\n"
        "from mpigraph.partition.spill import Spill\n"
        "add = Spill.add\n"
        "def full(spill, groups, rows):\n"
        "    if MPI.COMM_WORLD.rank == 1:\n"
        "        raise StorageError('/scratch: cannot write a temporary file: No space left on device')\n"
        "    add(spill, groups, rows)\n"
        "Spill.add = full\n"
        f"sys.exit(main(['partition', {str(data)!r}, '--parts', '2', '-o', {str(tmp_path / 'out')!r}]))\n"
    )
    done = run_job([*mpiexec(3), *warm_python(), script], clean_environment())
    assert done.status != 0 and not (tmp_path / "out" / "g.json").exists()
    assert done.output.count("error on rank 1: /scratch: cannot write a temporary file: No space left") == 1


KILLED = """
import os, signal, sys
from mpi4py import MPI
from mpigraph.cli.main import main
from mpigraph.partition import metis, output_folder, pipeline, shuffle, source
from mpigraph.partition.multilevel import assign
from mpigraph.partition.spill import Scratch, Spill
from mpigraph.storage.shard import DatasetWriter

source.EDGES_PER_CHUNK = 100  # many steps in each stage
shuffle.BUCKET_BYTES = 1200
Scratch.__init__.__defaults__ = (None, 1000, False)
world = MPI.COMM_WORLD
last = world.size - 1
stage = sys.argv[1]
method = sys.argv[sys.argv.index("--method") + 1]
told = ("", 0)  # the stage that the run is in by its own account, and its steps
steps = 0

def listen(run, init=pipeline._Run.__post_init__):
    init(run)
    def progress(*what, show=run.progress):
        global told
        told = what[:2]
        show(*what)
    run.progress = progress

def kill(module, name, said, number=1, done=0, rank=last):
    whole = getattr(module, name)
    def step(*args, **kwargs):
        global steps
        steps += world.rank == rank and told[0] == said and told[1] >= done
        if steps == number:
            open(stage, "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*args, **kwargs)
    setattr(module, name, step)

pipeline._Run.__post_init__ = listen
if stage == "check edges":
    kill(source.GraphSource, "check_edges", stage, 3)
elif stage == "assign nodes":
    at = {"metis": (metis, "call_metis"), "multilevel": (assign, "initial_parts")}
    kill(*at[method], f"{stage} ({method})", rank=0 if method == "metis" else last)
elif stage == "relabel edges":
    kill(Spill, "add", stage, 3)
elif stage == "write parts":
    kill(DatasetWriter, "write", stage, 3, done=1)  # of a second part
elif stage == "verify parts":
    kill(pipeline, "verify", stage)
elif stage == "write configuration":
    kill(pipeline.PartConfig, "write", "write parts", rank=0)
elif stage == "clean up":
    kill(output_folder.Path, "unlink", "write parts", done=1, rank=0)
sys.exit(main(sys.argv[2:]))
"""
STAGES = {
    "check edges": "no assignment is of",
    "assign nodes": "no assignment is of",
    "relabel edges": "no complete part is of",
    "write parts": "of 3 parts are complete",
    "verify parts": "of 3 parts are complete",
    "write configuration": "3 of 3 parts are complete",
    "clean up": "3 of 3 parts are complete",
}


@pytest.mark.slow
@pytest.mark.parametrize("method", [pytest.param("metis", marks=pytest.mark.study), "multilevel"])
def test_a_run_that_is_killed_in_any_stage_goes_on(data: Path, tmp_path: Path, method: str) -> None:
    """On another number of ranks, to the files of an undisturbed run; complete parts stay."""
    options = ["--parts", "3", "--method", method, "--name", "g"]
    run(*warm_python(), "-m", "mpigraph", "partition", data, *options, "-o", tmp_path / "wanted")
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    killed_in = tmp_path / "killed in"
    killed_in.mkdir()
    for number, (stage, told) in enumerate(STAGES.items()):
        ranks = 1 + number % 2
        out = tmp_path / stage
        if stage == "write parts":  # which "verify parts" goes on with
            ranks = 2
        start = mpiexec(ranks) if ranks > 1 else []
        words = [script, stage, "partition", data, *options, "-o", out, "--resume"]
        done = run_job([*start, *warm_python(), *words], clean_environment(), cwd=killed_in)
        assert [path.name for path in killed_in.iterdir()] == [stage], done.output
        (killed_in / stage).unlink()
        assert done.status != 0 and (out / "g.json").exists() == (stage == "clean up"), (stage, done.output)
        if stage == "write parts":
            shutil.copytree(out, tmp_path / "verify parts")
        complete = [path.parent.name[4:] for path in out.glob("part*/node_feat.h5")]  # the last file of a part
        before = state(out, complete)
        again = run_job(partition(3 - ranks, data, *options, "-o", out, "--resume"), clean_environment())
        assert again.status == 0 and told in again.output, (stage, again.output)
        assert state(out, complete) == before, stage
        check_equal(tmp_path / "wanted", out)
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == set()
