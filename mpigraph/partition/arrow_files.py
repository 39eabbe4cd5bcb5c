"""Csv and parquet files by pyarrow, an extra. The only module that knows it.

Parquet is read by groups of rows when they are asked for. Text is for one pass, a block at a time; it may be compressed
(``.gz``) and begin with lines of comments (``#``); its fields are separated by tabs, commas, semicolons or blanks,
whichever its first line has.
"""

import gzip
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError
from mpigraph.partition.chunks import concatenated
from mpigraph.partition.row_arrays import RowArray
from mpigraph.storage.files import open_regular

__all__ = ["ParquetFiles", "Tables", "TextFiles", "distinct_in", "is_table", "open_tables", "to_numpy"]

_TEXT = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
_PARQUET = (".parquet", ".pq")
_ENDS = ("src", "dst")
_FAILURES = (OSError, ValueError, KeyError, NotImplementedError)  # of pyarrow
_BLOCK_BYTES = 16 << 20
_LONGEST_LINE = 1 << 20
_BATCH_ROWS = 1 << 20
_MAX_ID_BYTES = 256  # of a string; keys have the width of the longest


class Tables(Protocol):
    """Files of the same columns.

    Attributes:
        paths: the files.
        kinds: name of each column -> "integer", "float", "bool", "list" (of numbers), "string" or "other".
        lengths: rows of each file; of text, only after it was read.
        lazily: whether groups of rows can be read out of order.
    """

    paths: Sequence[Path]
    kinds: dict[str, str]
    lengths: list[int]
    lazily: bool

    def first_row(self, file: int) -> int:
        """What the first row of a file is called in messages."""

    def batches(self, file: int, names: Sequence[str]) -> Iterator[Any]:
        """Yield record batches of some columns of a file."""

    def rows(self, name: str) -> RowArray:
        """Return a column of all files, if ``lazily``."""


def is_table(path: Path) -> bool:
    """Return whether a file has the name of a csv or parquet file."""
    return path.name.endswith(_TEXT + _PARQUET)


def open_tables(paths: Sequence[Path], kind: str | None = None, delimiter: str | None = None) -> Tables:
    """Open files of the same columns.

    Args:
        paths: the files, at least one.
        kind: "parquet", or "csv" without a line of names; None to go by the names of the files and the first line.
        delimiter: between fields of csv; None to look at the first line.

    Raises:
        GraphDataError: they cannot be read, or do not fit together; or there is no pyarrow.
    """
    is_parquet = {path.name.endswith(_PARQUET) for path in paths} if kind is None else {kind == "parquet"}
    if len(is_parquet) > 1:
        raise GraphDataError(f"{paths[0].parent}: csv and parquet files cannot be one edge list")
    if is_parquet == {True}:
        return ParquetFiles(paths)
    return TextFiles(paths, delimiter, None if kind is None else False)


class TextFiles:
    """Csv files.

    Args:
        paths: the files.
        delimiter: between fields; None to look at the first line.
        is_named: whether the first line has the names of columns; None to look at it.
    """

    lazily = False

    def __init__(self, paths: Sequence[Path], delimiter: str | None = None, is_named: bool | None = None) -> None:
        self.paths = paths
        self._csv = _arrow().csv
        self._first_rows = []
        self.lengths: list[int] = []
        names: list[str] = []
        for path in paths:
            comments, line = _first_line(path)
            if path is paths[0]:
                self._delimiter = delimiter or next((mark for mark in "\t,;" if mark in line), " ")
            fields = [name.strip().strip('"') for name in line.split(self._delimiter)]
            named = not all(map(_is_integer, fields[:2])) if is_named is None else is_named
            if not named:
                fields = [*_ENDS, *(f"column{number}" for number in range(2, len(fields)))][: len(fields)]
            _check_names(path, fields)
            if path is not paths[0] and fields != names:
                raise GraphDataError(f"{path}: columns {fields} are not those of {paths[0].name}, {names}")
            names = fields
            self._first_rows.append(comments + named + 1)
        self._names = names
        self._types: dict[str, Any] = {}
        self._types = self._guessed_types()
        self.kinds = {name: _kind(self._types[name]) for name in names}

    def first_row(self, file: int) -> int:
        """Rows are the lines of the file, from 1."""
        return self._first_rows[file]

    def batches(self, file: int, names: Sequence[str]) -> Iterator[Any]:
        """Yield record batches."""
        try:
            if not self._is_empty(file):
                yield from self._reader(file, names)
        except _FAILURES as error:
            raise _failure(self.paths[file], error) from error

    def rows(self, name: str) -> RowArray:
        """Not to be asked for."""
        raise NotImplementedError

    def _guessed_types(self) -> dict[str, Any]:
        """Return the Arrow type of each column, as the first block of the first file with rows has it."""
        file = next((file for file in range(len(self.paths)) if not self._is_empty(file)), None)
        if file is None:
            return dict.fromkeys(self._names, _arrow().int64())
        try:
            batch = self._reader(file).read_next_batch()
        except _FAILURES as error:
            raise _failure(self.paths[file], error) from error
        self._check_integers(file, batch)
        return {entry.name: entry.type for entry in batch.schema}

    def _check_integers(self, file: int, batch: Any) -> None:
        """Check that no integers became floats because one of them is too large."""
        for number, name in enumerate(self._names):
            if _kind(batch.column(number).type) != "float":
                continue
            values = batch.column(number).to_numpy(zero_copy_only=False)
            large = np.flatnonzero((np.abs(values) >= 2.0**63) & np.isfinite(values))
            if not len(large) or (values != np.rint(values))[~np.isnan(values)].any():
                continue
            row = self._first_rows[file] + int(large[0])
            with _lines(self.paths[file]) as lines:
                fields = next(islice(lines, row - 1, None), "").split(self._delimiter)
            text = fields[number].strip(' "\r\n') if number < len(fields) else ""
            if _is_integer(text):
                raise GraphDataError(f"{self.paths[file]}, row {row}: {name} is {text}, which does not fit int64")

    def _is_empty(self, file: int) -> bool:
        """Whether there are no rows, which pyarrow takes for an error."""
        with _lines(self.paths[file]) as lines:
            return next((line for number, line in enumerate(lines, 1) if number >= self._first_rows[file]), "") == ""

    def _reader(self, file: int, names: Sequence[str] | None = None) -> Any:
        csv = self._csv
        return csv.open_csv(
            str(self.paths[file]),
            # one thread, so that errors name the row
            csv.ReadOptions(
                use_threads=False,
                block_size=_BLOCK_BYTES,
                column_names=self._names,
                skip_rows=self._first_rows[file] - 1,
            ),
            csv.ParseOptions(delimiter=self._delimiter),
            csv.ConvertOptions(column_types=self._types, include_columns=names, strings_can_be_null=False),
        )


