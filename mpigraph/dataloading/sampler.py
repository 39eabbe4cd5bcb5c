"""Samplers, which draw the blocks of a minibatch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mpigraph.collective import WHEN_REMOTE, collective
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.sampled_graph import SampledGraph
from mpigraph.distgraph.sampling_arguments import SamplingArguments, TimeFilter
from mpigraph.distgraph.typed_ids import Blocks, EdgeIds, Fanout, FeatureName, Names, NodeIds, check_layers
from mpigraph.errors import InvalidArgumentError, check_integer
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.sampling.minibatch import Subgraph
from mpigraph.sampling.strategies import Labor, Strategy


@dataclass(frozen=True)
class Needs:
    """The needs of a sampler, which loaders prepare and gather; names of features may be by type."""

    node_feats: Names = ()  # of node features to gather for the input nodes
    labels: Names = ()  # the same for the output nodes
    edge_feats: Names = ()  # of edge features to gather for the sampled edges (only PyG's minibatches)
    edge_labels: Names = ()  # the same for the seed edges
    weights: FeatureName | None = None  # the edge weights or masks that hosts prepare
    times: TimeFilter | None = None  # the filter of edges by time
    random: bool = True  # two minibatches of the same seeds may differ
    description: str = ""  # the known parameters of the draws; compared when a loader continues from a state


class Sampler(ABC):
    """Makes minibatches of seeds; subclass it, or :class:`BlockSampler`, for a sampler of your own.

    Attributes:
        prefetch_node_feats: names of node features that loaders gather for the input nodes, or node type -> names.
        prefetch_labels: the same for the output nodes.
        prefetch_edge_feats: names of edge features that loaders gather for ``output="pyg"``, or edge type -> names.
    """

    prefetch_node_feats: Names = ()
    prefetch_labels: Names = ()
    prefetch_edge_feats: Names = ()

    @abstractmethod
    def sample(self, g: DistGraph, indices: Any) -> Any:
        """Make the minibatch of some ids, or type -> ids, of a graph.

        Args:
            g: the graph.
            indices: int64[n], or type -> int64[n].
        """

    @property
    def needs(self) -> Needs:
        """The data that loaders prepare and gather for the sampler."""
        return _prefetched(self)


def needs_of(sampler: object) -> Needs:
    """Return the needs of a sampler; of an object of another class, the names in its ``prefetch_...``."""
    return sampler.needs if isinstance(sampler, Sampler) else _prefetched(sampler)


def _prefetched(sampler: object) -> Needs:
    of_nodes, labels, of_edges = (
        getattr(sampler, f"prefetch_{kind}", ()) for kind in ("node_feats", "labels", "edge_feats")
    )
    return Needs(of_nodes, labels, of_edges, description=type(sampler).__qualname__)


def plain(value: Any) -> Any:
    """Return an option as descriptions have it: numbers of numpy or torch, also inside of lists and dicts, as Python's.

    Their repr differs, and a loader may continue from the state of one whose sampler was given the same numbers.
    """
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.item() if getattr(value, "ndim", None) == 0 else value


def has_method(sampler: object, name: str) -> bool:
    """Return whether a sampler, which may be of any class, has this method."""
    return callable(getattr(sampler, name, None))


def check_graph(g: object) -> DistGraph:
    """Return the graph of a loader or sampler. Raises InvalidArgumentError if it is no distributed graph."""
    if not isinstance(g, SampledGraph):
        raise InvalidArgumentError(
            f"g must be a DistGraph (got {type(g).__name__}): partition_graph() writes one, and `python train.py` "
            "serves it in one process"
        )
    graph: Any = g
    return graph  # type: ignore[no-any-return]


class BlockSampler(Sampler):
    """Draws ``(input nodes, output nodes, blocks)`` for seeds. A sampler of your own has ``sample_blocks`` alone."""

    @abstractmethod
    @collective("trainers", WHEN_REMOTE)
    def sample_blocks(self, g: DistGraph, seed_nodes: NodeIds, exclude_eids: EdgeIds | None = None) -> Blocks:
        """Draw the blocks of one minibatch.

        Args:
            g: the graph.
            seed_nodes: int64[n], or node type -> int64[n].
            exclude_eids: int[k], ids of excluded edges, removed before sampling, or a dict of them by edge type.
                Loaders of nodes do not pass it, and a sampler for these alone may lack the parameter.

        Returns:
            Input nodes, output nodes (both by node type where the graph has several, output nodes with the types of
            the seeds), and blocks, outermost hop first.
        """
        raise NotImplementedError

    @collective("trainers", WHEN_REMOTE)
    def sample(self, g: DistGraph, seed_nodes: NodeIds, exclude_eids: EdgeIds | None = None) -> Blocks:
        """The same as :meth:`sample_blocks`, under DGL's other name."""
        excluded = () if exclude_eids is None else (exclude_eids,)
        return self.sample_blocks(g, seed_nodes, *excluded)


