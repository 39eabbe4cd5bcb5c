"""Optimizers of :class:`~mpigraph.distgraph.embedding.DistEmbedding`: only the rows of a minibatch are touched."""

from mpigraph.namespaces import attach
from mpigraph.optim import (
    SparseAdagrad as SparseAdagrad,
    SparseAdam as SparseAdam,
    SparseOptimizer as SparseOptimizer,
    SparseSGD as SparseSGD,
)

attach(__name__)
