"""The manifest of a checkpoint: the saved values, and where each lies.

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
"""

import hashlib
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.checkpoint.state_tree import Tree
from mpigraph.errors import OtherVersionError, ShardFormatError
from mpigraph.storage.files import NewFile, read_text
from mpigraph.storage.format import storage_dtype

MANIFEST = "manifest.json"
FILE = re.compile(r"([0-9a-f]{12})-([0-9]+)\.h5")
GRAPH = "checkpoint"  # stands where shards have the name of their graph
TENSORS = "tensors"
_FORMAT = "mpigraph-checkpoint"
_VERSION = 4


def file_name(word: str, trainer: int) -> str:
    """Return the name of the file that a trainer writes."""
    return f"{word}-{trainer}.h5"


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
        return file_name(self.word, trainer)

    def ends(self) -> "np.ndarray[Any, Any]":
        """Return int64[number of tensors + 1], where the bytes of each tensor begin, and where those of all end."""
        return np.cumsum([0, *(tensor.nbytes for tensor in self.tensors)])

    def to_text(self) -> str:
        """Return the text of the file."""
        lists = {name: [vars(item) for item in getattr(self, name)] for name in ("tensors", "rows", "own")}
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
            text = read_text(path)
        except OSError as error:
            raise ShardFormatError(f"{path}: cannot read the manifest of a checkpoint: {error.strerror}") from error
        except ValueError as error:
            raise ShardFormatError(f"{path}: damaged manifest: {error}") from error
        return cls.parse(text, path)

    @classmethod
    def parse(cls, text: str, path: Path) -> "Manifest":
        """Parse the text of a file. Raises ShardFormatError if it is damaged, of another version or something else."""
        try:
            content = json.loads(text)
        except ValueError as error:
            raise ShardFormatError(f"{path}: damaged manifest: {error}") from error
        if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
            raise ShardFormatError(f"{path}: not the manifest of a checkpoint")
        told = content.pop("checksum", None)
        if told != checksum({"format": _FORMAT, **content}):
            raise ShardFormatError(f"{path}: damaged manifest: its checksum does not match")
        version = content.pop("version")
        if version != _VERSION:
            raise OtherVersionError(
                f"{path}: a checkpoint of version {version}, and this library reads {_VERSION}: go on with the "
                "library that wrote it, or with another folder of checkpoints"
            )
        for name, kind in (("tensors", Tensor), ("rows", TensorRows), ("own", Own)):
            content[name] = [kind(**item) for item in content[name]]
        return cls(**content)


def checksum(content: dict[str, Any]) -> str:
    """Return the checksum of a manifest's content without it."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
