"""Sparse optimizers of embeddings: gradients travel to the owners of their rows, which update them by a rule.

One step, the same on every trainer::

    take       the reads so far with their gradients, of every embedding; check them
    push       gradients to the owner of each row, a trainer (rows/owners.py), embedding by embedding
    update     as owner: add up the gradients of each row in rank order, then in the order of the reads, and update
               it once, by plain stores into the memory of a local host (kernels/updates.py)
    agree      wait for all; from here on every trainer reads the new rows

No server takes part, and nothing here needs ``torch.distributed``. An owner writes no row before every trainer
is in the step, so a trainer that still computes reads the old rows. An error of one trainer travels with its push, or
at the end, and is raised on all.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from numbers import Real
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch.optim import Optimizer

from mpigraph import checkpoint
from mpigraph.arrays import F32, I64
from mpigraph.collective import collective
from mpigraph.distgraph.dtypes import to_storage, to_torch
from mpigraph.distgraph.embedding import DistEmbedding
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import CollectiveError, InvalidArgumentError, check_state
from mpigraph.kernels.compact import LocalIds
from mpigraph.kernels.row_ops import split_by_range
from mpigraph.kernels.updates import Gradients, adam, collect, descend
from mpigraph.mpi.agree import agree, hash64, same
from mpigraph.mpi.coroutine import Coroutine, run
from mpigraph.rows.owners import Outgoing, Pushed, push_rows
from mpigraph.session.context import current
from mpigraph.session.control import Operation
from mpigraph.storage.format import index_dtype

LocalState: TypeAlias = dict[str, dict[str, Any]]
"""See :meth:`SparseOptimizer.local_state_dict`."""
_NONE = np.empty(0, np.int64)
_BELOW_ONE = math.nextafter(1.0, 0.0)
_BLOCK = 1 << 13  # rows of 16 bits that are widened at a time


class SparseOptimizer(Optimizer):
    """The base of sparse optimizers; users make :class:`SparseAdagrad`, :class:`SparseAdam` or :class:`SparseSGD`.

    Gradients of one row, of one trainer or of several, are averaged (``reduction="mean"``, as in DGL) or added up
    (``"sum"``), and the row is updated once. The sum is formed trainer by trainer in rank order, and for each in the
    order of its reads. So the result does not depend on the order of arrival, and equals, bit for bit, that of one
    trainer that makes all reads one after the other.

    **Consistency.** A read that begins after :meth:`step` has returned, on any trainer, sees the new rows. A read in
    another thread during a step sees old rows, new rows, or a row half written; loaders sample ahead in such threads,
    but do not read embeddings by default. Gradients are applied to the rows as they are at the step, even if they have
    changed since the read.

    **Schedules.** The classes of ``torch.optim.lr_scheduler`` take these optimizers, and ``group["lr"] = ...`` for the
    one group of ``param_groups`` sets the learning rate of the next step. It must be the same on every trainer.

    Attributes:
        params: the embeddings.
        param_groups: as torch's, a list of one dict: the embeddings ("params"), the settings by name, and values that a
            schedule adds.
        state: the optimizer's float32 DistTensors, by embedding and name. They begin as zeros: a new optimizer does not
            continue the state of an older one.
    """

    FIXED: ClassVar[tuple[str, ...]] = ("reduction",)
    """Settings that must equal those of a saved state; the others are restored from it."""
    state: dict[str, dict[str, DistTensor]]  # type: ignore[assignment]

    @collective("trainers")
    def __init__(self, params: Sequence[DistEmbedding], settings: dict[str, Any], states: dict[str, bool]) -> None:
        """Begin; ``states`` says by name of a state whether it has a value for each element, or one for each row."""
        session = self._session = current()
        kind = type(self).__name__
        with session.world.together(f"creating {kind}"):
            self.params = _check_embeddings(params)
            super().__init__(self.params, _check_settings(settings))  # type: ignore[arg-type]
            if session.world.local_trainer == 0:
                self._warm_up(states)
        self._what = f"step of {kind} for {', '.join(repr(emb.name) for emb in self.params)}"
        self._check_alike()
        self.state = {emb.name: {name: _zeros(emb, name, wide) for name, wide in states.items()} for emb in self.params}
        self._owners = [emb.owners for emb in self.params]
        self._places = [LocalIds(emb.num_embeddings) for emb in self.params]
        for emb in self.params:
            emb.optm_state = self.state[emb.name]
        if session.world.local_trainer:
            self._warm_up(states)  # from the cache that the node's first trainer has filled

    def add_param_group(self, param_group: dict[str, list[DistEmbedding]]) -> None:
        """Make the only group of parameters. Raises InvalidArgumentError on a second call."""
        if self.param_groups:
            raise InvalidArgumentError(f"{type(self).__name__} has one group of parameters: make another optimizer")
        self.param_groups.append(param_group | self.defaults)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name, such as the learning rate."""
        return {name: self.param_groups[0].get(name) for name in self.defaults}

    @property
    def lr(self) -> float:
        """The learning rate. May be set, to the same on every trainer."""
        return float(self.settings["lr"])

    @lr.setter
    def lr(self, lr: float) -> None:
        """Set the learning rate. Raises InvalidArgumentError if it is not >= 0."""
        self.param_groups[0].update(_check_settings(self.settings | {"lr": lr}))

    @collective("trainers")
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Apply the gradients of all reads, and clear them.

        A read whose tensor is alive may get a gradient again later: batches that a loader reads ahead, or rows that are
        used in several steps. A trainer without gradients takes part all the same.

        Args:
            closure: computes the loss and its gradients; called first, as by torch's optimizers.

        Returns:
            The loss that ``closure`` returned.

        Raises:
            InvalidArgumentError: a gradient is not finite, or has another shape than the rows, or a setting was changed
                to a value out of range; on every trainer, before any update.
            CollectiveError: the trainers step different optimizers, or with different settings, such as learning rates;
                on every trainer, before any update.
            ClosedError: an embedding was closed; on every trainer.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        error: Exception | None = None
        taken = [emb.take_gradients() for emb in self.params]
        outgoing = [Outgoing.nothing(self._session.num_trainers, *_wire(emb)) for emb in self.params]
        try:
            self._check_group()
            for number, gradients in enumerate(taken):
                outgoing[number] = self._route(number, gradients) or outgoing[number]
        except Exception as exc:  # raised on every trainer by the first push
            error = exc
        with self._session.world.meeting(self._what) as met:
            run(self._exchange(outgoing, error, met))
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients computed so far.

        Reads whose tensors are alive may get gradients later: ``zero_grad, forward, backward, step`` and ``forward,
        zero_grad, backward, step`` both train. ``set_to_none`` changes nothing.
        """
        for emb in self.params:
            emb.take_gradients()

    def state_dict(self) -> dict[str, Any]:
        """Return the state and settings, for checkpoints; the embeddings' own states have the rows.

        Returns:
            ``kind``, the name of the class; ``settings``, with the additions of schedules; and ``state``: name of the
            embedding -> name -> DistTensor.
        """
        return {"kind": type(self).__name__, "settings": self._saved_settings(), "state": self.state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state of :meth:`state_dict`, whose tensors are this optimizer's own.

        The kind of optimizer, ``reduction``, and the names of the embeddings must match; other settings, such as the
        learning rate, become the saved ones. Gradients computed so far are dropped.

        Raises:
            InvalidArgumentError: it is no state, or one of another kind of optimizer or of other embeddings.
        """
        settings = self._checked_settings_of(state_dict)
        for emb, tensors in self.state.items():
            for name, tensor in tensors.items():
                tensor.load_state_dict({"rows": state_dict["state"][emb][name]})
        self.param_groups[0].update(settings)
        self.zero_grad()

    def _checked_settings_of(self, state_dict: Mapping[str, Mapping[str, object]]) -> dict[str, Any]:
        """Check a state, and return its settings; raises as :meth:`load_state_dict` does."""
        check_state("an optimizer", state_dict, {"kind": str, "settings": Mapping, "state": Mapping})
        settings, state = state_dict["settings"], state_dict["state"]
        _same("the optimizer is", state_dict["kind"], type(self).__name__)
        settings = self._check_saved(settings)
        for name in self.FIXED:
            _same(f"{name} is", settings[name], self.settings[name])
        _same("the embeddings are", sorted(map(str, state)), sorted(self.state))
        for emb, tensors in self.state.items():
            check_state(f"embedding {emb!r} of an optimizer", state[emb], dict.fromkeys(tensors, DistTensor))
        return settings

    def local_state_dict(self) -> LocalState:
        """Return the state of the rows that this trainer owns, in the form of DGL's optimizers.

        Returns:
            ``params``: the settings, and ``world_size``, the number of trainers; ``emb_states``: name of the embedding
            -> ``ids``, int64[n], and ``states``: name -> float32[n] or float32[n, dim].
        """
        states = {}
        for emb in self.params:
            ids = torch.from_numpy(
                np.concatenate([_NONE, *(np.arange(owned.first, owned.last) for owned in emb.owners.ranges())])
            )
            kept = {name: tensor[ids] for name, tensor in self.state[emb.name].items()}
            states[emb.name] = {"ids": ids, "states": kept}
        return {"params": self._saved_settings() | {"world_size": self._session.num_trainers}, "emb_states": states}

    @collective("trainers")
    def load_local_state_dict(self, local_state_dict: LocalState) -> None:
        """Restore states of :meth:`local_state_dict`, which cover all rows in any distribution over the trainers.

        Raises:
            InvalidArgumentError: the state is of other embeddings or states; on every trainer.
        """
        with self._session.world.together(f"loading the state of {type(self).__name__}"):
            saved = {name: value for name, value in local_state_dict["params"].items() if name != "world_size"}
            settings = self._check_saved(saved)
            by_embedding = local_state_dict["emb_states"]
            _same("the embeddings are", sorted(by_embedding), sorted(self.state))
            for emb, tensors in self.state.items():
                _same(f"the states of {emb!r} are", sorted(by_embedding[emb]["states"]), sorted(tensors))
                for name, tensor in tensors.items():
                    tensor[by_embedding[emb]["ids"]] = by_embedding[emb]["states"][name]
            self.param_groups[0].update(settings)
        self.zero_grad()
        self._session.control.call(Operation.BARRIER)

    @collective("trainers")
    def save(self, f: str | os.PathLike[str]) -> None:
        """Save the optimizer and the rows of its embeddings in folder ``f``, by :func:`mpigraph.checkpoint.save`."""
        checkpoint.save(self._with_rows(), checkpoint_id=f)

    @collective("trainers")
    def load(self, f: str | os.PathLike[str]) -> None:
        """Load a folder of :meth:`save`, with the rows, on any number of hosts and trainers.

        Raises:
            InvalidArgumentError: it is of another kind of optimizer, or of other embeddings.
            ShardFormatError: there is no such folder, or a file is damaged.
        """
        checkpoint.load(self._with_rows(), checkpoint_id=f)

    def _with_rows(self) -> dict[str, Any]:
        return {"optimizer": self, "embeddings": {emb.name: emb for emb in self.params}}

    def _check_group(self) -> None:
        for name in self.FIXED:
            if self.settings[name] != self.defaults[name]:
                raise InvalidArgumentError(f"{name} cannot be changed (got {self.settings[name]!r})")
        self.param_groups[0].update(_check_settings(self.settings))

    def _saved_settings(self) -> dict[str, Any]:
        return {name: value for name, value in self.param_groups[0].items() if name != "params"}

    def _check_saved(self, settings: Mapping[str, object]) -> dict[str, Any]:
        _same("the settings are", sorted(settings.keys() & self.defaults.keys()), sorted(self.defaults))
        return _check_settings(dict(settings))

    def _apply(
        self, gradients: Gradients, which: I64, table: F32, places: I64, states: dict[str, F32], rows: I64
    ) -> None:
        """Update rows; see ``kernels/updates.py`` for the arguments."""
        raise NotImplementedError

    def _route(self, number: int, taken: list[tuple[I64, torch.Tensor]]) -> Outgoing | None:
        """Return the gradients of one embedding by owner; None without gradients."""
        emb = self.params[number]
        width, dtype = _wire(emb)
        gradients = [(ids, _dense_gradient(emb, ids, grad)) for ids, grad in taken]
        _ = emb.weight.rows  # raises if it was closed
        if not gradients:
            return None
        ids = np.concatenate([ids for ids, _ in gradients])
        grads = gradients[0][1]
        if len(gradients) > 1:
            grads = torch.from_numpy(self._session.pool.empty((len(ids), width), np.float32))
            torch.cat([grad for _, grad in gradients], out=grads)
        order, counts = self._owners[number].route(ids)
        return Outgoing(ids[order].astype(dtype), grads.numpy(), order, counts)

    def _exchange(self, outgoing: list[Outgoing], error: Exception | None, met: Callable[[], None]) -> Coroutine[None]:
        comm = self._session.world.gradients
        empty = self._session.pool.empty
        described = self._described()
        for tensor in self._tensors():
            tensor.rows.note_write()  # whichever trainer writes them: cached copies are old from now on
        for number, own in enumerate(outgoing):
            key = hash64((described, number)) >> 1  # a positive int64
            pushed = yield from push_rows(comm, self._what, key, described, own, empty, error, met)
            try:
                self._update(number, pushed)
            except Exception as exc:  # raised on every trainer by the next push, or at the end
                error = exc
        self._sync()
        yield from agree(comm, self._what, error, "trainer")
        self._sync()

    def _sync(self) -> None:
        """Order this process's loads and stores of rows with the other processes'."""
        for tensor in self._tensors():
            tensor.rows.window.sync()

    def _tensors(self) -> Iterator[DistTensor]:
        for emb in self.params:
            yield from (emb.weight, *self.state[emb.name].values())

    def _update(self, number: int, pushed: Pushed) -> None:
        emb = self.params[number]
        places = self._places[number]
        places.reset(_NONE)
        at = places.insert(pushed.ids)
        mean = self.settings["reduction"] == "mean"
        gradients = collect(at, places.count, pushed.own, pushed.arrived, pushed.sources, mean)
        distinct = places.ids
        offsets = emb.weight.rows.offsets
        for host, which in split_by_range(distinct, offsets):
            self._update_host(emb, host, gradients, which, distinct[which] - offsets[host])

    def _update_host(self, emb: DistEmbedding, host: int, gradients: Gradients, which: I64, rows: I64) -> None:
        """Update rows of one local host, counted from its first row."""
        dtype = emb.weight.rows.dtype
        with ExitStack() as stack:
            table = stack.enter_context(emb.weight.rows.writing(host))
            kept = self.state[emb.name]
            states = {name: stack.enter_context(tensor.rows.writing(host)) for name, tensor in kept.items()}
            if dtype == "float32":
                self._apply(gradients, which, table, rows, states, rows)
                return
            for begin in range(0, len(rows), _BLOCK):
                block = rows[begin : begin + _BLOCK]
                wide = to_torch(table[block], dtype).float()
                picks = which[begin : begin + _BLOCK]
                self._apply(gradients, picks, wide.numpy(), np.arange(len(block)), states, block)
                table[block] = to_storage(wide.to(emb.weight.dtype), dtype)

    def _warm_up(self, states: dict[str, bool]) -> None:
        """Run the kernels once on tiny arrays, so that no step waits for the compiler."""
        one = np.zeros(1, np.int64)
        rows = np.zeros((1, 1), np.float32)
        gradients = collect(LocalIds(1).insert(np.zeros(1, np.int32)), 1, rows, rows[:0], ~one, mean=True)
        zeros = {name: np.zeros((1, 1) if wide else 1, np.float32) for name, wide in states.items()}
        self._apply(gradients, one, np.zeros((1, 1), np.float32), one, zeros, one)

    def _check_alike(self) -> None:
        """Raise CollectiveError, on every trainer, if the trainers make different optimizers."""
        world = self._session.world
        with world.watch(f"creating {type(self).__name__}"):
            alike = {"optimizer": self._described()}
            same(world.trainers, "trainers make different optimizers", alike, CollectiveError, "trainer")

    def _described(self) -> str:
        return repr([type(self).__name__, self.settings, [[emb.name, *emb.weight.shape] for emb in self.params]])


