"""DistTensor: a tensor whose rows live on the hosts, one row for each node of a type or edge of a relation."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mpigraph.collective import collective
from mpigraph.distgraph.dtypes import convert, to_storage, to_torch
from mpigraph.distgraph.init_rows import Fill, InitFunc, by_range
from mpigraph.distgraph.local_rows import in_memory, local_part
from mpigraph.distgraph.new_tensor import Handle, TensorRequest, create, held
from mpigraph.distgraph.partition_book import PartitionPolicy
from mpigraph.distgraph.row_files import NpyRows, npy_path, pieces, write_npy
from mpigraph.distgraph.typed_ids import to_rows
from mpigraph.errors import (
    ClosedError,
    InvalidArgumentError,
    PartitionError,
    TensorMismatchError,
    check_state,
)
from mpigraph.graphs.accelerators import Accelerator, accelerator_here, accelerator_of
from mpigraph.graphs.in_memory import exact_device
from mpigraph.rows.lookahead import CachedRows, Read
from mpigraph.rows.owners import OwnedRange, RowOwners
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.session.context import Session
from mpigraph.session.control import Operation
from mpigraph.storage.format import storage_dtype

__all__ = ["DistTensor"]

_BLOCK = 1 << 16  # rows that are counted at a time
_CPU = torch.device("cpu")


class DistTensor:
    """A tensor spread over the hosts by rows.

    Reading is one-sided: rows of hosts on this node are plain loads, others come by a transport (``rows/``). A write is
    complete at the host when it returns; the other ranks see it after :meth:`DistGraph.barrier`. Two writers of one row
    leave one of the two rows, never a mix; reading a row while another rank writes it is the caller's race.

    A feature may be stored in 16 bits (``feat_dtype`` of :func:`.partition_graph` and :class:`.DistGraph`). Its rows
    lie in memory and caches and travel as :attr:`storage_dtype`; they are read as :attr:`dtype`, and values that are
    written are rounded.

    Dropping the last reference frees the memory at the trainers' next collective call, once all have dropped it.
    """

    _upcast = True

    @collective("trainers")
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
        wanted = TensorRequest(shape, dtype, name, part_policy, init_func, persistent, attach)
        self.handle = create(wanted, "anonymous", fill)

    @classmethod
    @collective("trainers")
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
        """
        tensor = cls.__new__(cls)
        tensor.handle = create(TensorRequest(shape, dtype, name, part_policy), label, fill)
        return tensor

    @classmethod
    def of_rows(cls, session: Session, graph: str, rows: RowTensor, upcast: bool = True) -> "DistTensor":
        """The tensor of rows that came with a graph and live as long as it; of their stored dtype if not ``upcast``."""
        tensor = cls.__new__(cls)
        tensor._upcast = upcast
        tensor.handle = Handle(session, graph, rows, owned=False)
        return tensor

    @property
    def rows(self) -> RowTensor:
        """The rows below the tensor.

        Raises:
            ClosedError: the tensor, or the job, was closed.
        """
        if self.handle.closed or self.handle.session.world.closed:
            raise ClosedError(f"tensor {self.handle.rows.name!r} was closed")
        return self.handle.rows

    @property
    def graph_name(self) -> str:
        """Name of the graph whose nodes or edges the rows are."""
        return self.handle.graph

    @property
    def graph_identity(self) -> str:
        """What tells the partitioning of the graph from others, in which nodes and edges have other ids."""
        return self.handle.session.store.graphs[self.handle.graph].topology.config.identity

    def state_dict(self) -> dict[str, "DistTensor"]:
        """The rows, for checkpoints: ``{"rows": self}``."""
        return {"rows": self}

    @collective("trainers", "unless the rows are its own")
    def load_state_dict(self, state_dict: dict[str, "DistTensor"]) -> None:
        """Take over the rows of a tensor of the same shape, dtype and policy; those of itself are as they are.

        Raises:
            InvalidArgumentError: it is no such state.
            TensorMismatchError: it has another shape, dtype or policy.
        """
        check_state("a tensor", state_dict, {"rows": DistTensor})
        other = state_dict["rows"]
        if other.rows is self.rows:
            return
        if (other.shape, other.dtype, other.rows.policy) != (self.shape, self.dtype, self.rows.policy):
            raise TensorMismatchError(f"rows of {other!r} do not fit {self!r}")
        for owned in self.owned():
            for first in range(owned.first, owned.last, _BLOCK):
                some = slice(first, min(first + _BLOCK, owned.last))
                self[some] = other[some]
        self.handle.session.control.call(Operation.BARRIER)

    @collective("trainers")
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the rows to one ``.npy`` file, in the original order of the nodes or edges, that before partitioning.

        bfloat16 is written as float32, which numpy can read. The trainers write together, each a piece.

        Args:
            path: ends in ``.npy``; in a folder that all trainers see.

        Raises:
            InvalidArgumentError: ``path`` has another ending.
            StorageError: the file cannot be written.
            ShardFormatError: the graph's files with original ids cannot be read.
            GraphDataError: the original ids are not those from 0 on, each once.

        All of these are raised on every trainer.
        """
        session = self.handle.session
        with session.world.together(f"saving tensor {self.name!r}"):
            where = npy_path(path)
        config = session.store.graphs[self.handle.graph].topology.config
        blocks = pieces(session, config, self.rows)
        write_npy(session, where, self.shape, self.dtype, ((first, self[ids]) for first, ids in blocks))

    @collective("trainers")
    def load(self, path: str | os.PathLike[str]) -> None:
        """Overwrite the rows with those of a ``.npy`` file in the original order, as :meth:`save` writes it.

        Args:
            path: ends in ``.npy``; every trainer reads a piece. Values are converted to this tensor's dtype.

        Raises:
            InvalidArgumentError: it is no such file, of another shape, or has values that the dtype has not.
            ShardFormatError, GraphDataError: as in :meth:`save`.

        All of these are raised on every trainer.
        """
        session = self.handle.session
        doing = f"loading tensor {self.name!r}"
        with session.world.together(doing):
            saved = NpyRows(npy_path(path), self.shape)
        blocks = pieces(session, session.store.graphs[self.handle.graph].topology.config, self.rows)
        with session.world.together(doing):
            for first, ids in blocks:
                self[ids] = saved.read(first, len(ids))
        session.control.call(Operation.BARRIER)

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Read rows in the order of the index: :meth:`gather` into memory of the pool. One-sided."""
        return self.gather(index)

    def gather(
        self,
        index: Any,
        out: torch.Tensor | None = None,
        device: torch.device | str | None = None,
        pin_memory: bool = False,
        non_blocking: bool = False,
    ) -> torch.Tensor:
        """Read rows in the order of the index. One-sided.

        Args:
            index: int (one row, first dimension kept), slice, list, ndarray or tensor of integers, or a mask; also a
                DistTensor of these, all of which this rank then reads.
            out: [n, *row_shape] of this dtype to fill, on any device, pinned or not; new memory if None.
            device: where the rows are to be; that of ``out`` or the CPU if None. Rows for a GPU are collected in pinned
                memory first.
            pin_memory: put rows that stay on the CPU into pinned memory, which copies to a GPU need to be
                asynchronous; where torch has no GPU it makes no difference.
            non_blocking: do not wait for the copy to a GPU; the thread's current stream there makes it.

        Returns:
            [n, *row_shape], ``out`` itself if it was given.

        Raises:
            OutOfRangeError: a row does not exist.
            InvalidArgumentError: ``out`` has another shape, dtype or device than the rows asked for.
        """
        rows = self.rows
        session = self.handle.session
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
        pinned = accelerator_here() if pin_memory and out is None and target.type == "cpu" else accelerator_of(target)
        arriving = self._dtype if target.type == "cpu" else rows.stored  # made wider on the GPU, after the copy
        found = self._memory(len(ids), arriving, pinned)
        rows.gather(ids, to_storage(found, arriving))
        non_blocking = non_blocking and pinned is not None  # the pool does not know of copies in progress
        if out is not None:
            return out.copy_(found, non_blocking)
        return found.to(target, non_blocking=non_blocking).to(self.dtype)

    def read_announced(self, read: Read, reader: CachedRows, pin_memory: bool) -> torch.Tensor:
        """The rows of a read that was announced, by a reader of this tensor; otherwise as :meth:`gather`. One-sided."""
        session = self.handle.session
        session.check_thread(far=not session.world.all_near)
        found = self._memory(len(read.ids), self._dtype, accelerator_here() if pin_memory else None)
        reader.read(read, to_storage(found, self._dtype))
        return found

    def _memory(self, count: int, dtype: str, pinned: Accelerator | None) -> torch.Tensor:
        """Memory for ``count`` rows: pinned, or of the pool."""
        shape = (count, *self.rows.shape[1:])
        if pinned is not None:
            return pinned.pinned(shape, getattr(torch, dtype))
        return to_torch(self.handle.session.pool.empty(shape, storage_dtype(dtype)), dtype)

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
        self.handle.session.check_thread()
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

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> "np.ndarray[Any, Any]":
        """All rows, for numpy, and where a tensor is the index of another one. One-sided.

        Raises:
            InvalidArgumentError: numpy lacks the dtype (bfloat16), or the rows cannot be had without a copy.
        """
        if copy is False or self.dtype == torch.bfloat16:
            why = "rows are read into new memory" if copy is False else "numpy lacks bfloat16"
            raise InvalidArgumentError(f"tensor {self.name!r} cannot be an array: {why}")
        rows: np.ndarray[Any, Any] = self[:].numpy()
        return rows if dtype is None else rows.astype(dtype)

    @collective("trainers")
    def __or__(self, other: "DistTensor") -> "DistTensor":
        """Element-wise or of two masks of one policy, as a new anonymous tensor."""
        if not isinstance(other, DistTensor):
            return NotImplemented
        if (self.shape, self.rows.policy) != (other.shape, other.rows.policy):
            raise TensorMismatchError(f"cannot combine tensors of shapes {self.shape} and {other.shape}")
        result = DistTensor(self.shape, self.dtype, part_policy=self.part_policy)
        for owned in self.owned():
            mine, theirs = (tensor[owned.first : owned.last] != 0 for tensor in (self, other))
            result[owned.first : owned.last] = mine | theirs
        self.handle.session.control.call(Operation.BARRIER)
        return result

    @property
    def shape(self) -> tuple[int, ...]:
        """Full shape."""
        return self.handle.rows.shape

    @property
    def dtype(self) -> torch.dtype:
        """Element type of what is read."""
        found: torch.dtype = getattr(torch, self._dtype)
        return found

    @property
    def storage_dtype(self) -> torch.dtype:
        """Element type in the hosts' memory, in caches and between nodes: :attr:`dtype`, or a narrower one."""
        found: torch.dtype = getattr(torch, self.handle.rows.stored)
        return found

    @property
    def _dtype(self) -> str:
        return self.handle.rows.dtype if self._upcast else self.handle.rows.stored

    @property
    def name(self) -> str:
        """The name it was created with."""
        return self.handle.rows.name

    tensor_name = name

    @property
    def part_policy(self) -> PartitionPolicy:
        """Which nodes or edges the rows are."""
        session = self.handle.session
        policy = self.handle.rows.policy
        topology = session.store.graphs[self.handle.graph].topology
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
        session = self.handle.session
        part = local_part(session.world, session.store.graphs[self.handle.graph].topology.config.num_parts)
        first, last = self.part_policy._offsets[part : part + 2].tolist()
        return to_torch(rows.lend(*in_memory(session.world, rows, part, first, last)), rows.stored)

    def count_nonzero(self) -> int:
        """How many elements are not zero; it reads all rows. One-sided; every trainer can call it alone, as in DGL."""
        return sum(
            int((self[first : min(first + _BLOCK, len(self))] != 0).sum()) for first in range(0, len(self), _BLOCK)
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        """``torch.save`` saves the rows, as a tensor that ``torch.load(path, weights_only=True)`` reads. One-sided.

        All rows come into the memory of this trainer. :meth:`save` writes them from all, in the original order.
        """
        return self[:].clone().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def owned(self) -> list[OwnedRange]:
        """Return the ranges of rows that this trainer writes."""
        """Return the ranges of rows that this trainer writes."""
        return RowOwners(self.handle.session.world, self.rows.window.offsets).ranges()

    @collective("trainers")
    def close(self) -> None:
        """Free the rows now; later use of any handle to this tensor raises."""
        handle = self.handle
        if handle.closed:
            return
        handle.closed = True
        if handle.drop is not None:
            handle.drop.detach()
        if handle.key is not None and held(handle.session, handle.key) is handle:
            del handle.session.handles[handle.key]
        handle.session.control.call(Operation.FREE, numbers=[handle.rows.number])

    def __repr__(self) -> str:
        stored = f", storage_dtype={self.storage_dtype}" if self.storage_dtype != self.dtype else ""
        return f"DistTensor(name={self.name!r}, shape={self.shape}, dtype={self.dtype}{stored})"


def _check_out(
    out: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str | None
) -> None:
    if (tuple(out.shape), out.dtype) != (shape, dtype):
        raise InvalidArgumentError(f"out must be {shape} {dtype} (got {tuple(out.shape)} {out.dtype})")
    if device is not None and exact_device(device).type != out.device.type:
        raise InvalidArgumentError(f"out is on {out.device}, the rows are wanted on {device}")
