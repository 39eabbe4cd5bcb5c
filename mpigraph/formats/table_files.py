"""Tables in files by pyarrow, an extra: csv and parquet.

**Text** is read once, a block at a time, every field as a string (``arrow_values.py`` says what it means). It may be
compressed (``.gz``, ``.bz2``) and begin with lines of comments (``#``). The first line tells if tabs, commas,
semicolons or blanks separate its fields. **Parquet** is read by groups of rows, when they are asked for.
"""

import csv
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.formats.arrow_values import EXACT, arrow, to_numpy, type_kind
from mpigraph.formats.input_files import UNREADABLE, failure, is_packed, opened, reading
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.log import get_logger
from mpigraph.partition.exchange import even_bounds
from mpigraph.partition.row_arrays import DerivedRows, RowArray, concatenated
from mpigraph.storage.files import open_regular

_TEXT = (".csv", ".tsv", ".txt")
_PARQUET = (".parquet", ".pq")
_BLOCK_BYTES = 16 << 20
_BATCH_ROWS = 1 << 20
_LONGEST_LINE = 1 << 20
_UNENDED = "a field in quotes does not end"
_BOM = b"\xef\xbb\xbf"
_ROW_OF_PIECE = re.compile(r"\bRow #(\d+)")


class Piece(NamedTuple):
    """Consecutive rows of a file, which one rank reads."""

    file: int  # number of the file
    begin: int  # the first byte of a text, the first group of rows of a parquet file
    end: int  # one behind the last; -1 for a text that cannot be cut


@dataclass(frozen=True)
class TextForm:
    """The form of a text file."""

    delimiter: str | None = None  # between fields; None to look at the first line
    # of the columns; None to take those of the first line, or ``src``, ``dst``, ``column2``, ... where the first line
    # has two numbers in front
    names: tuple[str, ...] | None = None
    headless: bool = False  # the first line is a row; False to look at it, after comments


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


@collective("ranks")
def cut(tables: "Tables", ranks: ReadingRanks) -> list[Piece]:
    """Return the pieces that this rank reads: as many bytes, or groups of rows, as every other rank.

    Text is cut between lines; one rank reads a file that cannot be cut.
    """
    pieces = tables.pieces()
    total = sum(piece.end - piece.begin for piece in pieces if piece.end >= 0)
    rank = ranks.exchange.rank
    size = ranks.exchange.size
    begin, end = even_bounds(total, size)[rank : rank + 2].tolist()
    own = []
    for piece in pieces:
        if piece.end >= 0:
            first, last = (piece.begin + min(max(at, 0), piece.end - piece.begin) for at in (begin, end))
            own += [Piece(piece.file, first, last)] if first < last else []
            begin -= piece.end - piece.begin
            end -= piece.end - piece.begin
    if isinstance(tables, TextFiles):
        own = tables.between_lines(own, ranks)
    return sorted([*own, *[piece for piece in pieces if piece.end < 0][rank::size]])


