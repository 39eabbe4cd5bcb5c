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
from collections.abc import Sequence
from pathlib import Path

from mpigraph.cli.grammar import Copy
from mpigraph.cli.launch import read_hosts, ssh_options
from mpigraph.errors import InvalidArgumentError, MPIGraphError, PartitionError
from mpigraph.storage.part_config import PartConfig
from mpigraph.store.host_ranges import parts_of_hosts

_HERE = ("localhost", "127.0.0.1", "::1")


class _Site:
    """A host: this machine, or one that is reached by ssh, with rsync at both ends."""

    def __init__(self, host: str, options: Copy) -> None:
        self.name = host
        self.is_here = host in (*_HERE, socket.gethostname())
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
    workspace, scripts = os.path.normpath(options.workspace), options.script_folder
    if not os.path.isabs(workspace):
        raise InvalidArgumentError(f"--workspace must be an absolute path, the same on every host (got {workspace!r})")
    if scripts is not None and not os.path.isdir(scripts):
        raise InvalidArgumentError(f"--script_folder: no such directory: {scripts!r}")
    config = PartConfig.read(os.path.abspath(options.part_config))
    if options.ip_config is None:
        raise InvalidArgumentError("--ip_config is needed (inside of Slurm, 'stage' copies to the nodes' disks)")
    sites = [_Site(host, options) for host in read_hosts(Path(options.ip_config))]
    data = os.path.normpath(os.path.join(workspace, options.rel_data_path))
    for_all = [(workspace, [os.path.abspath(scripts)])] if scripts is not None else []
    for_all.append((data, [str(config.path)]))
    commands: list[tuple[str, list[str]]] = []  # all before the first one runs, so that every error shows before
    for index, site in enumerate(sites):
        files = _files_of(config, data, index, len(sites))
        # a host that cannot be reached shows before the first copy
        commands.insert(index, (site.name, site.run(["mkdir", "-p", "--", workspace, data, *files])))
        commands += [(site.name, site.send(sources, where)) for where, sources in (*files.items(), *for_all)]
    if shutil.which("rsync") is None and not options.dry_run:
        raise InvalidArgumentError("there is no rsync on PATH: install it here and on every host")
    for name, argv in commands:
        print(shlex.join(argv), flush=True)
        if options.dry_run:
            continue
        status = subprocess.run(argv, check=False).returncode
        if status != 0:
            raise MPIGraphError(f"copying to {name} failed: {argv[0]} ended with status {status}")
    return 0


def _files_of(config: PartConfig, data: str, host: int, num_hosts: int) -> dict[str, list[str]]:
    """Return the parts' files that a host needs, by the directory on the host that they go to."""
    files: dict[str, list[str]] = {}
    for part in parts_of_hosts([host], num_hosts, config.num_parts):
        for kind, name in config.files[part].items():
            source = os.path.abspath(config.part_path(part, kind))
            if not os.path.isfile(source):
                raise PartitionError(f"{source}: no such file (part {part} of {config.path})")
            files.setdefault(os.path.join(data, os.path.dirname(name)), []).append(source)
    return files
