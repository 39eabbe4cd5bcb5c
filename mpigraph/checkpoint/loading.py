"""Reading a checkpoint on any number of trainers: each file by a trainer that sees it, each row by its new owner."""

import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from mpigraph.arrays import Array
from mpigraph.checkpoint import folder
from mpigraph.checkpoint.job_state import load_job
from mpigraph.checkpoint.manifest import GRAPH, MANIFEST, SMALL, Manifest, TensorRows
from mpigraph.checkpoint.peers import Peers
from mpigraph.checkpoint.state_tree import Decoder, LoadedObject, LoadRequest
from mpigraph.collective import collective
from mpigraph.distgraph.dtypes import dtype_name, to_storage, to_torch
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import InvalidArgumentError, MPIGraphError, ShardFormatError
from mpigraph.log import get_logger
from mpigraph.mpi.agree import everywhere
from mpigraph.rows.transport import nothing
from mpigraph.session.context import Session
from mpigraph.session.control import Operation
from mpigraph.storage.files import NewFile
from mpigraph.storage.format import storage_dtype
from mpigraph.storage.shard import ShardReader, fingerprint, read_chunks, seal_of

_BLOCK = 64 << 20  # bytes of a tensor that one trainer gives to the others at a time


def as_directory(checkpoint_id: str | os.PathLike[str]) -> Path:
    """Return the folder of a checkpoint. Raises InvalidArgumentError if ``checkpoint_id`` is no path."""
    try:
        text = os.fspath(checkpoint_id)
    except TypeError:
        text = ""
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidArgumentError(f"checkpoint_id must be the path of a folder (got {checkpoint_id!r})")
    return Path(os.path.abspath(text))


@collective("trainers")
def find_manifest(peers: Peers, directory: Path, doing: str) -> Manifest:
    """Return the newest manifest that any trainer sees in the folder of a checkpoint.

    Raises ShardFormatError, on every trainer, if none sees one that is whole.
    """
    error: ShardFormatError | None = None
    manifest: Manifest | None = None
    try:
        manifest = Manifest.read(directory)
    except ShardFormatError as caught:
        error = caught
    said = peers.gather(doing, {"number": manifest.number if manifest else -1, "error": str(error)})
    newest = max(range(len(said)), key=lambda k: (said[k]["number"], -k))
    if said[newest]["number"] < 0:
        raise everywhere(ShardFormatError(f"{doing} failed: {said[0]['error']}"))
    text = manifest.to_text().encode() if manifest is not None and peers.world.trainers.rank == newest else b""
    return Manifest.parse(peers.gather_bytes(doing, text)[newest].decode(), directory / MANIFEST)


class CheckpointFiles:
    """The files of a checkpoint that this trainer sees, each opened and checked once; a context manager."""

    def __init__(self, manifest: Manifest, directory: Path) -> None:
        self.manifest = manifest
        self.directory = directory
        self._open: dict[int, ShardReader] = {}
        self._stack = ExitStack()

    def sees(self, trainer: int) -> bool:
        """Return whether the file of a trainer is there."""
        return os.path.exists(self.directory / self.manifest.file(trainer))  # no errors where permission is missing

    def open(self, trainer: int) -> ShardReader:
        """Open the file of a trainer. Raises ShardFormatError if it is missing, damaged or of another save."""
        if trainer not in self._open:
            path = self.directory / self.manifest.file(trainer)
            if not self.sees(trainer):
                raise ShardFormatError(self.missing(trainer))
            reader = self._stack.enter_context(ShardReader(path, GRAPH, trainer, self.manifest.word))
            if seal_of(fingerprint(reader)) != self.manifest.files[trainer].seal:
                raise ShardFormatError(
                    f"{path}: not the file that {self.directory / MANIFEST} lists: it is of another save, or damaged"
                )
            self._open[trainer] = reader
        return self._open[trainer]

    def read_tensors(self, tensors: dict[int, torch.Tensor]) -> None:
        """Fill tensors that are the same on every trainer, by number. Raises ShardFormatError."""
        small = self.read_small() if any(self.manifest.tensors[number].crc is not None for number in tensors) else {}
        for number, tensor in sorted(tensors.items()):
            if number in small:
                _memory(tensor).reshape(-1).view(np.uint8)[:] = small[number]
            else:
                self.open(0).read_into(f"tensors/{number}", _memory(tensor))

    def read_small(self) -> dict[int, Array]:
        """Read the bytes of all small tensors, by number. Raises ShardFormatError that names a damaged one."""
        reader = self.open(0)
        small = self.manifest.small_tensors()
        path = self.directory / self.manifest.file(0)
        size = max((where.stop for where in small.values()), default=0)
        if reader.info(SMALL) != ((size,), "uint8"):
            raise ShardFormatError(f"{path}: dataset {SMALL!r} does not hold the {len(small)} tensors of the manifest")
        data = reader.read(SMALL, verify=False)  # each tensor has a checksum
        by_number = {number: data[where] for number, where in small.items()}
        for number, data_of in by_number.items():
            tensor = self.manifest.tensors[number]
            if zlib.crc32(data_of.data) != tensor.crc:
                raise ShardFormatError(f"{path}: tensor {number} is damaged: its checksum does not match")
            if tensor.dtype == "bool" and data_of.max(initial=0) > 1:
                raise ShardFormatError(f"{path}: tensor {number} contradicts itself: a bool is neither 0 nor 1")
        return by_number

    def missing(self, trainer: int) -> str:
        """Return the error text for a file that is not there."""
        file = self.manifest.files[trainer]
        path = self.directory / self.manifest.file(trainer)
        shared = all(file.place == other.place for other in self.manifest.files)
        return f"{path}: file is missing" + (
            "" if shared else f" on this node: it was written on node {file.node}, on a disk of its own; copy it here"
        )

    def __enter__(self) -> "CheckpointFiles":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


