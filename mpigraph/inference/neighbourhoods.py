"""Whole neighbourhoods of a layer as blocks, and the rows of their sources that the nodes of this machine read.

The host of a node and of its in-edges is local to the trainer that owns the node. So blocks are drawn from local
memory and need no round of all ranks, and trainers may have different numbers of them.

All sources of the in-edges of a node's destinations lie in the topology of its hosts. So before a layer each remote
source is given to one of the node's trainers, which fetches it into the cache that they share (``rows/row_cache.py``).
Then minibatches find there what they read, however they are divided; they fetch what the cache is too small for.

Where the memory allows, local rows are copied into the cache, too. All rows that a block reads are then rows of
one table, which sums over neighbours read in place (:class:`.TableRows`). Rows of a node whose only host holds all
of them are one table as they are.
"""

import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from threading import Lock

import numpy as np
import torch

from mpigraph.arrays import I32, I64, Array
from mpigraph.collective import collective
from mpigraph.distgraph.dtypes import to_storage
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.sampled_graph import hop_blocks
from mpigraph.distgraph.sampling_arguments import SamplingArguments
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.distgraph.typed_ids import Fanout, FeatureName
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.aggregate import TableRows
from mpigraph.graphs.block import Block
from mpigraph.kernels.compact import LocalIds
from mpigraph.kernels.row_ops import as_words, move_rows
from mpigraph.mpi.messages import exchange_rows
from mpigraph.rows.owners import RowOwners
from mpigraph.rows.row_cache import RowCache, cache_memory, free_for_caches
from mpigraph.rows.transport import nothing
from mpigraph.sampling.minibatch import RandomContext, sample_hops
from mpigraph.sampling.strategies import HopKeys
from mpigraph.session.control import Operation

_EDGES_AT_A_TIME = 1 << 24
_FETCHED_TOGETHER = 16 << 20  # bytes
_FREE_FRACTION = 0.5  # of a node's free memory, for caches without a given size
_DRAWS = 0x1AFE  # separates draws of inference from those of loaders with the same seed


class Neighbourhoods:
    """Makes blocks of one layer. One-sided: :meth:`block`.

    Attributes:
        fanouts: most neighbours of a node by relation id; relations with fanout 0 are left out.
        masks: number of the mask by relation id.
    """

    @collective("trainers")
    def __init__(self, g: DistGraph, fanout: Fanout, edge_mask: FeatureName | None) -> None:
        """Check the arguments, which are those of :func:`.layerwise`; errors are raised on every trainer."""
        self._g = g
        with g.session.world.together("inference: fanout and edge_mask"):
            self.masks = {} if edge_mask is None else g.edge_weights(edge_mask)
            self._plan = g.plan(SamplingArguments([fanout], prob=edge_mask), {})
            for number in self.masks.values():
                rows = g.session.store.tensors[number]
                if rows.dtype not in ("bool", "uint8"):
                    raise InvalidArgumentError(f"edge_mask {rows.name!r} must be bool or uint8 (got {rows.dtype})")
        self.fanouts = {r: strategy.fanout for r, strategy in self._plan.layers[0].items()}
        read = g.loaded.topology.out_degrees
        self._degrees = {
            r: _OutDegrees(g, number, partial(read, relation=number)) for number, r in enumerate(g.schema.relations)
        }

    @collective("trainers")
    def prepare(self) -> None:
        """Have the hosts prepare the mask, and count the out-edges that it leaves."""
        g = self._g
        if self.masks:
            numbers = sorted(set(self.masks.values()))
            g.session.control.call(Operation.PREPARE_WEIGHTS, doing="preparing edge_mask", numbers=numbers)
            for relation, number in sorted(self.masks.items()):
                left = _masked_out_degrees(g, relation, number)
                self._degrees[g.schema.relations[relation]] = _OutDegrees(g, relation, partial(_rows, left))

    def block(self, seeds: Mapping[int, I64], layer: int) -> tuple[Block, dict[str, I64]]:
        """Return the block of some destinations, with ``edata[EID]``; and the ids of its sources, destinations first.

        ``seeds`` are int64[n] by node type id, nodes that this node's hosts hold. Each layer has its own draws.
        """
        g = self._g
        plan = replace(self._plan, seeds=seeds)
        seed = g.session.store.seed
        keys = HopKeys.of(np.uint64(seed ^ _DRAWS), layer)
        with ExitStack() as kept, g.session.sampling() as service:
            g.keep_tensors(plan, kept)
            sampled = sample_hops(service, g.loaded, plan, RandomContext(seed, 0), keys=keys)
        src_ids = {ntype: sampled.ids[t] for t, ntype in enumerate(g.schema.ntypes)}
        (block,) = hop_blocks(sampled)
        block.graph_out_degrees = lambda r: torch.from_numpy(self._degrees[r].of(src_ids[r[0]]))
        return block, src_ids


