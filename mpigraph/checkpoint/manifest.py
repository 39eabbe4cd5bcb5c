"""The manifest of a checkpoint: the saved values, and the file and node that hold each.

A checkpoint is a folder::

    manifest.json         written last: without it there is no checkpoint
    <save>-<k>.h5         the file of trainer k:
                              rows/<tensor>/<range>    rows of DistTensors that it owned
                              own/<number>             its values in ``OfTrainer``
                              tensors/<number>         all other tensors, in the file of trainer 0
                              tensors/small            the bytes of the small ones among them, in order of number

The files are shards (``storage/shard.py``) with checksums of their rows. ``<save>`` is a new word for each save.
Each file carries it as its identity, and the manifest lists the *seal* of each file, a hash of its checksums: so files
of two saves are never mixed. The manifest has a checksum of its own. Numbers, strings, the structure of the state dict
and the checksum of each small tensor are in the manifest. Rows are saved by their ids, not by host: any number of ranks
can load them.
"""

import hashlib
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.checkpoint.state_tree import Tree, check_tree
from mpigraph.errors import InvalidArgumentError, OtherVersionError, ShardFormatError
from mpigraph.storage.files import NewFile, read_text
from mpigraph.storage.format import storage_dtype

MANIFEST = "manifest.json"
FILE = re.compile(r"([0-9a-f]{12})-([0-9]+)\.h5")
GRAPH = "checkpoint"  # stands where shards have the name of their graph
SMALL = "tensors/small"
_FORMAT = "mpigraph-checkpoint"
_VERSION = 3


def file_name(word: str, trainer: int) -> str:
    """Return the name of the file that a trainer writes."""
    return f"{word}-{trainer}.h5"


@dataclass(frozen=True)
class Tensor:
    """A tensor that is the same on every trainer."""

    dtype: str  # logical
    shape: list[int]
    crc: int | None = None  # CRC-32 of a small one, which shares the dataset SMALL; None: it has a dataset of its own

    @property
    def nbytes(self) -> int:
        """Stored bytes."""
        return _nbytes(self.dtype, self.shape)


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
class File:
    """The file of a trainer."""

    seal: str  # hash of the file's checksums
    nbytes: int
    node: str  # name of the machine
    place: int  # number of the folder in which it lies; nodes that share a folder have one number


