"""Folders of checkpoints: what lies in them, where their manifests say values are, and who may write there.

A checkpoint is a folder that all trainers see::

    manifest.json         written last: without it there is no checkpoint
    <save>-<k>.h5         the file of trainer k:
                              rows/<tensor>/<range>    rows of DistTensors that it owned
                              own/<number>             its values in ``OfTrainer``
                              tensors                  the bytes of all other tensors, in the file of trainer 0

The files are shards (``storage/shard.py``) with checksums of their rows. ``<save>`` is a new word for each save, and
the identity of its files, so that files of two saves are never mixed. The manifest has a checksum of its own. Numbers,
strings and the structure of the state dict are in the manifest. Rows are saved by their ids, not by host: any number of
ranks can load them.

The first trainer lists the folder, writes manifests and removes checkpoints.
"""

import fcntl
import json
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpigraph.arrays import Array
from mpigraph.checkpoint.state_tree import Tree
from mpigraph.collective import collective
from mpigraph.distgraph.dtypes import to_torch
from mpigraph.errors import InvalidArgumentError, OtherVersionError, ShardFormatError, StorageError
from mpigraph.log import get_logger
from mpigraph.mpi.agree import allgather_bytes, same, share_bytes, together
from mpigraph.mpi.deadlines import WAITS
from mpigraph.mpi.messages import Comm
from mpigraph.storage.files import NewFile, checksum, read_text, temporary_name
from mpigraph.storage.format import storage_dtype

MANIFEST = "manifest.json"
_FILE = re.compile(r"([0-9a-f]{12})-([0-9]+)\.h5")
GRAPH = "checkpoint"  # stands where shards have the name of their graph
TENSORS = "tensors"
_VERSION = 5
_WRITER = ".mpigraph-writer"
_RECORD = 1024  # bytes of that file
_PATIENCE = 60.0  # seconds to wait for a lock that other processes hold for milliseconds
_BLOCK = 64 << 20  # bytes that travel to the other trainers at a time
_UNFINISHED = temporary_name(Path(MANIFEST)).name


@dataclass(frozen=True)
class Tensor:
    """A tensor that is the same on every trainer."""

    dtype: str  # logical
    shape: list[int]

    @property
    def nbytes(self) -> int:
        """Stored bytes."""
        return math.prod(self.shape) * storage_dtype(self.dtype).itemsize


@dataclass(frozen=True)
class TensorRows:
    """A DistTensor."""

    name: str
    dtype: str  # logical
    shape: list[int]
    of: str  # which nodes or edges the rows are, "node~paper"
    identity: str  # of the partitioned graph, whose numbering of nodes and edges the rows follow
    ranges: list[list[list[int]]]  # for each trainer the ranges [first, last) of rows that it wrote


@dataclass(frozen=True)
class Own:
    """Rows of an ``OfTrainer``."""

    dtype: str  # logical
    row_shape: list[int]
    lengths: list[int]  # how many rows each trainer wrote


