"""Tables in files: their pieces, and what all kinds of such files have in common."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from mpigraph.errors import GraphDataError
from mpigraph.storage.files import open_regular

__all__ = ["FAILURES", "Piece", "Tables", "check_names", "check_regular", "failure"]

FAILURES = (OSError, ValueError, KeyError, NotImplementedError)
"""What pyarrow raises for files that it cannot read."""


class Piece(NamedTuple):
    """Consecutive rows of a file, which one rank reads.

    Attributes:
        file: number of the file.
        begin: the first byte of a text, the first group of rows of a parquet file.
        end: one behind the last; -1 for a text that is compressed.
    """

    file: int
    begin: int
    end: int


class Tables(Protocol):
    """Files of the same columns.

    Attributes:
        paths: the files.
        names: of the columns.
        lazily: whether groups of rows can be read out of order.
    """

    paths: Sequence[Path]
    names: list[str]
    lazily: bool

    def pieces(self) -> list[Piece]:
        """Return what to read, one piece for each file."""

    def first_row(self, piece: Piece) -> int:
        """Return the number that the first row of a piece has in messages."""

    def batches(self, piece: Piece, names: Sequence[str]) -> Iterator[Any]:
        """Yield record batches of some columns."""


def check_names(path: Path, names: Sequence[str]) -> None:
    """Check that no two columns have the same name."""
    for name in names:
        if names.count(name) > 1:
            raise GraphDataError(f"{path}: there are several columns of the name {name!r}")


def check_regular(path: Path) -> None:
    """Check that a path is a file."""
    os.close(open_regular(path))


def failure(path: Path, error: Exception) -> GraphDataError:
    """Return the error of this library for one of pyarrow or of the system."""
    if isinstance(error, GraphDataError):
        return error
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return GraphDataError(f"{path}: cannot be read: {reason}")
