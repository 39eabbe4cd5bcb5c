"""Writing a checkpoint: the state dict as tensors and a tree, a file of each trainer, and one manifest for all files.

A save, the same on every trainer::

    take       the state dict as a tree and tensors; every trainer must have the same tree       main thread
    write      each trainer its file, beside what is there                                       it, or another thread
    publish    once every file is on the disk, the first trainer: the manifest                   the same
    clean      files of other saves, and checkpoints beyond ``keep``                             the same
"""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from mpigraph.arrays import Array
from mpigraph.checkpoint import folder
from mpigraph.checkpoint.folder import GRAPH, TENSORS, Manifest, Own, Peers, Tensor, TensorRows
from mpigraph.checkpoint.job_state import of_job
from mpigraph.checkpoint.loading import is_whole, newest_first
from mpigraph.checkpoint.state_tree import Leaves, encode
from mpigraph.collective import collective
from mpigraph.distgraph.dtypes import dtype_name, to_storage
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import CollectiveError, InvalidArgumentError, MPIGraphError, StorageError
from mpigraph.rows.owners import RowOwners
from mpigraph.rows.row_tensor import Copying
from mpigraph.rows.segments import RowPool
from mpigraph.session.context import OfTrainer, Session
from mpigraph.storage.shard import ShardWriter

_BLOCK = 8 << 20  # bytes that are written at a time
_BLOCK_BESIDE = 1 << 20  # the same beside training, which waits for the interpreter meanwhile


_Dataset: TypeAlias = tuple[str, Callable[[], tuple[Array, str]]]
"""A dataset of a trainer's file: its name, and a function that returns its rows as stored and their logical dtype."""


