"""``python -m mpigraph copy``: copy parts and scripts to the hosts, as DGL's ``copy_files.py``.

The k-th of N hosts gets the parts that it will read: part k where there are as many parts as hosts. The configuration
is copied last and unchanged, since it names the files relative to itself.

Commands are lists of arguments. Only ssh runs a shell, on the remote side: it joins its arguments with spaces and lets
the user's shell there split them again, so every word for ssh is quoted. rsync sends paths past that shell
(``--protect-args``).
"""

import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from mpigraph.cli.grammar import Copy
from mpigraph.cli.launch import Host, read_hosts, ssh_options
from mpigraph.errors import InvalidArgumentError, MPIGraphError, PartitionError
from mpigraph.storage.part_config import PartConfig
from mpigraph.store.host_ranges import parts_of_hosts

_HERE = ("localhost", "127.0.0.1", "::1")
_KINDS = ("part_graph", "node_feats", "edge_feats")


class _Plan(NamedTuple):
    config_path: str  # absolute, as all paths here
    config: PartConfig
    workspace: str  # on the hosts
    data: str  # the parts' directory on the hosts
    scripts: str | None

    def files_by_directory(self, host: int, num_hosts: int) -> dict[str, list[str]]:
        """Return the parts' files that a host needs, by the directory on the host that they go to."""
        files: dict[str, list[str]] = {}
        for part in parts_of_hosts([host], num_hosts, self.config.num_parts):
            for kind in _KINDS:
                relative = PurePosixPath(self.config.files[part][kind])
                source = os.path.abspath(self.config.part_path(part, kind))
                if not os.path.isfile(source):
                    raise PartitionError(f"{source}: no such file (part {part} of {self.config_path})")
                files.setdefault(os.path.join(self.data, relative.parent), []).append(source)
        return files


class _Site:
    """A host: this machine, or one that is reached by ssh, with rsync at both ends."""

    def __init__(self, host: Host, options: Copy) -> None:
        self.name = host.name
        self.is_here = host.name in (*_HERE, socket.gethostname())
        self._ssh = ["ssh", *ssh_options(options)]

    def run(self, words: Sequence[str]) -> list[str]:
        """Return the command that runs words on the host; with quotes, since a remote shell splits them."""
        return list(words) if self.is_here else [*self._ssh, self.name, shlex.join(words)]

    def send(self, sources: Sequence[str], directory: str) -> list[str]:
        """Return the command that copies files or folders (absolute paths) into a directory."""
        options = ["-a", "--partial", "--protect-args"]
        if self.is_here:
            return ["rsync", *options, "--", *sources, f"{directory}/"]
        target = f"[{self.name}]" if ":" in self.name else self.name
        return ["rsync", *options, "-e", shlex.join(self._ssh), "--", *sources, f"{target}:{directory}/"]


def copy(options: Copy) -> int:
    """Copy a graph and scripts to all hosts; return the exit status."""
    plan = _read_plan(options)
    if options.ip_config is None:
        raise InvalidArgumentError("--ip_config is needed (inside of Slurm, 'stage' copies to the nodes' disks)")
    sites = [_Site(host, options) for host in read_hosts(Path(options.ip_config))]
    planned = list(_commands(plan, sites))  # so that every error is raised before the first copy
    if shutil.which("rsync") is None and not options.dry_run:
        raise InvalidArgumentError("there is no rsync on PATH: install it here and on every host")
    for name, argv in planned:
        print(shlex.join(argv), flush=True)
        if options.dry_run:
            continue
        status = subprocess.run(argv, check=False).returncode
        if status != 0:
            raise MPIGraphError(f"copying to {name} failed: {argv[0]} ended with status {status}")
    return 0


def _read_plan(options: Copy) -> _Plan:
    workspace, scripts = options.workspace, options.script_folder
    if not os.path.isabs(workspace):
        raise InvalidArgumentError(f"--workspace must be an absolute path, the same on every host (got {workspace!r})")
    if scripts is not None and not os.path.isdir(scripts):
        raise InvalidArgumentError(f"--script_folder: no such directory: {scripts!r}")
    config_path = os.path.abspath(options.part_config)
    data = os.path.normpath(os.path.join(workspace, options.rel_data_path))
    scripts = os.path.abspath(scripts) if scripts is not None else None
    return _Plan(config_path, PartConfig.read(config_path), os.path.normpath(workspace), data, scripts)


def _commands(plan: _Plan, sites: list[_Site]) -> Iterator[tuple[str, list[str]]]:
    of_sites = [plan.files_by_directory(index, len(sites)) for index in range(len(sites))]
    for site, files in zip(sites, of_sites, strict=True):  # a host that cannot be reached shows before the first copy
        yield site.name, site.run(["mkdir", "-p", "--", plan.workspace, plan.data, *files])
    for site, files in zip(sites, of_sites, strict=True):
        copies = [*files.items(), (plan.data, [plan.config_path])]
        if plan.scripts is not None:
            copies.insert(-1, (plan.workspace, [plan.scripts]))
        for directory, sources in copies:
            yield site.name, site.send(sources, directory)
