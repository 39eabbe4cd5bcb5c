"""Samplers, and the pieces of a data loader that know no graph."""

from mpigraph.dataloading.sampler import (
    BlockSampler,
    MultiLayerFullNeighborSampler,
    MultiLayerNeighborSampler,
    NeighborSampler,
)

__all__ = ["BlockSampler", "MultiLayerFullNeighborSampler", "MultiLayerNeighborSampler", "NeighborSampler"]
