"""Columns of tables, of text that was parsed once or of parquet: ids, and values with the type of all of their rows.

A column of ids keeps what stands there: int64 where every id of a piece of the table is a plain integer, else text.
A column of values has the type that all of its rows have: each piece is looked at, and the wider type wins, so that
integers become floats where a later row has a fraction or no value. Of parquet a piece is a group of rows, and only
columns whose types and statistics do not tell all are looked at: text, times with fractions, and what is to be filled.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpigraph.arrays import I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.formats.arrow_values import (
    EXACT,
    Place,
    Values,
    are_floats,
    arrow,
    buffers_of,
    distinct_in,
    float32_of,
    ids_of,
    missing_in,
    to_numpy,
    values_as,
    values_of,
)
from mpigraph.formats.input_files import Errors, GrowingFile
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.table_files import Group, ParquetFiles, Tables, TextFiles, TextForm
from mpigraph.log import get_logger
from mpigraph.partition.row_arrays import (
    MadeRows,
    NamedRows,
    RowArray,
    RowError,
    as_dtype,
    as_floats,
    concatenated,
    place_of,
    side_by_side,
)

NO_NUMBERS = ("string", "other", "none")
"""Kinds of columns that cannot be features."""

_CHUNK = 1 << 20  # rows
_FLOATS = ("float", "float16", "float32", "float64")
_MAY_HAVE_POINTS = ("integer", "float", "float32", "list")
_POINT = r"^[^:]*\.[^:]*$"  # also in lists, and not in the fractions of times


@dataclass(frozen=True)
class IdColumn:
    """Ids in the pieces of a table, which are integers or text."""

    pieces: "Sequence[_Piece]"
    name: str

    def __len__(self) -> int:
        return sum(piece.length for piece in self.pieces)

    @property
    def is_text(self) -> bool:
        """True if an id is not an integer."""
        return any(piece.kind(self.name) == "string" for piece in self.pieces)

    @property
    def numbers(self) -> RowArray:
        """The ids of a column of integers alone."""
        return concatenated([piece.rows(self.name) for piece in self.pieces] or [np.zeros(0, np.int64)])

    def texts(self, blanks: bool = False, ranks: ReadingRanks | None = None) -> Iterator[tuple[Array, I64, Place]]:
        """Yield the ids as text, a chunk at a time: distinct ones (dtype S), the position of each row, and its place.

        With ``blanks`` an id may be missing; it is empty then. ``ranks`` divide the chunks; None for all chunks.

        Raises:
            GraphDataError: an id is missing or too long; names file and row.
        """
        chunks = [(piece, begin) for piece in self.pieces for begin in range(0, piece.length, _CHUNK)]
        for piece, begin in chunks if ranks is None else ranks.share_of(chunks):
            if piece.kind(self.name) == "string":
                strings = piece.strings(self.name).slice(begin, _CHUNK)
            else:
                numbers = np.asarray(piece.rows(self.name)[begin : begin + _CHUNK])
                strings = arrow().array(numbers).cast(arrow().large_string())

            def place(row: int, piece: "_Piece" = piece, begin: int = begin) -> str:
                return piece.place(self.name, begin + row)

            yield *distinct_in(strings, place, blanks), place

    def place(self, row: int) -> str:
        """File and row."""
        for piece in self.pieces:
            if row < piece.length:
                return piece.place(self.name, row)
            row -= piece.length
        return ""


class ValueColumn(NamedTuple):
    """Values of a column."""

    # "integer", "float", "bool", "time", "list", or "string", "other" or "none" (no row has a value), which are no
    # numbers
    kind: str
    rows: RowArray  # [n] or [n, width]; of what is no numbers nothing
    place: str = ""  # file and row of the first text, if there are numbers before it


class TableColumns(NamedTuple):
    """Columns of one table."""

    lengths: list[int]  # rows of each file
    ids: dict[str, IdColumn]  # columns that were asked for as ids, by name
    values: dict[str, ValueColumn]  # columns of numbers, by name


def are_numbers(tables: Tables, columns: Sequence[str]) -> bool:
    """Return whether columns are numbers; of text the first block tells."""
    if isinstance(tables, ParquetFiles):
        return all(tables.kinds[name] in ("integer", "float", "bool") for name in columns)
    file, batch = tables.first_batch(columns)
    if batch is None:
        return False
    parts = _with_points(tables, [(batch.column(c), partial(_place_of, tables, file, 0, c)) for c in columns])
    return all(values_of(*part).kind in ("integer", "float", "bool", None) for part in parts)


@collective("ranks")
def read_columns(
    tables: Tables,
    ids: Collection[str],
    values: Mapping[str, Sequence[str]],
    types: Mapping[str, str],
    ranks: ReadingRanks,
    fill: Mapping[str, str] | None = None,
) -> TableColumns:
    """Read columns of a table; each file of text is parsed by one rank.

    Args:
        tables: the files.
        ids: columns whose values are names, which are kept as they are written.
        values: columns of numbers, by the name that they get; several side by side are the columns of a matrix.
        types: dtypes that the user has named, by column of ids or name; "string" keeps ids as text, and leaves values
            out. A matrix is float32 if it has none.
        ranks: the ranks that read it.
        fill: what rows without a value get, by column or name: a number, or "mean", which only floats can get.

    Raises:
        GraphDataError: values cannot be read or are missing; names file and row, of each column the first.
        StorageError: a temporary file cannot be written.
    """
    fill = fill or {}
    fills = {name: [fill.get(key, fill.get(name, "")) for key in columns] for name, columns in values.items()}
    errors = Errors()

    def check(name: str, kind: str) -> None:
        dtype = types.get(name, "")
        refused = ("string", "other") if dtype else ("string", "other", "bool", "time", "list")
        if any(fills[name]) and (kind in refused or ("mean" in fills[name] and not _is_float(dtype))):
            raise GraphDataError(f"{tables.paths[0]}: {name} is {dtype or kind}, which cannot be filled so (--fill)")

    if isinstance(tables, ParquetFiles):
        for name in ids:
            if tables.kinds[name] not in ("integer", "string"):
                what = f"column {name!r} is {tables.kinds[name]}"
                raise GraphDataError(f"{tables.paths[0]}: ids must be integers or text ({what})")
    to_parse = {name: _Column((name,), True, types.get(name, ""), ()) for name in ids}
    for name, columns in values.items():
        if isinstance(tables, TextFiles):
            to_parse[name] = _Column(columns, False, types.get(name, ""), fills[name])
        else:  # each by itself, since few need to be parsed
            of_each = zip(columns, fills[name], strict=True)
            to_parse |= {column: _Column((column,), False, types.get(name, ""), [its]) for column, its in of_each}
    pieces = _parsed(tables, to_parse, ranks)
    lengths = [sum(piece.length for piece in pieces if piece.file == file) for file in range(len(tables.paths))]
    pieces = [piece for piece in pieces if piece.length]
    read = {}
    for name, columns in values.items():
        with errors.collected():
            dtype = types.get(name, "")
            if isinstance(tables, TextFiles):
                read[name] = _values(pieces, name, dtype, fills[name])
            else:
                read[name] = _side_by_side(tables, pieces, columns, dtype, fills[name])
            check(name, read[name].kind)
    errors.check()
    return TableColumns(lengths, {name: IdColumn(pieces, name) for name in ids}, read)


def chunks_of_numbers(path: Path, dtype: np.dtype[Any]) -> Iterator[Array]:
    """Yield ``[rows, columns]`` of a csv file of numbers without names; an empty field is NaN where the dtype has it.

    Raises GraphDataError: a value does not fit the dtype; names file and row.
    """
    tables = TextFiles([path], TextForm(",", headless=True, first=()))
    done = 0
    for batch in tables.batches(0, tables.names):
        columns = [values_as(dtype, batch.column(c), partial(_place_of, tables, 0, done, c)) for c in tables.names]
        yield np.stack(columns, 1)
        done += batch.num_rows


_Found: TypeAlias = tuple[str, tuple[int, int], list[Array]]
"""The kind of a column of a piece, how many rows have no value and the first of them, and arrays of its rows."""


class _Column(NamedTuple):
    """Columns of the files to parse side by side; ``dtype`` is "" unless the user has named one."""

    columns: Sequence[str]
    is_ids: bool
    dtype: str
    fills: Sequence[str]


class _Described(NamedTuple):
    """A column of a block of text: where its arrays lie in a mapped file, as JSON keeps it."""

    kind: str
    missing: int  # rows without a value
    first: int  # the first of them, of text the first that is no number; -1: none
    arrays: list[tuple[int, str, Sequence[int]]]  # first byte, dtype, shape; of text offsets and bytes


@dataclass(frozen=True)
class _Piece:
    """Consecutive rows of a file: a block of text that was parsed, or a group of rows of parquet."""

    tables: Tables
    file: int
    row: int  # what the first row is called
    length: int
    columns: Mapping[str, _Described]
    data: Array  # the mapped file
    group: Group | None  # of parquet, which has the columns that were not parsed

    def kind(self, name: str) -> str:
        return self.columns[name].kind

    def rows(self, name: str) -> RowArray:
        if self.columns[name].arrays:
            return NamedRows(self._arrays(name)[0], self.tables.title(self.file, name), self.row)
        if isinstance(self.tables, ParquetFiles) and self.group is not None and self.kind(name) != "none":
            return self.tables.rows(self.group, name)
        return np.full(self.length, np.nan)

    def strings(self, name: str) -> Any:
        return arrow().LargeStringArray.from_buffers(self.length, *map(arrow().py_buffer, self._arrays(name)))

    def place(self, name: str, row: int) -> str:
        return f"{self.tables.title(self.file, name)}, row {self.row + row}"

    def _arrays(self, name: str) -> list[Array]:
        return [
            self.data[begin : begin + int(np.prod(shape)) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)
            for begin, dtype, shape in self.columns[name].arrays
        ]


def _as(dtype: str, rows: RowArray) -> RowArray:
    """Return rows in a dtype that the user has named, if any."""
    if dtype in ("", "string", rows.dtype.name):
        return rows
    return MadeRows(partial(as_dtype, dtype=np.dtype(dtype)), dtype, rows)


def _is_float(dtype: str) -> bool:
    """Return whether rows without a value are NaN: in a float dtype, or where the user has named none."""
    return np.dtype(dtype or "f4").kind == "f"


def _side_by_side(
    tables: ParquetFiles, pieces: Sequence[_Piece], columns: Sequence[str], dtype: str, fills: Sequence[str]
) -> ValueColumn:
    """Return columns of parquet as one of values."""
    if pieces:
        parts = [_values(pieces, name, dtype, [fill]) for name, fill in zip(columns, fills, strict=True)]
    else:
        parts = [ValueColumn(tables.kinds[name], _as(dtype, tables.no_rows(name))) for name in columns]
    for part in parts:
        if part.kind in NO_NUMBERS or len(parts) == 1:
            return part
    rows = [part.rows if dtype else as_floats(part.rows) for part in parts]
    return ValueColumn(dtype or "float32", side_by_side(rows))


@collective("ranks")
def _parsed(tables: Tables, columns: Mapping[str, _Column], ranks: ReadingRanks) -> list[_Piece]:
    """Parse this rank's files or groups of rows; return the pieces of all files, in their order."""
    doing = f"reading {tables.paths[0]}"
    groups = tables.groups() if isinstance(tables, ParquetFiles) else []
    with ExitStack() as stack:
        note: list[Any] = []
        with ranks.exchange.together(doing):
            scratch = ranks.growing(stack)(np.uint8, ())
            if isinstance(tables, ParquetFiles):
                _parse_groups(tables, ranks.share_of(groups), columns, scratch, note)
            else:
                for file in tables.share(ranks.exchange.rank, ranks.exchange.size):
                    _parse(tables, file, columns, scratch, note)
        gathered = ranks.gather(doing, note, [scratch])
    group_at = {(group.file, group.begin): group for group in groups}
    pieces = []
    for of_rank in gathered:
        for file, row, length, its in of_rank.note:
            described = {name: _Described(*column) for name, column in its.items()}
            group = group_at.get((file, row))
            pieces.append(_Piece(tables, file, row, length, described, of_rank.arrays[0], group))
    return sorted(pieces, key=lambda piece: (piece.file, piece.row))