@dataclass(frozen=True)
class Manifest:
    """The contents of ``manifest.json``."""

    word: str  # of this save
    number: int  # greater than that of every earlier checkpoint in the folder around it
    state: Tree  # the state dict
    job: Tree
    tensors: list[Tensor]
    rows: list[TensorRows]
    own: list[Own]
    files: list[File]  # by trainer

    @property
    def num_trainers(self) -> int:
        """Number of trainers that wrote it."""
        return len(self.files)

    def file(self, trainer: int) -> str:
        """Return the name of the file of a trainer."""
        return file_name(self.word, trainer)

    def small_tensors(self) -> dict[int, slice]:
        """Return the bytes of the common dataset that each small tensor has, by number."""
        by_number: dict[int, slice] = {}
        end = 0
        for number, tensor in enumerate(self.tensors):
            if tensor.crc is not None:
                by_number[number] = slice(end, end + tensor.nbytes)
                end += tensor.nbytes
        return by_number

    def to_text(self) -> str:
        """Return the text of the file."""
        lists = {name: [vars(item) for item in getattr(self, name)] for name in ("tensors", "rows", "own", "files")}
        content = {"format": _FORMAT, "version": _VERSION, **vars(self), **lists}
        return json.dumps(content | {"checksum": checksum(content)}) + "\n"

    def write(self, directory: Path) -> None:
        """Write it into a folder; the checkpoint there becomes this one. Raises StorageError."""
        with NewFile(directory / MANIFEST, durable=True) as file:
            file.write(self.to_text().encode())

    @classmethod
    def read(cls, directory: Path) -> "Manifest":
        """Read the manifest of a checkpoint. Raises ShardFormatError: it is missing, damaged or of another version."""
        path = directory / MANIFEST
        try:
            return cls.parse(read_text(path), path)
        except OSError as error:
            if isinstance(error, ShardFormatError):
                raise
            raise ShardFormatError(f"{path}: cannot read the manifest of a checkpoint: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ShardFormatError(f"{path}: damaged manifest: {error}") from error

    @classmethod
    def parse(cls, text: str, path: Path) -> "Manifest":
        """Parse the text of a file. Raises ShardFormatError if it is damaged, of another version or something else."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ShardFormatError(f"{path}: damaged manifest: {error}") from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ShardFormatError(f"{path}: not the manifest of a checkpoint")
        try:
            told, version = content.pop("checksum", None), content.get("version")
            is_sound = told == checksum(content | {"version": _VERSION})
            if type(version) is int and version != _VERSION and not is_sound:  # else only this number is damaged
                raise OtherVersionError(
                    f"{path}: a checkpoint of version {version}, and this library reads {_VERSION}: go on with the "
                    "library that wrote it, or with another folder of checkpoints"
                )
            if not is_sound or version != _VERSION:
                raise ShardFormatError(f"{path}: damaged manifest: its checksum does not match")
            return cls._of(content)
        except (RuntimeError, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise ShardFormatError(f"{path}: damaged manifest: {error!r}") from error

    @classmethod
    def _of(cls, content: dict[str, Any]) -> "Manifest":
        manifest = cls(
            word=content["word"],
            number=int(content["number"]),
            state=content["state"],
            job=content["job"],
            tensors=[Tensor(**item) for item in content["tensors"]],
            rows=[TensorRows(**item) for item in content["rows"]],
            own=[Own(**item) for item in content["own"]],
            files=[File(**item) for item in content["files"]],
        )
        if not FILE.fullmatch(file_name(manifest.word, 0)):
            raise ValueError(f"{manifest.word!r} is not the word of a save")
        if not manifest.files or not 0 <= manifest.number < 2**63:
            raise ValueError(f"{len(manifest.files)} files, and number {manifest.number}")
        for tensor in manifest.tensors:
            _check_kind(tensor.dtype, tensor.shape)
            if tensor.crc is not None and not (type(tensor.crc) is int and 0 <= tensor.crc < 2**32):
                raise ValueError(f"{tensor.crc!r} is no checksum")
        for rows in manifest.rows:
            _check_kind(rows.dtype, rows.shape)
            _check_cover(rows, manifest.num_trainers)
        for own in manifest.own:
            _check_kind(own.dtype, own.row_shape + own.lengths)
            if len(own.lengths) != manifest.num_trainers:
                raise ValueError(f"{len(own.lengths)} lengths of {manifest.num_trainers} trainers")
        _check_sizes(manifest)
        counts = {"tensor": len(manifest.tensors), "rows": len(manifest.rows), "own": len(manifest.own)}
        for tree in (manifest.state, manifest.job):
            check_tree(tree, counts)
        return manifest


def checksum(content: dict[str, Any]) -> str:
    """Return the checksum of a manifest's content without it."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _check_kind(dtype: str, sizes: list[int]) -> None:
    try:
        storage_dtype(dtype)
    except InvalidArgumentError as error:
        raise ValueError(str(error)) from error
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError(f"{sizes} are no sizes")


def _check_sizes(manifest: Manifest) -> None:
    """Raise ValueError for data larger than its file, so that a forged size cannot ask for much memory."""
    held = [sum(tensor.nbytes for tensor in manifest.tensors)] + [0] * manifest.num_trainers
    for rows in manifest.rows:
        for k, ranges in enumerate(rows.ranges):
            held[k] += _nbytes(rows.dtype, [sum(b - a for a, b in ranges), *rows.shape[1:]])
    for own in manifest.own:
        for k, length in enumerate(own.lengths):
            held[k] += _nbytes(own.dtype, [length, *own.row_shape])
    for k, (file, nbytes) in enumerate(zip(manifest.files, held, strict=False)):
        if type(file.nbytes) is not int or file.nbytes < nbytes:
            raise ValueError(f"file {k} of {file.nbytes!r} bytes does not hold {nbytes}")


def _nbytes(dtype: str, shape: list[int]) -> int:
    """Return the bytes of an array, in Python's integers, which do not overflow."""
    return math.prod(shape) * storage_dtype(dtype).itemsize


def _check_cover(rows: TensorRows, num_files: int) -> None:
    """Raise ValueError unless each row is in exactly one file."""
    ranges = sorted((a, b) for of_file in rows.ranges for a, b in of_file)
    _check_kind(rows.dtype, [size for bounds in ranges for size in bounds])
    ends = np.array([0, *(end for _, end in ranges)])
    if len(rows.ranges) != num_files or [a for a, _ in ranges] != ends[:-1].tolist() or int(ends[-1]) != rows.shape[0]:
        raise ValueError(f"the files do not hold each of {rows.shape[0]} rows of {rows.name!r} once")
