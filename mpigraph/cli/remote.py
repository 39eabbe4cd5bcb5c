"""How files get to a host: by ssh with rsync or scp, by Slurm, or by ``cp`` where the host is this machine.

Commands are lists of arguments. Only ssh puts a shell between, on the far side: it joins its arguments with spaces
and lets the user's shell there split them again, so what ssh runs is quoted word by word. rsync sends paths past that
shell (``--protect-args``). scp does or does not, depending on its version; it gets no path that could tell.
"""

import argparse
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mpigraph.cli.hosts import Host
from mpigraph.errors import InvalidArgumentError, MPIGraphError

__all__ = ["HERE", "Local", "Site", "SlurmNode", "Ssh", "add_ssh_options", "both_have_rsync", "ssh_options"]

HERE = ("localhost", "127.0.0.1", "::1")
_SSH_FAILED = 255  # ssh's own failure, not that of what it runs


def add_ssh_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--ssh_port`` and ``--ssh_username``."""
    parser.add_argument("--ssh_port", type=int, metavar="PORT", help="where ssh is used (default: ssh's own)")
    parser.add_argument("--ssh_username", default="", metavar="NAME", help="where ssh is used (default: ssh's own)")


def ssh_options(arguments: argparse.Namespace) -> list[str]:
    """Return the arguments of ssh that the two options ask for.

    Raises:
        InvalidArgumentError: no port, or no user name that launchers could pass on.
    """
    port = arguments.ssh_port
    user = arguments.ssh_username
    if port is not None and not 1 <= port <= 65535:
        raise InvalidArgumentError(f"--ssh_port must be 1 to 65535 (got {port})")
    if user and not re.fullmatch(r"[A-Za-z0-9_.][A-Za-z0-9_.@-]*", user):
        raise InvalidArgumentError(f"--ssh_username is no user name (got {user!r})")
    return [*(["-p", str(port)] if port is not None else []), *(["-l", user] if user else [])]


class Site(Protocol):
    """What files are copied to: a host, this machine, or nodes of a Slurm allocation.

    Attributes:
        name: for messages.
    """

    @property
    def name(self) -> str:
        """What to call it in messages."""

    def run(self, words: Sequence[str]) -> list[str]:
        """Return the command that runs words there, each as it is."""

    def make(self, directories: Sequence[str]) -> list[str]:
        """Return the command that makes directories."""

    def send(self, sources: Sequence[str], directory: str) -> list[str]:
        """Return the command that copies files or folders (absolute paths) into a directory."""


@dataclass(frozen=True)
class Local:
    """This machine."""

    name: str = "localhost"

    def run(self, words: Sequence[str]) -> list[str]:
        """Run words."""
        return [*words]

    def make(self, directories: Sequence[str]) -> list[str]:
        """Make directories."""
        return ["mkdir", "-p", "--", *directories]

    def send(self, sources: Sequence[str], directory: str) -> list[str]:
        """Copy into a directory."""
        return ["cp", "-Rp", "--", *sources, f"{directory}/"]


@dataclass(frozen=True)
class SlurmNode:
    """Nodes of the Slurm allocation; they see the same file system as this one.

    Attributes:
        count: how many nodes.
        first: the first of them, counted in the allocation.
    """

    count: int
    first: int = 0

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return f"node {self.first} of the allocation" if self.count == 1 else "the nodes of the allocation"

    def run(self, words: Sequence[str]) -> list[str]:
        """Run words, on each node."""
        counts = [f"--nodes={self.count}", f"--ntasks={self.count}", "--ntasks-per-node=1"]
        return ["srun", *counts, f"--relative={self.first}", "--input=none", "--kill-on-bad-exit=1", *words]

    def make(self, directories: Sequence[str]) -> list[str]:
        """Make directories."""
        return self.run(Local().make(directories))

    def send(self, sources: Sequence[str], directory: str) -> list[str]:
        """Copy into a directory."""
        return self.run(Local().send(sources, directory))


@dataclass(frozen=True)
class Ssh:
    """A machine that is reached by ssh.

    Attributes:
        host: the machine.
        options: arguments of ssh.
        rsync: whether both ends have rsync.
    """

    host: Host
    options: list[str] = field(default_factory=list)
    rsync: bool = False

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return self.host.name

    def run(self, words: Sequence[str]) -> list[str]:
        """Return the command that runs words there, each as it is."""
        return ["ssh", *self.options, self.host.name, shlex.join(words)]

    def make(self, directories: Sequence[str]) -> list[str]:
        """Make directories."""
        return self.run(Local().make(directories))

    def send(self, sources: Sequence[str], directory: str) -> list[str]:
        """Copy into a directory.

        Raises:
            InvalidArgumentError: only scp is there, and versions of scp disagree on what the path means.
        """
        target = f"[{self.name}]" if self.host.has_colons else self.name
        if self.rsync:
            shell = shlex.join(["ssh", *self.options])
            return ["rsync", "-a", "--partial", "--protect-args", "-e", shell, "--", *sources, f"{target}:{directory}/"]
        if shlex.quote(directory) != directory:
            raise InvalidArgumentError(
                f"scp cannot be trusted with the path {directory!r}: choose a plain one, or install rsync on both ends"
            )
        options = ["-P" if word == "-p" else word for word in self.options]
        if "-l" in options:  # by -l, scp limits its bandwidth
            index = options.index("-l")
            options[index : index + 2] = ["-o", f"User={options[index + 1]}"]
        return ["scp", "-rpq", *options, "--", *sources, f"{target}:{directory}/"]


def both_have_rsync(site: Ssh, ask: bool) -> bool:
    """Whether rsync is here and there (asked by ssh); without asking, whether it is here.

    Raises:
        MPIGraphError: ssh does not get there.
    """
    if shutil.which("rsync") is None:
        return False
    if not ask:
        return True
    question = site.run(["rsync", "--version"])
    done = subprocess.run(question, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode == _SSH_FAILED:
        reason = done.stderr.decode(errors="replace").strip()
        raise MPIGraphError(f"{site.host.where}: ssh does not reach {site.name}: {reason or 'it does not say why'}")
    return done.returncode == 0
