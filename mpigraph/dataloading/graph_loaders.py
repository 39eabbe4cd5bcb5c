"""The loaders of minibatches of a graph: of nodes, or of edges with negatives, and the blocks made of them.

Edges are training examples, and the blocks those of their end nodes.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, cast, overload

import torch
from typing_extensions import Unpack  # torch depends on it

from mpigraph.arrays import I64
from mpigraph.collective import WHEN_REMOTE, collective
from mpigraph.dataloading import loader as base
from mpigraph.dataloading.edge_sampler import EdgePredictionSampler, PairSample, check_edge_times
from mpigraph.dataloading.exclusion import Exclude, ReverseEids
from mpigraph.dataloading.fetcher import BlockFetcher, FeatureFetcher, Making, Stages
from mpigraph.dataloading.negative_sampler import NegativesOf
from mpigraph.dataloading.pyg_batches import pyg_of_edges, pyg_of_nodes
from mpigraph.dataloading.sampler import BlockSampler, Sampler, check_graph, has_method, needs_of
from mpigraph.dataloading.seeds import Chosen, Item, as_seed_tensors
from mpigraph.distgraph import typed_ids
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.sampling_arguments import TimeFilter, times_by_ntype
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.block import Block
from mpigraph.graphs.fields import EID, NID, EdgeType
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.metadata.schema import Relation

# What loaders yield, for type checkers. Whether nodes are a tensor or go by type depends on the graph.
_OfNodes: TypeAlias = tuple[Any, Any, list[Block]]
_OfEdges: TypeAlias = tuple[Any, HeteroGraph, list[Block]]
_WithNegatives: TypeAlias = tuple[Any, HeteroGraph, HeteroGraph, list[Block]]


class _NodeOptions(base.Options, total=False):
    input_time: typed_ids.NodeIds | None


class _EdgeOptions(base.Options, total=False):
    exclude: Exclude
    reverse_eids: ReverseEids
    reverse_etypes: typed_ids.ByEdgeType[EdgeType] | None
    edge_label_time: typed_ids.EdgeIds | None


class DistNodeDataLoader(base.SampledDataLoader[base.Batch]):
    """Minibatches of nodes: yields ``(input_nodes, output_nodes, blocks)``, or what PyG's models take.

    Where the graph has several node types, input and output nodes are by type: input nodes with every type, output
    nodes with the types of the minibatch's seeds alone.

    Args:
        g: the graph.
        nids: int[n], this rank's seed nodes; or node type -> int[n], which graphs with several node types need, and
            whose minibatches mix the types.
        graph_sampler: has ``sample_blocks(g, seeds)``, for example a ``NeighborSampler``.
        device: where to put all of a minibatch, the CPU by default; "cuda" is the caller's current GPU. Copies to a
            GPU run on a stream of their own, for minibatches ahead too, which take memory there. The consumer's
            current stream waits for its minibatch's, the consumer does not.
        batch_size, shuffle, drop_last, num_prefetch, queue_size, seed: as in :class:`.DistDataLoader`.
        features: names of node features to gather for the input nodes, into ``blocks[0].srcdata``; besides the
            sampler's ``prefetch_node_feats``. A name is for all node types that have it; or node type -> names.
            Their memory is used again once nothing refers to them.
        labels: names of node features to gather for the output nodes, into ``blocks[-1].dstdata``; besides the
            sampler's ``prefetch_labels``.
        output: "dgl"; or "pyg": what PyG's ``NeighborLoader`` yields, see :mod:`.pyg_batches`. Features
            and labels are then of all its nodes, and the sampler's fanouts the reverse of ``num_neighbors``.
        input_time: int[n], the time of each of ``nids``, in their form; for a sampler with ``time_attr``. By
            default their own, where nodes have times.
        cache: memory on each node for copies of rows of ``features`` and ``labels`` that other nodes hold, shared by
            its trainers: a size for all of them, such as "2GiB"; "auto" for a quarter of what is free; or
            None. The minibatches are the same.
        lookahead: how many minibatches are sampled ahead, so that it is known what they read: a full cache keeps
            the rows that they read soonest. Their blocks are kept meanwhile. By default 8, 0 without a cache.
            ``MPIGRAPH_LOG_LEVEL=INFO`` prints both.
        pin_memory: put minibatches that stay on the CPU into pinned memory, as PyTorch's loader does, so that
            ``.to("cuda", non_blocking=True)`` does not wait. With a GPU as ``device`` it makes no difference.
        foreign: further options of DGL's and PyTorch's loaders, see :func:`.check_foreign`.

    Raises:
        InvalidArgumentError: ``batch_size``, ``num_prefetch`` or ``output`` is not one of these, PyG is not
            installed, or the sampler cannot make what it wants.
        FieldNameError: a feature, or the sampler's edge weights, do not exist.
        NodeTypeError: a node type does not exist, or there are several and ``nids`` are not by type.
        CollectiveError: other trainers are in another call; on every trainer.
        GraphDataError: an edge weight is negative, infinite or NaN; on every rank.

    Every trainer raises these, whichever has the reason.

    Example:
        >>> loader = mpigraph.distributed.DistNodeDataLoader(
        ...     g, nodes, sampler, batch_size=100, shuffle=True, features=["feat"], labels="label"
        ... )
        >>> for input_nodes, seeds, blocks in loader:
        ...     rows, labels = blocks[0].srcdata["feat"], blocks[-1].dstdata["label"]
    """

    @overload
    def __init__(
        self: "DistNodeDataLoader[_OfNodes]",
        g: DistGraph,
        nids: typed_ids.NodeIds,
        graph_sampler: BlockSampler,
        device: torch.device | str | None = None,
        *,
        output: Literal["dgl"] = "dgl",
        **options: Unpack[_NodeOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: "DistNodeDataLoader[Any]",
        g: DistGraph,
        nids: typed_ids.NodeIds,
        graph_sampler: BlockSampler,
        device: torch.device | str | None = None,
        *,
        output: str,
        **options: Unpack[_NodeOptions],
    ) -> None: ...

    @collective("trainers")
    def __init__(
        self,
        g: DistGraph,
        nids: typed_ids.NodeIds,
        graph_sampler: BlockSampler,
        device: torch.device | str | None = None,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        features: typed_ids.Names = (),
        labels: typed_ids.Names = (),
        output: str = "dgl",
        input_time: typed_ids.NodeIds | None = None,
        num_prefetch: int = 2,
        seed: int | None = None,
        cache: str | int | None = "auto",
        lookahead: int | None = None,
        pin_memory: bool = False,
        queue_size: int | None = None,
        **foreign: Unpack[base.Foreign],
    ) -> None:
        options = base.LoaderOptions(device, features, labels, output, input_time, cache, lookahead, pin_memory)
        batching = base.Batching(batch_size, shuffle, drop_last, queue_size, num_prefetch, seed)
        super().__init__(g, nids, graph_sampler, options, batching, foreign)

    def _make_stages(
        self, g: DistGraph, ids: Any, sampler: Any, options: base.LoaderOptions, pin_memory: bool
    ) -> Stages[Any]:
        if not has_method(sampler, "sample_blocks"):
            raise InvalidArgumentError(f"graph_sampler must have sample_blocks (got {sampler!r})")
        by_type = typed_ids.by_ntype(g.schema, ids, "nids")
        pyg = options.output == "pyg"
        make: Callable[..., Making] = pyg_of_nodes if pyg else _blocks_of_nodes
        making = make(g, by_type, sampler, options, pin_memory)
        times = _check_input_time(g, needs_of(sampler).times, by_type, options.seed_times)
        return Stages(typed_ids.unwrap_nodes(g.schema, by_type), *making, times=times, placed=pyg)


def _check_input_time(
    g: DistGraph, time_filter: TimeFilter | None, ids: Mapping[int, I64], input_time: typed_ids.NodeIds | None
) -> typed_ids.NodeTensors | None:
    """Check the times of a loader's seeds, and return them in the form of the seeds; None without ``input_time``.

    Raises InvalidArgumentError if the sampler takes no times, or needs them.
    """
    if input_time is None:
        if time_filter is not None:  # types without seeds need no times
            g.times(time_filter.attr).check_own(g.schema, [t for t, of_type in ids.items() if len(of_type)])
        return None
    if time_filter is None:
        raise InvalidArgumentError("input_time needs a sampler with time_attr, like NeighborSampler")
    return typed_ids.unwrap_nodes(g.schema, times_by_ntype(g.schema, ids, input_time))


def _blocks_of_nodes(
    g: DistGraph, ids: Mapping[int, I64], sampler: BlockSampler, options: base.LoaderOptions, pin_memory: bool
) -> Making:
    rows = BlockFetcher(g, needs_of(sampler), options.features, options.labels, pin_memory)

    def sample(chosen: Chosen) -> typed_ids.Blocks:
        return sampler.sample_blocks(g, chosen.ids, **chosen.times_as("input_time"))

    return sample, rows, rows.announce, rows.fetchers


class DistEdgeDataLoader(base.SampledDataLoader[base.Batch]):
    """Minibatches of edges: yields ``(input_nodes, pair_graph, blocks)``.

    With a negative sampler: ``(input_nodes, pair_graph, negative_pair_graph, blocks)``. The pair graphs have the seed
    edges and the negatives, and share their nodes: those of ``blocks[-1].dstdata[NID]``, in this order. Where the graph
    has several node types, input nodes are by type.

    With ``output="pyg"``: what PyG's models take.

    Args:
        g: the graph.
        eids: int[n], this rank's seed edges, for example of :func:`.edge_split`; or edge type -> int[n], which graphs
            with several edge types need, and whose minibatches mix the types.
        graph_sampler: has ``sample_blocks(g, seeds, exclude_eids)``, for example a ``NeighborSampler``; or what
            :func:`mpigraph.dataloading.as_edge_prediction_sampler` returns, which then knows ``negative_sampler``,
            ``exclude``, ``reverse_eids`` and ``reverse_etypes``: they are described there.
        labels: names of edge features to gather for the seed edges, into ``pair_graph.edata``; besides the edge
            sampler's ``prefetch_labels``.
        output: "dgl"; or "pyg": what PyG's ``LinkNeighborLoader`` yields, see :mod:`.pyg_batches`.
        edge_label_time: int[n], the time of each of ``eids``, in their form; which a sampler with ``time_attr`` needs.
            It is that of both ends and of an edge's negatives, which have to keep its source. With "<=" an edge of
            just its own time is among the neighbours that its ends see: give its time less one, or exclude it.

    The other options are those of :class:`.DistNodeDataLoader`.

    Raises:
        InvalidArgumentError: an argument is out of range, ``reverse_etypes`` is missing, or a sampler of edges is given
            together with what it knows; or PyG is not installed or has no place for what is
            wanted.
        EdgeTypeError: an edge type does not exist, or there are several and ``eids`` are not by type.
        FieldNameError, CollectiveError, GraphDataError: as there.

    Example:
        >>> loader = mpigraph.distributed.DistEdgeDataLoader(
        ...     g, edges, sampler, batch_size=1000, negative_sampler=mpigraph.dataloading.negative_sampler.Uniform(2)
        ... )
        >>> input_nodes, pairs, negatives, blocks = next(iter(loader))
    """

    @overload
    def __init__(
        self: "DistEdgeDataLoader[_OfEdges]",
        g: DistGraph,
        eids: typed_ids.EdgeIds,
        graph_sampler: BlockSampler,
        device: torch.device | str | None = None,
        *,
        negative_sampler: None = None,
        output: Literal["dgl"] = "dgl",
        **options: Unpack[_EdgeOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: "DistEdgeDataLoader[_WithNegatives]",
        g: DistGraph,
        eids: typed_ids.EdgeIds,
        graph_sampler: BlockSampler,
        device: torch.device | str | None = None,
        *,
        negative_sampler: NegativesOf,
        output: Literal["dgl"] = "dgl",
        **options: Unpack[_EdgeOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: "DistEdgeDataLoader[Any]",
        g: DistGraph,
        eids: typed_ids.EdgeIds,
        graph_sampler: BlockSampler | EdgePredictionSampler,
        device: torch.device | str | None = None,
        *,
        negative_sampler: NegativesOf | None = None,
        output: str = "dgl",
        **options: Unpack[_EdgeOptions],
    ) -> None: ...

    @collective("trainers")
    def __init__(
        self,
        g: DistGraph,
        eids: typed_ids.EdgeIds,
        graph_sampler: BlockSampler | EdgePredictionSampler,
        device: torch.device | str | None = None,
        *,
        negative_sampler: NegativesOf | None = None,
        exclude: Exclude = None,
        reverse_eids: ReverseEids = None,
        reverse_etypes: typed_ids.ByEdgeType[EdgeType] | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        features: typed_ids.Names = (),
        labels: typed_ids.Names = (),
        output: str = "dgl",
        edge_label_time: typed_ids.EdgeIds | None = None,
        num_prefetch: int = 2,
        seed: int | None = None,
        cache: str | int | None = "auto",
        lookahead: int | None = None,
        pin_memory: bool = False,
        queue_size: int | None = None,
        **foreign: Unpack[base.Foreign],
    ) -> None:
        how = (exclude, reverse_eids, reverse_etypes, negative_sampler)
        with base.arguments(check_graph(g).session):
            if not isinstance(graph_sampler, EdgePredictionSampler) and has_method(graph_sampler, "sample_blocks"):
                graph_sampler = EdgePredictionSampler(graph_sampler, *how)
            elif not has_method(graph_sampler, "sample"):
                raise InvalidArgumentError(
                    f"graph_sampler must have sample_blocks, or be a sampler of edges (got {graph_sampler!r}): "
                    "NeighborSampler and LaborSampler sample around edges"
                )
            elif any(option is not None for option in how):
                raise InvalidArgumentError(
                    "give exclude, reverse_eids, reverse_etypes and negative_sampler to as_edge_prediction_sampler"
                )
        options = base.LoaderOptions(device, features, labels, output, edge_label_time, cache, lookahead, pin_memory)
        batching = base.Batching(batch_size, shuffle, drop_last, queue_size, num_prefetch, seed)
        super().__init__(g, eids, graph_sampler, options, batching, foreign)

    def _make_stages(
        self, g: DistGraph, ids: Any, sampler: Any, options: base.LoaderOptions, pin_memory: bool
    ) -> Stages[Any]:
        by_type = typed_ids.by_relation(g.schema, ids, "eids")
        pyg = options.output == "pyg"
        make: Callable[..., Making] = pyg_of_edges if pyg else _pairs_of_edges
        making = make(g, by_type, sampler, options, pin_memory)
        times: Any = check_edge_times(g, needs_of(sampler).times, by_type, options.seed_times)
        return Stages(typed_ids.unwrap_edges(g.schema, by_type), *making, times=times, placed=pyg)


def _pairs_of_edges(
    g: DistGraph, ids: Mapping[Relation, torch.Tensor], sampler: Sampler, options: base.LoaderOptions, pin_memory: bool
) -> Making:
    needs = needs_of(sampler)
    of_blocks = BlockFetcher(g, needs, options.features, (), pin_memory)
    of_edges = FeatureFetcher(g.edges, pin_memory, options.labels, needs.edge_labels)

    def sample(chosen: Chosen) -> PairSample:
        pairs: PairSample = sampler.sample(g, chosen.ids, **chosen.times_as("edge_label_time"))
        return pairs

    def output_nodes(sampled: PairSample) -> dict[str, torch.Tensor]:
        return {ntype: sampled[1].nodes[ntype].data[NID] for ntype in g.ntypes}

    def announce(sampled: PairSample, batch: int) -> None:
        of_blocks.announce((sampled[0], output_nodes(sampled)), batch)
        of_edges.announce(lambda r: sampled[1].edges[r].data[EID], batch)

    def fetch(sampled: PairSample) -> PairSample:
        nodes, pairs, *_, blocks = sampled
        of_blocks((nodes, output_nodes(sampled), blocks))
        of_edges.fetch(lambda r: pairs.edges[r].data[EID], lambda r: pairs.edges[r].data)
        return sampled

    return sample, fetch, announce, [*of_blocks.fetchers, of_edges]


class NodeCollator:
    """Makes ``(input_nodes, output_nodes, blocks)`` of node ids.

    Attributes:
        dataset: the ids to give to a loader: int64[n], or by type where the graph has several.
    """

    def __init__(self, g: DistGraph, nids: typed_ids.NodeIds, graph_sampler: BlockSampler, gb_padding: int = 1) -> None:
        """Keep what to sample: ``nids`` of ``g``, by ``graph_sampler.sample_blocks``.

        Args:
            g: the graph.
            nids: int[n]; or node type -> int[n], which graphs with several node types need.
            graph_sampler: has ``sample_blocks(g, seeds)``.
            gb_padding: accepted for DGL's scripts.

        Raises:
            NodeTypeError: a node type does not exist, or there are several and ``nids`` are not by type.
            InvalidArgumentError: the ids are not integers in one dimension.
        """
        self.g = g
        self.graph_sampler = graph_sampler
        self.dataset = typed_ids.unwrap_nodes(g.schema, typed_ids.by_ntype(g.schema, nids, "nids"))

    @collective("trainers", WHEN_REMOTE)
    def collate(self, items: typed_ids.NodeIds | list[Item]) -> typed_ids.Blocks:
        """Sample a minibatch of int[b] ids, of ``(node type, id)`` pairs or of ids by node type."""
        return self.graph_sampler.sample_blocks(self.g, cast(typed_ids.NodeTensors, as_seed_tensors(items, "nids")))


class EdgeCollator:
    """Makes what :class:`DistEdgeDataLoader` yields of edge ids.

    Args:
        g: the graph.
        eids: int[n]; or edge type -> int[n], which graphs with several edge types need.
        graph_sampler: the ``sampler`` of :func:`.as_edge_prediction_sampler`, where the other options are described.
        g_sampling: only None.
        gb_padding: accepted for DGL's scripts.

    Attributes:
        dataset: the ids to give to a loader: int64[n], or by relation where the graph has several.

    Raises:
        EdgeTypeError: an edge type does not exist, or there are several and ``eids`` are not by type.
        InvalidArgumentError: another graph to sample from (``g_sampling``), ids that are not integers in one
            dimension, or bad arguments of the sampler.
    """

    def __init__(
        self,
        g: DistGraph,
        eids: typed_ids.EdgeIds,
        graph_sampler: BlockSampler,
        g_sampling: None = None,
        exclude: Exclude = None,
        reverse_eids: ReverseEids = None,
        reverse_etypes: typed_ids.ByEdgeType[EdgeType] | None = None,
        negative_sampler: NegativesOf | None = None,
        gb_padding: int = 1,
    ) -> None:
        base.check_foreign(type(self), {"g_sampling": g_sampling})
        self.g = g
        how = (exclude, reverse_eids, reverse_etypes, negative_sampler)
        self.graph_sampler = EdgePredictionSampler(graph_sampler, *how)
        self.dataset = typed_ids.unwrap_edges(g.schema, typed_ids.by_relation(g.schema, eids, "eids"))

    @collective("trainers", WHEN_REMOTE)
    def collate(self, items: typed_ids.EdgeIds | list[Item]) -> PairSample:
        """Sample a minibatch of int[b] ids, of ``(edge type, id)`` pairs or of ids by edge type."""
        return self.graph_sampler.sample(self.g, cast(typed_ids.EdgeTensors, as_seed_tensors(items, "eids")))