class ParquetFiles:
    """Parquet files.

    Args:
        paths: the files.
    """

    lazily = True

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        self._parquet = _arrow().parquet
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
        self.kinds = {entry.name: _kind(entry.type) for entry in self._schema}

    def first_row(self, file: int) -> int:
        """Rows are counted from 0."""
        return 0

    def batches(self, file: int, names: Sequence[str]) -> Iterator[Any]:
        """Yield record batches."""
        try:
            with self._reader(file) as reader:
                yield from reader.iter_batches(_BATCH_ROWS, columns=list(names), use_threads=False)
        except _FAILURES as error:
            raise _failure(self.paths[file], error) from error

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
            return to_numpy(_arrow().array([], self._schema.field(name).type), str)
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


def distinct_in(column: Any, place: Callable[[int], str]) -> tuple[Array, I64]:
    """Return the distinct strings of a column as dtype S, and for each row which it has."""
    pyarrow = _arrow()
    _check_values(column, place)
    encoded = column.cast(pyarrow.large_string()).dictionary_encode()
    texts = [text.encode() for text in encoded.dictionary.to_pylist()]
    positions = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    for number, text in enumerate(texts):
        if not 0 < len(text) <= _MAX_ID_BYTES or b"\0" in text:
            row = int(np.flatnonzero(positions == number)[0])
            raise GraphDataError(
                f"{place(row)}: an id must have 1 to {_MAX_ID_BYTES} bytes, none zero (got {text!r:.80})"
            )
    width = max(map(len, texts), default=1)
    return np.array(texts, f"S{width}"), positions


def to_numpy(column: Any, place: Callable[[int], str]) -> Array:
    """Return an Arrow array of numbers, or of lists of as many numbers each; a missing float is NaN.

    Raises:
        GraphDataError: another value is missing, or lists are of several lengths; names the row.
    """
    pyarrow = _arrow()
    types = pyarrow.types
    if _kind(column.type) == "list":
        _check_values(column, place)
        if types.is_fixed_size_list(column.type):
            width = column.type.list_size
        else:
            lengths = pyarrow.compute.list_value_length(column).to_numpy(zero_copy_only=False)
            width = int(lengths[0]) if len(lengths) else 0
            if (lengths != width).any():
                row = int(np.flatnonzero(lengths != width)[0])
                raise GraphDataError(f"{place(row)}: a list has {lengths[row]} numbers, {width} before")
        numbers = to_numpy(column.flatten(), lambda position: place(position // max(width, 1)))
        return numbers.reshape(len(column), width)
    if not types.is_floating(column.type):
        _check_values(column, place)
    found: Array = column.to_numpy(zero_copy_only=False)
    return found


def _check_values(column: Any, place: Callable[[int], str]) -> None:
    if column.null_count:
        row = _arrow().compute.index(column.is_null(), True).as_py()
        raise GraphDataError(f"{place(row)}: a value is missing")


def _kind(found: Any) -> str:
    """Return what an Arrow type holds, in the words of ``kinds``."""
    types = _arrow().types
    if types.is_fixed_size_list(found) or types.is_list(found) or types.is_large_list(found):
        return "list" if _kind(found.value_type) in ("integer", "float", "bool") else "other"
    if types.is_dictionary(found):
        return "string" if _kind(found.value_type) == "string" else "other"
    for kind, is_it in (
        ("integer", types.is_integer),
        ("float", types.is_floating),
        ("bool", types.is_boolean),
        ("string", types.is_string),
        ("string", types.is_large_string),
    ):
        if is_it(found):
            return kind
    return "other"


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError:
        raise GraphDataError("csv and parquet files need pyarrow: pip install 'mpigraph[arrow]'") from None
    return pyarrow


def _check_names(path: Path, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise GraphDataError(f"{path}: there are several columns of the name {name!r}")


def _first_line(path: Path) -> tuple[int, str]:
    """Return the number of comments that a text begins with, and the line after them."""
    with _lines(path) as lines:
        number = 0
        while (line := lines.readline(_LONGEST_LINE)).startswith("#"):
            number += 1
    return number, line.strip("\r\n")


def _lines(path: Path) -> TextIO:
    try:
        _check_regular(path)
        if path.name.endswith(".gz"):
            return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace")
        return open(path, encoding="utf-8-sig", errors="replace")
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
