"""Columns of Arrow as arrays of numpy: numbers, lists of them, times and ids. The only module that imports pyarrow."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError
from mpigraph.partition.row_arrays import as_dtype
from mpigraph.storage.narrow import RowError

_MAX_ID_BYTES = 256  # keys have the width of the longest


class Numbers(NamedTuple):
    """The numbers that a column becomes.

    ``fill`` is what a row without a value gets; None: NaN, or an error where the dtype has none. Where it ``rounds``,
    floats become those of the dtype; else only digits after the point may be lost.
    """

    dtype: np.dtype[Any]
    fill: Any = None
    rounds: bool = False


def arrow() -> Any:
    """Return pyarrow. Raises GraphDataError: it is not installed; says how to install it."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError:
        raise GraphDataError("csv, parquet and edge lists need pyarrow: pip install pyarrow") from None
    return pyarrow


@contextmanager
def rows_named(path: Path, column: str, first: int) -> Iterator[None]:
    """Name file, row and column in errors of values of a column whose first one is in the row ``first``."""
    try:
        yield
    except RowError as error:
        raise GraphDataError(f"{path}, row {first + error.row}, column {column}: {error}") from None
    except arrow().ArrowInvalid as error:
        raise GraphDataError(f"{path}, row {first}, column {column} or a later one: {error}") from None


def type_kind(of: Any) -> str:
    """Return what an Arrow type holds: integer, float, bool, time, list (of numbers), string, none or other."""
    types = arrow().types
    if types.is_fixed_size_list(of) or types.is_list(of) or types.is_large_list(of):
        return "list" if type_kind(of.value_type) in ("integer", "float", "bool") else "other"
    if types.is_dictionary(of):
        return "string" if type_kind(of.value_type) == "string" else "other"
    kinds = {
        "integer": types.is_integer(of),
        "float": types.is_floating(of) or types.is_decimal(of),
        "bool": types.is_boolean(of),
        "time": types.is_timestamp(of) or types.is_date(of),
        "string": types.is_string(of) or types.is_large_string(of),
        "none": types.is_null(of),
    }
    return next((kind for kind, holds in kinds.items() if holds), "other")


def wider_type(one: Any, other: Any) -> Any:
    """Return the Arrow type that holds the values of two; text if there is no other."""
    if one == other:
        return one
    schemas = [arrow().schema([("", of)]) for of in (one, other)]
    try:
        return arrow().unify_schemas(schemas, promote_options="permissive").field(0).type
    except (arrow().ArrowInvalid, arrow().ArrowTypeError):
        return arrow().large_string()


def to_numpy(column: Any, numbers: Numbers) -> Array:
    """Return an Arrow array of numbers, or of lists of as many numbers each; times are seconds since 1970.

    Raises RowError, or an error of Arrow: a number does not fit, lists are of several lengths, or a value is missing.
    """
    pyarrow = arrow()
    shape: tuple[int, ...] = (len(column),)
    if type_kind(column.type) == "list":
        _check_there(column.is_null().to_numpy(zero_copy_only=False))
        lengths = pyarrow.compute.list_value_length(column).to_numpy(zero_copy_only=False)
        shape = len(column), check_lengths(lengths, int(lengths[0]) if len(lengths) else 0)
        column = column.flatten()
    kind = type_kind(column.type)
    if kind == "time":
        column = _seconds(column)
    elif kind in ("none", "bool") or pyarrow.types.is_decimal(column.type):
        column = column.cast(pyarrow.uint8() if kind == "bool" else pyarrow.float64())
    gaps = column.is_null().to_numpy(zero_copy_only=False).reshape(shape)
    rows = column.fill_null(0).to_numpy(zero_copy_only=False).reshape(shape)
    if numbers.fill is not None and rows.dtype.kind == "f":
        gaps = gaps | np.isnan(rows)
        rows = np.where(gaps, 0, rows)
    values = as_dtype(rows, numbers.dtype) if numbers.rounds else _exact(rows, numbers.dtype)
    if not gaps.any():
        return values
    if numbers.fill is None and values.dtype.kind != "f":
        _check_there(gaps)
    return np.where(gaps, values.dtype.type(np.nan if numbers.fill is None else numbers.fill), values)


def check_lengths(lengths: Array, width: int) -> int:
    """Return the number of values in all lists of a column. Raises RowError: a list has another one."""
    if (lengths != width).any():
        row = int((lengths != width).argmax())
        raise RowError(row, f"a list has {lengths[row]} numbers, {width} before")
    return width


def _check_there(gaps: Array) -> None:
    if gaps.any():
        raise RowError(int(np.argwhere(gaps)[0][0]), "a value is missing")


def _exact(rows: Array, dtype: np.dtype[Any]) -> Array:
    """Return numbers in another dtype. Raises RowError: one is too large, or loses more than digits after its point."""
    if rows.dtype == dtype:
        return rows
    values = as_dtype(rows, dtype)
    with np.errstate(invalid="ignore"):
        lost = np.argwhere((values.astype(rows.dtype) != rows) & (np.abs(rows) > 2**24))
    if len(lost):
        what = f"{rows[tuple(lost[0])]} does not fit {dtype.name}; --types COLUMN=float64 takes the nearest"
        raise RowError(int(lost[0][0]), what)
    return values


def _seconds(times: Any) -> Any:
    """Return times as seconds, integers or, if one has a fraction, floats."""
    pyarrow = arrow()
    zone = getattr(times.type, "tz", None)
    try:
        return times.cast(pyarrow.timestamp("s", zone)).cast(pyarrow.int64())
    except pyarrow.ArrowInvalid:  # there are fractions
        micros = times.cast(pyarrow.timestamp("us", zone)).cast(pyarrow.int64())
        return pyarrow.compute.divide(micros.cast(pyarrow.float64()), 1e6)


def distinct_in(column: Any) -> tuple[Array, I64]:
    """Return the distinct strings of a column as dtype S, and for each row its position among them.

    Raises RowError: one is missing or too long.
    """
    compute = arrow().compute
    encoded = column.dictionary_encode()
    positions: I64 = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    words = encoded.dictionary
    lengths = compute.binary_length(words).to_numpy(zero_copy_only=False)
    bad = compute.match_substring(words, "\0").to_numpy(zero_copy_only=False)
    bad |= (lengths > _MAX_ID_BYTES) | (lengths == 0)
    if bad.any():
        row = int(bad[positions].argmax())
        text = column[row].as_py().encode()
        what = f"an id must have 1 to {_MAX_ID_BYTES} bytes, none zero (got {text!r:.80})"
        raise RowError(row, what if text else "a value is missing")
    width = max(int(lengths.max(initial=1)), 1)
    padded = compute.ascii_rpad(words, width=width, padding="\0")
    return np.frombuffer(padded.buffers()[2] or b"", f"S{width}", len(words)), positions
