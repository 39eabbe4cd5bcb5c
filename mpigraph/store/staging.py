"""Copy to a node's own disk the shards that its hosts will read, and no others.

Which those are follows from the division (``store/host_ranges.py``): host h of H reads the parts that its rows
overlap. A shard gets its name when it is whole and verified, so staging that was interrupted goes on where it was.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mpigraph.errors import PartitionError, ShardFormatError
from mpigraph.storage.contents import PartFiles
from mpigraph.storage.files import NewFile, check_space, open_regular, temporary_name
from mpigraph.storage.part_config import PartConfig
from mpigraph.storage.shard import fingerprint, verify_copy

_BLOCK = 8 << 20  # bytes of one read and write


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


def parts_of_hosts(hosts: Sequence[int], num_hosts: int, num_parts: int) -> list[int]:
    """Return the parts that some hosts read, ascending."""
    return sorted(
        {
            part
            for host in hosts
            for part in range(host * num_parts // num_hosts, -(-(host + 1) * num_parts // num_hosts))
        }
    )


def shards_of(config: PartConfig, parts: Sequence[int], directory: Path) -> list[Shard]:
    """Return the files of some parts, to be staged into a directory under their usual names.

    Raises PartitionError if one does not exist, or is in that directory already.
    """
    if directory.resolve() == config.directory.resolve():
        raise PartitionError(f"{directory} is where the parts are: choose another directory")
    shards = []
    for part in parts:
        for kind, name in PartConfig.files_of(part).items():
            source = config.part_path(part, kind)
            try:
                size = source.stat().st_size
            except OSError as error:
                raise PartitionError(f"{source}: {error.strerror} (part {part} of {config.path})") from error
            shards.append(Shard(part, kind, source, directory / name, size))
    return shards


def is_staged(shard: Shard, config: PartConfig) -> bool:
    """Return whether a file is on the node, whole, undamaged and of this partitioning. Read it from end to end.

    Raises ShardFormatError if the original is damaged.
    """
    target = shard.target
    if target.is_symlink() or not target.is_file() or target.stat().st_size != shard.size:
        return False
    with PartFiles(config) as files:
        original = fingerprint(files.open(shard.part, shard.which))
    try:
        verify_copy(target, original, config.graph_name, shard.part, config.content)
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
    with PartFiles(config) as files:
        original = fingerprint(files.open(shard.part, shard.which))
    with open(open_regular(shard.source), "rb") as source, NewFile(shard.target) as copy:
        shutil.copyfileobj(source, copy, _BLOCK)
        try:
            verify_copy(copy.temporary, original, config.graph_name, shard.part, config.content)
        except ShardFormatError as error:
            raise ShardFormatError(f"{shard.source} is damaged, or was on its way here: {error}") from error