def _rows(tensor: DistTensor, ids: I64) -> I64:
    return tensor.rows.gather(ids)


class _OutDegrees:
    """Out-degrees of the sources of one relation; those of remote nodes are fetched once, as no layer changes them.

    One-sided, from any thread.
    """

    def __init__(self, g: DistGraph, relation: int, read: Callable[[I64], I64]) -> None:
        """Begin without any; ``read`` maps int64[n] ids of sources, local or remote, to int64[n] degrees."""
        self._is_local = g.session.world.is_local
        self._offsets = g.loaded.topology.hosts.node_offsets[g.schema.ends(relation)[0]]
        self._read = read
        self._remote = LocalIds(int(self._offsets[-1]))
        self._degrees = np.empty(0, np.int64)  # the first ``_known`` entries are valid
        self._known = 0
        self._lock = Lock()

    def of(self, ids: I64) -> I64:
        """Return the degrees of ``ids`` (int64[n]), int64[n]."""
        is_remote = ~self._is_local[np.searchsorted(self._offsets, ids, "right") - 1]
        degrees = np.empty(len(ids), np.int64)
        degrees[~is_remote] = self._read(ids[~is_remote])
        with self._lock:
            places = self._remote.insert(ids[is_remote])
            count = self._remote.count
            if count > self._known:
                if count > len(self._degrees):
                    self._degrees = np.append(self._degrees, np.empty(count, np.int64))
                self._degrees[self._known : count] = self._read(self._remote.ids[self._known :])
                self._known = count
            degrees[is_remote] = self._degrees[places]
        return degrees


@collective("trainers")
def _masked_out_degrees(g: DistGraph, relation: int, mask: int) -> DistTensor:
    """Count the out-edges of each node that a mask, the number of a tensor, leaves: int64[num_src], over the hosts.

    Edges lie with their destinations: each trainer counts the in-edges of its nodes by source, and the owners of the
    sources add the counts up.
    """
    world, topology = g.session.world, g.loaded.topology
    src, dst = topology.config.schema.ends(relation)
    hosts, ntype = topology.hosts.node_offsets, topology.config.schema.ntypes[src]
    doing = "counting out-degrees under edge_mask"
    with world.together(doing):
        counts: I32 = np.zeros(g.num_nodes(ntype), np.int32)
        for owned in RowOwners(world, hosts[dst]).ranges():
            edges = topology.adjacency(relation, owned.host)
            kept = g.session.store.tensors[mask].segment(owned.host)
            own = edges.into(owned.rows.start, owned.rows.stop)
            for first in range(own.start, own.stop, _EDGES_AT_A_TIME):
                piece = slice(first, min(first + _EDGES_AT_A_TIME, own.stop))
                np.add.at(counts, edges.indices[piece][kept[piece] != 0], 1)
        owners = RowOwners(world, hosts[src])
        sources = np.flatnonzero(counts)
        order, going = owners.route(sources)
        counted = np.stack([sources, counts[sources]], 1)[order]
    policy = g.get_node_partition_policy(ntype)
    degrees = DistTensor.filled((len(counts),), torch.int64, None, "out-degrees under edge_mask", policy)
    with world.meeting(doing):
        came = exchange_rows(world.trainers, counted, going)[0]
    for owned in owners.ranges():
        here = came[(came[:, 0] >= owned.first) & (came[:, 0] < owned.last)]
        with degrees.rows.writing(owned.host) as rows:
            np.add.at(rows[owned.rows], here[:, 0] - owned.first, here[:, 1])
    g.barrier()
    return degrees


