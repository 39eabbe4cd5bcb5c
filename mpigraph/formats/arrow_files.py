"""Csv files by pyarrow, an extra; and what kind of files tables are in.

Text is for one pass, a block at a time, every field as a
string (``text_values.py`` says what it means). It may be compressed (``.gz``, ``.bz2``) and begin with lines of
comments (``#``); its fields are separated by tabs, commas, semicolons or blanks, whichever its first line has.
"""

import bz2
import csv
import gzip
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from mpigraph.errors import GraphDataError
from mpigraph.formats.node_ranks import NodeRanks
from mpigraph.formats.parquet_files import ParquetFiles
from mpigraph.formats.table_pieces import FAILURES, Piece, Tables, check_names, check_regular, failure
from mpigraph.formats.text_values import arrow, values_of

__all__ = ["TextFiles", "TextForm", "check_arrow", "cut", "fields_of", "is_table", "open_tables"]

_TEXT = (".csv", ".tsv", ".txt")
_PACKED = {".gz": gzip.open, ".bz2": bz2.open}
_PARQUET = (".parquet", ".pq")
_BLOCK_BYTES = 16 << 20
_LONGEST_LINE = 1 << 20
_COUNTED_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"
_ROW_OF_PIECE = re.compile(r"\bRow #(\d+)")


@dataclass(frozen=True)
class TextForm:
    """How text is to be read.

    Attributes:
        delimiter: between fields; None to look at the first line.
        names: of the columns; None to take those of the first line, or ``src``, ``dst``, ``column2``, ... where the
            first line has two numbers in front.
        header: whether the first line has names, after comments where ``names`` are not given; None to look at it.
        quoted: whether ``"`` at the beginning of a field quotes it.
    """

    delimiter: str | None = None
    names: tuple[str, ...] | None = None
    header: bool | None = None
    quoted: bool = True


def is_table(path: Path) -> bool:
    """Return whether a file has the name of a csv or parquet file."""
    name = path.name.lower()
    return name.endswith(_PARQUET) or _without_packing(name).endswith(_TEXT)


def open_tables(
    paths: Sequence[Path], form: TextForm | None = None, kind: str | None = None
) -> "TextFiles | ParquetFiles":
    """Open files of the same columns.

    Args:
        paths: the files, at least one.
        form: how text is to be read.
        kind: "parquet" or "csv"; None to go by the names of the files.

    Raises:
        GraphDataError: they cannot be read, or do not fit together; or there is no pyarrow.
    """
    check_arrow()
    is_parquet = {path.name.lower().endswith(_PARQUET) for path in paths} if kind is None else {kind == "parquet"}
    if len(is_parquet) > 1:
        raise GraphDataError(f"{paths[0].parent}: csv and parquet files cannot be one table")
    return ParquetFiles(paths) if is_parquet == {True} else TextFiles(paths, form or TextForm())


