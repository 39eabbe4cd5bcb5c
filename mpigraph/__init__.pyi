"""The public names: :mod:`mpigraph` reads them here, and so do type checkers and editors."""

from . import checkpoint as checkpoint
from . import convert as convert
from . import data as data
from . import dataloading as dataloading
from . import distributed as distributed
from . import function as function
from . import inference as inference
from . import nn as nn
from .convert import from_networkx as from_networkx
from .convert import from_scipy as from_scipy
from .errors import DGLError as DGLError
from .errors import MPIGraphError as MPIGraphError
from .graphs.block import Block as Block
from .graphs.block import to_block as to_block
from .graphs.fields import ALL as ALL
from .graphs.fields import EID as EID
from .graphs.fields import ETYPE as ETYPE
from .graphs.fields import NID as NID
from .graphs.fields import NTYPE as NTYPE
from .graphs.hetero import DGLGraph as DGLGraph
from .graphs.hetero import HeteroGraph as HeteroGraph
from .graphs.hetero import graph as graph
from .graphs.hetero import heterograph as heterograph
from .graphs.transforms import add_edges as add_edges
from .graphs.transforms import add_reverse_edges as add_reverse_edges
from .graphs.transforms import add_self_loop as add_self_loop
from .graphs.transforms import edge_subgraph as edge_subgraph
from .graphs.transforms import in_subgraph as in_subgraph
from .graphs.transforms import node_subgraph as node_subgraph
from .graphs.transforms import out_subgraph as out_subgraph
from .graphs.transforms import remove_edges as remove_edges
from .graphs.transforms import remove_self_loop as remove_self_loop
from .graphs.transforms import reverse as reverse
from .graphs.transforms import to_bidirected as to_bidirected
from .graphs.transforms import to_homogeneous as to_homogeneous
from .graphs.transforms import to_simple as to_simple
from .session.report_block import report as report

__version__: str
