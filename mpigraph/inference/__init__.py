"""Inference with a trained model: rows of all nodes, layer by layer, and scores of pairs."""

from mpigraph.inference.layerwise import layerwise
from mpigraph.inference.pairs import score_pairs, top_k

__all__ = ["layerwise", "score_pairs", "top_k"]
