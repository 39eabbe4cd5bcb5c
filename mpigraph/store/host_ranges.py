"""Cut the parts of a graph over the hosts of a job.

P parts serve H hosts whatever P and H are. The parts laid end to end are an axis of length P, and host h gets what
lies between h*P/H and (h+1)*P/H: whole parts where H divides P, an equal slice of a part where P divides H, and in
between both. A cut inside a part falls at the same fraction of every node type; the edges of a relation are cut where
their destinations are.
"""

from collections.abc import Callable

import numpy as np

from mpigraph.arrays import I64
from mpigraph.collective import collective
from mpigraph.errors import PartitionError, ShardFormatError
from mpigraph.metadata.book import RangeBook
from mpigraph.mpi.agree import everywhere, together
from mpigraph.mpi.world import World
from mpigraph.storage.contents import PartFiles
from mpigraph.storage.part_config import PartConfig
from mpigraph.store.staging import parts_of_hosts

__all__ = ["check_name", "check_same", "cut_for_hosts"]


def _cut_offsets(offsets: I64, num_hosts: int) -> I64:
    """int64[H + 1]: where each host begins on a row range that is divided into parts by ``offsets``."""
    part, rest = np.divmod(np.arange(num_hosts + 1) * (len(offsets) - 1), num_hosts)
    rows = np.append(np.diff(offsets), 0)
    cuts: I64 = offsets[part] + rows[part] * rest // num_hosts
    return cuts


@collective("world.comm")
def cut_for_hosts(world: World, files: PartFiles) -> RangeBook:
    """Return which host holds which nodes and edges: a book whose owners are the hosts.

    Raises:
        ShardFormatError: a shard that a host needs is missing, damaged, or does not hold what the configuration says;
            on every rank.
    """
    config, book = files.config, files.config.book
    num_hosts = len(world.hosts)
    nodes = tuple(_cut_offsets(offsets, num_hosts) for offsets in book.node_offsets)
    mine = np.zeros(len(book.edge_offsets), np.int64)
    with together(world.comm, f"opening graph {config.graph_name!r}"):
        if world.is_host:
            for part in parts_of_hosts([world.host_index], num_hosts, book.num_parts):
                files.check(part)
            for relation in range(len(mine)):
                mine[relation] = _edge_begin(files, relation, nodes, world.host_index)
    gathered = np.empty((world.size, len(mine)), np.int64)
    world.comm.Allgather(mine, gathered)
    begins = gathered[world.hosts].T
    for relation, host in np.argwhere(begins[:, 1:] < begins[:, :-1])[:1].tolist():
        path = config.part_path((host + 1) * book.num_parts // num_hosts, "part_graph")
        key = book.schema.relation_key(relation)
        raise everywhere(ShardFormatError(f"{path}: the edges of {key} contradict themselves: indptr must rise"))
    edges = tuple(np.append(begins[relation], book.num_edges(relation)) for relation in range(len(book.edge_offsets)))
    return RangeBook(book.schema, nodes, edges)


def _edge_begin(files: PartFiles, relation: int, nodes: tuple[I64, ...], host: int) -> int:
    """First edge of a host: read from ``indptr`` where the cut falls inside a part."""
    book = files.config.book
    dst = book.schema.ends(relation)[1]
    node = int(nodes[dst][host])
    part = (host * book.num_parts) // len(nodes[dst][:-1])
    begin = int(book.edge_offsets[relation][part])
    inside = node - int(book.node_offsets[dst][part])
    if inside == 0:
        return begin
    return begin + int(files.read_indptr(relation, part, inside, inside)[0])


def check_name(config: PartConfig, graph_name: str) -> None:
    """Check that a configuration is of the graph asked for.

    Raises:
        PartitionError: it is of another graph.
    """
    if config.graph_name != graph_name:
        raise PartitionError(
            f"{config.path} holds graph {config.graph_name!r}, not {graph_name!r}: check graph_name and part_config"
        )


@collective("ranks")
def check_same(gather: Callable[[bytes], list[bytes]], config: PartConfig) -> None:
    """Check that all ranks have read one and the same partitioning.

    Args:
        gather: gives every rank the bytes of every rank, in rank order.
        config: what this rank has read.

    Raises:
        PartitionError: they have not; on every rank.
    """
    mine = f"{config.checksum} {config.identity} {config.path}"
    found = gather(mine.encode(errors="backslashreplace"))  # a path may be no text
    if len(set(found)) == 1:
        return
    ranks: dict[str, list[int]] = {}
    for rank, text in enumerate(found):
        ranks.setdefault(text.decode().split(" ", 1)[0], []).append(rank)
    if len(ranks) > 1:
        texts = (found[members[0]].decode().split(" ", 2) for members in ranks.values())
        kinds = [
            f"partitioning {identity} at {path} on rank {', '.join(map(str, members))}"
            for (_, identity, path), members in zip(texts, ranks.values(), strict=True)
        ]
        raise everywhere(
            PartitionError(
                f"graph {config.graph_name!r}: nodes have different partitionings under one name: {'; '.join(kinds)}"
            )
        )
