"""Optimizers of :class:`~mpigraph.distgraph.embedding.DistEmbedding`: only the rows of a minibatch are touched."""

from mpigraph.optim.base import SparseOptimizer
from mpigraph.optim.rules import SparseAdagrad, SparseAdam, SparseSGD

__all__ = ["SparseAdagrad", "SparseAdam", "SparseOptimizer", "SparseSGD"]
