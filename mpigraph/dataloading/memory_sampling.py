"""Sampling on a graph in memory, by the kernels and with the draws of a distributed one.

:func:`sampled` gives a :class:`HeteroGraph` the side of a :class:`DistGraph` that samples: one host holds everything,
no other rank is needed, and no job. A DistGraph of one part keeps the in-edges of a node by source; so does the copy of
the structure here, and so both draw the same neighbours for the same seeds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from mpigraph.arrays import I32, I64, Array
from mpigraph.collective import collective
from mpigraph.config import Config
from mpigraph.distgraph.features import EdgeSpaces, Features
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.sampled_graph import Layers, SampledGraph, SamplingArguments
from mpigraph.distgraph.times import Times
from mpigraph.distgraph.typed_ids import Blocks, EdgeIds, Fanout, FeatureName, NodeIds
from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.graphs.fields import EID, NID, Contents, EdgeType, IdsLike, contents_of
from mpigraph.graphs.frame import Frame
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.kernels.masked import list_allowed
from mpigraph.kernels.temporal import sort_rows
from mpigraph.kernels.weighted import alias_tables
from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import Relation, Schema
from mpigraph.rows.row_tensor import Policy
from mpigraph.sampling.minibatch import RandomContext, Subgraph
from mpigraph.sampling.neighbor_service import NeighborService
from mpigraph.session.context import Session, current, is_initialized
from mpigraph.session.draws import next_in_memory
from mpigraph.storage.format import index_dtype
from mpigraph.store.derived import EdgeWeights
from mpigraph.store.topology import Adjacency

__all__ = ["InMemorySampling", "sample_neighbors", "sampled", "take_later"]

_SORTED = "sorted for sampling"  # what a graph keeps of its structure


def job_seed() -> int:
    """Return the running job's seed; 0 without a job."""
    return current().store.seed if is_initialized() else 0


def sampled(g: DistGraph | HeteroGraph) -> DistGraph:
    """Return the side of a graph that samples: of a graph in memory an :class:`InMemorySampling`, else itself."""
    return cast(DistGraph, InMemorySampling(g)) if isinstance(g, HeteroGraph) else g


