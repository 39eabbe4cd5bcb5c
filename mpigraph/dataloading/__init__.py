"""Loading minibatches: samplers of blocks, of edges and of negatives, and the loaders of nodes and of edges."""

from mpigraph.dataloading import negative_sampler as negative_sampler
from mpigraph.dataloading.edge_sampler import (
    EdgePredictionSampler as EdgePredictionSampler,
    as_edge_prediction_sampler as as_edge_prediction_sampler,
)
from mpigraph.dataloading.exclusion import reverse_edges as reverse_edges
from mpigraph.dataloading.graph_loaders import (
    DistEdgeDataLoader as DistEdgeDataLoader,
    DistNodeDataLoader as DistNodeDataLoader,
    EdgeCollator as EdgeCollator,
    NodeCollator as NodeCollator,
)
from mpigraph.dataloading.loader import DistDataLoader as DistDataLoader
from mpigraph.dataloading.negative_sampler import (
    GlobalUniform as GlobalUniform,
    JointUniform as JointUniform,
    NegativeSampler as NegativeSampler,
    PerSourceUniform as PerSourceUniform,
    Uniform as Uniform,
)
from mpigraph.dataloading.sampler import (
    BlockSampler as BlockSampler,
    LaborSampler as LaborSampler,
    MultiLayerFullNeighborSampler as MultiLayerFullNeighborSampler,
    MultiLayerNeighborSampler as MultiLayerNeighborSampler,
    NeighborSampler as NeighborSampler,
    Sampler as Sampler,
)
from mpigraph.namespaces import attach

attach(__name__)
