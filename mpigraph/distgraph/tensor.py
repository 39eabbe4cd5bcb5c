"""DistTensor: a tensor whose rows live on the hosts, one row for each node of a type or edge of a relation."""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch

from mpigraph import errors
from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.distgraph.dtypes import convert, to_storage, to_torch
from mpigraph.distgraph.new_tensor import Handle, InitFunc, TensorRequest, create, held
from mpigraph.distgraph.partition_book import PartitionPolicy, RangePartitionBook, local_part
from mpigraph.distgraph.typed_ids import to_rows
from mpigraph.graphs.accelerators import Accelerator, accelerator_here, accelerator_of
from mpigraph.graphs.in_memory import exact_device
from mpigraph.mpi.messages import exchange_rows
from mpigraph.mpi.world import World
from mpigraph.partition.exchange import even_bounds, owners_of
from mpigraph.partition.output_folder import new_npy_files
from mpigraph.partition.over_mpi import MPIExchange
from mpigraph.rows.owners import OwnedRange, RowOwners
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.session.context import Session
from mpigraph.session.control import Operation
from mpigraph.storage.contents import PartFiles, StoredRows, overlaps, read_rows
from mpigraph.storage.files import storage_errors
from mpigraph.storage.format import node_orig_ids_name, storage_dtype
from mpigraph.storage.part_config import PartConfig

_BLOCK = 1 << 16  # rows that are counted at a time
_FILE_BLOCK_BYTES = 16 << 20
_PLAIN = {torch.bfloat16: torch.float32}  # numpy has no such dtype
_CPU = torch.device("cpu")


