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
from mpigraph.distgraph import typed_ids
from mpigraph.distgraph.features import Changes, Features, features_by_type, named
from mpigraph.distgraph.sampling_arguments import Layers, SamplingArguments, Times
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.distgraph.typed_ids import Blocks, EdgeIds, Fanout, FeatureName, NodeIds, by_ntype, by_relation
from mpigraph.errors import ClosedError, InvalidArgumentError
from mpigraph.graphs.block import Block, Blocks as BlockList
from mpigraph.graphs.face import Edges, Graph, Pair
from mpigraph.graphs.fields import EID, SEED_TIME, TREE, Frames
from mpigraph.graphs.hetero import HeteroGraph, part_of
from mpigraph.metadata.book import check_ids
from mpigraph.metadata.schema import Relation, Schema
from mpigraph.rows.row_tensor import Policy
from mpigraph.sampling import minibatch
from mpigraph.sampling.minibatch import Layer, RandomContext, SampledHops, SamplingPlan, Subgraph, Trees
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.sampling.protocol import EdgeQuery
from mpigraph.sampling.strategies import HopKeys
from mpigraph.session.context import Session
from mpigraph.session.control import Operation
from mpigraph.store.derived import EdgeTimes
from mpigraph.store.store import LoadedGraph

_NONE = np.empty(0, np.int64)
_LAYERS_KEPT = 8  # of samplers' arguments