@dataclass(frozen=True)
class Manifest:
    """The contents of ``manifest.json``."""

    word: str  # of this save
    number: int  # greater than that of every earlier checkpoint in the folder around it
    trainers: int  # that wrote it
    state: Tree  # the state dict
    job: Tree
    tensors: list[Tensor]
    rows: list[TensorRows]
    own: list[Own]

    def file(self, trainer: int) -> str:
        """Return the name of the file of a trainer."""
        return f"{self.word}-{trainer}.h5"

    def ends(self) -> "np.ndarray[Any, Any]":
        """Return int64[number of tensors + 1], where the bytes of each tensor begin, and where those of all end."""
        return np.cumsum([0, *(tensor.nbytes for tensor in self.tensors)])

    def tensors_in(self, data: Array) -> Callable[[int], torch.Tensor]:
        """Return a function that copies the tensor of a number from the bytes of all of them, uint8[n]."""
        ends = self.ends()

        def copy(number: int) -> torch.Tensor:
            tensor = self.tensors[number]
            stored = np.frombuffer(bytearray(data[ends[number] : ends[number + 1]]), storage_dtype(tensor.dtype))
            return to_torch(stored.reshape(tensor.shape), tensor.dtype)

        return copy

    def content(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return vars(self) | {name: [vars(item) for item in getattr(self, name)] for name in _LISTS}

    @classmethod
    def of(cls, content: dict[str, Any]) -> "Manifest":
        """Return the manifest with some :meth:`content`."""
        return cls(**content | {name: [kind(**item) for item in content[name]] for name, kind in _LISTS.items()})

    def write(self, directory: Path) -> None:
        """Write it into a folder; the checkpoint there becomes this one. Raises StorageError."""
        content = {"version": _VERSION, **self.content()}
        with NewFile(directory / MANIFEST, durable=True) as file:
            file.write(json.dumps(content | {"checksum": checksum(content)}).encode() + b"\n")

    @classmethod
    def read(cls, directory: Path) -> "Manifest":
        """Read the manifest of a checkpoint. Raises ShardFormatError: it is missing, damaged or of another version."""
        path = directory / MANIFEST
        try:
            content = json.loads(read_text(path))
        except OSError as error:
            raise ShardFormatError(f"{path}: cannot read the manifest of a checkpoint: {error.strerror}") from error
        except ValueError as error:
            raise ShardFormatError(f"{path}: damaged manifest: {error}") from error
        if not isinstance(content, dict) or content.pop("checksum", None) != checksum(content):
            raise ShardFormatError(f"{path}: damaged, or not the manifest of a checkpoint: its checksum does not match")
        version = content.pop("version")
        if version != _VERSION:
            raise OtherVersionError(
                f"{path}: a checkpoint of version {version}, and this library reads {_VERSION}: go on with the library "
                "that wrote it, or with another folder of checkpoints"
            )
        return cls.of(content)


_LISTS = {"tensors": Tensor, "rows": TensorRows, "own": Own}


class Peers:
    """One thread of every trainer, which has the communicator for itself.

    Attributes:
        rank, size: the number of this trainer, and of all.
        leads: this is the first trainer.
    """

    def __init__(self, comm: Comm) -> None:
        """Begin."""
        self._comm = comm
        self.rank, self.size, self.leads = comm.rank, comm.size, comm.rank == 0

    @collective("trainers")
    def together(self, doing: str) -> AbstractContextManager[None]:
        """Run local code; if it raised on any trainer, raise on every trainer."""
        return together(self._comm, doing, "trainer", meets=True)

    @collective("trainers")
    def gather(self, doing: str, value: object) -> list[Any]:
        """Return the JSON values of all trainers, in the order of their ranks."""
        with WAITS.meeting(doing):
            return [json.loads(data) for data in allgather_bytes(self._comm, json.dumps(value).encode())]

    @collective("trainers")
    def on_first(self, doing: str, call: Callable[[], Any]) -> Any:
        """Return the JSON value that a call returns on the first trainer, or raise its error, on every trainer."""
        with self.together(doing):
            value = call() if self.leads else None
        return self.gather(doing, value)[0]

    @collective("trainers")
    def broadcast(self, doing: str, data: Array) -> None:
        """Give every trainer the bytes (uint8[n]) of the first one, in place."""
        with WAITS.meeting(doing):
            for begin in range(0, len(data), _BLOCK):
                block = data[begin : begin + _BLOCK]
                block[:] = np.frombuffer(share_bytes(self._comm, block.tobytes() if self.leads else b""), np.uint8)

    @collective("trainers")
    def check_same(self, doing: str, places: Mapping[str, object], remedy: str = "") -> None:
        """Raise InvalidArgumentError, on every trainer, if JSON values by place differ; names the places."""
        texts = {place: json.dumps(value) for place, value in places.items()}
        with WAITS.meeting(doing):
            same(self._comm, f"{doing}: the trainers have different state dicts{remedy}", texts, label="trainer")


def checkpoints(folder: Path, warn: bool = False) -> list[tuple[int, str, str]]:
    """Return the numbers, names and words of all checkpoints in a folder, newest first.

    Links to folders count, except where the folder itself is there too. ``warn`` logs damaged manifests, and raises
    OtherVersionError for one of another version; else both are passed over. Raises StorageError if the folder cannot be
    read.
    """
    listed: list[tuple[int, str, str]] = []
    for name in sorted(_names(folder), key=lambda name: (os.path.islink(folder / name), name)):
        try:
            manifest = Manifest.read(folder / name)
        except ShardFormatError as error:
            if warn and isinstance(error, OtherVersionError):  # else the job would begin anew
                raise
            if warn and not isinstance(error.__cause__, FileNotFoundError):
                get_logger().warning("checkpoint %s is passed over: %s", folder / name, error)
            continue
        if not os.path.islink(folder / name) or all(word != manifest.word for *_, word in listed):
            listed.append((manifest.number, name, manifest.word))
    return sorted(listed, reverse=True)


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if os.path.isdir(entry.path)]
    except FileNotFoundError:
        return []
    except OSError as error:  # an empty list would make the job begin anew
        raise StorageError(f"{folder}: cannot look for checkpoints: {error.strerror}") from error


def _belongs_to_save(name: str, except_word: str = "") -> bool:
    """Return whether a file belongs to a save other than ``except_word``."""
    match = _FILE.fullmatch(name.removeprefix(".").removesuffix(".tmp"))
    return name == _UNFINISHED or (match is not None and match[1] != except_word)


def check_vacant(directory: Path) -> None:
    """Check that a save may write into a folder.

    Raises:
        OtherVersionError: it holds a checkpoint of another version, which the save would replace.
        InvalidArgumentError: it holds files of others, and no checkpoint. Hidden files do not count.
    """
    try:
        Manifest.read(directory)
    except OtherVersionError:
        raise
    except ShardFormatError:
        names = set(os.listdir(directory)) if directory.is_dir() else set()
    else:
        return
    own = set(filter(_belongs_to_save, names))
    foreign = sorted(name for name in names - own if not name.startswith("."))
    if foreign and not (own and MANIFEST in names):
        raise InvalidArgumentError(
            f"checkpoint_id: {directory} holds {foreign[0]!r} and no checkpoint: give a folder of its own"
        )