@collective("trainers")
def _readers(peers: Peers, files: CheckpointFiles, doing: str) -> list[int]:
    """Return for each file a trainer that sees it, -1 if none does; the files are spread over the trainers."""
    count = files.manifest.num_trainers
    visible = bytes(files.sees(k) for k in range(count))
    seen = np.array([list(said) for said in peers.gather_bytes(doing, visible)], np.bool_)
    readers = []
    for k in range(count):
        trainers = np.flatnonzero(seen[:, k])
        readers.append(int(trainers[k % len(trainers)]) if len(trainers) else -1)
    return readers


def _memory_of(manifest: Manifest) -> Callable[[int], torch.Tensor]:
    def memory(number: int) -> torch.Tensor:
        tensor = manifest.tensors[number]
        try:
            return torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype))
        except (RuntimeError, TypeError, OverflowError) as error:  # torch's errors for sizes beyond memory
            what = f"{tensor.dtype}{tensor.shape}"
            raise ShardFormatError(f"{manifest.file(0)}: tensor {number} is too large for memory: {what}") from error

    return memory


@collective("trainers")
def newest_first(
    peers: Peers, around: Path, doing: str, warn: bool = False, links: bool = True
) -> list[tuple[str, str]]:
    """Return the names and words of all checkpoints that any node sees in a folder, newest first.

    ``warn`` logs damaged manifests, and raises OtherVersionError for one of another version; ``links`` includes links
    to folders. Raises StorageError, on every trainer, if the folder cannot be read.
    """
    with peers.together(doing):
        leads = peers.world.local_trainer == 0
        seen = folder.checkpoints(around, warn, links) if leads else {}
    newest: dict[str, tuple[int, str]] = {}
    for node in peers.gather(doing, {name: (manifest.number, manifest.word) for name, manifest in seen.items()}):
        for name, (number, word) in node.items():
            newest[name] = max((number, word), newest.get(name, (0, "")))
    return [(name, newest[name][1]) for name in sorted(newest, key=lambda name: (newest[name], name), reverse=True)]


@collective("trainers")
def is_whole(
    peers: Peers, directory: Path, doing: str, known: dict[str, bool], word: str, pause: Callable[[], None] = nothing
) -> bool:
    """Return whether a checkpoint is whole; reads all of it unless ``known`` has the word of its save.

    A warning names the damage. ``pause`` is called after each piece that was read.
    """
    if word not in known:
        try:
            verify(peers, find_manifest(peers, directory, doing), directory, doing, pause)
        except ShardFormatError as error:  # on every trainer
            known[word] = False
            if peers.world.trainers.rank == 0:
                get_logger().warning("checkpoint %s is passed over: %s", directory, error)
        else:
            known[word] = True
    return known[word]


@collective("trainers")
def verify(peers: Peers, manifest: Manifest, directory: Path, doing: str, pause: Callable[[], None]) -> None:
    """Read all files of a checkpoint, each on one trainer that sees it, and compare them with their checksums.

    Raises ShardFormatError, on every trainer, if one is missing or damaged.
    """
    with CheckpointFiles(manifest, directory) as files:
        readers = _readers(peers, files, doing)
        with peers.together(doing):
            for k, reader in enumerate(readers):
                if reader < 0:
                    raise ShardFormatError(files.missing(k))
                if reader == peers.world.trainers.rank:
                    shard = files.open(k)
                    for name in shard.names():
                        if name == SMALL:
                            files.read_small()
                            continue
                        for _ in read_chunks(shard, name):
                            pause()


