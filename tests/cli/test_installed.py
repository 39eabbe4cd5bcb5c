"""The library as users have it: from a wheel, without the checkout."""

import os
import re
import shutil
import sys
import venv
from pathlib import Path

import pytest
from installed import PACKAGES, install, ran
from jobs import ROOT, clean_environment, mpiexec, run_job

import mpigraph

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which sdist and wheel are made."""
    return tmp_path_factory.mktemp("made")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, made: Path) -> Path:
    """The Python of an environment with the wheel."""
    return install(tmp_path_factory.mktemp("installed"), made)


@pytest.fixture
def recipes(installed: Path, tmp_path: Path) -> Path:
    """A folder of a user with the recipes and examples that the wheel brings."""
    for name in ("examples", "slurm"):
        assert ran(installed, tmp_path, "-m", "mpigraph", name, name).status == 0
    (tmp_path / "packages").mkdir()
    for path in PACKAGES.iterdir():
        if "mpigraph" not in path.name:
            (tmp_path / "packages" / path.name).symlink_to(path)
    return tmp_path


def in_folder(folder: Path, *command: object, **env: str) -> str:
    """Run a command there, by pip without a network: MPI and packages other than the library are those of the tests."""
    env = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PYTHONPATH": str(folder / "packages")} | env
    env["LD_LIBRARY_PATH"] = str(Path(sys.prefix, "lib"))  # as a module of a cluster sets it
    done = run_job(command, clean_environment() | env, cwd=folder)
    assert done.status == 0, done.output
    return done.output


def test_recipes_install_the_wheel_outside_of_a_checkout(recipes: Path, made: Path) -> None:
    (wheel,) = (made / "wheel").glob("*.whl")
    says = f"mpigraph {mpigraph.__version__} with "
    assert says in in_folder(recipes, "bash", "slurm/install/modules.sh", "by-modules", wheel)
    in_folder(recipes, "bash", "slurm/install/wheelhouse.sh", "collect", "house", wheel)
    in_folder(recipes, "bash", "house/wheelhouse.sh", "install", "by-house")
    for name in ("by-modules", "by-house"):
        where = in_folder(recipes, f"{name}/bin/python", "-c", "import mpigraph; print(mpigraph.__file__)")
        assert Path(where.strip()).is_relative_to(recipes / name)
    for words in (("modules.sh", "x"), ("wheelhouse.sh", "collect", "x")):
        done = run_job(["bash", f"slurm/install/{words[0]}", *words[1:]], clean_environment(), cwd=recipes)
        assert done.status == 2 and "give the wheel" in done.stderr, done.output


def test_the_image_of_apptainer_takes_the_wheel(recipes: Path, made: Path) -> None:
    """Without Apptainer: the file that it copies, and the commands that it runs in the image."""
    (wheel,) = (made / "wheel").glob("*.whl")
    (recipes / "dist").mkdir()
    shutil.copy(wheel, recipes / "dist")
    sections = dict(
        re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", (recipes / "slurm/install/mpigraph.def").read_text(), re.M | re.S)
    )
    source, target = sections["files"].split()
    (recipes / "opt").mkdir()
    shutil.copy(recipes / source, recipes / target.strip("/"))
    venv.create(recipes / "image", with_pip=True)
    path = f"{recipes}/image/bin:{os.environ['PATH']}"
    in_folder(recipes, "sh", "-ec", sections["post"].replace("/opt/", f"{recipes}/opt/"), PATH=path)
    in_folder(recipes, "sh", "-ec", sections["test"], PATH=path)


def test_the_batch_scripts_of_the_wheel(installed: Path, recipes: Path) -> None:
    """With a program in place of srun, which starts two ranks."""
    programs = recipes / "programs"
    programs.mkdir()
    srun = f'#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec {" ".join(mpiexec(2))} "$@"\n'
    (programs / "srun").write_text(srun)
    (programs / "srun").chmod(0o755)
    (recipes / ".venv").symlink_to(installed.parents[1])
    in_folder(recipes, installed, "-m", "mpigraph", "generate", *"--nodes 500 --edges 2000 -o data/S".split())
    job = {"SLURM_JOB_NAME": "job", "SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_PER_TASK": "1"}
    job |= {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2"}
    for script, says in (("doctor", "MPI"), ("partition", "parts/S"), ("train", "test accuracy")):
        assert says in in_folder(recipes, "bash", f"slurm/{script}.sbatch", **job)


def test_examples_and_slurm_scripts_come_along(installed: Path, tmp_path: Path) -> None:
    where = ran(installed, tmp_path, "-c", "import mpigraph; print(mpigraph.__file__)").stdout
    assert Path(where.strip()).is_relative_to(installed.parents[1])
    for name, some in (("examples", "quickstart.py"), ("slurm", "train.sbatch")):
        copied = ran(installed, tmp_path, "-m", "mpigraph", name, name)
        assert copied.stdout == f"{name}\n", copied.output
        assert (tmp_path / name / some).read_text() == (ROOT / name / some).read_text()
        again = ran(installed, tmp_path, "-m", "mpigraph", name, name)
        assert again.status == 2 and f"File exists: '{name}'" in again.stderr
    texts = [(path.parent, re.sub("```.*?```", "", path.read_text(), flags=re.S)) for path in tmp_path.rglob("*.md")]
    links = [folder / to for folder, text in texts for to in re.findall(r"\]\((?!http|#)([^)#]+)", text)]
    assert len(links) > 6 and [link for link in links if not link.exists()] == []
    done = ran(installed, tmp_path, "examples/quickstart.py", ranks=2)
    assert done.status == 0 and float(done.stdout.split()[-1]) > 0.5, done.output


def test_types_of_an_installed_library(installed: Path, tmp_path: Path) -> None:
    ran(installed, tmp_path, "-m", "mpigraph", "examples", "examples")
    (tmp_path / "examples" / "typed.py").write_text(
        "import mpigraph as mg\n"
        "def length(g: mg.distributed.DistGraph, sampler: mg.dataloading.NeighborSampler) -> int:\n"
        "    for _, _, blocks in mg.distributed.DistNodeDataLoader(g, [0], sampler, num_workers=2):\n"
        "        reveal_type(blocks)\n"
        "    for batch in mg.distributed.DistEdgeDataLoader(g, [0], sampler, negative_sampler=lambda *_: ([], [])):\n"
        "        reveal_type(batch)\n"
        "    mg.distributed.DistEdgeDataLoader(g, [0], sampler, shufle=True)\n"
        "    return len(mg.distributed.DistNodeDataLoader(g, None, sampler, output='pyg'))\n"
        "reveal_type(mg.graph)\n"
    )
    tutorial = (tmp_path / "examples" / "README.md").read_text().split("```python\n")[1].split("```")[0]
    (tmp_path / "examples" / "tutorial.py").write_text(tutorial)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--python-executable", installed]
    done = run_job([*mypy, "quickstart.py", "tutorial.py", "typed.py"], clean_environment(), cwd=tmp_path / "examples")
    errors = re.findall(r"^(?:quickstart|tutorial)\.py.*", done.output, re.MULTILINE)
    assert all('untyped function "backward"' in error for error in errors), errors  # torch's
    for line, said in (
        (4, "list[mpigraph.graphs.block.Block]"),
        (6, "HeteroGraph, mpigraph.graphs.hetero.HeteroGraph, list[mpigraph.graphs.block.Block]"),
        (7, 'argument "shufle"'),
        (8, '"None"'),
        (9, "HeteroGraph"),
    ):
        assert re.search(rf"^typed.py:{line}:.*{re.escape(said)}", done.output, re.MULTILINE), done.output
