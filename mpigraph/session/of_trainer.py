"""Values in a state dict of which every trainer has its own, such as the state of its generator of random numbers."""

from collections.abc import Callable

import torch

from mpigraph.errors import InvalidArgumentError

__all__ = ["OfTrainer"]


class OfTrainer:
    """Rows that belong to this trainer; everything else in a state dict is the same on every trainer.

    A checkpoint holds the rows of all trainers one after the other. Where it is loaded on as many trainers, each gets
    its own rows back; on another number each gets an even share of all of them, the first ones going to the first
    trainer.
    """

    def __init__(self, rows: torch.Tensor | Callable[[], torch.Tensor]) -> None:
        """Hold rows.

        Args:
            rows: [n, ...] on the CPU, of one dtype and row shape on every trainer; or a function that makes them when
                they are wanted, maybe in another thread, and always the same ones.

        Raises:
            InvalidArgumentError: it is something else.
        """
        if not callable(rows) and not (isinstance(rows, torch.Tensor) and rows.ndim):
            raise InvalidArgumentError(f"OfTrainer holds a tensor of rows, or a function that makes it (got {rows!r})")
        self._rows = rows

    @property
    def rows(self) -> torch.Tensor:
        """The rows."""
        return self._rows() if callable(self._rows) else self._rows

    def copy(self) -> "OfTrainer":
        """The rows as they are now, whatever is written to them later."""
        return self if callable(self._rows) else OfTrainer(self._rows.detach().clone())
