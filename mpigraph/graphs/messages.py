"""Built-in message and reduce functions as data, and the evaluation of messages edge by edge.

Users make them with the functions of :mod:`mpigraph.function`. Evaluation here makes one row for each edge;
:mod:`mpigraph.graphs.aggregate` avoids that where a sparse matrix product does the same.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.frame import Frame

__all__ = ["EdgeBatch", "EdgeFunction", "Message", "NodeBatch", "NodeFunction", "Operand", "Reduce", "edge_values"]

_BINARY: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "dot": lambda lhs, rhs: (lhs * rhs).sum(-1, keepdim=True),
}


@dataclass(frozen=True)
class Operand:
    """A field of the source ("u"), the destination ("v") or the edge ("e")."""

    side: Literal["u", "v", "e"]
    field: str


@dataclass(frozen=True)
class Message:
    """A built-in message function: ``out = lhs`` or ``out = lhs op rhs`` on each edge.

    Attributes:
        op: "copy", "add", "sub", "mul", "div" or "dot".
        lhs: left operand.
        rhs: right operand; None for "copy".
        out: name of the result.
    """

    op: str
    lhs: Operand
    rhs: Operand | None
    out: str


@dataclass(frozen=True)
class Reduce:
    """A built-in reduce function over the in-edges of each destination.

    Attributes:
        op: "sum", "mean", "max" or "min".
        msg: name of the message to reduce.
        out: name of the result on the destinations.
    """

    op: str
    msg: str
    out: str


class Gathered(Mapping[str, torch.Tensor]):
    """Fields of a frame at given rows, each gathered on access, since a function reads few of them."""

    def __init__(self, frame: Frame, rows: torch.Tensor | None) -> None:
        self._frame = frame
        self._rows = rows

    def __getitem__(self, name: str) -> torch.Tensor:
        values = self._frame[name]
        return values if self._rows is None else values.index_select(0, self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._frame)

    def __len__(self) -> int:
        return len(self._frame)


@dataclass(frozen=True)
class EdgeBatch:
    """All edges of one relation, as a Python function on edges sees them.

    Attributes:
        src: source features, one row for each edge.
        dst: destination features, one row for each edge.
        data: edge features.
    """

    src: Mapping[str, torch.Tensor]
    dst: Mapping[str, torch.Tensor]
    data: Mapping[str, torch.Tensor]

    @classmethod
    def of(
        cls,
        frames: tuple[Frame, Frame, Frame],
        src: torch.Tensor,
        dst: torch.Tensor,
        perm: torch.Tensor | None = None,
    ) -> "EdgeBatch":
        """View frames along edges.

        Args:
            frames: frame of the sources, of the destinations, of the edges.
            src: int32[num_edges] or int64[num_edges], rows of the sources.
            dst: likewise, rows of the destinations.
            perm: int64[num_edges], rows of the edges; None means in order.
        """
        return cls(Gathered(frames[0], src), Gathered(frames[1], dst), Gathered(frames[2], perm))


@dataclass(frozen=True)
class NodeBatch:
    """All nodes of one type, as a Python function on nodes sees them."""

    data: Mapping[str, torch.Tensor]


EdgeFunction = Callable[[EdgeBatch], Mapping[str, torch.Tensor]]
NodeFunction = Callable[[NodeBatch], Mapping[str, torch.Tensor]]


def edge_values(message: Message, edges: EdgeBatch) -> torch.Tensor:
    """Evaluate a message on each edge.

    Feature shapes are aligned at their last dimension and broadcast, as in DGL: weights of shape [num_edges] or
    [num_edges, 1] apply to features of shape [n, heads, dim].

    Returns:
        [num_edges, ...].
    """
    lhs = _fetch(message.lhs, edges)
    if message.rhs is None:
        return lhs
    rhs = _fetch(message.rhs, edges)
    dim = max(lhs.dim(), rhs.dim())
    return _BINARY[message.op](_widen(lhs, dim), _widen(rhs, dim))


def check_builtin(message: object, reduce: object) -> None:
    """Raise unless both are built-in functions that fit together."""
    if not isinstance(message, Message):
        raise InvalidArgumentError(f"the message function must be one of mpigraph.function (got {message!r})")
    if not isinstance(reduce, Reduce):
        raise InvalidArgumentError(f"the reduce function must be one of mpigraph.function (got {reduce!r})")
    if message.out != reduce.msg:
        raise InvalidArgumentError(f"the message is called {message.out!r} but {reduce.msg!r} is reduced")


def _fetch(operand: Operand, edges: EdgeBatch) -> torch.Tensor:
    return {"u": edges.src, "v": edges.dst, "e": edges.data}[operand.side][operand.field]


def _widen(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Insert dimensions of size 1 after the first, until there are ``dim``."""
    return values.reshape(values.shape[0], *[1] * (dim - values.dim()), *values.shape[1:])
