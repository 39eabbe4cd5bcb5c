"""Optimizers of :class:`~mpigraph.distgraph.embedding.DistEmbedding`: only the rows of a minibatch are touched."""

from typing import TYPE_CHECKING

from mpigraph.namespaces import attach
from mpigraph.optim.base import SparseOptimizer
from mpigraph.optim.rules import SparseAdagrad, SparseAdam, SparseSGD

__all__ = ["SparseAdagrad", "SparseAdam", "SparseOptimizer", "SparseSGD"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, __all__)
