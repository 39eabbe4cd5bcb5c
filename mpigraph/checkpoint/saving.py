"""Writing a checkpoint: the state dict as tensors and a tree, a file of each trainer, and one manifest for all files.

A save, the same on every trainer::

    take       the state dict as a tree and tensors; every trainer must have the same tree       main thread
    write      each trainer its file, beside what is there                                       it, or another thread
    publish    once every file is on its disk: the manifest, one in each folder that nodes see   the same
    clean      files of other saves, and checkpoints beyond ``keep``                             the same
"""

import json
import os
import secrets
import zlib
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
from mpigraph.checkpoint.job_state import of_job
from mpigraph.checkpoint.loading import is_whole, newest_first
from mpigraph.checkpoint.manifest import GRAPH, SMALL, File, Manifest, Own, Tensor, TensorRows, file_name
from mpigraph.checkpoint.peers import Peers
from mpigraph.checkpoint.state_tree import Leaves, encode
from mpigraph.collective import collective
from mpigraph.distgraph.dtypes import dtype_name, to_storage
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import CollectiveError, InvalidArgumentError, MPIGraphError, StorageError
from mpigraph.mpi.agree import everywhere
from mpigraph.rows.owners import RowOwners
from mpigraph.rows.pool import RowPool
from mpigraph.rows.row_tensor import Copying
from mpigraph.session.context import OfTrainer, Session
from mpigraph.storage.shard import DatasetWriter, ShardWriter

