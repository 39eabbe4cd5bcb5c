"""DGL's path to :class:`DistEmbedding`: ``distributed.nn.DistEmbedding``. Layers are in ``mpigraph.nn``."""

from mpigraph.distgraph.embedding import DistEmbedding as DistEmbedding
from mpigraph.namespaces import attach

attach(__name__)
