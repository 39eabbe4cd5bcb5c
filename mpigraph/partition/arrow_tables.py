"""Read edge lists and other columns from csv and parquet files. The only module that knows pyarrow, an extra.

Parquet is read by groups of rows when they are asked for. Text is parsed once, a block at a time, into a temporary file
that has no name and is mapped. A csv file may be compressed (``.gz``) and begin with lines of comments (``#``); its
fields are separated by tabs, commas, semicolons or blanks, whichever its first line has.

An edge list has the columns ``src`` and ``dst``; text of numbers alone needs no names, its first two columns are the
ends. Every other column of numbers becomes an edge feature, in parquet also lists of one length. Several files are one
edge list, in the order of their names.

**Ids** that are 0, 1, ..., n - 1 are taken as they are, and so is every id if the number of nodes is given. Others
(strings, negative numbers, numbers with gaps) are numbered in their order (``numbering.py``); the node feature "id"
then has the original ones: int64[n], or uint8[n, width] for strings, which are their UTF-8 filled up with zeros.
"""

import gzip
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError
from mpigraph.log import get_logger
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Schema, relation_key
from mpigraph.partition.chunks import GrowingFile, NamedRows, concatenated
from mpigraph.partition.numbering import Distinct, distinct_numbers, kept_keys, numbers_of
from mpigraph.partition.source import Feature, GraphSource, RowArray
from mpigraph.storage.files import open_regular

__all__ = ["read_columns", "read_edge_list", "table_files"]

_TEXT = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
_PARQUET = (".parquet", ".pq")
_ENDS = ("src", "dst")
_NO_NUMBERS = ("string", "other")
_FAILURES = (OSError, ValueError, KeyError, NotImplementedError)  # of pyarrow
_BLOCK_BYTES = 16 << 20
_LONGEST_LINE = 1 << 20
_BATCH_ROWS = 1 << 20
_MAX_ID_BYTES = 256  # of a string; keys have the width of the longest


def table_files(path: Path) -> list[Path]:
    """Return the csv or parquet files of an input: the file itself, or those in a directory; none if it is no such."""
    files = [path] if path.is_file() else sorted(path.iterdir())
    return [file for file in files if file.name.endswith(_TEXT + _PARQUET) and not file.name.startswith((".", "_"))]


def read_edge_list(paths: Sequence[Path], num_nodes: int | None = None, scratch: Path | None = None) -> GraphSource:
    """Read a homogeneous graph from its edges.

    Args:
        paths: csv files or parquet files.
        num_nodes: number of nodes, if ids are to be taken as they are.
        scratch: folder of temporary files; None for the system's.

    Raises:
        GraphDataError: an id is missing or no id, or files do not fit together; names file and row.
        StorageError: a temporary file cannot be written.
    """
    tables = _open(paths)
    kinds = tables.kinds
    for end in _ENDS:
        if kinds.get(end) not in ("integer", "string") or kinds[end] != kinds["src"]:
            found = ", ".join(f"{name}: {kind}" for name, kind in kinds.items())
            raise GraphDataError(
                f"{paths[0]}: needs columns src and dst, both of integers or both of strings (got {found})"
            )
    feats = [name for name in kinds if name not in _ENDS]
    other = [name for name in feats if kinds[name] in _NO_NUMBERS]
    if other:
        get_logger().warning("%s: columns %s are no numbers and are left out", paths[0], other)
    feats = [name for name in feats if name not in other]
    keys: Array | None = None
    if kinds["src"] == "string":
        if num_nodes is not None:
            raise GraphDataError(f"{paths[0]}: ids are strings, which are numbered: leave the number of nodes out")
        keys = kept_keys(_distinct_strings(tables), scratch)
        num_nodes = len(keys)
        columns = _columns(tables, feats, scratch, keys=keys)
    else:
        columns = _columns(tables, [*_ENDS, *feats], scratch)
        if num_nodes is None:
            num_nodes, found_keys = distinct_numbers([columns[end] for end in _ENDS])
            if found_keys is not None:
                keys = kept_keys(found_keys, scratch)
                columns |= {end: numbers_of(columns[end], keys) for end in _ENDS}
    node_feats = {}
    if keys is not None:
        get_logger().warning('%s: nodes are numbered in the order of their ids, which are node feature "id"', paths[0])
        is_text = keys.dtype.kind == "S"
        node_feats["id"] = Feature.of(keys.view(np.uint8).reshape(len(keys), -1) if is_text else keys)
    edge_feats = {name: Feature.of(columns[name]) for name in feats}
    return GraphSource(
        Schema.homogeneous(),
        (num_nodes,),
        ((columns["src"], columns["dst"]),),
        {DEFAULT_NTYPE: node_feats},
        {relation_key(DEFAULT_ETYPE): edge_feats},
    )


