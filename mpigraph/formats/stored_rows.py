"""Rows of tables that belong to several types, such as the nodes of a property graph, in temporary files.

Every row belongs to an owner, a node type or a relation: a table may have rows of several owners, and an owner may have
rows in several tables. An owner's features are the properties that its rows have values of. Where a value is missing,
integers become float64 and the missing one is NaN; a missing truth value is False.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array, Mask
from mpigraph.errors import GraphDataError
from mpigraph.formats.arrow_values import Place, arrow, values_as, values_of
from mpigraph.formats.table_files import Piece, TextFiles
from mpigraph.partition.chunks import GrowingFile, NamedRows, Reordered, concatenated
from mpigraph.partition.row_arrays import CastRows, MadeRows, RowArray, as_labels
from mpigraph.partition.source import Feature

__all__ = ["Grow", "Property", "StoredRows", "codes_of", "features_of"]

Grow = Callable[[npt.DTypeLike], GrowingFile]
"""Opens a temporary file for values of a dtype; the caller closes all of them in the end."""

_FILL = 1 << 20  # rows written at once


@dataclass(frozen=True)
class Property:
    """A column that becomes a feature.

    Attributes:
        name: of the column and the feature.
        dtype: of its values, "int64", "float32", "float64" or "bool"; "time" for dates and times, which become int64
            seconds since 1970.
        list_mark: separates the values of one row; "" if each row has one value.
        names: of categories, the code of each name so far, which all tables share; they are numbered in the order of
            the names, and -1 where there is none.
    """

    name: str
    dtype: str
    list_mark: str = ""
    names: dict[str, int] | None = None


class StoredRows:
    """Rows of tables with one header, in the order of their files.

    Args:
        tables: the files.
        properties: the columns that are kept.
        grow: opens temporary files.

    Attributes:
        codes: int32[rows], once all rows are stored, like the next one.
        counts: int64[owners], rows of each.
        columns: the properties by name.
    """

    def __init__(self, tables: TextFiles, properties: Sequence[Property], grow: Grow) -> None:
        self._tables = tables
        self._lengths = [0] * len(tables.paths)
        self.columns = {entry.name: _Column(entry, grow) for entry in properties}
        self._codes = grow(np.int32)
        self._grow = grow

    def append(self, piece: Piece, codes: I64, batch: Any, place: Place) -> None:
        """Append the rows of a block of a file; a code, from 0, tells the owner of each."""
        self._lengths[piece.file] += len(codes)
        self._codes.append(codes)
        for column in self.columns.values():
            column.append(batch.column(column.entry.name), codes, place)

    def finish(self, owner_of_code: I64, owners: int) -> None:
        """Sort the rows by owner, once all are stored.

        Args:
            owner_of_code: int64[codes], the owner of the rows of each code.
            owners: number of owners.
        """
        with self._codes:
            self.codes = self._codes.finish()
        owner = owner_of_code[self.codes]
        self.counts = np.bincount(owner, minlength=owners)
        self._order: Array | None = None
        if np.count_nonzero(self.counts) > 1:
            with self._grow(np.int64) as order:
                order.append(np.argsort(owner, kind="stable"))
                self._order = order.finish()
        for column in self.columns.values():
            column.finish(owner_of_code, owners)

    def positions(self, owner: int) -> I64:
        """Return the rows of an owner, ascending, int64[rows]."""
        if self._order is None:
            return np.arange(self.counts[owner])
        end = int(self.counts[: owner + 1].sum())
        return self._order[end - int(self.counts[owner]) : end]

    def rows(self, values: Array, owner: int) -> RowArray:
        """Return an owner's rows of an array that has one row for each stored row; they know file and row."""
        named: list[RowArray] = []
        begin = 0
        for piece, length in zip(self._tables.pieces(), self._lengths, strict=True):
            if length:
                name = str(self._tables.paths[piece.file])
                named.append(NamedRows(values[begin : begin + length], name, self._tables.first_row(piece)))
            begin += length
        whole = concatenated(named) if named else values
        return whole if self._order is None else Reordered(whole, self.positions(owner))