def cut(tables: Tables, ranks: NodeRanks) -> list[Piece]:
    """Return the pieces that this rank of its node reads: as many bytes, or groups of rows, as the others.

    Text is cut between lines; of files that cannot be cut each is read by one rank. Collective on the ranks.
    """
    pieces = tables.pieces()
    total = sum(piece.end - piece.begin for piece in pieces if piece.end >= 0)
    begin, end = (total * index // ranks.count for index in (ranks.index, ranks.index + 1))
    own = []
    for piece in pieces:
        if piece.end >= 0:
            first, last = (piece.begin + min(max(at, 0), piece.end - piece.begin) for at in (begin, end))
            own += [Piece(piece.file, first, last)] if first < last else []
            begin -= piece.end - piece.begin
            end -= piece.end - piece.begin
    if isinstance(tables, TextFiles):
        own = tables.between_lines(own, ranks)
    return sorted([*own, *[piece for piece in pieces if piece.end < 0][ranks.index :: ranks.count]])


def check_arrow() -> None:
    """Check that pyarrow is there, before anything else is done.

    Raises:
        GraphDataError: it is not installed; says how to install it.
    """
    arrow()


class TextFiles:
    """Csv files.

    Args:
        paths: the files.
        form: how they are to be read.
    """

    lazily = False

    def __init__(self, paths: Sequence[Path], form: TextForm) -> None:
        self.paths = paths
        self._form = form
        self._delimiter = form.delimiter
        self._first_rows: list[int] = []
        self._begins: list[int] = []
        self.names: list[str] = []
        self.is_named = False
        for path in paths:
            names = self._read_head(path)
            check_names(path, names)
            if path is not paths[0] and names != self.names:
                raise GraphDataError(f"{path}: columns {names} are not those of {paths[0].name}, {self.names}")
            self.names = names

    def are_numbers(self, columns: Sequence[str]) -> bool:
        """Return whether the first rows of some columns are numbers."""
        for piece in self.pieces():
            for batch in self.batches(piece, columns):
                return all(
                    values_of(batch.column(name), str).kind in ("integer", "float", "bool", None) for name in columns
                )
        return False

    def _read_head(self, path: Path) -> list[str]:
        """Note where the rows of a file begin, and return the names of its columns."""
        with _opened(path) as file:
            skipped = 0
            begin = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
            file.seek(begin)
            while (line := file.readline(_LONGEST_LINE)).startswith(b"#") and self._form.names is None:
                skipped += 1
                begin += len(line)
        text = line.decode("utf-8", "replace").strip("\r\n")
        if self._delimiter is None:
            self._delimiter = next((mark for mark in "\t,;" if mark in text), " ")
        fields = fields_of(text, self._delimiter) if self._form.quoted else text.split(self._delimiter)
        fields = [name.strip() for name in fields]
        named = self._form.header
        if named is None:
            named = self._form.names is None and not all(map(_is_integer, fields[:2]))
        self.is_named = named or self._form.names is not None
        self._first_rows.append(skipped + named + 1)
        self._begins.append(begin + len(line) * named)
        if self._form.names is not None:
            return list(self._form.names)
        return fields if named else ["src", "dst", *(f"column{n}" for n in range(2, len(fields)))][: len(fields)]

    def pieces(self) -> list[Piece]:
        """Return the bytes of each file."""
        found = []
        for number, path in enumerate(self.paths):
            end = -1 if _is_packed(path) else path.stat().st_size
            found.append(Piece(number, self._begins[number], end))
        return found

    def between_lines(self, own: Sequence[Piece], ranks: NodeRanks) -> list[Piece]:
        """Return this rank's pieces from the beginning of a line to that of another, as the other ranks cut them.

        Ends of lines between quotes are none, so all quotes before a piece are counted. Collective on the ranks.
        """
        quotes = {}
        if ranks.count > 1 and self._form.quoted:
            quotes = {str(piece.file): sum(data.count(b'"') for _, data in self._bytes(piece)) for piece in own}
        counted = [found.note for found in ranks.gather(f"reading {self.paths[0]}", quotes)]
        pieces = []
        for file, *bounds in own:
            before = sum(its.get(str(file), 0) for its in counted[: ranks.index])
            for number, at in enumerate(bounds):
                if at not in (self._begins[file], self.pieces()[file].end):
                    bounds[number] = self._next_line(file, at, (before + quotes.get(str(file), 0) * number) % 2 == 1)
            pieces.append(Piece(file, *bounds))
        return pieces

    def _next_line(self, file: int, at: int, is_quoted: bool) -> int:
        """Return where the first line after a place in a file begins."""
        marks = re.compile(rb'["\n]' if self._form.quoted else rb"\n")
        end = self.pieces()[file].end
        for begin, data in self._bytes(Piece(file, at, end)):
            for match in marks.finditer(data):
                if match[0] == b'"':
                    is_quoted = not is_quoted
                elif not is_quoted:
                    return begin + match.end()
        return end

    def _bytes(self, piece: Piece) -> Iterator[tuple[int, bytes]]:
        """Yield the content of a piece, and where it begins."""
        with _opened(self.paths[piece.file]) as file:
            at = file.seek(piece.begin)
            while data := file.read(_COUNTED_BYTES if piece.end < 0 else min(_COUNTED_BYTES, piece.end - at)):
                yield at, data
                at += len(data)

    def first_row(self, piece: Piece) -> int:
        """Rows are the lines of the file, from 1."""
        before = piece._replace(begin=self._begins[piece.file], end=max(piece.begin, self._begins[piece.file]))
        return self._first_rows[piece.file] + sum(data.count(b"\n") for _, data in self._bytes(before))

    def batches(self, piece: Piece, names: Sequence[str]) -> Iterator[Any]:
        """Yield record batches of strings."""
        arrow_csv = arrow().csv
        try:
            stream = self._stream(piece)
            if stream is None:
                return
            with stream:
                yield from arrow_csv.open_csv(
                    stream,
                    # one thread, so that errors name the row
                    arrow_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, column_names=self.names),
                    arrow_csv.ParseOptions(
                        delimiter=self._delimiter,
                        quote_char='"' if self._form.quoted else False,
                        newlines_in_values=self._form.quoted and self._has_quotes(piece),
                    ),
                    arrow_csv.ConvertOptions(
                        column_types=dict.fromkeys(self.names, arrow().string()),
                        include_columns=list(names),
                        strings_can_be_null=False,
                    ),
                )
        except FAILURES as error:
            raise self._located(piece, error) from error

    def _stream(self, piece: Piece) -> Any:
        """Return the bytes of a piece as a stream of Arrow; None if there are none (pyarrow would raise)."""
        path = self.paths[piece.file]
        if piece.end < 0:
            file = _opened(path)
            file.seek(piece.begin)
            if not file.read(1):
                file.close()
                return None
            file.seek(piece.begin)
            return arrow().PythonFile(file, "r")
        if piece.begin >= piece.end:
            return None
        check_regular(path)
        data = np.memmap(path, np.uint8, "r", piece.begin, piece.end - piece.begin)
        if not data[:_LONGEST_LINE].tobytes().strip() and not data.tobytes().strip():
            return None
        return arrow().BufferReader(arrow().py_buffer(data))

    def _has_quotes(self, piece: Piece) -> bool:
        """Return whether values may be quoted, and so have ends of lines in them, for which pyarrow takes longer."""
        return any(b'"' in data for _, data in self._bytes(piece))

    def _located(self, piece: Piece, error: Exception) -> GraphDataError:
        """Return the error of this library, with the row counted in the file."""
        path = self.paths[piece.file]
        if not isinstance(error, GraphDataError) and _ROW_OF_PIECE.search(str(error)):
            first = self.first_row(piece) - 1
            text = _ROW_OF_PIECE.sub(lambda match: f"row {first + int(match[1])}", str(error))
            return GraphDataError(f"{path}: cannot be read: {text}")
        return failure(path, error)


def fields_of(line: str, delimiter: str) -> list[str]:
    """Return the fields of a line, without the quotes around them."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [""])
    except csv.Error:  # of bytes that no text has
        return line.split(delimiter)


def _without_packing(name: str) -> str:
    return name.removesuffix(Path(name).suffix) if Path(name).suffix in _PACKED else name


def _is_packed(path: Path) -> bool:
    return path.suffix.lower() in _PACKED


def _opened(path: Path) -> IO[bytes]:
    try:
        check_regular(path)
        return _PACKED.get(path.suffix.lower(), open)(path, "rb")  # type: ignore[operator, no-any-return]
    except OSError as error:
        raise failure(path, error) from error


def _is_integer(text: str) -> bool:
    return text.strip().lstrip("-").isdecimal()