@collective("trainers")
def remote_sources(g: DistGraph) -> dict[int, I64]:
    """Return the remote sources that this trainer fetches for its node, by node type id: int64[n], ascending.

    One trainer of the node fetches each remote source of its in-edges.
    """
    world, topology = g.session.world, g.loaded.topology
    schema, hosts = topology.config.schema, topology.hosts
    mates = np.flatnonzero(world.nodes_of_trainers == world.node_index)
    shares = {}
    for ntype in range(len(schema.ntypes)):
        share = np.empty(0, np.int64)
        if not world.all_local:
            offsets = hosts.node_offsets[ntype]
            read = np.zeros(int(offsets[-1]), bool)
            for relation in range(len(schema.relations)):
                src, dst = schema.ends(relation)
                if src != ntype:
                    continue
                for owned in RowOwners(world, hosts.node_offsets[dst]).ranges():
                    edges = topology.adjacency(relation, owned.host)
                    own = edges.into(owned.rows.start, owned.rows.stop)
                    for first in range(own.start, own.stop, _EDGES_AT_A_TIME):
                        read[edges.indices[first : min(first + _EDGES_AT_A_TIME, own.stop)]] = True
            for host in np.flatnonzero(world.is_local).tolist():
                read[offsets[host] : offsets[host + 1]] = False
            share = np.flatnonzero(read)
            order = np.argsort(share % len(mates), kind="stable")
            counts = np.zeros(len(world.trainer_ranks), np.int64)
            counts[mates] = np.bincount(share % len(mates), minlength=len(mates))
            with world.meeting("sharing out remote rows"):
                share = np.unique(exchange_rows(world.trainers, share[order, None], counts)[0])
        shares[ntype] = share
    return shares