_ARGUMENTS = ("fanouts", "edge_dir", "prob", "replace", "return_eids", "num_threads", "disjoint", "time_filter")


class NeighborSampler(BlockSampler):
    """Samples a fixed number of in-neighbours in each layer (Hamilton et al., "Inductive Representation Learning on
    Large Graphs", NeurIPS 2017).

    The draw is a hash of seed, epoch, the minibatch's seed nodes, hop and node: the same on any number of ranks. Equal
    minibatches of an epoch draw differently, and so does a node that is given as a seed several times.

    Attributes:
        fanouts, edge_dir, prob, replace, return_eids, num_threads, disjoint, time_filter: the fields of
            :attr:`arguments`; new values count from the next draw on.
        arguments_type: set by a subclass that chooses neighbours in another way.

    Example:
        >>> sampler = mpigraph.dataloading.NeighborSampler([5, 10])
        >>> input_nodes, output_nodes, blocks = sampler.sample(g, [0, 1])
    """

    arguments_type: type[SamplingArguments] = SamplingArguments

    def __init__(
        self,
        fanouts: Sequence[Fanout],
        edge_dir: str = "in",
        prob: FeatureName | None = None,
        mask: FeatureName | None = None,
        replace: bool = False,
        prefetch_node_feats: Names = (),
        prefetch_labels: Names = (),
        prefetch_edge_feats: Names = (),
        output_device: torch.device | str | None = None,
        fused: bool = True,
        *,
        time_attr: str | None = None,
        temporal_strategy: str = "uniform",
        temporal_comparison: str = "<=",
        time_window: int | None = None,
        disjoint: bool = False,
        return_eids: bool = True,
        num_threads: int | None = None,
        empty_relations: bool = True,
    ) -> None:
        """Describe the draw.

        Args:
            fanouts: most neighbours in each layer, outermost hop first; each as in :meth:`.DistGraph.sample_neighbors`.
            edge_dir: only "in".
            prob: name of an edge feature with weights, as in :meth:`.DistGraph.sample_neighbors`.
            mask: name of an edge feature with a mask, or edge type -> name; not together with ``prob``.
            replace: with replacement.
            prefetch_node_feats: names of node features that loaders gather for the input nodes, into
                ``blocks[0].srcdata``; or node type -> names, into ``blocks[0].srcnodes[ntype].data``.
            prefetch_labels: names of node features that loaders gather for the output nodes, into
                ``blocks[-1].dstdata``; or node type -> names, into ``blocks[-1].dstnodes[ntype].data``.
            prefetch_edge_feats: names of edge features that loaders gather for ``output="pyg"``, or edge type -> names;
                those of blocks are read with ``block.edata[EID]``.
            output_device: accepted for DGL's scripts; the loader's ``device`` says where blocks go.
            fused: accepted for DGL's scripts; hops are always fused.
            time_attr: name of a feature with times, an int64 for each node, or each edge, of the types that have it. A
                minibatch then has a tree for each seed, with a time of its own, and no edge in it is newer: by the
                edge's own time, or that of its source. Types without times are not filtered. A ``prob`` must then be a
                mask of bool.
            temporal_strategy: "uniform", or "last": the newest edges; of equal times the one of higher id is newer.
            temporal_comparison: "<=", or "<" to leave out edges of exactly the seed's time, too.
            time_window: most by which an edge may be older than the seed; 0 leaves edges of exactly its time.
            disjoint: a tree for each seed without times, too. The draws of a tree then depend on its root, not on the
                minibatch: a root draws the same in all minibatches of an epoch, except where these have equal seeds.
            return_eids: blocks carry ``edata[EID]``; without it less data travels.
            num_threads: threads that draw local neighbours, with the same results; by default those of ``initialize``.
            empty_relations: blocks of a typed ``DistGraph`` keep relations without sampled edges, as in DGL since 2.3.
                Without them the blocks of two minibatches may have different relations. A block without any edge has
                all relations in both cases, as in DGL.

        Raises:
            InvalidArgumentError: ``prob`` and ``mask`` together, a fanout that is not an integer >= -1, ``num_threads``
                below 1, or another value of an option of times.
        """
        time_options = (temporal_strategy, temporal_comparison, time_window)
        checked = TimeFilter("" if time_attr is None else time_attr, *time_options)
        if time_attr is None and time_options != ("uniform", "<=", None):
            raise InvalidArgumentError("temporal_strategy, temporal_comparison and time_window need time_attr")
        self.fanouts = check_layers(fanouts)
        self.edge_dir = edge_dir
        self.prob = prob or mask
        self.replace = replace
        self.return_eids = return_eids
        self.num_threads = num_threads
        self.disjoint = bool(disjoint) or time_attr is not None
        self.time_filter = None if time_attr is None else checked
        self.arguments.check_numbers()  # first: in older scripts of DGL, the graph stood where fanouts stand
        if prob is not None and mask is not None:
            raise InvalidArgumentError("give prob or mask, not both")
        self.prefetch_node_feats = prefetch_node_feats or ()
        self.prefetch_labels = prefetch_labels or ()
        self.prefetch_edge_feats = prefetch_edge_feats or ()
        self.empty_relations = bool(empty_relations)

    @property
    def arguments(self) -> SamplingArguments:
        """The arguments of the next draw."""
        return self.arguments_type(**{name: getattr(self, name) for name in _ARGUMENTS})

    @property
    def needs(self) -> Needs:
        """See :class:`Sampler`."""
        how = ", replace" if self.replace else ""
        if self.disjoint:
            how += f", disjoint, {self.time_filter}"
        layers = (layer.values() if isinstance(layer, Mapping) else [layer] for layer in self.fanouts)
        return replace(
            super().needs,
            weights=self.prob,
            times=self.time_filter,
            random=any(set(layer) - {-1, 0} for layer in layers),
            description=f"{type(self).__qualname__}({plain(self.fanouts)}, prob={self.prob}{how})",
        )

    @collective("trainers", WHEN_REMOTE)
    def sample_blocks(
        self,
        g: DistGraph,
        seed_nodes: NodeIds,
        exclude_eids: EdgeIds | None = None,
        *,
        input_time: NodeIds | None = None,
    ) -> Blocks:
        """Draw the blocks of one minibatch, in every layer without the edges ``exclude_eids``.

        ``input_time`` has an int64 for each seed, in their form: its time, with ``time_attr``. By default it is the
        seeds' own, where nodes have times.

        Raises:
            InvalidArgumentError: times are missing, or no integers, or there is no ``time_attr``. On every rank if
                hosts are remote.
            OutOfRangeError: a seed or an excluded edge does not exist. On every rank if hosts are remote.
        """
        inputs, outputs, blocks = check_graph(g).sample_blocks(
            seed_nodes, self.arguments, exclude_edges=exclude_eids, seed_times=input_time
        )
        if not self.empty_relations and len(g.canonical_etypes) > 1:
            blocks = type(blocks)(block.without_empty_relations() for block in blocks)
        return inputs, outputs, blocks

    @collective("trainers", WHEN_REMOTE)
    def sample_subgraph(
        self,
        g: DistGraph,
        seed_nodes: NodeIds,
        exclude_eids: EdgeIds | None = None,
        *,
        input_time: NodeIds | None = None,
    ) -> Subgraph:
        """Draw one minibatch as a subgraph in which every node is expanded once, as PyG does; else as the blocks.

        Returns:
            Nodes by node type id, edges by relation id.

        Raises:
            OutOfRangeError: a seed or an excluded edge does not exist. On every rank if hosts are remote.
        """
        return check_graph(g).sample_subgraph(
            seed_nodes, self.arguments, exclude_edges=exclude_eids, seed_times=input_time
        )


