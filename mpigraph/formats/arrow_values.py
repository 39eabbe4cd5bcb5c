"""Columns of Arrow as arrays of numpy: numbers, lists of them, times and ids. The only module that imports pyarrow."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError
from mpigraph.partition.row_arrays import as_dtype
from mpigraph.storage.narrow import RowError

Place = Callable[[int], str]
"""Returns the file, row and column of a row, for messages."""

_MAX_ID_BYTES = 256  # keys have the width of the longest
_MAX_WORD_BYTES = 1 << 16  # of what may be missing, such as a list of labels
_MICROS = 10**6


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


def to_numpy(column: Any, numbers: Numbers, place: Place) -> Array:
    """Return an Arrow array of numbers, or of lists of as many numbers each; times are seconds since 1970.

    Raises GraphDataError: a number does not fit, lists are of several lengths, or a value is missing; names the row.
    """
    pyarrow = arrow()
    kind = type_kind(column.type)
    if kind == "list":
        width = _common_length(column, place)
        flat = to_numpy(column.flatten(), numbers, lambda position: place(position // max(width, 1)))
        return flat.reshape(len(column), width)
    try:
        if kind == "time":
            column = _seconds(column)
        elif kind in ("none", "bool") or pyarrow.types.is_decimal(column.type):
            column = column.cast(pyarrow.uint8() if kind == "bool" else pyarrow.float64())
        gaps = column.is_null().to_numpy(zero_copy_only=False)
        rows = column.fill_null(0).to_numpy(zero_copy_only=False)
        if numbers.fill is not None and rows.dtype.kind == "f":
            gaps |= np.isnan(rows)
            rows = np.where(gaps, 0, rows)
        values = as_dtype(rows, numbers.dtype) if numbers.rounds else _exact(rows, numbers.dtype)
    except RowError as error:
        raise GraphDataError(f"{place(error.row)}: {error}") from None
    except pyarrow.ArrowInvalid as error:
        raise GraphDataError(f"{place(0)} or a later one: {error}") from None
    if not gaps.any():
        return values
    if numbers.fill is None and values.dtype.kind != "f":
        raise GraphDataError(f"{place(int(gaps.argmax()))}: a value is missing")
    return np.where(gaps, values.dtype.type(np.nan if numbers.fill is None else numbers.fill), values)


def _exact(rows: Array, dtype: np.dtype[Any]) -> Array:
    """Return numbers in another dtype. Raises RowError: one is too large, or loses more than digits after its point."""
    if rows.dtype == dtype:
        return rows
    values = as_dtype(rows, dtype)
    with np.errstate(invalid="ignore"):
        lost = (values.astype(rows.dtype) != rows) & (np.abs(rows) > 2**24)
    if lost.any():
        row = int(lost.argmax())
        raise RowError(row, f"{rows[row]} does not fit {dtype.name}; --types COLUMN=float64 takes the nearest")
    return values


def _seconds(times: Any) -> Any:
    """Return times as seconds, integers or, if one has a fraction, floats."""
    pyarrow = arrow()
    compute = pyarrow.compute
    zone = times.type.tz if pyarrow.types.is_timestamp(times.type) else None
    micros = times.cast(pyarrow.timestamp("us", zone)).cast(pyarrow.int64())
    seconds = compute.divide(micros, _MICROS)
    are_whole = compute.all(compute.equal(compute.multiply(seconds, _MICROS), micros)).as_py()
    return seconds if are_whole is not False else compute.divide(micros.cast(pyarrow.float64()), float(_MICROS))


def _common_length(lists: Any, place: Place) -> int:
    if lists.null_count:
        raise GraphDataError(f"{place(arrow().compute.index(lists.is_null(), True).as_py())}: a value is missing")
    lengths = arrow().compute.list_value_length(lists).to_numpy(zero_copy_only=False)
    width = int(lengths[0]) if len(lengths) else 0
    if (lengths != width).any():
        row = int((lengths != width).argmax())
        raise GraphDataError(f"{place(row)}: a list has {lengths[row]} numbers, {width} before")
    return width


def distinct_in(column: Any, place: Place, blanks: bool = False) -> tuple[Array, I64]:
    """Return the distinct strings of a column as dtype S, and for each row its position among them.

    A string may be empty if ``blanks``. Raises GraphDataError, which names the row, if one is missing or too long.
    """
    compute = arrow().compute
    encoded = column.dictionary_encode()
    positions: I64 = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    words = encoded.dictionary
    lengths = compute.binary_length(words).to_numpy(zero_copy_only=False)
    longest = _MAX_WORD_BYTES if blanks else _MAX_ID_BYTES
    bad = compute.match_substring(words, "\0").to_numpy(zero_copy_only=False)
    bad |= (lengths > longest) | ((lengths == 0) & (not blanks))
    if bad.any():
        row = int(bad[positions].argmax())
        text = column[row].as_py().encode()
        what = f"an id must have 1 to {longest} bytes, none zero (got {text!r:.80})" if text else "a value is missing"
        raise GraphDataError(f"{place(row)}: {what}")
    width = max(int(lengths.max(initial=1)), 1)
    padded = compute.ascii_rpad(words, width=width, padding="\0")
    return np.frombuffer(padded.buffers()[2] or b"", f"S{width}", len(words)), positions
