"""DGL's classes and functions, with the arguments of older versions and its *homogeneous* ids, and roles of ranks.

DGL up to 0.6, and some of its functions since, number the nodes and edges of all types together, part after part, and
within a part type after type (:class:`.RangePartitionBook` converts). Ids by type are as elsewhere in this library.
Every rank that runs the script is a trainer, of role "default". ``__all__`` has also the names that other objects of
this library have in DGL.
"""

import argparse
import os
from abc import ABCMeta
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from mpigraph import dataloading, distributed, nn
from mpigraph.collective import WHEN_REMOTE, collective
from mpigraph.dataloading.sampler import check_graph
from mpigraph.distgraph import graph as distgraph, partitioning, tensor
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.fields import EID, IdsLike, as_ids
from mpigraph.graphs.hetero import DGLGraph, HeteroGraph, graph
from mpigraph.log import get_logger
from mpigraph.metadata import schema
from mpigraph.session import context
from mpigraph.session.context import check_seed, current
from mpigraph.session.control import Operation

__all__ = (
    "BACKEND_NAME DEFAULT_ETYPE DEFAULT_NTYPE DGL2GB_EID DGLHeteroGraph DataLoader DistGraph DistTensor EdgeDataLoader "
    "GB_DST_ID GraphPartitionBook MAX_QUEUE_SIZE MultiLayerFullNeighborSampler MultiLayerNeighborSampler "
    "NeighborSampler NodeDataLoader RelGraphConv SERVER_EXIT _etype_str_to_tuple _etype_tuple_to_str backend_name "
    "client_barrier expand_as_pair finalize_client find_edges generate_mask_tensor get_global_rank get_num_client "
    "get_num_machines get_num_trainers get_rank get_role get_trainer_rank idx2mask in_degrees in_subgraph init_role "
    "initialize load_partition makedirs out_degrees register_data_args sample_etype_neighbors sample_neighbors seed "
    "shutdown_servers"
).split()

DEFAULT_ETYPE, DEFAULT_NTYPE = schema.DEFAULT_ETYPE, schema.DEFAULT_NTYPE
DGLHeteroGraph = DGLGraph
GraphPartitionBook = distributed.RangePartitionBook
backend_name: Final = "pytorch"
finalize_client = distributed.exit_client
_etype_str_to_tuple, _etype_tuple_to_str = schema.parse_relation, schema.relation_key

_LOW_MEM_PLACE = 8
"""Position of ``low_mem`` in DGL up to 0.7; later versions have the dropout rate there."""


class NeighborSampler(dataloading.NeighborSampler):
    """:class:`mpigraph.dataloading.NeighborSampler` as DGL's scripts use it.

    A fanout of None takes all neighbours, and blocks of a typed ``DistGraph`` lack the relations without drawn
    edges, as in DGL up to 2.2, unless ``empty_relations=True``.
    """

    def __init__(self, fanouts: Any, *args: Any, **options: Any) -> None:
        checked = fanouts
        if isinstance(fanouts, Sequence) and not isinstance(fanouts, str):
            checked = [_fanout(layer) for layer in fanouts]
        super().__init__(checked, *args, **({"empty_relations": False} | options))


MultiLayerNeighborSampler = NeighborSampler


class MultiLayerFullNeighborSampler(NeighborSampler):
    """Takes all in-neighbours in each of ``num_layers`` layers."""

    def __init__(self, num_layers: int, **options: Any) -> None:
        """The options are those of :class:`NeighborSampler`."""
        super().__init__([-1] * num_layers, **options)


def _fanout(layer: Any) -> Any:
    if isinstance(layer, Mapping):
        return {etype: _fanout(fanout) for etype, fanout in layer.items()}
    return -1 if layer is None else layer


