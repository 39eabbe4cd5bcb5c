"""Rows of a tensor in one ``.npy`` file, in the order in which nodes or edges had their original ids.

A trainer writes a piece of the file, or reads one. Which rows these are it hears from the trainers that own rows with
such original ids; it reads the rows from the hosts, or writes them there, some at a time. So nobody holds them all.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from mpigraph.arrays import I64
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.mpi.messages import exchange_rows
from mpigraph.partition.exchange import even_bounds, owners_of
from mpigraph.partition.npy_files import new_npy_files
from mpigraph.partition.over_mpi import MPIExchange
from mpigraph.rows.owners import RowOwners
from mpigraph.rows.row_tensor import RowTensor
from mpigraph.session.context import Session
from mpigraph.storage.contents import PartFiles, read_rows
from mpigraph.storage.files import storage_errors
from mpigraph.storage.format import node_orig_ids_name, relation_dataset_name
from mpigraph.storage.part_config import PartConfig

__all__ = ["NpyRows", "npy_path", "pieces", "write_npy"]

_BLOCK_BYTES = 16 << 20
_PLAIN = {torch.bfloat16: torch.float32}  # numpy has no such dtype


def npy_path(path: str | os.PathLike[str]) -> Path:
    """The path of a file. Raises InvalidArgumentError if its name does not end in ``.npy``."""
    found = Path(path)
    if found.suffix != ".npy":
        raise InvalidArgumentError(f"path must end in .npy (got {os.fspath(path)!r})")
    return found


@collective("trainers")
def pieces(session: Session, config: PartConfig, rows: RowTensor) -> Iterator[tuple[int, I64]]:
    """This trainer's piece of the file, in blocks: the first original id of a block, and int64[k] rows for its ids.

    Raises:
        ShardFormatError: a file of the graph with original ids cannot be read; on every trainer.
        GraphDataError: the original ids are not those from 0 on, each once; on every trainer.
    """
    doing = f"putting the rows of tensor {rows.name!r} into their original order"
    owned = RowOwners(session.world, rows.window.offsets).ranges()
    bounds = even_bounds(rows.shape[0], session.num_trainers)
    with session.world.together(doing), PartFiles(config) as files:
        dataset, offsets = _orig_ids(config, rows)
        pairs = np.empty((sum(some.last - some.first for some in owned), 2), np.int64)
        begin = 0
        for some in owned:
            found = np.empty(some.last - some.first, np.int64)
            read_rows(files, "part_graph", dataset, offsets, some.first, found)
            pairs[begin : begin + len(found), 0] = found
            pairs[begin : begin + len(found), 1] = np.arange(some.first, some.last)
            begin += len(found)
        if len(pairs) and not (0 <= pairs[:, 0].min() and pairs[:, 0].max() < rows.shape[0]):
            raise GraphDataError(f"tensor {rows.name!r} has no original order: original ids are not from 0 on")
        to = owners_of(bounds, pairs[:, 0])
        order = np.argsort(to, kind="stable")
        counts = np.bincount(to, minlength=session.num_trainers).astype(np.int64)
    received, _ = exchange_rows(session.world.trainers, np.ascontiguousarray(pairs[order]), counts)
    first, last = bounds[session.rank : session.rank + 2].tolist()
    new = np.full(last - first, -1, np.int64)
    with session.world.together(doing):
        new[received[:, 0] - first] = received[:, 1]
        if len(received) != len(new) or (new < 0).any():
            raise GraphDataError(f"tensor {rows.name!r} has no original order: an original id occurs twice")
    step = max(1, _BLOCK_BYTES // max(1, rows.window.row_bytes))
    return ((first + begin, new[begin : begin + step]) for begin in range(0, len(new), step))


def _orig_ids(config: PartConfig, rows: RowTensor) -> tuple[str, I64]:
    """The dataset of original ids, and which part has which of them."""
    policy = rows.policy
    offsets = policy.offsets(config.book)
    if policy.is_node:
        return node_orig_ids_name(config.schema.ntypes[policy.type_id]), offsets
    return relation_dataset_name(config.schema.relation_key(policy.type_id), "orig_ids"), offsets


@collective("trainers")
def write_npy(
    session: Session, path: Path, shape: tuple[int, ...], dtype: torch.dtype, blocks: Iterator[tuple[int, torch.Tensor]]
) -> None:
    """Write a file together. ``blocks``: first row in the file, and rows.

    Raises:
        StorageError: it cannot be written, or not every trainer sees the folder; on every trainer.
    """
    plain = torch.empty(0, dtype=_PLAIN.get(dtype, dtype))
    exchange = MPIExchange(session.world.trainers)
    with new_npy_files(exchange, path.parent, {path.stem: (shape, plain.numpy().dtype)}) as (_, files):
        with exchange.together(f"writing {path}"), storage_errors(path):
            for first, rows in blocks:
                files[path.stem].write(rows.to(plain.dtype).numpy(), first)


class NpyRows:
    """Rows of a file.

    Args:
        path: the file.
        shape: what it must hold.

    Raises:
        InvalidArgumentError: it is no such file, or holds another shape.
    """

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        try:
            self._rows = np.lib.format.open_memmap(path, mode="r")
            self._dtype = self._rows.dtype.newbyteorder("=")
            torch.from_numpy(np.empty(0, self._dtype))
        except (OSError, ValueError, EOFError, TypeError, AttributeError) as error:
            raise InvalidArgumentError(f"{path}: cannot read rows: {error}") from error
        if self._rows.shape != shape:
            raise InvalidArgumentError(f"{path} holds {list(self._rows.shape)}, and {list(shape)} is wanted")

    def read(self, first: int, count: int) -> torch.Tensor:
        """Some consecutive rows."""
        return torch.from_numpy(np.array(self._rows[first : first + count], self._dtype))
