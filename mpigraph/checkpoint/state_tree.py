"""Encode state dicts as JSON, with their tensors replaced by numbers, and decode them.

JSON values stand for themselves. Everything else is an object with one key that names its kind: ``{"tuple": [...]}``,
``{"dict": [[key, value], ...]}``, ``{"tensor": 3}``. No class is looked up by a name from a file.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mpigraph.distgraph.dtypes import dtype_name
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import InvalidArgumentError
from mpigraph.session.context import OfTrainer

Tree: TypeAlias = Any
"""A JSON value."""
_MAPPINGS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_DEEPEST = 200  # nested values: Python can always recurse this deep


@runtime_checkable
class Stateful(Protocol):
    """An object with a state: modules, optimizers and schedulers of torch, loaders, embeddings, sparse optimizers."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Restore a state."""
        ...


@dataclass
class Leaves:
    """The tensors of a state dict by their numbers."""

    tensors: list[torch.Tensor] = field(default_factory=list)  # the same on every trainer
    rows: list[DistTensor] = field(default_factory=list)
    own: list[OfTrainer] = field(default_factory=list)
    places: dict[str, object] = field(default_factory=dict)  # what is at each place of the state dict, to compare
    rows_at: dict[str, DistTensor] = field(default_factory=dict)  # by place

    def add(self, kind: str, items: list[Any], item: Any, where: str, text: str) -> Tree:
        """Add a tensor, and return its tree."""
        items.append(item)
        self.places[where] = f"{kind} {len(items) - 1}{text}"
        return {kind: len(items) - 1}

    def note(self, where: str, tree: Tree) -> Tree:
        """Note a value, and return its tree."""
        self.places[where] = tree
        return tree


def encode(value: object, leaves: Leaves, where: str = "state_dict", depth: int = 0) -> Tree:
    """Return the tree of a value that :func:`.save` takes, and add its tensors to ``leaves``.

    Raises:
        InvalidArgumentError: a checkpoint cannot hold the value; names it ``where``.
    """
    if depth > _DEEPEST:
        raise InvalidArgumentError(f"{where.split('[')[0]} is nested more than {_DEEPEST} deep")
    deeper = depth + 1
    if isinstance(value, np.generic) and not isinstance(plain := value.item(), np.generic):
        value = plain
    if value is None or isinstance(value, bool | str):
        return leaves.note(where, value)
    if isinstance(value, int):
        return leaves.note(where, int(value))
    if isinstance(value, float):
        return leaves.note(where, float(value) if math.isfinite(value) else {"float": repr(float(value))})
    if isinstance(value, DistTensor):
        leaves.rows_at[where] = value
        return leaves.add("rows", leaves.rows, value, where, f" {value.name} {value.rows.stored}{list(value.shape)}")
    if isinstance(value, OfTrainer):
        return leaves.add("own", leaves.own, value, where, "")
    tag = "tensor"
    if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
        tag, value = "array", _from_numpy(value, where)
    if isinstance(value, torch.Tensor):
        plain = _plain(value, where)
        return leaves.add(tag, leaves.tensors, plain, where, f" {plain.dtype}{list(plain.shape)}")
    if isinstance(value, list):
        return [encode(item, leaves, f"{where}[{i}]", deeper) for i, item in enumerate(value)]
    if type(value) in (tuple, torch.Size):
        items = enumerate(cast(tuple[Any], value))
        return {"tuple": [encode(item, leaves, f"{where}[{i}]", deeper) for i, item in items]}
    for name, kind in _MAPPINGS.items():
        if type(value) is kind:
            return _encode_dict(name, value, leaves, where, deeper)
    if isinstance(value, Stateful):
        tree = {"object": encode(value.state_dict(), leaves, where, deeper)}
        return tree | ({} if (compared := _compared_class(value)) is None else {"class": compared})
    raise InvalidArgumentError(
        f"{where} is a {type(value).__name__}, which a checkpoint cannot hold (it holds tensors, arrays, numbers, "
        "strings, lists, tuples, dicts, and objects with state_dict and load_state_dict)"
    )


