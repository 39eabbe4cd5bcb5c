"""DGL's samplers with what they took in older versions."""

from collections.abc import Mapping, Sequence
from typing import Any

from mpigraph import dataloading

__all__ = ["MultiLayerFullNeighborSampler", "MultiLayerNeighborSampler", "NeighborSampler"]


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
