"""From edges to minibatches: pair graphs of the edges and of negatives, and the blocks of their end nodes.

The pair graphs share one numbering of nodes, by first appearance: sources and destinations of the edges, then those of
the negatives. It is the order of the blocks' output nodes, so a model's output has a row for each node of the pair
graphs.
"""

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import numpy as np
import torch

from mpigraph.arrays import I64
from mpigraph.collective import WHEN_REMOTE, collective
from mpigraph.dataloading import negative_sampler as negative
from mpigraph.dataloading.exclusion import Exclude, ReverseEids, make_exclusion, reverse_edges
from mpigraph.dataloading.sampler import BlockSampler, Needs, Sampler, check_graph, has_method, needs_of
from mpigraph.distgraph import typed_ids
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.sampling_arguments import TimeFilter, check_times
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.block import Block
from mpigraph.graphs.fields import EID, NID, SEED_TIME, EdgeType, IdsLike
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.kernels.compact import TreeIds
from mpigraph.metadata.book import check_ids
from mpigraph.metadata.schema import Relation

PairSample: TypeAlias = (
    tuple[typed_ids.NodeTensors, HeteroGraph, list[Block]]
    | tuple[typed_ids.NodeTensors, HeteroGraph, HeteroGraph, list[Block]]
)
"""Input nodes, the pair graph, that of negatives if there are any, and blocks, outermost hop first."""
_Ends = tuple[I64, I64]
_NOTHING: _Ends = (negative.NO_EDGES.src, negative.NO_EDGES.dst)


@dataclass(frozen=True)
class Pairs:
    """The seed edges of a minibatch and their negatives, before neighbours of their ends are drawn."""

    graphs: list[HeteroGraph]  # the pair graph and, with a negative sampler, that of the negatives
    nodes: typed_ids.NodeTensors  # int64[n], the ends, or by node type: the seeds of the sampler of blocks
    excluded: typed_ids.EdgeTensors | None  # ids of edges to exclude, in the form of the loader's edges
    times: typed_ids.NodeTensors | None  # int64[n], the times of the ends, in the form of ``nodes``

    def sample_ends(self, sample: Callable[..., Any], g: object) -> Any:
        """Draw around the ends; without exclusion or times the sampler need not take such arguments."""
        excluded = () if self.excluded is None else (self.excluded,)
        timed = {} if self.times is None else {"input_time": self.times}
        return sample(g, self.nodes, *excluded, **timed)


