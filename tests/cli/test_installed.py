"""The library as users have it: from a wheel, without the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from jobs import ROOT, Done, clean_environment, mpiexec, run_job

pytestmark = pytest.mark.slow
FOLDERS = ("mpigraph", "examples", "slurm", "tests")


def build(target: str, source: Path, folder: Path) -> Path:
    """A distribution of a folder of sources."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of an environment: the wheel, made of the sdist, and what it needs."""
    folder = tmp_path_factory.mktemp("installed")
    sdist = build("sdist", ROOT, folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    source = folder / sdist.name.removesuffix(".tar.gz")
    expected = {"PKG-INFO", "LICENSE", "README.md", "pyproject.toml", ".gitignore", *FOLDERS}
    assert {path.name for path in source.iterdir()} == expected
    venv.create(folder / "venv", symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
    with zipfile.ZipFile(build("wheel", source, folder / "wheel")) as archive:
        archive.extractall(packages)
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if "mpigraph" not in package.name and not (packages / package.name).exists():
            (packages / package.name).symlink_to(package)
    kernels = ROOT / "mpigraph" / "kernels"  # compiled: the test is not about that
    for path in kernels.glob("*.py"):
        shutil.copystat(path, packages / "mpigraph" / "kernels" / path.name)
    shutil.copytree(kernels / "__pycache__", packages / "mpigraph" / "kernels" / "__pycache__")
    return packages


def ran(packages: Path, folder: Path, *words: object, ranks: int = 1) -> Done:
    """Run this Python with those packages, in a folder."""
    return run_job(
        [*mpiexec(ranks), sys.executable, *words], clean_environment() | {"PYTHONPATH": str(packages)}, cwd=folder
    )


def test_examples_and_slurm_scripts_come_along(installed: Path, tmp_path: Path) -> None:
    where = ran(installed, tmp_path, "-c", "import mpigraph; print(mpigraph.__file__)").stdout
    assert Path(where.strip()).is_relative_to(installed)
    for name, some in (("examples", "quickstart.py"), ("slurm", "train.sbatch")):
        copied = ran(installed, tmp_path, "-m", "mpigraph", name, name)
        assert os.path.join(name, some) in copied.stdout.splitlines(), copied.output
        assert (tmp_path / name / some).read_text() == (ROOT / name / some).read_text()
        again = ran(installed, tmp_path, "-m", "mpigraph", name, name)
        assert again.status == 2 and "give another folder" in again.stderr
    for ranks in (1, 4):
        done = ran(installed, tmp_path, "examples/quickstart.py", ranks=ranks)
        assert done.status == 0 and float(done.stdout.split()[-1]) > 0.5, done.output


def test_types_of_an_installed_library(installed: Path, tmp_path: Path) -> None:
    ran(installed, tmp_path, "-m", "mpigraph", "examples", "examples")
    (tmp_path / "examples" / "typed.py").write_text(
        "import mpigraph as mg\n"
        "def length(g: mg.distributed.DistGraph, sampler: mg.dataloading.NeighborSampler) -> int:\n"
        "    return len(mg.distributed.DistNodeDataLoader(g, None, sampler))\n"
        "reveal_type(mg.graph)\n"
    )
    python = installed.parents[2] / "bin" / "python"
    mypy = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--python-executable", python]
    done = run_job([*mypy, "quickstart.py"], clean_environment(), cwd=tmp_path / "examples")
    assert done.status == 0, done.output
    done = run_job([*mypy, "typed.py"], clean_environment(), cwd=tmp_path / "examples")
    assert '"None"' in done.output and "DistNodeDataLoader" in done.output, done.output
    assert "HeteroGraph" in done.output