@collective("trainers")
def load(session: Session, state_dict: dict[str, Any], directory: Path) -> None:
    """Load a checkpoint into the values of a state dict; see :func:`mpigraph.checkpoint.load`."""
    doing = f"loading the checkpoint {str(directory)!r}"
    peers = Peers(session.world)
    manifest = find_manifest(peers, directory, doing)

    decoder = Decoder(_memory_of(manifest), f"the checkpoint {str(directory)!r}")
    plan = decoder.wanted
    with peers.together(doing):
        decoder.update(state_dict, manifest.state)
        job: dict[str, Any] = decoder.decode(manifest.job)
        for number, tensor in plan.rows:
            _check_rows(manifest.rows[number], tensor, doing)
    _check_alike(peers, plan, doing)
    with CheckpointFiles(manifest, directory) as files:
        _read_tensors(peers, files, plan, doing)
        with peers.together(doing):
            _read_own(session, files, plan)
        with peers.together(doing):
            for loaded in plan.objects:
                loaded.check()
        _load_or_restore(peers, [loaded for loaded in plan.objects if not loaded.waits_for_rows], doing)
        with peers.together(doing):
            for number, tensor in plan.rows:
                _read_rows(files, number, tensor)
    for _, tensor in plan.rows:
        tensor.rows.window.sync()
        tensor.rows.note_write()  # on every trainer: cached copies of remote rows are old
    session.control.call(Operation.BARRIER)  # drops data derived from rows, such as tables of edge weights
    with peers.together(doing):
        try:
            load_job(session, job)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
            raise ShardFormatError(f"{directory / MANIFEST}: damaged manifest: state of the job: {error!r}") from error
        for put in plan.put:
            put()
    for loaded in plan.objects:
        if loaded.waits_for_rows:
            with peers.together(doing):
                loaded.load()


@collective("trainers")
def _load_or_restore(peers: Peers, objects: list[LoadedObject], doing: str) -> None:
    """Load the states of objects; if one refuses, restore the states of all."""
    before: list[tuple[LoadedObject, Any]] = []
    try:
        for loaded in objects:
            with peers.together(doing):
                before.append((loaded, loaded.copied_state()))
                loaded.load()
    except MPIGraphError:  # on every trainer
        for loaded, state in before:
            if state is not None:
                loaded.target.load_state_dict(state)
        raise


@collective("trainers")
def _check_alike(peers: Peers, plan: LoadRequest, doing: str) -> None:
    numbers = [sorted(plan.tensors), [number for number, _ in plan.rows], sorted(plan.own), len(plan.objects)]
    difference = peers.difference(doing, json.dumps([plan.places, numbers]))
    if difference is None:
        return
    other, (one, _), (two, _) = difference
    places = sorted(set(one) ^ set(two))
    what = f"{places[0]} is only on trainer {0 if places[0] in one else other}" if places else "order or kinds"
    raise everywhere(InvalidArgumentError(f"{doing}: trainers 0 and {other} have different state dicts: {what}"))


def _check_rows(saved: TensorRows, tensor: DistTensor, doing: str) -> None:
    here = (tensor.rows.stored, list(tensor.shape), tensor.part_policy.policy_str)
    if here != (saved.dtype, saved.shape, saved.of):
        raise InvalidArgumentError(
            f"tensor {saved.name!r} is {saved.dtype}{saved.shape} of {saved.of!r} there, and "
            f"{here[0]}{here[1]} of {here[2]!r} here"
        )
    if saved.identity != tensor.graph_identity:
        raise InvalidArgumentError(
            f"tensor {saved.name!r} is of another partitioning of the graph, in which nodes and edges have other ids"
        )


@collective("trainers")
def _read_tensors(peers: Peers, files: CheckpointFiles, plan: LoadRequest, doing: str) -> None:
    """Read dense tensors on one trainer, which sends them to the others."""
    reader = _readers(peers, files, doing)[0]
    reads = reader == peers.world.trainers.rank
    with peers.together(doing):
        if reader < 0:
            raise ShardFormatError(files.missing(0))
        if reads:
            files.read_tensors(plan.tensors)
    if peers.world.trainers.size > 1:
        memory = [_memory(plan.tensors[number]).reshape(-1).view(np.uint8) for number in sorted(plan.tensors)]
        for pieces in _blocks(memory):
            data = peers.gather_bytes(doing, b"".join(piece.data for piece in pieces) if reads else b"")[reader]
            begin = 0
            for piece in pieces:
                piece[:] = np.frombuffer(data, np.uint8, len(piece), begin)
                begin += len(piece)


