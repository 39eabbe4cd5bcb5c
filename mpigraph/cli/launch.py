"""``python -m mpigraph launch``: DGL's ``launch.py`` without its ssh sessions.

It turns DGL's arguments into one ``srun`` or ``mpiexec`` command and *becomes* that command (``exec``): signals reach
the launcher directly, its exit status is this one's, and no process stands between that could be lost.
"""

import argparse
import os
import re
import shlex
import signal
import sys
from pathlib import Path

from mpigraph.cli.hosts import Host, read_hosts
from mpigraph.cli.launchers import FAMILIES, Job, command_line, find_family
from mpigraph.cli.remote import add_ssh_options, ssh_options
from mpigraph.errors import InvalidArgumentError

__all__ = ["add_parser"]

_PYTHON = re.compile(r"python[0-9.]*")
_QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
_SMALLEST = {"num_trainers": 1, "num_servers": 0, "num_samplers": 0, "num_omp_threads": 1, "num_server_threads": 1}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "launch",
        help="start a job by the arguments of DGL's launch.py",
        description="Start a job by the arguments of DGL's launch.py: by srun in a Slurm allocation, else by mpiexec "
        "on the hosts of ip_config.txt. Paths are relative to the workspace.",
    )
    add = parser.add_argument
    add("job", nargs="?", metavar="COMMAND", help='what every rank runs, as one argument: "python train.py --lr 0.01"')
    add("--num_trainers", type=int, required=True, help="trainers on each host")
    add("--num_servers", type=int, default=1, help="servers on each host; 0: trainers host the graph (%(default)s)")
    add("--num-servers", type=int, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    add("--num_samplers", type=int, default=0, help="threads with which each trainer samples; 0 is 1 (%(default)s)")
    add("--ip_config", metavar="FILE", help="the hosts, one 'ADDRESS [PORT]' on each line; in Slurm only their number")
    add("--part_config", metavar="FILE.json", help="becomes MPIGRAPH_PART_CONFIG")
    add("--workspace", default=".", metavar="DIR", help="working directory on every host (default: this one)")
    add("--num_omp_threads", type=int, metavar="N", help="becomes OMP_NUM_THREADS (default: share the cores)")
    add("--extra_envs", nargs="+", default=[], metavar="NAME=VALUE", help="further variables of every rank")
    add("--num_server_threads", type=int, default=1, metavar="N", help="accepted for DGL's sake")
    add("--server_name", metavar="NAME", help="accepted for DGL's sake")
    add("--keep_alive", action="store_true", help="accepted for DGL's sake: servers end with their job")
    add("--graph_format", default="csc", metavar="FORMAT", help="accepted for DGL's sake: shards serve every use")
    add_ssh_options(parser)
    add("--launcher", default="auto", choices=("auto", *FAMILIES), help="(%(default)s)")
    add("--mpiexec", default="", metavar="PROGRAM", help="default: the one beside this Python, else on PATH")
    add("--launcher_flags", default="", metavar="=FLAGS", help="for srun or mpiexec, such as =--mpi=pmi2")
    add("--as-dgl", action="store_true", help="'import dgl' of the script gives mpigraph, as python -m mpigraph run")
    add("--dry-run", action="store_true", help="print the command and do not run it")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    for name, smallest in _SMALLEST.items():
        value = getattr(arguments, name)
        if value is not None and value < smallest:
            raise InvalidArgumentError(f"--{name} must be >= {smallest} (got {value})")
    if not arguments.job:
        raise InvalidArgumentError('the command is missing: give it as one argument, not directly after "--extra_envs"')
    workspace = os.path.abspath(arguments.workspace)
    family, program = find_family(arguments.launcher, arguments.mpiexec)
    _check_needs_no_shell(arguments.job)
    command = _words(arguments.job, "the command")
    job = Job(
        command=_as_dgl(command) if arguments.as_dgl else command,
        ranks_per_node=arguments.num_trainers + arguments.num_servers,
        hosts=_hosts(arguments.ip_config, workspace, family),
        workspace=workspace,
        variables=_variables(arguments, workspace),
        ssh_options=ssh_options(arguments),
        flags=_words(arguments.launcher_flags, "--launcher_flags"),
    )
    argv = command_line(family, program, job)
    if arguments.dry_run:
        print(shlex.join(argv))
        return 0
    print(shlex.join(argv), file=sys.stderr, flush=True)
    _become(argv)
    return 0


def _hosts(ip_config: str | None, workspace: str, family: str) -> list[Host]:
    if ip_config is None:
        if family != "srun":
            raise InvalidArgumentError("--ip_config is needed outside of a Slurm allocation")
        return []
    return read_hosts(Path(workspace, ip_config))


def _variables(arguments: argparse.Namespace, workspace: str) -> dict[str, str]:
    """Return what the arguments become in the environment of every rank; the user's own variables win."""
    variables = {
        "MPIGRAPH_NUM_SERVERS": str(arguments.num_servers),
        "MPIGRAPH_NUM_WORKER_THREADS": str(max(1, arguments.num_samplers)),
    }
    if arguments.part_config is not None:
        variables["MPIGRAPH_PART_CONFIG"] = os.path.join(workspace, arguments.part_config)
    if arguments.num_omp_threads is not None:
        variables["OMP_NUM_THREADS"] = str(arguments.num_omp_threads)
    for text in arguments.extra_envs:
        name, _, value = text.partition("=")
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) or "=" not in text:
            raise InvalidArgumentError(f"--extra_envs takes NAME=VALUE (got {text!r})")
        variables[name] = value
    return variables


def _check_needs_no_shell(text: str) -> None:
    """Raise an InvalidArgumentError for a command with what DGL's launch.py leaves to a shell, such as ``a && b``."""
    bare = _QUOTED.sub(lambda word: re.sub("[^$`]", "", word[0]) if word[0].startswith('"') else "", text)
    found = re.search(r"&&|\|\||[;&|<>()`$]", bare)
    if found:
        raise InvalidArgumentError(
            f"the command has {found[0]!r}, which needs a shell: quote it by '...' if it is part of an argument, else "
            f"write \"sh -c '...'\" (got {text!r})"
        )


def _words(text: str, what: str) -> list[str]:
    """Split text into words as a shell does, without one."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{what} cannot be split into words: {error} (got {text!r})") from error


def _as_dgl(command: list[str]) -> list[str]:
    """Have ``python -m mpigraph run --as-dgl`` run the script of a command that begins with some Python.

    Raises:
        InvalidArgumentError: it names no Python, or no script for it.
    """
    python = next((at for at, word in enumerate(command) if _PYTHON.fullmatch(os.path.basename(word))), len(command))
    at = python + 1
    while at < len(command) and command[at].startswith("-") and command[at] not in ("-m", "-c", "-"):
        at += 2 if command[at] in ("-W", "-X") else 1
    if at >= len(command) or command[at] in ("-c", "-"):
        raise InvalidArgumentError(f"--as-dgl takes a command 'python SCRIPT ...' (got {shlex.join(command)!r})")
    return [*command[:at], "-m", "mpigraph", "run", "--as-dgl", *command[at:]]


def _become(argv: list[str]) -> None:
    """Replace this process by a program. Does not return; raises OSError where the program cannot start."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and a program would inherit that
        signal.signal(number, signal.SIG_DFL)
    os.execvp(argv[0], argv)
