"""Columns of tables: ids, and values with the type of all of their rows.

A column of ids keeps what stands there: int64 where every id is a plain integer, else text. A column of values has the
type that all of its rows have: integers become floats where another row has a fraction or no value.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.formats.arrow_values import Place, arrow, distinct_in, to_numpy
from mpigraph.formats.input_files import Errors
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.table_files import Group, Tables
from mpigraph.formats.text_files import TextForm, Way
from mpigraph.log import get_logger
from mpigraph.partition.row_arrays import RowArray

NO_NUMBERS = ("string", "other", "none")
"""Kinds of columns that cannot be features."""

_CHUNK = 1 << 20  # rows
_FLOATS = ("float", "float16", "float32", "float64")


@dataclass(frozen=True)
class IdColumn:
    """Ids of a table, which are integers or text."""

    tables: Tables
    name: str

    def __len__(self) -> int:
        return sum(self.tables.lengths)

    @property
    def is_text(self) -> bool:
        """True if an id is not an integer."""
        return self.tables.kinds[self.name] == "string"

    @property
    def numbers(self) -> RowArray:
        """The ids of a column of integers alone."""
        if not self.tables.groups:
            return np.zeros(0, np.int64)
        return self.tables.rows([self.name], lambda columns, place: to_numpy(columns[0], lambda r: place(r, self.name)))

    def texts(self, ranks: ReadingRanks, blanks: bool = False) -> Iterator[tuple[int, Array, I64, Place]]:
        """Yield this rank's share of the ids as text, a chunk at a time.

        With ``blanks`` an id may be missing; it is empty then.

        Yields:
            The first row of the chunk, its distinct ids (dtype S), for each row the position among them, and what names
            a row of the chunk.

        Raises:
            GraphDataError: an id is missing or too long; names file and row.
        """
        groups = self.tables.groups
        firsts = np.append(0, np.cumsum([group.length for group in groups])).tolist()
        for number in ranks.share_of(range(len(groups))):
            group = groups[number]
            strings = self.tables.columns(group, [self.name])[0].cast(arrow().large_string()).fill_null("")
            if not self.tables.is_text:
                strings = arrow().compute.utf8_trim_whitespace(strings)
            for begin in range(0, group.length, _CHUNK):

                def place(row: int, group: Group = group, begin: int = begin) -> str:
                    return self.tables.place(group, self.name, begin + row)

                distinct, positions = distinct_in(strings.slice(begin, _CHUNK), place, blanks)
                yield firsts[number] + begin, distinct, positions, place

    def place(self, row: int) -> str:
        """File and row."""
        return self.tables.place_of_row(self.name, row)


class ValueColumn(NamedTuple):
    """Values of a column."""

    # "integer", "float", "bool", "time", "list", or "string", "other" or "none" (no row has a value), which are no
    # numbers
    kind: str
    rows: RowArray  # [n] or [n, width]; of what is no numbers nothing
    place: str = ""  # file and row of the first text, if there are numbers before it


class _Look(NamedTuple):
    """Facts about the rows of a column, or of a group of them, that its type and statistics do not tell."""

    missing: int = 0  # rows without a value
    first: tuple[int, int] = (-1, 0)  # the number of the file and the row of the first of them
    has_fractions: bool = False  # of times
    total: float = 0.0  # sum of the values, for a mean


@collective("ranks")
def read_values(
    tables: Tables, features: Mapping[str, Sequence[str]], ways: Mapping[str, Way], ranks: ReadingRanks
) -> dict[str, ValueColumn]:
    """Read columns of numbers of a table that was parsed.

    Args:
        tables: the files.
        features: columns, by the name that they get; several side by side are the columns of a matrix, which is float32
            if the user has named no dtype for it.
        ways: the user's words about columns.
        ranks: the ranks that read it.

    Raises:
        GraphDataError: values cannot be read or are missing; names file and row, of each column the first.
    """
    looks = _looks(tables, {key: ways[key] for columns in features.values() for key in columns}, ranks)
    errors = Errors()
    read = {}
    for name, columns in features.items():
        with errors.collected():
            kinds = [_kind(tables, key, ways[key]) for key in columns]
            kind = next((kind for kind in kinds if kind in NO_NUMBERS), kinds[0])
            if kind in NO_NUMBERS:
                read[name] = ValueColumn(kind, np.zeros(0), tables.place_of_text(columns[kinds.index(kind)]))
                continue
            becomes = "-1" if name == "label" else "NaN (--fill COLUMN=0 or mean)"
            forms = {
                key: _form(tables, key, its, ways[key], looks[key], becomes)
                for key, its in zip(columns, kinds, strict=True)
            }
            rows = tables.rows(columns, partial(_read_rows, forms))
            read[name] = ValueColumn(ways[columns[0]].dtype or kind, rows)
    errors.check()
    return read


@collective("ranks")
def read_numbers(
    paths: Sequence[Path], ranks: ReadingRanks, form: TextForm, kind: str = "csv", dtype: str = ""
) -> tuple[list[RowArray], list[int]]:
    """Return all columns of files of numbers, and how many rows each file has.

    Without a ``dtype`` a column is int64, or float64 if one of its rows asks for that.

    Raises GraphDataError: a value is missing or no number; names file and row, of each column the first.
    """
    tables = Tables(paths, ranks, form, kind)
    ways = dict.fromkeys(tables.names, Way(dtype))
    tables.parse(ways)
    read = read_values(tables, {name: (name,) for name in ways}, ways, ranks)
    for name, column in read.items():
        if column.kind in NO_NUMBERS and (column.kind != "none" or any(tables.lengths)):
            raise GraphDataError(f"{column.place or paths[0]}: column {name} must be numbers (got {column.kind})")
    columns = [np.zeros(0, dtype or np.int64) if of.kind == "none" else of.rows for of in read.values()]
    return columns, tables.lengths


class _Form(NamedTuple):
    """The numbers that a column becomes."""

    dtype: str  # that the user has named
    are_floats: bool
    fill: str  # of rows without a value, where they cannot be NaN
    value: float  # for NaN


def _read_rows(forms: Mapping[str, _Form], columns: Sequence[Any], place: Callable[[int, str], str]) -> Array:
    """Return rows of a feature: those of a column, or of several side by side, which are float32 or as asked for."""
    beside = []
    for (name, form), column in zip(forms.items(), columns, strict=True):

        def of_row(row: int, name: str = name) -> str:
            return place(row, name)

        rows = to_numpy(column, of_row, form.dtype, form.are_floats, form.fill)
        if not np.isnan(form.value):
            rows = np.where(np.isnan(rows), np.array(form.value, rows.dtype), rows)
        beside.append(rows if len(forms) == 1 or form.dtype else _float32(name, rows, of_row))
    return beside[0] if len(beside) == 1 else np.stack(beside, 1)


def _float32(column: str, rows: Array, place: Place) -> Array:
    """Return numbers as float32. Raises GraphDataError: one is too large, or an integer would be rounded."""
    with np.errstate(over="ignore", invalid="ignore"):
        cast: Array = rows.astype(np.float32)
        lost = (cast.astype(rows.dtype) != rows) & ((rows == np.rint(rows)) | np.isinf(cast))
    if lost.any():
        advice = "which columns side by side become; --types COLUMN=float64 or int64 keeps it"
        row = int(lost.argmax())
        raise GraphDataError(f"{place(row)}: {column} {rows[row]} does not fit float32, {advice}")
    return cast


@collective("ranks")
def _looks(tables: Tables, ways: Mapping[str, Way], ranks: ReadingRanks) -> dict[str, _Look]:
    """Look at the rows of columns whose types and statistics do not tell all; each group of rows by one rank."""
    looks = dict.fromkeys(ways, _Look())
    to_read = [[key for key in ways if _must_look(tables, group, key, ways[key])] for group in tables.groups]
    if not any(to_read):
        return looks

    def look(number: int) -> dict[str, _Look]:
        return {key: _look(tables, tables.groups[number], key, ways[key]) for key in to_read[number]}

    for of_group in ranks.exchange.map(f"reading {tables.paths[0]}", len(to_read), look):
        for key, its in of_group.items():
            one, other = looks[key], _Look(*its)
            fractions = one.has_fractions or other.has_fractions
            looks[key] = _Look(
                one.missing + other.missing,
                one.first if one.missing else other.first,
                fractions,
                one.total + other.total,
            )
    return looks


def _must_look(tables: Tables, group: Group, key: str, way: Way) -> bool:
    kind = "string" if way.dtype == "string" else tables.kinds[key]
    if kind in (*NO_NUMBERS, "list"):
        return False
    if (kind == "time" and tables.has_fractions(key)) or (way.fill and (kind == "float" or way.fill == "mean")):
        return True
    missing = tables.missing(group, key)
    return kind != "float" if missing is None else missing > 0


def _look(tables: Tables, group: Group, key: str, way: Way) -> _Look:
    column = tables.columns(group, [key])[0]
    gaps = column.is_null().to_numpy(zero_copy_only=False)

    def place(row: int) -> str:
        return tables.place(group, key, row)

    has_fractions, total = False, 0.0
    if tables.kinds[key] == "time":
        has_fractions = to_numpy(column.drop_null(), place).dtype.kind == "f"
    elif way.fill == "mean" or (way.fill and tables.kinds[key] == "float"):
        rows = to_numpy(column, place, way.dtype, not way.dtype, "0" if np.dtype(way.dtype or "f8").kind != "f" else "")
        gaps = np.isnan(rows)
        total = float(np.nansum(rows, dtype=np.float64))
    return _Look(int(gaps.sum()), (group.file, group.begin + int(gaps.argmax())), has_fractions, total)


def _kind(tables: Tables, key: str, way: Way) -> str:
    """Return the kind of a column. Raises GraphDataError: rows without a value cannot get what the user has named."""
    kind = "string" if way.dtype == "string" else tables.kinds[key]
    if kind == "none" and way.fill and tables.groups:
        kind = "float"
    refused = ("string", "other") if way.dtype else ("string", "other", "bool", "time", "list")
    if way.fill and (kind in refused or (way.fill == "mean" and not _is_float(way))):
        raise GraphDataError(f"{tables.paths[0]}: {key} is {way.dtype or kind}, which cannot be filled so (--fill)")
    return kind


def _is_float(way: Way) -> bool:
    """Return whether rows without a value are NaN, as far as the user says."""
    return np.dtype(way.dtype or "f4").kind == "f"


def _form(tables: Tables, key: str, kind: str, way: Way, look: _Look, becomes: str) -> _Form:
    """Return the numbers that a column becomes, and say how many rows have none."""
    count = sum(tables.lengths)
    if tables.kinds[key] == "none" and count:
        look = look._replace(missing=count, first=(tables.groups[0].file, 0))
    value = np.nan
    if look.missing:
        file, row = look.first
        if not way.dtype and kind not in ("integer", "float"):
            what = f"{key} has no value (--types {key}=bool --fill {key}=0, or --types {key}=string leaves it out)"
            raise GraphDataError(f"{tables.place_of(file, row, key)}: {what}")
        line = "%s: %s has no value in %d of %d rows (the first: row %d): %s"
        first = tables.first_row(file) + row
        get_logger().warning(line, tables.paths[file], key, look.missing, count, first, way.fill or becomes)
        if way.fill == "mean" and look.missing == count:
            what = f"{key} has no value in any row, so no mean (--fill)"
            raise GraphDataError(f"{tables.place_of(file, row, key)}: {what}")
        if way.fill and _is_float(way):
            value = look.total / (count - look.missing) if way.fill == "mean" else float(way.fill)
    are_floats = kind == "float" or look.has_fractions or look.missing > 0
    return _Form(way.dtype, are_floats, "" if _is_float(way) else way.fill, value)
