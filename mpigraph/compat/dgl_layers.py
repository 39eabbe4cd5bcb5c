"""DGL's layers with what they took in older versions."""

from typing import Any

from mpigraph import nn

__all__ = ["RelGraphConv"]

_LOW_MEM_PLACE = 8
"""Where ``low_mem`` stands, from 0, in DGL up to 0.7; later versions have the dropout rate there."""


class RelGraphConv(nn.RelGraphConv):
    """:class:`mpigraph.nn.RelGraphConv` that takes ``low_mem`` as DGL up to 0.7 did, by name or in its place.

    It changes nothing: there is one way to compute the layer.
    """

    def __init__(self, *args: Any, low_mem: bool = False, **options: Any) -> None:
        if len(args) > _LOW_MEM_PLACE and isinstance(args[_LOW_MEM_PLACE], bool):
            args = args[:_LOW_MEM_PLACE] + args[_LOW_MEM_PLACE + 1 :]
        super().__init__(*args, **options)