def _encode_dict(name: str, value: dict[Any, Any], leaves: Leaves, where: str, depth: int) -> Tree:
    items = []
    for key, item in value.items():
        inside = f"{where}[{key!r}]"
        if not isinstance(key, str | int | float | tuple) and key is not None:
            raise InvalidArgumentError(f"{inside}: a checkpoint holds no dict with keys of {type(key).__name__}")
        items.append([encode(key, leaves, f"the key of {inside}", depth), encode(item, leaves, inside, depth)])
    tree: dict[str, Any] = {name: items}
    versions = getattr(value, "_metadata", None)  # versions of a module's parts: torch needs them to read older states
    if versions is not None:
        tree["metadata"] = encode(versions, leaves, where, depth)
    return tree


def _plain(value: torch.Tensor, where: str) -> torch.Tensor:
    if value.layout != torch.strided or value.is_quantized or value.device.type == "meta":
        raise InvalidArgumentError(f"{where} is a tensor of a kind that a checkpoint cannot hold ({value.layout})")
    try:
        dtype_name(value.dtype)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{where}: {error}") from None
    return value.detach()


def _from_numpy(value: "np.ndarray[Any, Any]", where: str) -> torch.Tensor:
    try:
        return torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape))
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{where}: {error}") from None


class Decoder:
    """Turns trees into values: ``tensor(number)`` returns a tensor, ``what`` names the checkpoint in errors.

    It collects what is to be read, and assigned afterwards.

    Attributes:
        rows: numbers of DistTensors, and the tensors to overwrite.
        own: by the number of an OfTrainer, a list that gets its rows.
        put: called once all is read, to assign the values.
        objects: called last, to load the states of objects.
        places: what is wanted at each place of the state dict.
    """

    def __init__(self, tensor: Callable[[int], torch.Tensor], what: str) -> None:
        self._tensor = tensor
        self._what = what
        self._rows_at: dict[str, DistTensor] = {}
        self.rows: list[tuple[int, DistTensor]] = []
        self.own: dict[int, list[torch.Tensor]] = {}
        self.put: list[Callable[[], object]] = []
        self.objects: list[Callable[[], None]] = []
        self.places: dict[str, str] = {}

    def update(self, target: dict[Any, Any], tree: Tree, where: str = "state_dict") -> None:
        """Ask for all values of a state dict; they are assigned once they are read.

        Tensors are overwritten in place, objects get their state, other values are replaced.

        Raises:
            InvalidArgumentError: the checkpoint lacks something, or holds something else there.
        """
        saved = self._items(tree, where)
        for key, value in target.items():
            inside = f"{where}[{key!r}]"
            if key not in saved:
                raise InvalidArgumentError(f"{self._what} has no {inside} (it has {', '.join(map(repr, saved))})")
            self.put.append(partial(target.__setitem__, key, self._ask(value, saved[key], inside)))

    def _ask(self, value: Any, tree: Tree, where: str) -> Any:
        """Ask for a value; return its replacement, the value itself if it is overwritten in place."""
        kinds = {DistTensor: "rows", OfTrainer: "own", torch.Tensor: "tensor", Stateful: "object"}
        kind = next((kind for kind in kinds if isinstance(value, kind)), None)
        self.places[where] = kind.__name__ if kind else "a value"
        if kind and (not isinstance(tree, dict) or kinds[kind] not in tree):
            raise self._other(where)
        if kind is DistTensor:
            self.rows.append((tree["rows"], value))
            return value
        if kind is torch.Tensor:
            read = self._tensor(tree["tensor"])
            if (read.shape, read.dtype) != (value.shape, value.dtype):
                raise InvalidArgumentError(
                    f"{self._what}: {where} is {tuple(read.shape)} {read.dtype} there, and {tuple(value.shape)} "
                    f"{value.dtype} here"
                )
            self.put.append(lambda: value.detach().copy_(read))
            return value
        if kind is Stateful:
            there, here = tree.get("class"), _compared_class(value)
            if there and here and there != here:
                raise InvalidArgumentError(f"{self._what}: {where} is a {there} there, and a {here} here")
            if _holds_rows(tree):
                self._rows_at |= _rows_in(value, where)
            state = self.decode(tree["object"], where)
            self.objects.append(partial(_load, value, state, f"{self._what}: {where}"))
            return value
        if type(value) in _MAPPINGS.values():
            self.update(value, tree, where)
            return value
        if isinstance(value, list | tuple) and _is_overwritten(value):
            return self._ask_each(value, tree, where)
        return self.decode(tree, where)

    def _ask_each(self, value: list[Any] | tuple[Any, ...], tree: Tree, where: str) -> Any:
        saved = tree.get("tuple") if isinstance(tree, dict) else tree
        if not isinstance(saved, list) or isinstance(tree, dict) != isinstance(value, tuple):
            raise self._other(where)
        if len(saved) != len(value):
            raise InvalidArgumentError(f"{self._what}: {where} has {len(saved)} items there, and {len(value)} here")
        new = [self._ask(item, saved[i], f"{where}[{i}]") for i, item in enumerate(value)]
        if isinstance(value, tuple):
            return tuple(new)
        self.put.append(partial(value.__setitem__, slice(None), new))
        return value

    def _other(self, where: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self._what}: {where} is something else there")

    def _items(self, tree: Tree, where: str) -> dict[Any, Tree]:
        for name in _MAPPINGS:
            if isinstance(tree, dict) and name in tree:
                return {self.decode(key, where): item for key, item in tree[name]}
        raise InvalidArgumentError(f"{self._what}: {where} is no dict there")

    def decode(self, tree: Tree, where: str) -> Any:
        """Return the value of a tree, whose place in the state dict is ``where``."""
        match tree:
            case list():
                return [self.decode(item, f"{where}[{i}]") for i, item in enumerate(tree)]
            case {"tuple": items}:
                return tuple(self.decode(items, where))
            case {"float": text}:
                return float(text)
            case {"tensor": number}:
                return self._tensor(number)
            case {"array": number}:
                return self._tensor(number).numpy()
            case {"own": number}:
                rows = self.own.setdefault(number, [])
                return OfTrainer(lambda: rows[0])
            case {"object": state}:
                return self.decode(state, where)
            case {"rows": number}:
                if where not in self._rows_at:
                    raise InvalidArgumentError(
                        f"{self._what}: {where} holds rows of a DistTensor, and is no DistTensor here (those here are "
                        f"{', '.join(self._rows_at) or 'none'})"
                    )
                self.rows.append((number, self._rows_at[where]))
                return self._rows_at[where]
            case dict():
                return self._decode_dict(tree, where)
        return tree

    def _decode_dict(self, tree: dict[str, Any], where: str) -> Any:
        (name,) = _MAPPINGS.keys() & tree.keys()
        value = _MAPPINGS[name]()
        for key, item in tree[name]:
            key = self.decode(key, where)
            value[key] = self.decode(item, f"{where}[{key!r}]")
        if "metadata" in tree:
            value._metadata = self.decode(tree["metadata"], where)  # type: ignore[attr-defined]
        return value