@collective("trainers", "on a DistGraph whose hosts are far; else local")
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
        copy_ndata: carry the node features of a graph in memory (the tensors are shared).
        copy_edata: carry the edge features of a graph in memory, of the sampled edges.
        exclude_edges: int[k], ids of edges not to be drawn, or a dict of them by edge type.
        output_device: where to put the graph; the CPU by default.
        seed: makes the draw a function of the arguments alone. By default two calls differ; those on graphs in memory
            take a number from torch's generator, so that ``torch.manual_seed`` repeats them.

    Returns:
        A graph with all nodes and relations of ``g`` and the sampled edges, ordered by their node's place in ``nodes``;
        ``edata[EID]`` are their ids in ``g``.

    Raises:
        OutOfRangeError, FieldNameError, NodeTypeError, EdgeTypeError, InvalidArgumentError: as there.
    """
    if not isinstance(g, HeteroGraph):
        plain = (nodes, fanout, edge_dir, prob, exclude_edges, replace)
        return g.sample_neighbors(*plain, output_device=output_device, seed=seed)
    turned = edge_dir == "out"
    graph = g
    if turned:  # edges keep their ids when they are turned, and their features
        fanout, prob, exclude_edges = (_turned_keys(g, some) for some in (fanout, prob, exclude_edges))
        graph = g.reverse(copy_edata=True)
        graph._once(_SORTED, lambda: g._once((_SORTED, "out"), lambda: _Structure(graph)))
    sampling = InMemorySampling(graph)
    direction = "in" if turned else edge_dir
    drawn = sampling.sample_neighbors(nodes, fanout, direction, prob, exclude_edges, replace, seed=seed)
    if turned:
        drawn = drawn.reverse(copy_edata=True)
    for ntype in g.ntypes if not copy_ndata else ():
        drawn.nodes[ntype].data.clear()
    for relation in g.canonical_etypes if not copy_edata else ():
        frame = drawn.edges[relation].data
        for name in [name for name in frame if name != EID]:
            del frame[name]
    return drawn if output_device is None else drawn.to(output_device)


class InMemorySampling(SampledGraph):
    """A graph in memory as samplers see it. What it does not have itself is that of the graph. Everything is local.

    Attributes:
        graph: the graph.
    """

    def __init__(self, graph: HeteroGraph) -> None:
        self.graph = graph
        self._structure: _Structure = graph._once(_SORTED, lambda: _Structure(graph))
        loaded: Any = self._structure.loaded
        super().__init__(self._structure.session, loaded, {})

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

    def sample_neighbors(
        self,
        seed_nodes: NodeIds,
        fanout: Fanout | SamplingArguments,
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
        """As :meth:`SampledGraph.sample_neighbors`, with the features of the graph."""
        frontier = super().sample_neighbors(seed_nodes, fanout, edge_dir, prob, exclude_edges, replace, seed=seed)
        for relation in self.schema.relations:
            frame = frontier.edges[relation].data
            frame[EID] = self._structure.eids(relation, frame[EID])
            take_later(frame, self.graph._edge_frame(relation), frame[EID])
        for ntype in self.schema.ntypes:
            frontier.nodes[ntype].data.update(self.graph.nodes[ntype].data)
        return frontier if output_device is None else frontier.to(output_device)

    def sample_blocks(self, seed_nodes: NodeIds, fanouts: Layers, **options: Any) -> Blocks:
        """As :meth:`SampledGraph.sample_blocks`; the blocks have the features of the graph, gathered when used."""
        input_nodes, output_nodes, blocks = super().sample_blocks(seed_nodes, fanouts, **options)
        for block in blocks:
            for relation in self.schema.relations:
                frame = block.edges[relation].data
                if EID in frame:
                    frame[EID] = self._structure.eids(relation, frame[EID])
                    take_later(frame, self.graph.edges[relation].data, frame[EID])
            for ntype in self.schema.ntypes:
                for side in (block.srcnodes[ntype].data, block.dstnodes[ntype].data):
                    take_later(side, self.graph.nodes[ntype].data, side[NID])
        return input_nodes, output_nodes, blocks

    def sample_subgraph(self, seed_nodes: NodeIds, fanouts: Layers, **options: Any) -> Subgraph:
        """As :meth:`SampledGraph.sample_subgraph`."""
        found = super().sample_subgraph(seed_nodes, fanouts, **options)
        for number, ids in enumerate(found.eids or []):
            ids[:] = self._structure.eids(self.schema.relations[number], torch.from_numpy(ids)).numpy()
        return found

    def times(self, name: str) -> Times:
        """As :meth:`SampledGraph.times`."""
        found = Times.find(self.schema, self.nodes, self.edges, name)
        columns: Any = [
            {
                kind: self._structure.time_column(Policy(is_node, kind), name, cast(Any, values))
                for kind, values in of.items()
            }
            for is_node, of in ((True, found.of_nodes), (False, found.of_edges))
        ]
        return Times(name, *columns)

    def prepare_times(self, name: str) -> None:
        """As :meth:`SampledGraph.prepare_times`."""
        for relation, column in self.times(name).by_relation(self.schema).items():
            self._structure.sort_by_time(cast(Any, column), relation)

    def find_edges(self, eid: IdsLike, etype: EdgeType = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Source and destination of edges, on the CPU."""
        src, dst = self.graph.find_edges(eid, etype)
        return src.cpu(), dst.cpu()

    def edge_weights(self, prob: FeatureName) -> dict[int, int]:
        """The number of the edge weights by relation id, as :meth:`SampledGraph.edge_weights`.

        Raises:
            GraphDataError: a weight is negative, infinite or NaN.
        """
        frames: dict[tuple[Policy, str], Frame] = {}
        for number, relation in enumerate(self.schema.relations):
            frame = self.graph._edge_frame(relation)
            frames.update({(Policy(False, number), name): frame for name in frame})
        named = EdgeSpaces(self.schema, cast(Features, frames)).named(prob)
        return {
            self.schema.relation_id(relation): self._structure.weights_number(relation, name, frame[name])
            for (relation, name), frame in cast(Mapping[tuple[Relation, str], Any], named).items()
        }

    def excluded(self, edges: EdgeIds | None) -> dict[int, I64]:
        """As :meth:`SampledGraph.excluded`, by their places in the sorted structure."""
        found = super().excluded(edges)
        return {r: np.sort(self._structure.places(self.schema.relations[r])[ids]) for r, ids in found.items()}


