"""Loading minibatches: samplers of blocks, of edges and of negatives, and the loaders of nodes and of edges."""

from typing import TYPE_CHECKING

from mpigraph.dataloading import negative_sampler
from mpigraph.dataloading.edge_loader import DistEdgeDataLoader, EdgeCollator
from mpigraph.dataloading.edge_sampler import EdgePredictionSampler, as_edge_prediction_sampler
from mpigraph.dataloading.exclusion import reverse_edges
from mpigraph.dataloading.labor_sampler import LaborSampler, sample_labors
from mpigraph.dataloading.loader import DistDataLoader
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
from mpigraph.dataloading.sampler import (
    BlockSampler,
    MultiLayerFullNeighborSampler,
    MultiLayerNeighborSampler,
    NeighborSampler,
    Sampler,
)
from mpigraph.namespaces import attach

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
    "LaborSampler",
    "LocalUniform",
    "MultiLayerFullNeighborSampler",
    "MultiLayerNeighborSampler",
    "NegativeSampler",
    "NeighborSampler",
    "NodeCollator",
    "PerSourceUniform",
    "Sampler",
    "Uniform",
    "as_edge_prediction_sampler",
    "negative_sampler",
    "reverse_edges",
    "sample_labors",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, __all__)
