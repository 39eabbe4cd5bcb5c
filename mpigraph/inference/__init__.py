"""What a trained model says of all nodes of a graph, layer by layer, and of pairs of them."""

from mpigraph.inference.layerwise import layerwise
from mpigraph.inference.pairs import score_pairs, top_k

__all__ = ["layerwise", "score_pairs", "top_k"]
