"""DGL's path to :class:`DistEmbedding`: ``distributed.nn.DistEmbedding``. Layers are in ``mpigraph.nn``."""

from mpigraph.distgraph.embedding import DistEmbedding

__all__ = ["DistEmbedding"]
