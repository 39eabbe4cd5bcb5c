"""Sampling neighbours on a distributed graph: one hop as an in-memory graph, or all hops of a minibatch.

All relations of a hop travel in the same messages. It also looks up edges, at the owners of their destinations.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from mpigraph.arrays import I64
from mpigraph.collective import WHEN_REMOTE, collective
from mpigraph.distgraph.features import Features, Spaces
from mpigraph.distgraph.sampling_arguments import Layers, SamplingArguments, Times
from mpigraph.distgraph.typed_ids import (
    Blocks,
    EdgeIds,
    Fanout,
    FeatureName,
    NodeIds,
    by_ntype,
    by_relation,
    unwrap_nodes,
)
from mpigraph.errors import ClosedError, EdgeTypeError, InvalidArgumentError
from mpigraph.graphs.block import Block, Blocks as BlockList
from mpigraph.graphs.fields import EID, SEED_TIME, TREE, EdgeType
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.metadata.book import check_ids
from mpigraph.metadata.schema import Relation, Schema, TypeNames
from mpigraph.sampling.minibatch import (
    Layer,
    RandomContext,
    Repeated,
    SampledHops,
    SamplingPlan,
    Subgraph,
    Trees,
    hop_requests,
    minibatch_key,
    sample_hops,
)
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.sampling.protocol import EdgeQuery
from mpigraph.sampling.strategies import HopKeys
from mpigraph.session.context import Session
from mpigraph.session.control import Operation
from mpigraph.store.derived import EdgeTimes
from mpigraph.store.store import LoadedGraph

_NONE = np.empty(0, np.int64)
_NO_WEIGHTS: dict[int, int] = {}
_LAYERS_KEPT = 8  # of samplers' arguments


class SampledGraph(TypeNames):
    """The side of a :class:`DistGraph` that samples.

    All methods that sample raise errors on the caller alone. Where MPI allows several threads, they are one-sided and
    need no other trainer. Else they are collective when hosts are remote: the trainers' main threads ask in step.

    Attributes:
        session: the job that the graph belongs to.
        loaded: this rank's part of the graph.
        schema: node types and relations.
    """

    def __init__(self, session: Session, loaded: LoadedGraph, features: Features) -> None:
        self.session = session
        self.loaded = loaded
        self.schema: Schema = loaded.topology.hosts.schema
        self._features = features
        self._weights: dict[str, tuple[int, dict[int, int]]] = {}  # by name, with the changes of features until then
        self._layers: dict[SamplingArguments, tuple[object, object, Sequence[Layer]]] = {}  # with weights and times

    @property
    def service(self) -> NeighborService:
        """The sampling service of the calling thread."""
        return self.session.service

    @property
    def nodes(self) -> Spaces[str]:
        """``g.nodes[ntype].data[name]``."""
        return Spaces(self.schema, self._features, is_node=True)

    @property
    def edges(self) -> Spaces[Relation]:
        """``g.edges[etype].data[name]``."""
        return Spaces(self.schema, self._features, is_node=False)

    @collective("trainers", WHEN_REMOTE)
    def sample_neighbors(
        self,
        seed_nodes: NodeIds,
        fanout: Fanout,
        edge_dir: str = "in",
        prob: FeatureName | None = None,
        exclude_edges: EdgeIds | None = None,
        replace: bool = False,
        etype_sorted: bool = True,
        output_device: torch.device | str | None = None,
        *,
        use_graphbolt: bool = False,
        seed: int | None = None,
    ) -> HeteroGraph:
        """Sample in-neighbours of nodes.

        Args:
            seed_nodes: int[n], node ids; or node type -> int[n], which graphs with several node types need. A node
                that is given several times draws anew each time.
            fanout: most neighbours of a node in each relation; -1 means all. Or edge type -> most neighbours, with
                every edge type.
            edge_dir: only "in": parts hold the in-edges of their nodes, see ``--add-reverse``.
            prob: name of an edge feature with a weight for each edge, or a mask. Drawn with probability proportional to
                the weight; an edge of weight 0 is never drawn. It counts for the relations that have the feature, the
                others are drawn uniformly; or edge type -> name.
            exclude_edges: int[k], ids of excluded edges, or a dict of them by edge type, removed before sampling: a
                node with d in-edges, m of them excluded, is one with d - m. They may repeat, and end anywhere.
            replace: draw with replacement: exactly ``fanout`` neighbours of a node that has any.
            etype_sorted: accepted for DGL's scripts.
            output_device: where to put the graph; the CPU by default.
            use_graphbolt: accepted for DGL's scripts.
            seed: makes the draw a function of the arguments alone. By default two calls differ, also in a loader's
                minibatches, and the same program repeats the same draws on any number of ranks.

        Returns:
            A graph with all nodes and relations of this one and the sampled edges, ordered by their destination's place
            in ``seed_nodes``; ``edges[etype].data[EID]`` are their ids here.

        Raises:
            OutOfRangeError: a node or an excluded edge does not exist.
            FieldNameError: there is no edge feature ``prob``.
            NodeTypeError: a node type does not exist, or there are several and ``seed_nodes`` are not by type.
            EdgeTypeError: a fanout, a weight or excluded edges of a type that does not exist, or a fanout is missing.
            InvalidArgumentError: fanout below -1, another ``edge_dir``, or ids that are not integers.
        """
        arguments = SamplingArguments([fanout], edge_dir, prob, replace, seed=seed)
        frontier = self.sample_hop(seed_nodes, arguments, exclude_edges)
        return frontier if output_device is None else frontier.to(output_device)

    @collective("trainers", WHEN_REMOTE)
    def sample_hop(
        self, seed_nodes: NodeIds, arguments: SamplingArguments, exclude_edges: EdgeIds | None = None
    ) -> HeteroGraph:
        """Do the work of :meth:`sample_neighbors` by the arguments of one layer."""
        relations = self.schema.relations
        edges, eids = dict.fromkeys(relations, (_NONE, _NONE)), dict.fromkeys(relations, _NONE)
        with self._drawing(arguments, seed_nodes, exclude_edges) as (service, plan, context):
            keys = HopKeys.of(minibatch_key(context, plan.seeds), 0, context.every, context.step)
            requests = hop_requests(plan, 0, self.loaded, plan.seeds, keys, Repeated.of(plan.seeds))
            for number, neighbors in service.sample(requests).items():
                relation = relations[number]
                dst = np.repeat(plan.seeds[self.schema.ends(number)[1]], np.diff(neighbors.offsets))
                edges[relation] = neighbors.src.astype(np.int64), dst
                eids[relation] = neighbors.eids
        columns = {r: (torch.from_numpy(src), torch.from_numpy(dst)) for r, (src, dst) in edges.items()}
        hosts = self.loaded.topology.hosts
        counts = {ntype: hosts.num_nodes(t) for t, ntype in enumerate(self.schema.ntypes)}
        frontier = HeteroGraph(self.schema, columns, counts)
        for relation, ids in eids.items():
            frontier.edges[relation].data[EID] = torch.from_numpy(ids)
        return frontier

    @collective("trainers", WHEN_REMOTE)
    def sample_blocks(
        self,
        seed_nodes: NodeIds,
        fanouts: Layers,
        *,
        exclude_edges: EdgeIds | None = None,
        seed_times: NodeIds | None = None,
        **options: Any,
    ) -> Blocks:
        """Sample the blocks of one minibatch, all hops fused.

        Errors are those of :meth:`sample_neighbors`, and here, too, raised on every trainer when hosts are remote.

        Args:
            seed_nodes: int[n], node ids; or node type -> int[n], which graphs with several node types need.
            fanouts: the fanout of each layer, outermost hop first; or the arguments of a sampler.
            exclude_edges: as in :meth:`sample_neighbors`; removed in every layer.
            seed_times: the times of the seeds, in the form of ``seed_nodes``; by default their own, where nodes have
                times. Only with a ``time_filter``.
            options: the other arguments of :class:`.SamplingArguments`.

        Returns:
            Input nodes and output nodes, int64 each, and the blocks, outermost hop first. Where the graph has several
            node types they are by type: input nodes of every type, output nodes of those of the seeds. Where trees are
            disjoint the blocks have ``srcdata[TREE]`` and ``dstdata[TREE]``, int64, the number of the tree, and with
            times ``srcdata["seed_time"]`` and ``dstdata["seed_time"]``.

        The first use of a time that :meth:`prepare_times` was not told is always collective.
        """
        arguments = SamplingArguments.of(fanouts, options)
        with self._drawing(arguments, seed_nodes, exclude_edges, seed_times) as (service, plan, context):
            sampled = sample_hops(service, self.loaded, plan, context)
        input_nodes = dict(enumerate(sampled.ids)) if sampled.hops else sampled.seeds
        inputs, outputs = (unwrap_nodes(self.schema, ids, every_type=False) for ids in (input_nodes, sampled.seeds))
        return inputs, outputs, hop_blocks(sampled)

    @collective("trainers", WHEN_REMOTE)
    def sample_subgraph(
        self,
        seed_nodes: NodeIds,
        fanouts: Layers,
        *,
        exclude_edges: EdgeIds | None = None,
        seed_times: NodeIds | None = None,
        **options: Any,
    ) -> Subgraph:
        """Sample the subgraph of one minibatch as PyG does: one for all layers, in which a node is expanded once.

        Arguments and errors are those of :meth:`sample_blocks`. The outermost hop comes first there and here, so
        the last fanout is that of the seeds.

        Returns:
            Nodes by node type id and edges by relation id.

        The first use of a time that :meth:`prepare_times` was not told is always collective.
        """
        arguments = SamplingArguments.of(fanouts, options)
        with self._drawing(arguments, seed_nodes, exclude_edges, seed_times) as (service, plan, context):
            return sample_hops(service, self.loaded, plan, context, expand_once=True).subgraph()

    @collective("trainers", WHEN_REMOTE)
    def has_edges_between(
        self, u: EdgeIds, v: EdgeIds, etype: EdgeType = None
    ) -> torch.Tensor | dict[Relation, torch.Tensor]:
        """Look up edges from ``u[i]`` to ``v[i]``, in one round for any number of edges and relations.

        Args:
            u: int[n], sources; or edge type -> int[n], to ask about several relations at once.
            v: int[n], destinations; or a dict with the same edge types as ``u``, in any order and spelling.
            etype: the edge type; None if there is one, or with dicts.

        Returns:
            bool[n], or relation -> bool[n]: true where there is at least one such edge.

        Raises:
            OutOfRangeError: a node does not exist.
            EdgeTypeError: the edge type does not exist or is ambiguous, or ``v`` has not the edge types of ``u``.
            InvalidArgumentError: ids that are not integers, ``u`` and ``v`` of different lengths, two edge types that
                are the same relation, or ``etype`` together with dicts.
        """
        queries = self._edge_queries(u, v, etype)
        with self.session.sampling() as service:
            answers = [torch.from_numpy(exist) for exist in service.has_edges(queries)]
        if not isinstance(u, Mapping):
            return answers[0]
        return {self.schema.relations[query.relation]: exist for query, exist in zip(queries, answers, strict=True)}

    def edge_weights(self, prob: FeatureName) -> dict[int, int]:
        """Return the number of the tensor of edge weights ``prob``, by relation id.

        Raises:
            EdgeTypeError, FieldNameError: an edge type, or such a feature, does not exist.
            InvalidArgumentError: it is not one number or mask for each edge.
        """
        changes, known = self._weights.get(prob, (-1, {})) if isinstance(prob, str) else (-1, {})
        if changes == self._features.changes and self.session.store.tensors.keys() >= {*known.values()}:
            return known
        changes = self._features.changes
        weights = {}
        for (relation, name), tensor in self.edges.named(prob).items():
            if len(tensor.shape) != 1 or tensor.rows.stored not in ("bool", "uint8", "float32", "float64"):
                raise InvalidArgumentError(
                    f"edge weights {name!r} must be one bool, uint8, float32 or float64 for each edge "
                    f"(got {tensor.storage_dtype}, shape {tensor.shape})"
                )
            weights[self.schema.relation_id(relation)] = tensor.rows.number
        if isinstance(prob, str):
            self._weights[prob] = changes, weights
        return weights

    def times(self, name: str) -> Times:
        """Return the times that nodes, or edges, have under a name; raises as :meth:`.Times.find`."""
        return Times.find(self.schema, self.nodes, self.edges, name)

    @collective("trainers")
    def prepare_times(self, name: str) -> None:
        """Have the hosts sort their edges by time, so that :meth:`sample_blocks` can be told to filter by it.

        The hosts sort once, and again in the next collective call after times were written.

        Raises:
            FieldNameError, InvalidArgumentError: as :meth:`times`.
        """
        pairs = [[tensor.rows.number, r] for r, tensor in self.times(name).by_relation(self.schema).items()]
        self.session.control.call(Operation.PREPARE_TIMES, doing=f"sorting edges by {name!r}", pairs=pairs)

    @collective("trainers", "at the first use of a time, else local")
    def times_by_relation(self, times: Times) -> dict[int, int]:
        """Return the numbers of the tensors that filter edges by time, by relation id, for relations with times."""
        numbers = {r: tensor.rows.number for r, tensor in times.by_relation(self.schema).items()}
        if not all(self.session.store.is_prepared(EdgeTimes, number, r) for r, number in numbers.items()):
            self.prepare_times(times.name)
        return numbers

    @contextmanager
    @collective("trainers", "at the first use of a time, else local")
    def _drawing(
        self,
        arguments: SamplingArguments,
        nodes: NodeIds,
        exclude_edges: EdgeIds | None = None,
        seed_times: NodeIds | None = None,
    ) -> Iterator[tuple[NeighborService, SamplingPlan, RandomContext]]:
        """Give the service to draw a minibatch with, its plan, and what its draws depend on.

        The tensors to draw by are kept until the end of the ``with`` block,
        also at other hosts, which answer before.
        """
        with ExitStack() as kept:
            while True:
                changes = self._features.changes
                plan = self.plan(arguments, nodes, exclude_edges, seed_times)
                try:
                    self.keep_tensors(plan, kept)
                    break
                except ClosedError:
                    if self._features.changes == changes:
                        raise  # else others have their names by now
            context = self.session.next_context(arguments.seed)
            with self.session.sampling(arguments.num_threads) as service:
                yield service, plan, context

    def keep_tensors(self, plan: SamplingPlan, kept: ExitStack) -> None:
        """Keep the tensors that a plan draws by until ``kept`` ends. Raises ClosedError if one was closed."""
        for number in set[int]().union(*(layer.tensors for layer in plan.layers)):
            kept.enter_context(self.session.store.tensor(number).drawing)

    @collective("trainers", "at the first use of a time, else local")
    def plan(
        self,
        arguments: SamplingArguments,
        nodes: NodeIds,
        exclude_edges: EdgeIds | None = None,
        seed_times: NodeIds | None = None,
    ) -> SamplingPlan:
        """Check the arguments of sampling and those of one minibatch, and replace names by numbers.

        The arguments of the minibatch, and the errors, here alone, are those of :meth:`sample_blocks`.
        """
        time_filter = arguments.time_filter
        if seed_times is not None and time_filter is None:
            raise InvalidArgumentError("the times of seeds are given, but the sampler has no time_attr")
        known = None if time_filter is None else self.times(time_filter.attr)
        sorted_edges = {} if known is None else self.times_by_relation(known)
        arguments.check_numbers()
        if arguments.edge_dir != "in":
            raise InvalidArgumentError(
                f"edge_dir must be 'in' (got {arguments.edge_dir!r}): parts hold in-edges. For out-edges partition "
                "with --add-reverse, and sample through the reverse edges"
            )
        weights = self.edge_weights(arguments.prob) if arguments.prob else _NO_WEIGHTS
        layers = self._layers_of(arguments, weights, sorted_edges)
        seeds = by_ntype(self.schema, nodes)
        for ntype, ids in seeds.items():
            self.check_nodes(ids, ntype)
        times = None if known is None else known.of_seeds(self.schema, seeds, seed_times)
        disjoint = arguments.disjoint or times is not None
        return SamplingPlan(layers, seeds, arguments.return_eids, self.excluded(exclude_edges), disjoint, times)

    def _layers_of(
        self, arguments: SamplingArguments, weights: dict[int, int], times: dict[int, int]
    ) -> Sequence[Layer]:
        """Return the layers of arguments; those of the same numbers, weights and times are kept for the next minibatch.

        ``weights`` and ``times`` are numbers of tensors by relation id.
        """
        prob = arguments.prob
        by_type = any(isinstance(fanout, Mapping) for fanout in arguments.fanouts)
        kept = isinstance(prob, str | None) and not by_type  # a dict may be changed
        before = self._layers.get(arguments, (None, None, ())) if kept else (None, None, ())
        if before[0] is weights and before[1] == times:
            return before[2]
        tensors = {r: self.session.store.tensors[number] for r, number in weights.items()}
        layers = arguments.layers(self.schema, tensors, times)
        if kept:
            while len(self._layers) >= _LAYERS_KEPT:
                self._layers.pop(next(iter(self._layers)), None)
            self._layers[arguments] = weights, times, layers
        return layers

    def excluded(self, edges: EdgeIds | None) -> dict[int, I64]:
        """Return the ids of excluded edges by relation id, ascending, each once."""
        if edges is None:
            return {}
        by_id = {}
        for relation, tensor in by_relation(self.schema, edges, "exclude_edges").items():
            number = self.schema.relation_id(relation)
            ids = tensor.numpy()
            count = self.loaded.topology.hosts.num_edges(number)
            check_ids(ids, count, f"exclude_edges: edge id of relation {relation}")
            ascending = bool((ids[1:] > ids[:-1]).all())  # edges that every minibatch excludes are sorted already
            by_id[number] = ids if ascending else np.unique(ids)
        return by_id

    def check_nodes(self, ids: I64, ntype: int) -> None:
        """Raise OutOfRangeError unless all nodes of a type exist."""
        count = self.loaded.topology.hosts.num_nodes(ntype)
        check_ids(ids, count, f"node id of type {self.schema.ntypes[ntype]!r}")

    def _edge_queries(self, u: EdgeIds, v: EdgeIds, etype: EdgeType) -> list[EdgeQuery]:
        if etype is not None and (isinstance(u, Mapping) or isinstance(v, Mapping)):
            raise InvalidArgumentError(f"give etype or dicts by edge type, not both (got etype={etype!r})")
        src, dst = self._ends(u, etype, "source ids"), self._ends(v, etype, "destination ids")
        if src.keys() != dst.keys():
            raise EdgeTypeError(f"sources are of edge types {list(src)}, destinations of {list(dst)}")
        queries = []
        for name, sources in src.items():
            relation = self.schema.relation_id(name)
            ends = (sources.numpy(), dst[name].numpy())
            if len(ends[0]) != len(ends[1]):
                raise InvalidArgumentError(
                    f"an edge has two ends (got {len(ends[0])} sources and {len(ends[1])} destinations of {name})"
                )
            for ids, ntype in zip(ends, self.schema.ends(relation), strict=True):
                self.check_nodes(ids, ntype)
            queries.append(EdgeQuery(self.loaded.number, relation, ends[1], ends[0]))
        return queries

    def _ends(self, ids: EdgeIds, etype: EdgeType, what: str) -> dict[Relation, torch.Tensor]:
        """Return one end of each edge by relation; ``etype`` is that of ids without types."""
        if not isinstance(ids, Mapping):
            ids = {self.schema.to_canonical(etype): ids}
        return by_relation(self.schema, ids, what)


@collective("trainers", WHEN_REMOTE)
def sample_neighbors(
    g: SampledGraph,
    nodes: NodeIds,
    fanout: Fanout,
    edge_dir: str = "in",
    prob: FeatureName | None = None,
    exclude_edges: EdgeIds | None = None,
    replace: bool = False,
    etype_sorted: bool = True,
    output_device: torch.device | str | None = None,
    *,
    use_graphbolt: bool = False,
    seed: int | None = None,
) -> HeteroGraph:
    """The same as :meth:`SampledGraph.sample_neighbors` of ``g``, a :class:`DistGraph`."""
    return g.sample_neighbors(
        nodes, fanout, edge_dir, prob, exclude_edges, replace, etype_sorted, output_device, seed=seed
    )


sample_etype_neighbors = sample_neighbors
"""DGL's name for sampling with a fanout for each relation, which is what :func:`sample_neighbors` does."""


