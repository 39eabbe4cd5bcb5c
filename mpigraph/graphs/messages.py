"""Built-in message and reduce functions as data, and the evaluation of messages edge by edge.

Users make them with :mod:`mpigraph.function`, or write their own functions of an :class:`EdgeBatch` or a
:class:`NodeBatch`. Evaluation here makes one row for each edge;
:mod:`mpigraph.graphs.aggregate` avoids that where a sparse matrix product does the same.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch

from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.fields import NID, Frame
from mpigraph.metadata.schema import Relation

_BINARY: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "dot": lambda lhs, rhs: (lhs * rhs).sum(-1, keepdim=True),
}


_SIXTEEN_BITS = (torch.float16, torch.bfloat16)


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
        return values if self._rows is None else take_rows(values, self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._frame)

    def __len__(self) -> int:
        return len(self._frame)


@dataclass(frozen=True)
class EdgeBatch:
    """Edges of one relation, as a Python function on edges sees them.

    Attributes:
        src: source features, one row for each edge.
        dst: destination features, one row for each edge.
        data: edge features.
        canonical_etype: the relation; None if no user function sees the batch.
    """

    src: Mapping[str, torch.Tensor]
    dst: Mapping[str, torch.Tensor]
    data: Mapping[str, torch.Tensor]
    _ends: tuple[torch.Tensor, torch.Tensor]
    _eids: torch.Tensor | None
    canonical_etype: Relation | None = None

    @classmethod
    def of(
        cls,
        frames: tuple[Frame, Frame, Frame],
        src: torch.Tensor,
        dst: torch.Tensor,
        perm: torch.Tensor | None = None,
        etype: Relation | None = None,
    ) -> "EdgeBatch":
        """View frames of the sources, of the destinations and of the edges along edges.

        ``src`` and ``dst`` are the rows, int32[num_edges] or int64[num_edges]; ``perm``, int64[num_edges], the rows of
        the edges, None in order.
        """
        data = Gathered(frames[2], perm)
        return cls(Gathered(frames[0], src), Gathered(frames[1], dst), data, (src, dst), perm, etype)

    def edges(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return source, destination and edge id of each edge, int64[n] each: positions in the graph or block."""
        src, dst = self._ends
        eids = torch.arange(len(self), device=src.device) if self._eids is None else self._eids
        return src.long(), dst.long(), eids

    def batch_size(self) -> int:
        """Return the number of edges."""
        return len(self)

    def __len__(self) -> int:
        return self._ends[0].shape[0]


@dataclass(frozen=True)
class NodeBatch:
    """Nodes of one type, as a Python function on nodes sees them.

    Attributes:
        data: node features.
        mailbox: the messages by name, [n, degree, ...]: in a reduce function, whose nodes all have ``degree`` in-edges;
            else empty.
        ntype: the node type.
    """

    data: Mapping[str, torch.Tensor]
    _ids: torch.Tensor
    mailbox: Mapping[str, torch.Tensor]
    ntype: str

    @classmethod
    def of(
        cls, frame: Frame, nodes: torch.Tensor, ntype: str, mailbox: Mapping[str, torch.Tensor] = MappingProxyType({})
    ) -> "NodeBatch":
        """View the rows ``nodes`` (int64[n]) of a frame."""
        return cls(Gathered(frame, nodes), frame[NID][nodes] if NID in frame else nodes, mailbox, ntype)

    def nodes(self) -> torch.Tensor:
        """Return the ids of the nodes, int64[n]: their feature ``NID`` where they have one, as in a block."""
        return self._ids

    def batch_size(self) -> int:
        """Return the number of nodes."""
        return len(self)

    def __len__(self) -> int:
        return self._ids.shape[0]


EdgeFunction = Callable[[EdgeBatch], Mapping[str, torch.Tensor]]
NodeFunction = Callable[[NodeBatch], Mapping[str, torch.Tensor]]


