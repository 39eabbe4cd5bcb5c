"""``import dgl`` gives this library: :func:`install` puts an import finder in front of Python's own.

Every module of the alias looks names up on use: first those peculiar to DGL (``dgl_calls``), then those of the modules
of this library, so that later additions are there, too. :data:`MODULES` is the table. ``import mpigraph`` alone changes
nothing.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from mpigraph.config import tell_num_servers
from mpigraph.errors import InvalidArgumentError

__all__ = ["install"]

LIBRARY_VERSION = "2.2.1+mpigraph"
"""The version of DGL that scripts see."""


_CALLS = "mpigraph.compat.dgl_calls"
_GRAPHS = ("mpigraph", "mpigraph.convert")
_HOMES = {  # of modules, whose names begin with "dgl."
    "data data.tensor_serialize data.utils distributed.role utils": (_CALLS,),
    "dataloading dataloading.base dataloading.dataloader dataloading.dist_dataloader dataloading.labor_sampler "
    "dataloading.neighbor dataloading.neighbor_sampler dataloading.pytorch sampling": (_CALLS, "mpigraph.dataloading"),
    "dataloading.negative_sampler": ("mpigraph.dataloading.negative_sampler",),
    "distributed distributed.constants distributed.dist_context distributed.dist_dataloader distributed.dist_graph "
    "distributed.dist_tensor distributed.graph_partition_book distributed.graph_services distributed.partition": (
        _CALLS,
        "mpigraph.distributed",
    ),
    "distributed.nn distributed.nn.pytorch": ("mpigraph.distributed.nn",),
    "distributed.optim distributed.optim.pytorch": ("mpigraph.distributed.optim",),
    "function": ("mpigraph.function",),
    "multiprocessing": ("torch.multiprocessing",),
    "nn nn.functional nn.pytorch nn.pytorch.conv nn.pytorch.hetero nn.pytorch.link nn.pytorch.softmax ops": (
        _CALLS,
        "mpigraph.nn",
    ),
    "base convert transform transforms transforms.functional": _GRAPHS,
}
MODULES: Mapping[str, tuple[str, ...]] = {
    "dgl": (_CALLS, *_GRAPHS),
    **{f"dgl.{name}": homes for names, homes in _HOMES.items() for name in names.split()},
}
"""The modules of the alias, and those of this library that are searched in turn for their names."""

_OF_MODULES = {
    "dgl.data": "datasets are not downloaded: python -m mpigraph partition reads OGB's folders, npz, csv and others",
    "dgl.nn": "layers of PyG run on blocks: layer(x, block.edge_index()), as in examples/pyg_layers.py",
}
_INSTEAD = {
    "PinSAGESampler RandomWalkNeighborSampler pack_traces random_walk": "walks follow out-edges, and parts hold "
    "in-edges: partition with --add-reverse, and sample in-neighbours (NeighborSampler, g.sample_neighbors)",
    "sample_labors": "use LaborSampler, whose sample_blocks draws one hop, too",
    "ShaDowKHopSampler": "use NeighborSampler; DGL and PyG sample such subgraphs in one process",
    "KVClient KVServer close_kvstore get_kvstore init_kvstore kvstore standalone_kvstore": "rows live in windows of "
    "MPI: read and write them by DistTensor, g.ndata and DistEmbedding",
    "Request Response recv_request recv_response register_service remote_call remote_call_to_machine rpc rpc_client "
    "rpc_server send_request send_response": "ranks talk by MPI: use torch.distributed or mpi4py for messages of your "
    "own",
    "DistGraphServer ServerState connect_to_server server_state start_server": "servers are ranks of the same job: "
    "initialize(num_servers=...), or MPIGRAPH_NUM_SERVERS",
    "dgl_partition_to_graphbolt gb_convert_single_dgl_partition graphbolt": "partitions need no conversion for "
    "sampling to be fast: leave the call out (use_graphbolt= is accepted)",
    "compact_graphs khop_in_subgraph khop_out_subgraph rand_bipartite rand_graph": "for graphs of one process use DGL "
    "or PyG, whose graphs mpigraph.convert.as_graph takes",
    "out_subgraph": "graphs know their in-edges: in_subgraph of the graph that reverse returns",
    "load_graphs load_tensors save_graphs save_tensors": "use torch.save for tensors, and for graphs in memory for "
    "their edges and features; DGL's parts are read",
    "Subset split_dataset": "use torch.utils.data: Subset, random_split",
    "BasicPartitionBook": "parts own ranges of ids: use RangePartitionBook",
    "NodeEmbedding": "use dgl.distributed.DistEmbedding, which works on one rank, too",
}
_REFUSED = frozenset("Subset load_data load_graphs load_tensors save_graphs save_tensors split_dataset".split())
"""Names that scripts import whether or not they use them: an error when they are called."""


def instead(module: str, name: str) -> str:
    """Return what to use in place of a name of DGL's that this library lacks; "" if nothing is known."""
    text = next((text for names, text in _INSTEAD.items() if name in names.split()), None)
    return text or _OF_MODULES.get(".".join(module.split(".")[:2]), "")


