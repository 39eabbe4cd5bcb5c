"""Columns of csv and parquet files: parsed once into temporary files, or read from parquet when they are asked for.

A column of ids keeps what stands there: int64 where every id of a stretch of the file is a plain integer, else text.
A column of values has the type that all of its rows have: each block is looked at, and the wider type wins, so that
integers become floats where a later row has a fraction or no value.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError
from mpigraph.formats.arrow_files import TextFiles, cut
from mpigraph.formats.column_writers import IdWriter, NumberWriter
from mpigraph.formats.node_ranks import NodeRanks
from mpigraph.formats.parquet_files import ParquetFiles
from mpigraph.formats.segments import SegmentedFiles
from mpigraph.formats.table_pieces import Piece
from mpigraph.formats.text_values import (
    EXACT,
    Place,
    as_text,
    distinct_in,
    strings_of,
)
from mpigraph.log import get_logger
from mpigraph.partition.chunks import NamedRows, concatenated
from mpigraph.partition.row_arrays import MadeRows, RowArray, RowError, as_dtype, as_floats, place_of, side_by_side

__all__ = ["NO_NUMBERS", "IdColumn", "TableColumns", "TextRows", "ValueColumn", "read_columns"]

NO_NUMBERS = ("string", "other", "none")
"""Kinds of columns that cannot be features."""

_CHUNK = 1 << 20  # rows


class TextRows:
    """Strings, one after another.

    Args:
        ends: int64[n], where each string ends.
        data: uint8[bytes].
        name: the file, for messages.
        first_row: what the first row is called there.
    """

    def __init__(self, ends: I64, data: Array, name: str, first_row: int) -> None:
        self._ends = ends
        self._data = data
        self._name = name
        self._first_row = first_row
        self._length = len(ends)

    def __len__(self) -> int:
        return self._length

    def without_text(self) -> "TextRows":
        """Return what knows the places of the rows alone."""
        rows = TextRows(np.zeros(0, np.int64), np.zeros(0, np.uint8), self._name, self._first_row)
        rows._length = self._length
        return rows

    def strings(self, begin: int, end: int) -> Any:
        """Return a range of rows as an Arrow array."""
        return strings_of(self._ends, self._data, begin, end)

    def place(self, row: int) -> str:
        """File and row."""
        return f"{self._name}, row {self._first_row + row}"


@dataclass(frozen=True)
class IdColumn:
    """Ids, in stretches that are integers or text.

    Attributes:
        stretches: integers, or :class:`TextRows`.
    """

    stretches: Sequence[RowArray | TextRows]

    def __len__(self) -> int:
        return sum(map(len, self.stretches))

    @property
    def is_text(self) -> bool:
        """Whether not all ids are integers."""
        return any(isinstance(stretch, TextRows) for stretch in self.stretches)

    @property
    def numbers(self) -> RowArray:
        """The ids, all of which are integers."""
        return concatenated([stretch for stretch in self.stretches if not isinstance(stretch, TextRows)])

    def texts(self, blanks: bool = False, ranks: NodeRanks | None = None) -> Iterator[tuple[Array, I64, Place]]:
        """Yield the ids as text, a chunk at a time: distinct ones (dtype S), the position of each row, and its place.

        Args:
            blanks: whether an id may be missing; it is empty then.
            ranks: ranks that divide the chunks; None for all chunks.

        Raises:
            GraphDataError: an id is missing or too long; names file and row.
        """
        chunks = [(stretch, begin) for stretch in self.stretches for begin in range(0, len(stretch), _CHUNK)]
        for stretch, begin in chunks if ranks is None else ranks.share_of(chunks):
            end = min(begin + _CHUNK, len(stretch))
            place = partial(_place_from, stretch, begin)
            if isinstance(stretch, TextRows):
                strings = stretch.strings(begin, end)
            else:
                strings = as_text(np.asarray(stretch[begin:end], np.int64))
            yield *distinct_in(strings, place, blanks), place

    def without_text(self) -> "IdColumn":
        """Return what knows the places of the rows, and the ids that are integers."""
        return IdColumn([its.without_text() if isinstance(its, TextRows) else its for its in self.stretches])

    def text_place(self) -> str:
        """File and row of the first id that is text."""
        return next(stretch.place(0) for stretch in self.stretches if isinstance(stretch, TextRows))

    def place(self, row: int) -> str:
        """File and row."""
        for stretch in self.stretches:
            if row < len(stretch):
                return _place_from(stretch, 0, row)
            row -= len(stretch)
        return ""


class ValueColumn(NamedTuple):
    """Values of a column.

    Attributes:
        kind: "integer", "float", "bool", "time", "list", or "string", "other" or "none" (no row has a value), which are
            no numbers.
        rows: [n] or [n, width]; of what is no numbers nothing.
    """

    kind: str
    rows: RowArray


class TableColumns(NamedTuple):
    """Columns of one table.

    Attributes:
        lengths: rows of each file.
        ids: columns that were asked for as ids, by name.
        values: the others, by name.
    """

    lengths: list[int]
    ids: dict[str, IdColumn]
    values: dict[str, ValueColumn]


def _place_from(rows: Any, begin: int, row: int) -> str:
    return place_of(rows, begin + row)


@dataclass(frozen=True)
class _PlaceInPiece:
    """Names a row of a column of a block, which begins at row ``done`` of a piece."""

    tables: TextFiles | ParquetFiles
    piece: Piece
    done: int
    column: str

    def __call__(self, row: int) -> str:
        first = self.tables.first_row(self.piece) + self.done
        return f"{self.tables.paths[self.piece.file]}, row {first + row}, column {self.column}"


def read_columns(
    tables: TextFiles | ParquetFiles,
    ids: Collection[str],
    values: Mapping[str, Sequence[str]],
    types: Mapping[str, str],
    ranks: NodeRanks,
) -> TableColumns:
    """Read columns of a table; text is divided among the ranks of a node. Collective on the ranks.

    Args:
        tables: the files.
        ids: columns whose values are names, which are kept as they are written.
        values: columns of numbers, by the name that they get; several side by side are the columns of a matrix.
        types: dtypes that the user has named, by column of ids or name; "string" keeps ids as text, and leaves values
            out. A matrix is float32 if it has none.
        ranks: the ranks that read it.

    Raises:
        GraphDataError: a value cannot be read or is missing; names file and row.
        StorageError: a temporary file cannot be written.
    """
    lazy_ids: dict[str, IdColumn] = {}
    lazy_values: dict[str, ValueColumn] = {}
    if isinstance(tables, ParquetFiles):
        for name in ids:
            if tables.kinds[name] not in ("integer", "string"):
                raise GraphDataError(
                    f"{tables.paths[0]}: ids must be integers or text (column {name!r} is {tables.kinds[name]})"
                )
        lazy_ids = {name: IdColumn([tables.rows(name)]) for name in ids if tables.kinds[name] == "integer"}
        lazy_values = {name: _lazy_values(tables, columns, types.get(name, "")) for name, columns in values.items()}
    ids_to_parse = [name for name in ids if name not in lazy_ids]
    to_parse: dict[str, Sequence[str]] = {name: (name,) for name in ids_to_parse}
    to_parse |= {name: columns for name, columns in values.items() if name not in lazy_values}
    if not to_parse and isinstance(tables, ParquetFiles):
        return TableColumns(tables.lengths, lazy_ids, lazy_values)
    parsed = _parsed(tables, ranks, to_parse, types, ids_to_parse)
    lengths = [0] * len(tables.paths)
    names = []
    for piece, rows, _ in parsed:
        first = tables.first_row(Piece(piece.file, 0, 0)) + lengths[piece.file]
        names.append((str(tables.paths[piece.file]), first))
        lengths[piece.file] += rows
    parts = {name: [columns[name] for _, _, columns in parsed] for name in to_parse}
    found_ids = {name: _id_column(parts[name], names) for name in ids_to_parse}
    found_values = {name: _value_column(name, parts[name], names) for name in to_parse if name not in found_ids}
    return TableColumns(lengths, lazy_ids | found_ids, lazy_values | found_values)


def _parsed(
    tables: TextFiles | ParquetFiles,
    ranks: NodeRanks,
    columns: Mapping[str, Sequence[str]],
    types: Mapping[str, str],
    ids: Collection[str],
) -> "list[tuple[Piece, int, dict[str, list[_Stretch]]]]":
    """Return the pieces that the ranks of a node have read: where, how many rows, and the stretches of each column."""
    doing = f"reading {tables.paths[0]}"
    own = cut(tables, ranks)
    with ExitStack() as stack:
        growing = {name: SegmentedFiles(ranks.growing(stack)) for name in columns}
        note: list[Any] = []
        with ranks.together(doing):
            for piece in own:
                writers = {
                    name: IdWriter(growing[name].grow, types.get(name, ""), not tables.lazily)
                    if name in ids
                    else NumberWriter(
                        growing[name].grow, types.get(name, "") or ("float32" if len(columns[name]) > 1 else "")
                    )
                    for name in columns
                }
                rows = _parse(tables, piece, columns, writers)
                parts = [(name, part) for name, writer in writers.items() for part in writer.parts]
                note.append((piece, rows, parts))
        files = [file for its in growing.values() for file in its.files]
        number = {id(file): n for n, file in enumerate(files)}
        told = [(piece, rows, [(name, *part.described(number)) for name, part in parts]) for piece, rows, parts in note]
        found = []
        for its_note, arrays in ranks.gather(doing, told, files):
            for piece, rows, parts in its_note:
                stretches: dict[str, list[_Stretch]] = {name: [] for name in columns}
                for name, kind, length, missing, places in parts:
                    of_kind = [arrays[file][begin:end] for file, begin, end in places]
                    stretches[name].append(_Stretch(kind, length, missing, of_kind))
                found.append((Piece(*piece), rows, stretches))
    return sorted(found, key=lambda item: item[0])


def _lazy_values(tables: ParquetFiles, columns: Sequence[str], dtype: str) -> ValueColumn:
    """Return columns of parquet, side by side if there are several."""
    kinds = {tables.kinds[name] for name in columns}
    for kind in ("other", "string"):
        if kind in kinds or dtype == kind:
            return ValueColumn(kind, np.zeros(0))
    rows = side_by_side([tables.rows(name, gaps=True) for name in columns])
    kind = "float" if rows.dtype.kind == "f" and kinds == {"integer"} else tables.kinds[columns[0]]
    if not dtype and len(columns) > 1:
        return ValueColumn("list", as_floats(rows))
    if dtype not in ("", rows.dtype.name):
        rows = MadeRows(partial(as_dtype, dtype=np.dtype(dtype)), dtype, rows)
    return ValueColumn(kind, rows)


def _parse(
    tables: TextFiles | ParquetFiles,
    piece: Piece,
    columns: Mapping[str, Sequence[str]],
    writers: "Mapping[str, IdWriter | NumberWriter]",
) -> int:
    """Read columns of a piece; return the number of its rows."""
    done = 0
    wanted = list(dict.fromkeys(column for name in columns for column in columns[name]))
    for batch in tables.batches(piece, wanted):
        for name, writer in writers.items():
            writer.add([(batch.column(c), _PlaceInPiece(tables, piece, done, c)) for c in columns[name]])
        done += batch.num_rows
    return done


class _Stretch(NamedTuple):
    """Consecutive rows of one kind of a column of a piece.

    Attributes:
        kind: as in :class:`ValueColumn`.
        length: number of rows.
        missing: the first of them without a value, where its kind cannot say so; -1 if there is none.
        segments: the rows; of text their ends and bytes; nothing if there are no numbers.
    """

    kind: str
    length: int
    missing: int
    arrays: list[Array]


def _id_column(pieces: Sequence[Sequence[_Stretch]], names: Sequence[tuple[str, int]]) -> IdColumn:
    """Join the stretches of all pieces, which are called by a file and the number of its first row."""
    found: list[RowArray | TextRows] = []
    for stretches, (path, row) in zip(pieces, names, strict=True):
        for stretch in stretches:
            if stretch.kind == "string":
                found.append(TextRows(stretch.arrays[0], stretch.arrays[1], path, row))
            elif stretch.length:
                found.append(NamedRows(stretch.arrays[0], path, row))
            row += stretch.length
    return IdColumn(found or [np.zeros(0, np.int64)])


def _value_column(name: str, pieces: Sequence[Sequence[_Stretch]], names: Sequence[tuple[str, int]]) -> ValueColumn:
    """As :func:`_id_column`, with the type that all stretches have in common."""
    kinds = {stretch.kind for stretches in pieces for stretch in stretches if stretch.length}
    kind = _common_kind(kinds)
    if kind in ("none", "string"):
        return ValueColumn(kind, np.zeros(0))
    found: list[RowArray] = []
    holes: list[str] = []
    for stretches, (path, row) in zip(pieces, names, strict=True):
        for stretch in stretches:
            missing = 0 if stretch.kind == "none" else stretch.missing
            if missing >= 0 and stretch.length:
                holes.append(f"{path}, row {row + missing}: {name} has no value")
            if stretch.length:
                found.append(_rows_of(stretch, path, row))
            row += stretch.length
    if holes and kind not in _FLOATS:
        raise GraphDataError(holes[0])
    if holes:
        get_logger().warning("%s: it is %s, as in all such rows", holes[0], "-1" if name == "label" else "NaN")
    floats = {rows.dtype.kind for rows in found} == {"i", "f"}
    if floats:
        found = [MadeRows(_exact_floats, np.float64, rows) if rows.dtype.kind == "i" else rows for rows in found]
    return ValueColumn(kind, concatenated(found))


_FLOATS = ("float", "float16", "float32", "float64")


def _common_kind(kinds: set[str]) -> str:
    if kinds <= {"none"}:
        return "none"
    some = kinds - {"none"}
    if some == {"integer", "float"} or (some == {"integer"} and "none" in kinds):
        return "float"
    return some.pop() if len(some) == 1 else "string"


def _rows_of(stretch: _Stretch, path: str, row: int) -> RowArray:
    rows = stretch.arrays[0] if stretch.arrays else np.broadcast_to(np.float64(np.nan), (stretch.length,))
    return NamedRows(rows, path, row)


def _exact_floats(rows: Array) -> Array:
    lost = np.abs(rows.reshape(len(rows), -1)).max(1, initial=0) > EXACT
    if lost.any():
        row = int(lost.argmax())
        wanted = "which other rows of the column ask for; --types COLUMN=float64 rounds it"
        raise RowError(row, f"{rows[row]} does not fit float64, {wanted}")
    return rows.astype(np.float64)