def _same(what: str, saved: object, here: object) -> None:
    if saved != here:
        raise InvalidArgumentError(f"{what} {saved!r} in the state, and {here!r} here")


def _wire(emb: DistEmbedding) -> tuple[int, np.dtype[Any]]:
    """Return the width of a gradient, and the dtype in which ids travel."""
    return emb.embedding_dim, index_dtype(emb.num_embeddings)


def _zeros(emb: DistEmbedding, name: str, wide: bool) -> DistTensor:
    shape = (emb.num_embeddings, emb.embedding_dim) if wide else (emb.num_embeddings,)
    return DistTensor.filled(shape, torch.float32, None, f"{emb.name}_{name}", emb.part_policy)


def _check_embeddings(params: Sequence[DistEmbedding]) -> list[DistEmbedding]:
    if isinstance(params, DistEmbedding) or not hasattr(params, "__iter__"):
        raise InvalidArgumentError(f"params must be a list of DistEmbeddings (got a {type(params).__name__})")
    embeddings = list(params)
    for emb in embeddings:
        if not isinstance(emb, DistEmbedding):
            raise InvalidArgumentError(f"params must be DistEmbeddings (got a {type(emb).__name__} among them)")
    names = [emb.name for emb in embeddings]
    if not names:
        raise InvalidArgumentError("params are empty: give at least one DistEmbedding")
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(f"two of the embeddings are called {name!r}")
    return embeddings