def advice(module: str, name: str) -> str:
    """Return the error text for a name of DGL's that this library lacks."""
    text = instead(module, name)
    where = f"{module}.{name}" if module else name
    return f"mpigraph has no {where}" + (f": {text}" if text else " (it stands in for dgl: mpigraph.compat.dgl)")


class _Module(ModuleType):
    """A module of the alias; each is a package, so that Python asks the finder for names that it lacks."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":  # of "from dgl.distributed import *"
            return [listed for listed in dir(self) if not listed.startswith("_")]
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if f"{self.__name__}.{name}" in MODULES:
            return import_module(f"{self.__name__}.{name}")
        value = _look_up(self.__name__, name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        homes = MODULES[self.__name__]
        if homes[-1] == "mpigraph.nn":  # "from dgl.nn import *" would hide a script's own DataLoader
            homes = homes[-1:]
        listed = {name for home in homes for name in getattr(import_module(home), "__all__", ())}
        return sorted({*super().__dir__(), *listed})


class _Finder:
    """Finds and makes the modules of the alias."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return how to make a module. Raises ImportError for modules of DGL that this library lacks."""
        if fullname != "dgl" and not fullname.startswith("dgl."):
            return None
        if fullname not in MODULES:
            # no ModuleNotFoundError: "from dgl.distributed import name" would drop its message
            raise ImportError(advice(*fullname.rpartition(".")[::2]), name=fullname)
        return ModuleSpec(fullname, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name, f"``{spec.name}`` of DGL, made of mpigraph (mpigraph.compat.dgl).")

    def exec_module(self, module: ModuleType) -> None:
        """Set the version, which is not looked up."""
        if module.__name__ == "dgl":
            module.__version__ = LIBRARY_VERSION  # type: ignore[attr-defined]


def install() -> None:
    """Let ``import dgl``, ``import dgl.distributed`` and so on import this library from now on.

    Call it before the first ``import dgl`` of a script; or start the script by ``python -m mpigraph run --as-dgl``. A
    second call does nothing. Raises InvalidArgumentError: the real dgl is loaded already.
    """
    loaded = sys.modules.get("dgl")
    if loaded is not None and not isinstance(loaded, _Module):
        where = getattr(loaded, "__file__", None)
        raise InvalidArgumentError(
            f"dgl is loaded already (from {where}): call mpigraph.compat.dgl.install() before the first 'import dgl'"
        )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
        tell_num_servers()


def _look_up(module: str, name: str) -> Any:
    """Return the object behind a name of DGL's. Raises AttributeError that says what to do."""
    for home in MODULES[module]:
        source = import_module(home)
        # a name that a module only imports, such as torch, it does not export
        if hasattr(source, name) and name in getattr(source, "__all__", (name,)):
            return getattr(source, name)
    if name in _REFUSED or (module in ("dgl.data", "dgl.data.utils") and name.endswith("Dataset")):
        instead = advice(module, name)

        def refuse(self: object, *_: object, **__: object) -> None:
            raise InvalidArgumentError(instead)

        return type(name, (), {"__init__": refuse, "__doc__": instead})  # scripts import datasets that they do not use
    raise AttributeError(advice(module, name), name=name)
