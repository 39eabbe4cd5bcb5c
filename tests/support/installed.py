"""The library as users have it: a wheel, made of the sdist, in an environment of its own, without the checkout."""

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import torch
from jobs import ROOT, Done, clean_environment, mpiexec, run_job

PACKAGES = Path(torch.__file__).parents[1]
FOLDERS = ("mpigraph", "examples", "slurm", "tests")


def build(target: str, source: Path, folder: Path) -> Path:
    """A distribution of a folder of sources."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    (built,) = folder.iterdir()
    return built


def install(folder: Path, made: Path) -> Path:
    """Make ``folder/.venv`` with the wheel and what it needs, which is linked; return its Python."""
    sdist = build("sdist", ROOT, made / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(made, filter="data")
    source = made / sdist.name.removesuffix(".tar.gz")
    expected = {"PKG-INFO", "LICENSE", "README.md", "pyproject.toml", ".gitignore", ".ci", ".github", *FOLDERS}
    assert {path.name for path in source.iterdir()} == expected
    environment = folder / ".venv"
    venv.create(environment, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    with zipfile.ZipFile(build("wheel", source, made / "wheel")) as archive:
        archive.extractall(packages)
    linked = {packages: PACKAGES}
    linked |= {environment / name: Path(sys.prefix) / name for name in ("bin", "lib")}  # MPI
    for own, others in linked.items():
        for path in others.iterdir():
            if "mpigraph" not in path.name and not (own / path.name).exists():
                (own / path.name).symlink_to(path)
    kernels = ROOT / "mpigraph" / "kernels"  # compiled: the test is not about that
    for path in kernels.glob("*.py"):
        shutil.copystat(path, packages / "mpigraph" / "kernels" / path.name)
    shutil.copytree(kernels / "__pycache__", packages / "mpigraph" / "kernels" / "__pycache__")
    return environment / "bin" / "python"


def ran(python: Path, folder: Path, *words: object, ranks: int = 1) -> Done:
    """Run that Python in a folder."""
    return run_job([*mpiexec(ranks), python, *words], clean_environment(), cwd=folder)
