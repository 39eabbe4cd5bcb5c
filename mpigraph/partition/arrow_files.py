"""Csv and parquet files by pyarrow, an extra.

Parquet is read by groups of rows when they are asked for. Text is for one pass, a block at a time, every field as a
string (``text_values.py`` says what it means). It may be compressed (``.gz``, ``.bz2``) and begin with lines of
comments (``#``); its fields are separated by tabs, commas, semicolons or blanks, whichever its first line has.
"""

import bz2
import csv
import gzip
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError
from mpigraph.partition.chunks import concatenated
from mpigraph.partition.row_arrays import RowArray
from mpigraph.partition.text_values import arrow, to_numpy, type_kind, values_of
from mpigraph.storage.files import open_regular

__all__ = [
    "ParquetFiles",
    "Piece",
    "Tables",
    "TextFiles",
    "TextForm",
    "check_arrow",
    "fields_of",
    "is_table",
    "open_tables",
]

_TEXT = (".csv", ".tsv", ".txt")
_PACKED = {".gz": gzip.open, ".bz2": bz2.open}
_PARQUET = (".parquet", ".pq")
_FAILURES = (OSError, ValueError, KeyError, NotImplementedError)  # of pyarrow
_BLOCK_BYTES = 16 << 20
_LONGEST_LINE = 1 << 20
_BATCH_ROWS = 1 << 20
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
            _check_names(path, names)
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

    def first_row(self, piece: Piece) -> int:
        """Rows are the lines of the file, from 1."""
        first = self._first_rows[piece.file]
        with _opened(self.paths[piece.file]) as file:
            at = file.seek(self._begins[piece.file])
            while at < piece.begin:
                data = file.read(min(_COUNTED_BYTES, piece.begin - at))
                first += data.count(b"\n")
                at += len(data)
        return first

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
        except _FAILURES as error:
            raise self._failure(piece, error) from error

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
        _check_regular(path)
        data = np.memmap(path, np.uint8, "r", piece.begin, piece.end - piece.begin)
        if not data[:_LONGEST_LINE].tobytes().strip() and not data.tobytes().strip():
            return None
        return arrow().BufferReader(arrow().py_buffer(data))

    def _has_quotes(self, piece: Piece) -> bool:
        """Return whether values may be quoted, and so have ends of lines in them, for which pyarrow takes longer."""
        with _opened(self.paths[piece.file]) as file:
            at = file.seek(piece.begin)
            while piece.end < 0 or at < piece.end:
                data = file.read(_COUNTED_BYTES if piece.end < 0 else min(_COUNTED_BYTES, piece.end - at))
                if not data or b'"' in data:
                    return bool(data)
                at += len(data)
        return False

    def _failure(self, piece: Piece, error: Exception) -> GraphDataError:
        """Return the error of this library, with the row counted in the file."""
        path = self.paths[piece.file]
        if not isinstance(error, GraphDataError) and _ROW_OF_PIECE.search(str(error)):
            first = self.first_row(piece) - 1
            text = _ROW_OF_PIECE.sub(lambda match: f"row {first + int(match[1])}", str(error))
            return GraphDataError(f"{path}: cannot be read: {text}")
        return _failure(path, error)


