"""``python -m mpigraph copy``: what DGL's ``copy_files.py`` does, part k and the scripts to host k.

The k-th of N hosts gets the parts that it will read: part k where there are as many parts as hosts. The configuration
travels last and as it is, since it names the files relative to itself.

In a Slurm allocation, each node copies its parts and the scripts from the shared file system in a step of its own, one
node after the other: the workspace may be shared too, and two nodes must not write one file at a time. ``sbcast`` sends
one file to every node, which is right for the configuration and wrong for the parts.
"""

import argparse
import os
import shlex
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mpigraph.cli.hosts import Host, read_hosts
from mpigraph.cli.launchers import slurm_nodes
from mpigraph.cli.remote import HERE, Local, Site, SlurmNode, Ssh, add_ssh_options, both_have_rsync, ssh_options
from mpigraph.config import slurm_allocation
from mpigraph.errors import InvalidArgumentError, MPIGraphError, PartitionError
from mpigraph.partition.occupied import OVERWRITE, Sizes
from mpigraph.storage.part_config import CONFIG_FORMAT, PartConfig
from mpigraph.store.staging import parts_of_hosts

__all__ = ["add_parser"]

_OCCUPIED = 77  # with what status _LOOK ends where another graph lies
# Names the first configuration in folder $1 that is not $2, or is not of a graph of $3 nodes and $4 edges. With $5 all
# of other names are removed instead.
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

Command = tuple[str, list[str]]  # the name of whom it copies to, and its arguments


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
    add("--ip_config", metavar="FILE", help="the hosts, one 'ADDRESS [PORT]' on each line; in Slurm only their number")
    add("--workspace", required=True, metavar="DIR", help="absolute path of the job's directory on every host")
    add("--rel_data_path", required=True, metavar="DIR", help="where the parts go, relative to the workspace")
    add("--script_folder", metavar="DIR", help="goes into the workspace of every host")
    add_ssh_options(parser)
    add("--tool", default="auto", choices=("auto", "rsync", "scp"), help="auto: rsync where both ends have it")
    add("--overwrite", action="store_true", help="write over another graph on a host (default: refuse)")
    add("--dry-run", action="store_true", help="print the commands and run none; no host is asked for its rsync")
    parser.set_defaults(run=_run)


@dataclass(frozen=True)
class _Plan:
    """What goes where; all paths are absolute.

    Attributes:
        config_path: the configuration, here.
        config: what it says.
        workspace: the job's directory on the hosts.
        data: the parts' directory on the hosts.
        scripts: a folder of scripts here, or None.
    """

    config_path: str
    config: PartConfig
    workspace: str
    data: str
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


def _run(arguments: argparse.Namespace) -> int:
    plan = _read_plan(arguments)
    hosts = read_hosts(Path(arguments.ip_config)) if arguments.ip_config else []
    sites: list[Site]
    if slurm_allocation() is not None:
        sites = [_all_nodes(slurm_nodes(hosts))]
        commands = _through_slurm(plan, slurm_nodes(hosts))
    elif hosts:
        sites = [_site(host, arguments) for host in hosts]
        commands = _to_hosts(plan, sites)
    else:
        raise InvalidArgumentError("--ip_config is needed outside of a Slurm allocation")
    planned = list(commands)  # so that every mistake shows before the first copy
    for site in [] if arguments.dry_run else sites:
        _look(plan, site, arguments.overwrite)
    for name, argv in planned:
        print(shlex.join(argv), flush=True)
        if arguments.dry_run:
            continue
        status = subprocess.run(argv, check=False).returncode
        if status != 0:
            raise MPIGraphError(f"copying to {name} failed: {argv[0]} ended with status {status}")
    return 0


