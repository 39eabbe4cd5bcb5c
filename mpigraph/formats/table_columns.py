"""Columns of tables: parsed once into temporary files, or read from parquet when they are asked for.

A column of ids keeps what stands there: int64 where every id of a block of the file is a plain integer, else text.
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
    values_as,
    values_of,
)
from mpigraph.formats.input_files import GrowingFile
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.table_files import ParquetFiles, Piece, Tables, TextFiles, cut
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


class TextRows:
    """Strings of consecutive rows of a file, an Arrow array; None to know the places of the rows alone.

    ``first_row`` is what the first row is called there.
    """

    def __init__(self, strings: Any, length: int, name: str, first_row: int) -> None:
        self.strings = strings
        self._length = length
        self._name = name
        self._first_row = first_row

    def __len__(self) -> int:
        return self._length

    def without_text(self) -> "TextRows":
        """Return the places of the rows alone."""
        return TextRows(None, self._length, self._name, self._first_row)

    def place(self, row: int) -> str:
        """File and row."""
        return f"{self._name}, row {self._first_row + row}"


@dataclass(frozen=True)
class IdColumn:
    """Ids, in stretches that are integers or text."""

    stretches: Sequence[RowArray | TextRows]  # integers, or :class:`TextRows`

    def __len__(self) -> int:
        return sum(map(len, self.stretches))

    @property
    def is_text(self) -> bool:
        """True if an id is not an integer."""
        return any(isinstance(stretch, TextRows) for stretch in self.stretches)

    @property
    def numbers(self) -> RowArray:
        """The ids of a column of integers alone."""
        return concatenated([stretch for stretch in self.stretches if not isinstance(stretch, TextRows)])

    def texts(self, blanks: bool = False, ranks: ReadingRanks | None = None) -> Iterator[tuple[Array, I64, Place]]:
        """Yield the ids as text, a chunk at a time: distinct ones (dtype S), the position of each row, and its place.

        With ``blanks`` an id may be missing; it is empty then. ``ranks`` divide the chunks; None for all chunks.

        Raises:
            GraphDataError: an id is missing or too long; names file and row.
        """
        chunks = [(stretch, begin) for stretch in self.stretches for begin in range(0, len(stretch), _CHUNK)]
        for stretch, begin in chunks if ranks is None else ranks.share_of(chunks):
            if isinstance(stretch, TextRows):
                strings = stretch.strings.slice(begin, _CHUNK)
            else:
                numbers = np.asarray(stretch[begin : begin + _CHUNK], np.int64)
                strings = arrow().array(numbers).cast(arrow().string())

            def place(row: int, rows: Any = stretch, begin: int = begin) -> str:
                return place_of(rows, begin + row)

            yield *distinct_in(strings, place, blanks), place

    def without_text(self) -> "IdColumn":
        """Return the places of the rows, and the ids that are integers."""
        return IdColumn([its.without_text() if isinstance(its, TextRows) else its for its in self.stretches])

    def place(self, row: int) -> str:
        """File and row."""
        for stretch in self.stretches:
            if row < len(stretch):
                return place_of(stretch, row)
            row -= len(stretch)
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
    first = next(((piece, batch) for piece in tables.pieces() for batch in tables.batches(piece, columns)), None)
    if first is None:
        return False
    piece, batch = first
    of_columns = (values_of(batch.column(name), partial(_place_in_piece, tables, piece, 0, name)) for name in columns)
    return all(values.kind in ("integer", "float", "bool", None) for values in of_columns)


@collective("ranks")
def read_columns(
    tables: Tables,
    ids: Collection[str],
    values: Mapping[str, Sequence[str]],
    types: Mapping[str, str],
    ranks: ReadingRanks,
) -> TableColumns:
    """Read columns of a table; text is divided among the ranks.

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
    id_columns: dict[str, IdColumn] = {}
    value_columns: dict[str, ValueColumn] = {}
    if isinstance(tables, ParquetFiles):
        for name in ids:
            if tables.kinds[name] not in ("integer", "string"):
                what = f"column {name!r} is {tables.kinds[name]}"
                raise GraphDataError(f"{tables.paths[0]}: ids must be integers or text ({what})")
        id_columns = {name: IdColumn([tables.rows(name)]) for name in ids if tables.kinds[name] == "integer"}
        value_columns = {name: _lazy_values(tables, columns, types.get(name, "")) for name, columns in values.items()}
    to_parse = {name: _Column((name,), True, types.get(name, "")) for name in ids if name not in id_columns}
    for name, columns in values.items():
        if name not in value_columns:
            to_parse[name] = _Column(columns, False, types.get(name, ""))
    if not to_parse and isinstance(tables, ParquetFiles):
        return TableColumns(tables.lengths, id_columns, value_columns)
    lengths = [0] * len(tables.paths)
    blocks: dict[str, list[_Block]] = {name: [] for name in to_parse}
    for piece, rows, described, arrays in _parsed(tables, ranks, to_parse):
        first_row = dict.fromkeys(blocks, tables.first_row(Piece(piece.file, 0, 0)) + lengths[piece.file])
        for name, kind, length, missing, places in described:
            of_block = [
                arrays[begin : begin + int(np.prod(shape)) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)
                for begin, dtype, shape in places
            ]
            blocks[name].append(_Block(kind, length, missing, of_block, str(tables.paths[piece.file]), first_row[name]))
            first_row[name] += length
        lengths[piece.file] += rows
    for name, column in to_parse.items():
        if column.is_ids:
            id_columns[name] = _id_column(blocks[name])
        else:
            value_columns[name] = _value_column(name, [block for block in blocks[name] if block.length])
    return TableColumns(
        lengths, {name: id_columns[name] for name in ids}, {name: value_columns[name] for name in values}
    )