class EdgePredictionSampler(Sampler):
    """Samples minibatches of edges: pairs of nodes to predict, and the blocks of their ends.

    Attributes:
        sampler: draws the blocks.
        negative_sampler: draws the negatives, or None.
        prefetch_labels: names of edge features that loaders gather for the seed edges, or edge type -> names.

    Example:
        >>> with_edges = mpigraph.dataloading.as_edge_prediction_sampler(
        ...     sampler, negative_sampler=mpigraph.dataloading.negative_sampler.Uniform(2)
        ... )
    """

    def __init__(
        self,
        sampler: BlockSampler,
        exclude: Exclude = None,
        reverse_eids: ReverseEids = None,
        reverse_etypes: typed_ids.ByEdgeType[EdgeType] | None = None,
        negative_sampler: negative.NegativesOf | None = None,
        prefetch_labels: typed_ids.Names = (),
    ) -> None:
        """Make a sampler of edges of a sampler of blocks.

        Edges that are excluded are removed before neighbours are drawn, so a node gets its full fanout of others.

        Args:
            sampler: has ``sample_blocks(g, seeds, exclude_eids)``, for example a ``NeighborSampler``; without
                ``exclude`` it is called with two arguments.
            exclude: edges that the blocks of a minibatch must not contain. None: no edges; "self": its seed edges;
                "reverse_id": these and their reverse edges, of the same relation; "reverse_types": these and their
                reverse edges in another relation; int64[n] edge ids (or edge type -> edge ids): always these; a
                function from seed edges to edge ids, both in the form of the loader's edges.
            reverse_eids: int64[num_edges], the reverse edge of each edge: a tensor, ndarray or DistTensor, which is
                read for each minibatch; or edge type -> one of these. If it is left out, a loader with "reverse_types",
                or with "reverse_id" in a graph with one relation, looks reverse edges up once by their ends, as
                :func:`.reverse_edges` (partitioning renumbers each relation). Where an edge and its reverse had one
                id before that, which both relations keep as a feature ``orig``, you can invert it instead:
                ``back["orig"][:].argsort()[there["orig"][:]]``, with ``there = g.edges[etype].data`` and ``back`` of
                the reverse edges.
            reverse_etypes: edge type -> edge type of the reverse edges; with "reverse_types".
            negative_sampler: ``(g, seed edges) -> (src, dst)``, for example :class:`.negative_sampler.Uniform`.
            prefetch_labels: names of edge features that loaders gather for the seed edges; or edge type -> names.

        Raises:
            InvalidArgumentError: an argument has another value, or ``reverse_etypes`` is missing.
        """
        if not has_method(sampler, "sample_blocks"):
            raise InvalidArgumentError(
                f"sampler must have sample_blocks(g, seeds) (got {type(sampler).__name__}): NeighborSampler and "
                "LaborSampler have it"
            )
        if negative_sampler is not None and not callable(negative_sampler):
            raise InvalidArgumentError(
                f"negative_sampler must be callable with (g, eids) (got {type(negative_sampler).__name__})"
            )
        self.sampler = sampler
        self.negative_sampler = negative_sampler
        self.prefetch_labels = prefetch_labels or ()
        self._exclude = exclude
        self._reverse_etypes = reverse_etypes
        way = exclude if isinstance(exclude, str) else ""
        self._looks_up = reverse_eids is None and way in ("reverse_id", "reverse_types")
        if way == "reverse_types" and not isinstance(reverse_etypes, Mapping):
            raise InvalidArgumentError("exclude='reverse_types' needs reverse_etypes, a dict edge type -> edge type")
        self._exclusion = None if self._looks_up else make_exclusion(exclude, reverse_eids, reverse_etypes)

    @property
    def needs(self) -> Needs:
        """The needs of the sampler of blocks, and the labels of seed edges."""
        blocks = needs_of(self.sampler)
        exclude = self._exclude if isinstance(self._exclude, str) else type(self._exclude).__qualname__
        negatives = negative.describe_negatives(self.negative_sampler)
        return replace(
            blocks,
            edge_labels=self.prefetch_labels,
            random=blocks.random or self.negative_sampler is not None,
            description=f"{blocks.description}, negatives={negatives}, exclude={exclude}",
        )

    @collective("trainers")
    def look_up_reverse(self, g: DistGraph, seed_edges: typed_ids.EdgeIds) -> None:
        """Find the reverse edges that ``exclude`` needs, if ``reverse_eids`` did not give them; loaders call it.

        Args:
            g: the graph.
            seed_edges: all seed edges of this trainer.

        Raises:
            InvalidArgumentError: "reverse_id" without ``reverse_eids`` in a graph with several relations.
            EdgeTypeError, GraphDataError: as :func:`.reverse_edges`.
        """
        if not self._looks_up:
            return
        pairs: dict[Relation, EdgeType] = {relation: relation for relation in g.canonical_etypes}
        if self._exclude == "reverse_types":
            pairs = typed_ids.canonical(
                g.schema, cast(typed_ids.ByEdgeType[EdgeType], self._reverse_etypes), "reverse_etypes"
            )
        elif len(pairs) > 1:
            raise InvalidArgumentError("exclude='reverse_id' needs reverse_eids where there are several edge types")
        seeds = typed_ids.by_relation(g.schema, seed_edges, "eids")
        counts = {relation: g.session.world.allreduce_sum(len(seeds.get(relation, ()))) for relation in sorted(pairs)}
        tables = reverse_edges(g, {relation: pairs[relation] for relation, count in counts.items() if count})
        self._exclusion = make_exclusion(self._exclude, tables, self._reverse_etypes)
        self._looks_up = False

    @collective("trainers", WHEN_REMOTE)
    def sample(
        self, g: DistGraph, seed_edges: typed_ids.EdgeIds, *, edge_label_time: typed_ids.EdgeIds | None = None
    ) -> PairSample:
        """Sample the minibatch of some edges.

        Args:
            g: the graph.
            seed_edges: int64[n], edge ids, or edge type -> edge ids.
            edge_label_time: int64[n], the time of each edge, in their form, for a sampler of blocks with ``time_attr``.
                Both ends and the edge's negatives have this time. Where nodes have times, a negative's destination
                is drawn again until it is old enough; after ten tries the negative is left out. A node is in the pair
                graphs once for each of its times, which are their ``ndata["seed_time"]``.

        Returns:
            Input nodes, the pair graph, the pair graph of negatives if there is a negative sampler, and blocks,
            outermost hop first. ``ndata[NID]`` of the pair graphs are the blocks' output nodes; ``edata[EID]`` of the
            first are the seed edges in their order.

        Raises:
            OutOfRangeError: an edge, or an end of a negative, does not exist.
            InvalidArgumentError: the negative sampler did not return sources and destinations.

        When hosts are remote, an error on one trainer is raised on all.
        """
        pairs = self.sample_pairs(g, seed_edges, edge_label_time=edge_label_time)
        input_nodes, _, blocks = pairs.sample_ends(self.sampler.sample_blocks, g)
        return cast(PairSample, (input_nodes, *pairs.graphs, blocks))

    def sample_pairs(
        self, g: DistGraph, seed_edges: typed_ids.EdgeIds, *, edge_label_time: typed_ids.EdgeIds | None = None
    ) -> Pairs:
        """Do the part of :meth:`sample` before the blocks; arguments and errors are the same.

        One-sided, like most negative samplers.
        """
        g = check_graph(g)
        if self._looks_up:
            raise InvalidArgumentError(
                f"exclude={self._exclude!r} needs reverse_eids: DistEdgeDataLoader looks them up by itself, and "
                "mpigraph.dataloading.reverse_edges(g, reverse_etypes) does"
            )
        edges = negative.find_edges(g, seed_edges)
        time_filter = needs_of(self.sampler).times
        times = check_edge_times(g, time_filter, edges, edge_label_time)
        numbering = _Numbering(g, times)
        numbering.add({relation: (of_type.src, of_type.dst) for relation, of_type in edges.items()}, times)
        negatives, of_negatives = None, None
        if self.negative_sampler is not None:
            negatives = _checked(g, negative.draw_negatives(self.negative_sampler, g, edges))
        excluded = None
        if self._exclusion is not None:
            seeds = {relation: torch.from_numpy(of_type.eids) for relation, of_type in edges.items()}
            excluded = typed_ids.unwrap_edges(g.schema, self._exclusion(g, seeds))
        if negatives is not None:
            if time_filter is not None and times is not None:
                context, of_negatives = g.session.next_context(), {}
                for r, ends in negatives.items():
                    positives = edges.get(r, negative.NO_EDGES), times.get(r, negative.NO_EDGES.src)
                    negatives[r], of_negatives[r] = negative.redraw_newer(g, time_filter, context, r, *positives, ends)
            numbering.add(negatives, of_negatives)
        graphs, nodes, node_times = numbering.graphs()
        for relation in g.schema.relations:
            graphs[0].edges[relation].data[EID] = torch.from_numpy(edges.get(relation, negative.NO_EDGES).eids)
        ends_of, times_of = (
            by_type if len(by_type) != 1 else by_type[g.schema.ntypes[0]] for by_type in (nodes, node_times)
        )
        return Pairs(graphs, ends_of, excluded, times_of if node_times else None)


