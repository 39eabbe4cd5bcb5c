"""Inference with a trained model: rows of all nodes, layer by layer."""

from mpigraph.inference.layerwise import layerwise as layerwise
from mpigraph.namespaces import attach

attach(__name__)
