"""DistTensor: a tensor whose rows live on the hosts, one row for each node of a type or edge of a relation."""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mpigraph.distgraph.dtypes import dtype_name, to_storage, to_torch
from mpigraph.distgraph.init_rows import Fill, InitFunc, by_range, fill_rows
from mpigraph.distgraph.partition_book import PartitionPolicy
from mpigraph.distgraph.typed_ids import to_rows
from mpigraph.errors import ClosedError, InvalidArgumentError, PartitionError, TensorMismatchError
from mpigraph.metadata.book import RangeBook
from mpigraph.mpi.world import World
from mpigraph.rows.owners import OwnedRange, RowOwners
from mpigraph.rows.row_tensor import Policy, RowTensor
from mpigraph.sampling.protocol import Operation
from mpigraph.session.context import Session, current
from mpigraph.storage.format import storage_dtype

__all__ = ["DistTensor"]

_BLOCK = 1 << 16  # rows that are counted at a time


class Handle:
    """Keeps a tensor alive; when the last reference is gone the tensor is freed at the next collective point."""

    def __init__(self, session: Session, graph: str, rows: RowTensor, owned: bool) -> None:
        self.session = session
        self.graph = graph
        self.rows = rows
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

    Collective on the trainers: construction, :meth:`close`, ``|``.
    Dropping the last reference frees the memory at the trainers' next collective call, once all have dropped it.
    """

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
            attach: accepted for DGL's scripts.

        Raises:
            TensorMismatchError: the name exists with another shape, dtype or policy; no type has ``shape[0]`` rows, or
                several have; an anonymous tensor cannot be persistent.
        """
        if name is None and persistent:
            raise TensorMismatchError("a persistent tensor needs a name")
        fill = None if init_func is None else by_range(init_func, dtype)
        shape = tuple(int(size) for size in shape)
        self._handle = _create(shape, dtype, name, name or "anonymous", part_policy, fill, persistent)

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
        tensor._handle = _create(shape, dtype, name, label, part_policy, fill)
        return tensor

    @classmethod
    def of_rows(cls, session: Session, graph: str, rows: RowTensor) -> "DistTensor":
        """The tensor of rows that came with a graph and live as long as it."""
        tensor = cls.__new__(cls)
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
            _check_out(out, shape, self.dtype, device)
        target = torch.device("cpu" if device is None else device) if out is None else out.device
        if out is not None and target.type == "cpu" and out.is_contiguous():
            rows.gather(ids, to_storage(out.detach(), rows.dtype))
            return out
        pool = session.rows_pool(pin_memory or target.type == "cuda")
        found = to_torch(rows.gather(ids, pool.empty(shape, storage_dtype(rows.dtype))), rows.dtype)
        return found.to(target) if out is None else out.copy_(found)

    def __setitem__(self, index: Any, values: Any) -> None:
        """Write rows; ``values`` broadcast and are converted. Of repeated rows the last wins.

        Raises:
            OutOfRangeError: a row does not exist.
            InvalidArgumentError: the values do not broadcast to the rows.

        One-sided; complete at the target when it returns.
        """
        rows = self.rows
        self._handle.session.check_thread()
        ids = to_rows(index, len(self), rows.name)
        wanted = (len(ids), *rows.shape[1:])
        tensor = torch.as_tensor(values).detach().to("cpu", self.dtype)
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
        """Element type."""
        found: torch.dtype = getattr(torch, self._handle.rows.dtype)
        return found

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
        """A view of this rank's part of the rows: its own host's, else a part of one near server's.

        The views of all trainers together are all rows, each once. What is written through a view, the other ranks and
        samplers see after the trainers' next collective call (:meth:`DistGraph.barrier`). As long as a view is alive
        the rows count as written at each such call, so edge weights are prepared anew each time: drop the view when
        it is no longer needed.

        Raises:
            InvalidArgumentError: this node has fewer trainers than servers, whose rows are not adjacent in memory.
        """
        rows = self.rows
        return to_torch(rows.lend(*_local_rows(self._handle.session.world, rows)), rows.dtype)

    def count_nonzero(self) -> int:
        """How many elements are not zero. Collective on the trainers."""
        found = 0
        for owned in self._owned():
            for first in range(owned.first, owned.last, _BLOCK):
                found += int(torch.count_nonzero(self[first : min(first + _BLOCK, owned.last)]))
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
        if _held(handle.session, handle.graph, handle.rows.name) is handle:
            del handle.session.handles[handle.graph, handle.rows.name]
        handle.session.control.call(Operation.FREE, numbers=[handle.rows.number])

    def __repr__(self) -> str:
        return f"DistTensor(name={self.name!r}, shape={self.shape}, dtype={self.dtype})"