def check_edge_times(
    g: DistGraph,
    time_filter: TimeFilter | None,
    ids: Mapping[Relation, Sized],
    edge_label_time: typed_ids.EdgeIds | None,
) -> dict[Relation, I64] | None:
    """Check the times of seed edges, and return them, int64[n] by relation in the order of ``ids``; None without.

    Raises InvalidArgumentError if the sampler takes no times, or needs them.
    """
    if (time_filter is None) != (edge_label_time is None):
        raise InvalidArgumentError(
            "edge_label_time needs a sampler with time_attr, like NeighborSampler"
            if time_filter is None
            else f"edge_label_time is needed: the sampler filters by {time_filter.attr!r}"
        )
    if edge_label_time is None:
        return None
    given: dict[Relation, IdsLike] = typed_ids.canonical(g.schema, edge_label_time, "edge_label_time")
    none = np.empty(0, np.int64)
    counts = {r: len(ids.get(r, ())) for r in {**ids, **given}}
    times = {r: check_times(given.get(r, none), count, f"edge_label_time of {r}") for r, count in counts.items()}
    return {r: times[r] for r in ids}


as_edge_prediction_sampler = EdgePredictionSampler
"""DGL's name for making one."""


class _Numbering:
    """Numbers the nodes of a minibatch's pair graphs by first appearance, once for each time of a node."""

    def __init__(self, g: DistGraph, times: Mapping[Relation, I64] | None) -> None:
        self._schema = g.schema
        none = np.empty(0, np.int64)
        self._times = None if times is None else np.unique(np.concatenate([none, *times.values()]))
        self._tables = {ntype: TreeIds() for ntype in g.schema.ntypes}
        for table in self._tables.values():
            table.reset(none, none, 1 if self._times is None else max(len(self._times), 1))
        self._edges: list[dict[Relation, tuple[torch.Tensor, torch.Tensor]]] = []

    def add(self, pairs: Mapping[Relation, _Ends], times: Mapping[Relation, I64] | None) -> None:
        """Number the ends of one graph's edges, the sources of a relation first."""
        edges = {}
        for relation in self._schema.relations:
            src, dst = pairs.get(relation, _NOTHING)
            numbers = np.zeros(len(src), np.int64)
            if self._times is not None and times is not None and relation in times:
                numbers = np.searchsorted(self._times, times[relation])
            edges[relation] = self._local(relation[0], src, numbers), self._local(relation[2], dst, numbers)
        self._edges.append(edges)

    def _local(self, ntype: str, ids: I64, times: I64) -> torch.Tensor:
        return torch.from_numpy(self._tables[ntype].insert(ids, np.arange(len(ids) + 1), times)).long()

    def graphs(self) -> tuple[list[HeteroGraph], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Return the graphs, each with all nodes, the nodes by type, and their times by type if they have any."""
        nodes, times = {}, {}
        for ntype, table in self._tables.items():
            listed, numbers = table.listed()
            nodes[ntype] = torch.from_numpy(listed)
            if self._times is not None:
                times[ntype] = torch.from_numpy(self._times[numbers])
        graphs = [HeteroGraph(self._schema, edges, {t: len(ids) for t, ids in nodes.items()}) for edges in self._edges]
        for graph in graphs:
            for ntype, ids in nodes.items():
                graph.nodes[ntype].data[NID] = ids
                if times:
                    graph.nodes[ntype].data[SEED_TIME] = times[ntype]
        return graphs, nodes, times


def _checked(g: DistGraph, negatives: negative.Negatives) -> dict[Relation, _Ends]:
    """Check the return value of a negative sampler; return it by relation."""
    pairs = typed_ids.canonical(g.schema, negatives, "negatives")
    return {relation: _checked_pair(g, relation, pair) for relation, pair in pairs.items()}


def _checked_pair(g: DistGraph, relation: Relation, pair: tuple[IdsLike, IdsLike]) -> _Ends:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InvalidArgumentError(
            f"the negative sampler must return a pair (src, dst) for {relation} (got {type(pair).__name__})"
        )
    ends = []
    for ids, ntype, side in zip(pair, relation[::2], ("source", "destination"), strict=True):
        what = f"{side} of a negative of {relation}"
        ends.append(typed_ids.id_array(ids, what))
        check_ids(ends[-1], g.num_nodes(ntype), what)
    src, dst = ends
    if len(src) != len(dst):
        raise InvalidArgumentError(
            f"the negative sampler must return as many sources as destinations for {relation} "
            f"(got {len(src)} and {len(dst)})"
        )
    return src, dst