def remove_other_saves(directory: Path, word: str) -> None:
    """Remove the files of other saves from the folder of a checkpoint."""
    with suppress(OSError):
        for name in os.listdir(directory):
            if _belongs_to_save(name, word):
                with suppress(OSError):
                    (directory / name).unlink()


def remove_checkpoints(directory: Path, names: list[str]) -> None:
    """Remove checkpoints by name beside ``directory``, and unfinished saves; links, and files of others, stay."""
    for path in (directory.parent / name for name in _names(directory.parent)):
        if path.name == directory.name or path.is_symlink():
            continue
        with suppress(OSError):
            inside = os.listdir(path)
            if MANIFEST in inside and path.name in names:
                (path / MANIFEST).unlink()  # first: without it the rest is no checkpoint
            elif MANIFEST in inside or not any(map(_belongs_to_save, inside)):
                continue
            remove_other_saves(path, "")
            path.rmdir()


class Writer:
    """A job's right to write checkpoints into a folder: of several jobs the one that came last has it.

    A job that was cut off from the network must not overwrite the checkpoints of its successor. A lock cannot prevent
    that: the file system may hold it for a node that is gone. So each job has a generation in a folder, one more than
    the largest that it finds there. A file in the folder holds the largest generation, and the generation of the job
    that writes. A job takes over from an older one, and is refused after a newer one. Jobs that only load also have a
    generation, and take over from no other. The first save makes the file; of several jobs that looked before, the
    first to save has the folder. The first trainer does all this.

    Attributes:
        whole: by the word of its save, whether a checkpoint that this job wrote or read is whole.
    """

    def __init__(self) -> None:
        """Have no generation yet."""
        self.whole: dict[str, bool] = {}
        self._token = secrets.token_hex(8)  # of the job
        self._generations: dict[Path, int] = {}

    def come(self, folder: Path) -> None:
        """Take a generation in a folder, if this job has none there."""
        known = Path(os.path.realpath(folder))
        if known in self._generations:
            return
        self._generations[known] = 1
        with suppress(OSError), _open(folder, os.O_RDONLY) as file:
            self._generations[known] += _read(file)["largest"]
        with suppress(OSError), _open(folder, os.O_RDWR) as file:  # if it is there, and may be written
            _lock(file, folder)
            record = _read(file)
            _write(file, record | {"largest": max(self._generations[known], record["largest"])})

    @contextmanager
    def holding(self, folder: Path) -> Iterator[None]:
        """Keep other jobs from beginning or ending a save in the folder, where the file system has locks.

        Raises:
            StorageError: a job that came later writes there, or the folder cannot be written.
        """
        path = folder / _WRITER
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = _open(folder, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StorageError(f"{path}: cannot write: {error.strerror}") from error
        with file:
            _lock(file, folder)
            self._claim(file, folder)
            yield

    def check(self, folder: Path) -> None:
        """Raise StorageError if :meth:`holding` would."""
        with self.holding(folder):
            pass

    def _claim(self, file: FileIO, folder: Path) -> None:
        record = _read(file)
        generation = self._generations.setdefault(Path(os.path.realpath(folder)), 1 + record["largest"])
        if record["job"] == self._token:
            return
        if record["generation"] >= generation:
            raise StorageError(
                f"{folder}: another job, which came later (generation {record['generation']}, this one has "
                f"{generation}), writes checkpoints here since {record.get('since')}, from process "
                f"{record.get('process')} on {record.get('node')}: end this job, or give each job a folder"
            )
        record |= {"job": self._token, "generation": generation, "largest": max(generation, record["largest"])}
        record |= {"node": os.uname().nodename, "process": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        try:
            _write(file, record)
        except OSError as error:
            raise StorageError(f"{folder / _WRITER}: cannot write: {error.strerror}") from error


def _open(folder: Path, flags: int) -> FileIO:
    """Open the file of generations. Raises OSError."""
    number = os.open(folder / _WRITER, flags | os.O_CLOEXEC, 0o666)
    return FileIO(number, "r" if flags == os.O_RDONLY else "r+")


def _lock(file: FileIO, folder: Path) -> None:
    """Lock a file, where the file system has locks. Raises StorageError if another process keeps the lock."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise StorageError(
                    f"{folder}: another process has held the lock of this folder for {_PATIENCE:.0f} s"
                ) from None
            time.sleep(0.01)
        except OSError:
            return
        else:
            return


def _read(file: FileIO) -> dict[str, Any]:
    """Return the record in the file of generations; zeros if it is unreadable."""
    try:
        record: dict[str, Any] = json.loads(os.pread(file.fileno(), _RECORD, 0))
        numbers = {name: int(record.get(name, 0)) for name in ("largest", "generation")}
    except (ValueError, TypeError, AttributeError, OverflowError):
        return {"largest": 0, "generation": 0, "job": None}
    return {"job": None} | record | numbers


def _write(file: FileIO, record: dict[str, Any]) -> None:
    """Overwrite the file by one write of constant size: a kill or a full disk leaves the old record or the new one."""
    os.pwrite(file.fileno(), json.dumps(record).ljust(_RECORD - 1).encode() + b"\n", 0)
    file.truncate(_RECORD)
