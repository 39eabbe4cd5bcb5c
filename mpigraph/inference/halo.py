"""The far rows that the nodes of this machine read in one layer: known before it begins, each fetched once.

All sources of the in-edges of a node's destinations lie in the topology of its hosts. So before a layer each far source
is given to one of the node's trainers, which fetches it into the cache that they share (``rows/row_cache.py``). Then
minibatches find there what they read, however they are cut; what the cache is too small for they fetch themselves.
"""

import numpy as np
import torch

from mpigraph.arrays import I64
from mpigraph.distgraph.dtypes import to_storage
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.kernels.row_ops import as_words, gather_rows
from mpigraph.mpi.alltoall import exchange_rows
from mpigraph.rows.lookahead import ReadCounts
from mpigraph.rows.owners import RowOwners
from mpigraph.rows.row_cache import RowCache, cache_memory, free_for_caches
from mpigraph.rows.transport import nothing
from mpigraph.sampling.protocol import Operation

__all__ = ["HaloReader", "far_sources", "open_readers"]

_FETCHED_TOGETHER = 16 << 20  # bytes
_EDGES_AT_A_TIME = 1 << 24
_AHEAD = 1  # minibatches: nothing is ever given up
_OF_FREE = 0.5  # of a node's free memory, for caches of a size that nobody gave


def far_sources(g: DistGraph) -> dict[int, I64]:
    """The far sources that this trainer fetches for its node, by node type id: int64[n], ascending.

    Each far source of an in-edge of the node's nodes is fetched by one of its trainers.

    Collective on the trainers.
    """
    world, topology = g.session.world, g.loaded.topology
    schema, hosts = topology.config.schema, topology.hosts
    mates = np.flatnonzero(world.nodes_of_trainers == world.node_index)
    found = {}
    for ntype in range(len(schema.ntypes)):
        none = np.empty(0, np.int64)
        mine = none
        if not world.all_near:
            offsets = hosts.node_offsets[ntype]
            read = np.zeros(int(offsets[-1]), bool)
            for relation in range(len(schema.relations)):
                src, dst = schema.ends(relation)
                if src != ntype:
                    continue
                for owned in RowOwners(world, hosts.node_offsets[dst]).ranges():
                    near = topology.adjacency(relation, owned.host)
                    begin, end = near.indptr[[owned.rows.start, owned.rows.stop]].tolist()
                    for first in range(begin, end, _EDGES_AT_A_TIME):
                        read[near.indices[first : min(first + _EDGES_AT_A_TIME, end)]] = True
            for host in np.flatnonzero(world.near).tolist():
                read[offsets[host] : offsets[host + 1]] = False
            mine = np.flatnonzero(read)
            order = np.argsort(mine % len(mates), kind="stable")
            counts = np.zeros(len(world.trainer_ranks), np.int64)
            counts[mates] = np.bincount(mine % len(mates), minlength=len(mates))
            with world.meeting("sharing out far rows"):
                mine = np.unique(exchange_rows(world.trainers, mine[order, None], counts)[0])
        found[ntype] = mine
    return found


class HaloReader:
    """Reads rows of one tensor: near ones where they lie, far ones that were fetched once, from the node's cache.

    One-sided: :meth:`fill`, :meth:`read`.

    Attributes:
        tensor: the tensor.
        counts: what was read of far rows.
    """

    def __init__(self, g: DistGraph, tensor: DistTensor, cache: RowCache | None, share: I64) -> None:
        """Begin with an empty cache, or with none where nothing is far; ``share`` is what this trainer fetches."""
        self.tensor = tensor
        self.counts = ReadCounts()
        self._pool = g.session.pool
        self._cache = cache
        self._share = share

    def fill(self) -> None:
        """Fetch this trainer's share. Minibatches that read before the others of the node have filled theirs fetch."""
        cache, window = self._cache, self.tensor.rows.window
        if cache is None or not cache.refresh():
            return
        share = self._share[: cache.per_trainer]
        step = max(1, _FETCHED_TOGETHER // max(window.row_bytes, 1))
        for begin in range(0, len(share), step):
            some = share[begin : begin + step]
            places, words = window.fetch(some, self._pool, nothing)
            cache.fill(some, places, words)
            self._count(len(some))

    def read(self, ids: I64) -> torch.Tensor:
        """The rows ``ids`` (int64[n]), as the tensor gives them."""
        rows = self.tensor.rows
        if self._cache is None:
            return self.tensor.gather(ids)
        found = torch.empty((len(ids), *rows.shape[1:]), dtype=self.tensor.dtype)
        if found.numel():
            with rows.arriving(to_storage(found, str(self.tensor.dtype).removeprefix("torch."))) as stored:
                self._read(ids, as_words(stored), self._cache)
        return found

    def _read(self, ids: I64, words: I64, cache: RowCache) -> None:
        window = self.tensor.rows.window
        is_far = ~window.world.near[window.host_of(ids)]
        far = np.flatnonzero(is_far)
        window.load(ids, np.flatnonzero(~is_far), words)
        if len(far) == 0:
            return
        self.counts.far_rows += len(far)
        rows = ids[far]
        slots, seen = cache.find(rows)
        slots[cache.load(rows, slots, seen, far, words)] = -1
        missing = np.flatnonzero(slots < 0)
        if len(missing):
            places, fetched = window.fetch(rows[missing], self._pool, nothing)
            gather_rows(fetched, places, far[missing], words.view(fetched.dtype))
            self._count(len(missing))

    def _count(self, fetched: int) -> None:
        self.counts.fetched_rows += fetched
        self.counts.fetched_bytes += fetched * self.tensor.rows.window.row_bytes

    def close(self, g: DistGraph) -> None:
        """Give the cache up; it is freed at the trainers' next collective call."""
        cache, self._cache = self._cache, None
        if cache is not None:
            g.session.control.drop(cache.number)


def open_readers(
    g: DistGraph, tensors: dict[str, DistTensor], shares: dict[int, I64], size: int | None
) -> dict[str, HaloReader]:
    """Readers of some tensors by node type, each with a cache for this node's far rows.

    Args:
        g: the graph.
        tensors: what is read.
        shares: what this trainer fetches, by node type id.
        size: most bytes that all caches take on a node; as many as are needed if None, but a part of what is free.

    Raises:
        SharedMemoryError: a node's shared memory cannot hold the caches; on every rank.

    Collective on the trainers.
    """
    world = g.session.world
    caches: dict[int, RowCache] = {}
    share_of = {t: shares[g.schema.ntype_id(t)] for t in tensors}
    most = {t: world.allreduce_minmax(len(share), True) for t, share in share_of.items()}
    groups, seen = list[tuple[list[int], int]](), set[int]()
    for ntype, tensor in tensors.items():
        if most[ntype] and tensor.rows.number not in seen:
            slots = most[ntype] * int(np.bincount(world.nodes_of_trainers).max())
            nbytes = cache_memory(len(tensor), slots, tensor.rows.window.row_bytes)
            groups.append(([tensor.rows.number], nbytes))
            seen.add(tensor.rows.number)
    if size is None:
        size = world.allreduce_minmax(int(free_for_caches(world) * _OF_FREE), False)
    needed = sum(nbytes for _, nbytes in groups)
    if needed > size:
        groups = [(numbers, nbytes * size // needed) for numbers, nbytes in groups]
    if groups:
        caches = g.session.control.call(
            Operation.OPEN_CACHES, doing="making caches for inference", groups=groups, ahead=_AHEAD
        )
    return {t: HaloReader(g, x, caches.get(x.rows.number), share_of[t]) for t, x in tensors.items()}
