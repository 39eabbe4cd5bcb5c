"""By edge weights and masks, among the out-edges of nodes."""

from dataclasses import dataclass

from mpigraph.sampling.strategies.masked import Masked
from mpigraph.sampling.strategies.weighted import Weighted
from mpigraph.store.turned import OutWeights


@dataclass(frozen=True)
class WeightedOut(Weighted):
    """Choose out-edges with probability proportional to their weights."""

    tag = 8
    table = OutWeights


@dataclass(frozen=True)
class MaskedOut(Masked):
    """Choose each out-edge whose mask is set with the same probability."""

    tag = 9
    table = OutWeights
