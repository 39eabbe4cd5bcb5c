"""Stretches of rows that share temporary files: open files are few, the tables that are read may be many."""

from typing import Any

import numpy as np

from mpigraph.arrays import Array
from mpigraph.formats.node_ranks import Grow
from mpigraph.partition.chunks import GrowingFile

__all__ = ["Segment", "SegmentedFiles"]


class Segment:
    """Rows that follow one another in a file.

    Attributes:
        file: where they lie.
        begin: the first of them.
    """

    def __init__(self, file: GrowingFile) -> None:
        self.file = file
        self._length = 0
        self.begin = len(file)
        self.dtype = file.dtype
        self.row_shape = file.row_shape

    def __len__(self) -> int:
        return self._length

    def append(self, rows: Array) -> None:
        """Append rows."""
        self.file.append(rows)
        self._length += len(rows)


class SegmentedFiles:
    """The temporary files of a column, one for each dtype and shape of rows.

    Args:
        grow: makes a file.
    """

    def __init__(self, grow: Grow) -> None:
        self._grow = grow
        self._files: dict[tuple[np.dtype[Any], tuple[int, ...]], GrowingFile] = {}

    def grow(self, dtype: Any, row_shape: tuple[int, ...]) -> Segment:
        """Return an empty stretch of a file; the stretches before it in the same file are complete."""
        key = np.dtype(dtype), row_shape
        if key not in self._files:
            self._files[key] = self._grow(dtype, row_shape)
        return Segment(self._files[key])

    @property
    def files(self) -> list[GrowingFile]:
        """All files."""
        return list(self._files.values())
