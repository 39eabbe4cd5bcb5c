"""``partition`` started by mpiexec: the files of one process, one error for all, and the end where one rank fails."""

import filecmp
from pathlib import Path

import numpy as np
import pytest
from jobs import clean_environment, mpiexec, run, run_job, warm_python

from mpigraph.partition.generate import Recipe, write_graph


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_graph(Recipe(num_nodes=400, num_edges=4000, feat_dim=4, num_classes=3), tmp_path / "g")


def partition(ranks: int, *arguments: object) -> list[object]:
    return [*mpiexec(ranks), *warm_python(), "-m", "mpigraph", "partition", *arguments]


@pytest.mark.slow
def test_ranks_of_mpiexec_write_what_one_process_writes(data: Path, tmp_path: Path) -> None:
    options = ("--parts", 3, "--method", "multilevel", "--balance-train", "--balance-edges")
    run(*partition(3, data, *options, "--scratch", tmp_path, "-o", tmp_path / "together"))
    run(*warm_python(), "-m", "mpigraph", "partition", data, *options, "-o", tmp_path / "alone")
    names = [f"part{part}/{name}.h5" for part in range(3) for name in ("graph", "node_feat", "edge_feat")]
    _, other, errors = filecmp.cmpfiles(tmp_path / "together", tmp_path / "alone", [*names, "g.json"], shallow=False)
    assert (other, errors) == ([], [])
    assert {path.name for path in tmp_path.iterdir()} == {"g", "together", "alone"}


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
from mpigraph.cli import partition
from mpigraph.cli.main import main
from mpigraph.partition import part_writer, pipeline, relabel, source
from mpigraph.partition.spill import Scratch

source.EDGES_PER_CHUNK = relabel.EDGES_PER_BUCKET = 100  # many steps in each stage
stage, number = sys.argv[1], int(sys.argv[2])
Scratch.__init__.__defaults__ = (None, 1000, False)
seen = 0

def killing(whole):
    def step(*args, **kwargs):
        global seen
        seen += 1
        if seen == number and MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*args, **kwargs)
    return step

if stage == "check edges":
    source.GraphSource.check_edges = killing(source.GraphSource.check_edges)
elif stage == "assign nodes":
    Scratch.spill = killing(Scratch.spill)
elif stage == "relabel edges":
    relabel.Arrivals.receive_relation = killing(relabel.Arrivals.receive_relation)
elif stage == "write parts":
    part_writer.Rows.write = killing(part_writer.Rows.write)
elif stage == "write configuration":
    pipeline.PartConfig.write = killing(pipeline.PartConfig.write)
    pipeline._Run.gather_seals = killing(pipeline._Run.gather_seals)
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", [pytest.param("metis", marks=pytest.mark.study), "multilevel"])
def test_a_run_that_is_killed_in_any_stage_is_made_again(data: Path, tmp_path: Path, method: str) -> None:
    options = ["--parts", "3", "--method", method, "--name", "g"]
    run(*warm_python(), "-m", "mpigraph", "partition", data, *options, "-o", tmp_path / "wanted")
    wanted = sorted(path.relative_to(tmp_path / "wanted") for path in (tmp_path / "wanted").rglob("*"))
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    stages = [
        ("check edges", 3),
        ("assign nodes", 1),
        ("relabel edges", 1),
        ("write parts", 20),
        ("write configuration", 1),
    ]
    for ranks, again in ((1, 3), (2, 1)):
        for stage, number in stages:
            out = tmp_path / f"{stage} {ranks}"
            words = [script, stage, number, "partition", data, *options, "-o", out]
            start = mpiexec(ranks) if ranks > 1 else []
            done = run_job([*start, *warm_python(), *words], clean_environment())
            assert done.status != 0 and not (out / "g.json").exists(), (stage, ranks, done.output)
            run(*partition(again, data, *options, "-o", out))
            assert sorted(path.relative_to(out) for path in out.rglob("*")) == wanted, (stage, ranks)
            files = [str(path) for path in wanted if (out / path).is_file()]
            _, other, errors = filecmp.cmpfiles(tmp_path / "wanted", out, files, shallow=False)
            assert (other, errors) == ([], []), (stage, ranks)
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} == set()
