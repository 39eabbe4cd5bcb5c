"""Divide the parts of a graph among the hosts of a job: the memory this takes, and the shards that a node's disk needs.

P parts serve H hosts whatever P and H are. The parts laid end to end are an axis of length P, and host h gets what
lies between h*P/H and (h+1)*P/H: whole parts where H divides P, an equal slice of a part where P divides H, and in
between both. A boundary inside a part falls at the same fraction of every node type; the edges of a relation are
divided where their destinations are.
"""

import math
import mmap
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mpigraph.arrays import I64
from mpigraph.collective import collective
from mpigraph.errors import PartitionError, ShardFormatError
from mpigraph.metadata.book import RangeBook
from mpigraph.storage.contents import PartFiles
from mpigraph.storage.files import NewFile, check_space, open_regular, temporary_name
from mpigraph.storage.format import index_dtype, storage_dtype
from mpigraph.storage.part_config import FeatureInfo, PartConfig, text_of
from mpigraph.storage.shard import verify

if TYPE_CHECKING:
    from mpigraph.mpi.world import World


def cut_offsets(offsets: I64, num_hosts: int) -> I64:
    """Return int64[H + 1], the first row of each host where ``offsets`` divide the rows into parts."""
    part, rest = np.divmod(np.arange(num_hosts + 1) * (len(offsets) - 1), num_hosts)
    rows = np.append(np.diff(offsets), 0)
    cuts: I64 = offsets[part] + rows[part] * rest // num_hosts
    return cuts