_BLOCK = 8 << 20  # bytes that are written at a time
_BLOCK_BESIDE = 1 << 20  # the same beside training, which waits for the interpreter meanwhile
_SMALL_BYTES = 1 << 16  # of a tensor: a dataset of its own takes more time than that many bytes


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
        self._leaves = Leaves()
        main = Peers(session.world)
        with main.together(self.doing):
            tree = encode(state_dict, self._leaves)
            tensors = [_describe_tensor(tensor) for tensor in self._leaves.tensors]
            rows = [self._describe(tensor) for tensor in self._leaves.rows]
            text = json.dumps([tree, *map(vars, tensors), *map(vars, rows)])
            job = encode(of_job(session), self._leaves, "the job's state")
            lent = [number for number, tensor in enumerate(self._leaves.rows) if tensor.rows.lent]
            report = {"name": directory.name, "lent": lent}
            if session.rank == 0:
                report |= {"word": secrets.token_hex(6), "job": job}
        self._check_alike(main, text)
        writer.come(main, self.doing, directory.parent)
        reports = main.gather(self.doing, report)
        _check_one_name([report["name"] for report in reports])
        first = reports[0]
        self._manifest = Manifest(first["word"], 0, tree, first["job"], tensors, rows, own=[], files=[])
        self._copies = copies
        self._copying = None if copies is None else Copying()
        try:
            with main.together(self.doing):
                self._datasets = list(self._take(set().union(*(report["lent"] for report in reports))))
        except BaseException:  # on every trainer, for example a lack of memory
            if self._copying is not None:
                self._copying.end()
            raise
        self._leaves = Leaves()

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
        world = self._session.world
        leads = world.local_trainer == 0
        word = self._manifest.word
        published = False
        token = self._directory / folder.token_name(word, world.node_index)
        path = self._directory / file_name(word, self._session.rank)
        try:
            with peers.together(self.doing):
                if leads:
                    self._begin(token)
            with peers.together(self.doing):
                report = self._write(path)
                report["place"] = self._place()
                report["number"] = folder.newest_number(self._directory.parent) if leads else 0
            manifest = self._complete(peers.gather(self.doing, report))
            speaks = leads and manifest.files[self._session.rank].place == world.node_index  # for a folder
            with peers.together(self.doing):
                if speaks:
                    self._publish(manifest)
                    published = True
        except MPIGraphError:  # on every trainer
            if not any(peers.gather(self.doing, published)):  # else one manifest makes a checkpoint of all files
                with suppress(OSError):
                    path.unlink()
            raise
        finally:
            if leads:
                with suppress(OSError):
                    token.unlink()
            with suppress(OSError):
                self._directory.rmdir()  # if nothing was saved, it is empty once the last trainer has come here
        self._writer.whole[word] = True
        old = self._old(peers)
        with peers.together(self.doing):
            if speaks:
                with self._writer.holding(self._directory.parent):
                    folder.remove_other_saves(self._directory, word)
                    if old is not None:
                        folder.remove_checkpoints(self._directory, old)

    @collective("trainers")
    def _old(self, peers: Peers) -> list[str] | None:
        """Return the names of the checkpoints to remove, None if all are kept; damaged ones do not count as kept."""
        if self._keep is None:
            return None
        around, old, to_keep = self._directory.parent, [], self._keep - 1
        for name, word in newest_first(peers, around, self.doing, links=False):
            if name == self._directory.name:
                continue
            if not to_keep:
                old.append(name)
            elif is_whole(peers, around / name, self.doing, self._writer.whole, word, self._pause):
                to_keep -= 1
        return old

    def _check_alike(self, peers: Peers, text: str) -> None:
        difference = peers.difference(self.doing, text)
        if difference is None:
            return
        other, one, two = difference
        where, a, b = _difference(one, two, "state_dict")
        raise everywhere(
            InvalidArgumentError(
                f"{self.doing}: the trainers have different state dicts: {where} is {a} on trainer 0, and {b} on "
                f"trainer {other}; put values that differ between trainers into OfTrainer"
            )
        )

    def _describe(self, tensor: DistTensor) -> TensorRows:
        owners = RowOwners(self._session.world, tensor.rows.window.offsets)
        ranges = [[[owned.first, owned.last] for owned in owners.ranges(k)] for k in range(self._session.num_trainers)]
        of, identity = tensor.part_policy.policy_str, tensor.graph_identity
        return TensorRows(tensor.name, tensor.rows.stored, list(tensor.shape), of, identity, ranges)

    def _take(self, lent: set[int]) -> Iterator[_Dataset]:
        """Yield the datasets of this trainer; ``lent`` numbers the tensors that a view of any trainer may write."""
        for number, tensor in enumerate(self._leaves.rows):
            tensor.rows.window.sync()
            for place, owned in enumerate(RowOwners(self._session.world, tensor.rows.window.offsets).ranges()):
                rows = tensor.rows.segment(owned.host)[owned.rows]
                if self._copies is not None and number in lent:
                    rows = _copied(rows, self._copies)
                yield f"rows/{number}/{place}", partial(_given, rows, tensor.rows.stored)
            tensor.rows.copying = self._copying
        for number, own in enumerate(self._leaves.own):
            yield f"own/{number}", partial(_own_rows, own if self._copies is None else own.copy())
        if self._session.rank == 0:
            yield from self._take_tensors()

    def _take_tensors(self) -> Iterator[_Dataset]:
        small = self._manifest.small_tensors()
        for number, dense in enumerate(self._leaves.tensors):
            if number not in small:
                tensor = dense if self._copies is None else dense.clone(memory_format=torch.contiguous_format)
                yield f"tensors/{number}", partial(_stored, tensor)
        if small:
            pack = partial(_packed, [self._leaves.tensors[number] for number in small])
            yield SMALL, pack if self._copies is None else partial(_given, *pack())

    def _begin(self, token: Path) -> None:
        """Make the folder, and put a token there that shows the other nodes that this one sees it."""
        with self._writer.holding(self._directory.parent):
            try:
                self._directory.mkdir(exist_ok=True)
                token.touch()
            except OSError as error:
                raise StorageError(f"{self._directory}: cannot write: {error.strerror}") from error

    def _place(self) -> int:
        word = self._manifest.word
        for node in range(self._session.world.num_nodes):
            if os.path.exists(self._directory / folder.token_name(word, node)):
                return node
        raise StorageError(f"{self._directory}: the files that this node wrote there a moment ago are gone")

    def _write(self, path: Path) -> dict[str, Any]:
        own = []
        crcs = []
        with ShardWriter(path, GRAPH, self._session.rank, self._manifest.word, durable=True) as writer:
            while self._datasets:
                name, make = self._datasets.pop(0)  # a copy is freed once it is written
                rows, dtype = make()
                if name.startswith("own/"):
                    own.append([dtype, list(rows.shape[1:]), len(rows)])
                if name == SMALL:
                    crcs = [zlib.crc32(rows[where].data) for where in self._manifest.small_tensors().values()]
                self._write_rows(writer.create(name, rows.shape, dtype), rows)
        report = {"own": own, "crcs": crcs, "seal": writer.seal}
        return report | {"nbytes": path.stat().st_size, "node": os.uname().nodename}

    def _write_rows(self, out: DatasetWriter, rows: Array) -> None:
        row_bytes = max(1, rows.itemsize * int(np.prod(rows.shape[1:], dtype=np.int64)))
        step = max(1, (_BLOCK if self._copies is None else _BLOCK_BESIDE) // row_bytes)
        for begin in range(0, len(rows), step):
            out.write(rows[begin : begin + step])
            self._pause()

    def _complete(self, reports: list[dict[str, Any]]) -> Manifest:
        owns = []
        for number, (dtype, row_shape, _) in enumerate(reports[0]["own"]):
            for k, report in enumerate(reports):
                if report["own"][number][:2] != [dtype, row_shape]:
                    raise everywhere(
                        CollectiveError(
                            f"{self.doing}: an OfTrainer has rows {dtype}{row_shape} on trainer 0 and "
                            f"{report['own'][number][0]}{report['own'][number][1]} on trainer {k}"
                        )
                    )
            owns.append(Own(dtype, row_shape, [report["own"][number][2] for report in reports]))
        files = [File(r["seal"], r["nbytes"], r["node"], r["place"]) for r in reports]
        number = 1 + max(report["number"] for report in reports)
        tensors = list(self._manifest.tensors)
        for small, crc in zip(self._manifest.small_tensors(), reports[0]["crcs"], strict=True):
            tensors[small] = replace(tensors[small], crc=crc)
        return replace(self._manifest, number=number, tensors=tensors, own=owns, files=files)

    def _publish(self, manifest: Manifest) -> None:
        """Write the manifest once every file of this folder is seen."""
        place = self._session.world.node_index
        for k, file in enumerate(manifest.files):
            path = self._directory / manifest.file(k)
            if file.place == place and (not path.exists() or path.stat().st_size != file.nbytes):
                raise StorageError(f"{path}: trainer {k} wrote it, but node {file.node} does not see it")
        with self._writer.holding(self._directory.parent):
            manifest.write(self._directory)


def _check_one_name(names: list[str]) -> None:
    other = next((k for k, name in enumerate(names) if name != names[0]), None)
    if other is not None:
        raise everywhere(
            InvalidArgumentError(
                f"checkpoint_id has one name on trainer 0, and another on trainer {other}: {names[0]!r}, "
                f"{names[other]!r}"
            )
        )


def _describe_tensor(tensor: torch.Tensor) -> Tensor:
    described = Tensor(dtype_name(tensor.dtype), list(tensor.shape))
    is_small = described.nbytes <= _SMALL_BYTES  # its checksum is known once it is written
    return replace(described, crc=0) if is_small else described


def _packed(tensors: list[torch.Tensor]) -> tuple[Array, str]:
    return np.concatenate([_stored(tensor)[0].reshape(-1).view(np.uint8) for tensor in tensors]), "uint8"


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
    return _stored(rows)


def _stored(tensor: torch.Tensor) -> tuple[Array, str]:
    """Return the tensor as stored, a number as one row, and its logical dtype."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    dtype = dtype_name(tensor.dtype)
    return to_storage(plain.reshape(1) if plain.ndim == 0 else plain, dtype), dtype


def _difference(one: Any, two: Any, where: str) -> tuple[str, str, str]:
    """Return the place where two trees differ first, and both values there."""
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        for a, b in zip(one, two, strict=True):
            if a != b:
                key = a[0] if isinstance(a, list) and len(a) == 2 and a[0] == b[0] else None
                return _difference(a, b, where if key is None else f"{where}[{key!r}]")
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        for key in one:
            if one[key] != two[key]:
                return _difference(one[key], two[key], where)
    return where, repr(one)[:200], repr(two)[:200]
