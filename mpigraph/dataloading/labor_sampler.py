"""LABOR: a sampler whose destinations agree on whom to take, so that a minibatch has fewer distinct input nodes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mpigraph.collective import WHEN_REMOTE, collective
from mpigraph.dataloading.sampler import Needs, NeighborSampler, check_graph, plain
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.sampling_arguments import SamplingArguments
from mpigraph.distgraph.typed_ids import EdgeIds, Fanout, FeatureName, Names, NodeIds
from mpigraph.errors import InvalidArgumentError, check_integer
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.sampling.strategies import Labor, Strategy

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
        _check_importance(importance_sampling)
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


@collective("trainers", WHEN_REMOTE)
def sample_labors(
    g: DistGraph,
    nodes: NodeIds,
    fanout: Fanout,
    edge_dir: str = "in",
    prob: FeatureName | None = None,
    importance_sampling: int = 0,
    random_seed: int | torch.Tensor | None = None,
    seed2_contribution: float = 0,
    copy_ndata: bool = True,
    copy_edata: bool = True,
    exclude_edges: EdgeIds | None = None,
    output_device: torch.device | str | None = None,
) -> tuple[HeteroGraph, list[torch.Tensor]]:
    """Sample in-neighbours of nodes as :class:`LaborSampler` does in one hop.

    Args:
        g: the graph.
        nodes: int[n], node ids; or node type -> int[n], which graphs with several node types need.
        fanout: most neighbours of a node in each relation; -1 means all. Or edge type -> most neighbours.
        edge_dir: only "in".
        prob: name of an edge feature with weights or a mask, as in :meth:`.DistGraph.sample_neighbors`.
        importance_sampling: only 0, see :class:`LaborSampler`.
        random_seed: an integer, also as a tensor of one: calls with the same one, on any trainer and for any nodes,
            share the numbers of sources. By default the calls with the same number of each trainer share them.
        seed2_contribution: only 0; ``LaborSampler(batch_dependency=...)`` makes consecutive minibatches alike.
        copy_ndata: accepted for DGL's scripts.
        copy_edata: accepted for DGL's scripts.
        exclude_edges: int[k], ids of edges that must not be drawn, or a dict of them by edge type.
        output_device: where to put the graph; the CPU by default.

    Returns:
        A graph as that of :meth:`.DistGraph.sample_neighbors`; and an empty tensor for each relation, as DGL returns
        where edges need no weights.

    Raises:
        OutOfRangeError, FieldNameError, NodeTypeError, EdgeTypeError, InvalidArgumentError: as there.
    """
    with check_graph(g).raised_everywhere():
        _check_importance(importance_sampling)
        if seed2_contribution:
            raise InvalidArgumentError(
                f"seed2_contribution must be 0 (got {seed2_contribution!r}): LaborSampler(batch_dependency=...) makes "
                "consecutive minibatches alike"
            )
        if isinstance(random_seed, torch.Tensor):
            if random_seed.numel() != 1:
                raise InvalidArgumentError(
                    f"random_seed must be one integer (got a tensor of shape {tuple(random_seed.shape)})"
                )
            random_seed = int(random_seed)
        arguments = _LaborArguments([fanout], edge_dir, prob, seed=random_seed, period=1)
    frontier = g.sample_hop(nodes, arguments, exclude_edges)
    if output_device is not None:
        frontier = frontier.to(output_device)
    return frontier, [torch.empty(0) for _ in frontier.canonical_etypes]


def _check_importance(importance_sampling: int) -> None:
    if importance_sampling != 0:
        raise InvalidArgumentError(
            f"importance_sampling must be 0 (got {importance_sampling!r}): LABOR-i and LABOR-* need all in-neighbours "
            "of a hop's destinations in one place, and in a distributed graph they are on several hosts"
        )
