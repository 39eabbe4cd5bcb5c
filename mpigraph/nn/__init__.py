"""Graph neural network layers on blocks and graphs, with the names and numerics of ``dgl.nn``."""

from mpigraph.namespaces import attach
from mpigraph.nn.attention import EdgeGATConv as EdgeGATConv, GATConv as GATConv, GATv2Conv as GATv2Conv
from mpigraph.nn.drop import Dropout as Dropout, dropout as dropout, relu_dropout as relu_dropout
from mpigraph.nn.edge_predictor import EdgePredictor as EdgePredictor
from mpigraph.nn.functional import edge_softmax as edge_softmax
from mpigraph.nn.ginconv import GINConv as GINConv, GINEConv as GINEConv
from mpigraph.nn.graphconv import GraphConv as GraphConv
from mpigraph.nn.heterographconv import HeteroGraphConv as HeteroGraphConv
from mpigraph.nn.hgtconv import HGTConv as HGTConv
from mpigraph.nn.relgraphconv import RelGraphConv as RelGraphConv
from mpigraph.nn.sageconv import SAGEConv as SAGEConv
from mpigraph.nn.typedlinear import TypedLinear as TypedLinear, WeightBasis as WeightBasis

attach(__name__)
