"""Tables in files by pyarrow, an extra: parquet, and text that becomes parquet (``text_files.py``).

They are read by groups of rows, when they are asked for.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.formats.arrow_values import arrow, type_kind, wider_type
from mpigraph.formats.input_files import is_packed, reading
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.text_files import Head, TextForm, Way, head_of, ids_in, write_parquet
from mpigraph.partition.row_arrays import FileRows, RowArray
from mpigraph.storage.contents import overlaps
from mpigraph.storage.files import open_regular

_TEXT = (".csv", ".tsv", ".txt")
_PARQUET = (".parquet", ".pq")


def is_table(path: Path) -> bool:
    """Return whether a path is a csv or parquet file, by its name, and no hidden one."""
    name = path.name.lower()
    is_named = name.endswith((*_PARQUET, *_TEXT)) or (is_packed(path) and Path(name).stem.endswith(_TEXT))
    return is_named and not name.startswith((".", "_")) and path.is_file()


class Group(NamedTuple):
    """A group of rows of a parquet file: the number of the file, its own number there, its first row, and how many."""

    file: int
    number: int
    begin: int
    length: int


Read = Callable[[Sequence[Any], Callable[[int, str], str]], Array]
"""Returns rows made of Arrow arrays, one of each column; the second argument names a row of a column."""


class Tables:
    """Files of the same columns, at least one; ``kind`` is "parquet" or "csv", None to go by names of files.

    Of text the first lines are read; the rows when it is parsed.

    Attributes:
        paths: the files.
        is_text: whether they are text.
        names: of the columns.
        no_header: the fields of the first line of text, where it has no names and none are given.
        groups: the groups of rows of all files that have rows, once it is parsed.
        kinds: name of each column -> integer, float, bool, time, list (of numbers), string, none or other; of text
            once it is parsed.
        lengths: rows of each file, once it is parsed.

    Raises:
        GraphDataError: they cannot be read, or do not fit together; or there is no pyarrow.
    """

    @collective("ranks")
    def __init__(
        self, paths: Sequence[Path], ranks: ReadingRanks, form: TextForm | None = None, kind: str | None = None
    ) -> None:
        arrow()
        are_parquet = {path.name.lower().endswith(_PARQUET) for path in paths} if kind is None else {kind == "parquet"}
        if len(are_parquet) > 1:
            raise GraphDataError(f"{paths[0].parent}: csv and parquet files cannot be one table")
        self.paths = paths
        self.is_text = are_parquet == {False}
        self.kinds: dict[str, str] = {}
        self.no_header: list[str] = []
        self._ranks = ranks  # whose files these may be
        self._form = form or TextForm()
        self._files = list(paths)  # of parquet
        self._texts: list[dict[str, int]] = [{} for _ in paths]
        if self.is_text:
            heads = ranks.exchange.map(f"reading {paths[0]}", len(paths), lambda n: head_of(paths[n], self._form))
            self._heads = [Head(*head) for head in heads]
            self.no_header = self._heads[-1].no_header
            names = [head.names for head in self._heads]
        else:
            self._open()
            names = [schema.names for schema in self._schemas]
        self.names: list[str] = names[0]
        for path, its in zip(paths, names, strict=True):
            twice = [name for name in its if its.count(name) > 1]
            if twice:
                raise GraphDataError(f"{path}: there are several columns of the name {twice[0]!r}")
            if its != self.names:
                raise GraphDataError(f"{path}: columns {its} are not those of {paths[0].name}, {self.names}")
        if not self.is_text:
            self._list_groups()

    @collective("ranks")
    def parse(self, columns: Mapping[str, Way]) -> None:
        """Parse columns of text, each file by one rank; nothing to do of parquet.

        Raises GraphDataError: values cannot be read; names file and row, of each column the first.
        """
        if not self.is_text:
            self._find_ids({name: way.dtype for name, way in columns.items() if way.is_ids})
            return
        folder = self._ranks.new_file("")
        largest = sorted(range(len(self.paths)), key=lambda file: -self.paths[file].stat().st_size)

        def write(number: int) -> dict[str, int]:
            file = largest[number]
            folder.mkdir(exist_ok=True)
            return write_parquet(self.paths[file], self._form, self._heads[file], columns, folder / str(file))

        told = self._ranks.exchange.map(f"reading {self.paths[0]}", len(largest), write)
        self._texts = [told[largest.index(file)] for file in range(len(largest))]
        self._files = [folder / str(file) for file in range(len(largest))]
        self._open()
        self._list_groups()

    def _find_ids(self, dtypes: Mapping[str, str]) -> None:
        """Find out which columns of ids in parquet are text: those of strings with one that is no plain integer."""
        for name in dtypes:
            if self.kinds[name] not in ("integer", "string"):
                what = f"column {name!r} is {self.kinds[name]}"
                raise GraphDataError(f"{self.paths[0]}: ids must be integers or text ({what})")
        strings = [name for name in dtypes if self.kinds[name] == "string" and not dtypes[name]]

        def are_integers(number: int) -> list[bool]:
            group = self.groups[number]
            ids = [
                (self.columns(group, [name])[0].cast(arrow().large_string()).fill_null(""), name) for name in strings
            ]
            return [not is_text(ids_in(its, partial(self.place, group, name)).type) for its, name in ids]

        is_text = arrow().types.is_large_string
        told = self._ranks.exchange.map(f"reading {self.paths[0]}", len(self.groups) if strings else 0, are_integers)
        integers = {name for number, name in enumerate(strings) if told and all(its[number] for its in told)}
        for name, dtype in dtypes.items():
            is_integer = name in integers or (dtype not in ("", "string")) or self.kinds[name] == "integer"
            self.kinds[name] = "integer" if is_integer and dtype != "string" else "string"

    def _open(self) -> None:
        """Read what the parquet files tell of their columns and groups of rows."""
        self._schemas = []
        self._metadata = []
        self._numbers: list[dict[str, int]] = []  # of the columns, by their paths
        self._open_file: tuple[int, Any] = -1, None
        for path, parquet in zip(self.paths, self._files, strict=True):
            with reading(path):
                os.close(open_regular(parquet))
                opened = arrow().parquet.ParquetFile(parquet, memory_map=True)
            self._schemas.append(opened.schema_arrow.remove_metadata())
            self._metadata.append(opened.metadata)
            paths = [opened.schema.column(number).path for number in range(opened.metadata.num_columns)]
            self._numbers.append({path: number for number, path in enumerate(paths)})
            if not self.is_text and not self._schemas[-1].equals(self._schemas[0]):
                raise GraphDataError(f"{path}: columns are not those of {self.paths[0].name}")

    def _reader(self, file: int) -> Any:
        """Return a reader of a file; one stays open: opening takes long where there are thousands of columns."""
        if self._open_file[0] != file:
            known = self._metadata[file]
            self._open_file = file, arrow().parquet.ParquetFile(self._files[file], metadata=known, memory_map=True)
        return self._open_file[1]

    def _list_groups(self) -> None:
        """List the groups of rows, and the kinds of columns."""
        self.lengths = [metadata.num_rows for metadata in self._metadata]
        self.groups: list[Group] = []
        for file, metadata in enumerate(self._metadata):
            lengths = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
            begins = accumulate(lengths, initial=0)
            self.groups += [
                Group(file, *its) for its in zip(range(len(lengths)), begins, lengths, strict=False) if its[2]
            ]
        self._types: dict[str, Any] = {}
        of_files = [dict(zip(schema.names, schema.types, strict=True)) for schema in self._schemas]
        with_rows = [types for types, length in zip(of_files, self.lengths, strict=True) if length] or of_files
        for name in dict.fromkeys(name for types in of_files for name in types):
            types = [of[name] for of in with_rows if name in of]
            self._types[name] = reduce(lambda one, other: one and wider_type(one, other), types)
        texts = {name for of_file in self._texts for name in of_file}
        self.kinds = {name: type_kind(of) if of is not None else "string" for name, of in self._types.items()}
        self.kinds |= dict.fromkeys(texts, "string")

    def first_row(self, file: int) -> int:
        """Return what the first row of a file is called: a line of text from 1, in parquet 0."""
        return self._heads[file].first_row if self.is_text else 0

    def place_of(self, file: int, row: int, name: str) -> str:
        """Return the file and row of a row of a file, for messages about a column."""
        title = str(self.paths[file]) if self.is_text else f"{self.paths[file]}: {name}"
        return f"{title}, row {self.first_row(file) + row}"

    def place(self, group: Group, name: str, row: int = 0) -> str:
        """Return the file and row of a row of a group."""
        return self.place_of(group.file, group.begin + row, name)

    def place_of_text(self, name: str) -> str:
        """Return the file and row of the first text in a column of text, "" if there are no numbers before it."""
        file, row = next(((file, its[name]) for file, its in enumerate(self._texts) if name in its), (0, -1))
        return self.place_of(file, row, name) if row > 0 or (row == 0 and any(self.lengths[:file])) else ""

    def columns(self, group: Group, names: Sequence[str]) -> list[Any]:
        """Return columns of a group of rows, each as one Arrow array; lists have the type of those of all rows."""
        with reading(self.paths[group.file]):
            read = self._reader(group.file).read_row_group(group.number, list(names), use_threads=False)
            columns = [read.column(name).combine_chunks() for name in names]
            pairs = zip(names, columns, strict=True)
            return [its.cast(self._types[name]) if self.kinds[name] == "list" else its for name, its in pairs]

    def rows(self, names: Sequence[str], read: Read) -> RowArray:
        """Return what a function makes of columns of a group of rows; they are read when rows are asked for."""
        if not self.groups:
            return read([arrow().array([], self._types[name]) for name in names], lambda row, name: "")
        bounds = np.cumsum([0, *(group.length for group in self.groups)])

        def of_group(number: int) -> Array:
            group = self.groups[number]
            return read(self.columns(group, names), lambda row, name: self.place(group, name, row))

        kept = {0: of_group(0)}  # the group that was read last, since slices end within groups
        shape, dtype = kept[0].shape[1:], kept[0].dtype

        def piece(number: int, begin: int, end: int) -> Array:
            if number not in kept:
                rows = of_group(number)
                if rows.shape[1:] != shape:
                    lengths = f"{rows.shape[1]} numbers, {shape[0]} before"
                    raise GraphDataError(f"{self.place(self.groups[number], names[0])}: lists have {lengths}")
                kept.clear()
                kept[number] = rows
            return kept[number][begin:end]

        def of_rows(begin: int, end: int) -> Array:
            pieces = [piece(*place) for place in overlaps(bounds, begin, end)]
            return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty((0, *shape), dtype), *pieces])

        return FileRows(of_rows, (int(bounds[-1]), *shape), dtype, bounds, partial(self.place_of_row, names[0]))

    def place_of_row(self, name: str, row: int) -> str:
        """Return the file and row of a row, counted in all files."""
        for group in self.groups:
            if row < group.length:
                return self.place(group, name, row)
            row -= group.length
        return ""

    def missing(self, group: Group, name: str) -> int | None:
        """Return how many rows of a group have no value, if the file tells that; it does not count NaN."""
        if arrow().types.is_null(self._schemas[group.file].field(name).type):
            return group.length
        number = self._numbers[group.file].get(name)
        columns = self._metadata[group.file].row_group(group.number)
        known = None if number is None else columns.column(number).statistics
        return known.null_count if known is not None and known.has_null_count else None

    def has_fractions(self, name: str) -> bool:
        """Return whether times may have fractions of a second."""
        of = self._types[name]
        return bool(arrow().types.is_timestamp(of)) and of.unit != "s"
