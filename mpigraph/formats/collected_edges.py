"""Edges of one relation that are read a block at a time, with their values, perhaps with reverses."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from mpigraph.arrays import Array
from mpigraph.partition.chunks import GrowingFile, concatenated
from mpigraph.partition.row_arrays import RowArray

__all__ = ["CollectedEdges"]


class CollectedEdges:
    """Edges in temporary files. A context manager.

    Args:
        columns: name and dtype of each column of the rows that are added; the first two are source and destination.
        scratch: folder of the files; None for the system's.

    Raises:
        StorageError: a file cannot be written; by any method.
    """

    def __init__(self, columns: Sequence[tuple[str, str]], scratch: Path | None) -> None:
        self._names = [name for name, _ in columns]
        self._stack = ExitStack()
        self._edges, self._reverses = (
            self._stack.enter_context(GrowingFile(np.dtype(list(columns)), (), scratch)) for _ in range(2)
        )

    def __enter__(self) -> "CollectedEdges":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def __len__(self) -> int:
        """Return the number of edges, without reverses."""
        return len(self._edges)

    def add(self, rows: Array) -> None:
        """Add edges, rows of a structured array."""
        self._edges.append(rows)

    def add_reverses(self, rows: Array) -> None:
        """Add edges whose source and destination change places; all of them come after those of :meth:`add`."""
        self._reverses.append(rows)

    def finish(self) -> list[RowArray]:
        """Return source, destination and values of all edges; they stay when the files are closed."""
        edges, reverses = self._edges.finish(), self._reverses.finish()
        theirs = [self._names[1], self._names[0], *self._names[2:]]
        if not len(reverses):
            return [edges[name] for name in self._names]
        return [concatenated([edges[a], reverses[b]]) for a, b in zip(self._names, theirs, strict=True)]
