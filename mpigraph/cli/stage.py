"""``python -m mpigraph stage``: copy shards to the nodes' own disks, to each node its own.

One rank of each node copies the parts that the node's hosts will read. The report goes to stderr and the path of the
staged configuration to stdout, for a script to read.
"""

import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpigraph.cli.grammar import Stage
from mpigraph.cli.main import note
from mpigraph.cli.ranks import working_world
from mpigraph.collective import collective
from mpigraph.config import Config, slurm_allocation
from mpigraph.partition.output_folder import Sizes, check_links, check_vacant, remove_other_graphs, remove_parts
from mpigraph.store.host_ranges import check_fit, copy_shard, hosts_of_nodes, is_staged, parts_of_hosts, shards_of
from mpigraph.trace import clock

if TYPE_CHECKING:  # it loads MPI, and a parser needs none
    from mpigraph.mpi.world import World


@collective("comm")
def stage(options: Stage, comm: Any = None) -> int:
    """Stage a graph and print the path of its configuration. Return the exit status.

    Every node sees the configuration, and has the target directory on its own disk. ``options.servers`` is of the job
    that follows; ``comm`` are the ranks that take part, all by default.

    Raises MPIGraphError, on every rank: the configuration cannot be read, or a file cannot be copied.
    """
    config = Config.from_env(**({} if options.servers is None else {"num_servers": options.servers}))
    with working_world("stage", comm) as world:
        path = _stage(world, options.part_config, Path(options.to).absolute(), config.num_servers, options.overwrite)
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
        note(f"mpigraph stage: warning: one process copies all parts to {nodes}: start it by srun")
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
        note("\n".join(text.decode() for text in lines if text))
    return directory / config.path.name
