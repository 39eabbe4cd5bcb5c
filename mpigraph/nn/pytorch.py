"""The layers by DGL's module name: ``import mpigraph.nn.pytorch as dglnn``."""

from mpigraph.nn.attention import EdgeGATConv, GATConv, GATv2Conv
from mpigraph.nn.edge_predictor import EdgePredictor
from mpigraph.nn.edgeconv import EdgeConv
from mpigraph.nn.functional import edge_softmax
from mpigraph.nn.ginconv import GINConv, GINEConv
from mpigraph.nn.graphconv import GraphConv
from mpigraph.nn.heterographconv import HeteroGraphConv
from mpigraph.nn.hgtconv import HGTConv
from mpigraph.nn.hops import APPNPConv, EdgeWeightNorm, SGConv, TAGConv
from mpigraph.nn.jumpingknowledge import JumpingKnowledge
from mpigraph.nn.relgraphconv import RelGraphConv
from mpigraph.nn.sageconv import SAGEConv
from mpigraph.nn.typedlinear import TypedLinear, WeightBasis

__all__ = [
    "APPNPConv",
    "EdgeConv",
    "EdgeGATConv",
    "EdgePredictor",
    "EdgeWeightNorm",
    "GATConv",
    "GATv2Conv",
    "GINConv",
    "GINEConv",
    "GraphConv",
    "HGTConv",
    "HeteroGraphConv",
    "JumpingKnowledge",
    "RelGraphConv",
    "SAGEConv",
    "SGConv",
    "TAGConv",
    "TypedLinear",
    "WeightBasis",
    "edge_softmax",
]
