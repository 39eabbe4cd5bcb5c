"""The table of the alias: DGL's modules, in their places of versions 0.5 to 2.x, and what they mean here."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["LIBRARY_VERSION", "MODULES", "Sources", "advice"]

LIBRARY_VERSION = "2.2.1+mpigraph"
"""The version of DGL whose meaning the alias has, as far as scripts ask."""


@dataclass(frozen=True)
class Sources:
    """Where the names of one of DGL's modules come from.

    Attributes:
        homes: modules of this library that are asked in turn for whatever ``names`` lacks.
        names: DGL's name -> "module:name" here, or "module".
    """

    homes: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)


_CLASSES = "mpigraph.compat.dgl_classes"
_ROLES = "mpigraph.compat.dgl_roles"
_FILES = "mpigraph.compat.dgl_files"
_IDS = "mpigraph.compat.dgl_ids"
_LAYERS = {"RelGraphConv": f"{_CLASSES}:RelGraphConv"}

_OLD_SAMPLERS = {
    name: f"{_CLASSES}:{name}"
    for name in ("MultiLayerFullNeighborSampler", "MultiLayerNeighborSampler", "NeighborSampler")
}
_DISTRIBUTED = {
    "DistGraph": f"{_CLASSES}:DistGraph",
    "DistTensor": f"{_CLASSES}:DistTensor",
    "GraphPartitionBook": "mpigraph.distributed:RangePartitionBook",
    "find_edges": f"{_IDS}:find_edges",
    "in_degrees": f"{_IDS}:in_degrees",
    "in_subgraph": f"{_IDS}:in_subgraph",
    "load_partition": f"{_IDS}:load_partition",
    "out_degrees": f"{_IDS}:out_degrees",
    "sample_etype_neighbors": f"{_IDS}:sample_etype_neighbors",
    "sample_neighbors": f"{_IDS}:sample_neighbors",
    "finalize_client": "mpigraph.distributed:exit_client",
    "_etype_str_to_tuple": "mpigraph.metadata.schema:parse_relation",
    "_etype_tuple_to_str": "mpigraph.metadata.schema:relation_key",
    "_remove_kwargs_dist": "mpigraph.dataloading.foreign_options:without_processes",
    **{
        name: f"{_ROLES}:{name}"
        for name in (
            "DEFAULT_ETYPE",
            "DEFAULT_NTYPE",
            "DGL2GB_EID",
            "GB_DST_ID",
            "MAX_QUEUE_SIZE",
            "SERVER_EXIT",
            "client_barrier",
            "get_num_client",
            "get_num_machines",
            "get_rank",
            "initialize",
            "shutdown_servers",
        )
    },
}
_DATALOADING = Sources(("mpigraph.dataloading",), _OLD_SAMPLERS)
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
    "dgl.base": _GRAPHS,
    "dgl.convert": _GRAPHS,
    "dgl.data": _DATA,
    "dgl.data.tensor_serialize": _DATA,
    "dgl.data.utils": _DATA,
    "dgl.dataloading": _DATALOADING,
    "dgl.dataloading.base": _DATALOADING,
    "dgl.dataloading.dataloader": _DATALOADING,
    "dgl.dataloading.dist_dataloader": _DATALOADING,
    "dgl.dataloading.negative_sampler": Sources(("mpigraph.dataloading.negative_sampler",)),
    "dgl.dataloading.neighbor": _DATALOADING,
    "dgl.dataloading.neighbor_sampler": _DATALOADING,
    "dgl.dataloading.pytorch": _DATALOADING,
    "dgl.distributed": _IN_DISTRIBUTED,
    "dgl.distributed.constants": _IN_DISTRIBUTED,
    "dgl.distributed.dist_context": _IN_DISTRIBUTED,
    "dgl.distributed.dist_dataloader": _IN_DISTRIBUTED,
    "dgl.distributed.dist_graph": _IN_DISTRIBUTED,
    "dgl.distributed.dist_tensor": _IN_DISTRIBUTED,
    "dgl.distributed.graph_partition_book": _IN_DISTRIBUTED,
    "dgl.distributed.graph_services": _IN_DISTRIBUTED,
    "dgl.distributed.nn": Sources(("mpigraph.distributed.nn",)),
    "dgl.distributed.nn.pytorch": Sources(("mpigraph.distributed.nn",)),
    "dgl.distributed.optim": Sources(("mpigraph.distributed.optim",)),
    "dgl.distributed.optim.pytorch": Sources(("mpigraph.distributed.optim",)),
    "dgl.distributed.partition": _IN_DISTRIBUTED,
    "dgl.distributed.role": Sources((_ROLES,)),
    "dgl.function": Sources(("mpigraph.function",)),
    "dgl.multiprocessing": Sources(("torch.multiprocessing",)),
    "dgl.nn": Sources(("mpigraph.nn", "mpigraph.nn.pytorch"), _LAYERS),
    "dgl.nn.functional": _NN,
    "dgl.nn.pytorch": Sources(("mpigraph.nn.pytorch", "mpigraph.nn"), _LAYERS),
    "dgl.nn.pytorch.conv": _NN,
    "dgl.nn.pytorch.hetero": _NN,
    "dgl.nn.pytorch.link": _NN,
    "dgl.nn.pytorch.softmax": _NN,
    "dgl.ops": _NN,
    "dgl.sampling": Sources(
        ("mpigraph.dataloading",), _OLD_SAMPLERS | {"sample_neighbors": f"{_IDS}:sample_neighbors"}
    ),
    "dgl.transform": _GRAPHS,
    "dgl.transforms": _GRAPHS,
    "dgl.transforms.functional": _GRAPHS,
    "dgl.utils": Sources((_FILES,)),
}

_NO_CONVERSION = (
    "partitions need no conversion for sampling to be fast: leave the call out (use_graphbolt= is accepted)"
)
_NO_KVSTORE = "rows live in windows of MPI: read and write them by DistTensor, g.ndata and DistEmbedding"
_NO_RPC = "ranks talk by MPI: use torch.distributed or mpi4py for messages of your own"
_NO_SERVERS = "servers are ranks of the same job: initialize(num_servers=...), or MPIGRAPH_NUM_SERVERS"
_NO_DATASETS = "datasets are not downloaded: python -m mpigraph partition reads OGB's folders, npz, csv and others"
_INSTEAD = {
    "KVClient": _NO_KVSTORE,
    "KVServer": _NO_KVSTORE,
    "close_kvstore": _NO_KVSTORE,
    "get_kvstore": _NO_KVSTORE,
    "init_kvstore": _NO_KVSTORE,
    "kvstore": _NO_KVSTORE,
    "standalone_kvstore": _NO_KVSTORE,
    "Request": _NO_RPC,
    "Response": _NO_RPC,
    "recv_request": _NO_RPC,
    "recv_response": _NO_RPC,
    "register_service": _NO_RPC,
    "remote_call": _NO_RPC,
    "remote_call_to_machine": _NO_RPC,
    "rpc": _NO_RPC,
    "rpc_client": _NO_RPC,
    "rpc_server": _NO_RPC,
    "send_request": _NO_RPC,
    "send_response": _NO_RPC,
    "DistGraphServer": _NO_SERVERS,
    "ServerState": _NO_SERVERS,
    "connect_to_server": _NO_SERVERS,
    "server_state": _NO_SERVERS,
    "start_server": _NO_SERVERS,
    "dgl_partition_to_graphbolt": _NO_CONVERSION,
    "gb_convert_single_dgl_partition": _NO_CONVERSION,
    "graphbolt": _NO_CONVERSION,
    "BasicPartitionBook": "parts own ranges of ids: use RangePartitionBook",
    "NodeEmbedding": "use dgl.distributed.DistEmbedding, which works on one rank, too",
}


def advice(module: str, name: str) -> str:
    """What to tell whoever asks for a name of DGL's that is not here."""
    instead = _INSTEAD.get(name)
    if instead is None and (module == "dgl.data" or module.startswith("dgl.data.")):
        instead = _NO_DATASETS
    where = f"{module}.{name}" if module else name
    return f"mpigraph has no {where}" + (f": {instead}" if instead else " (it stands in for dgl: mpigraph.compat.dgl)")
