"""Graph neural network layers on blocks and graphs, with the names and numerics of ``dgl.nn``."""

from typing import TYPE_CHECKING

from mpigraph.namespaces import attach
from mpigraph.nn.attention import EdgeGATConv, GATConv, GATv2Conv
from mpigraph.nn.drop import Dropout, dropout, relu_dropout
from mpigraph.nn.edge_predictor import EdgePredictor
from mpigraph.nn.functional import edge_softmax
from mpigraph.nn.ginconv import GINConv, GINEConv
from mpigraph.nn.graphconv import GraphConv
from mpigraph.nn.heterographconv import HeteroGraphConv
from mpigraph.nn.hgtconv import HGTConv
from mpigraph.nn.relgraphconv import RelGraphConv
from mpigraph.nn.sageconv import SAGEConv
from mpigraph.nn.typedlinear import TypedLinear, WeightBasis

__all__ = [
    "Dropout",
    "EdgeGATConv",
    "EdgePredictor",
    "GATConv",
    "GATv2Conv",
    "GINConv",
    "GINEConv",
    "GraphConv",
    "HGTConv",
    "HeteroGraphConv",
    "RelGraphConv",
    "SAGEConv",
    "TypedLinear",
    "WeightBasis",
    "dropout",
    "edge_softmax",
    "relu_dropout",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, __all__)
