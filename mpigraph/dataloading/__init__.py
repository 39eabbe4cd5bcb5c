"""Loading minibatches: samplers of blocks, of edges and of negatives, and the loaders of nodes and of edges."""

from mpigraph.dataloading import negative_sampler
from mpigraph.dataloading.collators import EdgeCollator, NodeCollator
from mpigraph.dataloading.edge_loader import DistEdgeDataLoader
from mpigraph.dataloading.edge_sampler import EdgePredictionSampler, as_edge_prediction_sampler
from mpigraph.dataloading.loader import DistDataLoader, DistNodeDataLoader
from mpigraph.dataloading.negative_sampler import (
    GlobalUniform,
    InBatch,
    JointUniform,
    LocalUniform,
    NegativeSampler,
    PerSourceUniform,
    Uniform,
)
from mpigraph.dataloading.reverse_edges import reverse_edges
from mpigraph.dataloading.sampler import (
    BlockSampler,
    MultiLayerFullNeighborSampler,
    MultiLayerNeighborSampler,
    NeighborSampler,
)

__all__ = [
    "BlockSampler",
    "DistDataLoader",
    "DistEdgeDataLoader",
    "DistNodeDataLoader",
    "EdgeCollator",
    "EdgePredictionSampler",
    "GlobalUniform",
    "InBatch",
    "JointUniform",
    "LocalUniform",
    "MultiLayerFullNeighborSampler",
    "MultiLayerNeighborSampler",
    "NegativeSampler",
    "NeighborSampler",
    "NodeCollator",
    "PerSourceUniform",
    "Uniform",
    "as_edge_prediction_sampler",
    "negative_sampler",
    "reverse_edges",
]
