"""``python -m mpigraph copy``: copy parts and scripts to the hosts, as DGL's ``copy_files.py``.

The k-th of N hosts gets the parts that it will read: part k where there are as many parts as hosts. The configuration
is copied last and unchanged, since it names the files relative to itself.

In a Slurm allocation, each node copies its parts and the scripts from the shared file system in a step of its own, one
node after the other: the workspace may be shared too, and two nodes must not write one file at a time. ``sbcast`` sends
one file to every node, as the configuration needs it.

Commands are lists of arguments. Only ssh runs a shell, on the remote side: it joins its arguments with spaces and lets
the user's shell there split them again, so every word for ssh is quoted. rsync sends paths past that shell
(``--protect-args``). scp does so in some versions only; it gets no path that needs quotes.
"""

import argparse
import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from mpigraph.cli.launch import Host, add_host_options, read_hosts, slurm_nodes, ssh_options
from mpigraph.config import slurm_allocation
from mpigraph.errors import InvalidArgumentError, MPIGraphError, PartitionError
from mpigraph.partition.output_folder import OVERWRITE, Sizes
from mpigraph.storage.part_config import CONFIG_FORMAT, PartConfig
from mpigraph.store.host_ranges import parts_of_hosts

_HERE = ("localhost", "127.0.0.1", "::1")
_SSH_FAILED = 255  # ssh's own failure, not that of what it runs
_OCCUPIED = 77  # status of _LOOK where another graph lies
# Names the first configuration in folder $1 that is not $2, or whose graph does not have $3 nodes and $4 edges. With $5
# configurations of other names are removed instead.
_LOOK = f'''
cd "$1" 2>/dev/null || exit 0
for file in *.json; do
  [ -e "./$file" ] || continue
  own=; [ "$file" != "$2" ] || own=1
  if grep -qs '"format": "{CONFIG_FORMAT}"' "./$file"; then
    [ -z "$own" ] || ! grep -qs '"num_nodes": '"$3"',' "./$file" ||
      ! grep -qs '"num_edges": '"$4"',' "./$file" || continue
  elif [ -z "$own" ]; then continue; fi
  if [ -z "$5" ]; then echo "$file"; exit {_OCCUPIED}; fi
  [ -n "$own" ] || rm -f "./$file"
done
'''
_KINDS = ("part_graph", "node_feats", "edge_feats")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "copy",
        help="copy parts and scripts to the hosts by the arguments of DGL's copy_files.py",
        description="Copy part k of a graph to host k, its configuration and a folder of scripts to all: through "
        "Slurm in an allocation, else by rsync or scp.",
    )
    add = parser.add_argument
    add("--part_config", required=True, metavar="FILE.json", help="the partitioned graph")
    add("--workspace", required=True, metavar="DIR", help="absolute path of the job's directory on every host")
    add("--rel_data_path", required=True, metavar="DIR", help="where the parts go, relative to the workspace")
    add("--script_folder", metavar="DIR", help="goes into the workspace of every host")
    add_host_options(parser)
    add("--tool", default="auto", choices=("auto", "rsync", "scp"), help="auto: rsync where both ends have it")
    add("--overwrite", action="store_true", help="write over another graph on a host (default: refuse)")
    add("--dry-run", action="store_true", help="print the commands and run none; no host is asked for its rsync")
    parser.set_defaults(run=_run)


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
    """A target of ``cp``: this machine, or nodes of a Slurm allocation, which share a file system."""

    def __init__(self, name: str, before: Sequence[str] = ()) -> None:
        self.name = name
        self._before = before

    @classmethod
    def of_slurm(cls, count: int, first: int = 0) -> "_Site":
        """Return the site of ``count`` nodes of the allocation."""
        counts = [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", f"--relative={first}"]
        name = f"node {first} of the allocation" if count == 1 else "the nodes of the allocation"
        return cls(name, ["srun", *counts, "--input=none", "--kill-on-bad-exit=1"])

    def run(self, words: Sequence[str]) -> list[str]:
        """Return the command that runs words on the site, each as it is."""
        return [*self._before, *words]

    def make(self, directories: Sequence[str]) -> list[str]:
        return self.run(["mkdir", "-p", "--", *directories])

    def send(self, sources: Sequence[str], directory: str) -> list[str]:
        """Return the command that copies files or folders (absolute paths) into a directory."""
        return self.run(["cp", "-Rp", "--", *sources, f"{directory}/"])


class _Ssh(_Site):
    """A machine that is reached by ssh, with rsync at both ends or scp."""

    def __init__(self, host: Host, arguments: argparse.Namespace) -> None:
        super().__init__(host.name)
        self._options = ssh_options(arguments)
        self._rsync = arguments.tool == "rsync"
        if arguments.tool == "auto" and shutil.which("rsync") is not None:
            self._rsync = arguments.dry_run or self._has_rsync(host)

    def run(self, words: Sequence[str]) -> list[str]:
        """Return the command with quotes, since a remote shell splits the words."""
        return ["ssh", *self._options, self.name, shlex.join(words)]

    def send(self, sources: Sequence[str], directory: str) -> list[str]:
        """Return the command of rsync or scp; versions of scp disagree on the meaning of a path that needs quotes."""
        target = f"[{self.name}]" if ":" in self.name else self.name
        if self._rsync:
            shell = shlex.join(["ssh", *self._options])
            return ["rsync", "-a", "--partial", "--protect-args", "-e", shell, "--", *sources, f"{target}:{directory}/"]
        if shlex.quote(directory) != directory:
            remedy = "choose a path that needs no quotes, or install rsync on both ends"
            raise InvalidArgumentError(f"scp does not copy to {directory!r}: {remedy}")
        options = ["-P" if word == "-p" else word for word in self._options]
        if "-l" in options:  # by -l, scp limits its bandwidth
            index = options.index("-l")
            options[index : index + 2] = ["-o", f"User={options[index + 1]}"]
        return ["scp", "-rpq", *options, "--", *sources, f"{target}:{directory}/"]

    def _has_rsync(self, host: Host) -> bool:
        argv = self.run(["rsync", "--version"])
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode == _SSH_FAILED:
            reason = done.stderr.strip() or "it does not say why"
            raise MPIGraphError(f"{host.where}: ssh does not reach {host.name}: {reason}")
        return done.returncode == 0


def _run(arguments: argparse.Namespace) -> int:
    plan = _read_plan(arguments)
    hosts = read_hosts(Path(arguments.ip_config)) if arguments.ip_config else []
    allocation = slurm_allocation()
    if allocation is not None:
        all_nodes = _Site.of_slurm(allocation.nodes)  # sbcast always copies to all of them
        sites = [_Site.of_slurm(1, node) for node in range(slurm_nodes(hosts))]
        occupied = [all_nodes]
        commands = _through_slurm(plan, all_nodes, sites)
    elif hosts:
        here = (*_HERE, socket.gethostname())
        occupied = sites = [_Site(host.name) if host.name in here else _Ssh(host, arguments) for host in hosts]
        commands = _to_hosts(plan, sites)
    else:
        raise InvalidArgumentError("--ip_config is needed outside of a Slurm allocation")
    planned = list(commands)  # so that every error is raised before the first copy
    for site in [] if arguments.dry_run else occupied:
        _make_way(plan, site, arguments.overwrite)
    for name, argv in planned:
        print(shlex.join(argv), flush=True)
        if arguments.dry_run:
            continue
        status = subprocess.run(argv, check=False).returncode
        if status != 0:
            raise MPIGraphError(f"copying to {name} failed: {argv[0]} ended with status {status}")
    return 0


def _make_way(plan: _Plan, site: _Site, overwrite: bool) -> None:
    words = [plan.data, os.path.basename(plan.config_path), *Sizes.of(plan.config), "yes" if overwrite else ""]
    argv = site.run(["sh", "-c", _LOOK, "sh", *map(str, words)])
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == _OCCUPIED:
        there = os.path.join(plan.data, done.stdout.splitlines()[0])
        raise InvalidArgumentError(f"{site.name}: {there} is of another graph, which would be overwritten: {OVERWRITE}")
    if done.returncode != 0:
        status = f"{argv[0]} ended with status {done.returncode}: {done.stderr.strip()}"
        raise MPIGraphError(f"copying to {site.name} failed: {status}")


def _read_plan(arguments: argparse.Namespace) -> _Plan:
    workspace = arguments.workspace
    if not os.path.isabs(workspace):
        raise InvalidArgumentError(f"--workspace must be an absolute path, the same on every host (got {workspace!r})")
    scripts = arguments.script_folder
    if scripts is not None and not os.path.isdir(scripts):
        raise InvalidArgumentError(f"--script_folder: no such directory: {scripts!r}")
    config_path = os.path.abspath(arguments.part_config)
    data = os.path.normpath(os.path.join(workspace, arguments.rel_data_path))
    if os.path.realpath(data) == os.path.realpath(os.path.dirname(config_path)) and slurm_allocation() is not None:
        raise InvalidArgumentError(f"{data} is where the parts are: nodes on a shared file system need no copy")
    scripts = os.path.abspath(scripts) if scripts is not None else None
    return _Plan(config_path, PartConfig.read(config_path), os.path.normpath(workspace), data, scripts)


def _to_hosts(plan: _Plan, sites: list[_Site]) -> Iterator[tuple[str, list[str]]]:
    for index, site in enumerate(sites):
        files = plan.files_by_directory(index, len(sites))
        yield site.name, site.make([plan.workspace, plan.data, *files])
        copies = [*files.items(), (plan.data, [plan.config_path])]
        if plan.scripts is not None:
            copies.insert(-1, (plan.workspace, [plan.scripts]))
        for directory, sources in copies:
            missing = [source for source in sources if isinstance(site, _Ssh) or not _is_there(source, directory)]
            if missing:
                yield site.name, site.send(missing, directory)


def _through_slurm(plan: _Plan, all_nodes: _Site, sites: list[_Site]) -> Iterator[tuple[str, list[str]]]:
    yield all_nodes.name, all_nodes.make([plan.workspace, plan.data])
    for index, site in enumerate(sites):
        files = plan.files_by_directory(index, len(sites))
        yield site.name, site.make([*files])
        for directory, sources in files.items():
            yield site.name, site.send(sources, directory)
        if plan.scripts is not None and not _is_there(plan.scripts, plan.workspace):
            yield site.name, site.send([plan.scripts], plan.workspace)
    target = os.path.join(plan.data, os.path.basename(plan.config_path))
    yield all_nodes.name, ["sbcast", "--force", "--preserve", "--", plan.config_path, target]


def _is_there(source: str, directory: str) -> bool:
    return os.path.realpath(source) == os.path.realpath(os.path.join(directory, os.path.basename(source)))
