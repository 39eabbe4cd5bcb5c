"""Optimizers of :class:`~mpigraph.distributed.embedding.DistEmbedding`: only the rows of a minibatch are touched."""

from mpigraph.distributed.optim.base import SparseOptimizer
from mpigraph.distributed.optim.rules import SparseAdagrad, SparseAdam, SparseSGD

__all__ = ["SparseAdagrad", "SparseAdam", "SparseOptimizer", "SparseSGD"]
