"""Values of Arrow's columns: numbers, lists and times; and the same from text, where a column has no type.

The only module that imports pyarrow.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import I64, Array, Mask
from mpigraph.errors import GraphDataError
from mpigraph.partition.row_arrays import RowError, as_dtype

Place = Callable[[int], str]
"""Returns the file and row of a row of a block, for messages."""

EXACT = 2**53
"""The integers up to this one are floats, too."""

_MAX_ID_BYTES = 256  # keys have the width of the longest
_MAX_WORD_BYTES = 1 << 16  # of what may be missing, such as a list of labels
_MISSING = ("", "na", "n/a", "nan", "null", "none", "nil", "#n/a", "<na>")  # in small letters
_TRIED = 64  # rows
_LIST_MARKS = ",;|"
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_ONE_NUMBER = r"^[+-]?(\d+|\d{1,3}([ .,]\d{3})+)([.,]\d+)?$"
"""A number with decimal commas or marks between thousands: also what lists such as ``1,2`` look like."""
_UNITS = ("s", "ms", "us", "ns")


class Values(NamedTuple):
    """The values in a block of a column of text."""

    column: Any  # an Arrow array, null where a value is missing: integers, floats, bools, times or lists; None: text
    first: int = -1  # of text the first row that is no number


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
    """Return the Arrow type that holds the values of two, None if only text does."""
    pyarrow = arrow()
    if one == other or pyarrow.types.is_null(other):
        return one
    if pyarrow.types.is_null(one):
        return other
    kinds = type_kind(one), type_kind(other)
    if kinds == ("list", "list"):
        return pyarrow.list_(pyarrow.float64())
    return pyarrow.float64() if set(kinds) == {"integer", "float"} else None


def to_numpy(column: Any, place: Place, dtype: str = "", are_floats: bool = False, fill: str = "") -> Array:
    """Return an Arrow array of numbers, or of lists of as many numbers each.

    Times become int64 seconds since 1970, or float64 if one has a fraction, decimal numbers float64.

    Args:
        column: the array.
        place: names a row.
        dtype: what the numbers are cast to, as the user has asked; "" for their own.
        are_floats: integers become float64, since other rows of the column have fractions or no value.
        fill: what a row without a value gets; "" for NaN.

    Raises GraphDataError: an integer does not fit, lists are of several lengths, or a value is missing where the dtype
    has no NaN; names the row.
    """
    pyarrow = arrow()
    types = pyarrow.types
    kind = type_kind(column.type)
    if kind == "none" or types.is_decimal(column.type):
        column = column.cast(pyarrow.float64())
    if column.null_count and (fill or not types.is_floating(column.type)):
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        if not fill and not (np.dtype(dtype).kind == "f" if dtype else are_floats):
            what = f", which {dtype} cannot say" if dtype else ""
            raise GraphDataError(f"{place(int(valid.argmin()))}: a value is missing{what}")
        there = np.flatnonzero(valid)
        rows = to_numpy(column.drop_null(), lambda row: place(int(there[row])), dtype, are_floats)
        try:
            number = int(fill) if fill.lstrip("+-").isdecimal() else float(fill or "nan")
            filled = np.full((len(column), *rows.shape[1:]), as_dtype(np.array([number]), rows.dtype)[0], rows.dtype)
        except RowError as error:
            raise GraphDataError(f"{place(int(valid.argmin()))}: --fill: {error}") from None
        filled[there] = rows
        return filled
    if kind == "string":  # ids
        return values_as(np.dtype(dtype or np.int64), column.cast(pyarrow.large_string()), place)
    if kind == "list":
        if types.is_fixed_size_list(column.type):
            width = column.type.list_size
        else:
            width = _common_length(pyarrow.compute.list_value_length(column).to_numpy(zero_copy_only=False), place)
        numbers = to_numpy(column.flatten(), lambda position: place(position // max(width, 1)), dtype, are_floats)
        return numbers.reshape(len(column), width)
    rows = _seconds(column, place) if kind == "time" else np.asarray(column.to_numpy(zero_copy_only=False))
    try:
        if dtype:
            return as_dtype(rows, np.dtype(dtype))
        return exact_floats(rows) if are_floats and rows.dtype.kind != "f" else rows
    except RowError as error:
        raise GraphDataError(f"{place(error.row)}: {error}") from None


def exact_floats(rows: Array) -> Array:
    """Return integers as float64. Raises RowError: one would be rounded."""
    lost = np.abs(rows) > EXACT
    if lost.any():
        row = int(lost.argmax())
        reason = "which other rows of the column ask for; --types COLUMN=float64 rounds it"
        raise RowError(row, f"{rows[row]} does not fit float64, {reason}")
    return rows.astype(np.float64)


def distinct_in(column: Any, place: Place, blanks: bool = False) -> tuple[Array, I64]:
    """Return the distinct strings of a column as dtype S, and for each row its position among them.

    A string may be empty if ``blanks``. Raises GraphDataError, which names the row, if one is missing or too long.
    """
    _check_values(column, place)
    compute = arrow().compute
    encoded = column.cast(arrow().large_string()).dictionary_encode()
    positions = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    words = encoded.dictionary
    lengths = compute.binary_length(words).to_numpy(zero_copy_only=False)
    bad = compute.match_substring(words, "\0").to_numpy(zero_copy_only=False)
    longest = _MAX_WORD_BYTES if blanks else _MAX_ID_BYTES
    bad |= (lengths > longest) | ((lengths == 0) & (not blanks))
    if bad.any():
        row = int(bad[positions].argmax())
        text = column[row].as_py().encode()
        if not text:
            raise GraphDataError(f"{place(row)}: a value is missing")
        raise GraphDataError(f"{place(row)}: an id must have 1 to {longest} bytes, none zero (got {text!r:.80})")
    rows = np.zeros((len(lengths), max(int(lengths.max(initial=1)), 1)), np.uint8)
    offsets, data = buffers_of(words)
    ends = offsets[1:] - offsets[0]
    rows[np.repeat(np.arange(len(rows)), lengths), np.arange(len(data)) - np.repeat(ends - lengths, lengths)] = data
    return rows.view(f"S{rows.shape[1]}").reshape(-1), positions


def ids_of(text: Any) -> Array | Any:
    """Return the ids in a column of text: int64[n] if every one is written as Python writes integers, else strings.

    So ``007``, ``0x1F`` and ``1.0`` are strings, and two ids are never taken for one. Blanks around ids do not count.
    """
    text = arrow().compute.utf8_trim_whitespace(text)
    try:
        numbers = _parsed(text, arrow().int64())
    except arrow().ArrowInvalid:
        return text
    return numbers.to_numpy(zero_copy_only=False) if numbers.cast(text.type).equals(text) else text


def buffers_of(strings: Any) -> tuple[I64, Array]:
    """Return the offsets of strings, int64[n + 1], and the bytes between the first and the last one."""
    large = strings.cast(arrow().large_string())
    offsets: I64 = np.frombuffer(large.buffers()[1], np.int64)[large.offset : large.offset + len(large) + 1]
    data = large.buffers()[2]
    return offsets, np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]


def have_points(strings: Any) -> bool:
    """Return whether all strings are numbers with a point in them."""
    compute = arrow().compute
    if not compute.all(compute.match_substring(strings, ".")).as_py():
        return False
    try:
        strings.cast(arrow().float64())
    except arrow().ArrowInvalid:
        return False
    return True


def values_of(text: Any, place: Place, known: Any = None) -> Values:
    """Return the values in a column of text: integers, else floats, bools, times, lists of numbers, else text.

    ``text`` is without nulls. Blanks around values do not count; "", NA, NaN and null are missing values. ``known`` is
    the Arrow type of rows before, if any: integers are not tried after floats.

    Raises GraphDataError: an integer does not fit int64, or lists are of several lengths; names the row.
    """
    pyarrow = arrow()
    are_floats_known = known is not None and pyarrow.types.is_floating(known)
    if not are_floats_known:
        try:  # as it stands, as most columns can be
            return Values(_parsed(text, pyarrow.int64()))
        except pyarrow.ArrowInvalid:
            pass
    text, is_blank = _without_blanks(text)
    if is_blank.all():
        return Values(pyarrow.nulls(len(text)))
    for parse in (
        (_floats, _bools, _times, _lists) if are_floats_known else (_integers, _floats, _bools, _times, _lists)
    ):
        try:
            return Values(parse(text, place))
        except pyarrow.ArrowInvalid:
            continue
    is_number = pyarrow.compute.match_substring_regex(text, _NUMBER)
    return Values(None, max(0, pyarrow.compute.index(is_number, False).as_py()))


def _parsed(text: Any, to: Any) -> Any:
    """Return text as another type; the first rows are tried alone, since pyarrow words an error for every row."""
    text.slice(0, _TRIED).cast(to)
    parsed = text.cast(to)
    if arrow().types.is_integer(to) and b"x" in buffers_of(text)[1].tobytes().lower():
        raise arrow().ArrowInvalid("numbers of base 16 are text")
    return parsed


def _without_blanks(text: Any) -> tuple[Any, Mask]:
    """Return text without blanks around it, null where a value is missing, and where that is."""
    pyarrow = arrow()
    compute = pyarrow.compute
    text = compute.utf8_trim_whitespace(text)
    blank = compute.is_in(compute.utf8_lower(text), value_set=pyarrow.array(_MISSING))
    return compute.if_else(blank, pyarrow.scalar(None, text.type), text), blank.to_numpy(zero_copy_only=False)


def missing_in(text: Any) -> Mask:
    """Return which rows of a column of text have no value."""
    return _without_blanks(text)[1]


def values_as(dtype: np.dtype[Any], text: Any, place: Place, fill: str = "") -> Array:
    """Return the values in a column of text in a dtype that the user has named.

    A row without a value gets the number ``fill``, or NaN without one. Raises GraphDataError: a value does not fit, or
    is missing where the dtype has no NaN; names the row.
    """
    bare, _ = _without_blanks(text)
    try:
        if dtype.kind == "f":  # floats are rounded, as the user has asked
            return to_numpy(_parsed(bare, arrow().float64()), place, dtype.name, fill=fill)
    except arrow().ArrowInvalid:  # written in another way
        pass
    column, row = values_of(text, place)
    if column is None:
        raise GraphDataError(f"{place(row)}: {text[row].as_py()!r:.80} is no {dtype.name}")
    return to_numpy(column, place, dtype.name, fill=fill)


def _integers(text: Any, place: Place) -> Any:
    return _parsed(text, arrow().int64())


def _floats(text: Any, place: Place) -> Any:
    column = _parsed(text, arrow().float64())
    rows: Array = column.to_numpy(zero_copy_only=False)
    are_whole = not (rows != np.rint(rows))[~np.isnan(rows)].any()
    for row in np.flatnonzero((np.abs(rows) > EXACT - 1) & np.isfinite(rows)).tolist():
        number = text[row].as_py()
        if not number.lstrip("+-").isdecimal():
            continue
        if are_whole and abs(int(number)) >= 2**63:
            raise GraphDataError(f"{place(row)}: {number} does not fit int64; --types COLUMN=float64 rounds it")
        if int(number) != int(rows[row]):
            reason = "which other rows of the column ask for; --types COLUMN=float64 rounds it"
            raise GraphDataError(f"{place(row)}: {number} does not fit float64, {reason}")
    return column


def _bools(text: Any, place: Place) -> Any:
    digits = arrow().compute.is_in(text, value_set=arrow().array(["0", "1"]))
    if arrow().compute.any(digits).as_py():  # a block of them alone would be integers
        raise arrow().ArrowInvalid("no bools")
    return _parsed(text, arrow().bool_())


def _times(text: Any, place: Place) -> Any:
    pyarrow = arrow()
    for zone in (None, "UTC"):
        for unit in _UNITS:
            try:
                times = _parsed(text, pyarrow.timestamp(unit, zone))
            except pyarrow.ArrowInvalid:
                continue
            _seconds(times.fill_null(pyarrow.scalar(0, times.type)), place)  # which refuses parts of a microsecond
            return times.cast(pyarrow.timestamp("us"))
    raise pyarrow.ArrowInvalid("no times")


def _seconds(times: Any, place: Place) -> Array:
    """Return times without gaps as seconds since 1970: int64, or float64 if one has a fraction.

    Raises GraphDataError: one has more than six digits after the point, which float64 lacks.
    """
    rows = times.to_numpy(zero_copy_only=False)
    seconds = rows.astype("datetime64[s]")
    if (seconds != rows).any():
        micros = rows.astype("datetime64[us]")
        if (micros != rows).any():
            row = int((micros != rows).argmax())
            advice = "give numbers, or --types COLUMN=string leaves the column out"
            raise GraphDataError(f"{place(row)}: {rows[row]} has parts of a microsecond, which float64 lacks: {advice}")
        return np.asarray(micros.astype(np.int64) / 1e6)
    return np.asarray(seconds.astype(np.int64))


def _lists(text: Any, place: Place) -> Any:
    """Return lists of numbers, such as "0.1,0.2" or "[0.1 0.2]", of one length."""
    pyarrow = arrow()
    compute = pyarrow.compute
    first = text.drop_null()[0].as_py()
    mark = next((mark for mark in _LIST_MARKS if mark in first), None)
    if compute.all(compute.match_substring_regex(text, _ONE_NUMBER)).as_py():
        raise GraphDataError(
            f"{place(compute.index(text.is_valid(), True).as_py())}: {first!r} may be a list or one number: write a "
            "point for decimals, no marks between thousands, and brackets around lists; --types COLUMN=string leaves "
            "the column out"
        )
    bare = compute.utf8_trim(text, "[]() ")
    if mark is None and len(first.split()) < 2 and first[0] not in "[(":
        raise pyarrow.ArrowInvalid("no lists")
    parts = compute.utf8_split_whitespace(bare) if mark is None else compute.split_pattern(bare, mark)
    fields = compute.utf8_trim_whitespace(parts.flatten())
    try:
        numbers = _parsed(fields, pyarrow.int64())
    except pyarrow.ArrowInvalid:
        numbers = _parsed(fields, pyarrow.float64())
    there = parts.is_valid().to_numpy(zero_copy_only=False)
    lengths = compute.list_value_length(parts).fill_null(0).to_numpy(zero_copy_only=False)
    rows_there = np.flatnonzero(there)
    _common_length(lengths[there], lambda row: place(int(rows_there[row])))
    offsets = np.append(0, np.cumsum(lengths))
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets, pyarrow.int32()), numbers, mask=pyarrow.array(~there))


def _common_length(lengths: Array, place: Place) -> int:
    width = int(lengths[0]) if len(lengths) else 0
    if (lengths != width).any():
        row = int(np.flatnonzero(lengths != width)[0])
        raise GraphDataError(f"{place(row)}: a list has {lengths[row]} numbers, {width} before")
    return width


def _check_values(column: Any, place: Place) -> None:
    if column.null_count:
        row = arrow().compute.index(column.is_null(), True).as_py()
        raise GraphDataError(f"{place(row)}: a value is missing")
