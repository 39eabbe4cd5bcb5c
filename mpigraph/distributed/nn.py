"""DGL's path to :class:`DistEmbedding`: ``distributed.nn.DistEmbedding``. Layers are in ``mpigraph.nn``."""

from typing import TYPE_CHECKING

from mpigraph.distgraph.embedding import DistEmbedding
from mpigraph.namespaces import attach

__all__ = ["DistEmbedding"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, __all__)