def _parse_groups(
    tables: ParquetFiles, groups: Sequence[Group], columns: Mapping[str, _Column], scratch: GrowingFile, note: list[Any]
) -> None:
    """Write the columns that must be looked at to a temporary file, and note each group as :func:`_parse` does."""
    errors = Errors()
    failed = set[str]()
    for group in groups:
        described = {}
        for name, column in columns.items():
            if name in failed:
                continue
            with errors.collected():
                kind, missing, arrays = _of_group(tables, group, name, column)
                described[name] = _Described(kind, *missing, [_append(scratch, array) for array in arrays])
        failed = {*columns} - {*described}
        note.append((group.file, group.begin, group.length, described))
    errors.check()


def _of_group(tables: ParquetFiles, group: Group, name: str, column: _Column) -> _Found:
    """Return as :func:`_numbers`; without arrays if the column is read when its rows are asked for."""
    kind = tables.kinds[name]
    is_text = column.dtype == "string" or kind == "string"
    if not column.is_ids and (is_text or kind == "other"):
        return "string" if is_text else kind, (0, -1), []
    to_fill = any(column.fills) and kind == "float"
    if not is_text and (column.is_ids or (tables.is_plain(group, name) and not to_fill)):
        return column.dtype or kind, (0, -1), []
    values = tables.column(group, name)

    def place(row: int) -> str:
        return f"{tables.title(group.file, name)}, row {group.begin + row}"

    if not column.is_ids and (kind == "float" or not values.null_count):
        rows = to_numpy(values, place)
        is_missing = np.isnan(rows) if kind == "float" else np.zeros(0, bool)
        return column.dtype or kind, _first_of(is_missing), [rows]
    text = values.cast(arrow().large_string()).fill_null("")
    if column.is_ids:
        kind, arrays = _ids(text, place, column.dtype)
        return kind, (0, -1), arrays
    return _numbers([(text, place)], column.dtype, column.fills)


