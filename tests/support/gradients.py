"""Minibatches of gradients that are the same on any number of trainers, and plain optimizers to compare with.

The minibatch of a step is one list of ids with a gradient for each, with repeats. Trainers take pieces of it, of
uneven lengths, in the order of their ranks; so the trainers together have the same minibatch in every layout.
"""

from collections.abc import Callable

import numpy as np
import torch
from oracle import NUM_NODES

import mpigraph.distributed as dist
from mpigraph.session.context import current

DIM = 5
BATCH = 70
Arrays = dict[str, torch.Tensor]


def minibatch(step: int, size: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """int64[size] ids with repeats, and float32[size, DIM] gradients."""
    rng = np.random.default_rng(100 + step)
    ids = rng.integers(0, NUM_NODES, size)
    ids[: size // 4] = ids[size // 2]  # one row many times, on several trainers
    return torch.from_numpy(ids), torch.from_numpy(rng.normal(size=(size, DIM)).astype(np.float32))


def piece(size: int, rank: int, trainers: int) -> slice:
    """What of a minibatch a trainer takes."""
    return slice(*(size * k * k // trainers**2 for k in (rank, rank + 1)))


def start(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An init_func."""
    return torch.randn(shape, dtype=dtype)


def embedding(name: str = "emb", dtype: torch.dtype = torch.float32) -> dist.DistEmbedding:
    return dist.DistEmbedding(NUM_NODES, DIM, name, init_func=start, dtype=dtype)


def push(emb: dist.DistEmbedding, ids: torch.Tensor, grads: torch.Tensor) -> None:
    """Read rows and give them gradients."""
    (emb(ids) * grads).sum().backward()


def train(emb: dist.DistEmbedding, optimizer: dist.optim.SparseOptimizer, steps: range) -> None:
    """Steps with this trainer's pieces of the minibatches."""
    session = current()
    for step in steps:
        ids, grads = minibatch(step)
        mine = piece(len(ids), session.rank, session.num_trainers)
        optimizer.zero_grad()
        push(emb, ids[mine], grads[mine])
        optimizer.step()


def everything(emb: dist.DistEmbedding) -> Arrays:
    """All rows of an embedding and of its state."""
    return {"weight": emb.weight[:], **{name: t[:] for name, t in (emb.optm_state or {}).items()}}


def differences(found: Arrays, wanted: Arrays) -> list[str]:
    """The tensors that are not the same bit for bit."""
    return [name for name in wanted.keys() | found.keys() if not torch.equal(found[name], wanted[name])]


MAKE: dict[str, Callable[..., dist.optim.SparseOptimizer]] = {
    "adagrad": lambda embs, **more: dist.SparseAdagrad(embs, 0.1, **more),
    "row-wise": lambda embs, **more: dist.SparseAdagrad(embs, 0.1, row_wise=True, **more),
    "adam": lambda embs, **more: dist.SparseAdam(embs, 0.05, **more),
    "sgd": lambda embs, **more: dist.SparseSGD(embs, 0.2, **more),
}


def reduced(ids: torch.Tensor, grads: torch.Tensor, reduction: str) -> dict[int, torch.Tensor]:
    """The gradient of each touched row, float64[DIM], added up by hand."""
    found: dict[int, list[torch.Tensor]] = {}
    for row, grad in zip(ids.tolist(), grads, strict=True):
        found.setdefault(row, []).append(grad.double())
    return {row: torch.stack(parts).sum(0) / (len(parts) if reduction == "mean" else 1) for row, parts in found.items()}


class RowWise(torch.optim.Optimizer):
    """Adagrad with one number of state for a row."""

    def __init__(self, params: list[torch.nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for row in group["params"]:
                state = self.state[row]
                state["sum"] = state.get("sum", 0.0) + row.grad.square().mean()
                row.data -= group["lr"] * row.grad / (state["sum"].sqrt() + 1e-10)


TORCH: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
    "row-wise": lambda p: RowWise(p, 0.1),
    "adam": lambda p: torch.optim.Adam(p, 0.05),
    "sgd": lambda p: torch.optim.SGD(p, 0.2),
}
STATES = {"mem": "exp_avg", "power": "exp_avg_sq"}  # ours -> torch's


class Plain:
    """Each row in float64 by an optimizer of torch of its own, whose steps are the touches of the row."""

    def __init__(self, kind: str, weight: torch.Tensor, reduction: str = "mean") -> None:
        self.reduction = reduction
        self._rows = [torch.nn.Parameter(row) for row in weight.double()]
        self._optimizers = [TORCH[kind]([row]) for row in self._rows]

    @property
    def weight(self) -> torch.Tensor:
        return torch.stack([row.detach() for row in self._rows])

    def step(self, ids: torch.Tensor, grads: torch.Tensor) -> None:
        for row, g in reduced(ids, grads, self.reduction).items():
            self._rows[row].grad = g
            self._optimizers[row].step()

    def state(self, name: str) -> dict[int, torch.Tensor]:
        """The state of the rows that were touched."""
        states = {row: optimizer.state[self._rows[row]] for row, optimizer in enumerate(self._optimizers)}
        return {row: state[STATES.get(name, name)].double() for row, state in states.items() if state}
