"""Graph neural network layers on blocks and graphs, with the names and numerics of ``dgl.nn``."""

from mpigraph.namespaces import attach
from mpigraph.nn.attention import GATConv as GATConv, GATv2Conv as GATv2Conv
from mpigraph.nn.drop import Dropout as Dropout, dropout as dropout, relu_dropout as relu_dropout
from mpigraph.nn.functional import edge_softmax as edge_softmax
from mpigraph.nn.layers import (
    EdgePredictor as EdgePredictor,
    GINConv as GINConv,
    GINEConv as GINEConv,
    GraphConv as GraphConv,
    SAGEConv as SAGEConv,
)
from mpigraph.nn.relational import HeteroGraphConv as HeteroGraphConv, HGTConv as HGTConv, RelGraphConv as RelGraphConv
from mpigraph.nn.typed import TypedLinear as TypedLinear, WeightBasis as WeightBasis

attach(__name__)