def _parse(tables: TextFiles, file: int, columns: Mapping[str, _Column], scratch: GrowingFile, note: list[Any]) -> None:
    """Write the columns of a file to a temporary one, and note each block: file, first row, length, columns."""
    done = 0
    names = list(dict.fromkeys(part for column in columns.values() for part in column.columns))
    # of these no later block can make numbers
    done_with = {name for name, column in columns.items() if column.dtype == "string" and not column.is_ids}
    errors = Errors()
    for batch in tables.batches(file, names):
        described = {}
        for name, column in columns.items():
            parts = [(batch.column(part), partial(_place_of, tables, file, done, part)) for part in column.columns]
            kind, missing, arrays = "string", (0, -1), list[Array]()
            with errors.collected():
                if name in done_with:
                    pass
                elif column.is_ids:
                    kind, arrays = _ids(*parts[0], column.dtype)
                else:
                    kind, missing, arrays = _numbers(_with_points(tables, parts), column.dtype, column.fills)
                    if kind in _MAY_HAVE_POINTS or column.dtype:
                        _check_points(tables, parts)
            if kind == "string" and not arrays:
                done_with.add(name)
            described[name] = _Described(kind, *missing, [_append(scratch, array) for array in arrays])
        note.append((file, tables.first_rows[file] + done, batch.num_rows, described))
        done += batch.num_rows
    errors.check()


