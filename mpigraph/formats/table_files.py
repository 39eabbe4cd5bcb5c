"""Tables in files by pyarrow, an extra: csv and parquet.

**Text** is parsed once, a block at a time, every field as a string (``arrow_values.py`` says what it means). It may be
compressed (``.gz``, ``.bz2``) and begin with lines of comments (``#``). The first line tells if tabs, commas,
semicolons or blanks separate its fields. **Parquet** is read by groups of rows, when they are asked for.
"""

import csv
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError
from mpigraph.formats.arrow_values import arrow, to_numpy, type_kind
from mpigraph.formats.input_files import UNREADABLE, failure, is_packed, opened, reading
from mpigraph.partition.row_arrays import DerivedRows, RowArray
from mpigraph.storage.files import open_regular

_TEXT = (".csv", ".tsv", ".txt")
_PARQUET = (".parquet", ".pq")
_BLOCK_BYTES = 8 << 20
_LONGEST_LINE = 1 << 20
_UNENDED = "a field in quotes does not end"
_BOM = b"\xef\xbb\xbf"
_NO_MARKS = re.compile(r'"[^"]*"')  # commas in it do not separate fields
_NO_DECIMALS = re.compile(r'"[^"]*"|(?<=\d),(?=\d)')
_ROW_OF_FILE = re.compile(r"\bRow #(\d+)")


@dataclass(frozen=True)
class TextForm:
    """The form of a text file."""

    delimiter: str | None = None  # between fields; None to look at the first line
    # of the columns; None to take those of the first line, or ``first``, ``column2``, ... where it has none
    names: tuple[str, ...] | None = None
    # the first line is a row; False: after comments, unless two integers stand in front, it has the names
    headless: bool = False
    first: tuple[str, ...] = ("src", "dst")  # names of the first columns of a file without names
    decimal: str = "."  # or "," in numbers with a fraction


def is_table(path: Path) -> bool:
    """Return whether a path is a csv or parquet file, by its name, and no hidden one."""
    name = path.name.lower()
    is_named = name.endswith((*_PARQUET, *_TEXT)) or (is_packed(path) and Path(name).stem.endswith(_TEXT))
    return is_named and not name.startswith((".", "_")) and path.is_file()


def open_tables(
    paths: Sequence[Path], form: TextForm | None = None, kind: str | None = None
) -> "TextFiles | ParquetFiles":
    """Open files of the same columns, at least one; ``kind`` is "parquet" or "csv", None to go by names of files.

    Raises:
        GraphDataError: they cannot be read, or do not fit together; or there is no pyarrow.
    """
    arrow()
    is_parquet = {path.name.lower().endswith(_PARQUET) for path in paths} if kind is None else {kind == "parquet"}
    if len(is_parquet) > 1:
        raise GraphDataError(f"{paths[0].parent}: csv and parquet files cannot be one table")
    return ParquetFiles(paths) if is_parquet == {True} else TextFiles(paths, form or TextForm())


