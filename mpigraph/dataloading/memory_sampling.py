"""Sampling on a graph in memory, by the kernels and with the draws of a distributed one.

:func:`sampled` gives a :class:`HeteroGraph` the sampling methods of a :class:`DistGraph`: one host holds everything,
without a job or other ranks. A DistGraph of one part sorts the in-edges of a node by source; so does the copy of the
structure here, so that both draw the same neighbours for the same seeds.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn, cast

import numpy as np
import torch

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.distgraph.features import Features, Spaces
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.sampled_graph import OutEdges, SampledGraph
from mpigraph.distgraph.sampling_arguments import Layers, SamplingArguments
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.distgraph.times import Times
from mpigraph.distgraph.typed_ids import Blocks, EdgeIds, Fanout, FeatureName, NodeIds, NodeTensors
from mpigraph.errors import InvalidArgumentError, MPIGraphError
from mpigraph.graphs.block import Block
from mpigraph.graphs.fields import EID, NID, Contents, EdgeType, IdsLike, contents_of
from mpigraph.graphs.frame import Frame
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import Relation, Schema
from mpigraph.rows.row_tensor import Policy, RowTensor
from mpigraph.sampling.minibatch import Subgraph
from mpigraph.session.context import Session
from mpigraph.storage.format import index_dtype, storage_dtype
from mpigraph.store.derived import EdgeTimes, EdgeWeights
from mpigraph.store.edge_tables import Adjacency
from mpigraph.store.topology import InMemoryTopology

_SORTED = "sorted for sampling"  # key of the structure in the graph's cache


def sampled(g: DistGraph | HeteroGraph) -> DistGraph:
    """Return the object that samples a graph: an :class:`InMemorySampling` of a graph in memory, else the graph."""
    return cast(DistGraph, InMemorySampling(g)) if isinstance(g, HeteroGraph) else g


@collective("trainers", "on a DistGraph whose hosts are remote; else local")
def sample_neighbors(
    g: HeteroGraph | DistGraph,
    nodes: NodeIds,
    fanout: Fanout,
    edge_dir: str = "in",
    prob: FeatureName | None = None,
    replace: bool = False,
    copy_ndata: bool = True,
    copy_edata: bool = True,
    *,
    exclude_edges: EdgeIds | None = None,
    output_device: torch.device | str | None = None,
    seed: int | None = None,
) -> HeteroGraph:
    """Sample neighbours of nodes of a graph in memory, or of a DistGraph.

    Args:
        g: the graph.
        nodes: int[n], node ids; or node type -> int[n], which graphs with several node types need.
        fanout: most neighbours of a node in each relation; -1 means all. Or edge type -> most neighbours.
        edge_dir: "in" for edges into the nodes; in memory also "out" for those out of them.
        prob: name of an edge feature with weights or a mask, as in :meth:`.DistGraph.sample_neighbors`.
        replace: draw with replacement.
        copy_ndata: keep the node features of a graph in memory (the tensors are shared).
        copy_edata: keep the edge features of a graph in memory, of the sampled edges.
        exclude_edges: int[k], ids of edges that must not be drawn, or a dict of them by edge type.
        output_device: where to put the graph; the CPU by default.
        seed: makes the draw a function of the arguments alone. By default two calls differ; those on graphs in memory
            take a number from torch's generator, so that ``torch.manual_seed`` repeats them.

    Returns:
        A graph with all nodes and relations of ``g`` and the sampled edges, ordered by their node's place in ``nodes``;
        ``edata[EID]`` are their ids in ``g``.

    Raises:
        OutOfRangeError, FieldNameError, NodeTypeError, EdgeTypeError, InvalidArgumentError: as there.
    """
    arguments = SamplingArguments([fanout], edge_dir, prob, replace, seed=seed)
    return sample_by(arguments, g, nodes, copy_ndata, copy_edata, exclude_edges, output_device)


@collective("trainers", "on a DistGraph whose hosts are remote; else local")
def sample_by(
    arguments: SamplingArguments,
    g: HeteroGraph | DistGraph,
    nodes: NodeIds,
    copy_ndata: bool,
    copy_edata: bool,
    exclude_edges: EdgeIds | None,
    output_device: torch.device | str | None,
) -> HeteroGraph:
    """Do the work of :func:`sample_neighbors` by the arguments of one layer."""
    if isinstance(g, HeteroGraph) and arguments.edge_dir == "out":
        fanout, prob, exclude_edges = (
            _turned_keys(g, argument) for argument in (arguments.fanouts[0], arguments.prob, exclude_edges)
        )
        arguments = replace(arguments, fanouts=[fanout], prob=prob, edge_dir="in")
        drawn = InMemorySampling(_turned(g)).sample_hop(nodes, arguments, exclude_edges).reverse(copy_edata=True)
    else:
        drawn = sampled(g).sample_hop(nodes, arguments, exclude_edges)
    for ntype in g.ntypes if not copy_ndata else ():
        drawn.nodes[ntype].data.clear()
    for relation in g.canonical_etypes if not copy_edata else ():
        frame = drawn.edges[relation].data
        for name in [name for name in frame if name != EID]:
            del frame[name]
    return drawn if output_device is None else drawn.to(output_device)


class InMemorySampling(SampledGraph):
    """``graph`` in memory as samplers see it. Other attributes are those of the graph. Everything is local."""

    def __init__(self, graph: HeteroGraph) -> None:
        self.graph = graph
        self._structure: _Structure = graph._once(_SORTED, lambda: _Structure(graph))
        super().__init__(self._structure.session, self._structure.loaded, Features())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.graph, name)

    @property
    def nodes(self) -> Any:
        """Those of the graph."""
        return self.graph.nodes

    @property
    def edges(self) -> Any:
        """Those of the graph."""
        return self.graph.edges

    def sample_hop(
        self, seed_nodes: NodeIds, arguments: SamplingArguments, exclude_edges: EdgeIds | None = None
    ) -> HeteroGraph:
        """As :meth:`SampledGraph.sample_hop`, with the features of the graph."""
        frontier = super().sample_hop(seed_nodes, arguments, exclude_edges)
        self._finish(frontier)
        for ntype in self.schema.ntypes:
            frontier.nodes[ntype].data.update(self.graph.nodes[ntype].data)
        return frontier

    def sample_blocks(self, seed_nodes: NodeIds, fanouts: Layers, **options: Any) -> Blocks:
        """As :meth:`SampledGraph.sample_blocks`; the blocks have the features of the graph, gathered when used."""
        input_nodes, output_nodes, blocks = super().sample_blocks(seed_nodes, fanouts, **options)
        for block in blocks:
            self._finish(block)
        return input_nodes, output_nodes, blocks

    def sample_subgraph(self, seed_nodes: NodeIds, fanouts: Layers, **options: Any) -> Subgraph:
        """As :meth:`SampledGraph.sample_subgraph`."""
        subgraph = super().sample_subgraph(seed_nodes, fanouts, **options)
        for number, ids in enumerate(subgraph.eids or []):
            ids[:] = self._structure.eids(self.schema.relations[number], torch.from_numpy(ids)).numpy()
        return subgraph

    def sample_induced(
        self, seed_nodes: NodeIds, arguments: SamplingArguments, exclude_edges: EdgeIds | None = None
    ) -> tuple[NodeTensors, NodeTensors, HeteroGraph]:
        """As :meth:`SampledGraph.sample_induced`; the subgraph has the features of the graph, gathered when used."""
        nodes, seeds, subgraph = super().sample_induced(seed_nodes, arguments, exclude_edges)
        self._finish(subgraph)
        return nodes, seeds, subgraph

    def _finish(self, sample: HeteroGraph | Block) -> None:
        """Number the edges of a sample as in the graph, and give it the features."""
        for relation in self.schema.relations:
            frame = sample.edges[relation].data
            if EID in frame:
                frame[EID] = self._structure.eids(relation, frame[EID])
        take_features(sample, self.graph)

    def times(self, name: str) -> Times:
        """As :meth:`SampledGraph.times`."""
        times = Times.find(self.schema, self.nodes, self.edges, name)
        columns: Any = [
            {
                kind: DistTensor.of_rows(
                    self.session, "", self._structure.tensor(Policy(is_node, kind), name, cast(Any, values))
                )
                for kind, values in of.items()
            }
            for is_node, of in ((True, times.of_nodes), (False, times.of_edges))
        ]
        return Times(name, *columns)

    def prepare_times(self, name: str) -> None:
        """As :meth:`SampledGraph.prepare_times`."""
        pairs = [(times.rows.number, relation) for relation, times in self.times(name).by_relation(self.schema).items()]
        self._structure.store.prepare(EdgeTimes, pairs)

    def prepare_walks(self, etypes: Sequence[EdgeType] | None = None, prob: FeatureName | None = None) -> None:
        """Do nothing: the first walk sorts the edges."""

    def out_weights(self, relations: Collection[int], prob: FeatureName | None) -> dict[int, int]:
        """As :meth:`SampledGraph.out_weights`."""
        weights = InMemorySampling(_turned(self.graph)).edge_weights(_turned_keys(self.graph, prob)) if prob else {}
        return {relation: number for relation, number in weights.items() if relation in relations}

    def out_edges(self, relations: Collection[int], weights: Mapping[int, int]) -> OutEdges:
        """As :meth:`SampledGraph.out_edges`."""
        turned = InMemorySampling(_turned(self.graph))
        tensors = turned.session.store.tensors
        one = SamplingArguments([1])
        strategies = {r: one.strategy(1, tensors[weights[r]] if r in weights else None, 0) for r in relations}

        def eids(relation: int, places: I64) -> I64:
            ids: I64 = turned._structure.eids(turned.schema.relations[relation], torch.from_numpy(places)).numpy()
            return ids

        return OutEdges(turned.session, turned.loaded.number, strategies, eids)

    def refuse_walk(self, error: MPIGraphError) -> NoReturn:
        """Raise the error."""
        raise error

    def find_edges(self, eid: IdsLike, etype: EdgeType = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return source and destination of edges, on the CPU."""
        src, dst = self.graph.find_edges(eid, etype)
        return src.cpu(), dst.cpu()

    def edge_weights(self, prob: FeatureName) -> dict[int, int]:
        """As :meth:`SampledGraph.edge_weights`; raises GraphDataError if one is negative, infinite or NaN."""
        frames: dict[tuple[Policy, str], Frame] = {}
        for number, relation in enumerate(self.schema.relations):
            frame = self.graph._edge_frame(relation)
            frames.update({(Policy(False, number), name): frame for name in frame})
        named: Any = Spaces[Relation](self.schema, cast(Features, frames), False).named(prob)
        numbers = {}
        for (relation, name), frame in named.items():
            values, number = frame[name], self.schema.relation_id(relation)
            if values.dim() != 1 or values.dtype not in (torch.bool, torch.uint8, torch.float32, torch.float64):
                raise InvalidArgumentError(
                    f"edge weights {name!r} must be one bool, uint8, float32 or float64 for each edge "
                    f"(got {values.dtype}, shape {tuple(values.shape)})"
                )
            numbers[number] = self._structure.tensor(Policy(False, number), name, values).number
        self._structure.store.prepare(EdgeWeights, ([number] for number in numbers.values()))
        return numbers

    def excluded(self, edges: EdgeIds | None) -> dict[int, I64]:
        """As :meth:`SampledGraph.excluded`, by their places in the sorted structure."""
        by_relation = super().excluded(edges)
        return {r: np.sort(self._structure.places(self.schema.relations[r])[ids]) for r, ids in by_relation.items()}


