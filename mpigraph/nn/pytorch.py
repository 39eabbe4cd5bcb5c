"""The layers under the name that scripts import them by: ``import mpigraph.nn.pytorch as dglnn``."""

from mpigraph.nn.edge_predictor import EdgePredictor
from mpigraph.nn.graphconv import GraphConv
from mpigraph.nn.sageconv import SAGEConv

__all__ = ["EdgePredictor", "GraphConv", "SAGEConv"]