def _check_names(path: Path, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise GraphDataError(f"{path}: there are several columns of the name {name!r}")


class TextFiles:
    """Csv files of one form."""

    def __init__(self, paths: Sequence[Path], form: TextForm) -> None:
        self.paths = paths
        self.form = form
        self._delimiter = form.delimiter
        self.first_rows: list[int] = []  # the line of each file, from 1, at which its rows begin
        self._begins: list[int] = []
        self.names: list[str] = []
        self.no_header: list[str] = []  # the fields of the first line, where it has no names and none are given
        for path in paths:
            names = self._read_head(path)
            _check_names(path, names)
            if path is not paths[0] and names != self.names:
                raise GraphDataError(f"{path}: columns {names} are not those of {paths[0].name}, {self.names}")
            self.names = names

    def _read_head(self, path: Path) -> list[str]:
        """Note where the rows of a file begin, and return the names of its columns."""
        with opened(path) as file:
            skipped = 0
            begin = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
            while (line := _line_of(file, begin)).startswith(b"#") and self.form.names is None:
                skipped += 1
                begin += len(line)
        text = line.decode("utf-8", "replace").strip("\r\n")
        if self._delimiter is None:
            bare = (_NO_MARKS if self.form.decimal == "." else _NO_DECIMALS).sub("", text)
            marks = [mark for mark in bare if mark in ",;"] or ([" "] if " " in bare else [","])
            self._delimiter = "\t" if "\t" in bare else marks[0]
        fields = [name.strip() for name in _fields_of(text, self._delimiter)]
        named = not self.form.headless and not all(text.lstrip("-").isdecimal() for text in fields[:2])
        self.first_rows.append(skipped + named + 1)
        self._begins.append(begin + len(line) * named)
        if self.form.names is not None:
            return list(self.form.names)
        self.no_header = [] if named else fields
        first = self.form.first
        return fields if named else [*first, *(f"column{n}" for n in range(len(first), len(fields)))][: len(fields)]

    def share(self, rank: int, size: int) -> list[int]:
        """Return the numbers of the files that a rank parses: each one rank, which have about as many bytes."""
        loads = [0] * size
        own = []
        for number in sorted(range(len(self.paths)), key=lambda number: -self.paths[number].stat().st_size):
            chosen = loads.index(min(loads))
            loads[chosen] += 1 + self.paths[number].stat().st_size
            own += [number] if chosen == rank else []
        return sorted(own)

    def title(self, file: int, name: str) -> str:
        """Return what messages call a column of a file, before the row."""
        return str(self.paths[file])

    def batches(self, file: int, names: Sequence[str]) -> Iterator[Any]:
        """Yield record batches of strings, parsed by pyarrow's threads."""
        done = 0
        batch: Any = None
        quotes, are_inside = 1, False
        try:
            quotes, are_inside = self._quotes(file)
            for batch in self._batches(file, names, quotes > 0, use_threads=True):
                yield batch
                done += batch.num_rows
            last = [] if batch is None else batch.slice(batch.num_rows - 1).to_pylist()
            if quotes % 2 and (not are_inside or any("\n" in value for row in last for value in row.values())):
                raise ValueError(f"row {self.first_rows[file] + done - 1}: {_UNENDED}")
        except UNREADABLE as error:
            raise self._failure(file, self._with_row(file, names, quotes > 0) or error) from error

    def first_batch(self, names: Sequence[str]) -> tuple[int, Any]:
        """Return the number of the first file with rows, and its first batch; 0 and None without rows."""
        for file, path in enumerate(self.paths):
            with reading(path):
                batch = next(self._batches(file, names, has_quotes=True, use_threads=False), None)
            if batch is not None:
                return file, batch
        return 0, None

    def _with_row(self, file: int, names: Sequence[str], has_quotes: bool) -> Exception | None:
        """Return the error that one thread finds, which knows its row."""
        try:
            for _ in self._batches(file, names, has_quotes, use_threads=False):
                pass
        except UNREADABLE as error:
            return error
        return None

    def _failure(self, file: int, error: Exception) -> Exception:
        match = None if isinstance(error, GraphDataError) else _ROW_OF_FILE.search(str(error))
        if match is not None:
            row = f"row {self.first_rows[file] - 1 + int(match[1])}"
            error = ValueError(_ROW_OF_FILE.sub(row, str(error)))
        elif "straddling" in str(error):
            error = ValueError(f"a row is longer than {_BLOCK_BYTES} bytes: perhaps {_UNENDED}")
        return failure(self.paths[file], error)

    def _batches(self, file: int, names: Sequence[str], has_quotes: bool, use_threads: bool) -> Iterator[Any]:
        arrow_csv = arrow().csv
        with opened(self.paths[file]) as stream:
            stream.seek(self._begins[file])
            if not next((data for data in iter(lambda: stream.read(_LONGEST_LINE), b"") if data.strip()), b""):
                return  # pyarrow would raise
            stream.seek(self._begins[file])
            yield from arrow_csv.open_csv(
                stream,
                arrow_csv.ReadOptions(use_threads=use_threads, block_size=_BLOCK_BYTES, column_names=self.names),
                # for values with ends of lines in them pyarrow takes longer
                arrow_csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=has_quotes),
                arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(self.names, arrow().string()),
                    include_columns=list(names),
                    strings_can_be_null=False,
                ),
            )

    def _quotes(self, file: int) -> tuple[int, bool]:
        """Count the quotes of a file, and tell if one begins inside a field, as in ``5" pipe``."""
        count = 0
        is_inside = False
        before = b"\n"
        may_begin = np.frombuffer(f'{self._delimiter}"\n\r'.encode(), np.uint8)
        with opened(self.paths[file]) as stream:
            stream.seek(self._begins[file])
            while data := stream.read(_BLOCK_BYTES):
                if b'"' in data:
                    values = np.frombuffer(before + data, np.uint8)
                    quotes = np.flatnonzero(values[1:] == ord('"'))
                    is_inside |= not np.isin(values[quotes[count % 2 :: 2]], may_begin).all()
                    count += len(quotes)
                before = data[-1:]
        return count, is_inside


def _line_of(file: IO[bytes], begin: int) -> bytes:
    """Return the line that begins at a place of a file, with its end; it may be a lone carriage return."""
    file.seek(begin)
    line = file.readline(_LONGEST_LINE)
    end = line.find(b"\r") + 1
    return line if not end or line[end:] == b"\n" else line[:end]


