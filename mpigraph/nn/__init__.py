"""Graph neural network layers on blocks and graphs, with the names and numerics of ``dgl.nn``."""

from mpigraph.nn.graphconv import GraphConv
from mpigraph.nn.sageconv import SAGEConv

__all__ = ["GraphConv", "SAGEConv"]
