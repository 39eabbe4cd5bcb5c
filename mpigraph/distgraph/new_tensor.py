"""New tensors of rows: what was asked for, checked; attached to those of the same name, or made on the hosts."""

import math
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from mpigraph.collective import collective
from mpigraph.distgraph.dtypes import dtype_name
from mpigraph.distgraph.init_rows import Fill, InitFunc, fill_rows
from mpigraph.distgraph.partition_book import PartitionPolicy
from mpigraph.errors import InvalidArgumentError, PartitionError, TensorMismatchError, check_integer, check_text
from mpigraph.rows.row_tensor import Policy, RowTensor
from mpigraph.session.context import Session, current
from mpigraph.session.control import Operation
from mpigraph.storage.format import storage_dtype

__all__ = ["Handle", "TensorRequest", "create", "find_policy", "held"]

_ROW_BYTES = (1 << 31) - 1  # what MPI counts the bytes of a row in


class Handle:
    """Keeps a tensor alive; when the last reference is gone the tensor is freed at the next collective point."""

    def __init__(self, session: Session, graph: str, rows: RowTensor, owned: bool) -> None:
        self.session = session
        self.graph = graph
        self.rows = rows
        self.key: tuple[Any, ...] | None = None
        self.closed = False
        self.drop = weakref.finalize(self, session.control.drop, rows.number) if owned else None
        if self.drop is not None:
            self.drop.atexit = False

    def keep(self) -> None:
        """Let the tensor live on whoever drops it."""
        if self.drop is not None:
            self.drop.detach()
            self.drop = None


class TensorRequest(NamedTuple):
    """A tensor as it is asked for."""

    shape: Any
    dtype: torch.dtype
    name: str | None
    part_policy: PartitionPolicy | None
    init_func: InitFunc | None = None
    persistent: bool = False
    attach: bool = True


@collective("trainers")
def create(wanted: TensorRequest, label: str, fill: Fill | None) -> Handle:
    """Create the rows of a tensor, or attach to those of this name.

    Args:
        wanted: what for.
        label: what it is called if it has no name.
        fill: makes the rows; zeros if None.
    """
    session = current()
    label = label if wanted.name is None else wanted.name
    try:
        shape, graph, policy = _checked(session, wanted)
    except Exception as error:
        session.control.call(Operation.CREATE_TENSOR, doing=f"creating tensor {label!r}", error=error)
        raise
    dtype = dtype_name(wanted.dtype)
    key = None if wanted.name is None else (graph, policy, wanted.name, bool(wanted.attach))
    handle = held(session, key)
    feature = None if wanted.attach else session.store.graphs[graph].features.get((policy, label))
    if handle is None and feature is not None:
        handle = Handle(session, graph, session.store.tensors[feature], owned=False)
    rows = session.control.call(
        Operation.CREATE_TENSOR,
        have=None if handle is None or handle.closed else handle.rows.number,
        doing=f"creating tensor {label!r}",
        graph=graph,
        name=label,
        is_node=policy.is_node,
        type_id=policy.type_id,
        row_shape=shape[1:],
        dtype=dtype,
    )
    if handle is not None and handle.rows is rows:
        _check_match(rows, shape, dtype)
        return handle
    handle = Handle(session, graph, rows, owned=True)
    if fill is not None:
        fill_rows(session, rows, fill)
    if key is not None:
        handle.key = key
        session.handles[key] = handle if wanted.persistent else weakref.ref(handle)
    if wanted.persistent:
        handle.keep()
    return handle


def _checked(session: Session, wanted: TensorRequest) -> tuple[tuple[int, ...], str, Policy]:
    """Shape, graph and policy of a tensor to be made. Raises what :class:`DistTensor` says."""
    if wanted.name is None and wanted.persistent:
        raise TensorMismatchError("a persistent tensor needs a name")
    if wanted.name is not None:
        check_text("name", wanted.name)
    if wanted.init_func is not None and not callable(wanted.init_func):
        raise InvalidArgumentError(f"init_func must be callable (got {wanted.init_func!r})")
    if isinstance(wanted.shape, str) or not isinstance(wanted.shape, Iterable):
        raise InvalidArgumentError(f"shape must be a sequence of integers (got {wanted.shape!r})")
    shape = tuple(check_integer("each size of shape", size, 0) for size in wanted.shape)
    row_bytes = storage_dtype(dtype_name(wanted.dtype)).itemsize * math.prod(shape[1:])
    if row_bytes > _ROW_BYTES:
        raise InvalidArgumentError(f"a row must not be larger than {_ROW_BYTES} bytes (shape {shape}: {row_bytes})")
    return shape, *find_policy(session, shape, wanted.part_policy)


def held(session: Session, key: tuple[Any, ...] | None) -> Handle | None:
    """Whoever keeps the tensor of a name alive."""
    held = session.handles.get(key) if key is not None else None
    handle: Handle | None = held() if isinstance(held, weakref.ref) else held
    return handle


def _check_match(rows: RowTensor, shape: tuple[int, ...], dtype: str) -> None:
    if (rows.shape, rows.dtype) != (shape, dtype):
        raise TensorMismatchError(
            f"tensor {rows.name!r} exists with shape {rows.shape} and dtype {rows.dtype}: "
            f"it cannot be attached as {shape} {dtype}"
        )


def find_policy(session: Session, shape: tuple[int, ...], part_policy: PartitionPolicy | None) -> tuple[str, Policy]:
    """The graph and policy of a new tensor.

    Raises:
        PartitionError: no graph is open.
        InvalidArgumentError: ``part_policy`` is none, or of a book that no open graph has.
        TensorMismatchError: no type has so many rows, or several have, or the one of ``part_policy`` has not.
    """
    if part_policy is not None and not isinstance(part_policy, PartitionPolicy):
        raise InvalidArgumentError(f"part_policy must be a PartitionPolicy (got {part_policy!r})")
    if not session.store.graphs:
        raise PartitionError("a DistTensor needs a DistGraph: create the graph first")
    books = {graph: loaded.topology.config.book for graph, loaded in session.store.graphs.items()}
    if part_policy is not None:
        graphs = [graph for graph, book in books.items() if book is part_policy.book]
        if not graphs:
            raise InvalidArgumentError(
                f"part_policy {part_policy.policy_str!r} is of a book that no open graph has: make it of "
                "get_partition_book() of the graph"
            )
        if not shape or shape[0] != part_policy.get_size():
            raise TensorMismatchError(
                f"a tensor of {part_policy.policy_str!r} has {part_policy.get_size()} rows (got shape {shape})"
            )
        return graphs[0], Policy(part_policy.is_node, part_policy.type_id)
    found = []
    for graph, book in books.items():
        sizes = [(Policy(True, t), book.num_nodes(t)) for t in range(len(book.schema.ntypes))]
        sizes += [(Policy(False, r), book.num_edges(r)) for r in range(len(book.schema.relations))]
        found += [(graph, policy) for policy, size in sizes if shape and size == shape[0]]
    if len(found) == 1:
        return found[0]
    several = "several node or edge types have" if found else "no node or edge type has"
    raise TensorMismatchError(
        f"{several} {shape[0] if shape else 0} rows (tensor of shape {shape})" + (": give part_policy" if found else "")
    )
