"""Graph neural network layers on blocks and graphs, with the names and numerics of ``dgl.nn``."""

from mpigraph.nn.drop import Dropout, dropout, relu_dropout
from mpigraph.nn.edge_predictor import EdgePredictor
from mpigraph.nn.graphconv import GraphConv
from mpigraph.nn.sageconv import SAGEConv

__all__ = ["Dropout", "EdgePredictor", "GraphConv", "SAGEConv", "dropout", "relu_dropout"]
