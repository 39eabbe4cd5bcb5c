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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from mpigraph.arrays import Array
from mpigraph.checkpoint import folder
from mpigraph.checkpoint.folder import GRAPH, TENSORS, Manifest, Own, Peers, Tensor, TensorRows
from mpigraph.checkpoint.job_state import of_job
from mpigraph.checkpoint.loading import is_whole
from mpigraph.checkpoint.state_tree import Leaves, encode
from mpigraph.collective import collective
from mpigraph.distgraph.dtypes import dtype_name, to_storage
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import InvalidArgumentError, MPIGraphError, StorageError
from mpigraph.rows.owners import RowOwners
from mpigraph.rows.row_tensor import Copying
from mpigraph.rows.segments import RowPool
from mpigraph.session.context import OfTrainer, Session
from mpigraph.storage.shard import ShardWriter

_BLOCK = 8 << 20  # bytes that are written at a time
_BLOCK_BESIDE = 1 << 20  # the same beside training, which waits for the interpreter meanwhile


_Dataset: TypeAlias = tuple[str, Callable[[], tuple[Array, str]]]
"""A dataset of a trainer's file: its name, and a function that returns its rows as stored and their logical dtype."""


@dataclass
class Save:
    """One save of a job, the same on every trainer: :meth:`take` a state dict, and :meth:`run`.

    In the background, :meth:`copy_rows` comes between the two, and all else is copied when it is taken.

    Attributes:
        session, writer, directory, keep: the job, its right to write, and what :func:`.save` takes.
        copies: memory for copies of rows, so that training can go on. None: the rows themselves are written, at once.
        pause: is called after each block that was written.
    """

    session: Session
    writer: folder.Writer
    directory: Path
    keep: int | None
    copies: RowPool | None
    pause: Callable[[], None]

    def __post_init__(self) -> None:
        self.doing = f"saving a checkpoint to {str(self.directory)!r}"
        self._copying = Copying()

    @collective("trainers")
    def take(self, state_dict: dict[str, Any]) -> None:
        """Take a state dict, which the trainers compare; raises as :func:`.save` does."""
        leaves = Leaves()
        main = Peers(self.session.world.trainers)
        with main.together(self.doing):
            if main.leads:
                self.writer.come(self.directory.parent)
            tree = encode(state_dict, leaves)
            described = {"checkpoint_id": self.directory.name} | leaves.places
            rows = [self._describe(tensor) for tensor in leaves.rows]
            job = encode(of_job(self.session), leaves, "the job's state")
            lent = [number for number, tensor in enumerate(leaves.rows) if tensor.rows.lent]
        main.check_same(self.doing, described, "; put values that differ between trainers into OfTrainer")
        lent_by_any: set[int] = set().union(*main.gather(self.doing, lent))
        word, job = main.on_first(self.doing, lambda: [secrets.token_hex(6), job])
        tensors = [Tensor(dtype_name(tensor.dtype), list(tensor.shape)) for tensor in leaves.tensors]
        self._manifest = Manifest(word, 0, self.session.num_trainers, tree, job, tensors, rows, own=[])
        try:
            with main.together(self.doing):
                self._datasets = list(self._take(leaves, lent_by_any))
        except BaseException:  # on every trainer, for example a lack of memory
            self._copying.end()
            raise

    @collective("trainers")
    def copy_rows(self, peers: Peers) -> None:
        """Copy the rows; writers block until this returns."""
        assert self.copies is not None
        try:
            with peers.together(self.doing):
                for i, (name, make) in enumerate(self._datasets):
                    if name.startswith("rows/"):
                        rows, dtype = make()
                        self._datasets[i] = name, partial(_given, _copied(rows, self.copies), dtype)
                self._copying.own.set()
        finally:
            self._copying.end()

    @collective("trainers")
    def run(self, peers: Peers) -> None:
        """Write the checkpoint. An older one in the folder stays until the new one is whole.

        Raises StorageError, on every trainer, if a file cannot be written, or another job writes there.
        """
        word = self._manifest.word
        path = self.directory / self._manifest.file(peers.rank)
        try:
            peers.on_first(self.doing, lambda: self.writer.check(self.directory.parent))  # no newer job writes here
            with peers.together(self.doing):
                report = self._write(path)
            rows_of = {f"rows of OfTrainer {n}": f"{dtype}{shape}" for n, (dtype, shape, _) in enumerate(report["own"])}
            peers.check_same(self.doing, rows_of)
            reports = peers.gather(self.doing, report)
            peers.on_first(self.doing, lambda: self._publish(reports))
        except MPIGraphError:  # on every trainer
            with suppress(OSError):
                path.unlink()
            raise
        finally:
            with suppress(OSError):
                self.directory.rmdir()  # if nothing was saved, it is empty once the last trainer has come here
        self.writer.whole[word] = True
        old = self._old(peers)
        peers.on_first(self.doing, lambda: self._clean(old))

    def _clean(self, old: list[str] | None) -> None:
        with self.writer.holding(self.directory.parent):
            folder.remove_other_saves(self.directory, self._manifest.word)
            if old is not None:
                folder.remove_checkpoints(self.directory, old)

    @collective("trainers")
    def _old(self, peers: Peers) -> list[str] | None:
        """Return the names of the checkpoints to remove, None if all are kept; damaged ones do not count as kept."""
        if self.keep is None:
            return None
        around, old, to_keep = self.directory.parent, [], self.keep - 1
        for _, name, word in peers.on_first(self.doing, lambda: folder.checkpoints(around)):
            if name == self.directory.name:
                continue
            if not to_keep:
                old.append(name)
            elif is_whole(peers, around / name, self.doing, self.writer.whole, word, self.pause):
                to_keep -= 1
        return old

    def _describe(self, tensor: DistTensor) -> TensorRows:
        owners = RowOwners(self.session.world, tensor.rows.offsets)
        ranges = [[[owned.first, owned.last] for owned in owners.ranges(k)] for k in range(self.session.num_trainers)]
        of, identity = tensor.part_policy.policy_str, tensor.graph_identity
        return TensorRows(tensor.name, tensor.rows.stored, list(tensor.shape), of, identity, ranges)

    def _take(self, leaves: Leaves, lent: set[int]) -> Iterator[_Dataset]:
        """Yield the datasets of this trainer; ``lent`` numbers the tensors that a view of any trainer may write."""
        for number, tensor in enumerate(leaves.rows):
            tensor.rows.window.sync()
            for place, owned in enumerate(RowOwners(self.session.world, tensor.rows.offsets).ranges()):
                rows = tensor.rows.segment(owned.host)[owned.rows]
                if self.copies is not None and number in lent:
                    rows = _copied(rows, self.copies)
                yield f"rows/{number}/{place}", partial(_given, rows, tensor.rows.stored)
            tensor.rows.copying = self._copying if self.copies is not None else None
        for number, own in enumerate(leaves.own):
            yield f"own/{number}", partial(_own_rows, own if self.copies is None else own.copy())
        if self.session.rank == 0:
            make = partial(_packed, leaves.tensors)
            yield TENSORS, make if self.copies is None else partial(_given, *make())

    def _write(self, path: Path) -> dict[str, Any]:
        """Write this trainer's file; return its size and what its OfTrainer values are."""
        own = []
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{self.directory}: cannot write: {error.strerror}") from error
        step = _BLOCK if self.copies is None else _BLOCK_BESIDE
        with ShardWriter(path, GRAPH, self.session.rank, self._manifest.word, durable=True) as writer:
            while self._datasets:
                name, make = self._datasets.pop(0)  # a copy is freed once it is written
                rows, dtype = make()
                if name.startswith("own/"):
                    own.append([dtype, list(rows.shape[1:]), len(rows)])
                out = writer.create(name, rows.shape, dtype)
                row_bytes = max(1, rows.itemsize * int(np.prod(rows.shape[1:], dtype=np.int64)))
                for begin in range(0, len(rows), count := max(1, step // row_bytes)):
                    out.write(rows[begin : begin + count])
                    self.pause()
        return {"own": own, "nbytes": path.stat().st_size, "node": os.uname().nodename}

    def _publish(self, reports: list[dict[str, Any]]) -> None:
        """Write the manifest, once the files of all trainers are seen here."""
        for k, report in enumerate(reports):
            path = self.directory / self._manifest.file(k)
            if not path.exists() or path.stat().st_size != report["nbytes"]:
                raise StorageError(
                    f"{path}: trainer {k} wrote it on node {report['node']}, and node {os.uname().nodename} does not "
                    "see it: a checkpoint needs one folder that all trainers see"
                )
        by_number = zip(*(report["own"] for report in reports), strict=True)
        own = [Own(of[0][0], of[0][1], [length for *_, length in of]) for of in by_number]
        with self.writer.holding(self.directory.parent):
            newest = folder.checkpoints(self.directory.parent)[:1]
            number = 1 + sum(number for number, *_ in newest)
            replace(self._manifest, number=number, own=own).write(self.directory)


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