def _check_names(path: Path, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise GraphDataError(f"{path}: there are several columns of the name {name!r}")


class TextFiles:
    """Csv files of one form."""

    def __init__(self, paths: Sequence[Path], form: TextForm) -> None:
        self.paths = paths
        self._form = form
        self._delimiter = form.delimiter
        self._first_rows: list[int] = []
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
            file.seek(begin)
            while (line := file.readline(_LONGEST_LINE)).startswith(b"#") and self._form.names is None:
                skipped += 1
                begin += len(line)
        text = line.decode("utf-8", "replace").strip("\r\n")
        if self._delimiter is None:
            self._delimiter = next((mark for mark in "\t,;" if mark in text), " ")
        fields = [name.strip() for name in _fields_of(text, self._delimiter)]
        named = not self._form.headless and not all(text.lstrip("-").isdecimal() for text in fields[:2])
        self._first_rows.append(skipped + named + 1)
        self._begins.append(begin + len(line) * named)
        if self._form.names is not None:
            return list(self._form.names)
        self.no_header = [] if named else fields
        return fields if named else ["src", "dst", *(f"column{n}" for n in range(2, len(fields)))][: len(fields)]

    def pieces(self) -> list[Piece]:
        """Return the bytes of each file."""
        ends = [-1 if is_packed(path) else path.stat().st_size for path in self.paths]
        return [Piece(file, begin, end) for file, (begin, end) in enumerate(zip(self._begins, ends, strict=True))]

    @collective("ranks")
    def between_lines(self, own: Sequence[Piece], ranks: ReadingRanks) -> list[Piece]:
        """Return this rank's pieces, moved so that each begins and ends at the beginning of a line.

        A line does not end between quotes, so all quotes before a piece are counted. One rank reads a file in which a
        quote begins inside a field, as in ``5" pipe``: such a quote does not count, but only a parser sees that.
        """
        quotes = {}
        if ranks.exchange.size > 1:
            quotes = {str(piece.file): self._quotes(piece) for piece in own}
        counted = [gathered.note for gathered in ranks.gather(f"reading {self.paths[0]}", quotes)]
        pieces = []
        for file, *bounds in own:
            ends = (self._begins[file], self.pieces()[file].end)
            numbers = [0, *np.cumsum([its.get(str(file), (0,))[0] for its in counted]).tolist()]
            of_file = ((its.get(str(file)), before) for its, before in zip(counted, numbers, strict=False))
            if any(its[1 + before % 2] for its, before in of_file if its is not None):  # a quote inside a field
                pieces += [Piece(file, *ends)] if bounds[0] == ends[0] else []
                continue
            for number, at in enumerate(bounds):
                if at not in ends:
                    bounds[number] = self._next_line(file, at, numbers[ranks.exchange.rank + number] % 2 == 1)
            pieces.append(Piece(file, *bounds))
        return pieces

    def _quotes(self, piece: Piece) -> tuple[int, bool, bool]:
        """Count the quotes of a piece, and tell if one begins inside a field.

        Returns:
            The number; and whether one that follows an even number of quotes stands inside a field, if the piece begins
            outside of quotes, and if it begins between quotes.
        """
        count = 0
        inside = [False, False]
        may_begin = np.frombuffer(f'{self._delimiter}"\n\r'.encode(), np.uint8)
        before = b"\n"
        if piece.begin > self._begins[piece.file]:
            before = next(self._bytes(piece._replace(begin=piece.begin - 1, end=piece.begin)))[1]
        for _, data in self._bytes(piece):
            if b'"' in data:
                values = np.frombuffer(before + data, np.uint8)
                quotes = np.flatnonzero(values[1:] == ord('"'))
                is_inside = ~np.isin(values[quotes], may_begin)
                for parity in (0, 1):
                    inside[parity] |= bool(is_inside[(parity + count) % 2 :: 2].any())
                count += len(quotes)
            before = data[-1:]
        return count, inside[0], inside[1]

    def _next_line(self, file: int, at: int, is_quoted: bool) -> int:
        end = self.pieces()[file].end
        for begin, data in self._bytes(Piece(file, at, end)):
            for match in re.finditer(rb'["\n]', data):
                if match[0] == b'"':
                    is_quoted = not is_quoted
                elif not is_quoted:
                    return begin + match.end()
        return end

    def _bytes(self, piece: Piece) -> Iterator[tuple[int, bytes]]:
        """Yield the content of a piece, and where it begins."""
        with opened(self.paths[piece.file]) as file:
            at = file.seek(piece.begin)
            while data := file.read(_BLOCK_BYTES if piece.end < 0 else min(_BLOCK_BYTES, piece.end - at)):
                yield at, data
                at += len(data)

    def first_row(self, piece: Piece) -> int:
        """Return the line of the file, from 1, at which a piece begins."""
        before = piece._replace(begin=self._begins[piece.file], end=max(piece.begin, self._begins[piece.file]))
        return self._first_rows[piece.file] + sum(data.count(b"\n") for _, data in self._bytes(before))

    def batches(self, piece: Piece, names: Sequence[str]) -> Iterator[Any]:
        """Yield record batches of strings."""
        arrow_csv = arrow().csv
        done = 0
        batch: Any = None
        try:
            quotes, is_inside, _ = self._quotes(piece)
            stream = self._stream(piece)
            if stream is None:
                return
            with stream:
                for batch in arrow_csv.open_csv(
                    stream,
                    # one thread, so that errors name the row
                    arrow_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, column_names=self.names),
                    arrow_csv.ParseOptions(
                        delimiter=self._delimiter,
                        # for values with ends of lines in them pyarrow takes longer
                        newlines_in_values=quotes > 0,
                    ),
                    arrow_csv.ConvertOptions(
                        column_types=dict.fromkeys(self.names, arrow().string()),
                        include_columns=list(names),
                        strings_can_be_null=False,
                    ),
                ):
                    yield batch
                    done += batch.num_rows
            last = [] if batch is None else batch.slice(batch.num_rows - 1).to_pylist()
            if quotes % 2 and (not is_inside or any("\n" in value for row in last for value in row.values())):
                raise ValueError(f"row {self.first_row(piece) + done - 1}: {_UNENDED}")
        except UNREADABLE as error:
            match = None if isinstance(error, GraphDataError) else _ROW_OF_PIECE.search(str(error))
            if match is not None:
                row = f"row {self.first_row(piece) - 1 + int(match[1])}"
                error = ValueError(_ROW_OF_PIECE.sub(row, str(error)))
            elif "straddling" in str(error):
                error = ValueError(f"a row is longer than {_BLOCK_BYTES} bytes: perhaps {_UNENDED}")
            raise failure(self.paths[piece.file], error) from error

    def _stream(self, piece: Piece) -> Any:
        """Return the bytes of a piece as a stream of Arrow; None for no bytes, where pyarrow would raise."""
        path = self.paths[piece.file]
        if piece.end < 0:
            file = opened(path)
            file.seek(piece.begin)
            if not file.read(1):
                file.close()
                return None
            file.seek(piece.begin)
            return arrow().PythonFile(file, "r")
        if piece.begin >= piece.end:
            return None
        os.close(open_regular(path))
        data = np.memmap(path, np.uint8, "r", piece.begin, piece.end - piece.begin)
        if not data[:_LONGEST_LINE].tobytes().strip() and not data.tobytes().strip():
            return None
        return arrow().BufferReader(arrow().py_buffer(data))


