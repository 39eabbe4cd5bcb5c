"""Text of tables by pyarrow, an extra: it is parsed once, and becomes parquet.

Text may be compressed (``.gz``, ``.bz2``) and begin with lines of comments (``#``). The first line tells if tabs,
commas, semicolons or blanks separate its fields. It is parsed a block at a time, every field as a string
(``arrow_values.py`` says what it means). A column has the type that all rows of the file have: where a block needs a
wider one than the blocks before, all are parsed again.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from mpigraph.errors import GraphDataError
from mpigraph.formats.arrow_values import (
    Place,
    arrow,
    have_points,
    ids_of,
    missing_in,
    type_kind,
    values_as,
    values_of,
    wider_type,
)
from mpigraph.formats.input_files import UNREADABLE, Errors, failure, opened
from mpigraph.storage.files import storage_errors

_BLOCK_BYTES = 8 << 20
_LONGEST_LINE = 1 << 20
_UNENDED = "a field in quotes does not end"
_BOM = b"\xef\xbb\xbf"
_NO_MARKS = re.compile(r'"[^"]*"')  # commas in it do not separate fields
_NO_DECIMALS = re.compile(r'"[^"]*"|(?<=\d),(?=\d)')
_ROW_OF_FILE = re.compile(r"\bRow #(\d+)")
_MAY_HAVE_POINTS = ("integer", "float", "list")
_POINT = r"^[^:]*\.[^:]*$"  # also in lists, and not in the fractions of times


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


class Head(NamedTuple):
    """The first lines of a file of text."""

    names: list[str]
    delimiter: str
    begin: int  # the byte at which the rows begin
    first_row: int  # the line, from 1, at which they begin
    no_header: list[str]  # the fields of the first line, where it has no names and none are given


def head_of(path: Path, form: TextForm) -> Head:
    """Read the first lines of a file."""
    with opened(path) as file:
        skipped = 0
        begin = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
        while (line := _line_of(file, begin)).startswith(b"#") and form.names is None:
            skipped += 1
            begin += len(line)
    text = line.decode("utf-8", "replace").strip("\r\n")
    bare = (_NO_MARKS if form.decimal == "." else _NO_DECIMALS).sub("", text)
    marks = [mark for mark in bare if mark in ",;"] or ([" "] if " " in bare else [","])
    delimiter = form.delimiter or ("\t" if "\t" in bare else marks[0])
    fields = [name.strip() for name in _fields_of(text, delimiter)]
    named = not form.headless and not all(text.lstrip("-").isdecimal() for text in fields[:2])
    names = fields
    if form.names is not None:
        names = list(form.names)
    elif not named:
        names = [*form.first, *(f"column{n}" for n in range(len(form.first), len(fields)))][: len(fields)]
    no_header = [] if named or form.names is not None else fields
    return Head(names, delimiter, begin + len(line) * named, skipped + named + 1, no_header)


class Way(NamedTuple):
    """The use of a column of text, and the user's words about it."""

    dtype: str = ""  # that the user has named, "string" for ids that stay text; "" for that of all rows
    fill: str = ""  # what a row without a value gets
    is_ids: bool = False


class _Column:
    """A column of a file, block after block."""

    def __init__(self, way: Way, decimal: str) -> None:
        self._way = way
        self._decimal = decimal
        self.type: Any = None  # of all rows so far
        self.first_text: int | None = None  # of a column that is text: the first row that is no number, -1: unknown

    def read(self, text: Any, done: int, place: Place) -> Any:
        """Return the values of a block that begins at row ``done``; None if the column is text."""
        way = self._way
        row = -1
        if way.is_ids:
            column = ids_in(text, place, way.dtype)
        else:
            number = text if self._decimal == "." else arrow().compute.replace_substring(text, self._decimal, ".")
            if way.dtype:
                column = _as_named(np.dtype(way.dtype), number, place, way.fill)
            else:
                column, row = values_of(number, place, self.type)
            if self._decimal == "," and column is not None and type_kind(column.type) in _MAY_HAVE_POINTS:
                _check_points(text, place)
        known = column.type if self.type is None and column is not None else self.type
        wider = None if column is None else wider_type(known, column.type)
        if wider is None and way.is_ids:
            wider = arrow().string()
        if wider is None:
            self.first_text = done + row if row >= 0 else -1
        self.type = wider
        return None if wider is None else column


def write_parquet(path: Path, form: TextForm, head: Head, columns: Mapping[str, Way], target: Path) -> dict[str, int]:
    """Parse columns of a file of text, and write them to a parquet file, each block as a group of rows.

    Returns the first row that is no number (-1: unknown) of each column that is text and no ids, which is not written.

    Raises GraphDataError: values cannot be read; names file and row, of each column the first.
    """
    parquet = arrow().parquet
    states = {name: _Column(way, form.decimal) for name, way in columns.items()}
    file = _TextFile(path, head)
    while True:  # twice where a type has become wider than that of rows that were written
        writer: Any = None
        schema: Any = None
        done = 0
        errors = Errors()
        failed = set[str]()
        for batch in file.batches(list(columns)):
            read = {}
            for name, state in states.items():
                if state.first_text is None and name not in failed:
                    failed.add(name)
                    with errors.collected():
                        read[name] = state.read(batch.column(name), done, partial(file.place, done, name))
                        failed.remove(name)
            done += batch.num_rows
            if writer is None and not failed:
                schema = _schema(states)
                plain = [field.name for field in schema if type_kind(field.type) != "string"]
                writer = parquet.ParquetWriter(
                    target, schema, compression="none", use_dictionary=False, write_statistics=plain
                )
            if not failed and all(states[field.name].type in (None, field.type) for field in schema):
                nulls = arrow().nulls(batch.num_rows)
                arrays = [(nulls if read.get(of.name) is None else read[of.name]).cast(of.type) for of in schema]
                with storage_errors(target.parent):
                    writer.write_batch(arrow().record_batch(arrays, schema=schema))
        if writer is not None:
            with storage_errors(target.parent):
                writer.close()
        errors.check()
        if writer is None:  # no rows
            parquet.write_table(arrow().table({name: arrow().nulls(0) for name in columns}), target)
        if writer is None or all(states[field.name].type in (None, field.type) for field in schema):
            return {name: state.first_text for name, state in states.items() if state.first_text is not None}


