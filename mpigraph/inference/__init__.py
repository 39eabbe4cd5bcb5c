"""Inference with a trained model: rows of all nodes, layer by layer, and scores of pairs."""

from typing import TYPE_CHECKING

from mpigraph.inference.layerwise import layerwise
from mpigraph.inference.pairs import score_pairs, top_k
from mpigraph.namespaces import attach

__all__ = ["layerwise", "score_pairs", "top_k"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, __all__)