def _fields_of(line: str, delimiter: str) -> list[str]:
    """Return the fields of a line, without the quotes around them."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [""])
    except csv.Error:  # of bytes that no text has
        return line.split(delimiter)


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

    def pieces(self) -> list[Piece]:
        """Return the groups of rows of each file."""
        return [Piece(file, 0, metadata.num_row_groups) for file, metadata in enumerate(self.metadata)]

    def first_row(self, piece: Piece) -> int:
        """Return the row of the file, from 0, at which a piece begins."""
        return sum(self.metadata[piece.file].row_group(group).num_rows for group in range(piece.begin))

    def batches(self, piece: Piece, names: Sequence[str]) -> Iterator[Any]:
        """Yield record batches."""
        with reading(self.paths[piece.file]), self._reader(piece.file) as reader:
            groups = list(range(piece.begin, piece.end))
            yield from reader.iter_batches(_BATCH_ROWS, groups, columns=list(names), use_threads=False)

    def group(self, file: int, group: int, name: str) -> Any:
        """Return a column of a group of rows, as one Arrow array."""
        with reading(self.paths[file]), self._reader(file) as reader:
            return reader.read_row_group(group, columns=[name], use_threads=False).column(0).combine_chunks()

    def _reader(self, file: int) -> Any:
        return arrow().parquet.ParquetFile(self.paths[file], metadata=self.metadata[file], memory_map=True)

    def _lacks_values(self, name: str) -> bool:
        """Return whether the groups' statistics say that rows of a column of integers have no value."""
        groups = [m.row_group(number) for m in self.metadata for number in range(m.num_row_groups)]
        columns = [group.column(number) for group in groups for number in range(group.num_columns)]
        statistics = [column.statistics for column in columns if column.path_in_schema == name]
        return self.kinds[name] == "integer" and any(entry is not None and entry.null_count for entry in statistics)

    def rows(self, name: str, gaps: bool = False) -> RowArray:
        """Return a column whose groups are read when they are asked for.

        With ``gaps``, integers may be missing: all become float64 then, and the missing ones NaN, as in csv.
        """
        last = _LastGroup(as_floats=gaps and self._lacks_values(name))
        if last.as_floats:
            get_logger().warning("%s: %s has rows without a value, which become NaN", self.paths[0], name)
        groups: list[RowArray] = []
        for file, metadata in enumerate(self.metadata):
            begin = 0
            for number in range(metadata.num_row_groups):
                length = metadata.row_group(number).num_rows
                if length:
                    like = groups[0] if groups else None
                    groups.append(_GroupRows(self, (file, number), name, begin, length, last, like))
                begin += length
        return concatenated(groups) if groups else to_numpy(arrow().array([], self._schema.field(name).type), str)