class DistTensor:
    """A tensor spread over the hosts by rows.

    Reading is one-sided: rows of hosts on this node are plain loads, others come by a transport (``rows/``). A write is
    complete at the host when it returns; the other ranks see it after :meth:`DistGraph.barrier`. Two writers of one row
    leave one of the two rows, never a mix; reading a row while another rank writes it is the caller's race.

    A feature may be stored in 16 bits (``feat_dtype`` of :func:`.partition_graph` and :class:`.DistGraph`). Its
    rows lie in memory and caches and travel as :attr:`storage_dtype`; they are read as :attr:`dtype`, and values that
    are written are rounded.

    Once all trainers have dropped the last reference and their views, their next collective call frees the memory.

    Example:
        >>> ages = mpigraph.distributed.DistTensor((g.num_nodes(), 1), torch.float32, "ages")
        >>> ages[[0, 1]] = torch.tensor([[37.0], [41.0]])
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
            name: a name to attach to the tensor by; None makes an anonymous one.
            init_func: ``init_func(shape, dtype) -> tensor`` makes some consecutive rows; zeros if None. It is called on
                the trainers for chunks of a fixed size ``[at most 16384, *row shape]``, with torch's (CPU), numpy's and
                Python's default generators seeded by job, name and chunk and put back afterwards: so the rows do not
                depend on the number of ranks or hosts. Rows that exist under this name stay.
            part_policy: the node type or relation of the rows; inferred from ``shape[0]`` if None.
            persistent: keep the tensor until the job ends, even if all handles are dropped.
            is_gdata: accepted for DGL's scripts.
            attach: False finds a feature that came with the graph, too, by the name that it has there; as in DGL its
                names are not those of tensors made with True.

        Names count within a node type or relation, as in DGL: ``h`` of two types are two tensors.

        Raises:
            TensorMismatchError: the name exists with another shape or dtype; no type has ``shape[0]`` rows, or several
                have; an anonymous tensor cannot be persistent.
            InvalidArgumentError: another argument is not as described above.
            PartitionError: no graph is open.
            CollectiveError: ``init_func`` raised, or other trainers are in another call.

        All of these are raised on every trainer, even if only one has the reason.
        """
        self.handle = create(TensorRequest(shape, dtype, name, part_policy, init_func, persistent, attach))

    @classmethod
    @collective("trainers")
    def filled(
        cls,
        shape: Sequence[int],
        dtype: torch.dtype,
        name: str | None,
        label: str | None,
        part_policy: PartitionPolicy | None,
        init_func: InitFunc | None = None,
        kind: str = "tensor",
        check: Callable[[], object] = lambda: None,
    ) -> "DistTensor":
        """Create a tensor, or attach to the one of this name.

        ``label`` is its name in messages if it has none, which call it a ``kind``; ``check`` checks more of the
        arguments. The others are those of :class:`DistTensor`.
        """
        tensor = cls.__new__(cls)
        tensor.handle = create(TensorRequest(shape, dtype, name, part_policy, init_func), label, kind, check)
        return tensor

    @classmethod
    def of_rows(cls, session: Session, graph: str, rows: RowTensor, upcast: bool = True) -> "DistTensor":
        """Return the tensor of rows that live as long as their graph; of their stored dtype if not ``upcast``."""
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
            raise errors.ClosedError(f"tensor {self.handle.rows.name!r} was closed")
        return self.handle.rows

    @property
    def graph_name(self) -> str:
        """Name of the graph whose nodes or edges the rows are."""
        return self.handle.graph

    @property
    def graph_identity(self) -> str:
        """The identity of the graph's partitioning; nodes and edges have other ids in another one."""
        return self._config.identity

    def state_dict(self) -> dict[str, "DistTensor"]:
        """The rows, for checkpoints: ``{"rows": self}``."""
        return {"rows": self}

    def load_state_dict(self, state_dict: dict[str, "DistTensor"]) -> None:
        """Do nothing: a checkpoint has put the rows into the memory of the tensor.

        Raises:
            InvalidArgumentError: it is no state of this tensor.
        """
        errors.check_state("a tensor", state_dict, {"rows": DistTensor})
        if state_dict["rows"].rows is not self.rows:
            raise errors.InvalidArgumentError(f"{state_dict['rows']!r} is not {self!r}: copy rows by ids")

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
        session.control.call(Operation.SAVE_TENSOR)  # else a trainer that saves alone waits until the job's timeout
        with session.world.together(f"saving tensor {self.name!r}"):
            file = _npy_path(path)
        blocks = self.in_original_order()
        _write_npy(session, file, self.shape, self.dtype, ((first, self[ids]) for first, ids in blocks))

    @collective("trainers")
    def load(self, source: "str | os.PathLike[str] | RowSource") -> None:
        """Overwrite the rows with others in the original order of the nodes or edges, such as :meth:`save` writes.

        Args:
            source: the path of a ``.npy`` file, or of another kind in :data:`SOURCES`; or an object with ``shape``,
                ``dtype`` and rows by slice, such as a dataset of h5py or zarr, or an own class that reads an object
                store. Every trainer reads a piece, block by block. Values are converted to this tensor's dtype.

        Raises:
            InvalidArgumentError: it cannot be read, is of another shape, or has values that do not fit the dtype.
            ShardFormatError, GraphDataError: as in :meth:`save`.

        All of these are raised on every trainer.
        """
        session = self.handle.session
        doing = f"loading tensor {self.name!r}"
        with session.world.together(doing):
            saved = _opened(source)
            if tuple(saved.shape) != self.shape:
                raise errors.InvalidArgumentError(f"{source} holds {list(saved.shape)}, not {list(self.shape)}")
        blocks = self.in_original_order()
        with session.world.together(doing):
            for first, ids in blocks:
                self[ids] = saved[first : first + len(ids)]
        session.control.call(Operation.BARRIER)

    @collective("trainers")
    def in_original_order(self) -> Iterator[tuple[int, I64]]:
        """Return this trainer's piece of the rows in their original order: consecutive, and as long as others' pieces.

        The trainers that own the rows tell their original ids, so no trainer holds them all.

        Yields:
            The piece in blocks, each the first original id, and int64[k] the ids of its rows in this tensor.

        Raises:
            ShardFormatError, GraphDataError: as in :meth:`save`.
        """
        return _file_blocks(self.handle.session, self._config, self.rows)

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Read rows in the order of the index: :meth:`gather` into memory of the pool. One-sided."""
        return self.gather(index)

    def gather(
        self,
        index: Any,
        device: torch.device | str | None = None,
        pin_memory: bool = False,
        non_blocking: bool = False,
    ) -> torch.Tensor:
        """Read rows in the order of the index. One-sided.

        Args:
            index: int (one row, first dimension kept), slice, list, ndarray or tensor of integers, or a mask; also a
                DistTensor of these, which this rank then reads whole.
            device: where the rows are to be; the CPU if None. Rows for a GPU are collected in pinned memory first.
            pin_memory: put rows that stay on the CPU into pinned memory, which copies to a GPU need to be
                asynchronous; where torch has no GPU it makes no difference.
            non_blocking: do not wait for the copy to a GPU; the thread's current stream there makes it.

        Returns:
            [n, *row_shape].

        Raises:
            OutOfRangeError: a row does not exist.
            InvalidArgumentError: it is no index, or there is no such device.
        """
        rows = self.rows
        session = self.handle.session
        session.check_thread(remote=not session.world.all_local)
        ids = to_rows(index, len(self), rows.name)
        target = _CPU if device is None else exact_device(device)
        pinned = accelerator_here() if pin_memory and target.type == "cpu" else accelerator_of(target)
        arriving = self._dtype if target.type == "cpu" else rows.stored  # widened on the GPU, after the copy
        received = self._memory(len(ids), arriving, pinned)
        rows.gather(ids, to_storage(received, arriving))
        non_blocking = non_blocking and pinned is not None  # the pool does not know of copies in progress
        return received.to(target, non_blocking=non_blocking).to(self.dtype)

    def received(self, count: int, pin_memory: bool, read: Callable[[Array], object]) -> torch.Tensor:
        """Return ``count`` rows of the window, which ``read`` puts into memory; otherwise as :meth:`gather`."""
        session = self.handle.session
        session.check_thread(remote=not session.world.all_local)
        rows = self._memory(count, self._dtype, accelerator_here() if pin_memory else None)
        read(to_storage(rows, self._dtype))
        return rows

    def _memory(self, count: int, dtype: str, pinned: Accelerator | None) -> torch.Tensor:
        shape = (count, *self.shape[1:])
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
        shape = (len(ids), *rows.shape[1:])
        tensor = convert(values, getattr(torch, rows.dtype), f"values of tensor {rows.name!r}")
        try:
            tensor = tensor.expand(shape).contiguous()
        except RuntimeError:
            raise errors.InvalidArgumentError(
                f"values of shape {tuple(tensor.shape)} do not fit {shape} of tensor {rows.name!r}"
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
            raise errors.InvalidArgumentError(f"tensor {self.name!r} cannot be an array: {why}")
        rows: np.ndarray[Any, Any] = self[:].numpy()
        return rows if dtype is None else rows.astype(dtype)

    @collective("trainers")
    def __or__(self, other: "DistTensor") -> "DistTensor":
        """Element-wise or of two masks of one policy, as a new anonymous tensor."""
        if not isinstance(other, DistTensor):
            return NotImplemented
        if (self.shape, self.rows.policy) != (other.shape, other.rows.policy):
            raise errors.TensorMismatchError(f"cannot combine tensors of shapes {self.shape} and {other.shape}")
        result = DistTensor(self.shape, self.dtype, part_policy=self.part_policy)
        for owned in self.owned():
            block = slice(owned.first, owned.last)
            result[block] = (self[block] != 0) | (other[block] != 0)
        self.handle.session.control.call(Operation.BARRIER)
        return result

    @property
    def shape(self) -> tuple[int, ...]:
        """Full shape."""
        return self.handle.rows.shape

    @property
    def dtype(self) -> torch.dtype:
        """Element type of rows that are read."""
        return cast(torch.dtype, getattr(torch, self._dtype))

    @property
    def storage_dtype(self) -> torch.dtype:
        """Element type in the hosts' memory, in caches and between nodes: :attr:`dtype`, or a narrower one."""
        return cast(torch.dtype, getattr(torch, self.handle.rows.stored))

    @property
    def categories(self) -> tuple[str, ...]:
        """The names that the numbers 0, 1, ... of a feature of the graph stand for; empty if they stand for none.

        ``partition --categories`` numbers names in their order; a row without a name has -1.
        """
        policy = self.handle.rows.policy
        graph = self.handle.session.store.graphs[self.handle.graph]
        if graph.features.get((policy, self.name)) != self.handle.rows.number:
            return ()
        config = self._config
        if policy.is_node:
            return config.node_features[config.schema.ntypes[policy.type_id]][self.name].categories
        return config.edge_features[config.schema.relation_keys[policy.type_id]][self.name].categories

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
        """The node type or relation of the rows."""
        policy = self.handle.rows.policy
        return PartitionPolicy.of(RangePartitionBook(self._config.book, 0), policy.is_node, policy.type_id)

    @property
    def local_partition(self) -> torch.Tensor:
        """A view of the rows of the local part, ``partid2nids(pb.partid)`` of the graph's partition book ``pb``.

        Several trainers may have the same local part, as in DGL. What is written through a view, the other ranks and
        samplers see after the trainers' next collective call (:meth:`DistGraph.barrier`). As long as a view is alive
        the rows count as written at each such call, so edge weights are prepared anew each time, and their memory is
        kept: drop the view when it is no longer needed. It ends with the job (``exit_client``): take a copy before.

        Raises:
            PartitionError: the part's rows are not next to each other in the memory of one local host, which they are
                where there are as many parts as hosts; or they are stored in a narrower dtype than they are read in.
        """
        rows = self.rows
        if self._dtype != rows.stored:
            raise errors.PartitionError(
                f"tensor {rows.name!r} has no local_partition: its rows are read as {self._dtype} and stored as "
                f"{rows.stored}: read and write by ids, or open the graph with upcast=False"
            )
        world = self.handle.session.world
        part = local_part(world, self._config.num_parts)
        first, last = rows.policy.offsets(self._config.book)[part : part + 2].tolist()
        return to_torch(rows.lend(*_rows_in_memory(world, rows, part, first, last)), rows.stored)

    def count_nonzero(self) -> int:
        """Count the elements that are not zero, reading all rows. One-sided; a trainer can call it alone, as in DGL."""
        return sum(
            int((self[first : min(first + _BLOCK, len(self))] != 0).sum()) for first in range(0, len(self), _BLOCK)
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        """``torch.save`` saves the rows, as a tensor that ``torch.load(path, weights_only=True)`` reads. One-sided.

        All rows come into the memory of this trainer. :meth:`save` writes them from all, in the original order.
        """
        return self[:].clone().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    @property
    def _config(self) -> PartConfig:
        return self.handle.session.store.graphs[self.handle.graph].topology.config

    def owned(self) -> list[OwnedRange]:
        """Return the ranges of rows that this trainer writes."""
        return RowOwners(self.handle.session.world, self.rows.offsets).ranges()

    @collective("trainers")
    def close(self) -> None:
        """Free the rows now, or once no trainer has views of them; later use of any handle to this tensor raises."""
        handle = self.handle
        if handle.closed:
            return
        handle.closed = True
        if handle.drop is not None:
            handle.drop.detach()
        if handle.key is not None and held(handle.session, handle.key) is handle:
            del handle.session.handles[handle.key]
        handle.session.control.call(Operation.FREE, numbers=[handle.rows.number])
        handle.session.control.drop(handle.rows.number)  # for a later call, if views are left

    def __repr__(self) -> str:
        stored = f", storage_dtype={self.storage_dtype}" if self.storage_dtype != self.dtype else ""
        return f"DistTensor(name={self.name!r}, shape={self.shape}, dtype={self.dtype}{stored})"


def _rows_in_memory(world: World, rows: RowTensor, part: int, first: int, last: int) -> tuple[int, slice]:
    """Return the host of this node that has all rows of a part next to each other, and its rows that they are."""
    offsets = rows.offsets
    for host in np.flatnonzero(world.is_local).tolist():
        begin, end = offsets[host : host + 2].tolist()
        if begin <= first <= last <= end:
            return host, slice(first - begin, last - begin)
    raise errors.PartitionError(
        f"tensor {rows.name!r} has no local_partition: the rows of part {part}, from {first} up to {last}, are not "
        f"next to each other in the memory of one host of this node (the {len(world.hosts)} hosts hold rows from "
        f"{offsets.tolist()}): read and write by t[pb.partid2nids(pb.partid)], or use as many parts as hosts"
    )


# Rows in one .npy file, in the order of the original ids


def _npy_path(path: str | os.PathLike[str]) -> Path:
    if Path(path).suffix != ".npy":
        raise errors.InvalidArgumentError(f"path must end in .npy (got {os.fspath(path)!r})")
    return Path(path)


@collective("trainers")
def _file_blocks(session: Session, config: PartConfig, rows: RowTensor) -> Iterator[tuple[int, I64]]:
    doing = f"putting the rows of tensor {rows.name!r} into their original order"
    owned = RowOwners(session.world, rows.offsets).ranges()
    bounds = even_bounds(rows.shape[0], session.num_trainers)
    files = PartFiles(config)
    with session.world.together(doing):
        ids = np.concatenate([np.arange(part.first, part.last) for part in owned] or [np.empty(0, np.int64)])
        pairs = np.stack([np.empty_like(ids), ids], axis=1)
        begin = 0
        for part in owned:
            orig_ids = _orig_ids(files, rows, part.first, part.last)
            pairs[begin : begin + len(orig_ids), 0] = orig_ids
            begin += len(orig_ids)
        if len(pairs) and not (0 <= pairs[:, 0].min() and pairs[:, 0].max() < rows.shape[0]):
            raise errors.GraphDataError(f"tensor {rows.name!r} has no original order: original ids are not from 0 on")
        to = owners_of(bounds, pairs[:, 0])
        order = np.argsort(to, kind="stable")
        counts = np.bincount(to, minlength=session.num_trainers).astype(np.int64)
    received, _ = exchange_rows(session.world.trainers, np.ascontiguousarray(pairs[order]), counts)
    first, last = bounds[session.rank : session.rank + 2].tolist()
    new = np.full(last - first, -1, np.int64)
    with session.world.together(doing):
        new[received[:, 0] - first] = received[:, 1]
        if len(received) != len(new) or (new < 0).any():
            raise errors.GraphDataError(f"tensor {rows.name!r} has no original order: an original id occurs twice")
    step = max(1, _FILE_BLOCK_BYTES // max(1, rows.window.row_bytes))
    return ((first + begin, new[begin : begin + step]) for begin in range(0, len(new), step))


def _orig_ids(files: PartFiles, rows: RowTensor, first: int, last: int) -> I64:
    """Return int64[last - first], the original ids of rows."""
    policy, config = rows.policy, files.config
    offsets = policy.offsets(config.book)
    orig_ids = np.empty(last - first, np.int64)
    if policy.is_node:
        name = node_orig_ids_name(config.schema.ntypes[policy.type_id])
        read_rows(files, StoredRows.alone("part_graph", name, offsets), [(first, last)], orig_ids)
        return orig_ids
    at = 0
    for part, begin, end in overlaps(offsets, first, last):
        orig_ids[at : at + end - begin] = files.read_edges(policy.type_id, part, "orig_ids", begin, end)
        at += end - begin
    return orig_ids


@collective("trainers")
def _write_npy(
    session: Session, path: Path, shape: tuple[int, ...], dtype: torch.dtype, blocks: Iterator[tuple[int, torch.Tensor]]
) -> None:
    """Write a file together. ``blocks``: first row in the file, and rows."""
    plain = torch.empty(0, dtype=_PLAIN.get(dtype, dtype))
    exchange = MPIExchange(session.world.trainers)
    with new_npy_files(exchange, path.parent, {path.stem: (shape, plain.numpy().dtype)}) as (_, files):
        with exchange.together(f"writing {path}"), storage_errors(path):
            for first, rows in blocks:
                files[path.stem].write(rows.to(plain.dtype).numpy(), first)


class RowSource(Protocol):
    """Rows in their original order, that lie elsewhere."""

    @property
    def shape(self) -> tuple[int, ...]:
        """``(rows, *row_shape)``."""
        ...

    def __getitem__(self, rows: slice, /) -> Any:
        """Read consecutive rows, as an array or a tensor."""
        ...


SOURCES: dict[str, Callable[[str], RowSource]] = {".npy": partial(np.lib.format.open_memmap, mode="r")}
"""Functions that open rows, by how a path ends, or begins, such as "s3://"."""


def _opened(source: str | os.PathLike[str] | RowSource) -> RowSource:
    """Return rows, those of a path opened. Raises InvalidArgumentError if nothing can open it."""
    if not isinstance(source, str | os.PathLike):
        return source
    path = os.fspath(source)
    opener = next((opener for mark, opener in SOURCES.items() if path.endswith(mark) or path.startswith(mark)), None)
    if opener is None:
        raise errors.InvalidArgumentError(f"path must end in {' or '.join(SOURCES)} (got {path!r})")
    try:
        return opener(path)
    except (OSError, ValueError, EOFError, TypeError, AttributeError) as error:
        raise errors.InvalidArgumentError(f"{path}: cannot read rows: {error}") from error
