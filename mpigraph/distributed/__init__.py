"""DGL's distributed namespace on MPI."""

from mpigraph.distributed import nn, optim
from mpigraph.distributed.collators import EdgeCollator, NodeCollator
from mpigraph.distributed.context import exit_client, initialize, is_initialized
from mpigraph.distributed.edge_loader import DistEdgeDataLoader
from mpigraph.distributed.embedding import DistEmbedding
from mpigraph.distributed.graph import DistGraph
from mpigraph.distributed.loader import DistDataLoader, DistNodeDataLoader
from mpigraph.distributed.optim import SparseAdagrad, SparseAdam, SparseSGD
from mpigraph.distributed.partition import load_partition, load_partition_book, load_partition_feats, partition_graph
from mpigraph.distributed.partition_book import (
    EdgePartitionPolicy,
    NodePartitionPolicy,
    PartitionPolicy,
    RangePartitionBook,
)
from mpigraph.distributed.process_group import MPIProcessGroup
from mpigraph.distributed.sampling import in_subgraph, sample_etype_neighbors, sample_neighbors
from mpigraph.distributed.split import edge_split, node_split
from mpigraph.distributed.tensor import DistTensor

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
    "sample_neighbors",
]
