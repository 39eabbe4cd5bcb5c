"""DGL's distributed namespace on MPI.

What needs torch is imported when it is first used: a server that is in ``initialize`` has not imported it.
"""

from typing import TYPE_CHECKING

from mpigraph.namespaces import attach
from mpigraph.session.context import (
    exit_client as exit_client,
    initialize as initialize,
    is_initialized as is_initialized,
    trainers as trainers,
)

if TYPE_CHECKING:
    from mpigraph.dataloading.graph_loaders import (
        DistEdgeDataLoader as DistEdgeDataLoader,
        DistNodeDataLoader as DistNodeDataLoader,
        EdgeCollator as EdgeCollator,
        NodeCollator as NodeCollator,
    )
    from mpigraph.dataloading.loader import DistDataLoader as DistDataLoader
    from mpigraph.distgraph.embedding import DistEmbedding as DistEmbedding
    from mpigraph.distgraph.graph import DistGraph as DistGraph
    from mpigraph.distgraph.partition_book import (
        EdgePartitionPolicy as EdgePartitionPolicy,
        NodePartitionPolicy as NodePartitionPolicy,
        PartitionPolicy as PartitionPolicy,
        RangePartitionBook as RangePartitionBook,
    )
    from mpigraph.distgraph.partitioning import (
        load_partition as load_partition,
        load_partition_book as load_partition_book,
        load_partition_feats as load_partition_feats,
        partition_graph as partition_graph,
    )
    from mpigraph.distgraph.sampled_graph import (
        in_subgraph as in_subgraph,
        sample_etype_neighbors as sample_etype_neighbors,
        sample_neighbors as sample_neighbors,
    )
    from mpigraph.distgraph.split import edge_split as edge_split, node_split as node_split
    from mpigraph.distgraph.tensor import DistTensor as DistTensor
    from mpigraph.distributed import nn as nn, optim as optim
    from mpigraph.distributed.optim import (
        SparseAdagrad as SparseAdagrad,
        SparseAdam as SparseAdam,
        SparseSGD as SparseSGD,
    )
    from mpigraph.process_group.process_group import MPIProcessGroup as MPIProcessGroup

attach(__name__)
