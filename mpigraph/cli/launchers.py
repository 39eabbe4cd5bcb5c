"""From a job to the command that starts it: Slurm's ``srun``, and ``mpiexec`` of the MPI families.

Every command is a list of arguments; no shell ever reads it. The variables of the job stand in front of the user's
command as arguments of ``env``, for every launcher alike: the launchers' own flags change some values on the way
(``srun --export`` splits at commas, Open MPI's ``-x`` takes quotes off), and arguments they pass on as they are. What
the launcher itself must know goes into an ``env`` in front of the launcher.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mpigraph.cli.hosts import Host
from mpigraph.config import Allocation, slurm_allocation
from mpigraph.errors import InvalidArgumentError

__all__ = ["FAMILIES", "Job", "command_line", "find_family", "slurm_nodes"]

FAMILIES = ("srun", "hydra", "openmpi", "intel")
_VERSIONS = {"hydra": "HYDRA build details", "intel": r"Intel\(R\) MPI", "openmpi": r"\((Open MPI|OpenRTE|PRRTE)\)"}
_VERSION_TIMEOUT = 20  # seconds


@dataclass(frozen=True)
class Job:
    """What to start where.

    Attributes:
        command: the user's command, word by word.
        ranks_per_node: trainers and servers together.
        hosts: the machines; empty means every node of the Slurm allocation.
        workspace: absolute path of the working directory.
        variables: environment of every rank, added to what the launcher passes on.
        ssh_options: how mpiexec is to call ssh.
        flags: further arguments of the launcher.
    """

    command: list[str]
    ranks_per_node: int
    hosts: list[Host]
    workspace: str
    variables: Mapping[str, str] = field(default_factory=dict)
    ssh_options: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.command:
            raise InvalidArgumentError("the command is empty")
        if ":" in self.command:
            raise InvalidArgumentError(
                "the command has ':' as an argument of its own, which every launcher takes for the beginning of a "
                "second program"
            )

    @property
    def tail(self) -> list[str]:
        """What follows the launcher's own arguments."""
        return [*self.flags, *_env(self.variables), *self.command]

    @property
    def names(self) -> list[str]:
        """The machines' names.

        Raises:
            InvalidArgumentError: one is an IPv6 address; mpiexec's host lists have no way to write it.
        """
        for host in self.hosts:
            if host.has_colons:
                raise InvalidArgumentError(
                    f"{host.where}: mpiexec's host lists take no IPv6 address (got {host.name}): write a host name"
                )
        return [host.name for host in self.hosts]


def find_family(wanted: str, mpiexec: str) -> tuple[str, str]:
    """Return which launcher starts a job here: ``srun`` in a Slurm allocation, else the mpiexec that is installed.

    Args:
        wanted: one of :data:`FAMILIES`, or "auto".
        mpiexec: which mpiexec to take; empty means the one beside this Python, else the one on ``PATH``.

    Returns:
        The family ("srun", "hydra", "openmpi4", "openmpi5" or "intel") and the path of the program.

    Raises:
        InvalidArgumentError: there is no such launcher, or it is of another family than wanted.
    """
    if wanted == "srun" or (wanted == "auto" and slurm_allocation() and not mpiexec):
        if slurm_allocation() is None:
            raise InvalidArgumentError("--launcher srun works in a Slurm allocation (SLURM_JOB_ID is not set)")
        srun = shutil.which("srun")
        if srun is None:
            raise InvalidArgumentError("in a Slurm allocation (SLURM_JOB_ID is set), but there is no srun on PATH")
        return "srun", srun
    program = _find_mpiexec(mpiexec)
    version = _version_of(program)
    family = next((name for name, pattern in _VERSIONS.items() if re.search(pattern, version)), None)
    if family is None:
        line = version.strip().splitlines()[0] if version.strip() else "nothing"
        raise InvalidArgumentError(f"{program} is of no MPI that is known here (--version says {line!r})")
    if wanted not in ("auto", family):
        raise InvalidArgumentError(f"--launcher {wanted}, but {program} is {family}'s: name another by --mpiexec")
    if family == "openmpi":  # PRRTE has versions of its own, from 1, and is Open MPI 5
        old = re.search(r"\((Open MPI|OpenRTE)\) [1-4]\.", version)
        return ("openmpi4" if old else "openmpi5"), program
    return family, program