class SampledGraph(Graph[Features]):
    """The side of a :class:`DistGraph` that samples and looks up edges.

    All methods that sample raise errors on the caller alone. Where MPI allows several threads, they are one-sided and
    need no other trainer. Else they are collective when hosts are remote: the trainers' main threads ask in step.

    Attributes:
        session: the job that the graph belongs to.
        loaded: this rank's part of the graph.
    """

    def __init__(
        self, session: Session, loaded: LoadedGraph, features: Mapping[tuple[Policy, str], DistTensor]
    ) -> None:
        hosts = loaded.topology.hosts
        self.session = session
        self.loaded = loaded
        self._changes = Changes()
        nodes = features_by_type(True, hosts.schema.ntypes, hosts, features, self._changes)
        edges = features_by_type(False, hosts.schema.relations, hosts, features, self._changes)
        super().__init__(hosts.schema, Frames(nodes, nodes, edges), torch.device("cpu"))
        self._layers: dict[SamplingArguments, tuple[object, Sequence[Layer]]] = {}  # with what they depend on

    @property
    def service(self) -> NeighborService:
        """The sampling service of the calling thread."""
        return self.session.service

    @collective("trainers", WHEN_REMOTE)
    def sample_neighbors(
        self,
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
        """Sample in-neighbours of nodes.

        Args:
            nodes: int[n], node ids; or node type -> int[n], which graphs with several node types need. A node
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
            in ``nodes``; ``edges[etype].data[EID]`` are their ids here.

        Raises:
            OutOfRangeError: a node or an excluded edge does not exist.
            FieldNameError: there is no edge feature ``prob``.
            NodeTypeError: a node type does not exist, or there are several and ``nodes`` are not by type.
            EdgeTypeError: a fanout, a weight or excluded edges of a type that does not exist, or a fanout is missing.
            InvalidArgumentError: fanout below -1, another ``edge_dir``, or ids that are not integers.
        """
        arguments = SamplingArguments([fanout], edge_dir, prob, replace, seed=seed)
        frontier = self.sample_hop(nodes, arguments, exclude_edges)
        return frontier if output_device is None else frontier.to(output_device)

    @collective("trainers", WHEN_REMOTE)
    def sample_hop(
        self, seed_nodes: NodeIds, arguments: SamplingArguments, exclude_edges: EdgeIds | None = None
    ) -> HeteroGraph:
        """Do the work of :meth:`sample_neighbors` by the arguments of one layer."""
        relations = self.schema.relations
        edges, eids = dict.fromkeys(relations, (_NONE, _NONE)), dict.fromkeys(relations, _NONE)
        with self._drawing(arguments, seed_nodes, exclude_edges) as (service, plan, context):
            keys = HopKeys.of(minibatch.minibatch_key(context, plan.seeds), 0, context.every, context.step)
            requests = minibatch.hop_requests(plan, 0, self.loaded, plan.seeds, keys, minibatch.Repeated.of(plan.seeds))
            local = minibatch.is_local(self.loaded, plan.layers[0])
            for number, neighbors in service.sample(requests, local).items():
                relation = relations[number]
                dst = np.repeat(plan.seeds[self.schema.ends(number)[1]], np.diff(neighbors.offsets))
                edges[relation] = neighbors.src.astype(np.int64), dst
                eids[relation] = neighbors.eids
        sampled = {
            r: (torch.from_numpy(src), torch.from_numpy(dst), torch.from_numpy(eids[r]))
            for r, (src, dst) in edges.items()
        }
        return part_of(self, sampled, None, store_ids=True)

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
            sampled = minibatch.sample_hops(service, self.loaded, plan, context)
        input_nodes = dict(enumerate(sampled.ids)) if sampled.hops else sampled.seeds
        inputs, outputs = (
            typed_ids.unwrap_nodes(self.schema, ids, every_type=False) for ids in (input_nodes, sampled.seeds)
        )
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
            return minibatch.sample_hops(service, self.loaded, plan, context, expand_once=True).subgraph()

    def _edge_ends(self, relation: Relation, eids: torch.Tensor | None) -> Pair:
        ids = np.arange(self.num_edges(relation)) if eids is None else eids.contiguous().numpy()
        self.session.check_thread(remote=not self.loaded.topology.everywhere)
        src, dst = self.loaded.topology.find_edges(ids, self.schema.relation_id(relation))
        return torch.from_numpy(src), torch.from_numpy(dst)

    def _degrees(self, relation: Relation, side: int, nodes: torch.Tensor | None) -> torch.Tensor:
        ids = np.arange(self.num_nodes(relation[2 * side])) if nodes is None else nodes.contiguous().numpy()
        topology = self.loaded.topology
        self.session.check_thread(remote=not (topology.everywhere if side else topology.world.all_local))
        read = topology.in_degrees if side else topology.out_degrees
        return torch.from_numpy(read(ids, self.schema.relation_id(relation)))

    @collective("trainers", WHEN_REMOTE)
    def _edges_into(self, relations: list[Relation], nodes: Mapping[str, torch.Tensor]) -> dict[Relation, Edges]:
        every = SamplingArguments([{r: -1 if r in relations else 0 for r in self.canonical_etypes}])
        frontier = self.sample_hop(nodes, every)
        return {r: (*frontier.edges(etype=r), frontier.edges[r].data[EID]) for r in relations}

    @collective("trainers", WHEN_REMOTE)
    def _have_edges(self, pairs: Mapping[Relation, Pair]) -> dict[Relation, torch.Tensor]:
        queries = [
            EdgeQuery(
                self.loaded.number, self.schema.relation_id(r), dst.contiguous().numpy(), src.contiguous().numpy()
            )
            for r, (src, dst) in pairs.items()
        ]
        with self.session.sampling() as service:
            answers = service.has_edges(queries, local=self.loaded.topology.everywhere)
        return {relation: torch.from_numpy(exist) for relation, exist in zip(pairs, answers, strict=True)}

    def _part(
        self, edges: Mapping[Relation, Edges], nodes: Mapping[str, torch.Tensor] | None, store_ids: bool
    ) -> HeteroGraph:
        return part_of(self, edges, nodes, store_ids)

    def edge_weights(self, prob: FeatureName) -> dict[int, int]:
        """Return the number of the tensor of edge weights ``prob``, by relation id.

        Raises:
            EdgeTypeError, FieldNameError: an edge type, or such a feature, does not exist.
            InvalidArgumentError: it is not one number or mask for each edge.
        """
        weights = {}
        for (relation, name), tensor in named(self.edges, prob).items():
            if len(tensor.shape) != 1 or tensor.rows.stored not in ("bool", "uint8", "float32", "float64"):
                raise InvalidArgumentError(
                    f"edge weights {name!r} must be one bool, uint8, float32 or float64 for each edge "
                    f"(got {tensor.storage_dtype}, shape {tensor.shape})"
                )
            weights[self.schema.relation_id(relation)] = tensor.rows.number
        return weights

    def times(self, name: str) -> Times:
        """Return the times that nodes, or edges, have under a name; raises as :meth:`.Times.find`."""
        return Times.find(self._frames, name)

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
                changes = self._changes.number
                plan = self.plan(arguments, nodes, exclude_edges, seed_times)
                try:
                    self.keep_tensors(plan, kept)
                    break
                except ClosedError:
                    if self._changes.number == changes:
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
        layers = self._layers_of(arguments, sorted_edges)
        seeds = by_ntype(self.schema, nodes)
        for ntype, ids in seeds.items():
            self.check_nodes(ids, ntype)
        times = None if known is None else known.of_seeds(self.schema, seeds, seed_times)
        disjoint = arguments.disjoint or times is not None
        return SamplingPlan(layers, seeds, arguments.return_eids, self.excluded(exclude_edges), disjoint, times)

    def _layers_of(self, arguments: SamplingArguments, times: dict[int, int]) -> Sequence[Layer]:
        """Return the layers of arguments, which are kept for the next minibatch, as long as no feature is another one.

        ``times`` are the numbers of the tensors that filter edges by time, by relation id.
        """
        depends_on = self._changes.number, times
        by_type = any(isinstance(fanout, Mapping) for fanout in arguments.fanouts)
        kept = isinstance(arguments.prob, str | None) and not by_type  # a dict may be changed
        before = self._layers.get(arguments) if kept else None
        if before is not None and before[0] == depends_on:
            return before[1]
        weights = self.edge_weights(arguments.prob) if arguments.prob else {}
        tensors = {r: self.session.store.tensors[number] for r, number in weights.items()}
        layers = arguments.layers(self.schema, tensors, times)
        if kept:
            while len(self._layers) >= _LAYERS_KEPT:
                self._layers.pop(next(iter(self._layers)), None)
            self._layers[arguments] = depends_on, layers
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


sample_neighbors = SampledGraph.sample_neighbors
sample_etype_neighbors = SampledGraph.sample_neighbors
"""DGL's name for sampling with a fanout for each relation, which is what :func:`sample_neighbors` does."""
in_subgraph = SampledGraph.in_subgraph


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