MultiLayerNeighborSampler = NeighborSampler


class MultiLayerFullNeighborSampler(NeighborSampler):
    """Takes all in-neighbours in each of ``num_layers`` layers."""

    def __init__(self, num_layers: int, **options: Any) -> None:
        """The options are those of :class:`NeighborSampler`."""
        super().__init__([-1] * num_layers, **options)


_MOST_STEPS = 2**31 - 1


@dataclass(frozen=True)
class _LaborArguments(SamplingArguments):
    """The arguments of :class:`LaborSampler`.

    Attributes:
        period: steps that a number lives; 0 for numbers of each minibatch.
    """

    layer_dependency: bool = False
    period: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replace:
            raise InvalidArgumentError(
                "replace must be False: LABOR takes the sources with the smallest numbers, each once; "
                "NeighborSampler can draw with replacement"
            )
        if self.disjoint or self.time_filter is not None:
            raise InvalidArgumentError(
                "disjoint and time_attr: LABOR saves rows where destinations share sources, and disjoint trees share "
                "none; use NeighborSampler"
            )

    def strategy(self, fanout: int, weights: RowTensor | None, times: int) -> Strategy:
        """See :class:`.SamplingArguments`."""
        return Labor(fanout, 0 if weights is None else weights.number, bool(self.layer_dependency), self.period)


