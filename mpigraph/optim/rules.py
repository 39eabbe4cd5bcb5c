"""The sparse optimizers: how the gradient of a touched row changes the row and its state."""

from collections.abc import Sequence

import numpy as np

from mpigraph.arrays import F32, I64
from mpigraph.collective import collective
from mpigraph.distgraph.embedding import DistEmbedding
from mpigraph.kernels.updates import Gradients, adagrad, adam, row_wise_adagrad, sgd
from mpigraph.optim.base import SparseOptimizer


class SparseAdagrad(SparseOptimizer):
    """Adagrad: ``G += g * g; w -= lr * g / (sqrt(G) + eps)`` for the touched rows.

    The state of an embedding is "sum", the DistTensor ``<embedding>_sum``: G.
    """

    FIXED = ("reduction", "row_wise")

    @collective("trainers")
    def __init__(
        self,
        params: Sequence[DistEmbedding],
        lr: float,
        eps: float = 1e-10,
        *,
        reduction: str = "mean",
        row_wise: bool = False,
    ) -> None:
        """Begin with sums of zero.

        Args:
            params: embeddings, each with a name of its own.
            lr: learning rate, >= 0.
            eps: keeps the divisor from 0, >= 0.
            reduction: "mean" or "sum" of the gradients of one row.
            row_wise: one sum for each row, of the mean of ``g * g`` over the row's elements, in place of one for each
                element: float32[num_embeddings].

        Raises:
            InvalidArgumentError: ``params`` are not DistEmbeddings, none, or two of one name; or a number is out of
                its range; on every trainer.
            CollectiveError: the trainers make different optimizers; on every trainer.
        """
        settings = {"lr": lr, "eps": eps, "reduction": reduction, "row_wise": bool(row_wise)}
        super().__init__(params, settings, {"sum": not row_wise})

    def _apply(
        self, gradients: Gradients, which: I64, table: F32, places: I64, states: dict[str, F32], rows: I64
    ) -> None:
        update = row_wise_adagrad if self.settings["row_wise"] else adagrad
        lr = np.float32(self.settings["lr"])
        eps = np.float32(self.settings["eps"])
        update(gradients, which, table, places, states["sum"], rows, lr, eps)


class SparseAdam(SparseOptimizer):
    """Adam for the touched rows; bias correction counts how often a row was touched.

    The state of an embedding is "mem" and "power", the running averages of g and ``g * g``, and "step", the number of
    updates of each row: the DistTensors ``<embedding>_mem``, ``<embedding>_power`` and ``<embedding>_step``.
    """

    @collective("trainers")
    def __init__(
        self,
        params: Sequence[DistEmbedding],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        reduction: str = "mean",
    ) -> None:
        """Begin with averages of zero; ``betas`` are the decay of the two averages, each in [0, 1).

        Other arguments and errors are those of :class:`SparseAdagrad`.
        """
        settings = {"lr": lr, "betas": betas, "eps": eps, "reduction": reduction}
        super().__init__(params, settings, {"mem": True, "power": True, "step": False})

    def _apply(
        self, gradients: Gradients, which: I64, table: F32, places: I64, states: dict[str, F32], rows: I64
    ) -> None:
        kept = states["mem"], states["power"], states["step"]
        numbers = self.settings["lr"], *self.settings["betas"], np.float32(self.settings["eps"])
        adam(gradients, which, table, places, *kept, rows, *numbers)


class SparseSGD(SparseOptimizer):
    """Gradient descent: ``w -= lr * g`` for the touched rows. There is no state."""

    @collective("trainers")
    def __init__(self, params: Sequence[DistEmbedding], lr: float, *, reduction: str = "mean") -> None:
        """Begin; arguments and errors are those of :class:`SparseAdagrad`."""
        super().__init__(params, {"lr": lr, "reduction": reduction}, {})

    def _apply(
        self, gradients: Gradients, which: I64, table: F32, places: I64, states: dict[str, F32], rows: I64
    ) -> None:
        sgd(gradients, which, table, places, np.float32(self.settings["lr"]))