class ParquetFiles:
    """Parquet files.

    Args:
        paths: the files.

    Attributes:
        kinds: name of each column -> "integer", "float", "bool", "time", "list" (of numbers), "string" or "other".
        lengths: rows of each file.
    """

    lazily = True
    is_named = True

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        self._parquet = arrow().parquet
        self.metadata = []
        self._schema: Any = None
        for path in paths:
            try:
                _check_regular(path)
                file = self._parquet.ParquetFile(path, memory_map=True)
            except _FAILURES as error:
                raise _failure(path, error) from error
            schema = file.schema_arrow.remove_metadata()
            _check_names(path, schema.names)
            if self._schema is not None and not schema.equals(self._schema):
                raise GraphDataError(f"{path}: columns are not those of {paths[0].name}")
            self._schema = schema
            self.metadata.append(file.metadata)
        self.lengths = [metadata.num_rows for metadata in self.metadata]
        self.names = list(self._schema.names)
        self.kinds = {entry.name: type_kind(entry.type) for entry in self._schema}

    def pieces(self) -> list[Piece]:
        """Return the groups of rows of each file."""
        return [Piece(file, 0, metadata.num_row_groups) for file, metadata in enumerate(self.metadata)]

    def first_row(self, piece: Piece) -> int:
        """Rows are counted from 0."""
        return sum(self.metadata[piece.file].row_group(group).num_rows for group in range(piece.begin))

    def batches(self, piece: Piece, names: Sequence[str]) -> Iterator[Any]:
        """Yield record batches."""
        try:
            with self._reader(piece.file) as reader:
                groups = list(range(piece.begin, piece.end))
                yield from reader.iter_batches(_BATCH_ROWS, groups, columns=list(names), use_threads=False)
        except _FAILURES as error:
            raise _failure(self.paths[piece.file], error) from error

    def are_numbers(self, columns: Sequence[str]) -> bool:
        """Return whether some columns are numbers."""
        return all(self.kinds[name] in ("integer", "float", "bool") for name in columns)

    def group(self, file: int, group: int, name: str) -> Any:
        """Return a column of a group of rows, as one Arrow array."""
        try:
            with self._reader(file) as reader:
                return reader.read_row_group(group, columns=[name], use_threads=False).column(0).combine_chunks()
        except _FAILURES as error:
            raise _failure(self.paths[file], error) from error

    def rows(self, name: str) -> RowArray:
        """Return a column whose groups are read when they are asked for."""
        last = _Last()
        groups = [
            (file, number, self.metadata[file].row_group(number).num_rows)
            for file in range(len(self.paths))
            for number in range(self.metadata[file].num_row_groups)
        ]
        groups = [group for group in groups if group[2]]
        if not groups:
            return to_numpy(arrow().array([], self._schema.field(name).type), str)
        begins = dict.fromkeys(range(len(self.paths)), 0)
        found: list[RowArray] = []
        for file, number, length in groups:
            found.append(_GroupRows(self, file, number, name, begins[file], length, last, found[0] if found else None))
            begins[file] += length
        return concatenated(found)

    def _reader(self, file: int) -> Any:
        return self._parquet.ParquetFile(self.paths[file], metadata=self.metadata[file], memory_map=True)


@dataclass
class _Last:
    """The group of a column that was read last, since slices end within groups."""

    key: tuple[int, int] = (-1, -1)
    rows: Array = field(default_factory=lambda: np.zeros(0))


class _GroupRows:
    """A column of one group of rows; nothing but the group that was read last is in memory.

    Args:
        tables: the files.
        file: which of them.
        group: which of its groups.
        name: the column.
        begin: the first row of the group in its file.
        length: its rows.
        last: of this column.
        like: another group, of the same dtype and shape of rows; None to read this one.
    """

    sources = ()

    def __init__(
        self,
        tables: ParquetFiles,
        file: int,
        group: int,
        name: str,
        begin: int,
        length: int,
        last: _Last,
        like: RowArray | None,
    ) -> None:
        self._tables = tables
        self._key = (file, group)
        self._name = name
        self._begin = begin
        self._length = length
        self._last = last
        self._row_shape = None if like is None else like.shape[1:]
        like = self._read() if like is None else like
        self.shape: tuple[int, ...] = (length, *like.shape[1:])
        self.ndim = len(self.shape)
        self.dtype: np.dtype[Any] = like.dtype
        self.nbytes: int = length * self.dtype.itemsize * int(np.prod(self.shape[1:]))
        self.block_bytes = self.nbytes

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, rows: Any) -> Array:
        found: Array = self._read()[rows]
        return found

    def place(self, row: int) -> str:
        """File, column and row."""
        return f"{self._tables.paths[self._key[0]]}: {self._name}, row {self._begin + row}"

    def _read(self) -> Array:
        if self._last.key != self._key:
            column = self._tables.group(*self._key, self._name)
            rows = to_numpy(column, self.place)
            if len(rows) != self._length:
                raise GraphDataError(f"{self.place(0)}: {len(rows)} rows, where the file says {self._length}")
            if self._row_shape is not None and rows.shape[1:] != self._row_shape:
                raise GraphDataError(
                    f"{self.place(0)}: lists have {rows.shape[1]} numbers, {self._row_shape[0]} before"
                )
            self._last.rows = rows
            self._last.key = self._key
        return self._last.rows


def _check_names(path: Path, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise GraphDataError(f"{path}: there are several columns of the name {name!r}")


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
        _check_regular(path)
        return _PACKED.get(path.suffix.lower(), open)(path, "rb")  # type: ignore[operator, no-any-return]
    except OSError as error:
        raise _failure(path, error) from error


def _check_regular(path: Path) -> None:
    os.close(open_regular(path))


def _is_integer(text: str) -> bool:
    return text.strip().lstrip("-").isdecimal()


def _failure(path: Path, error: Exception) -> GraphDataError:
    if isinstance(error, GraphDataError):
        return error
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return GraphDataError(f"{path}: cannot be read: {reason}")
