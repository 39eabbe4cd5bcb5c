"""What an interrupted run leaves for the next one, in files beside the shards that go when the graph is written.

These are the assignment, and a record of each part that is complete::

    <graph>.<hash>.assignment    the part of each node
    <graph>.<hash>.part<number>  JSON: the seals of the part's files and what else is known of it

The hash in a name is of all that the content depends on, so another graph or other options do not take it.
"""

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import I32
from mpigraph.log import get_logger
from mpigraph.partition.identity import word_of
from mpigraph.partition.part_writer import WrittenPart
from mpigraph.storage.files import NewFile, open_regular, read_text
from mpigraph.storage.part_config import PartConfig

__all__ = [
    "KeptAssignment",
    "PartRecords",
    "bytes_recorded",
    "is_anything_left",
    "names_left",
    "remove_all",
    "sole_writer",
]

_WORD = 16  # digits of the hash in the name
_LEFT = re.compile(rf"\.?(.+)\.[0-9a-f]{{{_WORD}}}\.(assignment|part([0-9]+))(\.tmp)?")
_DIGEST = 32  # bytes at the beginning of a file: the hash of the rest


class KeptAssignment:
    """The file that keeps the assignment of a graph.

    Args:
        folder: where the graph is written.
        graph_name: the graph's name.
        word: hexadecimal digits, a hash of all that the assignment depends on.
        num_nodes: number of all nodes.
        num_parts: number of parts.
    """

    def __init__(self, folder: Path, graph_name: str, word: str, num_nodes: int, num_parts: int) -> None:
        self._path = folder / f"{graph_name}.{word[:_WORD]}.assignment"
        self._num_nodes = num_nodes
        self._num_parts = num_parts

    def read(self) -> I32 | None:
        """Return what an interrupted run has left, int32[all nodes], or None if it left nothing or it is damaged.

        A line of the log says which of both.
        """
        parts = np.empty(self._num_nodes, np.int32)
        try:
            with open(open_regular(self._path), "rb") as file:
                digest = file.read(_DIGEST)
                whole = file.readinto(parts.data) == parts.nbytes == os.fstat(file.fileno()).st_size - _DIGEST
        except FileNotFoundError:
            return None
        except OSError as error:
            get_logger().warning("%s is ignored: %s", self._path, error.strerror)
            return None
        in_range = len(parts) == 0 or 0 <= parts.min() <= parts.max() < self._num_parts
        if not whole or digest != _digest(parts) or not in_range:
            get_logger().warning("%s is ignored: it is damaged", self._path)
            return None
        get_logger().warning("the assignment of an interrupted run is taken from %s", self._path)
        return parts

    def exists(self) -> bool:
        """Return whether there is a file of this name, be it damaged."""
        return self._path.exists()

    def write(self, parts: I32) -> None:
        """Keep an assignment, int32[all nodes].

        Raises:
            StorageError: it cannot be written.
        """
        with NewFile(self._path, durable=True) as file:
            file.write(_digest(parts))
            file.write(parts)


class PartRecords:
    """The records of the parts of a graph that are complete.

    Args:
        folder: where the graph is written.
        graph_name: the graph's name.
        word: hexadecimal digits, a hash of all that the parts depend on.
    """

    def __init__(self, folder: Path, graph_name: str, word: str) -> None:
        self._folder = folder
        self._graph_name = graph_name
        self._word = word

    def read(self, part: int) -> WrittenPart | None:
        """Return what is recorded of a part, or None if nothing is or it is damaged, of which a line of the log tells.

        Its files may have changed since then.
        """
        path = self._path(part)
        try:
            found = json.loads(read_text(path))
            written = WrittenPart(found["seals"], np.array(found["num_edges"], np.int64), found["num_cut"])
            if found["checksum"] == self._checksum(part, written):
                return written
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            pass
        get_logger().warning("%s is ignored: it is damaged", path)
        return None

    def write(self, part: int, written: WrittenPart) -> None:
        """Record that a part is complete.

        Raises:
            StorageError: it cannot be written.
        """
        content = _plain(written) | {"checksum": self._checksum(part, written)}
        with NewFile(self._path(part)) as file:
            file.write((json.dumps(content) + "\n").encode())

    def remove_others(self, parts: Iterable[int]) -> None:
        """Remove all records for a graph of this name, of whatever hash, except those of some parts."""
        kept = {self._path(part) for part in parts}
        for path, name, part in _files(self._folder):
            if name == self._graph_name and part is not None and path not in kept:
                path.unlink(missing_ok=True)

    def _path(self, part: int) -> Path:
        return self._folder / f"{self._graph_name}.{self._word[:_WORD]}.part{part}"

    def _checksum(self, part: int, written: WrittenPart) -> str:
        return word_of(self._word, part, sorted(_plain(written).items()))


def is_anything_left(folder: Path, graph_name: str) -> bool:
    """Return whether an interrupted run has left anything for a graph of this name, of whatever hash."""
    return any(name == graph_name and not path.name.endswith(".tmp") for path, name, _ in _files(folder))


def names_left(folder: Path) -> set[str]:
    """Return the names of the graphs of which interrupted runs have left anything."""
    return {name for _, name, _ in _files(folder)}


def bytes_recorded(folder: Path, graph_name: str) -> int:
    """Return the size of the files of all parts that are recorded."""
    recorded = {part for _, name, part in _files(folder) if name == graph_name and part is not None}
    files = PartConfig.default_files(max(recorded, default=-1) + 1)
    paths = [folder / name for part in recorded for name in files[part].values()]
    return sum(path.stat().st_size for path in paths if path.is_file())


def remove_all(folder: Path, graph_name: str) -> None:
    """Remove what any run for a graph of this name has left, now that the graph is written."""
    with suppress(OSError):  # the graph stands
        for path, name, _ in sorted(_files(folder), key=lambda found: found[2] is None):  # assignments last
            if name == graph_name:
                path.unlink(missing_ok=True)


def sole_writer(folder: Path) -> NewFile:
    """Keep other runs from writing to a folder, until what is returned is discarded or the process ends.

    Raises:
        StorageError: another run is writing there.
    """
    return NewFile(folder / "partition", busy=f"{folder}: another run is writing to this folder")


def _files(folder: Path) -> list[tuple[Path, str, int | None]]:
    """Return what runs have left, the graph's name, and the part of which it is the record; None for an assignment."""
    left = [(path, _LEFT.fullmatch(path.name)) for path in folder.iterdir()]
    return [(path, match[1], None if match[3] is None else int(match[3])) for path, match in left if match is not None]


def _plain(written: WrittenPart) -> dict[str, Any]:
    """Return what is known of a part as JSON has it."""
    return {"seals": dict(written.seals), "num_edges": written.num_edges.tolist(), "num_cut": written.num_cut}


def _digest(parts: I32) -> bytes:
    return blake2b(parts.data, digest_size=_DIGEST).digest()
