"""DistTensor: a tensor whose rows live on the hosts, one row for each node of a type or edge of a relation."""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mpigraph.distgraph.dtypes import dtype_name, to_storage, to_torch
from mpigraph.distgraph.init_rows import Fill, InitFunc, by_share, initialise
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

    Reading is one-sided: rows of hosts on this node are plain loads, others come by MPI ``Get``. A write is complete at
    the host when it returns; the other ranks see it after :meth:`DistGraph.barrier`. Two writers of one row leave one
    of the two rows, never a mix; reading a row while another rank writes it is the caller's race.

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
            init_func: ``init_func(shape, dtype) -> tensor``, called for each share of the rows by the trainer in
                charge of it, which is near their host; zeros if None.
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
        fill = None if init_func is None else by_share(init_func, dtype)
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
            fill: makes the rows that a trainer is in charge of, if the tensor is new; zeros if None.

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
        """Read rows in the order of the index. One-sided; the target does nothing.

        Args:
            index: int (one row, first dimension kept), slice, list, ndarray or tensor of integers, or a mask.

        Raises:
            OutOfRangeError: a row does not exist.
        """
        rows = self.rows
        ids = to_rows(index, len(self), rows.name)
        out = self._handle.session.pool.empty((len(ids), *rows.shape[1:]), storage_dtype(rows.dtype))
        return to_torch(rows.gather(ids, out), rows.dtype)

    def __setitem__(self, index: Any, values: Any) -> None:
        """Write rows; ``values`` broadcast and are converted. Of repeated rows the last wins.

        Raises:
            OutOfRangeError: a row does not exist.
            InvalidArgumentError: the values do not broadcast to the rows.

        One-sided; complete at the target when it returns.
        """
        rows = self.rows
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
        session = self._handle.session
        for share in self._shares():
            mine, theirs, united = (to_torch(_part(t, share), t.rows.dtype) for t in (self, other, result))
            united[:] = ((mine != 0) | (theirs != 0)).to(self.dtype)
        session.control.call(Operation.BARRIER)
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
        """A view of this rank's share of the rows: its own host's, else a share of one near server's.

        The shares of all trainers together are all rows, each once. The other ranks see what is written through the
        view after :meth:`DistGraph.barrier`; samplers that use the tensor as edge weights do not, once a loader has
        prepared them.

        Raises:
            InvalidArgumentError: this node has fewer trainers than servers, whose rows are not one piece of memory.
        """
        host, part = _my_piece(self._handle.session.world, self.rows)
        return to_torch(self.rows.segment(host)[part], self.rows.dtype)

    def count_nonzero(self) -> int:
        """How many elements are not zero. Collective on the trainers."""
        session = self._handle.session
        parts = [to_torch(_part(self, share), self.rows.dtype) for share in self._shares()]
        return session.world.add(sum(int(torch.count_nonzero(rows)) for rows in parts))

    def _shares(self) -> list[OwnedRange]:
        return RowOwners(self._handle.session.world, self.rows.window.offsets).shares()

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
        initialise(session, rows, fill)
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


def _part(tensor: DistTensor, share: OwnedRange) -> "np.ndarray[Any, Any]":
    return tensor.rows.segment(share.host)[share.rows]


def _my_piece(world: World, rows: RowTensor) -> tuple[int, slice]:
    """A slice of one near host's rows, so that all trainers together have each row once."""
    if world.is_host:
        return world.host_index, slice(None)
    near, k, n = np.flatnonzero(world.near), world.local_trainer, world.num_local_trainers
    if n < len(near):
        raise InvalidArgumentError(
            f"tensor {rows.name!r} has no local_partition on a node with {n} trainer(s) and {len(near)} servers, whose "
            "rows are not one piece of memory: read and write by t[...], or use at most as many servers as trainers"
        )
    place = k * len(near) // n
    first, end = (-(-i * n // len(near)) for i in (place, place + 1))  # the trainers that share this host
    host = int(near[place])
    count = len(rows.segment(host))
    return host, slice(count * (k - first) // (end - first), count * (k + 1 - first) // (end - first))