def _is_overwritten(value: Any) -> bool:
    """Return whether a value is, or contains, one that is overwritten in place."""
    if isinstance(value, list | tuple):
        return any(map(_is_overwritten, value))
    if type(value) in _MAPPINGS.values():
        return any(map(_is_overwritten, value.values()))
    return isinstance(value, torch.Tensor | OfTrainer | Stateful)


def _rows_in(value: Stateful, where: str) -> dict[str, DistTensor]:
    """Return the DistTensors in the present state of an object, by their place in the state dict."""
    leaves = Leaves()
    with suppress(Exception):  # an object may not be ready to give its state, and then has none
        encode(value, leaves, where)
    return leaves.rows_at


def _compared_class(value: Stateful) -> str | None:
    """Return the class name of optimizers and schedulers: other classes would accept the state, and go wrong."""
    return type(value).__name__ if isinstance(value, Optimizer | LRScheduler) else None


def _holds_rows(tree: Tree) -> bool:
    if isinstance(tree, list):
        return any(map(_holds_rows, tree))
    return isinstance(tree, dict) and ("rows" in tree or any(map(_holds_rows, tree.values())))


def _load(value: Stateful, state: dict[str, Any], where: str) -> None:
    """Load a state into an object. Raises InvalidArgumentError, with the place, if it does not fit."""
    try:
        value.load_state_dict(state)
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"{where} does not fit: {error}") from error
