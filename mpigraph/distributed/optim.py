"""Optimizers of :class:`~mpigraph.distgraph.embedding.DistEmbedding`: only the rows of a minibatch are touched."""

from mpigraph.namespaces import attach
from mpigraph.optim.base import SparseOptimizer as SparseOptimizer
from mpigraph.optim.rules import SparseAdagrad as SparseAdagrad, SparseAdam as SparseAdam, SparseSGD as SparseSGD

attach(__name__)