@dataclass(frozen=True)
class _World:
    """What sampling and passes ask of the ranks, when there is but one."""

    config: Config = field(default_factory=Config.from_env)
    all_near: bool = True
    near: tuple[bool, ...] = (True,)
    local_trainer: int = 0
    num_local_trainers: int = 1
    closed: bool = False
    threads_may_communicate: bool = True
    trainers: Any = field(default_factory=lambda: SimpleNamespace(rank=0, size=1))

    def allreduce_minmax(self, value: int, largest: bool) -> int:
        """The value."""
        return value

    def allreduce_sum(self, value: int) -> int:
        """The value."""
        return value


class _Session(Session):
    """Draws as the process says: the graph that it belongs to may be one of many."""

    def _outside_loaders(self) -> RandomContext:
        return next_in_memory(job_seed())


class _Structure:
    """What sampling keeps of a graph's structure: it does not know the graph, which may be dropped meanwhile."""

    def __init__(self, graph: HeteroGraph) -> None:
        self.schema: Schema = graph.schema
        counts = [[0, graph.num_nodes(ntype)] for ntype in self.schema.ntypes]
        self.hosts = RangeBook(
            self.schema,
            tuple(np.array(count, np.int64) for count in counts),
            tuple(np.array([0, graph.num_edges(r)], np.int64) for r in self.schema.relations),
        )
        self._relations = [_Sorted.of(graph, relation) for relation in self.schema.relations]
        self._numbers: dict[tuple[Relation, str], int] = {}
        self._weights: dict[int, _Weights] = {}
        self._columns: dict[tuple[Policy, str], _TimeColumn] = {}
        self._sorted: dict[tuple[int, ...], _SortedByTime] = {}
        self._counter = count(1)
        topology = SimpleNamespace(
            config=SimpleNamespace(schema=self.schema, book=self.hosts),
            hosts=self.hosts,
            adjacency=lambda relation, host: self._relations[relation].adjacency,
            index_dtype=lambda relation: self._relations[relation].adjacency.indices.dtype,
        )
        self.loaded = SimpleNamespace(number=0, topology=topology)
        state: Any = SimpleNamespace(
            world=_World(),
            seed=0,
            graph_of_number={0: self.loaded},
            graph=lambda number: self.loaded,
            tensors=self._weights,
            tensor=self._weights.__getitem__,
            derived=lambda kind, *numbers: self._weights[numbers[0]] if kind is EdgeWeights else self._sorted[numbers],
            is_prepared=lambda kind, *numbers: numbers in self._sorted,
        )
        nobody: Any = None  # to ask: nothing is far, and nothing is agreed on
        self.session = _Session(state, nobody, state.world.config.num_worker_threads)
        self.session._main = NeighborService(state, nobody)

    def eids(self, relation: Relation, places: torch.Tensor) -> torch.Tensor:
        """The ids in the graph of edges of the sorted structure, int64[n]."""
        return torch.from_numpy(self._of(relation).order[places.numpy()])

    def places(self, relation: Relation) -> I64:
        """Where each edge of the graph is in the sorted structure, int64[num_edges]."""
        return self._of(relation).places

    def weights_number(self, relation: Relation, name: str, values: torch.Tensor) -> int:
        """The number under which requests name some edge weights, whose tables are made if they are new."""
        number = self._numbers.setdefault((relation, name), len(self._numbers) + 1)
        contents = contents_of(values)
        if number not in self._weights or self._weights[number].contents != contents:
            self._weights[number] = _Weights(number, self._of(relation), name, values, contents)
        return number

    def time_column(self, policy: Policy, name: str, values: torch.Tensor) -> "_TimeColumn":
        """Times as samplers read them; what was sorted by earlier ones of this name is dropped."""
        known = self._columns.get((policy, name))
        contents = contents_of(values)
        if known is None or known.contents != contents:
            for key in [key for key, edges in self._sorted.items() if edges.column is known]:
                del self._sorted[key]
            known = self._columns[policy, name] = _TimeColumn(policy, next(self._counter), values, contents)
        return known

    def sort_by_time(self, column: "_TimeColumn", relation: int) -> None:
        """Sort the edges of a relation by times, if they are not."""
        if (column.number, relation) not in self._sorted:
            self._sorted[column.number, relation] = _SortedByTime(column, relation, self._relations[relation])

    def _of(self, relation: Relation) -> "_Sorted":
        return self._relations[self.schema.relation_id(relation)]


@dataclass(frozen=True)
class _Sorted:
    """The in-edges of one relation as hosts hold them, by destination and source.

    Attributes:
        adjacency: the edges.
        order: int64[num_edges], their ids in the graph.
    """

    adjacency: Adjacency
    order: I64

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
        """Where each edge of the graph is, int64[num_edges]."""
        found = np.empty_like(self.order)
        found[self.order] = np.arange(len(found))
        return found


