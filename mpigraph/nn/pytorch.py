"""The layers by DGL's module name: ``import mpigraph.nn.pytorch as dglnn``."""

from typing import TYPE_CHECKING

from mpigraph.namespaces import attach
from mpigraph.nn import Dropout as Dropout
from mpigraph.nn import EdgeGATConv as EdgeGATConv
from mpigraph.nn import EdgePredictor as EdgePredictor
from mpigraph.nn import GATConv as GATConv
from mpigraph.nn import GATv2Conv as GATv2Conv
from mpigraph.nn import GINConv as GINConv
from mpigraph.nn import GINEConv as GINEConv
from mpigraph.nn import GraphConv as GraphConv
from mpigraph.nn import HeteroGraphConv as HeteroGraphConv
from mpigraph.nn import HGTConv as HGTConv
from mpigraph.nn import RelGraphConv as RelGraphConv
from mpigraph.nn import SAGEConv as SAGEConv
from mpigraph.nn import TypedLinear as TypedLinear
from mpigraph.nn import WeightBasis as WeightBasis
from mpigraph.nn import __all__ as __all__
from mpigraph.nn import dropout as dropout
from mpigraph.nn import edge_softmax as edge_softmax
from mpigraph.nn import relu_dropout as relu_dropout

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, __all__)
