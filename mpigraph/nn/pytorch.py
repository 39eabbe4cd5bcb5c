"""The layers by DGL's module name: ``import mpigraph.nn.pytorch as dglnn``."""

from mpigraph.namespaces import attach
from mpigraph.nn import *  # noqa: F403

attach(__name__)