def _check_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings as plain numbers. Raises InvalidArgumentError if one is out of range."""
    checked = dict(settings)
    checked["lr"] = _number("lr", settings["lr"], 0.0, 1e30)  # schedules begin and end with 0
    if "eps" in settings:
        checked["eps"] = _number("eps", settings["eps"], 0.0, 1e30)
    if "betas" in settings:
        betas = settings["betas"]
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise InvalidArgumentError(f"betas must be two numbers (got {betas!r})")
        checked["betas"] = [_number("each of betas", beta, 0.0, _BELOW_ONE) for beta in betas]
    if settings["reduction"] not in ("mean", "sum"):
        raise InvalidArgumentError(f"reduction must be 'mean' or 'sum' (got {settings['reduction']!r})")
    return checked


def _number(name: str, value: object, least: float, most: float) -> float:
    number = float(value) if isinstance(value, Real) else math.nan
    if not least <= number <= most:
        raise InvalidArgumentError(f"{name} must be a number from {least:.7g} to {most:.7g} (got {value!r})")
    return number


def _dense_gradient(emb: DistEmbedding, ids: I64, grad: torch.Tensor) -> torch.Tensor:
    """Return the gradient of rows ``ids``, float32[len(ids), dim], contiguous on the CPU; checks shape and values."""
    shape = (len(ids), emb.embedding_dim)
    what = f"embedding {emb.name!r}: the gradient of"
    if tuple(grad.shape) != shape:
        raise InvalidArgumentError(f"{what} {len(ids)} rows must have shape {shape} (got {tuple(grad.shape)})")
    dense = grad.to_dense() if grad.layout != torch.strided else grad
    dense = dense.detach().to("cpu", torch.float32).contiguous()
    if not dense.sum().isfinite():  # the sum of finite values may overflow, too
        for row in (~dense.isfinite().all(1)).nonzero()[:1, 0].tolist():
            values = dense[row].tolist()
            raise InvalidArgumentError(
                f"embedding {emb.name!r}: the gradient of row {ids[row]} is not finite: {values}"
            )
    return dense


class SparseAdagrad(SparseOptimizer):
    """Adagrad: ``G += g * g; w -= lr * g / (sqrt(G) + eps)`` for the touched rows.

    The state of an embedding is "sum", the DistTensor ``<embedding>_sum``: G.

    Example:
        >>> optimizer = mpigraph.distributed.optim.SparseAdagrad([embedding], lr=0.01)
        >>> embedding([0, 1]).sum().backward()
        >>> optimizer.step()
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
        sums, row_wise = states["sum"], self.settings["row_wise"]
        of_elements, of_rows = (None, sums) if row_wise else (sums, None)
        lr, eps = np.float32(self.settings["lr"]), np.float32(self.settings["eps"])
        descend(gradients, which, table, places, of_elements, of_rows, rows, lr, eps)


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
        lr = np.float32(self.settings["lr"])
        descend(gradients, which, table, places, None, None, rows, lr, np.float32(0))