def read_columns(
    paths: Sequence[Path], kind: str, delimiter: str = " ", scratch: Path | None = None
) -> tuple[list[RowArray], list[int]]:
    """Return the columns of files, one after another, and the number of rows of each file.

    Args:
        paths: the files.
        kind: "csv" (without names of columns) or "parquet".
        delimiter: between the fields of a line of csv.
        scratch: folder of temporary files; None for the system's.

    Raises:
        GraphDataError: a column is no numbers, or files do not fit together; names file and row.
        StorageError: a temporary file cannot be written.
    """
    tables: _Tables = _Parquet(paths) if kind == "parquet" else _Text(paths, delimiter, is_named=False)
    for name, found in tables.kinds.items():
        if found in _NO_NUMBERS:
            raise GraphDataError(f"{paths[0]}: column {name} is no numbers")
    columns = _columns(tables, list(tables.kinds), scratch)
    return list(columns.values()), tables.lengths


class _Tables(Protocol):
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


def _open(paths: Sequence[Path]) -> _Tables:
    is_parquet = [path.name.endswith(_PARQUET) for path in paths]
    if len(set(is_parquet)) > 1:
        raise GraphDataError(f"{paths[0].parent}: csv and parquet files cannot be one edge list")
    return _Parquet(paths) if is_parquet[0] else _Text(paths)


class _Text:
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
            return {entry.name: entry.type for entry in self._reader(file).schema}
        except _FAILURES as error:
            raise _failure(self.paths[file], error) from error

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


class _Parquet:
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
            return _to_numpy(_arrow().array([], self._schema.field(name).type), str)
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
        tables: _Parquet,
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
            rows = _to_numpy(column, self.place)
            if self._row_shape is not None and rows.shape[1:] != self._row_shape:
                raise GraphDataError(
                    f"{self.place(0)}: lists have {rows.shape[1]} numbers, {self._row_shape[0]} before"
                )
            self._last.rows = rows
            self._last.key = self._key
        return self._last.rows


def _columns(
    tables: _Tables, names: Sequence[str], scratch: Path | None, keys: Array | None = None
) -> dict[str, RowArray]:
    """Return columns of numbers; if ``keys`` are given, also the ends, the numbers of the strings among these."""
    to_store = [] if keys is None else list(_ENDS)
    if tables.lazily:
        columns = {name: tables.rows(name) for name in names}
    else:
        columns = {}
        to_store += names
    if to_store:
        columns |= _stored(tables, to_store, scratch, keys)
    return columns


def _stored(tables: _Tables, names: Sequence[str], scratch: Path | None, keys: Array | None) -> dict[str, RowArray]:
    """Read columns once, into temporary files."""
    growing: dict[str, GrowingFile] = {}
    lengths = []
    with ExitStack() as stack:
        for file in range(len(tables.paths)):
            done = 0
            for batch in tables.batches(file, names):
                place = _Place(tables, file, done)
                for name in names:
                    column = batch.column(name)
                    if keys is not None and name in _ENDS:
                        values, positions = _distinct_in(column, place)
                        rows: Array = np.searchsorted(keys, values)[positions]
                    else:
                        rows = _to_numpy(column, place)
                    if name not in growing:
                        growing[name] = stack.enter_context(GrowingFile(rows.dtype, rows.shape[1:], scratch))
                    growing[name].append(rows)
                done += batch.num_rows
            lengths.append(done)
        tables.lengths = lengths
        found = {name: file.finish() for name, file in growing.items()}
    return {name: _named(tables, found[name]) if name in found else np.zeros(0, np.int64) for name in names}


def _named(tables: _Tables, rows: Array) -> RowArray:
    """Return rows that know the file that they were read from."""
    found: list[RowArray] = []
    begin = 0
    for file, (path, length) in enumerate(zip(tables.paths, tables.lengths, strict=True)):
        if length:
            found.append(NamedRows(rows[begin : begin + length], str(path), tables.first_row(file)))
        begin += length
    return concatenated(found) if found else rows


@dataclass
class _Place:
    """Names a row of a batch."""

    tables: _Tables
    file: int
    done: int

    def __call__(self, row: int) -> str:
        first = self.tables.first_row(self.file) + self.done
        return f"{self.tables.paths[self.file]}, row {first + row}"


def _distinct_strings(tables: _Tables) -> Array:
    """Return all ids, ascending, of dtype S."""
    found = Distinct()
    for file in range(len(tables.paths)):
        done = 0
        for batch in tables.batches(file, _ENDS):
            for end in _ENDS:
                found.add(_distinct_in(batch.column(end), _Place(tables, file, done))[0])
            done += batch.num_rows
    return found.sorted()


def _distinct_in(column: Any, place: Callable[[int], str]) -> tuple[Array, I64]:
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


def _to_numpy(column: Any, place: Callable[[int], str]) -> Array:
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
        numbers = _to_numpy(column.flatten(), lambda position: place(position // max(width, 1)))
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
            return gzip.open(path, "rt", encoding="utf-8", errors="replace")
        return open(path, encoding="utf-8", errors="replace")
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