def _fields_of(line: str, delimiter: str) -> list[str]:
    """Return the fields of a line, without the quotes around them."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [""])
    except csv.Error:  # of bytes that no text has
        return line.split(delimiter)


class Group(NamedTuple):
    """A group of rows of a parquet file: the number of the file, its own number there, its first row, and how many."""

    file: int
    number: int
    begin: int
    length: int


class ParquetFiles:
    """Parquet files.

    Attributes:
        kinds: name of each column -> "integer", "float", "bool", "time", "list" (of numbers), "string" or "other".
        lengths: rows of each file.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        self.metadata = []
        self._schema: Any = None
        for path in paths:
            with reading(path):
                os.close(open_regular(path))
                file = arrow().parquet.ParquetFile(path, memory_map=True)
            schema = file.schema_arrow.remove_metadata()
            _check_names(path, schema.names)
            if self._schema is not None and not schema.equals(self._schema):
                raise GraphDataError(f"{path}: columns are not those of {paths[0].name}")
            self._schema = schema
            self.metadata.append(file.metadata)
        self.lengths = [metadata.num_rows for metadata in self.metadata]
        self.names = list(self._schema.names)
        self.kinds = {entry.name: type_kind(entry.type) for entry in self._schema}
        self._lasts: dict[str, _LastGroup] = {}

    def title(self, file: int, name: str) -> str:
        """Return what messages call a column of a file, before the row."""
        return f"{self.paths[file]}: {name}"

    def groups(self) -> list[Group]:
        """Return the groups of rows of all files that have rows."""
        groups = []
        for file, metadata in enumerate(self.metadata):
            lengths = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
            begins = accumulate(lengths, initial=0)
            groups += [Group(file, *its) for its in zip(range(len(lengths)), begins, lengths, strict=False) if its[2]]
        return groups

    def column(self, group: Group, name: str) -> Any:
        """Return a column of a group of rows, as one Arrow array."""
        path = self.paths[group.file]
        with reading(path):
            with arrow().parquet.ParquetFile(path, metadata=self.metadata[group.file], memory_map=True) as reader:
                return reader.read_row_group(group.number, [name], use_threads=False).column(0).combine_chunks()

    def rows(self, group: Group, name: str) -> RowArray:
        """Return a column of numbers, which is read when its rows are asked for."""
        return _GroupRows(self, group, name, self._lasts.setdefault(name, _LastGroup()))

    def is_plain(self, group: Group, name: str) -> bool:
        """Return whether the file tells that all rows have a value, and what numbers they become."""
        of = self._schema.field(name).type
        kind = self.kinds[name]
        if kind in ("float", "list"):  # a missing float is NaN
            return True
        columns = self.metadata[group.file].row_group(group.number)
        every = (columns.column(number) for number in range(columns.num_columns))
        known = next((its.statistics for its in every if its.path_in_schema == name), None)
        has_fractions = arrow().types.is_timestamp(of) and of.unit != "s"
        return known is not None and known.has_null_count and not known.null_count and not has_fractions

    def no_rows(self, name: str) -> Array:
        """Return a column without rows."""
        return to_numpy(arrow().array([], self._schema.field(name).type), str)


@dataclass
class _LastGroup:
    """The group of a column that was read last, since slices end within groups, and the form of all of them."""

    group: Group | None = None
    rows: Array = field(default_factory=lambda: np.zeros(0))
    like: tuple[tuple[int, ...], Any] | None = None


class _GroupRows(DerivedRows):
    """A column of one group of rows; only the group that was read last is in memory."""

    def __init__(self, tables: ParquetFiles, group: Group, name: str, last: _LastGroup) -> None:
        self._tables = tables
        self._group = group
        self._name = name
        self._last = last
        if last.like is None:
            rows = self._read()
            last.like = rows.shape[1:], rows.dtype
        row_shape, dtype = last.like
        super().__init__((), (group.length, *row_shape), dtype)
        self.block_bytes = self.nbytes = group.length * self.dtype.itemsize * int(np.prod(row_shape))

    def __getitem__(self, rows: Any) -> Array:
        return np.asarray(self._read()[rows])

    def place(self, row: int) -> str:
        return f"{self._tables.title(self._group.file, self._name)}, row {self._group.begin + row}"

    def _read(self) -> Array:
        group = self._group
        if self._last.group != group:
            rows = to_numpy(self._tables.column(group, self._name), self.place)
            if len(rows) != group.length:
                raise GraphDataError(f"{self.place(0)}: {len(rows)} rows, where the file says {group.length}")
            if self._last.like is not None and rows.shape[1:] != self._last.like[0]:
                lengths = f"{rows.shape[1]} numbers, {self._last.like[0][0]} before"
                raise GraphDataError(f"{self.place(0)}: lists have {lengths}")
            self._last.rows = rows
            self._last.group = group
        return self._last.rows


Tables = TextFiles | ParquetFiles
"""Files of the same columns."""
