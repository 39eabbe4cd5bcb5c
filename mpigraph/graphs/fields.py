"""Names of fields, ids and values as tensors, and named features of nodes and edges.

One :class:`Frame` has the features of a type, and the views that users see are made of frames. A graph keeps its frames
in one :class:`Frames`, so that a local scope is a shallow copy of that object. No graph class lives here.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from mpigraph.errors import FieldNameError, GraphDataError, InvalidArgumentError
from mpigraph.metadata.schema import Relation

TensorLike: TypeAlias = torch.Tensor | npt.ArrayLike
"""Numbers in any form that torch or numpy takes: a tensor, an array, (nested) lists."""
IdsLike: TypeAlias = TensorLike
"""Ids in one dimension: int[n], in any form; see :func:`as_ids`."""
EdgeType: TypeAlias = str | Relation | None
"""A relation as users name it: the triple, its name, "src:rel:dst"; None means the only one."""

NID: Final = "_ID"
"""Name of the node field that holds the original (global) ids."""
EID: Final = "_ID"
"""Name of the edge field that holds the original (global) ids."""
NTYPE: Final = "_TYPE"
"""Name of the node field that holds type ids."""
ETYPE: Final = "_TYPE"
"""Name of the edge field that holds type ids."""
TREE: Final = "_TREE"
"""Name of the node field that holds the number of the tree, where trees of a minibatch are disjoint."""
SEED_TIME: Final = "seed_time"
"""Name of the node field that holds the time of the tree's root."""
ALL: Final = "__ALL__"
"""Stands for all nodes or all edges where ids are expected."""
K = TypeVar("K", str, Relation)
_Columns = Mapping[str, torch.Tensor]
_EMPTY: _Columns = {}


def as_tensor(values: TensorLike, what: str = "") -> torch.Tensor:
    """View tensors, arrays and nested lists of numbers as a tensor, without a copy where torch allows it.

    Raises InvalidArgumentError, which calls them ``what``, if the values are not numbers, or sparse.
    """
    if isinstance(values, torch.Tensor):
        if type(values) is torch.Tensor and values.layout != torch.strided:
            raise _no_numbers(what, "a sparse tensor: use its to_dense()")
        return values
    try:
        array = np.asarray(values)
    except ValueError:
        raise _no_numbers(what, "lists of several lengths") from None
    if array.dtype.hasobject or array.dtype.kind in "USmM":
        got = "None" if values is None else f"an array of {array.dtype}"
        raise _no_numbers(what, "a sparse matrix: use its toarray()" if hasattr(values, "tocoo") else got)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()  # torch has no read-only tensors and no negative strides
    # torch knows no other byte order, and one kind of int64
    plain = np.dtype(f"{array.dtype.kind}{array.dtype.itemsize}")
    array = array.view(plain) if array.dtype.isnative else array.astype(plain)
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise _no_numbers(what, f"an array of {array.dtype}") from None


