"""New tensors of rows: arguments checked; attached to rows of the same name, or made on the hosts and filled.

The trainers make the first rows, each those that it owns.
"""

import math
import random
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from mpigraph.collective import collective
from mpigraph.distgraph.dtypes import convert, dtype_name, to_torch
from mpigraph.distgraph.partition_book import PartitionPolicy
from mpigraph.errors import InvalidArgumentError, PartitionError, TensorMismatchError, check_integer, check_text
from mpigraph.kernels.rng import combine
from mpigraph.rows.owners import OwnedRange, RowOwners
from mpigraph.rows.row_tensor import Policy, RowTensor
from mpigraph.session.context import Session, current
from mpigraph.session.control import Operation
from mpigraph.storage.format import storage_dtype

InitFunc = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]

_ROW_BYTES = (1 << 31) - 1  # MPI counts the bytes of a row in an int
CHUNK = 1 << 14  # rows of one call; another number makes other rows of the same seed
_DRAWS = 0x1217  # separates these draws from others with the same seed


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
        """Keep the tensor until the job ends, even if all handles are dropped."""
        if self.drop is not None:
            self.drop.detach()
            self.drop = None


class TensorRequest(NamedTuple):
    """The arguments of :class:`DistTensor`."""

    shape: Any
    dtype: torch.dtype
    name: str | None
    part_policy: PartitionPolicy | None
    init_func: InitFunc | None = None
    persistent: bool = False
    attach: bool = True


@collective("trainers")
def create(
    request: TensorRequest, label: str | None = None, kind: str = "tensor", check: Callable[[], object] = lambda: None
) -> Handle:
    """Create the rows of a tensor, or attach to those of this name.

    Args:
        request: shape, dtype, name and so on.
        label: the name of an anonymous tensor in messages; by default it gets a number.
        kind: the word for the tensor in errors.
        check: checks more, and raises what is then raised on every trainer.

    Raises:
        CollectiveError: ``init_func`` raised somewhere; on every trainer.
    """
    session = current()
    number = session.unnamed + (request.name is None and label is None)
    label = request.name or label or f"{kind}#{number}"
    doing = f"creating {kind} {label!r}"
    try:
        shape, graph, policy = _checked(session, request)
        check()
    except Exception as error:
        session.control.call(Operation.CREATE_TENSOR, doing=doing, error=error)
        raise
    dtype = dtype_name(request.dtype)
    key = None if request.name is None else (graph, policy, request.name, bool(request.attach))
    handle = held(session, key)
    feature = None if request.attach else session.store.graphs[graph].features.get((policy, label))
    if handle is None and feature is not None:
        handle = Handle(session, graph, session.store.tensors[feature], owned=False)
    rows = session.control.call(
        Operation.CREATE_TENSOR,
        have=None if handle is None or handle.closed else handle.rows.number,
        doing=doing,
        graph=graph,
        name=label,
        is_node=policy.is_node,
        type_id=policy.type_id,
        row_shape=shape[1:],
        dtype=dtype,
        filled=request.init_func is not None,  # else some trainers would wait for others, which have nothing to fill
    )
    session.unnamed = number  # not if it failed on any trainer
    if handle is not None and handle.rows is rows:
        if (rows.shape, rows.dtype) != (shape, dtype):
            raise TensorMismatchError(
                f"tensor {rows.name!r} exists with shape {rows.shape} and dtype {rows.dtype}: "
                f"it cannot be attached as {shape} {dtype}"
            )
        return handle
    handle = Handle(session, graph, rows, owned=True)
    if request.init_func is not None:
        with session.world.together(f"init_func of tensor {rows.name!r}"):
            _fill(rows, RowOwners(session.world, rows.offsets).ranges(), request, session.store.seed)
        session.control.call(Operation.BARRIER)
    if key is not None:
        handle.key = key
        session.handles[key] = handle if request.persistent else weakref.ref(handle)
    if request.persistent:
        handle.keep()
    return handle


