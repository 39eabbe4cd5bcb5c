"""Inference with a trained model: rows of all nodes, layer by layer."""

from typing import TYPE_CHECKING

from mpigraph.inference.layerwise import layerwise
from mpigraph.namespaces import attach

__all__ = ["layerwise"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, __all__)