def _blocks(memory: Sequence[Array]) -> Iterator[list[Array]]:
    """Yield pieces of byte arrays, in order, about a block at a time."""
    pieces: list[Array] = []
    size = 0
    for array in memory:
        for begin in range(0, len(array), _BLOCK):
            pieces.append(array[begin : begin + _BLOCK])
            size += len(pieces[-1])
            if size >= _BLOCK:
                yield pieces
                pieces = []
                size = 0
    if pieces:
        yield pieces


def _memory(tensor: torch.Tensor) -> Array:
    """Return the memory of a tensor as stored; a number as one row."""
    return to_storage(tensor.reshape(1) if tensor.ndim == 0 else tensor, dtype_name(tensor.dtype))


def _read_own(session: Session, files: CheckpointFiles, plan: LoadRequest) -> None:
    """Read this trainer's OfTrainer rows; on another number of trainers, an even share of all rows."""
    manifest = files.manifest
    for number, rows_of in plan.own.items():
        own = manifest.own[number]
        ends = np.cumsum([0, *own.lengths])
        first, last = share(ends, session.rank, session.num_trainers)
        try:
            rows = np.empty((last - first, *own.row_shape), storage_dtype(own.dtype))
        except (MemoryError, ValueError, OverflowError) as error:
            what = f"{own.dtype}{[last - first, *own.row_shape]}"
            raise ShardFormatError(f"{files.directory / MANIFEST}: rows {number} are too large: {what}") from error
        for k in range(manifest.num_trainers):
            begin, end = max(first, int(ends[k])), min(last, int(ends[k + 1]))
            if begin < end:
                files.open(k).read_into(f"own/{number}", rows[begin - first : end - first], begin - int(ends[k]))
        rows_of.append(to_torch(rows, own.dtype))


def share(ends: "np.ndarray[Any, Any]", rank: int, trainers: int) -> tuple[int, int]:
    """Return the range of rows that a trainer gets, if the trainers that saved them ended at ``ends[1:]``."""
    if len(ends) - 1 == trainers:
        return int(ends[rank]), int(ends[rank + 1])
    total = int(ends[-1])
    return total * rank // trainers, total * (rank + 1) // trainers


def _read_rows(files: CheckpointFiles, number: int, tensor: DistTensor) -> None:
    """Read the rows that this trainer owns into the shared memory of its node."""
    for file, ranges in enumerate(files.manifest.rows[number].ranges):
        for place, (first, last) in enumerate(ranges):
            for owned in tensor.owned():
                begin, end = max(first, owned.first), min(last, owned.last)
                if begin < end:
                    at = owned.rows.start + begin - owned.first
                    with tensor.rows.writing(owned.host) as segment:
                        rows = segment[at : at + end - begin]
                        files.open(file).read_into(f"rows/{number}/{place}", rows, begin - first)


def export(checkpoint_id: str | os.PathLike[str], path: str | os.PathLike[str], name: str = "model") -> None:
    """Write one value of a checkpoint, such as a model's ``state_dict``, to a file that torch reads by itself.

    ``model.load_state_dict(torch.load(path, weights_only=True))`` then works wherever torch is: the file holds only
    tensors, numbers, strings and containers. This needs no job, no MPI, and of the checkpoint only the manifest and
    the first trainer's file.

    Args:
        checkpoint_id: the folder of the checkpoint.
        path: the file to write, usually ``.pt``.
        name: key of the value in the saved state dict. The prefix ``module.`` that DistributedDataParallel adds is
            removed. To write embeddings use :meth:`.DistEmbedding.save`.

    Raises:
        ShardFormatError: a file is missing or damaged; names it.
        InvalidArgumentError: there is no such value, or it contains rows that are spread over hosts.
        StorageError: the file cannot be written.
    """
    directory = as_directory(checkpoint_id)
    manifest = Manifest.read(directory)
    decoder = Decoder(_memory_of(manifest), f"the checkpoint {str(directory)!r}", arrays=False)
    value: Any = decoder.value(manifest.state, name)
    with CheckpointFiles(manifest, directory) as files:
        files.read_tensors(decoder.wanted.tensors)
    if decoder.wanted.own:
        raise InvalidArgumentError(
            f"{name!r} of the checkpoint {str(directory)!r} differs between trainers (it has OfTrainer)"
        )
    if _has_names(value) and _has_names(getattr(value, "_metadata", {})):
        consume_prefix_in_state_dict_if_present(value, "module.")
    with NewFile(Path(path)) as file:
        torch.save(value, file)


def _has_names(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)
