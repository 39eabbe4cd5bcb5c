"""DistTensor: a tensor whose rows live on the hosts, one row for each node of a type or edge of a relation."""

import math
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from mpigraph.arrays import Array
from mpigraph.distgraph.dtypes import convert, dtype_name, to_storage, to_torch
from mpigraph.distgraph.init_rows import Fill, InitFunc, by_range, fill_rows
from mpigraph.distgraph.local_rows import in_memory, local_part
from mpigraph.distgraph.partition_book import PartitionPolicy
from mpigraph.distgraph.typed_ids import to_rows
from mpigraph.errors import (
    ClosedError,
    InvalidArgumentError,
    PartitionError,
    TensorMismatchError,
    check_integer,
    check_text,
)
from mpigraph.graphs.in_memory import exact_device
from mpigraph.rows.owners import OwnedRange, RowOwners
from mpigraph.rows.row_tensor import Policy, RowTensor
from mpigraph.sampling.protocol import Operation
from mpigraph.session.context import Session, current
from mpigraph.storage.format import storage_dtype

__all__ = ["DistTensor", "find_policy"]

_BLOCK = 1 << 16  # rows that are counted at a time
_CPU = torch.device("cpu")
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


class DistTensor:
    """A tensor spread over the hosts by rows.

    Reading is one-sided: rows of hosts on this node are plain loads, others come by a transport (``rows/``). A write is
    complete at the host when it returns; the other ranks see it after :meth:`DistGraph.barrier`. Two writers of one row
    leave one of the two rows, never a mix; reading a row while another rank writes it is the caller's race.

    A feature may be stored in 16 bits (``feat_dtype`` of :func:`.partition_graph` and :class:`.DistGraph`). Its rows
    lie in memory and caches and travel as :attr:`storage_dtype`; they are read as :attr:`dtype`, and values that are
    written are rounded.

    Collective on the trainers: construction, :meth:`close`, ``|``.
    Dropping the last reference frees the memory at the trainers' next collective call, once all have dropped it.
    """

    _upcast = True

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        name: str | None = None,
        init_func: InitFunc | None = None,
        part_policy: PartitionPolicy | None = None,
        persistent: bool = False,
        is_gdata: bool = True,
        attach: bool = True,
    ) -> None:
        """Create a tensor, or attach to the one of this name that every trainer still holds.

        Args:
            shape: full shape; the first dimension is the number of nodes of a type or edges of a relation.
            dtype: any torch dtype of integers, floats, bool.
            name: a name to find the tensor by; None makes an anonymous one.
            init_func: ``init_func(shape, dtype) -> tensor``, called by each trainer for each range of rows that it
                owns, which are near; zeros if None.
            part_policy: which nodes or edges the rows are; found by ``shape[0]`` if None.
            persistent: keep the tensor until the job ends, whoever drops it.
            is_gdata: accepted for DGL's scripts.
            attach: False finds a feature that came with the graph, too, by the name that it has there; as in DGL its
                names are not those of tensors made with True.

        Names count within a node type or relation, as in DGL: ``h`` of two types are two tensors.

        Raises:
            TensorMismatchError: the name exists with another shape or dtype; no type has ``shape[0]`` rows, or several
                have; an anonymous tensor cannot be persistent.
            InvalidArgumentError: another argument is not what it says above.
            PartitionError: no graph is open.
            CollectiveError: ``init_func`` raised, or other trainers are in another call.

        All of these are raised on every trainer, whichever has the reason.
        """
        fill = None if init_func is None else by_range(init_func, dtype)
        wanted = _Wanted(shape, dtype, name, part_policy, init_func, persistent, attach)
        self._handle = _create(wanted, "anonymous", fill)

    @classmethod
    def filled(
        cls,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        name: str | None,
        label: str,
        part_policy: PartitionPolicy | None,
        fill: Fill | None = None,
    ) -> "DistTensor":
        """Create a tensor whose rows ``fill`` makes, or attach to the one of this name.

        Args:
            shape: full shape.
            dtype: of its elements.
            name: a name to find the tensor by; None makes one that nobody else finds.
            label: what it is called.
            part_policy: which nodes or edges the rows are; found by ``shape[0]`` if None.
            fill: makes the rows that a trainer owns, if the tensor is new; zeros if None.

        Collective on the trainers.
        """
        tensor = cls.__new__(cls)
        tensor._handle = _create(_Wanted(shape, dtype, name, part_policy), label, fill)
        return tensor

    @classmethod
    def of_rows(cls, session: Session, graph: str, rows: RowTensor, upcast: bool = True) -> "DistTensor":
        """The tensor of rows that came with a graph and live as long as it; of their stored dtype if not ``upcast``."""
        tensor = cls.__new__(cls)
        tensor._upcast = upcast
        tensor._handle = Handle(session, graph, rows, owned=False)
        return tensor

    @property
    def rows(self) -> RowTensor:
        """The rows below the tensor.

        Raises:
            ClosedError: the tensor, or the job, was closed.
        """
        if self._handle.closed or self._handle.session.world.closed:
            raise ClosedError(f"tensor {self._handle.rows.name!r} was closed")
        return self._handle.rows

    @property
    def graph_name(self) -> str:
        """Name of the graph whose nodes or edges the rows are."""
        return self._handle.graph

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Read rows in the order of the index: :meth:`gather` into memory of the pool. One-sided."""
        return self.gather(index)

    def gather(
        self,
        index: Any,
        out: torch.Tensor | None = None,
        device: torch.device | str | None = None,
        pin_memory: bool = False,
    ) -> torch.Tensor:
        """Read rows in the order of the index. One-sided.

        Args:
            index: int (one row, first dimension kept), slice, list, ndarray or tensor of integers, or a mask.
            out: [n, *row_shape] of this dtype to fill, on any device, pinned or not; new memory if None.
            device: where the rows are to be; that of ``out`` or the CPU if None. Rows for a GPU are collected in pinned
                memory first, and are there when the call returns.
            pin_memory: put rows that stay on the CPU into pinned memory, which copies to a GPU need to be
                asynchronous; without CUDA it makes no difference.

        Returns:
            [n, *row_shape], ``out`` itself if it was given.

        Raises:
            OutOfRangeError: a row does not exist.
            InvalidArgumentError: ``out`` has another shape, dtype or device than the rows asked for.
        """
        rows = self.rows
        session = self._handle.session
        session.check_thread(far=not session.world.all_near)
        ids = to_rows(index, len(self), rows.name)
        shape = (len(ids), *rows.shape[1:])
        if out is not None:
            if not isinstance(out, torch.Tensor):
                raise InvalidArgumentError(f"out must be a tensor (got {out!r})")
            _check_out(out, shape, self.dtype, device)
        target = (_CPU if device is None else exact_device(device)) if out is None else out.device
        if out is not None and target.type == "cpu" and out.is_contiguous():
            rows.gather(ids, to_storage(out.detach(), self._dtype))
            return out
        mine = pin_memory and target.type == "cpu" and out is None
        memory = session.pinned if mine else session.rows_pool(target.type == "cuda").empty
        arriving = self._arriving(target)
        found = to_torch(rows.gather(ids, memory(shape, storage_dtype(arriving))), arriving).to(target)
        return found.to(self.dtype) if out is None else out.copy_(found)

    def memory_for(self, count: int, device: torch.device | None) -> Array:
        """Memory of the pool in which ``count`` rows for a device arrive, pinned if that is a GPU."""
        session = self._handle.session
        session.check_thread()
        pool = session.rows_pool(device is not None and device.type == "cuda")
        return pool.empty((count, *self.rows.shape[1:]), storage_dtype(self._arriving(device)))

    def from_memory(self, rows: Array, device: torch.device | None) -> torch.Tensor:
        """Rows that have arrived in such memory as a tensor on the device; the CPU if None."""
        found = to_torch(rows, self._arriving(device))
        return found if device is None else found.to(device).to(self.dtype)

    def _arriving(self, device: torch.device | None) -> str:
        """The dtype of rows in memory of this process: what is for a GPU becomes wider there, after the copy."""
        return self._dtype if device is None or device.type == "cpu" else self.rows.stored

    def __setitem__(self, index: Any, values: Any) -> None:
        """Write rows; ``values`` broadcast and are converted. Of repeated rows the last wins.

        Raises:
            OutOfRangeError: a row does not exist.
            InvalidArgumentError: the values do not broadcast to the rows, or do not exist in their dtype: complex ones,
                NaN or numbers out of range among integers, finite ones that are too large for a ``storage_dtype``
                narrower than that of the feature, to which they are rounded (to nearest even).

        One-sided; complete at the target when it returns.
        """
        rows = self.rows
        self._handle.session.check_thread()
        ids = to_rows(index, len(self), rows.name)
        wanted = (len(ids), *rows.shape[1:])
        tensor = convert(values, getattr(torch, rows.dtype), f"values of tensor {rows.name!r}")
        try:
            tensor = tensor.expand(wanted).contiguous()
        except RuntimeError:
            raise InvalidArgumentError(
                f"values of shape {tuple(tensor.shape)} do not fit {wanted} of tensor {rows.name!r}"
            ) from None
        rows.scatter(ids, to_storage(tensor, rows.dtype))

    def __len__(self) -> int:
        return self.shape[0]

    def __or__(self, other: "DistTensor") -> "DistTensor":
        """Element-wise or of two masks of one policy, as a new anonymous tensor. Collective on the trainers."""
        if not isinstance(other, DistTensor):
            return NotImplemented
        if (self.shape, self.rows.policy) != (other.shape, other.rows.policy):
            raise TensorMismatchError(f"cannot combine tensors of shapes {self.shape} and {other.shape}")
        result = DistTensor(self.shape, self.dtype, part_policy=self.part_policy)
        for owned in self._owned():
            mine, theirs = (tensor[owned.first : owned.last] != 0 for tensor in (self, other))
            result[owned.first : owned.last] = mine | theirs
        self._handle.session.control.call(Operation.BARRIER)
        return result

    @property
    def shape(self) -> tuple[int, ...]:
        """Full shape."""
        return self._handle.rows.shape

    @property
    def dtype(self) -> torch.dtype:
        """Element type of what is read."""
        found: torch.dtype = getattr(torch, self._dtype)
        return found

    @property
    def storage_dtype(self) -> torch.dtype:
        """Element type in the hosts' memory, in caches and between nodes: :attr:`dtype`, or a narrower one."""
        found: torch.dtype = getattr(torch, self._handle.rows.stored)
        return found

    @property
    def _dtype(self) -> str:
        return self._handle.rows.dtype if self._upcast else self._handle.rows.stored

    @property
    def name(self) -> str:
        """The name it was created with."""
        return self._handle.rows.name

    tensor_name = name

    @property
    def part_policy(self) -> PartitionPolicy:
        """Which nodes or edges the rows are."""
        session = self._handle.session
        policy = self._handle.rows.policy
        topology = session.state.graphs[self._handle.graph].topology
        return PartitionPolicy.of(topology.config.book, policy.is_node, policy.type_id)

    @property
    def local_partition(self) -> torch.Tensor:
        """A view of the rows of the local part, ``partid2nids(pb.partid)`` of the graph's partition book ``pb``.

        Several trainers may have the same local part, as in DGL. What is written through a view, the other ranks and
        samplers see after the trainers' next collective call (:meth:`DistGraph.barrier`). As long as a view is alive
        the rows count as written at each such call, so edge weights are prepared anew each time: drop the view when
        it is no longer needed.

        Raises:
            PartitionError: the part's rows are not next to each other in the memory of one near host, which they are
                where there are as many parts as hosts; or they are stored in a narrower dtype than they are read in.
        """
        rows = self.rows
        if self._dtype != rows.stored:
            raise PartitionError(
                f"tensor {rows.name!r} has no local_partition: its rows are read as {self._dtype} and stored as "
                f"{rows.stored}: read and write by ids, or open the graph with upcast=False"
            )
        session = self._handle.session
        part = local_part(session.world, session.state.graphs[self._handle.graph].topology.config.num_parts)
        first, last = self.part_policy._offsets[part : part + 2].tolist()
        return to_torch(rows.lend(*in_memory(session.world, rows, part, first, last)), rows.stored)

    def count_nonzero(self) -> int:
        """How many elements are not zero. Collective on the trainers."""
        found = 0
        for owned in self._owned():
            for first in range(owned.first, owned.last, _BLOCK):
                found += int((self[first : min(first + _BLOCK, owned.last)] != 0).sum())
        return self._handle.session.world.allreduce_sum(found)

    def _owned(self) -> list[OwnedRange]:
        return RowOwners(self._handle.session.world, self.rows.window.offsets).ranges()

    def close(self) -> None:
        """Free the rows now; later use of any handle to this tensor raises. Collective on the trainers."""
        handle = self._handle
        if handle.closed:
            return
        handle.closed = True
        if handle.drop is not None:
            handle.drop.detach()
        if handle.key is not None and _held(handle.session, handle.key) is handle:
            del handle.session.handles[handle.key]
        handle.session.control.call(Operation.FREE, numbers=[handle.rows.number])

    def __repr__(self) -> str:
        stored = f", storage_dtype={self.storage_dtype}" if self.storage_dtype != self.dtype else ""
        return f"DistTensor(name={self.name!r}, shape={self.shape}, dtype={self.dtype}{stored})"


