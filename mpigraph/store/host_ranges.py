"""Divide the parts of a graph among the hosts of a job, and the memory that this takes.

P parts serve H hosts whatever P and H are. The parts laid end to end are an axis of length P, and host h gets what
lies between h*P/H and (h+1)*P/H: whole parts where H divides P, an equal slice of a part where P divides H, and in
between both. A boundary inside a part falls at the same fraction of every node type; the edges of a relation are
divided where their destinations are.
"""

import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mpigraph.arrays import I64
from mpigraph.collective import collective
from mpigraph.errors import PartitionError, ShardFormatError
from mpigraph.metadata.book import RangeBook
from mpigraph.storage.contents import PartFiles
from mpigraph.storage.format import index_dtype, storage_dtype
from mpigraph.storage.part_config import FeatureInfo, PartConfig, text_of

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
    from mpigraph.mpi.agree import same, share_bytes, together

    text = b""
    with together(world.comm, doing):
        if world.node.rank == 0:
            text = text_of(part_config)
    text = share_bytes(world.node, text)
    with together(world.comm, doing):
        config = PartConfig.read(part_config, text)
    same(world.comm, f"{part_config}: nodes have different graphs there", {"checksum": config.checksum}, PartitionError)
    return config


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
    for name, relations in config.shared_features:
        edges = np.append(0, np.cumsum(np.diff(hosts.edge_table[list(relations)], axis=1).sum(axis=0)))
        info = config.edge_features[schema.relation_key(relations[0])][name]
        sizes += _features(f"{len(relations)} relations", edges, {name: info})
    for r, key in enumerate(schema.relation_keys):
        sizes += _features(key, hosts.edge_offsets[r], config.own_features(r))
    return sizes


def _features(owner: str, offsets: I64, features: Mapping[str, FeatureInfo]) -> Iterator[tuple[str, I64]]:
    for name, info in features.items():
        row_bytes = storage_dtype(info.stored).itemsize * math.prod(info.shape)
        yield f"{owner}/{name}", _in_pages(np.diff(offsets) * row_bytes)


def _in_pages(nbytes: I64) -> I64:
    """Round the bytes of a window on each host up to pages."""
    pages: I64 = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    return pages


def parts_of_hosts(hosts: Sequence[int], num_hosts: int, num_parts: int) -> list[int]:
    """Return the parts that some hosts read, ascending."""
    return sorted(
        {
            part
            for host in hosts
            for part in range(host * num_parts // num_hosts, -(-(host + 1) * num_parts // num_hosts))
        }
    )