class _TimeColumn:
    """The times of nodes of a type, or of edges of a relation, with what samplers ask of a DistTensor."""

    def __init__(self, policy: Policy, number: int, values: torch.Tensor, contents: Contents) -> None:
        self.is_node = policy.is_node
        self.number = number
        self.contents = contents
        self.values: I64 = values.detach().cpu().numpy()

    @property
    def rows(self) -> "_TimeColumn":
        """The times."""
        return self

    def gather(self, ids: I64) -> I64:
        """int64[n], some of them."""
        return self.values[ids]


class _SortedByTime:
    """The edges of a relation by destination and time; as :class:`mpigraph.store.derived.EdgeTimes`."""

    def __init__(self, column: _TimeColumn, relation: int, edges: _Sorted) -> None:
        self.column = column
        self.relation = relation
        near = edges.adjacency
        times = column.values[near.indices if column.is_node else edges.order]
        self._times, self._order = np.empty_like(times), np.empty(len(times), np.int32)
        sort_rows(near.indptr, times, self._times, self._order)

    @property
    def edges(self) -> "_SortedByTime":
        """The edges."""
        return self

    def times(self, host: int) -> I64:
        """int64[num_edges], ascending within each destination."""
        return self._times

    def order(self, host: int) -> I32:
        """int32[num_edges], the place of each among its destination's edges."""
        return self._order


class _Weights:
    """Edge weights as samplers read them, with their tables; as :class:`mpigraph.store.derived.EdgeWeights`."""

    def __init__(self, number: int, edges: _Sorted, name: str, values: torch.Tensor, contents: Contents) -> None:
        """Make the tables.

        Raises:
            GraphDataError: a weight is negative, infinite or NaN.
            InvalidArgumentError: not one number or mask for each edge.
        """
        if values.dim() != 1 or values.dtype not in (torch.bool, torch.uint8, torch.float32, torch.float64):
            raise InvalidArgumentError(
                f"edge weights {name!r} must be one bool, uint8, float32 or float64 for each edge "
                f"(got {values.dtype}, shape {tuple(values.shape)})"
            )
        self.number = number
        self.contents = contents
        self.is_mask = values.dtype == torch.bool
        self.name = name
        self.dtype = str(values.dtype).removeprefix("torch.")
        self._order = edges.order
        self._values: Array = values.detach().cpu().numpy()[edges.order]
        self._table: Array = np.empty(len(self._values), np.uint32 if self.is_mask else np.uint64)
        self._num_drawable: I32 = np.empty(len(edges.adjacency.indptr) - 1, np.int32)
        make: Callable[..., int] = list_allowed if self.is_mask else alias_tables
        bad = make(edges.adjacency.indptr, self._values, self._table, self._num_drawable)
        if bad >= 0:
            raise GraphDataError(self.complaint(bad, self._values[bad]))

    @property
    def window(self) -> "_Weights":
        """The weights."""
        return self

    @property
    def tables(self) -> "_Weights":
        """The tables."""
        return self

    def memory(self, host: int) -> Array:
        """[num_edges], the weights."""
        return self._values

    def values(self, host: int) -> Array:
        """[num_edges], the weights."""
        return self._values

    def table(self, host: int) -> Array:
        """[num_edges], to draw from."""
        return self._table

    def num_drawable(self, host: int) -> I32:
        """int32[num_dst], how many edges can be drawn."""
        return self._num_drawable

    def complaint(self, edge: int, weight: float) -> str:
        """What to say of a bad weight."""
        return f"edge weight {self.name!r} of edge {self._order[edge]} must be finite and >= 0 (got {weight})"


def take_later(to: Frame, features: Frame, ids: torch.Tensor) -> None:
    """Give a frame the rows ``ids`` of all features, gathered when they are read; ids that it has stay."""
    for name in features:
        if name not in to:
            to.set_later(name, lambda name=name: features[name][ids.to(features[name].device)])  # type: ignore[misc]


def _turned_keys(g: HeteroGraph, given: object) -> Any:
    """What is given by edge type, for the graph with turned edges."""
    if not isinstance(given, Mapping):
        return given
    relations = {g.to_canonical_etype(etype): value for etype, value in given.items()}
    return {(dst, name, src): value for (src, name, dst), value in relations.items()}
