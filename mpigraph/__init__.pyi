"""The public names: :mod:`mpigraph` reads them here, and so do type checkers and editors."""

from . import (
    checkpoint as checkpoint,
    convert as convert,
    data as data,
    dataloading as dataloading,
    distributed as distributed,
    function as function,
    inference as inference,
    nn as nn,
)
from .convert import from_networkx as from_networkx, from_scipy as from_scipy
from .errors import DGLError as DGLError, MPIGraphError as MPIGraphError
from .fullgraph.training import FullGraph as FullGraph
from .graphs.block import Block as Block, to_block as to_block
from .graphs.fields import ALL as ALL, EID as EID, ETYPE as ETYPE, NID as NID, NTYPE as NTYPE
from .graphs.hetero import DGLGraph as DGLGraph, HeteroGraph as HeteroGraph, graph as graph, heterograph as heterograph
from .graphs.transforms import (
    add_edges as add_edges,
    add_reverse_edges as add_reverse_edges,
    add_self_loop as add_self_loop,
    edge_subgraph as edge_subgraph,
    in_subgraph as in_subgraph,
    node_subgraph as node_subgraph,
    remove_edges as remove_edges,
    remove_self_loop as remove_self_loop,
    reverse as reverse,
    to_bidirected as to_bidirected,
    to_homogeneous as to_homogeneous,
    to_simple as to_simple,
)
from .session.report_block import report as report

__version__: str
