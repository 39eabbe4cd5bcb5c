"""Loading minibatches: samplers of blocks, of edges and of negatives, and the loaders of nodes and of edges.

``Dist...`` loaders are of distributed graphs, the others of graphs in memory.
"""

from typing import TYPE_CHECKING

from mpigraph.dataloading import negative_sampler
from mpigraph.dataloading.edge_loader import DistEdgeDataLoader, EdgeCollator
from mpigraph.dataloading.edge_sampler import EdgePredictionSampler, as_edge_prediction_sampler
from mpigraph.dataloading.exclusion import reverse_edges
from mpigraph.dataloading.labor_sampler import LaborSampler, sample_labors
from mpigraph.dataloading.loader import DistDataLoader
from mpigraph.dataloading.memory_loader import DataLoader, EdgeDataLoader, NodeDataLoader
from mpigraph.dataloading.memory_sampling import sample_neighbors
from mpigraph.dataloading.negative_sampler import (
    GlobalUniform,
    InBatch,
    JointUniform,
    LocalUniform,
    NegativeSampler,
    PerSourceUniform,
    Uniform,
)
from mpigraph.dataloading.node_loader import DistNodeDataLoader, NodeCollator
from mpigraph.dataloading.random_walks import pack_traces, random_walk
from mpigraph.dataloading.sampler import (
    BlockSampler,
    MultiLayerFullNeighborSampler,
    MultiLayerNeighborSampler,
    NeighborSampler,
    Sampler,
)
from mpigraph.dataloading.shadow import ShaDowKHopSampler
from mpigraph.dataloading.walk_samplers import PinSAGESampler, RandomWalkNeighborSampler
from mpigraph.namespaces import attach

__all__ = [
    "BlockSampler",
    "DataLoader",
    "DistDataLoader",
    "DistEdgeDataLoader",
    "DistNodeDataLoader",
    "EdgeCollator",
    "EdgeDataLoader",
    "EdgePredictionSampler",
    "GlobalUniform",
    "InBatch",
    "JointUniform",
    "LaborSampler",
    "LocalUniform",
    "MultiLayerFullNeighborSampler",
    "MultiLayerNeighborSampler",
    "NegativeSampler",
    "NeighborSampler",
    "NodeCollator",
    "NodeDataLoader",
    "PerSourceUniform",
    "PinSAGESampler",
    "RandomWalkNeighborSampler",
    "Sampler",
    "ShaDowKHopSampler",
    "Uniform",
    "as_edge_prediction_sampler",
    "negative_sampler",
    "pack_traces",
    "random_walk",
    "reverse_edges",
    "sample_labors",
    "sample_neighbors",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, __all__)
