"""Named features of nodes and edges: one :class:`Frame` per type, and the views that users see.

A graph keeps its frames in one :class:`Frames`, so that a local scope is a shallow copy of that object.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from mpigraph.errors import FieldNameError, GraphDataError, InvalidArgumentError
from mpigraph.graphs.fields import TensorLike, as_tensor
from mpigraph.metadata.schema import Relation

K = TypeVar("K", str, Relation)


_Columns = Mapping[str, torch.Tensor]
_EMPTY: _Columns = {}


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