class _Column:
    """The values of a property."""

    def __init__(self, entry: Property, grow: Grow) -> None:
        self.entry = entry
        self.reason = ""  # why it is left out
        self.row_shape: tuple[int, ...] | None = None if entry.list_mark else ()
        self._dtype = np.dtype(np.int64 if entry.dtype == "time" else entry.dtype)
        self._length = 0
        self._values = grow(self._dtype)  # flat
        self.has_gaps = self._dtype.kind == "i" and entry.names is None  # a missing float is NaN, a category -1
        self._missing = grow(np.bool_) if self.has_gaps else None
        self._present = np.zeros(0, np.int64)

    def append(self, text: Any, codes: I64, place: Place) -> None:
        """Append a column of a block."""
        if self.reason:
            return
        compute = arrow().compute
        text = compute.utf8_trim_whitespace(text)
        is_there = compute.not_equal(text, "")
        given = text.filter(is_there)
        there: Mask = is_there.to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(there)
        if self.entry.list_mark:
            lists = compute.split_pattern(given, self.entry.list_mark)
            lengths = compute.list_value_length(lists).to_numpy(zero_copy_only=False)
            rows_of_numbers = np.repeat(rows, lengths)
            self._fit(lengths)
            if self.reason:
                return
            numbers = self._numbers(lists.flatten(), lambda number: place(int(rows_of_numbers[number])))
        else:
            numbers = self._numbers(given, lambda number: place(int(rows[number])))
        if self.row_shape is not None:
            values = np.full((len(there), *self.row_shape), self._fill, self._dtype)
            values[there] = numbers.reshape(len(rows), *self.row_shape)
            self._values.append(values.reshape(-1))
        if self._missing is not None:
            self._missing.append(~there)
        self._length += len(there)
        present = np.bincount(codes[there], minlength=len(self._present))
        present[: len(self._present)] += self._present
        self._present = present

    @property
    def _fill(self) -> float:
        return np.nan if self._dtype.kind == "f" else 0 if self.entry.names is None else -1

    def _fit(self, lengths: Array) -> None:
        """Take the length of the first lists as that of all."""
        widths = np.unique(lengths)
        if self.row_shape is None and len(widths):
            self.row_shape = (int(lengths[0]),)
            for begin in range(0, self._length, _FILL):
                rows = min(_FILL, self._length - begin)
                self._values.append(np.full(rows * self.row_shape[0], self._fill, self._dtype))
        if self.row_shape is not None and (widths != self.row_shape[0]).any():
            self.reason = f"lists of {self.row_shape[0]} and of {int(widths[widths != self.row_shape[0]][0])} values"

    def _numbers(self, text: Any, place: Place) -> Array:
        if self.entry.names is not None:
            return codes_of(text, self.entry.names)
        if self.entry.dtype != "time":
            return values_as(self._dtype, text, place)
        values = values_of(text, place)
        if len(text) and values.kind != "time":
            raise GraphDataError(f"{place(0)}: a date or time is expected in this column (got {text[0].as_py()!r:.80})")
        return values.rows

    def finish(self, owner_of_code: I64, owners: int) -> None:
        """Map the values, and count those of each owner."""
        with self._values:
            self.values = self._values.finish()
        if self._missing is not None:
            with self._missing:
                self.missing = self._missing.finish()
        if self.row_shape and not self.reason:
            self.values = self.values.reshape(-1, *self.row_shape)
        self.present = np.bincount(owner_of_code[: len(self._present)], self._present, owners).astype(np.int64)


def features_of(tables: Sequence[StoredRows], owner: int, title: str, left_out: list[str]) -> dict[str, Feature]:
    """Return the properties of an owner as features, one row for each of its rows in all tables.

    Args:
        tables: all that may have rows of it, finished.
        owner: number of a node type or relation.
        title: its name, for messages.
        left_out: receives a line for each property that is left out.
    """
    tables = [table for table in tables if table.counts[owner]]
    names = dict.fromkeys(name for table in tables for name, column in table.columns.items() if column.present[owner])
    features = {}
    for name in names:
        columns = [table.columns.get(name) for table in tables]
        given = [column for column in columns if column is not None and column.present[owner]]
        reason = next((column.reason for column in given if column.reason), "")
        shapes = {column.row_shape for column in given}
        if reason or len(shapes) > 1 or len({column.entry.dtype == "bool" for column in given}) > 1:
            left_out.append(f"property {name!r} of {title}: {reason or 'its files differ in type or length of values'}")
            continue
        features[name] = _feature(name, tables, given, owner)
    return features


def _feature(name: str, tables: Sequence[StoredRows], given: Sequence[_Column], owner: int) -> Feature:
    """Put the values of a property in all tables one after another."""
    dtype = np.result_type(*(column.values.dtype for column in given))
    is_whole = sum(column.present[owner] for column in given) == sum(table.counts[owner] for table in tables)
    names = given[0].entry.names
    if not is_whole and names is None and dtype.kind == "i":
        dtype = np.dtype(np.float64)
    shape = given[0].row_shape or ()
    pieces: list[RowArray] = []
    for table in tables:
        column = table.columns.get(name)
        if column is None or not column.present[owner]:
            make = partial(_missing_rows, shape, dtype, -1 if names is not None else np.nan if dtype.kind == "f" else 0)
            pieces.append(MadeRows(make, dtype, table.positions(owner), row_shape=shape))
            continue
        piece: RowArray = table.rows(column.values, owner)
        if column.present[owner] < table.counts[owner] and column.has_gaps:
            piece = MadeRows(partial(_with_gaps, dtype), dtype, piece, table.rows(column.missing, owner))
        pieces.append(piece if piece.dtype == dtype else CastRows(piece, dtype))
    values = concatenated(pieces)
    if names is not None:
        order = sorted(range(len(names)), key=[name.encode() for name in names].__getitem__)
        ranks = np.full(len(names) + 1, -1)  # the last is that of rows without a name, whose code is -1
        ranks[order] = np.arange(len(names))
        values = MadeRows(ranks.__getitem__, np.int64, values)
    return Feature(as_labels(values), "int64") if name == "label" else Feature.of(values)


def codes_of(column: Any, codes: dict[str, int], cleaned: Callable[[str], str] = str) -> I64:
    """Return the code of each string of a column, once it is cleaned; new ones are added to ``codes``. int64[rows]."""
    encoded = column.dictionary_encode()
    texts = map(cleaned, encoded.dictionary.to_pylist())
    numbers = np.array([codes.setdefault(text, len(codes)) for text in texts], np.int64)
    return np.asarray(numbers[encoded.indices.to_numpy(zero_copy_only=False)], np.int64)


def _missing_rows(shape: tuple[int, ...], dtype: np.dtype[Any], fill: float, positions: I64) -> Array:
    return np.full((len(positions), *shape), fill, dtype)


def _with_gaps(dtype: np.dtype[Any], values: Array, missing: Array) -> Array:
    rows = values.astype(dtype)
    rows[missing] = np.nan
    return rows