class _Wanted(NamedTuple):
    """A tensor as it is asked for."""

    shape: Any
    dtype: torch.dtype
    name: str | None
    part_policy: PartitionPolicy | None
    init_func: InitFunc | None = None
    persistent: bool = False
    attach: bool = True


def _create(wanted: _Wanted, label: str, fill: Fill | None) -> Handle:
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
    handle = _held(session, key)
    feature = None if wanted.attach else session.state.graphs[graph].features.get((policy, label))
    if handle is None and feature is not None:
        handle = Handle(session, graph, session.state.tensors[feature], owned=False)
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


def _checked(session: Session, wanted: _Wanted) -> tuple[tuple[int, ...], str, Policy]:
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


def _held(session: Session, key: tuple[Any, ...] | None) -> Handle | None:
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
    if not session.state.graphs:
        raise PartitionError("a DistTensor needs a DistGraph: create the graph first")
    books = {graph: loaded.topology.config.book for graph, loaded in session.state.graphs.items()}
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


def _check_out(
    out: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str | None
) -> None:
    if (tuple(out.shape), out.dtype) != (shape, dtype):
        raise InvalidArgumentError(f"out must be {shape} {dtype} (got {tuple(out.shape)} {out.dtype})")
    if device is not None and exact_device(device).type != out.device.type:
        raise InvalidArgumentError(f"out is on {out.device}, the rows are wanted on {device}")
