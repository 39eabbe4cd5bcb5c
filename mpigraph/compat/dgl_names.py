"""The table of the alias: DGL's modules of versions 0.5 to 2.x, and their counterparts here."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["LIBRARY_VERSION", "MODULES", "Sources", "advice"]

LIBRARY_VERSION = "2.2.1+mpigraph"
"""The version of DGL that scripts see."""


@dataclass(frozen=True)
class Sources:
    """The sources of the names of one of DGL's modules.

    Attributes:
        homes: modules of this library that are searched in turn for names that ``names`` lacks.
        names: DGL's name -> "module:name" here, or "module".
    """

    homes: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)


_CLASSES = "mpigraph.compat.dgl_classes"
_ROLES = "mpigraph.compat.dgl_roles"
_FILES = "mpigraph.compat.dgl_files"
_IDS = "mpigraph.compat.dgl_ids"
_LAYERS = {"RelGraphConv": f"{_CLASSES}:RelGraphConv"}

_OLD_LOADING = {
    name: f"{_CLASSES}:{name}"
    for name in (
        *("DataLoader", "EdgeDataLoader", "MultiLayerFullNeighborSampler", "MultiLayerNeighborSampler"),
        *("NeighborSampler", "NodeDataLoader"),
    )
}
_DISTRIBUTED = {
    "DistGraph": f"{_CLASSES}:DistGraph",
    "DistTensor": f"{_CLASSES}:DistTensor",
    "GraphPartitionBook": "mpigraph.distributed:RangePartitionBook",
    "finalize_client": "mpigraph.distributed:exit_client",
    "_etype_str_to_tuple": "mpigraph.metadata.schema:parse_relation",
    "_etype_tuple_to_str": "mpigraph.metadata.schema:relation_key",
    "_remove_kwargs_dist": "mpigraph.dataloading.loader:without_processes",
}
for _name in (
    *("find_edges", "in_degrees", "in_subgraph", "load_partition", "out_degrees", "sample_etype_neighbors"),
    "sample_neighbors",
):
    _DISTRIBUTED[_name] = f"{_IDS}:{_name}"
for _name in (
    *("DEFAULT_ETYPE", "DEFAULT_NTYPE", "DGL2GB_EID", "GB_DST_ID", "MAX_QUEUE_SIZE", "SERVER_EXIT", "client_barrier"),
    *("get_num_client", "get_num_machines", "get_rank", "initialize", "shutdown_servers"),
):
    _DISTRIBUTED[_name] = f"{_ROLES}:{_name}"
_DATALOADING = Sources(("mpigraph.dataloading",), _OLD_LOADING)
_GRAPHS = Sources(("mpigraph", "mpigraph.convert"))
_NN = Sources(("mpigraph.nn",), _LAYERS)
_DATA = Sources((_FILES,))
_IN_DISTRIBUTED = Sources(("mpigraph.distributed",), _DISTRIBUTED)

MODULES: Mapping[str, Sources] = {
    "dgl": Sources(
        ("mpigraph", "mpigraph.convert"),
        {
            "DGLHeteroGraph": "mpigraph:DGLGraph",
            "backend_name": f"{_ROLES}:BACKEND_NAME",
            "in_subgraph": f"{_IDS}:in_subgraph",
            "load_graphs": f"{_FILES}:load_graphs",
            "save_graphs": f"{_FILES}:save_graphs",
            "seed": f"{_ROLES}:seed",
        },
    ),
    "dgl.dataloading": _DATALOADING,
    "dgl.dataloading.negative_sampler": Sources(("mpigraph.dataloading.negative_sampler",)),
    "dgl.distributed": _IN_DISTRIBUTED,
    "dgl.distributed.role": Sources((_ROLES,)),
    "dgl.function": Sources(("mpigraph.function",)),
    "dgl.multiprocessing": Sources(("torch.multiprocessing",)),
    "dgl.nn": Sources(("mpigraph.nn", "mpigraph.nn.pytorch"), _LAYERS),
    "dgl.nn.pytorch": Sources(("mpigraph.nn.pytorch", "mpigraph.nn"), _LAYERS),
    "dgl.ops": _NN,
    "dgl.sampling": Sources(("mpigraph.dataloading",), _OLD_LOADING | {"sample_neighbors": f"{_IDS}:sample_neighbors"}),
    "dgl.utils": _DATA,
    **dict.fromkeys(("dgl.data", "dgl.data.tensor_serialize", "dgl.data.utils"), _DATA),
    **{
        f"dgl.dataloading.{name}": _DATALOADING
        for name in "base dataloader dist_dataloader labor_sampler neighbor neighbor_sampler pytorch".split()
    },
    **{
        f"dgl.distributed.{name}": _IN_DISTRIBUTED
        for name in (
            *("constants", "dist_context", "dist_dataloader", "dist_graph", "dist_tensor", "graph_partition_book"),
            *("graph_services", "partition"),
        )
    },
    **{
        f"dgl.distributed.{name}{more}": Sources((f"mpigraph.distributed.{name}",))
        for name in ("nn", "optim")
        for more in ("", ".pytorch")
    },
    **{
        f"dgl.nn.{name}": _NN
        for name in ("functional", "pytorch.conv", "pytorch.hetero", "pytorch.link", "pytorch.softmax")
    },
    **{f"dgl.{name}": _GRAPHS for name in ("base", "convert", "transform", "transforms", "transforms.functional")},
}

_NO_CONVERSION = (
    "partitions need no conversion for sampling to be fast: leave the call out (use_graphbolt= is accepted)"
)
_NO_KVSTORE = "rows live in windows of MPI: read and write them by DistTensor, g.ndata and DistEmbedding"
_NO_RPC = "ranks talk by MPI: use torch.distributed or mpi4py for messages of your own"
_NO_SERVERS = "servers are ranks of the same job: initialize(num_servers=...), or MPIGRAPH_NUM_SERVERS"
_NO_LAYERS = "layers of PyG run on blocks: layer(x, block.edge_index()), as in examples/pyg_layers.py"
_ONE_PROCESS = "for graphs of one process use DGL or PyG, whose graphs mpigraph.convert.as_graph takes"
_NO_DATASETS = "datasets are not downloaded: python -m mpigraph partition reads OGB's folders, npz, csv and others"
_NO_WALKS = (
    "walks follow out-edges, and parts hold in-edges: partition with --add-reverse, and sample in-neighbours "
    "(NeighborSampler, g.sample_neighbors)"
)
_INSTEAD = {
    **dict.fromkeys(("PinSAGESampler", "RandomWalkNeighborSampler", "pack_traces", "random_walk"), _NO_WALKS),
    "ShaDowKHopSampler": "use NeighborSampler; DGL and PyG sample such subgraphs in one process",
    **dict.fromkeys(
        ("KVClient", "KVServer", "close_kvstore", "get_kvstore", "init_kvstore", "kvstore", "standalone_kvstore"),
        _NO_KVSTORE,
    ),
    **dict.fromkeys(
        (
            *("Request", "Response", "recv_request", "recv_response", "register_service", "remote_call"),
            *("remote_call_to_machine", "rpc", "rpc_client", "rpc_server", "send_request", "send_response"),
        ),
        _NO_RPC,
    ),
    **dict.fromkeys(
        ("DistGraphServer", "ServerState", "connect_to_server", "server_state", "start_server"), _NO_SERVERS
    ),
    **dict.fromkeys(("dgl_partition_to_graphbolt", "gb_convert_single_dgl_partition", "graphbolt"), _NO_CONVERSION),
    **dict.fromkeys(
        ("compact_graphs", "khop_in_subgraph", "khop_out_subgraph", "rand_bipartite", "rand_graph"), _ONE_PROCESS
    ),
    "BasicPartitionBook": "parts own ranges of ids: use RangePartitionBook",
    "NodeEmbedding": "use dgl.distributed.DistEmbedding, which works on one rank, too",
}


def advice(module: str, name: str) -> str:
    """Return the error text for a name of DGL's that this library lacks."""
    instead = _INSTEAD.get(name)
    if instead is None:
        instead = {"dgl.data": _NO_DATASETS, "dgl.nn": _NO_LAYERS}.get(".".join(module.split(".")[:2]))
    where = f"{module}.{name}" if module else name
    return f"mpigraph has no {where}" + (f": {instead}" if instead else " (it stands in for dgl: mpigraph.compat.dgl)")
