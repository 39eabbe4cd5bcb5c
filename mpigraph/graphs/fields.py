"""Names of fields, ids and values as tensors and by type, and named features of nodes and edges.

:class:`Fields` are the features of a type: a :class:`Frame` in memory, the features of a ``DistGraph`` on the hosts. A
graph keeps those of all types in one :class:`Frames`. No graph class lives here.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Final, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from mpigraph.errors import FieldNameError, GraphDataError, InvalidArgumentError, NodeTypeError
from mpigraph.metadata.schema import Relation, Schema

TensorLike: TypeAlias = torch.Tensor | npt.ArrayLike
"""Numbers in any form that torch or numpy takes: a tensor, an array, (nested) lists."""
IdsLike: TypeAlias = TensorLike
"""Ids in one dimension: int[n], in any form; see :func:`as_ids`."""
EdgeType: TypeAlias = str | Relation | None
"""A relation as users name it: the triple, its name, "src:rel:dst"; None means the only one."""
V = TypeVar("V")
ByEdgeType: TypeAlias = Mapping[str, V] | Mapping[Relation, V] | Mapping[str | Relation, V]
"""Edge type -> value, each relation by its triple, its name or "src:rel:dst"."""
NodeIds: TypeAlias = IdsLike | Mapping[str, IdsLike]
"""int[n] where the graph has one node type, or node type -> int[n]."""
EdgeIds: TypeAlias = IdsLike | ByEdgeType[IdsLike]
"""int[n] where the graph has one relation, or edge type -> int[n]."""

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
F = TypeVar("F", bound="Fields[Any]")
_EMPTY: Mapping[str, Any] = {}


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


def is_number(ids: object) -> bool:
    """Return whether ``ids`` is a plain number, of Python or numpy: DGL then answers with a number, too."""
    return isinstance(ids, Integral)


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


def by_ntype(schema: Schema, values: V | Mapping[str, V], what: str) -> Mapping[str, V]:
    """Return values by node type, those that are not by type as those of the only one; ``what`` names them in errors.

    Raises:
        NodeTypeError: a type does not exist, or the values are not by type and the graph has several.
    """
    if not isinstance(values, Mapping):
        if len(schema.ntypes) > 1:
            raise NodeTypeError(f"{what} must be a dict by node type: the graph has {list(schema.ntypes)}")
        return {schema.ntypes[0]: values}
    for ntype in values:
        schema.ntype_id(ntype)
    return values


def canonical(schema: Schema, values: V | ByEdgeType[V], what: str) -> dict[Relation, V]:
    """Key values by canonical relation, in the same order; one value counts for the only relation.

    Raises:
        EdgeTypeError: an edge type is unknown or ambiguous, or nothing is keyed and the graph has several.
        InvalidArgumentError: two edge types are the same relation.
    """
    if not isinstance(values, Mapping):
        return {schema.to_canonical(None): values}
    by_triple: dict[Relation, V] = {}
    for etype, value in values.items():
        relation = schema.to_canonical(etype)
        if relation in by_triple:
            raise InvalidArgumentError(f"{what}: relation {relation} is given twice (edge types {list(values)})")
        by_triple[relation] = value
    return by_triple


class Fields(MutableMapping[str, V]):
    """Features of one node type or one relation: name -> values with one row for each node or edge.

    Errors call the rows ``owner`` ("nodes of type 'paper'"); the one about a missing feature ends with ``hint``, which
    contains ``{name}``. ``columns`` are the first features, already checked.
    """

    hint = ""

    def __init__(self, num_rows: int, owner: str, columns: Mapping[str, V] = _EMPTY) -> None:
        self.num_rows = num_rows
        self.owner = owner
        self._columns = dict(columns)

    @abstractmethod
    def _checked(self, name: str, values: Any) -> V:
        """Return what a feature is set to."""

    def __getitem__(self, name: str) -> V:
        try:
            return self._columns[name]
        except KeyError:
            have = f"no feature {name!r} on {self.owner} (have {list(self)})"
            raise FieldNameError(have + self.hint.format(name=name)) from None

    def __setitem__(self, name: str, values: Any) -> None:
        self._columns[name] = self._checked(name, values)

    def __delitem__(self, name: str) -> None:
        self[name]
        del self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._columns])

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        columns: Mapping[str, Any] = self._columns
        return repr({name: (tuple(column.shape), column.dtype) for name, column in columns.items()})


class Frame(Fields[torch.Tensor]):
    """Features in memory: name -> tensor."""

    def _checked(self, name: str, values: TensorLike) -> torch.Tensor:
        tensor = as_tensor(values, f"feature {name!r} on {self.owner}")
        if tensor.dim() == 0 or tensor.shape[0] != self.num_rows:
            got = f"shape {tuple(tensor.shape)}"
            raise GraphDataError(f"feature {name!r} on {self.owner} must have {self.num_rows} rows (got {got})")
        return tensor

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
class Frames(Generic[F]):
    """The features of all types of one graph. In a graph that is not a block, ``src`` and ``dst`` are one object."""

    src: dict[str, F]  # by source node type
    dst: dict[str, F]  # by destination node type
    edge: dict[Relation, F]  # by canonical relation

    def each(self, change: Callable[[F], F]) -> "Frames[F]":
        """Return the changed frames, such as copies for a local scope; two sides that are one object stay one."""
        src = {t: change(frame) for t, frame in self.src.items()}
        dst = src if self.dst is self.src else {t: change(frame) for t, frame in self.dst.items()}
        return Frames(src, dst, {r: change(frame) for r, frame in self.edge.items()})


class TypedFields(MutableMapping[str, dict[K, Any]]):
    """Features over several types: name -> {type: values}; types without the feature are left out."""

    def __init__(self, frames: Mapping[K, Fields[Any]]) -> None:
        self._frames: Mapping[K, Fields[Any]] = frames

    def __getitem__(self, name: str) -> dict[K, Any]:
        by_type = {key: frame[name] for key, frame in self._frames.items() if name in frame}
        if not by_type:
            hint = "".join([frame.hint for frame in self._frames.values()][:1]).format(name=name)
            raise FieldNameError(f"no feature {name!r} on any of {list(self._frames)} (have {list(self)}){hint}")
        return by_type

    def __setitem__(self, name: str, values: Mapping[K, Any]) -> None:
        if not isinstance(values, dict):
            got = type(values).__name__
            raise InvalidArgumentError(f"feature {name!r} over several types must be a dict by type (got {got})")
        for key in values:
            if key not in self._frames:
                raise InvalidArgumentError(f"feature {name!r}: unknown type {key!r} (have {list(self._frames)})")
        for key, of_type in values.items():
            self._frames[key][name] = of_type

    def __delitem__(self, name: str) -> None:
        for key in self[name]:
            del self._frames[key][name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for frame in self._frames.values() for name in frame))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr({name: list(self[name]) for name in self})


def fields_of(frames: Mapping[K, Fields[Any]]) -> MutableMapping[str, Any]:
    """Return the mapping behind ``ndata`` or ``edata``: with one type its fields, else name -> {type: values}."""
    if len(frames) == 1:
        return next(iter(frames.values()))
    return TypedFields(frames)
