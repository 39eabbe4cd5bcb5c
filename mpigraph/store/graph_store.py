"""The graphs and tensors that a rank of a running job holds. The same on servers and trainers.

The methods that make or free something are collective and change the state of every rank in the same way, so that
numbers given out by counters agree. They are called through ``session/control.py``.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from mpigraph.errors import MPIGraphError, PartitionError
from mpigraph.mpi.agree import allgather_bytes, together
from mpigraph.mpi.world import World
from mpigraph.rows.mask_counts import MaskCounts, count_masks, is_mask
from mpigraph.rows.row_tensor import Policy, RowTensor
from mpigraph.rows.selection import choose_transport
from mpigraph.rows.service import RowService
from mpigraph.storage.contents import PartFiles, read_rows
from mpigraph.storage.format import edge_feature_name, node_feature_name
from mpigraph.storage.narrow import FeatDtype, narrowed
from mpigraph.storage.part_config import FeatureInfo, PartConfig
from mpigraph.store.edge_times import EdgeTimes
from mpigraph.store.edge_weights import EdgeWeights
from mpigraph.store.host_ranges import check_name, check_same
from mpigraph.store.topology import Topology

__all__ = ["GraphStore", "LoadedGraph"]


@dataclass(frozen=True)
class LoadedGraph:
    """One loaded graph.

    Attributes:
        number: the same on every rank.
        topology: the relations.
        features: numbers of the tensors that came with it, by policy and name.
    """

    number: int
    topology: Topology
    features: dict[tuple[Policy, str], int] = field(default_factory=dict)


class GraphStore:
    """Loaded graphs and the tensors over them.

    Attributes:
        rows: the transports of far rows, and how windows are allocated.
        measured: bytes a second of each transport, where they were measured at start.
        weights: tensors of edge weights that were prepared for sampling, by number.
        times: times of edges that were prepared for sampling, by numbers of their own.
        counts: how many rows of a mask are selected, by number of the tensor.
        newest_times: the number of those that were prepared last.
        newest_tensor: the number of the tensor that was opened last. Numbers only grow: one below it that is not among
            the tensors was closed.

    Collective on ``world.comm``: construction, :meth:`close` and every method that makes or frees something.
    """

    def __init__(self, world: World, seed: int) -> None:
        """Start with nothing loaded. ``seed`` is the job's default for every draw.

        Raises:
            InvalidArgumentError: a setting of windows or transports cannot be; on every rank. The world is closed.
            CollectiveError: no transport works; on every rank. The world is closed.
        """
        self.world = world
        self.seed = seed
        try:
            self.rows = RowService(world)
            self.measured = choose_transport(self.rows)
        except MPIGraphError:  # on every rank
            world.close()
            raise
        self.graphs: dict[str, LoadedGraph] = {}
        self.graph_of_number: dict[int, LoadedGraph] = {}
        self.tensors: dict[int, RowTensor] = {}
        self.weights: dict[int, EdgeWeights] = {}
        self.counts: dict[int, MaskCounts] = {}
        self.newest_tensor = 0
        self.times: dict[int, EdgeTimes] = {}
        self.newest_times = 0
        self._next = 0

    def new_number(self) -> int:
        """Return a number that was not given out before, the same on every rank."""
        self._next += 1
        return self._next

    def open_graph(self, name: str, part_config: str, feat_dtype: FeatDtype = None) -> LoadedGraph:
        """Load a partitioned graph with its features; a second call gives the loaded one.

        Args:
            name: of the graph.
            part_config: its configuration.
            feat_dtype: which features are kept in 16 bits, besides those that are so in the files.

        Raises:
            PartitionError: the configuration is missing, damaged or of another graph, ranks find different ones, or
                another one with this name is open, or this one with features in other dtypes; on every rank.
            ShardFormatError: a shard is missing, damaged or of another partitioning; on every rank.
            FieldNameError, InvalidArgumentError: ``feat_dtype`` is not for these features; on every rank.
            GraphDataError: a feature does not fit its narrow dtype; on every rank.

        Collective on ``world.comm``.
        """
        with together(self.world.comm, f"opening graph {name!r}"):
            config = PartConfig.read(part_config)
            check_name(config, name)
            known = self.graphs.get(name)
            if known is not None and known.topology.config.path.resolve() != config.path.resolve():
                raise PartitionError(f"graph {name!r} is open already, from {known.topology.config.path}")
            if known is not None and known.topology.config.checksum != config.checksum:
                raise PartitionError(f"{config.path}: graph {name!r} is open already, and was partitioned again since")
            nodes, edges = narrowed(config.node_features, config.edge_features, feat_dtype)
            kept = replace(config, node_features=nodes, edge_features=edges)
            if known is not None and feat_dtype is not None:
                self._check_kept(known, kept)
        with self.world.watch("comparing partition configurations"):
            check_same(partial(allgather_bytes, self.world.comm), config)
        if known is not None:
            return known
        with PartFiles(config) as files:
            graph = LoadedGraph(self.new_number(), Topology(self.rows, files, kept))
            try:
                self._load_features(graph, files, kept)
            except MPIGraphError:  # on every rank
                self.free(graph.features.values())
                graph.topology.close()
                raise
        self.graphs[name] = self.graph_of_number[graph.number] = graph
        return graph

    def _check_kept(self, graph: LoadedGraph, kept: PartConfig) -> None:
        """Check that the features of an open graph are kept as they would be now."""
        for policy, name, info in _features(kept):
            stored = self.tensors[graph.features[policy, name]].stored
            if stored != info.stored:
                raise PartitionError(
                    f"graph {kept.graph_name!r} is open already, with feature {name!r} as {stored} (asked for as "
                    f"{info.stored})"
                )

    def _load_features(self, graph: LoadedGraph, files: PartFiles, kept: PartConfig) -> None:
        config = files.config
        schema = config.schema
        for (policy, name, info), (_, _, in_file) in zip(_features(kept), _features(config), strict=True):
            if policy.is_node:
                which, dataset = "node_feats", node_feature_name(schema.ntypes[policy.type_id], name)
            else:
                which, dataset = "edge_feats", edge_feature_name(schema.relation_key(policy.type_id), name)
            tensor = self.create_tensor(graph.topology, name, policy, info.shape, info.dtype, info.stored)
            graph.features[policy, name] = tensor.number
            offsets = policy.offsets(config.book)
            with together(self.world.comm, f"loading {dataset!r} of graph {config.graph_name!r}"):
                if self.world.is_host:
                    host = self.world.host_index
                    with tensor.writing(host) as rows:
                        narrow = "" if info == in_file else info.narrow
                        read_rows(files, which, dataset, offsets, int(tensor.window.offsets[host]), rows, narrow)
        for number in graph.features.values():
            self.tensors[number].window.sync()
        with self.world.watch("loading features"):
            self.world.comm.Barrier()
        for number in graph.features.values():
            tensor = self.tensors[number]
            tensor.advance(tensor.last_write)  # the hosts have written them, as every rank knows
        self._count_masks()

    def create_tensor(
        self, topology: Topology, name: str, policy: Policy, row_shape: Iterable[int], dtype: str, stored: str = ""
    ) -> RowTensor:
        """Allocate a tensor of zeros over the hosts of a graph, stored in its dtype or a narrower one.

        Collective on ``world.comm``.
        """
        tensor = RowTensor(
            self.rows,
            topology.hosts,
            number=self.new_number(),
            graph=topology.config.graph_name,
            name=name,
            policy=policy,
            row_shape=tuple(row_shape),
            dtype=dtype,
            stored=stored,
        )
        self.tensors[tensor.number] = tensor
        self.newest_tensor = tensor.number
        return tensor

    def advance(self, numbers: Iterable[int], mine: Mapping[int, int]) -> None:
        """Count up the versions of tensors that some rank wrote, known on every rank.

        ``mine``: by number, the last write of which this rank has told.
        """
        for number in numbers:
            if number in self.tensors:  # else it was freed before all ranks knew
                self.tensors[number].advance(mine.get(number))

    def refresh(self) -> None:
        """Make anew what was derived from rows of an earlier version.

        Raises:
            GraphDataError: see :meth:`prepare_weights`.

        Collective on ``world.comm``.
        """
        self.prepare_weights([number for number, weights in self.weights.items() if weights.stale])
        for times in self.times.values():
            if times.stale:
                times.prepare()
        self._count_masks()

    def _count_masks(self) -> None:
        """Count the selected rows of masks that were written. Collective on ``world.comm``."""
        masks = [
            tensor
            for number, tensor in sorted(self.tensors.items())
            if is_mask(tensor) and tensor.version and self._counts_of(tensor) is None
        ]
        for mask, counts in zip(masks, count_masks(self.world, masks), strict=True):
            self.counts[mask.number] = counts

    def _counts_of(self, tensor: RowTensor) -> MaskCounts | None:
        counts = self.counts.get(tensor.number)
        return counts if counts is not None and counts.version == tensor.version else None

    def counts_of(self, tensor: RowTensor) -> MaskCounts | None:
        """How many rows of a mask are selected; None if it is none, or was written since they were counted."""
        return None if tensor.written else self._counts_of(tensor)

    def prepare_weights(self, numbers: Iterable[int]) -> None:
        """Make the tables to draw from of edge weights, or make them anew.

        Raises:
            GraphDataError: a weight is negative, infinite or NaN; on every rank.

        Collective on ``world.comm``.
        """
        for number in sorted(numbers):
            known = self.weights.get(number)
            tensor = self.tensors[number]
            weights = known or EdgeWeights(self.graphs[tensor.graph].topology, tensor)
            try:
                weights.prepare()
            except MPIGraphError:  # on every rank; tables of earlier weights stay
                if known is None:
                    weights.close()
                raise
            self.weights[number] = weights

    def times_number(self, tensor: int, relation: int) -> int | None:
        """The number of a relation's edges sorted by a tensor of times; None if they were not prepared."""
        return next((n for n, t in self.times.items() if (t.tensor.number, t.relation) == (tensor, relation)), None)

    def prepare_times(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Sort the edges of relations by times, for each pair of a tensor's number and a relation id.

        Collective on ``world.comm``.
        """
        for number, relation in sorted(map(tuple, pairs)):
            if self.times_number(number, relation) is None:
                tensor = self.tensors[number]
                times = EdgeTimes(self.graphs[tensor.graph].topology, tensor, relation)
                self.newest_times = self.new_number()
                self.times[self.newest_times] = times

    def free(self, numbers: Iterable[int]) -> None:
        """Free tensors by number, in ascending order; unknown numbers were freed before.

        Collective on ``world.comm``.
        """
        for number in sorted(numbers):
            self.counts.pop(number, None)
            for own in [own for own, times in self.times.items() if times.tensor.number == number]:
                self.times.pop(own).close()
            owners: tuple[dict[int, Any], ...] = (self.weights, self.tensors)
            for owner in owners:
                thing = owner.pop(number, None)
                if thing is not None:
                    thing.close()

    def close(self) -> None:
        """Free everything in an agreed order, the world last. Collective on ``world.comm``."""
        self.free(list(self.tensors))
        for graph in self.graphs.values():
            graph.topology.close()
        self.world.close()


def _features(config: PartConfig) -> Iterator[tuple[Policy, str, FeatureInfo]]:
    """Yield all features, in the order in which their tensors are made."""
    schema = config.schema
    for t, ntype in enumerate(schema.ntypes):
        for name, info in sorted(config.node_features[ntype].items()):
            yield Policy(True, t), name, info
    for r in range(len(schema.relations)):
        for name, info in sorted(config.edge_features[schema.relation_key(r)].items()):
            yield Policy(False, r), name, info