class _Structure:
    """The sampling data of a graph: a store of this process, whose rows come from the graph's tensors.

    It does not refer to the graph, which may be dropped meanwhile.
    """

    def __init__(self, graph: HeteroGraph) -> None:
        self.schema: Schema = graph.schema
        self._relations = [_Sorted.of(graph, relation) for relation in self.schema.relations]
        hosts = RangeBook(
            self.schema,
            tuple(np.array([0, graph.num_nodes(ntype)], np.int64) for ntype in self.schema.ntypes),
            tuple(np.array([0, graph.num_edges(r)], np.int64) for r in self.schema.relations),
        )
        self.session = Session.alone()
        self.store = self.session.store
        self.loaded = self.store.add_in_memory(
            InMemoryTopology(hosts, [(edges.adjacency, edges.order) for edges in self._relations])
        )
        self._tensors: dict[tuple[Policy, str], tuple[Contents, RowTensor]] = {}

    def eids(self, relation: Relation, places: torch.Tensor) -> torch.Tensor:
        """Return the ids in the graph of edges of the sorted structure, int64[n]."""
        return torch.from_numpy(self._of(relation).order[places.numpy()])

    def places(self, relation: Relation) -> I64:
        """Return the place of each edge of the graph in the sorted structure, int64[num_edges]."""
        return self._of(relation).places

    def tensor(self, policy: Policy, name: str, values: torch.Tensor) -> RowTensor:
        """Return the tensor of a feature, of edges in the sorted order; a new one once the feature was written."""
        contents = contents_of(values)
        before, known = self._tensors.get((policy, name), (None, None))
        if known is not None and before == contents:
            return known
        if known is not None:
            self.store.free([known.number])
        dtype = str(values.dtype).removeprefix("torch.")
        rows = values.detach().cpu().numpy().view(storage_dtype(dtype))
        rows = np.ascontiguousarray(rows if policy.is_node else rows[self._relations[policy.type_id].order])
        tensor = self.store.create_tensor(self.loaded.topology, name, policy, values.shape[1:], dtype)
        tensor.window.memory(0)[:] = rows
        self._tensors[policy, name] = contents, tensor
        return tensor

    def _of(self, relation: Relation) -> "_Sorted":
        return self._relations[self.schema.relation_id(relation)]