@collective("trainers")
def DataLoader(
    graph: distgraph.DistGraph,
    indices: Any,
    graph_sampler: Any,
    device: torch.device | str | None = None,
    use_ddp: bool = False,
    ddp_seed: int = 0,
    batch_size: int = 1,
    drop_last: bool = False,
    shuffle: bool = False,
    **options: Any,
) -> Any:
    """Return a :class:`.DistEdgeDataLoader` with a sampler of edges, else a :class:`.DistNodeDataLoader`.

    ``use_ddp`` and ``ddp_seed`` are accepted: ``indices`` are this trainer's own. Options and errors are those of the
    loader.
    """
    of_edges = isinstance(graph_sampler, dataloading.EdgePredictionSampler)
    make: Any = dataloading.DistEdgeDataLoader if of_edges else dataloading.DistNodeDataLoader
    given = dict(batch_size=batch_size, drop_last=drop_last, shuffle=shuffle)
    return make(graph, indices, graph_sampler, device, **given, **options)


NodeDataLoader = DataLoader


@collective("trainers")
def EdgeDataLoader(
    g: distgraph.DistGraph,
    eids: Any,
    graph_sampler: Any,
    device: torch.device | str | None = None,
    use_ddp: bool = False,
    ddp_seed: int = 0,
    exclude: Any = None,
    reverse_eids: Any = None,
    reverse_etypes: Any = None,
    negative_sampler: Any = None,
    **options: Any,
) -> Any:
    """Return a :class:`.DistEdgeDataLoader`, with its options and errors.

    ``use_ddp`` and ``ddp_seed`` are accepted: ``eids`` are this trainer's own.
    """
    how = dict(exclude=exclude, reverse_eids=reverse_eids, reverse_etypes=reverse_etypes)
    return dataloading.DistEdgeDataLoader(
        g, eids, graph_sampler, device, negative_sampler=negative_sampler, **how, **options
    )


class RelGraphConv(nn.RelGraphConv):
    """:class:`mpigraph.nn.RelGraphConv` that takes ``low_mem`` as DGL up to 0.7 did, and ignores it."""

    def __init__(self, *args: Any, low_mem: bool = False, **options: Any) -> None:
        if len(args) > _LOW_MEM_PLACE and isinstance(args[_LOW_MEM_PLACE], bool):
            args = args[:_LOW_MEM_PLACE] + args[_LOW_MEM_PLACE + 1 :]
        super().__init__(*args, **options)


class _StandIn(ABCMeta):
    """Lets objects of the library's own class count as instances of the class that stands in for it."""

    def __instancecheck__(cls, instance: object) -> bool:
        own = cls.__mro__[1] if cls.__module__ == __name__ else cls
        return type.__instancecheck__(own, instance)


class DistGraph(distgraph.DistGraph, metaclass=_StandIn):
    """:class:`mpigraph.distributed.DistGraph`, also as ``DistGraph(ip_config, name, conf_file=...)``."""

    @collective("all ranks")
    def __init__(self, *args: Any, conf_file: Any = None, **options: Any) -> None:
        if len(args) > 1 and isinstance(args[1], str) and not args[1].endswith(".json"):
            args = args[1:]  # else the second is a configuration
        if conf_file is not None:
            options["part_config"] = conf_file
        super().__init__(*args, **options)


class DistTensor(tensor.DistTensor, metaclass=_StandIn):
    """:class:`mpigraph.distributed.DistTensor`, also as ``DistTensor(g, shape, dtype, ...)``."""

    @collective("trainers")
    def __init__(self, *args: Any, **options: Any) -> None:
        if args and isinstance(args[0], distgraph.DistGraph):
            args = args[1:]
        super().__init__(*args, **options)


def load_partition(*args: Any, **options: Any) -> Any:
    """Call :func:`mpigraph.distributed.load_partition` for a graph without types, with homogeneous ids."""
    return partitioning.load_partition(*args, **{"homogeneous": True, **options})


@collective("trainers", WHEN_REMOTE)
def sample_neighbors(g: Any, nodes: Any, fanout: Any, *args: Any, **options: Any) -> Any:
    """Sample in-neighbours, as :func:`mpigraph.distributed.sample_neighbors` does.

    Of a graph with several node types, ``nodes`` without types are homogeneous ids. The result is then a graph without
    types, whose nodes and ``edata[EID]`` are homogeneous ids, too, as in DGL.
    """
    if fanout is None:
        fanout = -1
    if isinstance(nodes, Mapping) or len(check_graph(g).ntypes) == 1:
        return g.sample_neighbors(nodes, fanout, *args, **options)
    book = g.get_partition_book()
    kinds, ids = book.map_to_per_ntype(nodes)
    by_type = {ntype: ids[kinds == t] for t, ntype in enumerate(g.ntypes)}
    return _homogeneous(g, g.sample_neighbors(by_type, fanout, *args, **options))