def widened(x: torch.Tensor) -> torch.Tensor:
    """Return ``x`` in the dtype of its sums: float32 for 16 bits, int64 for bool and integers, else its own."""
    if x.dtype in _SIXTEEN_BITS:
        return x.float()
    return x if x.is_floating_point() or x.is_complex() else x.long()


def rounded(sums: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return sums in ``dtype``, that of what was summed; as they are for integers, whose dtype may be too narrow."""
    return sums.to(dtype) if dtype.is_floating_point else sums


def take_rows(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return ``x[rows]``, int[n]; the gradients of a row that is taken repeatedly are summed as :func:`widened`."""
    if x.dtype in _SIXTEEN_BITS and x.requires_grad:
        return x.float().index_select(0, rows).to(x.dtype)
    return x.index_select(0, rows)


def edge_values(message: Message, edges: EdgeBatch) -> torch.Tensor:
    """Evaluate a message on each edge.

    Feature shapes are aligned at their last dimension and broadcast, as in DGL: weights of shape [num_edges] or
    [num_edges, 1] apply to features of shape [n, heads, dim]. Dtypes are those of torch, but two integers give int64,
    so that nothing wraps, and an integer beside 16 bits is not rounded to them first.

    Returns:
        [num_edges, ...].

    Raises:
        InvalidArgumentError: the sum or the difference of two masks.
    """
    lhs = _fetch(message.lhs, edges)
    if message.rhs is None:
        return lhs
    rhs = _fetch(message.rhs, edges)
    dim = max(lhs.dim(), rhs.dim())
    lhs, rhs = _aligned(lhs, dim), _aligned(rhs, dim)
    operation = _BINARY[message.op]
    dtype = torch.promote_types(lhs.dtype, rhs.dtype)
    if dtype == torch.bool and message.op in ("add", "sub"):
        names = f"{message.lhs.field!r} and {message.rhs.field!r}"
        raise InvalidArgumentError(f"{names} are masks, which have no sum: convert one of them to int64")
    if message.op != "dot" and lhs.dtype == rhs.dtype and (dtype.is_floating_point or dtype == torch.bool):
        return operation(lhs, rhs)
    return rounded(operation(widened(lhs), widened(rhs)), dtype)


def check_functions(message: object, reduce: object) -> None:
    """Raise InvalidArgumentError unless both are functions, built in or of the user, that fit together."""
    if not isinstance(message, Message) and not callable(message):
        known = "one of mpigraph.function or a function of edges"
        raise InvalidArgumentError(f"the message function must be {known} (got {message!r})")
    if not isinstance(reduce, Reduce) and not callable(reduce):
        known = "one of mpigraph.function or a function of nodes"
        raise InvalidArgumentError(f"the reduce function must be {known} (got {reduce!r})")
    if isinstance(message, Message) and isinstance(reduce, Reduce) and message.out != reduce.msg:
        raise InvalidArgumentError(f"the message is called {message.out!r} but {reduce.msg!r} is reduced")


def check_rows(result: object, count: int, what: str) -> dict[str, torch.Tensor]:
    """Return the result of a user's function, name -> tensor of ``count`` rows; errors call the function ``what``.

    Raises:
        InvalidArgumentError: it is something else.
    """
    if not isinstance(result, Mapping):
        raise InvalidArgumentError(f"{what} must return a dict of tensors (got {type(result).__name__})")
    for name, values in result.items():
        if not isinstance(values, torch.Tensor) or values.dim() == 0 or values.shape[0] != count:
            got = f"shape {tuple(values.shape)}" if isinstance(values, torch.Tensor) else type(values).__name__
            raise InvalidArgumentError(f"{what} must return {name!r} as a tensor of {count} rows (got {got})")
    return dict(result)


def _fetch(operand: Operand, edges: EdgeBatch) -> torch.Tensor:
    return {"u": edges.src, "v": edges.dst, "e": edges.data}[operand.side][operand.field]


def _aligned(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Insert dimensions of size 1 after the first, until there are ``dim``."""
    return values.reshape(values.shape[0], *[1] * (dim - values.dim()), *values.shape[1:])
