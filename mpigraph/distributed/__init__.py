"""DGL's distributed namespace on MPI."""

from typing import TYPE_CHECKING, Any

from mpigraph.dataloading.edge_loader import DistEdgeDataLoader, EdgeCollator
from mpigraph.dataloading.labor_sampler import sample_labors
from mpigraph.dataloading.loader import DistDataLoader
from mpigraph.dataloading.node_loader import DistNodeDataLoader, NodeCollator
from mpigraph.distgraph.embedding import DistEmbedding
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.partition_book import (
    EdgePartitionPolicy,
    NodePartitionPolicy,
    PartitionPolicy,
    RangePartitionBook,
)
from mpigraph.distgraph.sampled_graph import in_subgraph, sample_etype_neighbors, sample_neighbors
from mpigraph.distgraph.split import edge_split, node_split
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.distributed import nn, optim
from mpigraph.distributed.optim import SparseAdagrad, SparseAdam, SparseSGD
from mpigraph.namespaces import attach
from mpigraph.process_group.process_group import MPIProcessGroup
from mpigraph.session.context import exit_client, initialize, is_initialized

__all__ = [
    "DistDataLoader",
    "DistEdgeDataLoader",
    "DistEmbedding",
    "DistGraph",
    "DistNodeDataLoader",
    "DistTensor",
    "EdgeCollator",
    "EdgePartitionPolicy",
    "MPIProcessGroup",
    "NodeCollator",
    "NodePartitionPolicy",
    "PartitionPolicy",
    "RangePartitionBook",
    "SparseAdagrad",
    "SparseAdam",
    "SparseSGD",
    "edge_split",
    "exit_client",
    "in_subgraph",
    "initialize",
    "is_initialized",
    "load_partition",
    "load_partition_book",
    "load_partition_feats",
    "nn",
    "node_split",
    "optim",
    "partition_graph",
    "sample_etype_neighbors",
    "sample_labors",
    "sample_neighbors",
]

if TYPE_CHECKING:
    from mpigraph.distgraph.partitioning import (
        load_partition,
        load_partition_book,
        load_partition_feats,
        partition_graph,
    )
else:
    _missing, __dir__ = attach(__name__, __all__)

    def __getattr__(name: str) -> Any:
        if name in ("load_partition", "load_partition_book", "load_partition_feats", "partition_graph"):
            from mpigraph.distgraph import partitioning  # with all formats of graphs: training does not need them

            return getattr(partitioning, name)
        return _missing(name)
