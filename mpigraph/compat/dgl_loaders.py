"""DGL's samplers and loaders where older versions had them, and with what they took there."""

from collections.abc import Mapping, Sequence
from typing import Any

from mpigraph import dataloading
from mpigraph.dataloading.edge_loader import DistEdgeDataLoader
from mpigraph.dataloading.edge_sampler import EdgePredictionSampler
from mpigraph.dataloading.loader import DistNodeDataLoader
from mpigraph.distgraph.graph import DistGraph
from mpigraph.errors import InvalidArgumentError

__all__ = [
    "DataLoader",
    "EdgeDataLoader",
    "MultiLayerFullNeighborSampler",
    "MultiLayerNeighborSampler",
    "NeighborSampler",
    "NodeDataLoader",
    "without_processes",
]

# What DGL's loaders of one machine hand on to torch's, and what DGL's scripts of every version pass besides.
_OF_TORCH = (
    "async_load",
    "ddp_seed",
    "gpu_cache",
    "multiprocessing_context",
    "num_workers",
    "persistent_workers",
    "pin_prefetcher",
    "prefetch_factor",
    "use_alternate_streams",
    "use_cpu_worker_affinity",
    "use_ddp",
    "use_prefetch_thread",
    "use_uva",
)


class NeighborSampler(dataloading.NeighborSampler):
    """:class:`mpigraph.dataloading.NeighborSampler` as DGL's scripts use it.

    A fanout of None takes all neighbours, and blocks of a typed ``DistGraph`` lack the relations of which no edge was
    drawn, as in DGL up to 2.2, unless ``empty_relations=True``.
    """

    def __init__(self, fanouts: Any, *args: Any, **options: Any) -> None:
        given = fanouts
        if isinstance(fanouts, Sequence) and not isinstance(fanouts, str):
            given = [_fanout(layer) for layer in fanouts]
        super().__init__(given, *args, **({"empty_relations": False} | options))


MultiLayerNeighborSampler = NeighborSampler


class MultiLayerFullNeighborSampler(NeighborSampler):
    """Takes all in-neighbours in each of ``num_layers`` layers."""

    def __init__(self, num_layers: int, **options: Any) -> None:
        """The options are those of :class:`NeighborSampler`."""
        super().__init__([-1] * num_layers, **options)


def _fanout(layer: Any) -> Any:
    if isinstance(layer, Mapping):
        return {etype: _fanout(fanout) for etype, fanout in layer.items()}
    return -1 if layer is None else layer


def NodeDataLoader(g: Any, nids: Any, graph_sampler: Any, device: Any = None, **options: Any) -> Any:
    """Make the loader of nodes that suits a graph, as :class:`dgl.dataloading.NodeDataLoader` of DGL 0.7 to 0.9 did.

    Args:
        g: a ``DistGraph``, for which it is a :class:`.DistNodeDataLoader`, or a graph in memory.
        nids: the seed nodes.
        graph_sampler: draws the blocks.
        device: where minibatches are put.
        options: those of the loader; what concerns the processes of PyTorch's loader changes nothing.

    Collective on the trainers if ``g`` is a ``DistGraph``.
    """
    if isinstance(g, DistGraph):
        return DistNodeDataLoader(g, nids, graph_sampler, device, **without_processes(options))
    return _in_memory("NodeDataLoader", g)(g, nids, graph_sampler, device=device, **options)


def EdgeDataLoader(g: Any, eids: Any, graph_sampler: Any, device: Any = None, **options: Any) -> Any:
    """Make the loader of edges that suits a graph; as :func:`NodeDataLoader`.

    Collective on the trainers if ``g`` is a ``DistGraph``.
    """
    if isinstance(g, DistGraph):
        if options.pop("g_sampling", None) is not None:
            raise InvalidArgumentError("g_sampling must be None: neighbours are sampled from the graph of the edges")
        return DistEdgeDataLoader(g, eids, graph_sampler, device, **without_processes(options))
    return _in_memory("EdgeDataLoader", g)(g, eids, graph_sampler, device=device, **options)


def DataLoader(g: Any, indices: Any, graph_sampler: Any, device: Any = None, **options: Any) -> Any:
    """Make the loader that suits a graph and a sampler, as :class:`dgl.dataloading.DataLoader` of DGL 0.8 to 2.x does.

    Seeds are edges if the sampler is one of :func:`.as_edge_prediction_sampler`. The rest is as in
    :func:`NodeDataLoader`.

    Collective on the trainers if ``g`` is a ``DistGraph``.
    """
    if isinstance(g, DistGraph):
        if isinstance(graph_sampler, EdgePredictionSampler):
            return DistEdgeDataLoader(g, indices, graph_sampler, device, **without_processes(options))
        return DistNodeDataLoader(g, indices, graph_sampler, device, **without_processes(options))
    return _in_memory("DataLoader", g)(g, indices, graph_sampler, device=device, **options)


def without_processes(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a loader without those that are about the processes of PyTorch's loader."""
    return {name: value for name, value in options.items() if name not in _OF_TORCH}


def _in_memory(name: str, g: object) -> Any:
    """The loader of graphs in memory, if this library has one of that name."""
    found = getattr(dataloading, name, None)
    if found is None:
        raise InvalidArgumentError(
            f"{name} of a graph in memory (got {type(g).__name__}): partition it and open a DistGraph, on one rank, too"
        )
    return found