@collective("trainers", WHEN_REMOTE)
def in_subgraph(g: SampledGraph, nodes: NodeIds) -> HeteroGraph:
    """Return all in-edges of nodes, as :func:`sample_neighbors` returns them."""
    return g.sample_neighbors(nodes, -1)


def hop_blocks(sampled: SampledHops) -> BlockList:
    """Message-flow graphs of the hops, outermost hop first."""
    schema = sampled.schema
    blocks = BlockList()
    of_trees = {} if sampled.trees is None else _columns(sampled.trees, schema)
    for hop in reversed(sampled.hops):
        edges = {
            schema.relations[r]: (csc.indptr, csc.indices, csc.eids if sampled.want_eids else None)
            for r, csc in hop.edges.items()
        }
        src_ids = {ntype: sampled.ids[t][: hop.num_src[t]] for t, ntype in enumerate(schema.ntypes)}
        num_dst = dict(zip(schema.ntypes, hop.num_dst, strict=True))
        block = Block.from_csc(schema, edges, src_ids, num_dst, sampled.want_eids)
        for ntype, columns in of_trees.items():
            frames = (block.srcnodes[ntype].data, block.dstnodes[ntype].data)
            for frame, count in zip(frames, (hop.num_src, hop.num_dst), strict=True):
                for name, values in columns.items():
                    frame[name] = values[: count[schema.ntype_id(ntype)]]
        blocks.append(block)
    return blocks


def _columns(trees: Trees, schema: Schema) -> dict[str, dict[str, torch.Tensor]]:
    """Return by node type and name the numbers of the nodes' trees, and the times of their roots."""
    columns = {}
    for ntype, of_nodes in zip(schema.ntypes, trees.of_nodes, strict=True):
        columns[ntype] = {TREE: torch.from_numpy(of_nodes)}
        if trees.times is not None:
            columns[ntype][SEED_TIME] = torch.from_numpy(trees.times[of_nodes])
    return columns