def _look(plan: _Plan, site: Site, overwrite: bool) -> None:
    """Look for another graph where the parts are to go, and make way if it may be overwritten.

    Raises:
        InvalidArgumentError: there is one, and it may not.
        MPIGraphError: nothing can be run there.
    """
    sizes = Sizes.of(plan.config)
    told = [plan.data, os.path.basename(plan.config_path), sizes.num_nodes, sizes.num_edges, "yes" if overwrite else ""]
    argv = site.run(["sh", "-c", _LOOK, "sh", *map(str, told)])
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == _OCCUPIED:
        there = os.path.join(plan.data, done.stdout.splitlines()[0])
        raise InvalidArgumentError(f"{site.name}: {there} is of another graph, which would be overwritten: {OVERWRITE}")
    if done.returncode != 0:
        raise MPIGraphError(
            f"copying to {site.name} failed: {argv[0]} ended with status {done.returncode}: {done.stderr.strip()}"
        )


def _all_nodes(num_nodes: int) -> SlurmNode:
    """Return all nodes of the allocation: sbcast copies to all of them, never to fewer."""
    allocation = slurm_allocation()
    return SlurmNode(allocation.nodes if allocation else num_nodes)


def _read_plan(arguments: argparse.Namespace) -> _Plan:
    workspace = arguments.workspace
    if not os.path.isabs(workspace):
        raise InvalidArgumentError(f"--workspace must be an absolute path: hosts differ in others (got {workspace!r})")
    scripts = arguments.script_folder
    if scripts is not None and not os.path.isdir(scripts):
        raise InvalidArgumentError(f"--script_folder: no such directory: {scripts!r}")
    config_path = os.path.abspath(arguments.part_config)
    data = os.path.normpath(os.path.join(workspace, arguments.rel_data_path))
    if os.path.realpath(data) == os.path.realpath(os.path.dirname(config_path)) and slurm_allocation() is not None:
        raise InvalidArgumentError(f"{data} is where the parts are: nodes on a shared file system need no copy")
    return _Plan(
        config_path=config_path,
        config=PartConfig.read(config_path),
        workspace=os.path.normpath(workspace),
        data=data,
        scripts=os.path.abspath(scripts) if scripts is not None else None,
    )


def _site(host: Host, arguments: argparse.Namespace) -> Site:
    if host.name in (*HERE, socket.gethostname()):
        return Local(host.name)
    options = ssh_options(arguments)
    rsync = arguments.tool == "rsync"
    if arguments.tool == "auto":
        rsync = both_have_rsync(Ssh(host, options), ask=not arguments.dry_run)
    return Ssh(host, options, rsync)


def _to_hosts(plan: _Plan, sites: list[Site]) -> Iterator[Command]:
    for index, site in enumerate(sites):
        files = plan.files_by_directory(index, len(sites))
        yield site.name, site.make([plan.workspace, plan.data, *files])
        copies = [*files.items()]
        if plan.scripts is not None:
            copies.append((plan.workspace, [plan.scripts]))
        copies.append((plan.data, [plan.config_path]))
        for directory, sources in copies:
            missing = [source for source in sources if not (isinstance(site, Local) and _is_there(source, directory))]
            if missing:
                yield site.name, site.send(missing, directory)


def _through_slurm(plan: _Plan, num_nodes: int) -> Iterator[Command]:
    all_nodes = _all_nodes(num_nodes)
    yield all_nodes.name, all_nodes.make([plan.workspace, plan.data])
    for index in range(num_nodes):
        site = SlurmNode(1, index)
        files = plan.files_by_directory(index, num_nodes)
        yield site.name, site.make([*files])
        for directory, sources in files.items():
            yield site.name, site.send(sources, directory)
        if plan.scripts is not None and not _is_there(plan.scripts, plan.workspace):
            yield site.name, site.send([plan.scripts], plan.workspace)
    target = os.path.join(plan.data, os.path.basename(plan.config_path))
    yield all_nodes.name, ["sbcast", "--force", "--preserve", "--", plan.config_path, target]


def _is_there(source: str, directory: str) -> bool:
    """Whether a file or folder of this machine already lies where it is to go."""
    return os.path.realpath(source) == os.path.realpath(os.path.join(directory, os.path.basename(source)))