def _with_points(tables: TextFiles, parts: Sequence[tuple[Any, Place]]) -> Sequence[tuple[Any, Place]]:
    """Return columns of numbers with decimal points."""
    if tables.form.decimal == ".":
        return parts
    replace = arrow().compute.replace_substring
    return [(replace(column, tables.form.decimal, "."), place) for column, place in parts]


def _check_points(tables: TextFiles, parts: Sequence[tuple[Any, Place]]) -> None:
    """Check that numbers have no points where decimals have commas: there they stand between thousands."""
    for column, place in parts if tables.form.decimal == "," else ():
        row = arrow().compute.index(arrow().compute.match_substring_regex(column, _POINT), True).as_py()
        if row >= 0:
            text = column[row].as_py()
            raise GraphDataError(f"{place(row)}: {text!r:.80} has a point, but decimals have commas (--decimal ,)")


def _place_of(tables: TextFiles, file: int, done: int, column: str, row: int) -> str:
    """Name a row of a block that begins at row ``done`` of a file."""
    return f"{tables.paths[file]}, row {tables.first_rows[file] + done + row}, column {column}"


def _ids(column: Any, place: Place, dtype: str) -> tuple[str, list[Array]]:
    if dtype not in ("", "string"):  # so that 007 is read as 7
        return "integer", [values_as(np.dtype(np.int64), column, place)]
    ids = ids_of(column)
    if isinstance(ids, np.ndarray) and not dtype:
        return "integer", [ids]
    if isinstance(ids, np.ndarray):
        ids = arrow().compute.utf8_trim_whitespace(column)
    elif not dtype and are_floats(ids):
        raise GraphDataError(
            f"{place(0)}: ids must be integers or text (got {ids[0].as_py()}); --types COLUMN=string takes them as text"
        )
    offsets, data = buffers_of(ids)
    return "string", [offsets - offsets[0], data]


