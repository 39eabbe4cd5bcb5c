"""Ways to choose neighbours, each in a file of its own; importing this package makes them known to owners."""

from mpigraph.sampling.strategies.labor import Labor
from mpigraph.sampling.strategies.masked import Masked
from mpigraph.sampling.strategies.strategy import Draw, HopKeys, OwnedRows, Strategy
from mpigraph.sampling.strategies.temporal import Temporal
from mpigraph.sampling.strategies.uniform import Uniform
from mpigraph.sampling.strategies.weighted import Weighted

__all__ = [
    "Draw",
    "HopKeys",
    "Labor",
    "Masked",
    "OwnedRows",
    "Strategy",
    "Temporal",
    "Uniform",
    "Weighted",
]