def _create(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    name: str | None,
    label: str,
    part_policy: PartitionPolicy | None,
    fill: Fill | None,
    persistent: bool = False,
) -> Handle:
    """Create the rows of a tensor, or attach to those of this name."""
    session = current()
    graph, policy = find_policy(session, shape, part_policy)
    handle = _held(session, graph, name)
    rows = session.control.call(
        Operation.CREATE_TENSOR,
        have=None if handle is None or handle.closed else handle.rows.number,
        graph=graph,
        name=label,
        is_node=policy.is_node,
        type_id=policy.type_id,
        row_shape=shape[1:],
        dtype=dtype_name(dtype),
    )
    if handle is not None and handle.rows is rows:
        _check_match(rows, shape, dtype_name(dtype), policy, session.state.graphs[graph].topology.config.book)
        return handle
    handle = Handle(session, graph, rows, owned=True)
    if fill is not None:
        fill_rows(session, rows, fill)
    if name is not None:
        session.handles[graph, name] = handle if persistent else weakref.ref(handle)
    if persistent:
        handle.keep()
    return handle


def _held(session: Session, graph: str, name: str | None) -> Handle | None:
    """Whoever keeps the tensor of a name alive."""
    held = session.handles.get((graph, name)) if name is not None else None
    handle: Handle | None = held() if isinstance(held, weakref.ref) else held
    return handle


def _check_match(rows: RowTensor, shape: tuple[int, ...], dtype: str, policy: Policy, book: RangeBook) -> None:
    if rows.policy != policy:
        theirs, ours = (PartitionPolicy.of(book, p.is_node, p.type_id).policy_str for p in (rows.policy, policy))
        raise TensorMismatchError(f"tensor {rows.name!r} exists with rows for {theirs!r}, not for {ours!r}")
    if (rows.shape, rows.dtype) != (shape, dtype):
        raise TensorMismatchError(
            f"tensor {rows.name!r} exists with shape {rows.shape} and dtype {rows.dtype}: "
            f"it cannot be attached as {shape} {dtype}"
        )


def find_policy(session: Session, shape: tuple[int, ...], part_policy: PartitionPolicy | None) -> tuple[str, Policy]:
    """The graph and policy of a new tensor."""
    if not session.state.graphs:
        raise PartitionError("a DistTensor needs a DistGraph: create the graph first")
    found = []
    for graph, loaded in session.state.graphs.items():
        book = loaded.topology.config.book
        if part_policy is not None and part_policy.book is not book:
            continue
        sizes = [(Policy(True, t), book.num_nodes(t)) for t in range(len(book.schema.ntypes))]
        sizes += [(Policy(False, r), book.num_edges(r)) for r in range(len(book.schema.relations))]
        if part_policy is not None:
            wanted = Policy(part_policy.is_node, part_policy.type_id)
            sizes = [(policy, size) for policy, size in sizes if policy == wanted]
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
    if device is not None and torch.device(device).type != out.device.type:
        raise InvalidArgumentError(f"out is on {out.device}, the rows are wanted on {device}")


def _local_rows(world: World, rows: RowTensor) -> tuple[int, slice]:
    """A slice of one near host's rows, so that all trainers together have each row once."""
    if world.is_host:
        return world.host_index, slice(None)
    near, k, n = np.flatnonzero(world.near), world.local_trainer, world.num_local_trainers
    if n < len(near):
        raise InvalidArgumentError(
            f"tensor {rows.name!r} has no local_partition on a node with {n} trainer(s) and {len(near)} servers, whose "
            "rows are not adjacent in memory: read and write by t[...], or use at most as many servers as trainers"
        )
    place = k * len(near) // n
    first, end = (-(-i * n // len(near)) for i in (place, place + 1))  # the trainers with rows of this host
    host = int(near[place])
    count = len(rows.segment(host))
    return host, slice(count * (k - first) // (end - first), count * (k + 1 - first) // (end - first))