def _first_of(is_missing: Mask) -> tuple[int, int]:
    """Return how many rows are missing, and the first; -1 without one."""
    return int(is_missing.sum()), int(is_missing.argmax()) if is_missing.any() else -1


def _numbers(parts: Sequence[tuple[Any, Place]], dtype: str, fills: Sequence[str]) -> _Found:
    """Return the kind of values side by side, how many rows have no value and the first of them, and the rows.

    Floats without a value are NaN until the column is filled; others are filled here.
    """
    if dtype or len(parts) > 1:
        filled = fills if not _is_float(dtype) else [""] * len(parts)
        beside = [
            values_as(np.dtype(dtype), *part, fill) if dtype else float32_of(*part)
            for part, fill in zip(parts, filled, strict=True)
        ]
        dtype = dtype or "float32"
        values = Values(dtype, beside[0] if len(beside) == 1 else np.stack(beside, 1), -1)
    else:
        values = values_of(*parts[0])
    kind = values.kind or "none"
    if kind in _FLOATS or dtype:
        if kind in _FLOATS:
            is_missing = np.isnan(values.rows).any(tuple(range(1, values.rows.ndim)))
        else:
            is_missing = np.any([missing_in(text) for text, _ in parts], axis=0) if any(fills) else np.zeros(0, bool)
        return kind, _first_of(np.asarray(is_missing)), [values.rows]
    missing = len(parts[0][0]) if kind == "none" else int(values.missing >= 0)
    return kind, (missing, 0 if kind == "none" else values.missing), [] if kind in NO_NUMBERS else [values.rows]


def _append(file: GrowingFile, array: Array) -> tuple[int, str, tuple[int, ...]]:
    """Append an array to a file of bytes; return where it begins, its dtype and shape."""
    begin = len(file)
    file.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    file.append(np.zeros(-len(file) % 8, np.uint8))
    return begin, array.dtype.str, array.shape


