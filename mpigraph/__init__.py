"""mpigraph: MPI-native distributed GNN training with DGL's distributed API.

Importing this package does little: names are looked up on first use, so that commands without torch never load it. The
import sets a variable that Open MPI reads when it starts, and shortens tracebacks of the library's uncaught errors. In
a process that a launcher started, it makes uncaught errors end the job.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mpigraph import tracebacks
from mpigraph.config import disable_fast_boxes, launch
from mpigraph.namespaces import missing

if TYPE_CHECKING:
    from mpigraph import checkpoint, convert, data, dataloading, distributed, function, inference, nn
    from mpigraph.convert import from_networkx, from_scipy
    from mpigraph.errors import MPIGraphError
    from mpigraph.errors import MPIGraphError as DGLError
    from mpigraph.graphs.block import Block, to_block
    from mpigraph.graphs.fields import ALL, EID, ETYPE, NID, NTYPE
    from mpigraph.graphs.hetero import HeteroGraph, graph, heterograph
    from mpigraph.graphs.hetero import HeteroGraph as DGLGraph
    from mpigraph.graphs.transforms import (
        add_edges,
        add_reverse_edges,
        add_self_loop,
        compact_graphs,
        edge_subgraph,
        in_subgraph,
        khop_in_subgraph,
        khop_out_subgraph,
        node_subgraph,
        out_subgraph,
        rand_bipartite,
        rand_graph,
        remove_edges,
        remove_self_loop,
        reverse,
        to_bidirected,
        to_homogeneous,
        to_simple,
    )
    from mpigraph.session.report_block import report

__version__ = "0.1.0"

__all__ = [
    "ALL",
    "EID",
    "ETYPE",
    "NID",
    "NTYPE",
    "Block",
    "DGLError",
    "DGLGraph",
    "HeteroGraph",
    "MPIGraphError",
    "add_edges",
    "add_reverse_edges",
    "add_self_loop",
    "checkpoint",
    "compact_graphs",
    "convert",
    "data",
    "dataloading",
    "distributed",
    "edge_subgraph",
    "from_networkx",
    "from_scipy",
    "function",
    "graph",
    "heterograph",
    "in_subgraph",
    "inference",
    "khop_in_subgraph",
    "khop_out_subgraph",
    "nn",
    "node_subgraph",
    "out_subgraph",
    "rand_bipartite",
    "rand_graph",
    "remove_edges",
    "remove_self_loop",
    "report",
    "reverse",
    "to_bidirected",
    "to_block",
    "to_homogeneous",
    "to_simple",
]

_MODULES = {"checkpoint", "convert", "data", "dataloading", "distributed", "function", "inference", "nn"}
_HOMES = {
    "mpigraph.graphs.fields": ("ALL", "EID", "ETYPE", "NID", "NTYPE"),
    "mpigraph.convert": ("from_networkx", "from_scipy"),
    "mpigraph.graphs.block": ("Block", "to_block"),
    "mpigraph.errors": ("MPIGraphError",),
    "mpigraph.graphs.hetero": ("HeteroGraph", "graph", "heterograph"),
    "mpigraph.session.report_block": ("report",),
    "mpigraph.graphs.transforms": (
        "add_edges",
        "add_reverse_edges",
        "add_self_loop",
        "compact_graphs",
        "edge_subgraph",
        "in_subgraph",
        "khop_in_subgraph",
        "khop_out_subgraph",
        "node_subgraph",
        "out_subgraph",
        "rand_bipartite",
        "rand_graph",
        "remove_edges",
        "remove_self_loop",
        "reverse",
        "to_bidirected",
        "to_homogeneous",
        "to_simple",
    ),
}
_DGL_NAMES = {
    "DGLError": ("mpigraph.errors", "MPIGraphError"),
    "DGLGraph": ("mpigraph.graphs.hetero", "HeteroGraph"),
}

disable_fast_boxes()
tracebacks.install()
if launch() is not None:
    import_module("mpigraph.mpi.abort").guard_launched()


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"mpigraph.{name}")
    home, original = _DGL_NAMES.get(name, ("", name))
    for module, names in _HOMES.items():
        if name in names:
            home = module
    if not home:
        raise missing("mpigraph", name)
    return getattr(import_module(home), original)
