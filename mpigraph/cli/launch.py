"""``launch`` and ``copy``: DGL's ``launch.py`` and ``copy_files.py`` by their own arguments.

``launch`` starts a job without ssh sessions of its own: it turns DGL's arguments into one ``srun`` or ``mpiexec``
command and *becomes* that command (``exec``): signals reach the launcher directly, and its exit status is this
command's. ``env`` sets the job's variables in front of the user's command for every launcher alike, because launchers
pass on arguments as they are, while their flags for variables change some values (``srun --export`` splits at commas,
Open MPI's ``-x`` removes quotes).

``copy`` brings parts and scripts to the hosts. The k-th of N hosts gets the folders of the parts that it will read:
part k where there are as many parts as hosts. The configuration is copied last and unchanged.

Commands are lists of arguments that no shell reads. Only ssh runs one, on the remote side: it joins its arguments with
spaces and lets the user's shell there split them again, so every word for ssh is quoted. rsync sends paths past that
shell (``--protect-args``).

``ip_config.txt``, DGL's list of machines, has one ``ADDRESS [PORT]`` on each line. Only addresses and host names pass:
they end up in host lists, where a comma or a colon has a meaning, and beside options, where a leading dash has one.
"""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpigraph.cli.grammar import Copy, HostOptions, Launch
from mpigraph.cli.main import note, pairs, put
from mpigraph.config import slurm_allocation
from mpigraph.errors import InvalidArgumentError, MPIGraphError
from mpigraph.storage.part_config import PartConfig
from mpigraph.store.host_ranges import parts_of_hosts

_VERSIONS = {"hydra": "HYDRA build details", "intel": r"Intel\(R\) MPI", "openmpi": r"\((Open MPI|OpenRTE|PRRTE)\)"}
_SSH = {  # the variables from which an mpiexec takes arguments of ssh
    "hydra": ("HYDRA_LAUNCHER_EXTRA_ARGS",),
    "intel": ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",),
    "openmpi": ("OMPI_MCA_plm_rsh_args", "PRTE_MCA_plm_ssh_args"),  # up to Open MPI 4, and from 5 on
}
_HERE = ("localhost", "127.0.0.1", "::1")
_VERSION_TIMEOUT = 20  # seconds
_HOST = re.compile(r"[a-zA-Z0-9_:][a-zA-Z0-9_.:%-]*")


def ssh_options(options: HostOptions) -> list[str]:
    """Return the arguments of ssh for the two options."""
    port, user = options.ssh_port, options.ssh_username
    return [*(["-p", str(port)] if port is not None else []), *(["-l", user] if user else [])]


def read_hosts(path: Path) -> list[str]:
    """Read the machines of a job; ``#`` begins a comment. MPI chooses its own ports.

    Raises InvalidArgumentError: the file cannot be read, names no machine, or has a bad line; the message names it.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{path}: cannot read the list of hosts: {error}") from error
    hosts: list[str] = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if words and (len(words) > 2 or not _HOST.fullmatch(words[0]) or words[0].lower() in map(str.lower, hosts)):
            raise InvalidArgumentError(
                f"{path}:{number}: expected 'ADDRESS [PORT]', each host once (got {line.strip()!r})"
            )
        hosts += words[:1]
    if not hosts:
        raise InvalidArgumentError(f"{path}: names no host")
    return hosts


def launch(options: Launch) -> int:
    """Become the launcher's command, or print it; return the exit status."""
    if options.num_trainers < 1:
        raise InvalidArgumentError(f"--num_trainers must be >= 1 (got {options.num_trainers})")
    workspace = os.path.abspath(options.workspace)
    command = _words("the command", options.job or "")
    if not command:
        raise InvalidArgumentError('the command is missing: give it as one argument, not directly after "--extra_envs"')
    family, program = _find_launcher(options.mpiexec)
    if options.ip_config is None and family != "srun":
        raise InvalidArgumentError("--ip_config is needed outside of a Slurm allocation")
    flags = _words("--launcher_flags", options.launcher_flags)
    hosts = read_hosts(Path(workspace, options.ip_config)) if options.ip_config is not None else []
    ranks = options.num_trainers + options.num_servers
    if family == "srun":
        start = [program, *_srun(hosts, ranks, workspace)]
    else:
        variables = _mpiexec_variables(family, " ".join(ssh_options(options)))
        start = [*_env(variables), program, *_mpiexec(family, hosts, ranks, workspace)]
    argv = [*start, *flags, *_env(_variables(options, workspace)), *command]
    if options.dry_run:
        put(shlex.join(argv))
    else:
        note(shlex.join(argv))
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and the launcher would inherit that
            signal.signal(number, signal.SIG_DFL)
        os.execvp(argv[0], argv)
    return 0


def _variables(options: Launch, workspace: str) -> dict[str, str]:
    """Return the arguments as environment variables of every rank; the user's own variables win."""
    variables = {
        "MPIGRAPH_NUM_SERVERS": str(options.num_servers),
        "MPIGRAPH_NUM_WORKER_THREADS": str(max(1, options.num_samplers)),
    }
    if options.part_config is not None:
        variables["MPIGRAPH_PART_CONFIG"] = os.path.join(workspace, options.part_config)
    if options.num_omp_threads is not None:
        variables["OMP_NUM_THREADS"] = str(options.num_omp_threads)
    return variables | pairs("--extra_envs", "NAME=VALUE", options.extra_envs)


