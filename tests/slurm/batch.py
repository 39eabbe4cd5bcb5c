"""The shipped templates as users submit them: with an edited settings block."""

import sys
from pathlib import Path

from cluster import Cluster, missing, settings, until
from jobs import needs

ROOT = Path(__file__).resolve().parents[2]
SLURM = ROOT / "slurm"
PATIENCE = 200  # seconds for a job that trains, on a busy machine
SOON = 150  # seconds for a job that fails, its start included
NUM_SERVERS, TASKS = 1, 2  # on each node

needs_slurm = needs("slurm", missing())

SMALL = {"--nodes": "2", "--ntasks-per-node": str(TASKS), "--cpus-per-task": "1", "--time": "00:10:00"}
SETUP = "    export MPIGRAPH_TIMEOUT=100 MPIGRAPH_LOG_LEVEL=INFO"  # a warm Python is on the PATH: conftest.py
COLD = f"{SETUP} PATH={Path(sys.executable).parent}:$PATH"
OPEN = """
import os, signal, sys, time
import mpigraph.distributed as dist
dist.initialize(num_servers=1)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
"""


def submit(
    cluster: Cluster, where: Path, name: str, changes: dict[str, str], commands: dict[str, str], templates: Path = SLURM
) -> str:
    """Edit the settings of a template as a user does, and submit it."""
    text = settings(templates / f"{name}.sbatch", changes, commands)
    (where / f"{name}.sbatch").write_text(text)
    return cluster.submit(where / f"{name}.sbatch", where)


def log_of(where: Path, job: str) -> str:
    return "".join(path.read_text(errors="replace") for path in where.glob(f"*-{job}.out"))


def run(
    cluster: Cluster,
    where: Path,
    name: str,
    changes: dict[str, str],
    commands: dict[str, str],
    seconds: float = PATIENCE,
    templates: Path = SLURM,
) -> tuple[dict[str, str], str]:
    """Submit a template and wait for its end; return what Slurm says and its log."""
    job = submit(cluster, where, name, changes, commands, templates)
    try:
        result = cluster.wait(job, seconds)
    except TimeoutError as error:
        raise AssertionError(f"{error}\n{log_of(where, job)}") from error
    return result, log_of(where, job)


def train_script(cluster: Cluster, where: Path, body: str, before: str = "", setup: str = SETUP, **changes: str) -> str:
    """Submit a job that runs a script of its own; return the number of the job."""
    (where / "script.py").write_text(before + OPEN + body)
    commands = {"setup": setup, "train": '    run python -u script.py "$PART_CONFIG"'}
    return submit(cluster, where, "train", SMALL | changes, commands)


def until_gone(cluster: Cluster) -> None:
    """Nothing of a job may stay; Slurm calls it over when its script is, which its last processes may outlive a bit."""
    until(lambda: not cluster.processes() and not cluster.shared_memory(), SOON)
