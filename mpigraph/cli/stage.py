"""``python -m mpigraph stage``: copy shards to the nodes' own disks, to each node its own.

One rank of each node copies the parts that the node's hosts will read. The report goes to stderr and the path of the
staged configuration to stdout, for a script to read.
"""

import argparse
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpigraph.cli.ranks import working_world
from mpigraph.collective import collective
from mpigraph.config import Config, slurm_allocation
from mpigraph.partition.output_folder import Sizes, check_links, check_vacant, remove_other_graphs, remove_parts
from mpigraph.store.host_ranges import check_fit, copy_shard, hosts_of_nodes, is_staged, parts_of_hosts, shards_of
from mpigraph.trace import clock

if TYPE_CHECKING:  # it loads MPI, and a parser needs none
    from mpigraph.mpi.world import World


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "stage",
        help="copy to each node the parts that its hosts will read",
        description="Copy a partitioned graph to the nodes' own disks: to each node the parts that its hosts will "
        "read, verified by their checksums. Files that are there and right are kept. Start it by srun or mpiexec "
        "with the nodes and ranks of the job that follows, or with one rank on each node.",
    )
    parser.add_argument("part_config", metavar="PART_CONFIG", help="<name>.json, where every node sees it")
    parser.add_argument("--to", required=True, metavar="DIR", help="directory on every node's own disk")
    parser.add_argument(
        "--num_servers", type=int, metavar="N", help="servers on each node; 0: trainers host the graph (default: 1)"
    )
    parser.add_argument("--overwrite", action="store_true", help="write over another graph in --to (default: refuse)")
    parser.set_defaults(run=lambda args: run(args.part_config, args.to, args.num_servers, overwrite=args.overwrite))


@collective("comm")
def run(
    part_config: str, directory: str, num_servers: int | None = None, comm: Any = None, overwrite: bool = False
) -> int:
    """Stage a graph and print the path of its configuration. Return the exit status.

    Every node sees the configuration, and has the target directory on its own disk. ``num_servers`` is of the job that
    follows (default: ``MPIGRAPH_NUM_SERVERS``, else 1); ``comm`` are the ranks that take part, all by default.

    Raises MPIGraphError, on every rank: the configuration cannot be read, or a file cannot be copied.
    """
    config = Config.from_env(**({} if num_servers is None else {"num_servers": num_servers}))
    with working_world("stage", comm) as world:
        path = _stage(world, part_config, Path(directory).absolute(), config.num_servers, overwrite)
        if world.rank == 0:
            print(path, flush=True)
    return 0


@collective("world.comm")
def _stage(world: "World", part_config: str, directory: Path, num_servers: int, overwrite: bool) -> Path:
    from mpigraph.mpi.agree import allgather_bytes, together
    from mpigraph.store.host_ranges import read_config

    begin = clock()
    allocation = slurm_allocation()
    if world.size == 1 and allocation is not None and allocation.nodes > 1:  # probably by mistake
        nodes = f"this node, one of the job's {allocation.nodes}"
        text = f"mpigraph stage: warning: one process copies all parts to {nodes}: start it by srun"
        print(text, file=sys.stderr)
    hosts = [world.hosts_of_node(node) for node in range(world.num_nodes)]  # without servers every rank is a host
    if num_servers:
        hosts = hosts_of_nodes([ranks.tolist() for ranks in world.serving(num_servers)], num_servers)
    config = read_config(world, part_config, f"reading {part_config}")
    with together(world.comm, f"reading {part_config}"):
        parts = parts_of_hosts(hosts[world.node_index], sum(map(len, hosts)), config.num_parts)
        shards = shards_of(config, parts, directory)
    if world.node.rank != 0:  # one rank works for its node
        shards = []
    step = f"staging to {directory}"
    node = f"node {world.node_index} ({socket.gethostname()})"
    with together(world.comm, step):
        if shards:
            check_links(directory)
        if shards and not overwrite:
            check_vacant(directory, config.graph_name, Sizes.of(config))
    with together(world.comm, step):
        missing = [shard for shard in shards if not is_staged(shard, config)]
        check_fit(missing, directory, node)
        if missing:  # a configuration lies there only with all its shards
            (directory / config.path.name).unlink(missing_ok=True)
        if shards:
            remove_other_graphs(directory, config.graph_name)
    with together(world.comm, step):
        for shard in missing:
            copy_shard(shard, config)
    with together(world.comm, step):  # last, now that every node has its parts
        if shards:
            replace(config, files=config.default_files(config.num_parts)).write(directory)
            with suppress(OSError):  # the graph stands
                remove_parts(directory, np.ones(config.num_parts, np.bool_))
    size = sum(shard.size for shard in missing) / 2**20
    copied = f"{len(missing)} files copied ({size:.1f} MiB), {len(shards) - len(missing)} kept, {clock() - begin:.1f} s"
    line = f"{node}: part(s) {', '.join(map(str, parts))}: {copied}" if shards else ""
    with world.watch("reporting"):
        lines = allgather_bytes(world.comm, line.encode())
    if world.rank == 0:
        print("\n".join(text.decode() for text in lines if text), file=sys.stderr, flush=True)
    return directory / config.path.name