@collective("world.comm")
def cut_for_hosts(world: "World", files: PartFiles) -> RangeBook:
    """Return which host holds which nodes and edges: a book whose owners are the hosts.

    Raises ShardFormatError if a shard that a host needs is missing, damaged, or does not hold what the configuration
    says; on every rank.
    """
    from mpigraph.mpi.agree import everywhere, together

    config = files.config
    book = config.book
    num_hosts = len(world.hosts)
    nodes = tuple(cut_offsets(offsets, num_hosts) for offsets in book.node_offsets)
    of_parts = book.edge_table
    own_begins = np.zeros(len(of_parts), np.int64)
    with together(world.comm, f"opening graph {config.graph_name!r}"):
        if world.is_host:
            for part in parts_of_hosts([world.host_index], num_hosts, book.num_parts):
                files.check(part)
            own_begins[:] = _edge_begins(files, of_parts, nodes, world.host_index)
    gathered = np.empty((world.size, len(own_begins)), np.int64)
    world.comm.Allgather(own_begins, gathered)
    begins = gathered[world.hosts].T
    for relation, host in np.argwhere(begins[:, 1:] < begins[:, :-1])[:1].tolist():
        path = config.part_path((host + 1) * book.num_parts // num_hosts, "part_graph")
        key = book.schema.relation_key(relation)
        raise everywhere(ShardFormatError(f"{path}: the edges of {key} contradict themselves: indptr must rise"))
    return RangeBook(book.schema, nodes, np.append(begins, of_parts[:, -1:], axis=1))


def _edge_begins(files: PartFiles, of_parts: I64, nodes: tuple[I64, ...], host: int) -> I64:
    """Return the first edge of a host in each relation, read from ``indptr`` where it begins inside a part."""
    book = files.config.book
    part = (host * book.num_parts) // len(nodes[0][:-1])
    begins: I64 = of_parts[:, part].copy()
    inside = [int(of_hosts[host] - offsets[part]) for of_hosts, offsets in zip(nodes, book.node_offsets, strict=True)]
    for relation in range(len(begins)) if any(inside) else ():
        if row := inside[book.schema.ends(relation)[1]]:
            begins[relation] += int(files.read_indptr(relation, part, row, row)[0])
    return begins


@collective("world.comm")
def read_config(world: "World", part_config: str, doing: str) -> PartConfig:
    """Read a partition configuration, which must be the same on all nodes.

    One rank of each node reads the file, and gives the others its text.

    Raises:
        PartitionError: it is missing or damaged, or differs between nodes; on every rank.
    """
    from mpigraph.mpi.agree import allgather_bytes, share_bytes, together

    text = b""
    with together(world.comm, doing):
        if world.node.rank == 0:
            text = text_of(part_config)
    text = share_bytes(world.node, text)
    with together(world.comm, doing):
        config = PartConfig.read(part_config, text)
    with world.watch("comparing partition configurations"):
        check_same(partial(allgather_bytes, world.comm), config)
    return config


@collective("ranks")
def check_same(gather: Callable[[bytes], list[bytes]], config: PartConfig) -> None:
    """Check that all ranks have read one and the same partitioning.

    Args:
        gather: gives every rank the bytes of every rank, in rank order.
        config: as this rank has read it.

    Raises:
        PartitionError: they have not; on every rank.
    """
    text = f"{config.checksum} partitioning {config.identity} at {config.path}"
    replies = [reply.decode() for reply in gather(text.encode(errors="backslashreplace"))]  # a path may be no text
    ranks: dict[str, list[int]] = {}  # by checksum
    for rank, reply in enumerate(replies):
        ranks.setdefault(reply.partition(" ")[0], []).append(rank)
    if len(ranks) > 1:
        from mpigraph.mpi.agree import everywhere

        kinds = [f"{replies[of[0]].partition(' ')[2]} on rank {', '.join(map(str, of))}" for of in ranks.values()]
        raise everywhere(
            PartitionError(
                f"graph {config.graph_name!r}: nodes have different partitionings under one name: {'; '.join(kinds)}"
            )
        )


def host_memory(config: PartConfig, hosts: RangeBook) -> I64:
    """Return int64[H], the bytes of each host's windows: topology, and features as ``config`` has them."""
    total = np.zeros(hosts.num_parts, np.int64)
    for _, nbytes in memory_by_tensor(config, hosts):
        total += nbytes
    return total


def memory_by_tensor(config: PartConfig, hosts: RangeBook) -> list[tuple[str, I64]]:
    """Return int64[H], the bytes of each host's windows: first of the topology, then of each feature, with its name."""
    schema = config.schema
    src, dst = schema.all_ends.T
    nodes, edges = np.diff(np.array(hosts.node_offsets), axis=1), np.diff(hosts.edge_table, axis=1)
    few = np.zeros((len(edges), 1), np.int64)
    few[list(config.shared)] = 1  # at most: each edge has a row, listed twice, and a source of its own
    rows, sources = np.where(few, edges, nodes[dst]), np.where(few, edges, nodes[src])
    width = index_dtype(max(map(hosts.num_nodes, range(len(schema.ntypes))))).itemsize
    of_tables = (8 * (rows + 1), width * edges, 8 * sources, *(width * few * edges for _ in range(3)))
    topology = sum((_in_pages(nbytes.sum(axis=0)) for nbytes in of_tables), np.zeros(hosts.num_parts, np.int64))
    sizes = [("topology", topology)]
    for t, ntype in enumerate(schema.ntypes):
        sizes += _features(ntype, hosts.node_offsets[t], config.node_features[ntype])
    together = {(r, name) for name, relations in config.in_common for r in relations}
    for name, relations in config.in_common:
        edges = np.append(0, np.cumsum(np.diff(hosts.edge_table[list(relations)], axis=1).sum(axis=0)))
        info = config.edge_features[schema.relation_key(relations[0])][name]
        sizes += _features(f"{len(relations)} relations", edges, {name: info})
    for r in config.with_features:
        key = schema.relation_key(r)
        apart = {name: info for name, info in config.edge_features[key].items() if (r, name) not in together}
        sizes += _features(key, hosts.edge_offsets[r], apart)
    return sizes


def _features(owner: str, offsets: I64, features: Mapping[str, FeatureInfo]) -> Iterator[tuple[str, I64]]:
    for name, info in features.items():
        row_bytes = storage_dtype(info.stored).itemsize * math.prod(info.shape)
        yield f"{owner}/{name}", _in_pages(np.diff(offsets) * row_bytes)


def _in_pages(nbytes: I64) -> I64:
    """Round the bytes of a window on each host up to pages."""
    pages: I64 = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    return pages


# Copy to a node's own disk the shards that its hosts will read, and no others.
#
# Which those are follows from the division: host h of H reads the parts that its rows overlap. A shard gets its name
# when it is whole and verified, so staging that was interrupted goes on where it was.

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
        original = files.open(shard.part, shard.which).fingerprint()
    try:
        verify(target, config.graph_name, shard.part, config.content, original)
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
        original = files.open(shard.part, shard.which).fingerprint()
    with open(open_regular(shard.source), "rb") as source, NewFile(shard.target) as copy:
        shutil.copyfileobj(source, copy, _BLOCK)
        try:
            verify(copy.temporary, config.graph_name, shard.part, config.content, original)
        except ShardFormatError as error:
            raise ShardFormatError(f"{shard.source} is damaged, or was on its way here: {error}") from error
