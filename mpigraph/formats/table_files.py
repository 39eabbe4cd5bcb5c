"""Tables in files by pyarrow, an extra: parquet, and text that becomes parquet (``text_files.py``).

They are read by groups of rows, when they are asked for.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.formats.arrow_values import arrow, type_kind, wider_type
from mpigraph.formats.input_files import is_packed, reading
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.text_files import Head, TextForm, Way, head_of, write_parquet
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
    """A group of rows.

    Attributes:
        file: number of the file of the table.
        parquet: number of the parquet file.
        number: its own number there.
        begin: its first row in the file of the table.
        length: how many rows it has.
    """

    file: int
    parquet: int
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
        groups: the groups of rows of all files that have rows, once they are parsed.
        kinds: name of each column -> integer, float, bool, time, list (of numbers), string, none or other, once they
            are parsed.
        types: the Arrow types of all rows of the columns, once they are parsed.
        texts: of columns of text that are no ids the first value that is no number, with its place; "" if the user
            says that it is text.
        lengths: rows of each file, once they are parsed.

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
        self.no_header: list[str] = []
        self.texts: dict[str, str] = {}
        self._ranks = ranks  # whose files these may be
        self._form = form or TextForm()
        if self.is_text:
            heads = ranks.exchange.map(f"reading {paths[0]}", len(paths), lambda n: head_of(paths[n], self._form))
            self._heads = [Head(*head) for head in heads]
            self.no_header = self._heads[-1].no_header
            names = [head.names for head in self._heads]
        else:
            self._open([*enumerate(paths)])
            names = [schema.names for schema in self._schemas]
        self.names: list[str] = names[0]
        for path, its in zip(paths, names, strict=True):
            twice = [name for name in its if its.count(name) > 1]
            if twice:
                raise GraphDataError(f"{path}: there are several columns of the name {twice[0]!r}")
            if its != self.names:
                raise GraphDataError(f"{path}: columns {its} are not those of {paths[0].name}, {self.names}")

    @collective("ranks")
    def parse(self, columns: Mapping[str, Way]) -> None:
        """Parse columns, of text each file by one rank, and find the types of all their rows.

        Raises GraphDataError: values cannot be read, or ids are no ids; names file and row, of each column the first.
        """
        if self.is_text:
            folder = self._ranks.new_file("")

            def write(file: int) -> tuple[int, dict[str, str]]:
                (folder / str(file)).mkdir(parents=True)
                return write_parquet(self.paths[file], self._form, self._heads[file], columns, folder / str(file))

            told = self._ranks.exchange.map(f"reading {self.paths[0]}", len(self.paths), write)
            self.texts = {name: place for _, texts in reversed(told) for name, place in texts.items()}
            self._open(
                [(file, folder / str(file) / str(n)) for file, (count, _) in enumerate(told) for n in range(count)]
            )
        with_rows = [self._schemas[group.parquet] for group in self.groups] or self._schemas
        self.types = {
            name: reduce(wider_type, [schema.field(name).type for schema in with_rows]) for name in with_rows[0].names
        }
        for name, way in columns.items():
            kind = type_kind(self.types[name])
            if way.is_ids and kind not in ("integer", "string") and len(self):
                raise GraphDataError(f"{self.paths[0]}: ids must be integers or text (column {name!r} is {kind})")
            if way.is_ids and (way.dtype or kind == "string"):
                is_text = way.dtype in ("", "string")
                self.types[name] = arrow().large_string() if is_text else arrow().int64()
        self.kinds = {name: type_kind(of) for name, of in self.types.items()} | dict.fromkeys(self.texts, "string")

    def _open(self, files: Sequence[tuple[int, Path]]) -> None:
        """Read what parquet files, of the files of these numbers, tell of their columns and groups of rows."""
        self._files = [path for _, path in files]
        self._schemas = []
        self._metadata = []
        self._numbers: list[dict[str, int]] = []  # of the columns, by their paths
        self._open_file: tuple[int, Any] = -1, None
        self.groups: list[Group] = []
        self.lengths = [0] * len(self.paths)
        for parquet, (file, path) in enumerate(files):
            with reading(self.paths[file]):
                os.close(open_regular(path))
                opened = arrow().parquet.ParquetFile(path, memory_map=True)
            metadata = opened.metadata
            self._schemas.append(opened.schema_arrow.remove_metadata())
            self._metadata.append(metadata)
            paths = [opened.schema.column(number).path for number in range(metadata.num_columns)]
            self._numbers.append({path: number for number, path in enumerate(paths)})
            for number in range(metadata.num_row_groups):
                length = metadata.row_group(number).num_rows
                if length:
                    self.groups.append(Group(file, parquet, number, self.lengths[file], length))
                self.lengths[file] += length

    def __len__(self) -> int:
        return sum(self.lengths)

    def _reader(self, number: int) -> Any:
        """Return a reader of a parquet file; one stays open: that takes long where there are thousands of columns."""
        if self._open_file[0] != number:
            known = self._metadata[number]
            opened = arrow().parquet.ParquetFile(self._files[number], metadata=known, memory_map=True)
            self._open_file = number, opened
        return self._open_file[1]

    def place(self, group: Group, name: str, row: int = 0) -> str:
        """Return the file, row and column of a row of a group; in text the first line has number 1, in parquet 0."""
        first = self._heads[group.file].first_row if self.is_text else 0
        return f"{self.paths[group.file]}, row {first + group.begin + row}, column {name}"

    def place_of_row(self, name: str, row: int) -> str:
        """Return the file, row and column of a row, counted in all files."""
        for group in self.groups:
            if row < group.length:
                return self.place(group, name, row)
            row -= group.length
        return ""

    def columns(self, group: Group, names: Sequence[str]) -> list[Any]:
        """Return columns of a group of rows, each as one Arrow array; ids and lists in the type of all rows."""
        with reading(self.paths[group.file]):
            read = self._reader(group.parquet).read_row_group(group.number, list(names), use_threads=False)
            columns = [read.column(name).combine_chunks() for name in names]
            return [
                its if self.kinds[name] == "float" else its.cast(self.types[name])  # floats are checked one by one
                for name, its in zip(names, columns, strict=True)
            ]

    def rows(self, names: Sequence[str], read: Read) -> RowArray:
        """Return what a function makes of columns of a group of rows; they are read when rows are asked for."""
        if not self.groups:
            return read([arrow().array([], self.types[name]) for name in names], lambda row, name: "")
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

    def missing(self, group: Group, name: str) -> int | None:
        """Return how many rows of a group have no value, if the file tells that; it does not count NaN."""
        if arrow().types.is_null(self._schemas[group.parquet].field(name).type):
            return group.length
        number = self._numbers[group.parquet].get(name)
        columns = self._metadata[group.parquet].row_group(group.number)
        known = None if number is None else columns.column(number).statistics
        return known.null_count if known is not None and known.has_null_count else None
