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

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.formats.arrow_values import Numbers, Place, arrow, distinct_in, to_numpy
from mpigraph.formats.input_files import Errors
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.table_files import Group, Tables
from mpigraph.formats.text_files import TextForm, Way
from mpigraph.log import get_logger
from mpigraph.partition.row_arrays import RowArray, as_dtype
from mpigraph.storage.narrow import RowError

NO_NUMBERS = ("string", "other", "none")
"""Kinds of columns that cannot be features."""

_CHUNK = 1 << 20  # rows
_INT64 = Numbers(np.dtype(np.int64))


@dataclass(frozen=True)
class IdColumn:
    """Ids of a table, which are integers or text."""

    tables: Tables
    name: str

    def __len__(self) -> int:
        return len(self.tables)

    @property
    def is_text(self) -> bool:
        """True if an id is not an integer."""
        return self.tables.kinds[self.name] == "string"

    @property
    def numbers(self) -> RowArray:
        """The ids of a column of integers alone."""
        if not self.tables.groups:
            return np.zeros(0, np.int64)
        return self.tables.rows(
            [self.name], lambda columns, place: to_numpy(columns[0], _INT64, lambda row: place(row, self.name))
        )

    def chunks(
        self, ranks: ReadingRanks, as_text: bool, blanks: bool = False
    ) -> Iterator[tuple[int, Array, Any, Place]]:
        """Yield this rank's share of the ids, a chunk at a time.

        Yields:
            The first row of the chunk; ids, as text the distinct ones (dtype S), which may be empty if ``blanks``, else
            int64; for each row the position among them; and what names a row of the chunk.

        Raises:
            GraphDataError: an id is missing or too long; names file and row.
        """
        groups = self.tables.groups
        firsts = np.cumsum([0, *(group.length for group in groups)]).tolist()
        for number in ranks.share_of(range(len(groups))):
            group = groups[number]
            column = self.tables.columns(group, [self.name])[0]
            if as_text:
                column = column.cast(arrow().large_string()).fill_null("")
                column = column if self.tables.is_text else arrow().compute.utf8_trim_whitespace(column)
            for begin in range(0, group.length, _CHUNK):

                def place(row: int, group: Group = group, begin: int = begin) -> str:
                    return self.tables.place(group, self.name, begin + row)

                chunk = column.slice(begin, _CHUNK)
                if as_text:
                    yield firsts[number] + begin, *distinct_in(chunk, place, blanks), place
                else:
                    yield firsts[number] + begin, to_numpy(chunk, _INT64, place), slice(None), place

    def place(self, row: int) -> str:
        """File, row and column."""
        return self.tables.place_of_row(self.name, row)


class ValueColumn(NamedTuple):
    """Values of a column."""

    # "integer", "float", "bool", "time", "list", or "string", "other" or "none" (no row has a value), which are no
    # numbers
    kind: str
    rows: RowArray  # [n] or [n, width]; of what is no numbers nothing
    place: str = ""  # of text the first value that is no number, with its place, if it is known


class _Look(NamedTuple):
    """Facts about the rows of a column, or of a group of them, that its type and statistics do not tell."""

    missing: int = 0  # rows without a value
    first: tuple[int, int] = (0, 0)  # the group of rows and the row of the first of them
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
                read[name] = ValueColumn(kind, np.zeros(0), tables.texts.get(columns[kinds.index(kind)], ""))
                continue
            forms = {
                key: _numbers(tables, name, key, its, ways[key], looks[key], len(columns) > 1)
                for key, its in zip(columns, kinds, strict=True)
            }
            read[name] = ValueColumn(kind, tables.rows(columns, partial(_read_rows, forms)))
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
    ways = dict.fromkeys(tables.names, Way(dtype, is_wide=True))
    tables.parse(ways)
    read = read_values(tables, {name: (name,) for name in ways}, ways, ranks)
    for name, column in read.items():
        if column.kind in NO_NUMBERS and (column.kind != "none" or len(tables)):
            raise GraphDataError(f"{column.place or f'{paths[0]}, column {name}'}: must be numbers (got {column.kind})")
    columns = [np.zeros(0, dtype or np.int64) if of.kind == "none" else of.rows for of in read.values()]
    return columns, tables.lengths


def _read_rows(forms: Mapping[str, Numbers], columns: Sequence[Any], place: Callable[[int, str], str]) -> Array:
    """Return rows of a feature: those of a column, or of several side by side."""
    beside = [
        to_numpy(column, numbers, lambda row, name=name: place(row, name))  # type: ignore[misc]
        for (name, numbers), column in zip(forms.items(), columns, strict=True)
    ]
    return beside[0] if len(beside) == 1 else np.stack(beside, 1)