@dataclass(frozen=True)
class _Sorted:
    """The in-edges of one relation as hosts hold them, by destination and source."""

    adjacency: Adjacency
    order: I64  # [num_edges], their ids in the graph

    @classmethod
    def of(cls, graph: HeteroGraph, relation: Relation) -> "_Sorted":
        """Sort the edges of a graph, equal ones by their ids."""
        src, dst = (column.cpu() for column in graph._coo(relation))
        order = torch.argsort(src, stable=True)
        order = order[torch.argsort(dst[order], stable=True)]
        num_src, num_dst = graph.num_nodes(relation[0]), graph.num_nodes(relation[2])
        indptr = np.zeros(num_dst + 1, np.int64)
        np.cumsum(torch.bincount(dst, minlength=num_dst).numpy(), out=indptr[1:])
        indices: Array = src[order].numpy().astype(index_dtype(num_src))
        return cls(Adjacency(indptr, indices, 0, 0), order.numpy())

    @cached_property
    def places(self) -> I64:
        """The place of each edge of the graph, int64[num_edges]."""
        places = np.empty_like(self.order)
        places[self.order] = np.arange(len(places))
        return places


def _turned(g: HeteroGraph) -> HeteroGraph:
    """Return the graph with turned edges, which keep their ids and features; it is sorted for sampling once."""
    graph = g.reverse(copy_edata=True)
    graph._once(_SORTED, lambda: g._once((_SORTED, "out"), lambda: _Structure(graph)))
    return graph


def take_features(sample: HeteroGraph | Block, g: HeteroGraph) -> None:
    """Give a subgraph or block the features that ``g`` has of its ``NID`` and ``EID``, gathered when they are read."""
    for ntype in g.ntypes:
        for frame in (sample.srcnodes[ntype].data, sample.dstnodes[ntype].data):
            _take_later(frame, g.nodes[ntype].data, NID)
    for relation in sample.canonical_etypes:
        frame = sample.edges[relation].data
        if EID in frame:
            _take_later(frame, g.edges[relation].data, EID)


def _take_later(to: Frame, features: Frame, ids_name: str) -> None:
    """Give a frame the rows of all features that it lacks, by the ids that it has under a name, if it has them."""
    if ids_name not in to:
        return
    ids = to[ids_name]
    for name in features:
        if name not in to:
            to.set_later(name, lambda name=name: features[name][ids.to(features[name].device)])  # type: ignore[misc]


def _turned_keys(g: HeteroGraph, values: object) -> Any:
    """Return a value by edge type for the graph with turned edges; another value as it is."""
    if not isinstance(values, Mapping):
        return values
    relations = {g.to_canonical_etype(etype): value for etype, value in values.items()}
    return {(dst, name, src): value for (src, name, dst), value in relations.items()}
