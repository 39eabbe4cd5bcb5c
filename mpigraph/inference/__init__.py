"""Inference with a trained model: rows of all nodes, layer by layer; predictions in files."""

from mpigraph.inference.layerwise import layerwise as layerwise
from mpigraph.inference.predictions import write_predictions as write_predictions
from mpigraph.namespaces import attach

attach(__name__)
