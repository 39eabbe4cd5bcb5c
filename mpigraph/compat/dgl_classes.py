"""DGL's samplers, loaders, layers and distributed classes, with the arguments of older versions."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mpigraph import dataloading, nn
from mpigraph.collective import collective
from mpigraph.distgraph import graph, tensor

__all__ = [
    "DataLoader",
    "DistGraph",
    "DistTensor",
    "EdgeDataLoader",
    "MultiLayerFullNeighborSampler",
    "MultiLayerNeighborSampler",
    "NeighborSampler",
    "NodeDataLoader",
    "RelGraphConv",
]

_LOW_MEM_PLACE = 8
"""Position of ``low_mem`` in DGL up to 0.7; later versions have the dropout rate there."""


class NeighborSampler(dataloading.NeighborSampler):
    """:class:`mpigraph.dataloading.NeighborSampler` as DGL's scripts use it.

    A fanout of None takes all neighbours, and blocks of a typed ``DistGraph`` lack the relations without drawn
    edges, as in DGL up to 2.2, unless ``empty_relations=True``.
    """

    def __init__(self, fanouts: Any, *args: Any, **options: Any) -> None:
        checked = fanouts
        if isinstance(fanouts, Sequence) and not isinstance(fanouts, str):
            checked = [_fanout(layer) for layer in fanouts]
        super().__init__(checked, *args, **({"empty_relations": False} | options))


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


@collective("trainers")
def DataLoader(
    graph: graph.DistGraph,
    indices: Any,
    graph_sampler: Any,
    device: torch.device | str | None = None,
    use_ddp: bool = False,
    ddp_seed: int = 0,
    batch_size: int = 1,
    drop_last: bool = False,
    shuffle: bool = False,
    **options: Any,
) -> Any:
    """Return a :class:`.DistEdgeDataLoader` with a sampler of edges, else a :class:`.DistNodeDataLoader`.

    ``use_ddp`` and ``ddp_seed`` are accepted: ``indices`` are this trainer's own. Options and errors are those of the
    loader.
    """
    of_edges = isinstance(graph_sampler, dataloading.EdgePredictionSampler)
    make: Any = dataloading.DistEdgeDataLoader if of_edges else dataloading.DistNodeDataLoader
    given = dict(batch_size=batch_size, drop_last=drop_last, shuffle=shuffle)
    return make(graph, indices, graph_sampler, device, **given, **options)


NodeDataLoader = DataLoader


@collective("trainers")
def EdgeDataLoader(
    g: graph.DistGraph,
    eids: Any,
    graph_sampler: Any,
    device: torch.device | str | None = None,
    use_ddp: bool = False,
    ddp_seed: int = 0,
    exclude: Any = None,
    reverse_eids: Any = None,
    reverse_etypes: Any = None,
    negative_sampler: Any = None,
    **options: Any,
) -> Any:
    """Return a :class:`.DistEdgeDataLoader`, with its options and errors.

    ``use_ddp`` and ``ddp_seed`` are accepted: ``eids`` are this trainer's own.
    """
    how = dict(exclude=exclude, reverse_eids=reverse_eids, reverse_etypes=reverse_etypes)
    return dataloading.DistEdgeDataLoader(
        g, eids, graph_sampler, device, negative_sampler=negative_sampler, **how, **options
    )


class RelGraphConv(nn.RelGraphConv):
    """:class:`mpigraph.nn.RelGraphConv` that takes ``low_mem`` as DGL up to 0.7 did, and ignores it."""

    def __init__(self, *args: Any, low_mem: bool = False, **options: Any) -> None:
        if len(args) > _LOW_MEM_PLACE and isinstance(args[_LOW_MEM_PLACE], bool):
            args = args[:_LOW_MEM_PLACE] + args[_LOW_MEM_PLACE + 1 :]
        super().__init__(*args, **options)


class _StandIn(type):
    """Lets objects of the library's own class count as instances of the class that stands in for it."""

    def __instancecheck__(cls, instance: object) -> bool:
        own = cls.__mro__[1] if cls.__module__ == __name__ else cls
        return type.__instancecheck__(own, instance)


class DistGraph(graph.DistGraph, metaclass=_StandIn):
    """:class:`mpigraph.distributed.DistGraph`, also as ``DistGraph(ip_config, name, conf_file=...)``."""

    @collective("all ranks")
    def __init__(self, *args: Any, conf_file: Any = None, **options: Any) -> None:
        if len(args) > 1 and isinstance(args[1], str) and not args[1].endswith(".json"):
            args = args[1:]  # else the second is a configuration
        if conf_file is not None:
            options["part_config"] = conf_file
        super().__init__(*args, **options)


class DistTensor(tensor.DistTensor, metaclass=_StandIn):
    """:class:`mpigraph.distributed.DistTensor`, also as ``DistTensor(g, shape, dtype, ...)``."""

    @collective("trainers")
    def __init__(self, *args: Any, **options: Any) -> None:
        if args and isinstance(args[0], graph.DistGraph):
            args = args[1:]
        super().__init__(*args, **options)
