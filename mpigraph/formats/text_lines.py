"""Text files in blocks of lines, and lines of numbers as numpy's; ``.gz`` and ``.bz2`` are unpacked on the way."""

import bz2
import gzip
from collections.abc import Iterator, Sequence
from itertools import compress
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError
from mpigraph.partition.chunks import UNREADABLE
from mpigraph.storage.files import open_regular

__all__ = ["NumberBlock", "blocks_of_lines", "comments_of", "first_bytes", "number_blocks", "numbers_in"]

_BLOCK_BYTES = 16 << 20


class NumberBlock(NamedTuple):
    """Numbers of consecutive lines.

    Attributes:
        rows: a structured array with one row for each line that has numbers.
        path: the file.
        lines: the numbers of these lines in the file, from 1.
    """

    rows: Array
    path: Path
    lines: Sequence[int]

    def check(self, good: Array, what: str) -> None:
        """Raise an error about the first row that is not good.

        Args:
            good: bool[rows].
            what: what is wrong with it, for the message.

        Raises:
            GraphDataError: a row is not good; names the file and its line.
        """
        if not good.all():
            row = int(np.flatnonzero(~good)[0])
            raise GraphDataError(f"{self.path}, line {self.lines[row]}: {what} (got {self.rows[row].tolist()})")


def blocks_of_lines(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Yield some lines of a file, without their ends, and the number of the first of them, from 1.

    Raises:
        GraphDataError: the file cannot be read, or a line is too long.
    """
    number = 1
    rest = b""
    try:
        with open(open_regular(path), "rb") as raw, _unpacked(path, raw) as file:
            while data := file.read(_BLOCK_BYTES):
                text = rest + data
                end = text.rfind(b"\n") + 1
                if not end and len(text) > _BLOCK_BYTES:
                    raise GraphDataError(f"{path}, line {number}: longer than {_BLOCK_BYTES} bytes")
                rest = text[end:]
                lines = text[:end].splitlines()
                yield number, lines
                number += len(lines)
            yield number, rest.splitlines()
    except UNREADABLE as error:
        if isinstance(error, GraphDataError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise GraphDataError(f"{path}: cannot be read: {reason}") from error


def first_bytes(path: Path, count: int) -> bytes:
    """Return the first bytes of a file; fewer, or none, where it cannot be read."""
    try:
        with open(open_regular(path), "rb") as raw, _unpacked(path, raw) as file:
            return file.read(count)
    except UNREADABLE:
        return b""


def comments_of(path: Path, mark: bytes) -> tuple[list[str], list[str]]:
    """Return the comments that a file begins with, and the fields of the first line after them.

    Args:
        path: the file.
        mark: what comments begin with.

    Returns:
        The comments without their mark and without blanks at both ends; and fields that were separated by blanks, none
        if there is no such line.
    """
    comments = []
    for _, lines in blocks_of_lines(path):
        for line in lines:
            text = line.strip()
            if text.startswith(mark):
                comments.append(text.lstrip(mark).strip().decode("utf-8", "replace"))
            elif text:
                return comments, text.decode("utf-8", "replace").split()
    return comments, []


def number_blocks(
    path: Path,
    columns: Sequence[tuple[str, str]],
    comment: bytes | None = None,
    skipped: int = 0,
    delimiter: str | None = None,
) -> Iterator[NumberBlock]:
    """Yield the numbers of all lines that are neither blank nor comments.

    Args:
        path: the file.
        columns: name and dtype of each column; every line must have all of them and no more.
        comment: what comments begin with; None if there are none.
        skipped: how many of these lines are left out, at the beginning.
        delimiter: between fields; None for any blanks.

    Raises:
        GraphDataError: a line does not have these numbers; names it.
    """
    dtype = np.dtype(list(columns))

    def has_numbers(line: bytes) -> bool:
        text = line.lstrip()
        return bool(text) and (comment is None or not text.startswith(comment))

    for first, lines in blocks_of_lines(path):
        numbers: Sequence[int] = range(first, first + len(lines))
        kept = list(map(has_numbers, lines))
        if not all(kept):
            numbers = list(compress(numbers, kept))
            lines = list(compress(lines, kept))
        left_out = min(skipped, len(lines))
        skipped -= left_out
        lines, numbers = lines[left_out:], numbers[left_out:]
        if lines:
            yield NumberBlock(numbers_in(path, lines, numbers, dtype, delimiter), path, numbers)


def numbers_in(
    path: Path, lines: Sequence[bytes], numbers: Sequence[int], dtype: np.dtype[Any], delimiter: str | None
) -> Array:
    """Return the numbers in some lines, which are not blank, as a structured array.

    Args:
        path: the file, for messages.
        lines: the lines, or a piece of each.
        numbers: their numbers in the file.
        dtype: structured; every line must have all its columns and no more.
        delimiter: between fields; None for any blanks.

    Raises:
        GraphDataError: a line does not have these numbers; names it.
    """
    try:
        return np.loadtxt(lines, dtype, comments=None, delimiter=delimiter, ndmin=1, encoding="latin-1")
    except ValueError:
        if len(lines) == 1:
            wanted = ", ".join(
                f"{name} ({dtype[name].base}{list(dtype[name].shape) or ''})" for name in dtype.names or ()
            )
            text = lines[0][:80].decode("utf-8", "replace")
            raise GraphDataError(f"{path}, line {numbers[0]}: must have {wanted} (got {text!r})") from None
        half = len(lines) // 2
        numbers_in(path, lines[:half], numbers[:half], dtype, delimiter)
        return numbers_in(path, lines[half:], numbers[half:], dtype, delimiter)


def _unpacked(path: Path, raw: IO[bytes]) -> IO[bytes]:
    name = path.name.lower()
    if name.endswith(".gz"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=raw))
    return cast(IO[bytes], bz2.BZ2File(raw)) if name.endswith(".bz2") else raw
