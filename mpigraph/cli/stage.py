"""``python -m mpigraph stage``: copy shards to the nodes' own disks, to each node its own.

One rank of each node copies the parts that the node's hosts will read: host h of H reads those that its rows overlap. A
shard gets its name when it is whole and verified, so staging that was interrupted goes on where it was. The report goes
to stderr and the path of the staged configuration to stdout, for a script to read.
"""

import shutil
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpigraph.cli.grammar import Stage
from mpigraph.cli.main import note, put
from mpigraph.cli.ranks import working_world
from mpigraph.collective import collective
from mpigraph.config import Config, slurm_allocation
from mpigraph.errors import PartitionError, ShardFormatError
from mpigraph.memory import in_units
from mpigraph.mpi.agree import allgather_bytes, together
from mpigraph.mpi.world import World
from mpigraph.partition.output_folder import check_links, check_vacant, remove_other_graphs, remove_parts
from mpigraph.storage.contents import PartFiles
from mpigraph.storage.files import NewFile, check_space, open_regular, temporary_name
from mpigraph.storage.part_config import PartConfig
from mpigraph.storage.shard import verify
from mpigraph.store.host_ranges import parts_of_hosts, read_config
from mpigraph.trace import clock

_BLOCK = 8 << 20  # bytes of one read and write


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
            put(path)
    return 0


@collective("world.comm")
def _stage(world: World, part_config: str, directory: Path, num_servers: int, overwrite: bool) -> Path:
    begin = clock()
    allocation = slurm_allocation()
    if world.size == 1 and allocation is not None and allocation.nodes > 1:  # probably by mistake
        nodes = f"this node, one of the job's {allocation.nodes}"
        note(f"mpigraph stage: warning: one process copies all parts to {nodes}: start it by srun")
    hosts = [world.hosts_of_node(node) for node in range(world.num_nodes)]  # without servers every rank is a host
    if num_servers:
        hosts = hosts_of_nodes([ranks.tolist() for ranks in world.serving(num_servers)], num_servers)
    config = read_config(world, part_config, f"reading {part_config}")
    parts = parts_of_hosts(hosts[world.node_index], sum(map(len, hosts)), config.num_parts)
    node = f"node {world.node_index} ({socket.gethostname()})"
    step = f"staging to {directory}"
    shards: list[Shard] = []
    missing: list[Shard] = []
    with together(world.comm, step):
        if world.node.rank == 0:  # one rank works for its node
            shards = shards_of(config, parts, directory)
            check_links(directory)
            if not overwrite:
                tables = config.book.node_offsets, config.book.edge_offsets
                sizes = [sum(int(offsets[-1]) for offsets in table) for table in tables]
                check_vacant(directory, config.graph_name, (sizes[0], sizes[1]))
            missing = [shard for shard in shards if not is_staged(shard, config)]
            check_fit(missing, directory, node)
    with together(world.comm, step):
        if missing:  # a configuration lies there only with all its shards
            (directory / config.path.name).unlink(missing_ok=True)
        if shards:
            remove_other_graphs(directory, config.graph_name)
        for shard in missing:
            copy_shard(shard, config)
    with together(world.comm, step):  # last, now that every node has its parts
        if shards:
            config.write(directory)
            with suppress(OSError):  # the graph stands
                remove_parts(directory, np.ones(config.num_parts, np.bool_))
    size = in_units(sum(shard.size for shard in missing))
    copied = f"{len(missing)} files copied ({size}), {len(shards) - len(missing)} kept, {clock() - begin:.1f} s"
    line = f"{node}: part(s) {', '.join(map(str, parts))}: {copied}" if shards else ""
    lines = allgather_bytes(world.comm, line.encode())
    if world.rank == 0:
        note("\n".join(text.decode() for text in lines if text))
    return directory / config.path.name


class Shard(NamedTuple):
    """One file to have on the node.

    Attributes:
        part: whose file it is.
        which: the key of the file in the configuration.
        source: where it is now.
        target: where it is to be.
        size: bytes.
    """

    part: int
    which: str
    source: Path
    target: Path
    size: int

    def verify(self, copy: Path, config: PartConfig) -> None:
        """Raise ShardFormatError unless a copy is the original, which is undamaged."""
        original = PartFiles(config).open(self.part, self.which).fingerprint()
        verify(copy, config.graph_name, self.part, config.content, original)


def hosts_of_nodes(serving: Sequence[Sequence[int]], num_hosts: int = 0) -> list[list[int]]:
    """Return the hosts on each node: hosts are numbered in the order of their ranks.

    Args:
        serving: the ranks on each node that will be hosts, ascending.
        num_hosts: the least number of hosts of each node; the last rank of a node with fewer ranks stands for the
            missing ones, since one rank on each node is enough to stage.
    """
    places: list[tuple[int, int]] = []
    for node, ranks in enumerate(serving):
        places += [(rank, node) for rank in [*ranks, *[ranks[-1]] * (num_hosts - len(ranks))]]
    order = [node for _, node in sorted(places)]
    return [[host for host, where in enumerate(order) if where == node] for node in range(len(serving))]


def shards_of(config: PartConfig, parts: Sequence[int], directory: Path) -> list[Shard]:
    """Return the files of some parts, to be staged into a directory under their usual names.

    Raises PartitionError if one does not exist, or is in that directory already.
    """
    if directory.resolve() == config.directory.resolve():
        raise PartitionError(f"{directory} is where the parts are: choose another directory")
    return [
        Shard(part, which, config.part_path(part, which), directory / config.files_of(part)[which], size)
        for part in parts
        for which, size in config.file_sizes(part).items()
    ]


def is_staged(shard: Shard, config: PartConfig) -> bool:
    """Return whether a file is on the node, whole, undamaged and of this partitioning. Read it from end to end."""
    target = shard.target
    if target.is_symlink() or not target.is_file() or target.stat().st_size != shard.size:
        return False
    try:
        shard.verify(target, config)
    except ShardFormatError:
        return False
    return True


def check_fit(shards: Sequence[Shard], directory: Path, where: str = "this node") -> None:
    """Check that files fit on the disk of a directory, which is made; ``where`` names the node.

    Raises:
        StorageError: they do not fit; names both sizes.
        OSError: the directory cannot be made.
    """
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = [temporary_name(shard.target) for shard in shards]
    leftovers = sum(path.stat().st_size for path in unfinished if path.is_file())
    check_space(directory, sum(shard.size for shard in shards) - leftovers, f"staging to {where}")


def copy_shard(shard: Shard, config: PartConfig) -> None:
    """Copy one file; the copy gets its name once it is verified.

    Raises:
        ShardFormatError: the original is damaged, or the copy is not the same.
        StorageError: writing fails, or another process is copying the same file.
        OSError: reading fails.
    """
    with open(open_regular(shard.source), "rb") as source, NewFile(shard.target) as copy:
        shutil.copyfileobj(source, copy, _BLOCK)
        try:
            shard.verify(copy.temporary, config)
        except ShardFormatError as error:
            raise ShardFormatError(f"{shard.source} is damaged, or was on its way here: {error}") from error