def _checked(session: Session, request: TensorRequest) -> tuple[tuple[int, ...], str, Policy]:
    """Return shape, graph and policy of a new tensor; raise the errors that :class:`DistTensor` lists."""
    if request.name is None and request.persistent:
        raise TensorMismatchError("a persistent tensor needs a name")
    if request.name is not None:
        check_text("name", request.name)
    if request.init_func is not None and not callable(request.init_func):
        raise InvalidArgumentError(f"init_func must be callable (got {request.init_func!r})")
    if isinstance(request.shape, str) or not isinstance(request.shape, Iterable):
        raise InvalidArgumentError(f"shape must be a sequence of integers (got {request.shape!r})")
    shape = tuple(check_integer("each size of shape", size, 0) for size in request.shape)
    row_bytes = storage_dtype(dtype_name(request.dtype)).itemsize * math.prod(shape[1:])
    if row_bytes > _ROW_BYTES:
        raise InvalidArgumentError(f"a row must not be larger than {_ROW_BYTES} bytes (shape {shape}: {row_bytes})")
    return shape, *find_policy(session, shape, request.part_policy)


def held(session: Session, key: tuple[Any, ...] | None) -> Handle | None:
    """Return the handle that keeps the tensor of a name alive."""
    reference = session.handles.get(key) if key is not None else None
    handle: Handle | None = reference() if isinstance(reference, weakref.ref) else reference
    return handle


def find_policy(session: Session, shape: tuple[int, ...], part_policy: PartitionPolicy | None) -> tuple[str, Policy]:
    """Return the graph and policy of a new tensor.

    Raises:
        PartitionError: no graph is open.
        InvalidArgumentError: ``part_policy`` is no policy, or of a book that no open graph has.
        TensorMismatchError: no type has so many rows, or several have, or ``part_policy`` has another number of them.
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
    candidates = []
    for graph, book in books.items():
        sizes = [(Policy(True, t), book.num_nodes(t)) for t in range(len(book.schema.ntypes))]
        sizes += [(Policy(False, r), book.num_edges(r)) for r in range(len(book.schema.relations))]
        candidates += [(graph, policy) for policy, size in sizes if shape and size == shape[0]]
    if len(candidates) == 1:
        return candidates[0]
    several = "several node or edge types have" if candidates else "no node or edge type has"
    raise TensorMismatchError(
        f"{several} {shape[0] if shape else 0} rows (tensor of shape {shape})"
        + (": give part_policy" if candidates else "")
    )


def _fill(rows: RowTensor, ranges: list[OwnedRange], request: TensorRequest, seed: int) -> None:
    """Fill the rows that this trainer owns by ``init_func(shape, dtype)``, called for :data:`CHUNK` rows at a time.

    Its draws depend on the seed of the job, the name of the tensor and the chunk alone, so the rows do not depend on
    the trainer that makes them. If several trainers own rows of a chunk, each makes all of it and keeps its own rows.
    """
    name = rows.name.encode()
    words = [int.from_bytes(name[at : at + 8], "little") for at in range(0, len(name), 8)]
    of_tensor = int(combine(seed, len(name), *words))
    for number, begin in enumerate(range(0, rows.shape[0], CHUNK)):
        end = min(begin + CHUNK, rows.shape[0])
        inside = [owned for owned in ranges if owned.first < end and begin < owned.last]
        if not inside:
            continue
        with _draws_of(int(combine(of_tensor, _DRAWS, number))):
            values = _made(request, (end - begin, *rows.shape[1:]))
        for owned in inside:
            first, last = max(begin, owned.first), min(end, owned.last)
            at = owned.rows.start + first - owned.first
            with rows.writing(owned.host) as segment:
                out = to_torch(segment[at : at + last - first], rows.dtype)
                out[:] = values[first - begin : last - begin]


def _made(request: TensorRequest, shape: tuple[int, ...]) -> torch.Tensor:
    """Call a user's function, and check what it returns."""
    assert request.init_func is not None
    values = convert(request.init_func(shape, request.dtype), request.dtype, "what it returns")
    if tuple(values.shape) != shape:
        raise InvalidArgumentError(f"it must return a tensor of shape {shape} (got {tuple(values.shape)})")
    return values


@contextmanager
def _draws_of(seed: int) -> Iterator[None]:
    """Seed the default generators of torch (CPU), numpy and Python, and restore them at the end."""
    before: tuple[Any, Any, Any] = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would touch the generators of GPUs, too
        np.random.seed(seed % 2**32)  # noqa: NPY002 - a user's function may draw from it
        random.seed(seed)
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])
