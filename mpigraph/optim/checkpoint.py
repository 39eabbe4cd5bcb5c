"""Save embeddings and optimizer state in a form that any number of ranks, servers and hosts can load.

A saved state is a directory::

    index.json            kind and settings of the optimizer; names, dtypes, shapes; which rows are in which file
    <save>-<k>.h5         the rows that trainer k owned: <embedding number>/<tensor>/<range number>

The files are shards (``storage/shard.py``) with their checksums; ``<save>`` is a new word each time, so that the files
of an earlier save stay whole until the new index, written last, has taken the place of theirs. Each file carries its
save's word as its identity. The index is written once trainer 0 has seen every file, so the directory must be on a file
system that all trainers share. Whatever else a killed save has left is removed by the next one.
"""

import json
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import InvalidArgumentError, MPIGraphError, ShardFormatError, StorageError
from mpigraph.mpi.agree import allgather_bytes
from mpigraph.mpi.world import TRAINERS
from mpigraph.rows.owners import OwnedRange, RowOwners
from mpigraph.session.context import Session
from mpigraph.storage.files import NewFile, read_text
from mpigraph.storage.shard import ShardReader, ShardWriter

__all__ = ["Identity", "Table", "load", "save"]

_FORMAT = "mpigraph-sparse-optimizer"
_VERSION = 2  # 1 had no identity
_INDEX = "index.json"
_GRAPH = "embeddings"  # what shards call the graph that they belong to
_FILE = re.compile(r"([0-9a-f]{12})-([0-9]+)\.h5")

Ranges = Sequence[Sequence[int]]


class Identity(NamedTuple):
    """Which optimizer it is.

    Attributes:
        kind: name of its class.
        settings: its numbers and choices, JSON values.
        fixed: the settings that must be the same where it is loaded.
    """

    kind: str
    settings: dict[str, Any]
    fixed: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """The tensors of one embedding, all with the same rows.

    Attributes:
        name: the embedding's.
        owners: who saves and loads which rows.
        tensors: its rows ("weight") and the optimizer's state, by name.
    """

    name: str
    owners: RowOwners
    tensors: dict[str, DistTensor]

    def describe(self) -> dict[str, Any]:
        """Name, dtypes and shapes, as JSON values."""
        return {"name": self.name, "tensors": {name: [t.rows.dtype, *t.shape] for name, t in self.tensors.items()}}

    def sync(self) -> None:
        """Order this process's loads and stores of rows with the other processes'."""
        for tensor in self.tensors.values():
            tensor.rows.window.sync()

    def note_write(self) -> None:
        """Note that trainers write rows, in a call that all make: copies of far rows are old from now on."""
        for tensor in self.tensors.values():
            tensor.rows.note_write()


def save(session: Session, path: str | os.PathLike[str], identity: Identity, tables: list[Table]) -> None:
    """Save tables into a directory, which is made if it does not exist.

    Raises:
        StorageError: a file cannot be written, or trainer 0 does not see it; on every trainer. What was saved before
            stays.
        InvalidArgumentError: another optimizer is saved there, which could not be loaded again; on every trainer.

    Collective on the trainers.
    """
    doing = f"saving embeddings to {os.fspath(path)!r}"
    with session.world.meeting(doing, TRAINERS):
        word = allgather_bytes(session.world.trainers, secrets.token_hex(6).encode())[0].decode()
    directory = Path(path)
    with session.world.together(doing):
        if session.rank == 0:
            _check_replaced(directory, identity, tables)
    mine = directory / _file(word, session.rank)
    try:
        with (
            session.world.together(doing),
            ShardWriter(mine, _GRAPH, session.rank, word, durable=True) as writer,
        ):
            for number, table in enumerate(tables):
                table.sync()
                for place, owned in enumerate(table.owners.ranges()):
                    for name, tensor in table.tensors.items():
                        rows = tensor.rows.segment(owned.host)[owned.rows]
                        writer.add(_dataset(number, name, place), rows, tensor.rows.dtype)
        with session.world.together(doing):
            if session.rank == 0:
                _publish(directory, word, session.num_trainers, identity, tables)
    except MPIGraphError:  # on every trainer
        with suppress(OSError):
            mine.unlink()
        raise


def load(session: Session, path: str | os.PathLike[str], identity: Identity, tables: list[Table]) -> dict[str, Any]:
    """Overwrite tables with what :func:`save` wrote; return the saved settings.

    Raises:
        ShardFormatError: a file is missing or damaged; on every trainer.
        InvalidArgumentError: it holds something else; on every trainer.

    Collective on the trainers.
    """
    doing = f"loading embeddings from {os.fspath(path)!r}"
    directory = Path(path)
    with session.world.together(doing):
        index = _Index(directory / _INDEX)
        index.check(identity, tables)
    for table in tables:
        table.note_write()
    with session.world.together(doing), ExitStack() as opened:
        readers: dict[int, ShardReader] = {}
        for table in tables:
            number, saved = index.find(table.name)
            for found in _overlaps(saved, table.owners.ranges()):
                if found.file not in readers:
                    file = directory / index.files[found.file]
                    readers[found.file] = opened.enter_context(_open(file, found.file))
                for name, tensor in table.tensors.items():
                    with tensor.rows.writing(found.host) as segment:
                        dataset = _dataset(number, name, found.place)
                        readers[found.file].read_into(dataset, segment[found.rows], found.begin)
            table.sync()
    for table in tables:
        table.sync()
    return index.settings


class _Overlap(NamedTuple):
    """Rows of one dataset that go to one host: dataset ``place`` of ``file`` from row ``begin`` on."""

    file: int
    place: int
    begin: int
    host: int
    rows: slice


