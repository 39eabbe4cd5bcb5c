"""Writers of columns of text: what a column's values are is found out block by block, and kept in temporary files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpigraph.errors import GraphDataError
from mpigraph.formats.segments import Segment
from mpigraph.formats.text_values import (
    Place,
    Values,
    are_floats,
    arrow,
    as_text,
    bytes_of,
    ids_of,
    values_as,
    values_of,
)

__all__ = ["GrowSegment", "IdWriter", "NumberWriter", "Part"]

GrowSegment = Callable[[Any, tuple[int, ...]], Segment]
"""Makes an empty stretch of a temporary file for rows of a dtype and shape."""


@dataclass
class Part:
    """A stretch of rows of one kind, which grows.

    Attributes:
        kind: "integer", "float", "bool", "time", "list", "string", "none", or a dtype that the user has named.
        segments: where the rows lie; of text their ends and bytes; nothing if there are no numbers.
        length: number of rows.
        missing: the first of them without a value, where its kind cannot say so; -1 if there is none.
    """

    kind: str
    segments: list[Segment]
    length: int = 0
    missing: int = -1

    def described(self, number: Mapping[int, int]) -> tuple[str, int, int, list[tuple[int, int, int]]]:
        """Return kind, length, missing row, and where its rows lie: number of the file, begin, end."""
        places = [(number[id(its.file)], its.begin, its.begin + len(its)) for its in self.segments]
        return self.kind, self.length, self.missing, places


class IdWriter:
    """Keeps the ids of a piece: integers as long as there are no others, then text.

    Args:
        grow: returns a new temporary file of a dtype and shape of rows.
        dtype: "string" to keep integers as text, too; an integer dtype to have ``007`` read as 7; else "".
        trims: whether blanks around ids do not count.

    Attributes:
        parts: what was added.
    """

    def __init__(self, grow: GrowSegment, dtype: str, trims: bool) -> None:
        self._grow = grow
        self._dtype = dtype
        self._trims = trims
        self.parts: list[Part] = []

    def add(self, columns: Sequence[tuple[Any, Place]]) -> None:
        """Add a block of one column."""
        ((column, place),) = columns
        text = column.cast(arrow().string()).fill_null("")
        if self._dtype not in ("", "string"):
            ids = values_as(np.dtype(np.int64), text, place)
        else:
            ids = ids_of(text, self._trims, self._dtype == "string")
        if isinstance(ids, np.ndarray):
            if not self.parts or self.parts[-1].kind == "integer":
                self._part("integer", np.int64).segments[0].append(ids)
                self.parts[-1].length += len(ids)
                return
            ids = as_text(ids)
        elif self._dtype != "string" and are_floats(ids):
            raise GraphDataError(
                f"{place(0)}: ids must be integers or text (got {ids[0].as_py()}); "
                "--types COLUMN=string takes them as text"
            )
        part = self._part("string", np.int64, np.uint8)
        block_ends, block = bytes_of(ids)
        part.segments[0].append(len(part.segments[1]) + block_ends)
        part.segments[1].append(block)
        part.length += len(block_ends)

    def _part(self, kind: str, *dtypes: Any) -> Part:
        if not self.parts or self.parts[-1].kind != kind:
            self.parts.append(Part(kind, [self._grow(dtype, ()) for dtype in dtypes]))
        return self.parts[-1]


class NumberWriter:
    """Keeps the values of a piece.

    Args:
        grow: returns a new temporary file of a dtype and shape of rows.
        dtype: a dtype that the user has named, or "".

    Attributes:
        parts: what was added.
    """

    def __init__(self, grow: GrowSegment, dtype: str) -> None:
        self._grow = grow
        self._dtype = dtype
        self.parts: list[Part] = []

    def add(self, columns: Sequence[tuple[Any, Place]]) -> None:
        """Add a block."""
        column, place = columns[0]
        if self._dtype == "string" or (self.parts and self.parts[-1].kind == "string"):
            values = Values("string", np.zeros(0), -1)
        elif self._dtype:
            beside = [values_as(np.dtype(self._dtype), *given) for given in columns]
            values = Values(self._dtype, beside[0] if len(beside) == 1 else np.stack(beside, 1), -1)
        else:
            values = values_of(column, place)
        part = self._part_for(values, place)
        if values.missing >= 0 and part.missing < 0:
            part.missing = part.length + values.missing
        part.length += len(column)
        for segment in part.segments:
            rows = values.rows
            if values.kind is None:
                rows = np.full((len(column), *segment.row_shape), np.nan if part.kind == "float" else 0)
            segment.append(rows)

    def _part_for(self, values: Values, place: Place) -> Part:
        """Return the stretch that a block goes to: the last one if its file can hold the block."""
        kind = values.kind or "none"
        for last in self.parts[-1:]:
            file = last.segments[0] if last.segments else None
            if last.kind == kind == "list" and file is not None and file.row_shape != values.rows.shape[1:]:
                raise GraphDataError(
                    f"{place(0)}: a list has {values.rows.shape[1]} numbers, {file.row_shape[0]} before; "
                    "--types COLUMN=string leaves the column out"
                )
            if last.kind == kind and (file is None or np.can_cast(values.rows.dtype, file.dtype, "same_kind")):
                return last
            if (kind == "none" and last.kind != "integer") or (last.kind, kind) == ("float", "integer"):
                return last
        is_stored = kind not in ("none", "string")
        self.parts.append(Part(kind, [self._grow(values.rows.dtype, values.rows.shape[1:])] if is_stored else []))
        return self.parts[-1]