class HaloReader:
    """Reads rows of one tensor: from the node's cache, else local rows in place and others from where they are.

    One-sided: :meth:`fill`, :meth:`read`. ``fetched_rows`` counts the rows fetched from other nodes.
    """

    def __init__(self, g: DistGraph, tensor: DistTensor, cache: RowCache | None, share: I64, local_too: bool) -> None:
        """Begin with an empty cache, or without one where nothing is remote, or nothing fits.

        ``share`` are the remote rows that this trainer fetches into it, int64[n]; with ``local_too`` it has slots for
        the local rows, too.
        """
        self.tensor = tensor
        self._rows = tensor.rows
        self.fetched_rows = 0
        self._pool = g.session.pool
        self._cache = cache
        self._share = share
        self._local_too = local_too
        self._local = 0  # rows of local hosts that this trainer copied
        self._table: torch.Tensor | None = None
        self._lent: list[weakref.ref[TableRows]] = []
        if cache is not None and local_too and _in_place(tensor):
            self._table = torch.from_numpy(cache.table)
        elif cache is None and _is_one_table(tensor):
            self._table = torch.from_numpy(tensor.rows.memory(0))

    @property
    def holds_all(self) -> bool:
        """True once this trainer's part of all rows that its node reads is in the cache."""
        return self._local_too and self._cache is not None and self._cache.used == self._local + len(self._share)

    def fill(self) -> None:
        """Fetch this trainer's share; minibatches fetch for themselves what other trainers have not filled yet."""
        cache = self._cache
        if cache is None or not cache.refresh():
            return
        if self._local_too:
            self._copy_local(cache)
        self._fetch(cache, self._share[: cache.per_trainer - cache.used])

    def _copy_local(self, cache: RowCache) -> None:
        """Copy this trainer's part of the rows of each local host, in order."""
        window = self._rows.window
        world = window.world
        for host in np.flatnonzero(world.is_local).tolist():
            first, last = window.offsets[host : host + 2].tolist()
            begin, end = (
                (last - first) * k // world.num_local_trainers for k in (world.local_trainer, world.local_trainer + 1)
            )
            own = np.arange(begin, end)
            cache.fill(own + first, own, as_words(window.memory(host)))
            self._local += len(own)

    def _fetch(self, cache: RowCache, rows: I64) -> None:
        """Fetch rows into the cache, piece by piece."""
        window = self._rows.window
        step = max(1, _FETCHED_TOGETHER // max(window.row_bytes, 1))
        for begin in range(0, len(rows), step):
            piece = rows[begin : begin + step]
            cache.fill(piece, *window.fetch(piece, self._pool, nothing))
        self.fetched_rows += len(rows)

    def read(self, ids: I64) -> torch.Tensor:
        """Return the rows ``ids`` (int64[n]) in the tensor's dtype; rows of one table are not gathered yet."""
        rows = self._rows
        if self._cache is None:
            return self.tensor.gather(ids) if self._table is None else self._lend(self._table, ids)
        if self._table is not None:
            slots, _ = self._cache.find(ids)
            if (slots >= 0).all():  # no slot is evicted
                return self._lend(self._table, slots)
        out = torch.empty((len(ids), *rows.shape[1:]), dtype=self.tensor.dtype)
        stored = to_storage(out, str(self.tensor.dtype).removeprefix("torch."))
        if out.numel():
            with rows.staging_buffer(stored) as narrow:
                self._read(ids, as_words(narrow), self._cache)
        return out

    def _lend(self, table: torch.Tensor, rows: Array) -> TableRows:
        lent = TableRows(table, torch.from_numpy(rows))
        self._lent = [one for one in self._lent if one() is not None] + [weakref.ref(lent)]
        return lent

    def _read(self, ids: I64, words: I64, cache: RowCache) -> None:
        window = self._rows.window
        is_local = window.world.is_local[window.host_of(ids)]
        window.load(ids, np.flatnonzero(is_local), words)
        remote = np.flatnonzero(~is_local)
        if len(remote) == 0:
            return
        rows = ids[remote]
        slots, seen = cache.find(rows)
        cache.load(slots, seen, remote, words)
        missing = np.flatnonzero(slots < 0)
        if len(missing):
            places, fetched = window.fetch(rows[missing], self._pool, nothing)
            move_rows(fetched, places, 0, words.view(fetched.dtype), remote[missing])
            self.fetched_rows += len(missing)

    def close(self, g: DistGraph) -> None:
        """Close the cache, which the trainers' next collective call frees; rows still in use are copied."""
        for kept in (one() for one in self._lent):
            if kept is not None:
                kept.gathered()
        self._lent, self._table = [], None
        cache, self._cache = self._cache, None
        if cache is not None:
            g.session.control.drop(cache.number)


@collective("trainers")
def open_readers(
    g: DistGraph, tensors: dict[str, DistTensor], shares: dict[int, I64], size: int | None
) -> dict[str, HaloReader]:
    """Open readers of tensors by node type, with caches for all rows that this node reads, or for the remote ones.

    ``shares`` are the rows that this trainer fetches, by node type id; ``size`` is the most bytes of all caches on a
    node, by default as many as needed, up to a part of the free memory. Raises SharedMemoryError, on every rank, if a
    node's shared memory cannot hold them.
    """
    world = g.session.world
    caches: list[RowCache] = []
    share_of = {t: shares[g.schema.ntype_id(t)] for t in tensors}
    different = {x.rows.number: t for t, x in tensors.items()}
    remote = {t: world.allreduce_minmax(len(share_of[t]), True) for t in different.values()}
    all_rows = {t: n + _in_place(tensors[t]) * _local_of_a_trainer(tensors[t]) for t, n in remote.items()}
    trainers = int(np.bincount(world.nodes_of_trainers).max())
    if size is None:
        size = world.allreduce_minmax(int(free_for_caches(world) * _FREE_FRACTION), False)

    def memory(most: dict[str, int]) -> list[tuple[list[int], int]]:
        needed = {
            t: cache_memory(len(tensors[t]), n * trainers, tensors[t].rows.window.row_bytes) for t, n in most.items()
        }
        return [([tensors[t].rows.number], nbytes) for t, nbytes in needed.items() if most[t]]

    def size_of(groups: list[tuple[list[int], int]]) -> int:
        return sum(nbytes for _, nbytes in groups)

    groups = memory(all_rows)
    all_fit = size_of(groups) <= size
    if not all_fit:
        groups = memory(remote)
        needed = size_of(groups)
        if needed > size:
            groups = [(numbers, nbytes * size // needed) for numbers, nbytes in groups]
    if groups:
        caches = g.session.control.call(
            Operation.OPEN_CACHES, doing="making caches for inference", groups=groups, ahead=0, local_too=all_fit
        )
    cache_of = {numbers[0]: cache for (numbers, _), cache in zip(groups, caches, strict=True)}
    return {
        t: HaloReader(g, x, cache_of.get(x.rows.number), share_of[t], all_fit and _in_place(x))
        for t, x in tensors.items()
    }


def _in_place(tensor: DistTensor) -> bool:
    """Return whether sums over neighbours can read rows of this tensor in place, once they lie in one table."""
    return tensor.dtype == torch.float32 and tensor.rows.stored == "float32"


def _is_one_table(tensor: DistTensor) -> bool:
    """Return whether one host holds all rows of a tensor, in a form that is read in place."""
    window = tensor.rows.window
    return _in_place(tensor) and len(window.offsets) == 2


def _local_of_a_trainer(tensor: DistTensor) -> int:
    """Return the most rows that a trainer copies of its node's hosts; 0 where all rows are one table."""
    window = tensor.rows.window
    if _is_one_table(tensor):
        return 0
    world = window.world
    trainers = np.bincount(world.nodes_of_trainers, minlength=world.num_nodes)[world.nodes_of_hosts]
    of_hosts = -(-np.diff(window.offsets) // np.maximum(trainers, 1))
    return int(np.bincount(world.nodes_of_hosts, of_hosts).max())
