"""Tables in files by pyarrow, an extra: parquet, and text that becomes parquet (``text_files.py``).

They are read by groups of rows, when they are asked for. A column of values has the type that all of its rows have:
integers become floats where another row has a fraction or no value. A column of ids keeps what stands there
(``id_maps.py``).
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.formats.arrow_values import Numbers, arrow, rows_named, to_numpy, type_kind, wider_type
from mpigraph.formats.input_files import Errors, once, reading
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.text_files import Head, TextForm, Way, head_of, write_parquet
from mpigraph.log import get_logger
from mpigraph.partition.row_arrays import RowArray, as_dtype, rows_in_blocks
from mpigraph.storage.contents import overlaps
from mpigraph.storage.files import open_regular

_TABLE = re.compile(r"[^._].*\.(parquet|pq|(csv|tsv|txt)(\.(gz|bz2))?)", re.IGNORECASE)
_PARQUET = (".parquet", ".pq")
_NO_NUMBERS = {"string": "text (--categories COLUMN numbers it)", "other": "no numbers", "none": "empty"}


def is_table(path: Path) -> bool:
    """Return whether a path is a csv or parquet file, by its name, and no hidden one."""
    return _TABLE.fullmatch(path.name) is not None and path.is_file()


class _Parquet(NamedTuple):
    """A parquet file."""

    source: Path  # the file of the table, which is the file itself, or text
    path: Path
    schema: Any
    metadata: Any


class Group(NamedTuple):
    """A group of rows."""

    file: _Parquet
    number: int  # its own in the file
    line: int  # of its first row in the file of the table; in text the first line has 1, in parquet 0
    begin: int  # its first row in the table
    length: int  # how many rows it has


class Tables:
    """Files of the same columns, at least one, parquet or text by their names.

    Of text the first lines are read; the rows when it is parsed.

    Attributes:
        paths: the files.
        ranks: the ranks that read them, whose files these may be.
        is_text: whether they are text.
        names: of the columns.
        no_header: the fields of the first line of text, where it has no names.
        ways: the use of columns, once they are parsed.
        groups: the groups of rows of all files that have rows, once they are parsed.
        kinds: name of each column -> integer, float, bool, time, list (of numbers), string, none or other, once they
            are parsed.
        types: the Arrow types of all rows of the columns, once they are parsed.
        texts: of columns of text that are no ids the first value that is no number, with its place; "" if the user
            says that it is text.

    Raises:
        GraphDataError: they cannot be read, or do not fit together; or there is no pyarrow.
    """

    @collective("ranks")
    def __init__(self, paths: Sequence[Path], ranks: ReadingRanks, form: TextForm) -> None:
        arrow()
        are_parquet = {path.name.lower().endswith(_PARQUET) for path in paths}
        if len(are_parquet) > 1:
            raise GraphDataError(f"{paths[0].parent}: csv and parquet files cannot be one table")
        self.paths = paths
        self.ranks = ranks
        self.is_text = are_parquet == {False}
        self.texts: dict[str, str] = {}
        self._form = form
        if self.is_text:
            heads = ranks.exchange.map(f"reading {paths[0]}", len(paths), lambda n: head_of(paths[n], form))
            self._heads = [Head(*head) for head in heads]
        else:
            self._open([(path, path, 0) for path in paths])
            self._heads = [Head(file.schema.names, "", 0, 0, []) for file in self._files]
        self.names = self._heads[0].names
        self.no_header = self._heads[-1].no_header
        for path, head in zip(paths, self._heads, strict=True):
            if head.names != self.names:
                raise GraphDataError(f"{path}: columns {head.names} are not those of {paths[0].name}, {self.names}")
        with reading(paths[0]):
            once((f"column {name}", None) for name in self.names)

    @collective("ranks")
    def parse(self, ways: Mapping[str, Way]) -> None:
        """Parse columns, of text each file by one rank, and find the types of all their rows.

        Raises GraphDataError: values cannot be read, or ids are no ids; names file and row, of each column the first.
        """
        self.ways = ways
        if self.is_text:
            folder = self.ranks.new_file("")

            def write(number: int) -> tuple[list[str], dict[str, str]]:
                folder.mkdir(exist_ok=True)
                return write_parquet(self.paths[number], self._form, self._heads[number], ways, folder / str(number))

            told = self.ranks.exchange.map(f"reading {self.paths[0]}", len(self.paths), write)
            self.texts = {name: place for _, texts in reversed(told) for name, place in texts.items()}
            of_paths = zip(self.paths, self._heads, told, strict=True)
            self._open((path, Path(its), head.first_row) for path, head, (files, _) in of_paths for its in files)
        schemas = [group.file.schema for group in self.groups] or [file.schema for file in self._files]
        self.types = {name: reduce(wider_type, [of.field(name).type for of in schemas]) for name in schemas[0].names}
        for name, way in ways.items():
            kind = type_kind(self.types[name])
            if way.is_ids and kind not in ("integer", "string") and len(self):
                raise GraphDataError(f"{self.paths[0]}: ids must be integers or text (column {name!r} is {kind})")
            if way.is_ids and (way.dtype or kind == "string"):
                is_text = way.dtype in ("", "string")
                self.types[name] = arrow().large_string() if is_text else arrow().int64()
        texts = [*self.texts, *(name for name, way in ways.items() if way.dtype == "string")]
        self.kinds = {name: type_kind(of) for name, of in self.types.items()} | dict.fromkeys(texts, "string")

    def _open(self, files: Iterable[tuple[Path, Path, int]]) -> None:
        """Read what parquet files tell of their columns and groups of rows.

        ``files`` have the file of the table that each of them has rows of, their own path, and the first row's line.
        """
        self._files: list[_Parquet] = []
        self._open_file: tuple[Path | None, Any] = None, None
        self.groups: list[Group] = []
        lines: dict[Path, int] = {}
        self._length = 0
        for source, path, first in files:
            with reading(source):
                os.close(open_regular(path))
                opened = arrow().parquet.ParquetFile(path, memory_map=True)
            file = _Parquet(source, path, opened.schema_arrow.remove_metadata(), opened.metadata)
            self._files.append(file)
            for number in range(opened.metadata.num_row_groups):
                length, line = opened.metadata.row_group(number).num_rows, lines.get(source, first)
                if length:
                    self.groups.append(Group(file, number, line, self._length, length))
                lines[source] = line + length
                self._length += length

    def __len__(self) -> int:
        return self._length

    def place(self, name: str, row: int) -> str:
        """Return the file, row and column of a row."""
        group = next((group for group in self.groups if row < group.begin + group.length), None)
        file = f"{group.file.source}, row {group.line + row - group.begin}" if group else self.paths[0]
        return f"{file}, column {name}"

    def errors(self, group: Group, name: str, first: int = 0) -> AbstractContextManager[None]:
        """Name file, row and column in errors of values of a group, from a first row on."""
        return rows_named(group.file.source, name, group.line + first)

    def columns(self, group: Group, names: Sequence[str]) -> list[Any]:
        """Return columns of a group of rows, each as one Arrow array; ids and lists in the type of all rows."""
        path, known = group.file.path, group.file.metadata
        if self._open_file[0] != path:  # one stays open: that takes long where there are thousands of columns
            self._open_file = path, arrow().parquet.ParquetFile(path, metadata=known, memory_map=True)
        with reading(group.file.source):
            read = self._open_file[1].read_row_group(group.number, list(names), use_threads=False)
            columns = [read.column(name).combine_chunks() for name in names]
            for place, name in enumerate(names):
                if self.kinds[name] != "float":  # which are checked one by one
                    columns[place] = columns[place].cast(self.types[name])
                if self.kinds[name] == "string" and not self.is_text:
                    columns[place] = arrow().compute.utf8_trim_whitespace(columns[place])
            return columns

    def missing(self, group: Group) -> dict[str, int]:
        """Return how many rows of a group have no value, for the columns whose file tells that; NaN is a value."""
        columns = group.file.metadata.row_group(group.number)
        known = ((of.path_in_schema, of.statistics) for of in map(columns.column, range(columns.num_columns)))
        return {name: its.null_count for name, its in known if its is not None and its.has_null_count}

    def rows(self, forms: Mapping[str, Callable[[Any], Array]]) -> RowArray:
        """Return what functions make of columns of a group of rows, side by side if there are several.

        They are read when rows are asked for.
        """

        @lru_cache(1)  # since slices end within groups
        def of_group(number: int) -> Array:
            group, beside = self.groups[number], []
            for (name, make), column in zip(forms.items(), self.columns(group, [*forms]), strict=True):
                with self.errors(group, name):
                    beside.append(make(column))
            return beside[0] if len(beside) == 1 else np.stack(beside, 1)

        if not self.groups:
            empty = [make(arrow().array([], self.types[name])) for name, make in forms.items()]
            return empty[0] if len(empty) == 1 else np.stack(empty, 1)
        bounds = np.array([*(group.begin for group in self.groups), len(self)])
        shape, dtype = of_group(0).shape[1:], of_group(0).dtype

        def of_rows(begin: int, end: int) -> Array:
            pieces = [of_group(number)[first:last] for number, first, last in overlaps(bounds, begin, end)]
            for piece in pieces:
                if piece.shape[1:] != shape:
                    what = f"lists have {piece.shape[1]} numbers, {shape[0]} before"
                    raise GraphDataError(f"{self.place(next(iter(forms)), begin)} or a later one: {what}")
            return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty((0, *shape), dtype), *pieces])

        return rows_in_blocks(of_rows, (len(self), *shape), dtype, bounds, partial(self.place, next(iter(forms))))


class _Look(NamedTuple):
    """Facts about the rows of a column, or of a group of them, that its type and statistics do not tell."""

    missing: int = 0  # rows without a value
    first: int = 0  # the first of them
    has_fractions: bool = False  # of times
    total: float = 0.0  # sum of the values, for a mean


@collective("ranks")
def read_values(tables: Tables, features: Mapping[str, Sequence[str]]) -> tuple[dict[str, RowArray], list[str]]:
    """Read columns of numbers of a table that was parsed.

    Args:
        tables: the files.
        features: columns, by the name that they get; several side by side are the columns of a matrix, which is float32
            if the user has named no dtype for it.

    Returns:
        The rows of each, and words about those that are no numbers.

    Raises:
        GraphDataError: values cannot be read or are missing; names file and row, of each column the first.
    """
    looks = _looks(tables, [key for columns in features.values() for key in columns])
    errors = Errors()
    read: dict[str, RowArray] = {}
    left_out = []
    for name, columns in features.items():
        with errors.of(name):
            kinds = {key: _kind(tables, key) for key in columns}
            key = next((key for key in columns if kinds[key] in _NO_NUMBERS), columns[0])
            if kinds[key] in _NO_NUMBERS:
                first = f": the first is {tables.texts[key]}" if tables.texts.get(key) else ""
                left_out.append(f"{tables.paths[0]}: column {name} is {_NO_NUMBERS[kinds[key]]}{first}")
                continue
            forms = {k: _numbers(tables, name, k, kinds[k], looks.get(k, _Look()), len(columns) > 1) for k in columns}
            if len(columns) > 1:
                text = "%s: columns %s to %s become the rows of one feature %r"
                get_logger().warning(text, tables.paths[0], columns[0], columns[-1], name)
            read[name] = tables.rows({k: partial(to_numpy, numbers=its) for k, its in forms.items()})
            if kinds[key] == "time":
                text = "%s: times in %s become %s, seconds since 1970 (UTC)"
                get_logger().warning(text, tables.paths[0], name, read[name].dtype)
    errors.check()
    return read, left_out


@collective("ranks")
def read_numbers(paths: Sequence[Path], ranks: ReadingRanks, form: TextForm, dtype: str = "") -> list[RowArray]:
    """Return all columns of files of numbers.

    Without a ``dtype`` a column is int64, or float64 if one of its rows asks for that.

    Raises GraphDataError: a value is missing or no number; names file and row, of each column the first.
    """
    tables = Tables(paths, ranks, form)
    tables.parse(dict.fromkeys(tables.names, Way(dtype, is_wide=True)))
    read, left_out = read_values(tables, {name: (name,) for name in tables.names})
    if left_out and len(tables):
        raise GraphDataError(left_out[0])
    return [read.get(name, np.zeros(0, dtype or np.int64)) for name in tables.names]


@collective("ranks")
def _looks(tables: Tables, keys: Iterable[str]) -> dict[str, _Look]:
    """Look at the rows of columns whose types and statistics do not tell all; each group of rows by one rank."""
    keys = [key for key in keys if tables.kinds[key] not in ("string", "other", "list")]

    def look(number: int) -> dict[str, _Look]:
        group = tables.groups[number]
        known = tables.missing(group)
        fills = {key: bool(tables.ways[key].fill) for key in keys}
        to_read = [key for key in keys if fills[key] or tables.kinds[key] == "time" or known.get(key) != 0]
        return {key: _look(tables, group, key, fills[key]) for key in to_read}

    of_groups = tables.ranks.exchange.map(f"reading {tables.paths[0]}", len(tables.groups), look)
    looks = {}
    for key in keys:
        its = [_Look(*of_group[key]) for of_group in of_groups if key in of_group]
        first = next((look.first for look in its if look.missing), 0)
        missing, total = sum(look.missing for look in its), sum(look.total for look in its)
        looks[key] = _Look(missing, first, any(look.has_fractions for look in its), total)
    return looks


def _look(tables: Tables, group: Group, key: str, nan_is_missing: bool) -> _Look:
    column = tables.columns(group, [key])[0]
    with tables.errors(group, key):
        rows = to_numpy(column, Numbers(np.dtype(np.float64), rounds=True))
    gaps = np.isnan(rows) if nan_is_missing else column.is_null().to_numpy(zero_copy_only=False)
    there = rows[~gaps]
    has_fractions = tables.kinds[key] == "time" and bool((there != np.rint(there)).any())
    return _Look(int(gaps.sum()), group.begin + int(gaps.argmax()), has_fractions, float(there.sum()))


def _kind(tables: Tables, key: str) -> str:
    """Return the kind of a column. Raises GraphDataError: it cannot be as the user has said."""
    way = tables.ways[key]
    kind = tables.kinds[key]
    if kind == "none" and way.fill and tables.groups:
        return "float"
    refused = ("string", "other") if way.dtype else ("string", "other", "bool", "time", "list")
    if way.fill and (kind in refused or (way.fill == "mean" and np.dtype(way.dtype or "f4").kind != "f")):
        raise GraphDataError(f"{tables.paths[0]}: {key} is {way.dtype or kind}, which cannot be filled so (--fill)")
    return kind


def _numbers(tables: Tables, feature: str, key: str, kind: str, look: _Look, is_beside: bool) -> Numbers:
    """Return the numbers that a column becomes, and say how many rows have none."""
    way = tables.ways[key]
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
    place = tables.place(key, look.first)
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
    with reading(f"{place}: --fill"):
        return Numbers(dtype, as_dtype(np.array([fill]), dtype)[0], bool(way.dtype))