class Save:
    """One save, begun on every trainer; arguments and errors are those of :func:`.save`.

    ``copies`` is memory for copies of all tensors, so that training can go on: tensors are copied now, rows in
    :meth:`copy_rows`. None: the tensors themselves are written. ``pause`` is called after each block that was written.
    """

    @collective("trainers")
    def __init__(
        self,
        session: Session,
        writer: folder.Writer,
        state_dict: dict[str, Any],
        directory: Path,
        keep: int | None,
        copies: RowPool | None,
        pause: Callable[[], None],
    ) -> None:
        self.doing = f"saving a checkpoint to {str(directory)!r}"
        self._session = session
        self._directory = directory
        self._writer = writer
        self._keep = keep
        self._pause = pause
        leaves = Leaves()
        main = Peers(session.world.trainers)
        with main.together(self.doing):
            if main.leads:
                writer.come(directory.parent)
            tree = encode(state_dict, leaves)
            described = {"checkpoint_id": directory.name} | leaves.places
            rows = [self._describe(tensor) for tensor in leaves.rows]
            job = encode(of_job(session), leaves, "the job's state")
            lent = [number for number, tensor in enumerate(leaves.rows) if tensor.rows.lent]
        main.check_same(self.doing, described, "; put values that differ between trainers into OfTrainer")
        lent_by_any: set[int] = set().union(*main.gather(self.doing, lent))
        word, job = main.on_first(self.doing, lambda: [secrets.token_hex(6), job])
        tensors = [Tensor(dtype_name(tensor.dtype), list(tensor.shape)) for tensor in leaves.tensors]
        self._manifest = Manifest(word, 0, session.num_trainers, tree, job, tensors, rows, own=[])
        self._copies = copies
        self._copying = None if copies is None else Copying()
        try:
            with main.together(self.doing):
                self._datasets = list(self._take(leaves, lent_by_any))
        except BaseException:  # on every trainer, for example a lack of memory
            if self._copying is not None:
                self._copying.end()
            raise

    @collective("trainers")
    def copy_rows(self, peers: Peers) -> None:
        """Copy the rows; writers block until this returns."""
        assert self._copying is not None
        assert self._copies is not None
        try:
            with peers.together(self.doing):
                for i, (name, make) in enumerate(self._datasets):
                    if name.startswith("rows/"):
                        rows, dtype = make()
                        self._datasets[i] = name, partial(_given, _copied(rows, self._copies), dtype)
                self._copying.own.set()
        finally:
            self._copying.end()

    @collective("trainers")
    def run(self, peers: Peers) -> None:
        """Write the checkpoint. An older one in the folder stays until the new one is whole.

        Raises StorageError, on every trainer, if a file cannot be written, or another job writes there.
        """
        word = self._manifest.word
        path = self._directory / self._manifest.file(peers.rank)
        try:
            peers.on_first(self.doing, lambda: self._writer.check(self._directory.parent))  # no newer job writes here
            with peers.together(self.doing):
                report = self._write(path)
            reports = peers.gather(self.doing, report)
            peers.on_first(self.doing, lambda: self._publish(reports))
        except MPIGraphError:  # on every trainer
            with suppress(OSError):
                path.unlink()
            raise
        finally:
            with suppress(OSError):
                self._directory.rmdir()  # if nothing was saved, it is empty once the last trainer has come here
        self._writer.whole[word] = True
        old = self._old(peers)
        peers.on_first(self.doing, lambda: self._clean(old))

    def _clean(self, old: list[str] | None) -> None:
        with self._writer.holding(self._directory.parent):
            folder.remove_other_saves(self._directory, self._manifest.word)
            if old is not None:
                folder.remove_checkpoints(self._directory, old)

    @collective("trainers")
    def _old(self, peers: Peers) -> list[str] | None:
        """Return the names of the checkpoints to remove, None if all are kept; damaged ones do not count as kept."""
        if self._keep is None:
            return None
        around, old, to_keep = self._directory.parent, [], self._keep - 1
        for name, word in newest_first(peers, around, self.doing):
            if name == self._directory.name:
                continue
            if not to_keep:
                old.append(name)
            elif is_whole(peers, around / name, self.doing, self._writer.whole, word, self._pause):
                to_keep -= 1
        return old

    def _describe(self, tensor: DistTensor) -> TensorRows:
        owners = RowOwners(self._session.world, tensor.rows.offsets)
        ranges = [[[owned.first, owned.last] for owned in owners.ranges(k)] for k in range(self._session.num_trainers)]
        of, identity = tensor.part_policy.policy_str, tensor.graph_identity
        return TensorRows(tensor.name, tensor.rows.stored, list(tensor.shape), of, identity, ranges)

    def _take(self, leaves: Leaves, lent: set[int]) -> Iterator[_Dataset]:
        """Yield the datasets of this trainer; ``lent`` numbers the tensors that a view of any trainer may write."""
        for number, tensor in enumerate(leaves.rows):
            tensor.rows.window.sync()
            for place, owned in enumerate(RowOwners(self._session.world, tensor.rows.offsets).ranges()):
                rows = tensor.rows.segment(owned.host)[owned.rows]
                if self._copies is not None and number in lent:
                    rows = _copied(rows, self._copies)
                yield f"rows/{number}/{place}", partial(_given, rows, tensor.rows.stored)
            tensor.rows.copying = self._copying
        for number, own in enumerate(leaves.own):
            yield f"own/{number}", partial(_own_rows, own if self._copies is None else own.copy())
        if self._session.rank == 0:
            make = partial(_packed, leaves.tensors)
            yield TENSORS, make if self._copies is None else partial(_given, *make())

    def _write(self, path: Path) -> dict[str, Any]:
        """Write this trainer's file; return its size and what its OfTrainer values are."""
        own = []
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{self._directory}: cannot write: {error.strerror}") from error
        step = _BLOCK if self._copies is None else _BLOCK_BESIDE
        with ShardWriter(path, GRAPH, self._session.rank, self._manifest.word, durable=True) as writer:
            while self._datasets:
                name, make = self._datasets.pop(0)  # a copy is freed once it is written
                rows, dtype = make()
                if name.startswith("own/"):
                    own.append([dtype, list(rows.shape[1:]), len(rows)])
                out = writer.create(name, rows.shape, dtype)
                row_bytes = max(1, rows.itemsize * int(np.prod(rows.shape[1:], dtype=np.int64)))
                for begin in range(0, len(rows), count := max(1, step // row_bytes)):
                    out.write(rows[begin : begin + count])
                    self._pause()
        return {"own": own, "nbytes": path.stat().st_size, "node": os.uname().nodename}

    def _publish(self, reports: list[dict[str, Any]]) -> None:
        """Write the manifest, once the files of all trainers are seen here."""
        own = []
        for number, (dtype, row_shape, _) in enumerate(reports[0]["own"]):
            there = [report["own"][number] for report in reports]
            for k, (other_dtype, other_shape, _) in enumerate(there):
                if (other_dtype, other_shape) != (dtype, row_shape):
                    raise CollectiveError(
                        f"an OfTrainer has rows {dtype}{row_shape} on trainer 0 and {other_dtype}{other_shape} on "
                        f"trainer {k}"
                    )
            own.append(Own(dtype, row_shape, [length for *_, length in there]))
        for k, report in enumerate(reports):
            path = self._directory / self._manifest.file(k)
            if not path.exists() or path.stat().st_size != report["nbytes"]:
                raise StorageError(
                    f"{path}: trainer {k} wrote it on node {report['node']}, and node {os.uname().nodename} does not "
                    "see it: a checkpoint needs one folder that all trainers see"
                )
        with self._writer.holding(self._directory.parent):
            newest = folder.checkpoints(self._directory.parent)[:1]
            replace(self._manifest, number=1 + sum(number for number, *_ in newest), own=own).write(self._directory)


def _packed(tensors: list[torch.Tensor]) -> tuple[Array, str]:
    """Return the bytes of all tensors."""
    stored = [to_storage(_plain(tensor).reshape(-1), dtype_name(tensor.dtype)).view(np.uint8) for tensor in tensors]
    return np.concatenate([np.empty(0, np.uint8), *stored]), "uint8"


def _given(rows: Array, dtype: str) -> tuple[Array, str]:
    return rows, dtype


def _copied(rows: Array, pool: RowPool) -> Array:
    """Copy block by block, so that other threads get their turn."""
    copy = pool.empty(rows.shape, rows.dtype)
    step = max(1, _BLOCK * len(rows) // max(1, rows.nbytes))
    for begin in range(0, len(rows), step):
        copy[begin : begin + step] = rows[begin : begin + step]
    return copy


def _own_rows(own: OfTrainer) -> tuple[Array, str]:
    rows = own.rows
    if not isinstance(rows, torch.Tensor) or rows.ndim == 0:
        raise InvalidArgumentError(f"the function of an OfTrainer must return a tensor of rows (got {rows!r})")
    dtype = dtype_name(rows.dtype)
    return to_storage(_plain(rows), dtype), dtype


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
