"""``python -m mpigraph stage``: shards to the nodes' own disks, each node its own.

Started by ``srun`` or ``mpiexec`` as the job that follows: one rank of each node copies what the node's hosts will
read. The report goes to stderr and the path of the staged configuration to stdout, for a script to pick up.
"""

import argparse
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mpigraph.config import Config, slurm_allocation
from mpigraph.errors import MPIGraphError
from mpigraph.storage.part_config import PartConfig
from mpigraph.store.staging import Shard, check_space, copy_shard, hosts_of_nodes, is_staged, parts_of_hosts, shards_of

if TYPE_CHECKING:  # MPI starts with its import, and the other commands need none
    from mpigraph.mpi.world import World

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "stage",
        help="copy to each node the parts that its hosts will read",
        description="Copy a partitioned graph to the nodes' own disks: to each node the parts that its hosts will "
        "read, verified by their checksums. Files that are there and right are kept. Start it by srun or mpiexec with "
        "the nodes and ranks of the job that follows, or with one rank on each node.",
    )
    parser.add_argument("part_config", metavar="PART_CONFIG", help="<name>.json, where every node sees it")
    parser.add_argument("--to", required=True, metavar="DIR", help="directory on every node's own disk")
    parser.add_argument(
        "--num-servers", type=int, metavar="N", help="servers on each node; 0: trainers host the graph (default: 1)"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    given = {} if arguments.num_servers is None else {"num_servers": arguments.num_servers}
    num_servers = Config.from_env(**given).num_servers
    from mpigraph.session.context import current, exit_client, initialize

    initialize(num_servers=0)  # every rank takes part
    world = current().world
    status = 0
    try:
        path = _stage(world, arguments.part_config, Path(arguments.to).absolute(), num_servers)
        if world.rank == 0:
            print(path, flush=True)
    except MPIGraphError as error:  # on every rank
        status = 2
        if world.rank == 0:
            print(f"mpigraph stage: error: {str(error).replace(chr(10), ' ')}", file=sys.stderr, flush=True)
    exit_client()
    return status


def _stage(world: "World", part_config: str, directory: Path, num_servers: int) -> Path:
    """Stage, report, and return the path of the staged configuration."""
    from mpigraph.mpi.agree import together

    begin = time.monotonic()
    _warn_if_alone(world)
    hosts = _hosts(world, num_servers)
    with together(world.comm, f"reading {part_config}"):
        config = PartConfig.read(part_config)
        parts = parts_of_hosts(hosts[world.node_index], sum(map(len, hosts)), config.num_parts)
        shards = shards_of(config, parts, directory)
    mine = shards if world.node.rank == 0 else []  # one rank works for its node
    doing, node = f"staging to {directory}", f"node {world.node_index} ({socket.gethostname()})"
    with together(world.comm, doing):
        missing = [shard for shard in mine if not is_staged(shard, config.graph_name)]
        check_space(missing, directory, node)
    with together(world.comm, doing):
        for shard in missing:
            copy_shard(shard, config.graph_name)
    with together(world.comm, doing):  # last, now that every node has its parts
        if mine:
            replace(config, files=config.default_files(config.num_parts)).write(directory)
    _report(world, f"{node}: {_summary(parts, mine, missing)}, {time.monotonic() - begin:.1f} s" if mine else "")
    return directory / config.path.name


def _hosts(world: "World", num_servers: int) -> list[list[int]]:
    """The hosts on each node of a job that is started as this one."""
    if num_servers == 0:
        return [world.hosts_of_node(node) for node in range(world.num_nodes)]  # every rank is a host, as here
    return hosts_of_nodes([ranks.tolist() for ranks in world.serving(num_servers)], num_servers)


def _summary(parts: list[int], shards: list[Shard], copied: list[Shard]) -> str:
    size = sum(shard.size for shard in copied) / 2**20
    kept = len(shards) - len(copied)
    return f"part(s) {', '.join(map(str, parts))}: {len(copied)} files copied ({size:.1f} MiB), {kept} kept"


def _warn_if_alone(world: "World") -> None:
    allocation = slurm_allocation()
    if world.size == 1 and allocation is not None and allocation.nodes > 1:
        print(
            f"mpigraph stage: warning: one process, so all parts go to this node, of the {allocation.nodes} that the "
            "job has: start it by srun",
            file=sys.stderr,
        )


def _report(world: "World", line: str) -> None:
    """Print every node's line once."""
    from mpigraph.mpi.agree import allgather_bytes

    with world.watch("reporting"):
        lines = allgather_bytes(world.comm, line.encode())
    if world.rank == 0:
        print("\n".join(text.decode() for text in lines if text), file=sys.stderr, flush=True)
