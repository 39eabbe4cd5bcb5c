"""DGL's loaders for a graph in memory, for scripts before they are distributed.

The minibatches are those of :class:`.DistNodeDataLoader` and :class:`.DistEdgeDataLoader` on one trainer with one part,
for the same seeds and ``seed``. The caller's thread makes each when it is asked for.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any, cast

import numpy as np
import torch

from mpigraph.arrays import I64
from mpigraph.dataloading.edge_loader import DistEdgeDataLoader
from mpigraph.dataloading.edge_sampler import EdgePredictionSampler, as_edge_prediction_sampler
from mpigraph.dataloading.exclusion import Exclude, ReverseEids
from mpigraph.dataloading.foreign_options import check_foreign, without_processes
from mpigraph.dataloading.memory_sampling import InMemorySampling
from mpigraph.dataloading.negative_sampler import NegativesOf
from mpigraph.dataloading.node_loader import DistNodeDataLoader
from mpigraph.dataloading.passes import EpochPlan, HasEpochs, Passes
from mpigraph.dataloading.sampler import BlockSampler, Sampler, has_method, needs_of
from mpigraph.dataloading.seed_times import check_input_time, check_loader_times
from mpigraph.dataloading.seeds import Seeds, TypedIds, as_seed_tensors
from mpigraph.dataloading.to_device import moved
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.typed_ids import ByEdgeType, EdgeIds, NodeIds, by_ntype, by_relation, unwrap_edges, unwrap_nodes
from mpigraph.errors import InvalidArgumentError, check_integer
from mpigraph.graphs.fields import EdgeType
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.graphs.in_memory import exact_device
from mpigraph.sampling.minibatch import RandomContext
from mpigraph.session.context import job_seed
from mpigraph.session.draws import check_seed, default_seed


class DataLoader(HasEpochs):
    """Minibatches of a graph in memory: yields the sampler's output.

    With a sampler of blocks ``(input_nodes, output_nodes, blocks)``, with one of edges ``(input_nodes, pair_graph,
    blocks)`` or, with negatives, ``(input_nodes, pair_graph, negative_pair_graph, blocks)``. Where the graph has
    several node types, nodes are by type. Blocks gather the features of the graph's nodes and edges when you read them.

    On a :class:`DistGraph` it makes a :class:`.DistNodeDataLoader` or :class:`.DistEdgeDataLoader`, and takes their
    options.

    Construction is collective with a DistGraph. With a graph in memory all is local.
    """

    def __new__(cls, *arguments: object, **options: object) -> Any:
        """Make a loader of a distributed graph, if ``graph`` is one."""
        named = signature(cls.__init__).bind(None, *arguments, **options).arguments  # type: ignore[misc]
        _, graph, ids, sampler = (named.pop(name) for name in list(named)[:4])
        if isinstance(graph, HeteroGraph):
            return super().__new__(cls)
        of_edges = issubclass(cls, EdgeDataLoader) or isinstance(sampler, EdgePredictionSampler)
        make: Any = DistEdgeDataLoader if of_edges else DistNodeDataLoader
        return make(graph, ids, sampler, **without_processes(named.pop("foreign", {}) | named))

    def __init__(
        self,
        graph: HeteroGraph | DistGraph,
        indices: TypedIds,
        graph_sampler: Sampler,
        device: torch.device | str | None = None,
        use_ddp: bool = False,
        ddp_seed: int = 0,
        batch_size: int = 1,
        drop_last: bool = False,
        shuffle: bool = False,
        *,
        seed: int | None = None,
        collate_fn: Callable[..., object] | None = None,
        input_time: NodeIds | None = None,
        edge_label_time: EdgeIds | None = None,
        **foreign: object,
    ) -> None:
        """Plan the minibatches.

        Args:
            graph: the graph.
            indices: int[n], ids of nodes, or of edges with a sampler of edges; or type -> int[n], which graphs with
                several types need, and whose minibatches mix the types.
            graph_sampler: has ``sample(g, ids)``, for example a ``NeighborSampler``, or what
                ``as_edge_prediction_sampler`` returns.
            device: where to put all of a minibatch; the CPU by default.
            use_ddp: iterate over this process's share of the ids, of ``torch.distributed``; as many on each process.
            ddp_seed: accepted for DGL's scripts.
            batch_size: most ids of a minibatch.
            drop_last: leave out ids that do not fill a minibatch.
            shuffle: another order in each epoch.
            seed: seed of order and draws; by default the job's if one is running, else 0 (or that of the alias's
                ``dgl.seed``).
            collate_fn: maps the sampler's output to the minibatch.
            input_time: the time of each node, as in :class:`.DistNodeDataLoader`.
            edge_label_time: the time of each edge, with a sampler of edges, as in :class:`.DistEdgeDataLoader`.
            foreign: further options of DGL's and PyTorch's loaders, see :mod:`.foreign_options`; ``num_prefetch``,
                ``pin_memory`` and ``queue_size`` change nothing, as no thread works ahead.

        Raises:
            InvalidArgumentError: an argument is wrong.
            NodeTypeError, EdgeTypeError: a type does not exist, or there are several and the ids are not by type.
        """
        assert isinstance(graph, HeteroGraph)  # else __new__ made another loader
        if not has_method(graph_sampler, "sample"):
            raise InvalidArgumentError(f"graph_sampler must have sample(g, ids) (got {graph_sampler!r})")
        check_foreign(type(self), {name: value for name, value in foreign.items() if name not in _OF_OTHERS})
        needs = needs_of(graph_sampler)
        self.graph = graph
        self.graph_sampler = graph_sampler
        self.dataset, times, self._sample = _plan(graph, graph_sampler, indices, input_time, edge_label_time)
        self._device = None if device is None else exact_device(device)
        self._collate = collate_fn
        self._session = InMemorySampling(graph).session
        self._seed = default_seed(job_seed()) if seed is None else check_seed(seed)
        seeds, rank = Seeds(self.dataset, "indices", times), 0
        if use_ddp:
            seeds, rank = _share_of_ddp(seeds)
        batch_size = check_integer("batch_size", batch_size, 1)
        self._passes = Passes(self._session.world, rank, seeds, batch_size, shuffle, drop_last, self._seed)
        self._passes.fingerprint |= {"loader": type(self).__name__, "sampler": needs.description}
        if seed is None and (shuffle or needs.random):
            self._passes.begun = _BEGUN

    def __iter__(self) -> Iterator[Any]:
        plan = self._passes.begin()
        try:
            for positions, context in zip(plan.batches(), plan.contexts(self._seed), strict=True):
                batch = self._minibatch(plan, positions, context)
                plan.taken += 1
                yield batch
        finally:
            self._passes.end(plan)

    def _minibatch(self, plan: EpochPlan, positions: I64, context: RandomContext) -> Any:
        session = self._session
        with session.sampling_with(session.service, context):
            batch = self._sample(plan.seeds.chosen(positions))
        if self._device is not None:
            batch = moved(batch, self._device)
        return batch if self._collate is None else self._collate(batch)

    @contextmanager
    def enable_cpu_affinity(
        self, loader_cores: object = None, compute_cores: object = None, verbose: bool = True
    ) -> Iterator[None]:
        """Accepted for DGL's scripts: nothing is bound, as no other process samples."""
        yield