class _Column(NamedTuple):
    """Columns of the files to parse side by side; ``dtype`` is "" unless the user has named one."""

    columns: Sequence[str]
    is_ids: bool
    dtype: str


class _Block(NamedTuple):
    """Consecutive rows of one kind of a column."""

    kind: str  # as in :class:`ValueColumn`, or a dtype that the user has named
    length: int  # number of rows
    missing: int  # the first of them without a value, if its kind cannot say so, of text that is no number; -1: none
    arrays: list[Array]  # the rows; of text its offsets and bytes; nothing if there are no numbers
    path: str  # the file
    row: int  # what the first row is called there


def _lazy_values(tables: ParquetFiles, columns: Sequence[str], dtype: str) -> ValueColumn:
    kinds = {tables.kinds[name] for name in columns}
    for kind in ("other", "string"):
        if kind in kinds or dtype == kind:
            return ValueColumn(kind, np.zeros(0))
    parts = [tables.rows(name, gaps=True) for name in columns]
    if not dtype and len(columns) > 1:
        return ValueColumn("list", side_by_side([as_floats(part) for part in parts]))
    rows = side_by_side(parts)
    kind = "float" if rows.dtype.kind == "f" and kinds == {"integer"} else tables.kinds[columns[0]]
    if dtype not in ("", rows.dtype.name):
        rows = MadeRows(partial(as_dtype, dtype=np.dtype(dtype)), dtype, rows)
    return ValueColumn(kind, rows)


def _parsed(
    tables: Tables, ranks: ReadingRanks, columns: Mapping[str, _Column]
) -> list[tuple[Piece, int, list[Any], Array]]:
    """Parse this rank's pieces; return those of all ranks: piece, rows, blocks, and where arrays lie."""
    doing = f"reading {tables.paths[0]}"
    own = cut(tables, ranks)
    with ExitStack() as stack:
        note = []
        with ranks.exchange.together(doing):
            file = ranks.growing(stack)(np.uint8, ())
            for piece in own:
                blocks: list[Any] = []
                note.append((piece, _parse(tables, piece, columns, file, blocks), blocks))
        gathered = ranks.gather(doing, note, [file])
    pieces = [(Piece(*piece), rows, blocks, its.arrays[0]) for its in gathered for piece, rows, blocks in its.note]
    return sorted(pieces, key=lambda item: item[0])


def _parse(tables: Tables, piece: Piece, columns: Mapping[str, _Column], file: GrowingFile, blocks: list[Any]) -> int:
    """Write the columns of a piece to a file and describe each block of them; return the number of rows."""
    done = 0
    names = list(dict.fromkeys(part for column in columns.values() for part in column.columns))
    texts = {name for name, column in columns.items() if column.dtype == "string" and not column.is_ids}
    for batch in tables.batches(piece, names):
        for name, column in columns.items():
            parts = [
                (batch.column(part), partial(_place_in_piece, tables, piece, done, part)) for part in column.columns
            ]
            if column.is_ids:
                kind, missing, arrays = _ids(*parts[0], column.dtype, trims=isinstance(tables, TextFiles))
            elif name in texts:  # no later block can make numbers of it
                kind = "string"
                missing = -1
                arrays = []
            else:
                kind, missing, arrays = _values(parts, column.dtype)
            if kind == "string" and not column.is_ids:
                texts.add(name)
            blocks.append((name, kind, batch.num_rows, missing, [_append(file, array) for array in arrays]))
        done += batch.num_rows
    return done


def _place_in_piece(tables: Tables, piece: Piece, done: int, column: str, row: int) -> str:
    """Name a row of a block that begins at row ``done`` of a piece."""
    return f"{tables.paths[piece.file]}, row {tables.first_row(piece) + done + row}, column {column}"