def _no_numbers(what: str, got: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{what}{': ' if what else ''}expected numbers (got {got})")


def as_ids(ids: IdsLike, what: str) -> torch.Tensor:
    """Turn n integer ids, or one, into int64[n], on the device where they are; an empty list of any dtype is fine.

    Raises:
        InvalidArgumentError: the ids, called ``what``, are not integers in one dimension, of uint8 like many masks, or
            above those of int64.
    """
    tensor = as_tensor(ids, what)
    if tensor.dtype == torch.bool and tensor.numel():
        raise InvalidArgumentError(f"{what} must be integers (got a mask of bool: give the ids where it is set)")
    no_ids = tensor.is_floating_point() or tensor.is_complex()
    if tensor.dim() > 1 or (tensor.numel() and no_ids):
        got = f"{tensor.dtype}, shape {tuple(tensor.shape)}"
        raise InvalidArgumentError(f"{what} must be integers in one dimension (got {got})")
    if tensor.numel() and tensor.dtype == torch.uint8:
        raise InvalidArgumentError(f"{what} of uint8 look like a mask: use mask.bool() for a mask, int64 for ids")
    flat = tensor.reshape(-1).to(torch.int64)
    if tensor.dtype == torch.uint64 and bool((flat < 0).any()):
        raise InvalidArgumentError(f"{what} must fit int64 (got uint64 numbers of 2**63 and more)")
    return flat


def is_number(ids: IdsLike) -> bool:
    """Return whether ``ids`` is a plain number: DGL then answers with a number, too."""
    if isinstance(ids, torch.Tensor | np.ndarray):
        return False
    try:
        operator.index(ids)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def by_first_appearance(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the distinct ids in order of first appearance, and the position of each id among them; int64[n] each."""
    # torch.unique sorts: find where each value appears first, and renumber the values in the order of these places
    values, inverse = torch.unique(ids, return_inverse=True)
    places = torch.arange(ids.shape[0], device=ids.device)
    first = torch.full_like(values, ids.shape[0]).scatter_reduce_(0, inverse, places, "amin")
    order = torch.argsort(first)
    number = torch.empty_like(order)
    number[order] = torch.arange(order.shape[0], device=ids.device)
    return values[order], number[inverse]


class Frame(MutableMapping[str, torch.Tensor]):
    """Features of one node type or one relation: name -> tensor with one row for each node or edge.

    Errors call the rows ``owner`` ("nodes of type 'paper'"); the one about a missing feature ends with ``hint``, which
    contains ``{name}``. ``columns`` are the first features, already checked.
    """

    hint = ""

    def __init__(self, num_rows: int, owner: str, columns: _Columns = _EMPTY) -> None:
        self.num_rows = num_rows
        self.owner = owner
        self._columns = dict(columns)

    def __getitem__(self, name: str) -> torch.Tensor:
        try:
            return self._columns[name]
        except KeyError:
            raise FieldNameError(self._missing(name)) from None

    def __setitem__(self, name: str, values: TensorLike) -> None:
        tensor = as_tensor(values, f"feature {name!r} on {self.owner}")
        if tensor.dim() == 0 or tensor.shape[0] != self.num_rows:
            got = f"shape {tuple(tensor.shape)}"
            raise GraphDataError(f"feature {name!r} on {self.owner} must have {self.num_rows} rows (got {got})")
        self._columns[name] = tensor

    def __delitem__(self, name: str) -> None:
        if name not in self._columns:
            raise FieldNameError(self._missing(name))
        del self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return repr({name: (tuple(tensor.shape), tensor.dtype) for name, tensor in self._columns.items()})

    def _missing(self, name: str) -> str:
        return f"no feature {name!r} on {self.owner} (have {list(self)}){self.hint.format(name=name)}"

    def copy(self) -> "Frame":
        """Return a frame with the same tensors; fields set on one do not show on the other."""
        twin = Frame(self.num_rows, self.owner, self._columns)
        twin.hint = self.hint
        return twin

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Frame":
        """Return a frame with ``change(tensor)`` in place of every tensor."""
        twin = self.copy()
        twin._columns = {name: change(column) for name, column in self._columns.items()}
        return twin


@dataclass(frozen=True)
class Frames:
    """All frames of one graph. In a graph that is not a block, ``src`` and ``dst`` are one object."""

    src: dict[str, Frame]  # by source node type
    dst: dict[str, Frame]  # by destination node type
    edge: dict[Relation, Frame]  # by canonical relation

    def copy(self) -> "Frames":
        """Return frames with the same tensors, for a local scope."""
        return self._each(Frame.copy)

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Frames":
        """Return frames with ``change(tensor)`` in place of every tensor."""
        return self._each(lambda frame: frame.changed(change))

    def _each(self, change: Callable[[Frame], Frame]) -> "Frames":
        """Return the changed frames; two sides that are one object stay one."""
        src = {t: change(frame) for t, frame in self.src.items()}
        dst = src if self.dst is self.src else {t: change(frame) for t, frame in self.dst.items()}
        return Frames(src, dst, {r: change(frame) for r, frame in self.edge.items()})


class TypedFields(MutableMapping[str, dict[K, torch.Tensor]]):
    """Features over several types: name -> {type: tensor}; types without the feature are left out."""

    def __init__(self, frames: dict[K, Frame]) -> None:
        self._frames: dict[K, Frame] = frames

    def __getitem__(self, name: str) -> dict[K, torch.Tensor]:
        by_type = {key: frame[name] for key, frame in self._frames.items() if name in frame}
        if not by_type:
            hint = next(iter(self._frames.values())).hint.format(name=name)
            raise FieldNameError(f"no feature {name!r} on any of {list(self._frames)} (have {list(self)}){hint}")
        return by_type

    def __setitem__(self, name: str, values: Mapping[K, torch.Tensor]) -> None:
        if not isinstance(values, dict):
            got = type(values).__name__
            raise InvalidArgumentError(f"feature {name!r} over several types must be a dict of tensors (got {got})")
        for key in values:
            if key not in self._frames:
                raise InvalidArgumentError(f"feature {name!r}: unknown type {key!r} (have {list(self._frames)})")
        for key, tensor in values.items():
            self._frames[key][name] = tensor

    def __delitem__(self, name: str) -> None:
        for key in self[name]:
            del self._frames[key][name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for frame in self._frames.values() for name in frame))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr({name: list(self[name]) for name in self})


def fields_of(frames: dict[K, Frame]) -> MutableMapping[str, Any]:
    """Return the mapping behind ``ndata`` or ``edata``: with one type its frame, else name -> {type: tensor}."""
    if len(frames) == 1:
        return next(iter(frames.values()))
    return TypedFields(frames)