class LaborSampler(NeighborSampler):
    """Samples as many in-neighbours as :class:`NeighborSampler`, and fewer distinct ones (Balin, Catalyurek:
    "Layer-Neighbor Sampling - Defusing Neighborhood Explosion in GNNs", NeurIPS 2023).

    In each hop every source has one random number, and each destination takes the ``fanout`` sources with the smallest
    numbers among its in-neighbours. A destination alone draws uniformly (or in proportion to ``prob``), but
    destinations with common in-neighbours take the same ones. The more edges a graph has for each node, the fewer rows
    a minibatch reads; on sparse graphs it reads as many. All relations with one source type share its numbers.

    This is GraphBolt's form, with exactly min(fanout, d) of d in-neighbours. DGL's ``LaborSampler`` draws each of them
    independently with probability fanout/d, so its counts vary. Here each in-neighbour is as likely to be taken as in
    uniform sampling, thus blocks have no ``edge_weights``, and models need none. Each of several parallel edges has a
    number of its own.

    The numbers are hashes of seed, minibatch or step, hop and source: the same on any number of ranks.

    Attributes:
        layer_dependency, batch_dependency: as given; new values count from the next draw on.

    Example:
        >>> labor = mpigraph.dataloading.LaborSampler([5, 10], batch_dependency=16)
    """

    arguments_type = _LaborArguments

    def __init__(
        self,
        fanouts: Sequence[Fanout],
        edge_dir: str = "in",
        prob: FeatureName | None = None,
        importance_sampling: int = 0,
        layer_dependency: bool = False,
        batch_dependency: int = 1,
        prefetch_node_feats: Names = (),
        prefetch_labels: Names = (),
        prefetch_edge_feats: Names = (),
        output_device: torch.device | str | None = None,
        *,
        mask: FeatureName | None = None,
        **options: Any,
    ) -> None:
        """Describe the draw.

        Args:
            fanouts: as in :class:`NeighborSampler`.
            edge_dir: only "in".
            prob: as in :class:`NeighborSampler`.
            importance_sampling: only 0: LABOR-i and LABOR-* need all in-neighbours of a hop's destinations in one
                place, and in a distributed graph they are on several hosts.
            layer_dependency: all hops of a minibatch share the numbers: fewer rows still, and draws that are less
                independent.
            batch_dependency: steps that a number lives. A source renews its number every ``batch_dependency`` steps,
                one source in as many at each step, so that consecutive minibatches read many rows again and caches
                serve more of them. (DGL interpolates between numbers instead.) Above 1, the
                minibatches of a step share the numbers. Step s of a loader consists of the minibatches with number s,
                counted through all its epochs, of each trainer; a resumed loader continues to count, on any number of
                trainers. Loaders with one seed share the numbers of equal steps. Outside of loaders each call is a
                step.
            prefetch_node_feats: as in :class:`NeighborSampler`, like the next three.
            prefetch_labels: names of node features for the output nodes.
            prefetch_edge_feats: names of edge features.
            output_device: accepted for DGL's scripts.
            mask: as in :class:`NeighborSampler`.
            options: other options of :class:`NeighborSampler`, except ``replace``, ``disjoint`` and those of times.

        Raises:
            InvalidArgumentError: ``importance_sampling`` is not 0, ``batch_dependency`` is not an integer from 1 on,
                an option that LABOR cannot have, or as :class:`NeighborSampler`.
        """
        if importance_sampling != 0:
            raise InvalidArgumentError(
                f"importance_sampling must be 0 (got {importance_sampling!r}): LABOR-i and LABOR-* need all "
                "in-neighbours of a hop's destinations in one place, but these are on several hosts"
            )
        self.layer_dependency = bool(layer_dependency)
        self.batch_dependency = batch_dependency
        prefetched = prefetch_node_feats, prefetch_labels, prefetch_edge_feats
        with_replacement = options.pop("replace", False)
        super().__init__(fanouts, edge_dir, prob, mask, with_replacement, *prefetched, output_device, **options)

    @property
    def arguments(self) -> SamplingArguments:
        """See :class:`.NeighborSampler`."""
        period = check_integer("batch_dependency", self.batch_dependency, 1, _MOST_STEPS)
        own: dict[str, Any] = {"layer_dependency": self.layer_dependency, "period": period if period > 1 else 0}
        return replace(super().arguments, **own)

    @property
    def needs(self) -> Needs:
        """See :class:`.Sampler`."""
        needs = super().needs
        own = {name: getattr(self, name) for name in ("layer_dependency", "batch_dependency")}
        return replace(needs, description=f"{needs.description}, {plain(own)}")
