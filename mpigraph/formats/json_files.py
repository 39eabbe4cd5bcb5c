"""Files with a JSON object a line as a table: every value as text, as in csv."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mpigraph.errors import GraphDataError
from mpigraph.formats.table_pieces import Piece
from mpigraph.formats.text_values import arrow
from mpigraph.partition.chunks import UNREADABLE
from mpigraph.storage.files import open_regular

__all__ = ["JsonFiles", "json_values"]

_BATCH_ROWS = 1 << 14
_LONGEST_LINE = 1 << 24


class JsonFiles:
    """Files of records.

    Args:
        paths: the files.
    """

    lazily = False
    is_named = True

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        first = next(_records(paths[0]), (1, {}))[1]
        self.names = list(first)

    def pieces(self) -> list[Piece]:
        """Return one piece for each file."""
        return [Piece(file, 0, -1) for file in range(len(self.paths))]

    def first_row(self, piece: Piece) -> int:
        """Rows are the lines of the file, from 1."""
        return 1

    def batches(self, piece: Piece, names: Sequence[str]) -> Iterator[Any]:
        """Yield record batches of strings."""
        path = self.paths[piece.file]
        names = names or self.names[:1]  # for the number of rows
        columns: list[list[str]] = [[] for _ in names]
        for row, record in _records(path):
            for name, column in zip(names, columns, strict=True):
                if name not in record:
                    raise GraphDataError(f"{path}, row {row}: there is no {name!r}")
                column.append(_text(record[name]))
            if row % _BATCH_ROWS == 0:
                yield _batch(names, columns)
                columns = [[] for _ in names]
        if columns and columns[0]:
            yield _batch(names, columns)


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each line, from 1, and its object."""
    for row, value in _values(path):
        if not isinstance(value, dict):
            raise GraphDataError(f"{path}, row {row}: must be a JSON object (got {value!r:.60})")
        yield row, value


def _values(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number of each line, from 1, and its value."""
    row = 0
    try:
        with open(open_regular(path), encoding="utf-8-sig") as file:
            while line := file.readline(_LONGEST_LINE):
                row += 1
                if not line.isspace():
                    yield row, json.loads(line)
    except UNREADABLE as error:
        if isinstance(error, GraphDataError):
            raise
        raise GraphDataError(f"{path}, row {row}: cannot be read as JSON: {error}") from error


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value)


def _batch(names: Sequence[str], columns: Sequence[Sequence[str]]) -> Any:
    pyarrow = arrow()
    arrays = [pyarrow.array(column, pyarrow.string()) for column in columns]
    return pyarrow.RecordBatch.from_arrays(arrays, names=list(names))


def json_values(path: Path) -> list[str]:
    """Return the value in each line of a file as text."""
    return [_text(value) for _, value in _values(path)]
