"""An assignment, kept in a file until the graph is written, so that a crash meanwhile does not cost it.

The file lies in the output folder. Its name has a hash of all that the result depends on, so another graph or other
options do not take it.
"""

import os
import re
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import numpy as np

from mpigraph.arrays import I32
from mpigraph.log import get_logger
from mpigraph.storage.files import NewFile, open_regular

__all__ = ["KeptAssignment"]

_WORD = 16  # digits of the hash in the name
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
        self._graph_name = graph_name
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

    def write(self, parts: I32) -> None:
        """Keep an assignment, int32[all nodes].

        Raises:
            StorageError: it cannot be written.
        """
        with NewFile(self._path, durable=True) as file:
            file.write(_digest(parts))
            file.write(parts)

    def remove(self) -> None:
        """Remove what any run for this graph has kept, now that the graph is written."""
        ours = re.compile(re.escape(self._graph_name) + rf"\.[0-9a-f]{{{_WORD}}}\.assignment")
        with suppress(OSError):  # the graph stands
            for path in self._path.parent.iterdir():
                if ours.fullmatch(path.name.removeprefix(".").removesuffix(".tmp")):
                    path.unlink(missing_ok=True)


def _digest(parts: I32) -> bytes:
    return blake2b(parts.data, digest_size=_DIGEST).digest()