def _ids(column: Any, place: Place, dtype: str, trims: bool) -> tuple[str, int, list[Array]]:
    text = column.cast(arrow().string()).fill_null("")
    if dtype not in ("", "string"):  # so that 007 is read as 7
        return "integer", -1, [values_as(np.dtype(np.int64), text, place)]
    ids = ids_of(text, trims)
    if isinstance(ids, np.ndarray) and not dtype:
        return "integer", -1, [ids]
    if isinstance(ids, np.ndarray):
        ids = arrow().compute.utf8_trim_whitespace(text) if trims else text
    elif not dtype and are_floats(ids):
        raise GraphDataError(
            f"{place(0)}: ids must be integers or text (got {ids[0].as_py()}); --types COLUMN=string takes them as text"
        )
    offsets, data = buffers_of(ids)
    return "string", -1, [offsets - offsets[0], data]


def _values(parts: Sequence[tuple[Any, Place]], dtype: str) -> tuple[str, int, list[Array]]:
    if dtype or len(parts) > 1:
        beside = [values_as(np.dtype(dtype), *part) if dtype else float32_of(*part) for part in parts]
        dtype = dtype or "float32"
        rows = beside[0] if len(beside) == 1 else np.stack(beside, 1)
        holes = np.isnan(rows).any(tuple(range(1, rows.ndim))) if rows.dtype.kind == "f" else np.zeros(0)
        values = Values(dtype, rows, int(holes.argmax()) if holes.any() else -1)
    else:
        values = values_of(*parts[0])
    kind = values.kind or "none"
    return kind, values.missing, [] if kind in ("none", "string") else [values.rows]


def _append(file: GrowingFile, array: Array) -> tuple[int, str, tuple[int, ...]]:
    """Append an array to a file of bytes; return where it begins, its dtype and shape."""
    begin = len(file)
    file.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    file.append(np.zeros(-len(file) % 8, np.uint8))
    return begin, array.dtype.str, array.shape


def _id_column(blocks: Sequence[_Block]) -> IdColumn:
    stretches: list[RowArray | TextRows] = []
    for kind, length, _, arrays, path, row in blocks:
        if kind == "string":
            strings = arrow().LargeStringArray.from_buffers(length, *map(arrow().py_buffer, arrays))
            stretches.append(TextRows(strings, length, path, row))
        elif length:
            stretches.append(NamedRows(arrays[0], path, row))
    return IdColumn(stretches or [np.zeros(0, np.int64)])


def _value_column(name: str, blocks: Sequence[_Block]) -> ValueColumn:
    kinds = {block.kind for block in blocks} - {"none"}
    has_gaps = any(block.kind == "none" for block in blocks)
    kind = "string" if kinds else "none"
    if len(kinds) == 1:
        kind = kinds.pop()
    if kinds == {"integer", "float"} or (kind == "integer" and has_gaps):
        kind = "float"
    if kind in ("none", "string"):
        texts = [block for block in blocks if block.kind == "string"]
        if not texts or (texts[0] is blocks[0] and texts[0].missing < 1):
            return ValueColumn(kind, np.zeros(0))
        return ValueColumn(kind, np.zeros(0), f"{texts[0].path}, row {texts[0].row + texts[0].missing}")
    rows: list[RowArray] = []
    holes: list[str] = []
    for block in blocks:
        missing = 0 if block.kind == "none" else block.missing
        if missing >= 0:
            holes.append(f"{block.path}, row {block.row + missing}: {name} has no value")
        values = block.arrays[0] if block.arrays else np.broadcast_to(np.float64(np.nan), (block.length,))
        if kind == "list" and block.arrays and values.shape[1:] != blocks[0].arrays[0].shape[1:]:
            lengths = f"a list has {values.shape[1]} numbers, {blocks[0].arrays[0].shape[1]} before"
            place = f"{block.path}, row {block.row}, column {name}"
            raise GraphDataError(f"{place}: {lengths}; --types COLUMN=string leaves the column out")
        rows.append(NamedRows(values, block.path, block.row))
    if holes and kind not in _FLOATS:
        raise GraphDataError(holes[0])
    if holes:
        get_logger().warning("%s: it is %s, as in all such rows", holes[0], "-1" if name == "label" else "NaN")
    if {its.dtype.kind for its in rows} == {"i", "f"}:
        rows = [MadeRows(_exact_floats, np.float64, its) if its.dtype.kind == "i" else its for its in rows]
    return ValueColumn(kind, concatenated(rows))


def _exact_floats(rows: Array) -> Array:
    lost = np.abs(rows.reshape(len(rows), -1)).max(1, initial=0) > EXACT
    if lost.any():
        row = int(lost.argmax())
        reason = "which other rows of the column ask for; --types COLUMN=float64 rounds it"
        raise RowError(row, f"{rows[row]} does not fit float64, {reason}")
    return rows.astype(np.float64)