_BEGUN: set[int] = set()  # of this process, see Passes.begun
_OF_OTHERS = frozenset({"num_prefetch", "pin_memory", "queue_size"})  # options of loaders that have threads


class NodeDataLoader(DataLoader):
    """DGL's older name for a :class:`DataLoader` of nodes."""


class EdgeDataLoader(DataLoader):
    """DGL's older loader of edges: a :class:`DataLoader` whose sampler of blocks is made a sampler of edges.

    Args:
        g: the graph.
        eids: int[n], seed edges; or edge type -> int[n].
        graph_sampler: a sampler of blocks.
        exclude, reverse_eids, reverse_etypes, negative_sampler: as in :func:`.as_edge_prediction_sampler`.
        g_sampling: only None.
        device, use_ddp, ddp_seed, foreign: as in :class:`DataLoader`, with its other options.

    Raises:
        InvalidArgumentError, EdgeTypeError: as there.

    Construction is collective with a DistGraph. With a graph in memory all is local.
    """

    def __init__(
        self,
        g: HeteroGraph | DistGraph,
        eids: EdgeIds,
        graph_sampler: BlockSampler,
        device: torch.device | str | None = None,
        use_ddp: bool = False,
        ddp_seed: int = 0,
        exclude: Exclude = None,
        reverse_eids: ReverseEids = None,
        reverse_etypes: ByEdgeType[EdgeType] | None = None,
        negative_sampler: NegativesOf | None = None,
        *,
        g_sampling: None = None,
        **foreign: object,
    ) -> None:
        check_foreign(type(self), {"g_sampling": g_sampling})
        more: dict[str, Any] = dict(foreign)
        sampler = as_edge_prediction_sampler(graph_sampler, exclude, reverse_eids, reverse_etypes, negative_sampler)
        super().__init__(g, eids, sampler, device, use_ddp, ddp_seed, **more)


def _plan(
    g: HeteroGraph, sampler: Sampler, indices: TypedIds, input_time: NodeIds | None, edge_label_time: EdgeIds | None
) -> tuple[TypedIds, TypedIds | None, Callable[..., Any]]:
    """Return a loader's ids, their times if they have any, and the function that makes a minibatch of some.

    Ids are by the canonical names of their types where there are several.
    """
    memory, schema = cast(DistGraph, InMemorySampling(g)), g.schema
    ids: TypedIds
    times: TypedIds | None
    of_edges = isinstance(sampler, EdgePredictionSampler)
    if (input_time if of_edges else edge_label_time) is not None:
        raise InvalidArgumentError("edges have edge_label_time, nodes have input_time")
    if isinstance(sampler, EdgePredictionSampler):
        edges = by_relation(schema, indices, "indices")
        times = check_loader_times(memory, sampler.needs.times, edges, edge_label_time)
        ids = unwrap_edges(schema, edges)
    elif isinstance(sampler, BlockSampler):
        nodes = by_ntype(schema, cast(NodeIds, indices), "indices")
        times = check_input_time(memory, sampler.needs.times, nodes, input_time)
        ids = unwrap_nodes(schema, nodes)
    else:  # a user's own: ids of anything
        times = check_input_time(memory, None, {}, input_time)
        ids = as_seed_tensors(indices, "indices")
    make: Any = sampler.sample_blocks if times is not None and isinstance(sampler, BlockSampler) else sampler.sample
    name = "edge_label_time" if of_edges else "input_time"
    return ids, times, lambda chosen: make(g, chosen.ids, **chosen.times_as(name))


def _share_of_ddp(seeds: Seeds) -> tuple[Seeds, int]:
    """Return the seeds of this rank of ``torch.distributed``, and the rank.

    They are every n-th seed, equally many for each process; the first seeds repeat to fill up.
    """
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        raise InvalidArgumentError("use_ddp=True needs torch.distributed.init_process_group() first")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    if size > 1 and len(seeds):
        positions = np.arange(rank, -(-len(seeds) // size) * size, size) % len(seeds)
        seeds = seeds.of_rows(seeds.rows(positions))
    return seeds, rank
