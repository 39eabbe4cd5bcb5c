"""The layers by DGL's module name: ``import mpigraph.nn.pytorch as dglnn``."""

from typing import Any

from mpigraph import nn
from mpigraph.nn import __all__ as __all__


def __getattr__(name: str) -> Any:
    return getattr(nn, name)