sample_etype_neighbors = sample_neighbors


@collective("trainers", WHEN_REMOTE)
def in_subgraph(g: Any, nodes: Any, **options: Any) -> Any:
    """Return all in-edges of nodes, as :func:`sample_neighbors` does; for a graph in memory, as its own method."""
    if isinstance(g, distgraph.DistGraph):
        return sample_neighbors(g, nodes, -1, **options)
    return g.in_subgraph(nodes, **options)


def find_edges(g: distgraph.DistGraph, edge_ids: IdsLike) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sources and destinations of edges, int64[n] each; by homogeneous ids if there are several relations.

    One-sided; the target does nothing.
    """
    if len(g.canonical_etypes) == 1:
        return g.find_edges(edge_ids)
    book = g.get_partition_book()
    kinds, ids = book.map_to_per_etype(edge_ids)
    src, dst = torch.empty_like(ids), torch.empty_like(ids)
    for number, relation in enumerate(g.canonical_etypes):
        of_relation = kinds == number
        ends = g.find_edges(ids[of_relation], relation)
        src[of_relation], dst[of_relation] = (
            book.map_to_homo_nid(column, ntype) for column, ntype in zip(ends, relation[::2], strict=True)
        )
    return src, dst


def in_degrees(g: distgraph.DistGraph, v: IdsLike) -> torch.Tensor:
    """Return in-degrees, int64[n], over all relations; nodes are homogeneous ids if there are several types.

    One-sided; the target does nothing.
    """
    return _degrees(g, v, side=2)


def out_degrees(g: distgraph.DistGraph, u: IdsLike) -> torch.Tensor:
    """Return out-degrees of nodes, int64[n], as :func:`in_degrees`. One-sided; the target does nothing."""
    return _degrees(g, u, side=0)


def _degrees(g: distgraph.DistGraph, nodes: IdsLike, side: int) -> torch.Tensor:
    kinds, ids = g.get_partition_book().map_to_per_ntype(nodes)
    degrees = torch.zeros_like(ids)
    for relation in g.canonical_etypes:
        of_type = kinds == g.get_ntype_id(relation[side])
        read = g.in_degrees if side else g.out_degrees
        degrees[of_type] += read(ids[of_type], relation)
    return degrees


def _homogeneous(g: distgraph.DistGraph, frontier: HeteroGraph) -> HeteroGraph:
    book = g.get_partition_book()
    columns: list[tuple[torch.Tensor, ...]] = [(torch.empty(0, dtype=torch.int64),) * 3]
    for relation in g.canonical_etypes:
        src, dst = frontier.all_edges(etype=relation)
        eids = book.map_to_homo_eid(frontier.edges[relation].data[EID], relation)
        columns.append((book.map_to_homo_nid(src, relation[0]), book.map_to_homo_nid(dst, relation[2]), eids))
    src, dst, eids = (torch.cat(ids) for ids in zip(*columns, strict=True))
    result = graph((src, dst), num_nodes=g.num_nodes())
    result.edata[EID] = eids
    return result


def register_data_args(parser: argparse.ArgumentParser) -> None:
    """Add the argument ``--dataset``, as DGL's older scripts do."""
    parser.add_argument("--dataset", type=str, required=False, help="name of the dataset")


def makedirs(path: str | os.PathLike[str]) -> None:
    """Make a folder and those above it, unless they exist."""
    os.makedirs(os.path.expanduser(os.path.normpath(path)), exist_ok=True)


def generate_mask_tensor(mask: Any) -> torch.Tensor:
    """Return a mask as a tensor, bool[n]."""
    return torch.as_tensor(np.asarray(mask)).bool()