@collective("ranks")
def _looks(tables: Tables, ways: Mapping[str, Way], ranks: ReadingRanks) -> dict[str, _Look]:
    """Look at the rows of columns whose types and statistics do not tell all; each group of rows by one rank."""
    to_read = [[key for key in ways if _must_look(tables, group, key, ways[key])] for group in tables.groups]

    def look(number: int) -> dict[str, _Look]:
        return {key: _look(tables, number, key, ways[key]) for key in to_read[number]}

    looks = dict.fromkeys(ways, _Look())
    for of_group in ranks.exchange.map(f"reading {tables.paths[0]}", len(to_read) if any(to_read) else 0, look):
        for key, its in of_group.items():
            one, other = looks[key], _Look(*its)
            first = one.first if one.missing else other.first
            fractions = one.has_fractions or other.has_fractions
            looks[key] = _Look(one.missing + other.missing, first, fractions, one.total + other.total)
    return looks


def _must_look(tables: Tables, group: Group, key: str, way: Way) -> bool:
    kind = tables.kinds[key]
    if kind in ("string", "other", "list") or way.dtype == "string":
        return False
    missing = tables.missing(group, key)
    return kind == "time" or bool(way.fill) or (kind != "float" if missing is None else missing > 0)


def _look(tables: Tables, number: int, key: str, way: Way) -> _Look:
    group = tables.groups[number]
    column = tables.columns(group, [key])[0]
    rows = to_numpy(column, Numbers(np.dtype(np.float64), rounds=True), partial(tables.place, group, key))
    gaps = np.isnan(rows) if way.fill else column.is_null().to_numpy(zero_copy_only=False)
    there = rows[~gaps]
    has_fractions = tables.kinds[key] == "time" and bool((there != np.rint(there)).any())
    return _Look(int(gaps.sum()), (number, int(gaps.argmax())), has_fractions, float(there.sum()))


def _kind(tables: Tables, key: str, way: Way) -> str:
    """Return the kind of a column. Raises GraphDataError: it cannot be as the user has said."""
    kind = "string" if way.dtype == "string" else tables.kinds[key]
    if kind == "none" and way.fill and tables.groups:
        return "float"
    refused = ("string", "other") if way.dtype else ("string", "other", "bool", "time", "list")
    if way.fill and (kind in refused or (way.fill == "mean" and np.dtype(way.dtype or "f4").kind != "f")):
        raise GraphDataError(f"{tables.paths[0]}: {key} is {way.dtype or kind}, which cannot be filled so (--fill)")
    return kind


def _numbers(tables: Tables, feature: str, key: str, kind: str, way: Way, look: _Look, is_beside: bool) -> Numbers:
    """Return the numbers that a column becomes, and say how many rows have none."""
    if way.dtype:
        dtype = np.dtype(way.dtype)
    elif kind == "time":
        dtype = np.dtype(np.float64 if look.has_fractions else np.int64)
    else:
        of = tables.types[key].value_type if kind == "list" else tables.types[key]
        dtype = np.dtype(of.to_pandas_dtype())
        if dtype.kind not in "biuf" or (dtype.kind in "iu" and look.missing):
            dtype = np.dtype(np.float64)
        if is_beside or (dtype == np.float64 and not way.is_wide):
            dtype = np.dtype(np.float32)
    if not look.missing:
        return Numbers(dtype, None, bool(way.dtype))
    number, row = look.first
    place = tables.place(tables.groups[number], key, row)
    count = len(tables)
    if not way.fill and (dtype.kind != "f" or (kind == "time" and not way.dtype)):
        remedy = f"--types {key}={dtype} --fill {key}=0, or --types {key}=string leaves it out"
        raise GraphDataError(f"{place}: a value is missing, which {dtype} cannot say ({remedy})")
    if way.fill == "mean" and look.missing == count:
        raise GraphDataError(f"{place}: no row has a value, so there is no mean (--fill)")
    becomes = way.fill or ("-1" if feature == "label" else "NaN (--fill COLUMN=0 or mean)")
    get_logger().warning("%s: %d of %d rows have no value, this one first: %s", place, look.missing, count, becomes)
    if not way.fill:
        return Numbers(dtype, None, bool(way.dtype))
    is_integer = way.fill.lstrip("+-").isdecimal()
    mean = look.total / max(count - look.missing, 1)
    fill = mean if way.fill == "mean" else int(way.fill) if is_integer else float(way.fill)
    try:
        return Numbers(dtype, as_dtype(np.array([fill]), dtype)[0], bool(way.dtype))
    except RowError as error:
        raise GraphDataError(f"{place}: --fill: {error}") from None