def _schema(states: Mapping[str, _Column]) -> Any:
    return arrow().schema([(name, state.type) for name, state in states.items() if state.type is not None])


def ids_in(text: Any, place: Place, dtype: str = "") -> Any:
    """Return the ids in a column of text: int64 if all are plain integers or the user has named a dtype, else text."""
    if dtype not in ("", "string"):  # so that 007 is read as 7
        return arrow().array(values_as(np.dtype(np.int64), text, place))
    ids = ids_of(text)
    if isinstance(ids, np.ndarray):
        return arrow().compute.utf8_trim_whitespace(text) if dtype else arrow().array(ids)
    if not dtype and have_points(ids):
        raise GraphDataError(
            f"{place(0)}: ids must be integers or text (got {ids[0].as_py()}); --types COLUMN=string takes them as text"
        )
    return ids


def _as_named(dtype: np.dtype[Any], text: Any, place: Place, fill: str) -> Any:
    """Return the values in a column of text in a dtype that the user has named, null where one is missing."""
    rows = values_as(dtype, text, place, fill)
    if rows.ndim > 1:
        return arrow().FixedSizeListArray.from_arrays(arrow().array(rows.reshape(-1)), rows.shape[1])
    return arrow().array(rows.astype(np.float32) if dtype == np.float16 else rows, mask=missing_in(text))


def _check_points(text: Any, place: Place) -> None:
    """Check that numbers have no points where decimals have commas: there they stand between thousands."""
    row = arrow().compute.index(arrow().compute.match_substring_regex(text, _POINT), True).as_py()
    if row >= 0:
        raise GraphDataError(
            f"{place(row)}: {text[row].as_py()!r:.80} has a point, but decimals have commas (--decimal ,)"
        )


class _TextFile:
    """The rows of a file of text; it is opened once for each pass over them."""

    def __init__(self, path: Path, head: Head) -> None:
        self._path = path
        self._head = head

    def place(self, done: int, column: str, row: int) -> str:
        """Name a row of a block that begins at row ``done``."""
        return f"{self._path}, row {self._head.first_row + done + row}, column {column}"

    def batches(self, names: Sequence[str]) -> Iterator[Any]:
        """Yield record batches of strings, parsed by pyarrow's threads."""
        done = 0
        batch: Any = None
        quotes, are_inside = 1, False
        with opened(self._path) as stream:
            try:
                quotes, are_inside = self._quotes(stream)
                for batch in self._batches(stream, names, quotes > 0, use_threads=True):
                    yield batch
                    done += batch.num_rows
                last = [] if batch is None else batch.slice(batch.num_rows - 1).to_pylist()
                if quotes % 2 and (not are_inside or any("\n" in value for row in last for value in row.values())):
                    raise ValueError(f"row {self._head.first_row + done - 1}: {_UNENDED}")
            except UNREADABLE as error:
                raise self._failure(self._with_row(stream, names, quotes > 0) or error) from error

    def _with_row(self, stream: IO[bytes], names: Sequence[str], has_quotes: bool) -> Exception | None:
        """Return the error that one thread finds, which knows its row."""
        try:
            for _ in self._batches(stream, names, has_quotes, use_threads=False):
                pass
        except UNREADABLE as error:
            return error
        return None

    def _failure(self, error: Exception) -> Exception:
        match = None if isinstance(error, GraphDataError) else _ROW_OF_FILE.search(str(error))
        if match is not None:
            row = f"row {self._head.first_row - 1 + int(match[1])}"
            error = ValueError(_ROW_OF_FILE.sub(row, str(error)))
        elif "straddling" in str(error):
            error = ValueError(f"a row is longer than {_BLOCK_BYTES} bytes: perhaps {_UNENDED}")
        return failure(self._path, error)

    def _batches(self, stream: IO[bytes], names: Sequence[str], has_quotes: bool, use_threads: bool) -> Iterator[Any]:
        arrow_csv = arrow().csv
        stream.seek(self._head.begin)
        if not next((data for data in iter(lambda: stream.read(_LONGEST_LINE), b"") if data.strip()), b""):
            return  # pyarrow would raise
        stream.seek(self._head.begin)
        yield from arrow_csv.open_csv(
            stream,
            arrow_csv.ReadOptions(use_threads=use_threads, block_size=_BLOCK_BYTES, column_names=self._head.names),
            # for values with ends of lines in them pyarrow takes longer
            arrow_csv.ParseOptions(delimiter=self._head.delimiter, newlines_in_values=has_quotes),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(self._head.names, arrow().string()),
                include_columns=list(names),
                strings_can_be_null=False,
            ),
        )

    def _quotes(self, stream: IO[bytes]) -> tuple[int, bool]:
        """Count the quotes of a file, and tell if one begins inside a field, as in ``5" pipe``."""
        count = 0
        is_inside = False
        before = b"\n"
        may_begin = np.frombuffer(f'{self._head.delimiter}"\n\r'.encode(), np.uint8)
        stream.seek(self._head.begin)
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