@dataclass
class _LastGroup:
    """The group of a column that was read last, since slices end within groups; ``as_floats`` holds for all groups."""

    as_floats: bool = False
    key: tuple[int, int] = (-1, -1)
    rows: Array = field(default_factory=lambda: np.zeros(0))


class _GroupRows(DerivedRows):
    """A column of one group of rows; only the group that was read last is in memory."""

    def __init__(
        self,
        tables: ParquetFiles,
        key: tuple[int, int],
        name: str,
        begin: int,
        length: int,
        last: _LastGroup,
        like: RowArray | None,
    ) -> None:
        self._tables = tables
        self._key = key
        self._name = name
        self._begin = begin
        self._length = length
        self._last = last
        self._row_shape = None if like is None else like.shape[1:]
        like = self._read() if like is None else like
        super().__init__((), (length, *like.shape[1:]), like.dtype)
        self.block_bytes = self.nbytes = length * self.dtype.itemsize * int(np.prod(self.shape[1:]))

    def __getitem__(self, rows: Any) -> Array:
        return np.asarray(self._read()[rows])

    def place(self, row: int) -> str:
        return f"{self._tables.paths[self._key[0]]}: {self._name}, row {self._begin + row}"

    def _read(self) -> Array:
        if self._last.key != self._key:
            column = self._tables.group(*self._key, self._name)
            if self._last.as_floats:
                column = self._with_gaps(column)
            rows = to_numpy(column, self.place)
            if len(rows) != self._length:
                raise GraphDataError(f"{self.place(0)}: {len(rows)} rows, where the file says {self._length}")
            if self._row_shape is not None and rows.shape[1:] != self._row_shape:
                lengths = f"{rows.shape[1]} numbers, {self._row_shape[0]} before"
                raise GraphDataError(f"{self.place(0)}: lists have {lengths}")
            self._last.rows = rows
            self._last.key = self._key
        return self._last.rows

    def _with_gaps(self, integers: Any) -> Any:
        large = np.flatnonzero(np.abs(integers.fill_null(0).to_numpy(zero_copy_only=False)) > EXACT)
        if len(large):
            raise GraphDataError(
                f"{self.place(large[0])}: {integers[int(large[0])]} does not fit float64, which the column is read as "
                "since rows have no value; --types COLUMN=string leaves the column out"
            )
        return integers.cast(arrow().float64())


Tables = TextFiles | ParquetFiles
"""Files of the same columns."""