def _overlaps(saved: Sequence[Ranges], owned_ranges: list[OwnedRange]) -> Iterator[_Overlap]:
    """Yield what of the saved ranges (by file) lies in the owned ones."""
    for file, ranges in enumerate(saved):
        for place, (first, last) in enumerate(ranges):
            for owned in owned_ranges:
                begin, end = max(first, owned.first), min(last, owned.last)
                if begin < end:
                    at = owned.rows.start + begin - owned.first
                    yield _Overlap(file, place, begin - first, owned.host, slice(at, at + end - begin))


def _open(path: Path, trainer: int) -> ShardReader:
    """Open the file of a trainer; it carries the word that its name begins with."""
    return ShardReader(path, _GRAPH, trainer, path.name.split("-")[0])


def _file(word: str, trainer: int) -> str:
    return f"{word}-{trainer}.h5"


def _dataset(number: int, name: str, place: int) -> str:
    return f"{number}/{name}/{place}"


def _check_replaced(directory: Path, identity: Identity, tables: list[Table]) -> None:
    """Raise InvalidArgumentError if a folder holds another optimizer; a damaged save may be replaced."""
    try:
        saved = _Index(directory / _INDEX)
    except ShardFormatError:
        return
    try:
        saved.check(identity, tables)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"another optimizer is saved there, so give each a folder: {error}") from error


def _publish(directory: Path, word: str, num_trainers: int, identity: Identity, tables: list[Table]) -> None:
    """Write the index once all files are there, then remove those of other saves."""
    files = [_file(word, k) for k in range(num_trainers)]
    for k, name in enumerate(files):
        try:
            _open(directory / name, k).close()
        except ShardFormatError as error:
            raise StorageError(
                f"trainer 0 does not see what trainer {k} wrote; is the folder shared? {error}"
            ) from error
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "kind": identity.kind,
        "settings": identity.settings,
        "embeddings": [table.describe() for table in tables],
        "files": files,
        "rows": [
            [[[owned.first, owned.last] for owned in table.owners.ranges(k)] for k in range(num_trainers)]
            for table in tables
        ],
    }
    with NewFile(directory / _INDEX, durable=True) as index:
        index.write((json.dumps(content, indent=1) + "\n").encode())
    with suppress(OSError):  # the new save stands
        for name in os.listdir(directory):
            if name not in files and _FILE.fullmatch(name.removeprefix(".").removesuffix(".tmp")):
                (directory / name).unlink(missing_ok=True)


class _Index:
    """An index file.

    Attributes:
        files: names of the files, by trainer.
        settings: of the optimizer.
    """

    def __init__(self, path: Path) -> None:
        """Read it.

        Raises:
            ShardFormatError: it is missing, damaged or something else.
        """
        self._path = path
        try:
            content = json.loads(read_text(path))
        except OSError as error:
            raise ShardFormatError(f"{path}: cannot read the index of a saved optimizer: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise ShardFormatError(f"{path}: damaged index: {error}") from error
        if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (_FORMAT, _VERSION):
            raise ShardFormatError(f"{path}: not the index of a saved optimizer of version {_VERSION}")
        try:
            self._kind = str(content["kind"])
            self.settings = dict(content["settings"])
            self.files = [_checked_name(name) for name in content["files"]]
            self._tables = {str(entry["name"]): dict(entry["tensors"]) for entry in content["embeddings"]}
            self._rows = [[[(int(a), int(b)) for a, b in ranges] for ranges in files] for files in content["rows"]]
            for kinds, saved in zip(self._tables.values(), self._rows, strict=True):
                _check_cover(saved, len(self.files), int(kinds["weight"][1]))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise ShardFormatError(f"{path}: damaged index: {error!r}") from error

    def find(self, name: str) -> tuple[int, Sequence[Ranges]]:
        """The number of an embedding, and for each file the ranges of its rows there."""
        number = list(self._tables).index(name)
        return number, self._rows[number]

    def check(self, identity: Identity, tables: list[Table]) -> None:
        """Check that this optimizer can go on from it.

        Raises:
            InvalidArgumentError: it is of another kind, or of other embeddings.
        """
        self._same("the optimizer is", self._kind, identity.kind)
        self._same("the settings are", sorted(self.settings), sorted(identity.settings))
        for name in identity.fixed:
            self._same(f"{name} is", self.settings[name], identity.settings[name])
        self._same("the embeddings are", sorted(self._tables), sorted(table.name for table in tables))
        for table in tables:
            self._same(f"embedding {table.name!r} is", self._tables[table.name], table.describe()["tensors"])

    def _same(self, what: str, saved: Any, here: Any) -> None:
        if saved != here:
            raise InvalidArgumentError(f"{self._path}: {what} {saved!r} there, and {here!r} here")


def _checked_name(name: object) -> str:
    """Return the name of a file of a save, which leads nowhere else."""
    if not isinstance(name, str) or not _FILE.fullmatch(name):
        raise ValueError(f"{name!r} is no file of a save")
    return name


def _check_cover(saved: list[list[tuple[int, int]]], num_files: int, num_rows: int) -> None:
    """Raise ValueError unless each row is in exactly one file."""
    ranges = sorted(item for ranges in saved for item in ranges)
    ends = np.array([0, *(end for _, end in ranges)])
    if len(saved) != num_files or [a for a, _ in ranges] != ends[:-1].tolist() or int(ends[-1]) != num_rows:
        raise ValueError(f"the files do not hold each of {num_rows} rows once")
