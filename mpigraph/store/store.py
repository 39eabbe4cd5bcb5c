"""The graphs and tensors that a rank of a running job holds. The same on servers and trainers.

The methods that make or free something are collective and change the store of every rank in the same way, so that
numbers given out by counters agree. They are called through ``session/control.py``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import ClosedError, MPIGraphError, PartitionError
from mpigraph.log import get_logger
from mpigraph.mpi.agree import together
from mpigraph.mpi.messages import NotOpenHere
from mpigraph.mpi.world import World
from mpigraph.rows.row_cache import RowCache, slots_for
from mpigraph.rows.row_tensor import Policy, RowTensor
from mpigraph.rows.segments import tightest_limits
from mpigraph.rows.service import RowService
from mpigraph.rows.trial import choose_transport
from mpigraph.rows.window import RowWindow
from mpigraph.storage.contents import PartFiles, StoredRows, read_rows
from mpigraph.storage.format import storage_dtype
from mpigraph.storage.narrow import FeatDtype, narrowed
from mpigraph.storage.part_config import FeatureInfo, PartConfig
from mpigraph.store.derived import MaskCounts, VersionedTables, count_masks, is_mask
from mpigraph.store.host_ranges import cut_for_hosts, read_config
from mpigraph.store.topology import Topology
from mpigraph.trace import clock

_OF_FREE = 0.2  # of each node's free memory, for copies of other nodes' edges that were not asked for

Kind = TypeVar("Kind", bound=VersionedTables)


@dataclass(frozen=True, slots=True)
class LoadedGraph:
    """One loaded graph.

    Attributes:
        number: the same on every rank.
        topology: the relations.
        features: numbers of the tensors that came with it and were not freed, by policy and name.
    """

    number: int
    topology: Topology
    features: dict[tuple[Policy, str], int] = field(default_factory=dict)


class Store:
    """Graphs, tensors, and what is derived from them, of this rank; caches of loaders.

    Attributes:
        world: the ranks.
        seed: the job's default for every draw.
        rows: the transports of remote rows, and how windows are allocated.
        exchange: how sampling requests reach the owners of nodes.
        graphs: by name; :attr:`graph_of_number` the same by number.
        tensors: by number.
        caches: caches of rows by number.
    """

    __slots__ = (
        "_derived",
        "_mask_counts",
        "_newest_tensor",
        "_next",
        "caches",
        "exchange",
        "graph_of_number",
        "graphs",
        "rows",
        "seed",
        "tensors",
        "world",
    )

    @collective("world.comm")
    def __init__(self, world: World, seed: int, open_exchange: "Callable[[Store], Any]") -> None:
        """Start with nothing loaded; ``open_exchange`` makes :attr:`exchange`.

        Raises:
            InvalidArgumentError: a setting of windows, transports or sampling cannot be; on every rank. The world is
                closed.
            CollectiveError: no transport works; on every rank. The world is closed.
        """
        self.world = world
        self.seed = seed
        self.graphs: dict[str, LoadedGraph] = {}
        self.graph_of_number: dict[int, LoadedGraph] = {}
        self.tensors: dict[int, RowTensor] = {}
        self.caches: dict[int, RowCache] = {}
        self._derived: dict[tuple[Any, ...], Any] = {}
        self._mask_counts: dict[int, MaskCounts] = {}
        self._newest_tensor = 0
        self._next = 0
        try:
            self.rows = RowService(world)
            choose_transport(self.rows)
            self.exchange: Any = open_exchange(self)
        except MPIGraphError:  # on every rank
            world.close()
            raise

    def new_number(self) -> int:
        """Return a number that was not given out before, the same on every rank."""
        self._next += 1
        return self._next

    def graph(self, number: int) -> LoadedGraph:
        """Return a graph. Raises NotOpenHere if this rank has not opened it."""
        graph = self.graph_of_number.get(number)
        if graph is None:
            raise NotOpenHere(f"graph number {number} is not open on rank {self.world.rank}")
        return graph

    def tensor(self, number: int) -> RowTensor:
        """Return a tensor.

        Raises:
            ClosedError: the tensor was closed.
            NotOpenHere: this rank has not opened it.
        """
        tensor = self.tensors.get(number)
        if tensor is None:
            if number <= self._newest_tensor:  # numbers only grow
                raise ClosedError(f"tensor number {number} was closed")
            raise NotOpenHere(f"tensor number {number} is not open on rank {self.world.rank}")
        return tensor

    def derived(self, kind: type[Kind], *numbers: int) -> Kind:
        """Return the tables last derived from rows, or ``kind``'s stand-in if they were not derived.

        ``numbers`` are that of the tensor, and those of other things that the kind depends on.

        Raises:
            ClosedError: the tensor was closed.
            NotOpenHere: this rank has not opened the tensor, or not derived this, and there is no stand-in.
        """
        tensor = self.tensor(numbers[0])
        known: Any = self._derived.get((kind, *numbers))
        if known is None:
            known = kind.unprepared(self.graphs[tensor.graph].topology, tensor, *numbers[1:])
        return cast(Kind, known)

    def is_prepared(self, kind: type[Kind], *numbers: int) -> bool:
        """Return whether this was derived from rows; the same on every rank."""
        return (kind, *numbers) in self._derived

    @collective("world.comm")
    def prepare(self, kind: type[VersionedTables], keys: Iterable[Iterable[int]]) -> None:
        """Derive tables from rows, where that was not done or has failed; ``keys`` are numbers as of :meth:`derived`.

        Raises:
            GraphDataError, SharedMemoryError: see :meth:`.VersionedTables.prepare`; on every rank.
        """
        for numbers in sorted(map(tuple, keys)):
            key = (kind, *numbers)
            known = self._derived.get(key)
            if known is not None and known.sound:
                continue
            tensor = self.tensors[numbers[0]]
            tables = known or cast(Any, kind)(self.graphs[tensor.graph].topology, tensor, *numbers[1:])
            try:
                tables.prepare()
            except MPIGraphError:  # on every rank; tables of earlier rows stay
                if known is None:
                    tables.close()
                raise
            self._derived[key] = tables

    @collective("world.comm")
    def refresh(self) -> None:
        """Derive anew all tables of rows that were written since.

        Raises:
            GraphDataError, SharedMemoryError: see :meth:`.VersionedTables.prepare`; on every rank.
        """
        for tables in self._derived.values():
            if tables.stale:
                tables.prepare()
        self._count_masks()

    @collective("world.comm")
    def _count_masks(self) -> None:
        """Count the selected rows of masks that were written."""
        versions = {number: counts.version for number, counts in self._mask_counts.items()}
        masks = [
            tensor
            for number, tensor in self.tensors.items()
            if tensor.version and is_mask(tensor) and versions.get(number) != tensor.version
        ]
        counted = count_masks(self.world, masks)
        self._mask_counts.update({mask.number: of for mask, of in zip(masks, counted, strict=True)})

    def mask_counts(self, mask: RowTensor) -> MaskCounts | None:
        """Return the counts of a mask's rows as this rank knows them; None if they were not counted since a write."""
        counts = self._mask_counts.get(mask.number)
        return counts if counts is not None and counts.version == mask.version and not mask.written else None

    @collective("world.comm")
    def open_graph(self, name: str, part_config: str, feat_dtype: FeatDtype = None, topology: str = "") -> LoadedGraph:
        """Load a partitioned graph with its features; a second call gives the loaded one.

        Args:
            name: of the graph.
            part_config: its configuration.
            feat_dtype: the features to keep in 16 bits, besides those that are so in the files.
            topology: which nodes have its in-edges, as in :class:`.Config`, whose choice counts without one.

        Raises:
            PartitionError: the configuration is missing, damaged or of another graph, ranks find different ones, or
                another one with this name is open, or this one with features in other dtypes or another ``topology``;
                on every rank.
            ShardFormatError: a shard is missing, damaged or of another partitioning; on every rank.
            FieldNameError, InvalidArgumentError: ``feat_dtype`` does not fit these features; on every rank.
            GraphDataError: a feature does not fit 16 bits; on every rank.
            SharedMemoryError: a node cannot hold its part, or what is to be everywhere; on every rank.
        """
        config = read_config(self.world, part_config, f"opening graph {name!r}")
        with together(self.world.comm, f"opening graph {name!r}"):
            if config.graph_name != name:
                raise PartitionError(
                    f"{config.path} holds graph {config.graph_name!r}, not {name!r}: check graph_name and part_config"
                )
            known = self.graphs.get(name)
            if known is not None and known.topology.config.path.resolve() != config.path.resolve():
                raise PartitionError(f"graph {name!r} is open already, from {known.topology.config.path}")
            if known is not None and known.topology.config.checksum != config.checksum:
                raise PartitionError(f"{config.path}: graph {name!r} is open already, and was partitioned again since")
            nodes, edges = narrowed(config.node_features, config.edge_features, feat_dtype)
            kept = replace(config, node_features=nodes, edge_features=edges)
            if known is not None and feat_dtype is not None:
                self._check_kept(known, kept)
            if known is not None and topology in ("owners", "everywhere") and not self.world.all_local:
                there = "everywhere" if known.topology.everywhere else "owners"
                if there != topology:
                    raise PartitionError(f"graph {name!r} is open already, with topology {there!r} (not {topology!r})")
        if known is not None:
            return known
        files = PartFiles(config)
        hosts = cut_for_hosts(self.world, files)
        graph = LoadedGraph(self.new_number(), Topology(self.rows, files, hosts, kept))
        try:
            self._load_features(graph, files, kept)
            self._place(graph.topology, topology or self.world.config.topology)
        except MPIGraphError:  # on every rank
            self.free(graph.features.values())
            graph.topology.close()
            raise
        self.graphs[name] = self.graph_of_number[graph.number] = graph
        return graph

    @collective("world.comm")
    def _place(self, topology: Topology, where: str) -> None:
        """Copy a graph's in-edges to every node where that is asked for, or costs little memory.

        Raises SharedMemoryError if a node cannot hold them all; on every rank.
        """
        if where == "owners" or topology.everywhere:
            return
        begin, most = clock(), topology.bytes_elsewhere()
        copied = where == "everywhere" or bool((most <= _OF_FREE * tightest_limits(self.world)[:, 0]).all())
        if copied:
            topology.copy_to_nodes()
        if self.world.rank == 0:
            get_logger().info(
                "topology of graph %r: %.1f MB of other nodes' edges %s (%.2f s)",
                topology.name,
                int(most.max()) / 1e6,
                "are copied to each node" if copied else "are too many for copies on each node: they stay with owners",
                clock() - begin,
            )

    def _check_kept(self, graph: LoadedGraph, kept: PartConfig) -> None:
        """Check that the features of an open graph are kept as they would be now."""
        for policy, name, info in _features_of(kept):
            number = graph.features.get((policy, name))
            stored = info.stored if number is None else self.tensors[number].stored
            if stored != info.stored:
                raise PartitionError(
                    f"graph {kept.graph_name!r} is open already, with feature {name!r} as {stored} (asked for as "
                    f"{info.stored})"
                )

    @collective("world.comm")
    def _load_features(self, graph: LoadedGraph, files: PartFiles, kept: PartConfig) -> None:
        """Load the features; those that relations of few edges have in common lie in one window each."""
        alike: dict[tuple[Any, ...], list[Policy]] = {}  # by window
        in_common = {(Policy(False, r), of.name) for of in kept.shared_features for r in of.relations}
        for policy, name, info in _features_of(kept):
            graph.features[policy, name] = 0
            alike.setdefault((name, info, None if (policy, name) in in_common else policy), []).append(policy)
        for (name, info, _), policies in alike.items():
            tensors = self.create_tensors(graph.topology, name, policies, info.shape, info.dtype, info.narrow)
            graph.features.update({(tensor.policy, name): tensor.number for tensor in tensors})
            with together(self.world.comm, f"loading feature {name!r} of graph {kept.graph_name!r}"):
                if self.world.is_host:
                    host, window = self.world.host_index, tensors[0].window
                    _read_feature(files, name, info, policies, window.tables[:, host : host + 2], window.memory(host))
        self.rows.segments.sync()
        with self.world.watch("loading features"):
            self.world.comm.Barrier()
        self.rows.segments.sync()
        for number in graph.features.values():  # the hosts have written them, as every rank knows
            self.tensors[number].advance(None)
        self._count_masks()

    @collective("world.comm")
    def create_tensors(
        self,
        topology: Topology,
        name: str,
        policies: Sequence[Policy],
        row_shape: Iterable[int],
        dtype: str,
        narrow: str = "",
    ) -> list[RowTensor]:
        """Make tensors of zeros in one window over the hosts of a graph, stored in their dtype or a ``narrow`` one.

        Raises:
            SharedMemoryError: a node's shared memory cannot hold the rows; on every rank.
            CollectiveError: MPI has no communicators left; on every rank.
        """
        stored = narrow or dtype
        tables = np.array([policy.offsets(topology.hosts) for policy in policies])
        window = RowWindow(self.rows, tables, tuple(row_shape), storage_dtype(stored), f"tensor {name!r}")
        tensors = [
            RowTensor(window, table, self.new_number(), topology.name, name, policy, dtype, stored)
            for table, policy in enumerate(policies)
        ]
        self.tensors.update({tensor.number: tensor for tensor in tensors})
        self._newest_tensor = tensors[-1].number
        return tensors

    def advance(self, numbers: Iterable[int], last_writes: Mapping[int, int]) -> None:
        """Count up the versions of tensors that some rank wrote, known on every rank.

        ``last_writes``: by number, the last write that this rank has told the others of.
        """
        for number in numbers:
            if number in self.tensors:  # else it was freed before all ranks knew
                self.tensors[number].advance(last_writes.get(number))

    @collective("world.comm")
    def open_caches(self, groups: Iterable[tuple[list[int], int]], ahead: int) -> list[RowCache]:
        """Make a cache for the window of each of some tensors.

        Args:
            groups: numbers of tensors, and how many bytes the caches of these take on each node together; what fits,
                if it is below 0.
            ahead: the most minibatches that are known before they read.

        Returns:
            The caches in the order of the tensors.

        Raises:
            SharedMemoryError: a node's shared memory cannot hold them; on every rank.
            CollectiveError: MPI has no communicators left; on every rank.
        """
        caches: list[RowCache] = []
        try:
            for numbers, nbytes in groups:
                tensors = [self.tensors[number] for number in numbers]
                promised = sum(cache.nbytes for cache in self.caches.values())
                slots = slots_for(self.world, [tensor.window for tensor in tensors], nbytes, promised)
                for tensor, count in zip(tensors, slots, strict=True):
                    caches.append(RowCache(self.world, self.new_number(), tensor.window, count, ahead, tensor.name))
                    self.caches[caches[-1].number] = caches[-1]
        except MPIGraphError:  # on every rank
            self.free([cache.number for cache in caches])
            raise
        return caches

    @collective("world.comm")
    def free(self, numbers: Iterable[int]) -> None:
        """Free tensors and caches by number, in ascending order; unknown numbers were freed before."""
        kinds: tuple[dict[int, Any], ...] = (self.caches, self.tensors)
        going = sorted(numbers)
        self.free_derived(going)
        for number in going:
            self._mask_counts.pop(number, None)
            for kind in kinds:
                if number in kind:
                    kind.pop(number).close()
            for graph in self.graphs.values():  # opened again, it has no feature that was closed
                for key in [key for key, of in graph.features.items() if of == number]:
                    del graph.features[key]

    def windows_of(self, numbers: Iterable[int]) -> list[RowWindow]:
        """Return the windows that go when some tensors are freed."""
        going = set(self.tensors).intersection(numbers)
        windows = {self.tensors[number].window.number: self.tensors[number].window for number in sorted(going)}
        return [window for window in windows.values() if window.tensors <= going]

    @collective("world.comm")
    def free_derived(self, numbers: Iterable[int]) -> None:
        """Free the tables that were derived from tensors."""
        going = {*numbers}
        for key in [key for key in self._derived if key[1] in going]:
            self._derived.pop(key).close()

    @collective("world.comm")
    def close(self) -> None:
        """Free everything in an agreed order, the world last."""
        self.free([*self.caches, *self.tensors])
        for graph in self.graphs.values():
            graph.topology.close()
        self.world.close()


def _read_feature(
    files: PartFiles, name: str, info: FeatureInfo, policies: list[Policy], ranges: I64, out: Array
) -> None:
    """Fill ``out`` with the global rows ``ranges`` (int64[n, 2]) of a feature of some types, type after type."""
    config = files.config
    owners = [(config.node_features, config.schema.ntypes), (config.edge_features, config.schema.relation_keys)]
    features, names = owners[not policies[0].is_node]
    stored = features[names[policies[0].type_id]][name]  # as that of the other types
    rows = StoredRows.of_feature(config, policies[0].is_node, [policy.type_id for policy in policies], name)
    read_rows(files, rows, ranges, out, "" if info == stored else info.narrow)


def _features_of(config: PartConfig) -> Iterator[tuple[Policy, str, FeatureInfo]]:
    """Yield all features, in the order in which their tensors are made."""
    schema = config.schema
    for t, ntype in enumerate(schema.ntypes):
        for name, info in sorted(config.node_features[ntype].items()):
            yield Policy(True, t), name, info
    for r, key in enumerate(schema.relation_keys):
        for name, info in sorted(config.edge_features[key].items()):
            yield Policy(False, r), name, info