def idx2mask(idx: IdsLike, len: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return the mask of positions ``idx``, bool[len]."""
    mask = np.zeros(len, np.bool_)
    mask[as_ids(idx, "idx").numpy()] = True
    return mask


def expand_as_pair(input_: Any, g: Any = None) -> tuple[Any, Any]:
    """Return a layer's input as features of sources and destinations; those of a block are its first sources."""
    if isinstance(input_, tuple):
        return input_[0], input_[1]
    if g is None or not g.is_block:
        return input_, input_
    if isinstance(input_, Mapping):
        return input_, {ntype: x[: g.num_dst_nodes(ntype)] for ntype, x in input_.items() if ntype in g.dsttypes}
    return input_, input_[: g.num_dst_nodes()]


BACKEND_NAME: Final = backend_name
DGL2GB_EID: Final = "_dgl2gb_eid"
GB_DST_ID: Final = "_gb_dst_id"
MAX_QUEUE_SIZE: Final = 20 << 30
"""Accepted by ``initialize``, where it changes nothing."""
SERVER_EXIT: Final = "server_exit"
_TRAINER = "default"
_ARGUMENTS_OF_1 = ("num_servers", "num_workers", "max_queue_size", "net_type", "num_worker_threads")
_ARGUMENTS_OF_2 = ("max_queue_size", "net_type", "num_worker_threads", "use_graphbolt")
_LARGEST_COUNT = 1_000_000


@collective("all ranks")
def initialize(ip_config: str | None = None, *args: Any, **options: Any) -> None:
    """Call :func:`mpigraph.distributed.initialize` with the positional arguments of any version of DGL.

    Args:
        ip_config: accepted; MPI knows the hosts.
        args: ``num_servers, num_workers, max_queue_size, net_type, num_worker_threads`` of DGL up to 1.x, or
            ``max_queue_size, net_type, num_worker_threads, use_graphbolt`` of 2.x. A first number above a million is
            a size, below a number of servers.
        options: those of :func:`mpigraph.distributed.initialize`.

    Raises:
        InvalidArgumentError: too many arguments, or raised by that function.
    """
    queue_first = bool(args) and isinstance(args[0], int) and args[0] > _LARGEST_COUNT
    names = _ARGUMENTS_OF_2 if queue_first else _ARGUMENTS_OF_1
    if len(args) > len(names):
        raise InvalidArgumentError(f"initialize takes ip_config and at most {len(names)} more arguments (got {args!r})")
    context.initialize(ip_config, **dict(zip(names, args, strict=False)), **options)


def get_global_rank() -> int:
    """Return this trainer's rank. Raises NotInitializedError before ``initialize()``."""
    return current().rank


get_trainer_rank = get_global_rank


def get_rank(role: str = _TRAINER) -> int:
    """Return this trainer's rank; -1 for another role than "default"."""
    return current().rank if role == _TRAINER else -1


def get_role() -> str:
    """Return "default", DGL's word for a trainer: the role of every rank that runs the script."""
    return _TRAINER


def init_role(role: str) -> None:
    """Accept DGL's call. Raises InvalidArgumentError for another role than a trainer's."""
    if role != _TRAINER:
        why = "no processes sample, loaders sample in threads"
        raise InvalidArgumentError(f"{why}: role must be {_TRAINER!r} (got {role!r})")


def get_num_trainers() -> int:
    """Return the number of trainers."""
    return current().num_trainers


get_num_client = get_num_trainers


def get_num_machines() -> int:
    """Return the number of nodes of the job."""
    return current().world.num_nodes


@collective("trainers")
def client_barrier() -> None:
    """Wait for all trainers."""
    current().control.call(Operation.BARRIER)


def shutdown_servers() -> None:
    """Do nothing, for DGL's scripts: servers end with the job."""


def seed(val: int) -> None:
    """Accept DGL's call, with a warning: draws depend on ``initialize(seed=)``, and those of a loader on its ``seed=``.

    Raises InvalidArgumentError: it is no integer of 64 bits.
    """
    instead = "draws depend on initialize(seed=) and a loader's seed="
    get_logger().warning("dgl.seed(%s) changes nothing: %s", check_seed(val), instead)
