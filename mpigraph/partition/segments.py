"""Stretches of rows that share temporary files: open files are few, the tables that are read may be many."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import Array
from mpigraph.partition.chunks import GrowingFile

__all__ = ["Segment", "SegmentedFiles"]


class Segment:
    """Rows that follow one another in a file.

    Attributes:
        begin: the first of them.
        rows: all of them, after the file is finished.
    """

    rows: Array

    def __init__(self, file: GrowingFile) -> None:
        self._file = file
        self._length = 0
        self.begin = len(file)
        self.dtype = file.dtype
        self.row_shape = file.row_shape

    def __len__(self) -> int:
        return self._length

    def append(self, rows: Array) -> None:
        """Append rows."""
        self._file.append(rows)
        self._length += len(rows)


class SegmentedFiles:
    """The temporary files of a column, one for each dtype and shape of rows.

    Args:
        stack: closes the files.
        scratch: their folder; None for the system's.
    """

    def __init__(self, stack: ExitStack, scratch: Path | None) -> None:
        self._stack = stack
        self._scratch = scratch
        self._files: dict[tuple[np.dtype[Any], tuple[int, ...]], tuple[GrowingFile, list[Segment]]] = {}

    def grow(self, dtype: Any, row_shape: tuple[int, ...]) -> Segment:
        """Return an empty stretch of a file; the stretches before it in the same file are complete."""
        key = np.dtype(dtype), row_shape
        if key not in self._files:
            self._files[key] = self._stack.enter_context(GrowingFile(dtype, row_shape, self._scratch)), []
        file, segments = self._files[key]
        segments.append(Segment(file))
        return segments[-1]

    def finish(self) -> None:
        """Map the files, and give every stretch its rows."""
        for file, segments in self._files.values():
            whole = file.finish()
            for segment in segments:
                segment.rows = whole[segment.begin : segment.begin + len(segment)]
