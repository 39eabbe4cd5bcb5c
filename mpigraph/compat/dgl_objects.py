"""DGL's classes with the arguments that they had in version 0.5, too."""

from typing import Any

from mpigraph.collective import collective
from mpigraph.distgraph import graph, tensor

__all__ = ["DistGraph", "DistTensor"]


class _StandIn(type):
    """What the library makes is of its own class: it counts as one of the class that stands in for it."""

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