def _values(pieces: Sequence[_Piece], name: str, dtype: str, fills: Sequence[str]) -> ValueColumn:
    """Return a column of values: the type that all rows have, and how many have no value."""
    known = {piece.kind(name) for piece in pieces} - {"none"}
    kind = next(iter(known)) if len(known) == 1 else "string" if known else "none"
    if known == {"integer", "float"} or (kind == "none" and pieces and any(fills)):
        kind = "float"
    if kind in NO_NUMBERS:
        text = next((piece for piece in pieces if piece.kind(name) == "string"), None)
        first = -1 if text is None else text.columns[name].first
        is_first = text is None or first < 0 or (text is pieces[0] and not first)
        return ValueColumn(kind, np.zeros(0), "" if text is None or is_first else text.place(name, first))
    missing = [(piece, piece.columns[name]) for piece in pieces if piece.columns[name].missing]
    count = sum(its.missing for _, its in missing)
    if count:
        piece, its = missing[0]
        if not dtype and kind not in ("integer", *_FLOATS):
            raise GraphDataError(f"{piece.place(name, its.first)}: {name} has no value")
        filled = ", ".join(filter(None, dict.fromkeys(fills)))
        becomes = filled or ("-1" if name == "label" else "NaN (--fill COLUMN=0 or mean)")
        total = sum(piece.length for piece in pieces)
        line = "%s: %s has no value in %d of %d rows (the first: row %d): %s"
        path = piece.tables.paths[piece.file]
        get_logger().warning(line, path, name, count, total, piece.row + its.first, becomes)
    rows = [piece.rows(name) for piece in pieces]
    if kind == "list" and len({its.shape[1:] for its in rows}) > 1:
        number = next(number for number, its in enumerate(rows) if its.shape[1:] != rows[0].shape[1:])
        lengths = f"a list has {rows[number].shape[1]} numbers, {rows[0].shape[1]} before"
        place = f"{pieces[number].place(name, 0)}, column {name}"
        raise GraphDataError(f"{place}: {lengths}; --types COLUMN=string leaves the column out")
    to_fill = count > 0 and any(fills)
    rows = [its if to_fill and its.dtype.kind == "f" else _as(dtype, its) for its in rows]
    if len({its.dtype.kind for its in rows}) > 1:
        rows = [its if its.dtype.kind == "f" else MadeRows(_exact_floats, np.float64, its) for its in rows]
    whole = concatenated(rows)
    return ValueColumn(kind, _as(dtype, _filled(whole, name, fills) if to_fill and whole.dtype.kind == "f" else whole))


def _filled(rows: RowArray, name: str, fills: Sequence[str]) -> RowArray:
    """Return rows with numbers, or means of the other rows, for NaN. Raises GraphDataError: there are no others."""
    sums = np.zeros((2, *rows.shape[1:]))
    for first in range(0, len(rows) if "mean" in fills else 0, _CHUNK):
        chunk = np.asarray(rows[first : first + _CHUNK], np.float64)
        sums += np.stack([np.nansum(chunk, axis=0), (~np.isnan(chunk)).sum(axis=0)])
    if "mean" in fills and not sums[1].all():
        raise GraphDataError(f"{place_of(rows, 0)}: {name} has no value in any row, so no mean (--fill)")
    mean = sums[0] / np.maximum(sums[1], 1)
    numbers = [np.nan if fill in ("", "mean") else float(fill) for fill in fills]
    beside = np.array(numbers if rows.ndim > 1 else numbers[0])
    values = np.where(np.array(fills if rows.ndim > 1 else fills[0]) == "mean", mean, beside).astype(rows.dtype)
    return MadeRows(lambda chunk: np.where(np.isnan(chunk), values, chunk), rows.dtype, rows)


def _exact_floats(rows: Array) -> Array:
    lost = np.abs(rows.reshape(len(rows), -1)).max(1, initial=0) > EXACT
    if lost.any():
        row = int(lost.argmax())
        reason = "which other rows of the column ask for; --types COLUMN=float64 rounds it"
        raise RowError(row, f"{rows[row]} does not fit float64, {reason}")
    return rows.astype(np.float64)
