"""Sampling neighbours on a distributed graph: one hop as an in-memory graph, or all hops of a minibatch.

All relations of a hop travel in the same messages. And whether edges exist: like a node's neighbours, its owner knows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from mpigraph.arrays import I64
from mpigraph.collective import WHEN_FAR, collective
from mpigraph.distgraph.features import EdgeSpaces, Features, NodeSpaces
from mpigraph.distgraph.hop_blocks import hop_blocks
from mpigraph.distgraph.times import TimeFilter, Times
from mpigraph.distgraph.typed_ids import (
    Blocks,
    EdgeIds,
    Fanout,
    FeatureName,
    NodeIds,
    by_ntype,
    by_relation,
    canonical,
    check_fanout,
    check_layers,
    unwrap_nodes,
)
from mpigraph.errors import EdgeTypeError, InvalidArgumentError, MPIGraphError, check_integer
from mpigraph.graphs.fields import EID, EdgeType
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.metadata.book import check_ids
from mpigraph.metadata.schema import Relation, Schema
from mpigraph.sampling.minibatch import (
    SamplingPlan,
    Subgraph,
    Temporal,
    hop_requests,
    sample_hops,
    sampling_key,
)
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.sampling.protocol import EdgeQuery
from mpigraph.session.context import Session, check_seed
from mpigraph.session.control import Operation
from mpigraph.store.derived import EdgeTimes
from mpigraph.store.store import LoadedGraph

__all__ = ["SampledGraph", "in_subgraph", "sample_etype_neighbors", "sample_neighbors"]

_NONE = np.empty(0, np.int64)
_Planned = tuple[dict[int, I64], SamplingPlan, MPIGraphError | None]


class SampledGraph:
    """The side of a :class:`DistGraph` that samples.

    What is wrong with the arguments of one trainer is raised on every trainer when hosts are far, by the round that all
    of them make. All methods that sample are collective when hosts are far, and local when all are
    near. Where requests go to their owners alone (``MPIGRAPH_SAMPLING=sparse``, the default where MPI allows several
    threads) they are one-sided, need no other trainer, and raise here.

    Attributes:
        session: the job that the graph belongs to.
        loaded: what this rank holds of it.
        schema: node types and relations.
    """

    def __init__(self, session: Session, loaded: LoadedGraph, features: Features) -> None:
        self.session = session
        self.loaded = loaded
        self.schema: Schema = loaded.topology.config.schema
        self._features = features

    @property
    def service(self) -> NeighborService:
        """The sampling service of the calling thread."""
        return self.session.service

    @property
    def nodes(self) -> NodeSpaces:
        """``g.nodes[ntype].data[name]``."""
        return NodeSpaces(self.schema, self._features)

    @property
    def edges(self) -> EdgeSpaces:
        """``g.edges[etype].data[name]``."""
        return EdgeSpaces(self.schema, self._features)

    @collective("trainers", WHEN_FAR)
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
            seed_nodes: int[n], node ids; or node type -> int[n], which graphs with several node types need.
            fanout: most neighbours of a node in each relation; -1 means all. Or edge type -> most neighbours, with
                every edge type.
            edge_dir: only "in": parts hold the in-edges of their nodes.
            prob: name of an edge feature with a weight for each edge, or a mask. Drawn with probability proportional to
                the weight; an edge of weight 0 is never drawn. It counts for the relations that have the feature, the
                others are drawn uniformly; or edge type -> name.
            exclude_edges: int[k], ids of excluded edges, or a dict of them by edge type, removed before sampling: a
                node with d in-edges, m of them excluded, is one with d - m. They may repeat, and end anywhere.
            replace: draw with replacement: exactly ``fanout`` neighbours of a node that has any.
            etype_sorted: accepted for DGL's scripts.
            output_device: where to put the graph; the CPU by default.
            use_graphbolt: accepted for DGL's scripts.
            seed: makes the draw a function of the arguments alone. By default two calls differ, and the same program
                repeats the same draws on any number of ranks.

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
        draw = (seed, self.session.num_threads)
        seeds, plan, error = self._plan(draw, seed_nodes, [fanout], edge_dir, prob, exclude_edges, replace)
        key = sampling_key(self.session.next_context(None if error else seed), seeds, 0)
        requests = hop_requests(plan, 0, self.loaded, seeds, key)
        relations = self.schema.relations
        edges, eids = dict.fromkeys(relations, (_NONE, _NONE)), dict.fromkeys(relations, _NONE)
        with self.session.sampling() as service:
            for request, found in zip(requests, service.sample(requests, error), strict=True):
                relation = relations[request.relation]
                edges[relation] = found.src.astype(np.int64), np.repeat(request.ids, np.diff(found.offsets))
                eids[relation] = found.eids
        columns = {r: (torch.from_numpy(src), torch.from_numpy(dst)) for r, (src, dst) in edges.items()}
        hosts = self.loaded.topology.hosts
        counts = {ntype: hosts.num_nodes(t) for t, ntype in enumerate(self.schema.ntypes)}
        frontier = HeteroGraph(self.schema, columns, counts)
        for relation, ids in eids.items():
            frontier.edges[relation].data[EID] = torch.from_numpy(ids)
        return frontier if output_device is None else frontier.to(output_device)

    @collective("trainers", WHEN_FAR)
    def sample_blocks(
        self,
        seed_nodes: NodeIds,
        fanouts: Sequence[Fanout],
        *,
        edge_dir: str = "in",
        prob: FeatureName | None = None,
        exclude_edges: EdgeIds | None = None,
        replace: bool = False,
        return_eids: bool = True,
        seed: int | None = None,
        num_threads: int | None = None,
        disjoint: bool = False,
        time_filter: TimeFilter | None = None,
        seed_times: NodeIds | None = None,
    ) -> Blocks:
        """Sample the blocks of one minibatch, all hops fused.

        Arguments and errors are those of :meth:`sample_neighbors`, with ``fanouts`` the fanout of each layer, input
        side first. Excluded edges are removed in every layer; ``return_eids`` asks for ``edata[EID]``, without which
        less is moved; ``num_threads`` threads draw near neighbours, by default what ``initialize`` was told.
        With ``disjoint`` each seed is the root of a tree of its own, in which a node is once, whatever other trees it
        is in; ``time_filter`` says which edges trees may have by the times of their roots, ``seed_times``, in the form
        of ``seed_nodes`` and by default the seeds' own, and makes trees disjoint.
        Blocks then have ``srcdata[TREE]`` and ``dstdata[TREE]``, int64, the number of the tree, and with times
        ``srcdata["seed_time"]`` and ``dstdata["seed_time"]``.

        Returns:
            Input nodes and output nodes, int64 each (where the graph has several node types: by type), and the blocks,
            input side first.

        The first use of a time that :meth:`prepare_times` was not told is always collective.
        """
        fanouts, draw = check_layers(fanouts), (seed, num_threads or self.session.num_threads)
        trees = (disjoint, time_filter, seed_times)
        seeds, times, plan, error = self._planned(
            trees, draw, seed_nodes, fanouts, edge_dir, prob, exclude_edges, replace, return_eids
        )
        context = self.session.next_context(None if error else seed)
        with self.session.sampling(None if error else num_threads) as service:
            sampled = sample_hops(
                service, self.loaded, seeds, plan, context, expand_once=False, times=times, error=error
            )
        input_nodes = dict(enumerate(sampled.ids)) if sampled.hops else seeds
        return unwrap_nodes(self.schema, input_nodes), unwrap_nodes(self.schema, seeds), hop_blocks(sampled)

    @collective("trainers", WHEN_FAR)
    def sample_subgraph(
        self,
        seed_nodes: NodeIds,
        fanouts: Sequence[Fanout],
        *,
        edge_dir: str = "in",
        prob: FeatureName | None = None,
        exclude_edges: EdgeIds | None = None,
        replace: bool = False,
        return_eids: bool = True,
        seed: int | None = None,
        num_threads: int | None = None,
        disjoint: bool = False,
        time_filter: TimeFilter | None = None,
        seed_times: NodeIds | None = None,
    ) -> Subgraph:
        """Sample the subgraph of one minibatch as PyG does: one for all layers, in which a node is expanded once.

        Arguments and errors are those of :meth:`sample_blocks`. The first layer is the input side there and here, so
        the last fanout is that of the seeds.

        Returns:
            Nodes by node type id and edges by relation id.

        The first use of a time that :meth:`prepare_times` was not told is always collective.
        """
        fanouts, draw = check_layers(fanouts), (seed, num_threads or self.session.num_threads)
        trees = (disjoint, time_filter, seed_times)
        seeds, times, plan, error = self._planned(
            trees, draw, seed_nodes, fanouts, edge_dir, prob, exclude_edges, replace, return_eids
        )
        context = self.session.next_context(None if error else seed)
        with self.session.sampling(None if error else num_threads) as service:
            sampled = sample_hops(
                service, self.loaded, seeds, plan, context, expand_once=True, times=times, error=error
            )
        return sampled.subgraph()

    @collective("trainers", WHEN_FAR)
    def has_edges_between(
        self, u: EdgeIds, v: EdgeIds, etype: EdgeType = None
    ) -> torch.Tensor | dict[Relation, torch.Tensor]:
        """Whether there is an edge from ``u[i]`` to ``v[i]``; one round, whatever the number of edges and relations.

        Args:
            u: int[n], sources; or edge type -> int[n], to ask about several relations at once.
            v: int[n], destinations; or a dict with the same edge types as ``u``, in any order and spelling.
            etype: the edge type; None if there is one, or with dicts.

        Returns:
            bool[n], or relation -> bool[n]; of parallel edges one is enough.

        Raises:
            OutOfRangeError: a node does not exist.
            EdgeTypeError: the edge type does not exist or is ambiguous, or ``v`` has not the edge types of ``u``.
            InvalidArgumentError: ids that are not integers, ``u`` and ``v`` of different lengths, two edge types that
                are the same relation, or ``etype`` together with dicts.
        """
        queries: list[EdgeQuery] = []
        error: MPIGraphError | None = None
        try:
            queries = self._edge_queries(u, v, etype)
        except MPIGraphError as exc:  # raised on every rank by the round
            error = exc
        with self.session.sampling() as service:
            found = [torch.from_numpy(exist) for exist in service.has_edges(queries, error)]
        if not isinstance(u, Mapping):
            return found[0]
        return {self.schema.relations[query.relation]: exist for query, exist in zip(queries, found, strict=True)}

    def edge_weights(self, prob: FeatureName) -> dict[int, int]:
        """The number of the tensor of edge weights, by relation id.

        Args:
            prob: as in :meth:`sample_neighbors`.

        Raises:
            EdgeTypeError: an edge type does not exist.
            FieldNameError: there is no such edge feature.
            InvalidArgumentError: it is not one number or mask for each edge.
        """
        weights = {}
        for (relation, name), tensor in self.edges.named(prob).items():
            if len(tensor.shape) != 1 or tensor.rows.stored not in ("bool", "uint8", "float32", "float64"):
                raise InvalidArgumentError(
                    f"edge weights {name!r} must be one bool, uint8, float32 or float64 for each edge "
                    f"(got {tensor.storage_dtype}, shape {tensor.shape})"
                )
            weights[self.schema.relation_id(relation)] = tensor.rows.number
        return weights

    def plan(
        self, fanouts: Sequence[Fanout], prob: FeatureName | None, replace: bool, return_eids: bool
    ) -> SamplingPlan:
        """How minibatches are drawn, as :meth:`sample_blocks` is told; raises what that raises."""
        weights = {} if prob is None else self.edge_weights(prob)
        return SamplingPlan([self._fanouts(layer) for layer in fanouts], bool(replace), weights, return_eids)

    def times(self, name: str) -> Times:
        """The times that nodes, or edges, have under a name.

        Raises:
            FieldNameError: neither have it.
            InvalidArgumentError: both have it, or it is not one int64 for each.
        """
        return Times.find(self.schema, self.nodes, self.edges, name)

    @collective("trainers")
    def prepare_times(self, name: str) -> None:
        """Have the hosts sort their edges by time, so that :meth:`sample_blocks` can be told to filter by it.

        It is done once, and again in the next collective call after times were written.

        Raises:
            FieldNameError, InvalidArgumentError: as :meth:`times`.
        """
        pairs = [[tensor.rows.number, r] for r, tensor in self.times(name).by_relation(self.schema).items()]
        self.session.control.call(Operation.PREPARE_TIMES, pairs=pairs)

    @collective("trainers", "at the first use of a time, else local")
    def _temporal(self, how: TimeFilter, known: Times) -> Temporal:
        """How edges are filtered."""
        numbers = {r: tensor.rows.number for r, tensor in known.by_relation(self.schema).items()}
        if not all(self.session.store.is_prepared(EdgeTimes, number, r) for r, number in numbers.items()):
            self.prepare_times(how.attr)
        window = -1 if how.window is None else how.window
        return Temporal(numbers, how.strategy == "last", how.comparison == "<", window)

    def _masks_only(self, weights: Mapping[int, int], temporal: Temporal) -> None:
        """Raise InvalidArgumentError for weights of relations with times."""
        for relation in weights.keys() & temporal.times.keys():
            tensor = self.session.store.tensors[weights[relation]]
            if tensor.dtype != "bool":
                raise InvalidArgumentError(
                    f"prob {tensor.name!r} and times: edges that are filtered by time are drawn uniformly, or where a "
                    "mask is set; give a mask of bool"
                )

    @collective("trainers", "at the first use of a time, else local")
    def _planned(
        self, trees: tuple[bool, TimeFilter | None, NodeIds | None], draw: tuple[int | None, int], *how: Any
    ) -> tuple[dict[int, I64], dict[int, I64] | None, SamplingPlan, MPIGraphError | None]:
        """As :meth:`_plan`, with the times of the seeds."""
        disjoint, time_filter, given = trees
        known: Times | None = None
        temporal: Temporal | None = None
        error: MPIGraphError | None = None
        try:
            if given is not None and time_filter is None:
                raise InvalidArgumentError("the times of seeds are given, but the sampler has no time_attr")
            if time_filter is not None:
                known = self.times(time_filter.attr)
                temporal = self._temporal(time_filter, known)
        except MPIGraphError as failed:
            error = failed
        seeds, plan, wrong = self._plan(draw, *how)
        error = error or wrong
        times = None
        try:
            if error is None and known is not None and temporal is not None:
                self._masks_only(plan.weights, temporal)
                times = known.of_seeds(self.schema, seeds, given)
        except MPIGraphError as failed:
            error = failed
        if error is not None:
            if not plan.fanouts:
                raise error
            return {}, None, SamplingPlan([{} for _ in plan.fanouts], False, {}, plan.want_eids), error
        if disjoint or temporal is not None:
            plan = replace(plan, disjoint=True, temporal=temporal)
        return seeds, times, plan, None

    def _plan(
        self,
        draw: tuple[int | None, int],
        nodes: NodeIds,
        fanouts: Sequence[Fanout],
        edge_dir: str,
        prob: FeatureName | None,
        exclude_edges: EdgeIds | None,
        replace: bool,
        return_eids: bool = True,
    ) -> _Planned:
        """Check the arguments of this rank and convert types to ids; ``draw`` is the seed and the number of threads.

        What is wrong is returned, to be raised on every rank of the round; without a layer there is no round, and it is
        raised here.
        """
        try:
            if draw[0] is not None:
                check_seed(draw[0])
            check_integer("num_threads", draw[1], 1, 2**31 - 1)
            if edge_dir != "in":
                raise InvalidArgumentError(f"edge_dir must be 'in': parts hold in-edges (got {edge_dir!r})")
            weights = {} if prob is None else self.edge_weights(prob)
            excluded = self._excluded(exclude_edges)
            layers = [self._fanouts(layer) for layer in fanouts]
            seeds = by_ntype(self.schema, nodes)
            for ntype, ids in seeds.items():
                self._check_nodes(ids, ntype)
        except MPIGraphError as error:
            if not fanouts:
                raise
            return {}, SamplingPlan([{} for _ in fanouts], False, {}, return_eids), error
        return seeds, SamplingPlan(layers, bool(replace), weights, return_eids, excluded), None

    def _fanouts(self, fanout: Fanout) -> dict[int, int]:
        """Fanouts of one layer by relation id."""
        relations = self.schema.relations
        if not isinstance(fanout, Mapping):
            return dict.fromkeys(range(len(relations)), check_fanout(fanout))
        given: dict[Relation, int] = canonical(self.schema, fanout, "fanouts")
        found = {self.schema.relation_id(relation): check_fanout(number) for relation, number in given.items()}
        missing = [relation for relation in relations if relation not in given]
        if missing:
            raise EdgeTypeError(f"a dict of fanouts needs every edge type (0 leaves one out): no fanout of {missing}")
        return found

    def _excluded(self, edges: EdgeIds | None) -> dict[int, I64]:
        """By relation id, the ids of excluded edges, ascending, each once."""
        if edges is None:
            return {}
        found = {}
        for relation, some in by_relation(self.schema, edges, "exclude_edges").items():
            number = self.schema.relation_id(relation)
            ids = some.numpy()
            count = self.loaded.topology.hosts.num_edges(number)
            check_ids(ids, count, f"exclude_edges: edge id of relation {relation}")
            ascending = bool((ids[1:] > ids[:-1]).all())  # those that every minibatch excludes were sorted once
            found[number] = ids if ascending else np.unique(ids)
        return found

    def _check_nodes(self, ids: I64, ntype: int) -> None:
        """Raise OutOfRangeError unless all nodes of a type exist."""
        count = self.loaded.topology.hosts.num_nodes(ntype)
        check_ids(ids, count, f"node id of type {self.schema.ntypes[ntype]!r}")

    def _edge_queries(self, u: EdgeIds, v: EdgeIds, etype: EdgeType) -> list[EdgeQuery]:
        """What to ask, relation by relation."""
        if etype is not None and (isinstance(u, Mapping) or isinstance(v, Mapping)):
            raise InvalidArgumentError(f"give etype or dicts by edge type, not both (got etype={etype!r})")
        src, dst = self._ends(u, etype, "source ids"), self._ends(v, etype, "destination ids")
        if src.keys() != dst.keys():
            raise EdgeTypeError(f"sources are of edge types {list(src)}, destinations of {list(dst)}")
        queries = []
        for name, some in src.items():
            relation = self.schema.relation_id(name)
            ends = (some.numpy(), dst[name].numpy())
            if len(ends[0]) != len(ends[1]):
                raise InvalidArgumentError(
                    f"an edge has two ends (got {len(ends[0])} sources and {len(ends[1])} destinations of {name})"
                )
            for ids, ntype in zip(ends, self.schema.ends(relation), strict=True):
                self._check_nodes(ids, ntype)
            queries.append(EdgeQuery(self.loaded.number, relation, ends[1], ends[0]))
        return queries

    def _ends(self, ids: EdgeIds, etype: EdgeType, what: str) -> dict[Relation, torch.Tensor]:
        """One end of each edge by relation; ``etype`` is that of ids without types."""
        if not isinstance(ids, Mapping):
            ids = {self.schema.to_canonical(etype): ids}
        return by_relation(self.schema, ids, what)


@collective("trainers", WHEN_FAR)
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


@collective("trainers", WHEN_FAR)
def in_subgraph(g: SampledGraph, nodes: NodeIds) -> HeteroGraph:
    """All in-edges of nodes, as :func:`sample_neighbors` returns them."""
    return g.sample_neighbors(nodes, -1)