def command_line(family: str, program: str, job: Job) -> list[str]:
    """Return the command that starts a job.

    Args:
        family: as :func:`find_family` names them.
        program: path of the launcher.
        job: what to start.

    Raises:
        InvalidArgumentError: the hosts do not suit the launcher or the allocation.
    """
    return _BUILDERS[family](program, job)


def slurm_nodes(hosts: list[Host]) -> int:
    """Return how many nodes of the allocation to use: as many as there are hosts, or all where none are named.

    Slurm calls nodes by names of its own, so ``ip_config.txt`` only says how many.

    Raises:
        InvalidArgumentError: there are fewer nodes.
    """
    available = (slurm_allocation() or Allocation(1, 0)).nodes
    if len(hosts) > available:
        raise InvalidArgumentError(
            f"{hosts[-1].where}: {len(hosts)} hosts, but the Slurm allocation has {available} node(s)"
        )
    return len(hosts) or available


def _srun(program: str, job: Job) -> list[str]:
    nodes = slurm_nodes(job.hosts)
    cpus = (slurm_allocation() or Allocation(1, 0)).cpus
    cores = [f"--cpus-per-task={max(1, cpus // job.ranks_per_node)}"] if cpus else []
    overcommit = ["--overcommit"] if 0 < cpus < job.ranks_per_node else []
    return [
        program,
        f"--nodes={nodes}",
        f"--ntasks={nodes * job.ranks_per_node}",
        f"--ntasks-per-node={job.ranks_per_node}",
        *cores,
        *overcommit,
        "--distribution=block",  # part k is on the k-th node
        "--kill-on-bad-exit=1",
        f"--chdir={job.workspace}",
        "--export=ALL",
        *job.tail,
    ]


def _hydra(program: str, job: Job) -> list[str]:
    ssh = {"HYDRA_LAUNCHER_EXTRA_ARGS": " ".join(job.ssh_options)} if job.ssh_options else {}
    return [*_env(ssh), *_hydra_like(program, job)]


def _intel(program: str, job: Job) -> list[str]:
    variables = {"I_MPI_JOB_RESPECT_PROCESS_PLACEMENT": "disable"}  # or a batch system's counts would win over -ppn
    if job.ssh_options:
        variables["I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"] = " ".join(job.ssh_options)
    return [*_env(variables), *_hydra_like(program, job)]


def _hydra_like(program: str, job: Job) -> list[str]:
    num_ranks = str(len(job.hosts) * job.ranks_per_node)
    placement = ["-hosts", ",".join(job.names), "-ppn", str(job.ranks_per_node), "-n", num_ranks]
    return [program, *placement, "-wdir", job.workspace, *job.tail]


def _open_mpi(ssh_parameter: list[str]) -> Callable[[str, Job], list[str]]:
    def build(program: str, job: Job) -> list[str]:
        ranks = job.ranks_per_node
        return [
            program,
            "--host",
            ",".join(f"{name}:{ranks}" for name in job.names),
            "--map-by",
            f"ppr:{ranks}:node",
            "-np",
            str(len(job.hosts) * ranks),
            "--bind-to",
            "none",  # bound to one core, a rank's threads would share it
            "--wdir",
            job.workspace,
            *([*ssh_parameter, " ".join(job.ssh_options)] if job.ssh_options else []),
            *job.tail,
        ]

    return build


_BUILDERS: dict[str, Callable[[str, Job], list[str]]] = {
    "srun": _srun,
    "hydra": _hydra,
    "openmpi4": _open_mpi(["--mca", "plm_rsh_args"]),
    "openmpi5": _open_mpi(["--prtemca", "plm_ssh_args"]),
    "intel": _intel,
}


def _env(variables: Mapping[str, str]) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in variables.items())] if variables else []


def _find_mpiexec(named: str) -> str:
    """Return the mpiexec that is named; else a wheel's, beside this Python; else the first on ``PATH``."""
    if named:
        found = shutil.which(named)
        if found is None:
            raise InvalidArgumentError(f"--mpiexec {named}: no such program")
        return found
    here = str(Path(sys.executable).parent)
    found = shutil.which("mpiexec", path=here) or shutil.which("mpiexec") or shutil.which("mpirun")
    if found is None:
        raise InvalidArgumentError(
            f"no launcher: no mpiexec beside {sys.executable} or on PATH, and this is no Slurm allocation"
        )
    return found


def _version_of(program: str) -> str:
    try:
        done = subprocess.run(
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_VERSION_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidArgumentError(f"{program} --version: {error}") from error
    return (done.stdout + done.stderr).decode(errors="replace")
