"""Every edge alike whose mask is set."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from mpigraph.kernels.masked import choose_masked
from mpigraph.sampling.strategies.weighted import Weighted


@dataclass(frozen=True)
class Masked(Weighted):
    """Choose each edge whose mask is set with the same probability; ``weights`` is the number of a tensor of bool."""

    tag = 3
    kernel: ClassVar[Callable[..., None]] = staticmethod(choose_masked)