def _words(what: str, text: str) -> list[str]:
    """Split text into words as a shell does, without one."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{what} cannot be split into words: {error} (got {text!r})") from error


def _srun(hosts: list[str], ranks: int, workspace: str) -> list[str]:
    available, cpus = slurm_allocation() or (1, 0)
    nodes = len(hosts) or available  # Slurm has its own names of them
    if nodes > available:
        raise InvalidArgumentError(f"{nodes} hosts, but the Slurm allocation has {available} node(s)")
    return [
        f"--nodes={nodes}",
        f"--ntasks={nodes * ranks}",
        f"--ntasks-per-node={ranks}",
        *([f"--cpus-per-task={max(1, cpus // ranks)}"] if cpus else []),
        *(["--overcommit"] if 0 < cpus < ranks else []),
        "--distribution=block",  # part k is on the k-th node
        "--kill-on-bad-exit=1",
        f"--chdir={workspace}",
        "--export=ALL",
    ]


def _mpiexec(family: str, hosts: list[str], ranks: int, workspace: str) -> list[str]:
    size = str(len(hosts) * ranks)
    if family != "openmpi":
        return ["-hosts", ",".join(hosts), "-ppn", str(ranks), "-n", size, "-wdir", workspace]
    slots = ",".join(f"{host}:{ranks}" for host in hosts)
    # without "none", Open MPI binds all threads of a rank to one core
    return ["--host", slots, "--map-by", f"ppr:{ranks}:node", "-np", size, "--bind-to", "none", "--wdir", workspace]


def _mpiexec_variables(family: str, ssh: str) -> dict[str, str]:
    # else a batch system's counts would win over -ppn
    own = {"I_MPI_JOB_RESPECT_PROCESS_PLACEMENT": "disable"} if family == "intel" else {}
    return own | (dict.fromkeys(_SSH[family], ssh) if ssh else {})


def _env(variables: Mapping[str, str]) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in variables.items())] if variables else []


def _find_launcher(mpiexec: str) -> tuple[str, str]:
    """Return the family ("srun", "hydra", "intel" or "openmpi") and the path of the launcher to use."""
    if slurm_allocation() and not mpiexec:
        return "srun", shutil.which("srun") or "srun"
    beside = str(Path(sys.executable).parent)  # a wheel's comes first
    usual = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec") or shutil.which("mpirun")
    program = shutil.which(mpiexec) if mpiexec else usual
    if program is None:
        no_usual = f"no launcher: no mpiexec beside {sys.executable} or on PATH, and this is no Slurm allocation"
        raise InvalidArgumentError(f"--mpiexec {mpiexec}: no such program" if mpiexec else no_usual)
    asked = [program, "--version"]
    done = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, timeout=_VERSION_TIMEOUT, check=False)
    version = (done.stdout + done.stderr).decode(errors="replace")
    family = next((name for name, pattern in _VERSIONS.items() if re.search(pattern, version)), None)
    if family is None:
        line = version.partition("\n")[0]
        raise InvalidArgumentError(f"{program} is of an unknown MPI library (--version says {line!r})")
    return family, program


class _Site:
    """A host: this machine, or one that is reached by ssh, with rsync at both ends."""

    def __init__(self, host: str, options: Copy) -> None:
        self.name = host
        self.is_here = host in (*_HERE, socket.gethostname())
        self._ssh = ["ssh", *ssh_options(options)]

    def run(self, words: Sequence[str]) -> list[str]:
        """Return the command that runs words on the host; with quotes, since a remote shell splits them."""
        return list(words) if self.is_here else [*self._ssh, self.name, shlex.join(words)]

    def send(self, sources: Sequence[str], directory: str, *flags: str) -> list[str]:
        """Return the command that copies files or folders (absolute paths) into a directory; ``flags`` are rsync's."""
        ssh = [] if self.is_here else ["-e", shlex.join(self._ssh)]
        host = "" if self.is_here else f"[{self.name}]:" if ":" in self.name else f"{self.name}:"
        return ["rsync", "-a", "--partial", "--protect-args", *ssh, *flags, "--", *sources, f"{host}{directory}/"]


def copy(options: Copy) -> int:
    """Copy a graph and scripts to all hosts; return the exit status."""
    workspace, scripts = os.path.normpath(options.workspace), options.script_folder
    if not os.path.isabs(workspace):
        raise InvalidArgumentError(f"--workspace must be an absolute path, the same on every host (got {workspace!r})")
    if scripts is not None and not os.path.isdir(scripts):
        raise InvalidArgumentError(f"--script_folder: no such directory: {scripts!r}")
    config = PartConfig.read(os.path.abspath(options.part_config))
    for part in range(config.num_parts):
        config.file_sizes(part)  # an error if one is missing
    sites = [_Site(host, options) for host in read_hosts(Path(options.ip_config))]
    data = os.path.normpath(os.path.join(workspace, options.rel_data_path))
    from_links = "--copy-links"  # parts may lie on other disks here
    commands: list[tuple[str, list[str]]] = []  # all before the first one runs, so that every error shows before
    for index, site in enumerate(sites):
        parts = parts_of_hosts([index], len(sites), config.num_parts)
        folders = [str(config.part_path(part, "part_graph").parent) for part in parts]
        # a host that cannot be reached shows before the first copy
        commands.insert(index, (site.name, site.run(["mkdir", "-p", "--", workspace, data])))
        commands.append((site.name, site.send(folders, data, from_links)))
        if scripts is not None:
            commands.append((site.name, site.send([os.path.abspath(scripts)], workspace)))
        commands.append((site.name, site.send([str(config.path)], data, from_links)))
    for name, argv in commands:
        put(shlex.join(argv))
        if options.dry_run:
            continue
        status = subprocess.run(argv, check=False).returncode
        if status != 0:
            raise MPIGraphError(f"copying to {name} failed: {argv[0]} ended with status {status}")
    return 0
