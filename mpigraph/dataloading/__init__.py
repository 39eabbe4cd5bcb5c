"""Samplers of blocks, of edges and of negatives, and the pieces of a data loader that know no graph."""

from mpigraph.dataloading import negative_sampler
from mpigraph.dataloading.edge_sampler import EdgePredictionSampler, as_edge_prediction_sampler
from mpigraph.dataloading.negative_sampler import (
    GlobalUniform,
    InBatch,
    JointUniform,
    LocalUniform,
    NegativeSampler,
    PerSourceUniform,
    Uniform,
)
from mpigraph.dataloading.sampler import (
    BlockSampler,
    MultiLayerFullNeighborSampler,
    MultiLayerNeighborSampler,
    NeighborSampler,
)

__all__ = [
    "BlockSampler",
    "EdgePredictionSampler",
    "GlobalUniform",
    "InBatch",
    "JointUniform",
    "LocalUniform",
    "MultiLayerFullNeighborSampler",
    "MultiLayerNeighborSampler",
    "NegativeSampler",
    "NeighborSampler",
    "PerSourceUniform",
    "Uniform",
    "as_edge_prediction_sampler",
    "negative_sampler",
]
