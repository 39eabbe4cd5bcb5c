"""The layers under the name that scripts import them by: ``import mpigraph.nn.pytorch as dglnn``."""

from mpigraph.nn.edge_predictor import EdgePredictor
from mpigraph.nn.functional import edge_softmax
from mpigraph.nn.gatconv import GATConv
from mpigraph.nn.graphconv import GraphConv
from mpigraph.nn.heterographconv import HeteroGraphConv
from mpigraph.nn.hgtconv import HGTConv
from mpigraph.nn.relgraphconv import RelGraphConv
from mpigraph.nn.sageconv import SAGEConv
from mpigraph.nn.typedlinear import TypedLinear, WeightBasis

__all__ = [
    "EdgePredictor",
    "GATConv",
    "GraphConv",
    "HGTConv",
    "HeteroGraphConv",
    "RelGraphConv",
    "SAGEConv",
    "TypedLinear",
    "WeightBasis",
    "edge_softmax",
]
