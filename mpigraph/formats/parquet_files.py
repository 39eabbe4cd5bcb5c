"""Parquet files by pyarrow, an extra: groups of rows are read when they are asked for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError
from mpigraph.formats.table_pieces import FAILURES, Piece, check_names, check_regular, failure
from mpigraph.formats.text_values import EXACT, arrow, to_numpy, type_kind
from mpigraph.log import get_logger
from mpigraph.partition.chunks import concatenated
from mpigraph.partition.row_arrays import RowArray

__all__ = ["ParquetFiles"]

_BATCH_ROWS = 1 << 20


class ParquetFiles:
    """Parquet files.

    Args:
        paths: the files.

    Attributes:
        kinds: name of each column -> "integer", "float", "bool", "time", "list" (of numbers), "string" or "other".
        lengths: rows of each file.
    """

    lazily = True
    is_named = True

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        self._parquet = arrow().parquet
        self.metadata = []
        self._schema: Any = None
        for path in paths:
            try:
                check_regular(path)
                file = self._parquet.ParquetFile(path, memory_map=True)
            except FAILURES as error:
                raise failure(path, error) from error
            schema = file.schema_arrow.remove_metadata()
            check_names(path, schema.names)
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
        """Rows are counted from 0."""
        return sum(self.metadata[piece.file].row_group(group).num_rows for group in range(piece.begin))

    def batches(self, piece: Piece, names: Sequence[str]) -> Iterator[Any]:
        """Yield record batches."""
        try:
            with self._reader(piece.file) as reader:
                groups = list(range(piece.begin, piece.end))
                yield from reader.iter_batches(_BATCH_ROWS, groups, columns=list(names), use_threads=False)
        except FAILURES as error:
            raise failure(self.paths[piece.file], error) from error

    def are_numbers(self, columns: Sequence[str]) -> bool:
        """Return whether some columns are numbers."""
        return all(self.kinds[name] in ("integer", "float", "bool") for name in columns)

    def group(self, file: int, group: int, name: str) -> Any:
        """Return a column of a group of rows, as one Arrow array."""
        try:
            with self._reader(file) as reader:
                return reader.read_row_group(group, columns=[name], use_threads=False).column(0).combine_chunks()
        except FAILURES as error:
            raise failure(self.paths[file], error) from error

    def _lacks_values(self, name: str) -> bool:
        """Return whether a column of integers has rows without a value, as the groups' statistics say."""
        if self.kinds[name] != "integer":
            return False
        for metadata in self.metadata:
            for group in map(metadata.row_group, range(metadata.num_row_groups)):
                columns = map(group.column, range(group.num_columns))
                statistics = next(column.statistics for column in columns if column.path_in_schema == name)
                if statistics is not None and statistics.null_count:
                    return True
        return False

    def rows(self, name: str, gaps: bool = False) -> RowArray:
        """Return a column whose groups are read when they are asked for.

        Args:
            name: the column.
            gaps: whether integers may be missing: all become float64 then, and those NaN, as in csv.
        """
        last = _Last(as_floats=gaps and self._lacks_values(name))
        if last.as_floats:
            get_logger().warning("%s: %s has rows without a value, which become NaN", self.paths[0], name)
        groups = [
            (file, number, self.metadata[file].row_group(number).num_rows)
            for file in range(len(self.paths))
            for number in range(self.metadata[file].num_row_groups)
        ]
        groups = [group for group in groups if group[2]]
        if not groups:
            return to_numpy(arrow().array([], self._schema.field(name).type), str)
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
    """The group of a column that was read last, since slices end within groups; ``as_floats`` of all groups."""

    as_floats: bool = False
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
        tables: ParquetFiles,
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
        self.block_bytes = self.nbytes

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
            if self._last.as_floats:
                column = self._with_gaps(column)
            rows = to_numpy(column, self.place)
            if len(rows) != self._length:
                raise GraphDataError(f"{self.place(0)}: {len(rows)} rows, where the file says {self._length}")
            if self._row_shape is not None and rows.shape[1:] != self._row_shape:
                raise GraphDataError(
                    f"{self.place(0)}: lists have {rows.shape[1]} numbers, {self._row_shape[0]} before"
                )
            self._last.rows = rows
            self._last.key = self._key
        return self._last.rows

    def _with_gaps(self, integers: Any) -> Any:
        """Return integers, some of which are missing, as float64."""
        large = np.flatnonzero(np.abs(integers.fill_null(0).to_numpy(zero_copy_only=False)) > EXACT)
        if len(large):
            raise GraphDataError(
                f"{self.place(large[0])}: {integers[int(large[0])]} does not fit float64, which the column is read as "
                "since rows have no value; --types COLUMN=string leaves the column out"
            )
        return integers.cast(arrow().float64())
