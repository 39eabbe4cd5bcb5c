"""Text of tables by pyarrow, an extra: it is parsed once, and becomes parquet.

Text may be compressed (``.gz``, ``.bz2``) and begin with lines of comments (``#``). The first line tells if tabs,
commas, semicolons or blanks separate its fields. pyarrow parses it a block at a time, and finds the types of columns:
integers, floats, bools, times or text, which is text here only if it is no list of numbers.
"""

import csv
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import I64
from mpigraph.formats.arrow_values import arrow, check_lengths, rows_named, type_kind, wider_type
from mpigraph.formats.input_files import Errors, opened, reading
from mpigraph.formats.layout import NUMBER
from mpigraph.storage.files import storage_errors
from mpigraph.storage.narrow import RowError

_BLOCK_BYTES = 8 << 20
_LONGEST_LINE = 8 << 20
_BOM = b"\xef\xbb\xbf"
_UNENDED = "a field in quotes does not end"
_NO_MARKS = re.compile(r'"[^"]*"')  # commas in it do not separate fields
_NO_DECIMALS = re.compile(r'"[^"]*"|(?<=\d),(?=\d)')
_ROW_OF_FILE = re.compile(r"\bRow #(\d+)")
_MISSING = ("", *"NA na N/A n/a #N/A <NA> NaN nan NAN null NULL Null None none nil".split())
_LIST_MARKS = r"\s*[,;|]\s*|\s+"
_TRIED = 64  # rows
_EXACT = 2**53  # the integers below this one are floats, too
_NUMBER = f"^{NUMBER}$"
# with decimal commas or marks between thousands; also what lists such as ``1,2`` look like
_ONE_NUMBER = r"^[+-]?(\d+|\d{1,3}([ .,]\d{3})+)([.,]\d+)?$"


@dataclass(frozen=True)
class TextForm:
    """The form of a text file."""

    delimiter: str | None = None  # between fields; None to look at the first line
    # the first line is a row; False: after comments, unless two integers stand in front, it has the names
    headless: bool = False
    first: tuple[str, ...] = ("src", "dst")  # columns of a file without names; further ones are "column2" and so on
    decimal: str = "."  # or "," in numbers with a fraction


class Head(NamedTuple):
    """The first lines of a file of text."""

    names: list[str]
    delimiter: str
    begin: int  # the byte at which the rows begin
    first_row: int  # the line, from 1, at which they begin
    no_header: list[str]  # the fields of the first line, where it has no names and none are given


class Way(NamedTuple):
    """The use of a column, and the user's words about it."""

    dtype: str = ""  # that the user has named, "string" for ids that stay text; "" for that of all rows
    fill: str = ""  # what a row without a value gets
    is_ids: bool = False
    is_wide: bool = False  # floats stay float64


def head_of(path: Path, form: TextForm) -> Head:
    """Read the first lines of a file."""
    with opened(path) as file, reading(path):
        skipped = 0
        begin = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
        file.seek(begin)
        while (line := file.readline(_LONGEST_LINE)).startswith(b"#"):
            skipped += 1
            begin += len(line)
        text = line.decode().strip("\r\n")
        bare = (_NO_MARKS if form.decimal == "." else _NO_DECIMALS).sub("", text)
        marks = [mark for mark in bare if mark in ",;"] or ([" "] if " " in bare else [","])
        delimiter = form.delimiter or ("\t" if "\t" in bare else marks[0])
        fields = [name.strip() for name in next(csv.reader([text], delimiter=delimiter, strict=True), [""])]
    has_names = not form.headless and not all(text.lstrip("-").isdecimal() for text in fields[:2])
    unnamed = [*form.first, *(f"column{n}" for n in range(len(form.first), len(fields)))]
    names = fields if has_names else unnamed if form.headless and not text else unnamed[: len(fields)]
    return Head(names, delimiter, begin + len(line) * has_names, skipped + has_names + 1, [] if has_names else fields)


def write_parquet(
    path: Path, form: TextForm, head: Head, columns: Mapping[str, Way], target: Path
) -> tuple[list[str], dict[str, str]]:
    """Parse columns of a file of text, and write each block of its rows to a parquet file; ``target`` begins its name.

    Returns these files, and for each column that is text and no ids, which is not written, its first value that
    is no number, with its place; "" if the user says that it is text.

    Raises GraphDataError: values cannot be read; names file, row and column, of each column the first.
    """
    pyarrow = arrow()
    texts = {name: "" for name, way in columns.items() if way.dtype == "string" and not way.is_ids}
    types = dict.fromkeys(columns, pyarrow.null())  # of the blocks so far
    errors = Errors()
    files: list[str] = []
    for first_row, table in _parsed(path, head, [n for n, way in columns.items() if way.is_ids], form.decimal):
        blocks = dict.fromkeys(columns, pyarrow.nulls(len(table)))
        for name in [name for name in columns if name not in texts and name not in errors]:
            text, way = table.column(name).combine_chunks(), columns[name]
            with errors.of(name), rows_named(path, name, first_row):
                known, dtype, decimal = types[name], way.dtype, form.decimal
                block = ids_in(text, dtype, known) if way.is_ids else _values_in(text, dtype, decimal, known)
                types[name] = wider_type(known, block.type)
                if type_kind(types[name]) != "string" or way.is_ids:
                    blocks[name] = block
                    continue
                row = _first_text(block, decimal) if type_kind(block.type) == "string" else 0
                if dtype:
                    raise RowError(row, f"{text[row].as_py()!r:.80} is no {dtype}")
                texts[name] = f"{path}, row {first_row + row}, column {name}: {text[row].as_py()!r:.80}"
        if not errors:
            files.append(_written(blocks, f"{target}-{len(files)}"))
    errors.check()
    return files or [_written(dict.fromkeys(columns, pyarrow.nulls(0)), f"{target}-0")], texts


def _written(columns: Mapping[str, Any], path: str) -> str:
    """Write columns to a parquet file; return its path."""
    plain = [name for name, values in columns.items() if type_kind(values.type) != "string"]
    more = {"compression": "none", "use_dictionary": False, "write_statistics": plain}
    with storage_errors(Path(path)):
        arrow().parquet.write_table(arrow().table(columns), path, **more)
    return path


def ids_in(text: Any, dtype: str, known: Any) -> Any:
    """Return the ids in a column of text without blanks around them.

    They are int64 if every one is written as Python writes integers, or the user has named a dtype, else text. So
    ``007``, ``0x1F`` and ``1.0`` are text, and two ids are never taken for one.
    """
    compute = arrow().compute
    text = compute.utf8_trim_whitespace(text)
    if dtype == "string" or type_kind(known) == "string":
        return text
    try:
        text.slice(0, _TRIED).cast(arrow().int64())  # pyarrow words an error for every row
        numbers = text.cast(arrow().int64())
        if dtype or numbers.cast(text.type).equals(text):
            return numbers
    except arrow().ArrowInvalid:
        if dtype:
            raise
    if compute.all(compute.match_substring_regex(text, r"^-?\d+\.\d*$")).as_py():
        advice = "--types COLUMN=string takes them as text"
        raise RowError(0, f"ids must be integers or text (got {text[0].as_py()}); {advice}")
    return text


def _values_in(column: Any, dtype: str, decimal: str, known: Any) -> Any:
    """Return the values of a block, null where one is missing, dates as times, lists of numbers in text, or text.

    ``known`` is the Arrow type of the blocks before. Raises RowError: a number is rounded, or may be meant in another
    way.
    """
    pyarrow = arrow()
    compute = pyarrow.compute
    kind = type_kind(column.type)
    if kind == "float" and not dtype.startswith("float"):
        rows = column.to_numpy(zero_copy_only=False)
        beyond = (np.abs(rows) >= _EXACT) & np.isfinite(rows)
        if beyond.any():
            row = int(beyond.argmax())
            what = "does not fit int64, nor float64 in all digits; --types COLUMN=float64 takes the nearest"
            raise RowError(row, f"about {rows[row]:.0f} {what}")
    if pyarrow.types.is_binary(column.type):
        raise pyarrow.ArrowInvalid("text is not UTF-8")
    if kind != "string":
        return column.cast(pyarrow.timestamp("s")) if pyarrow.types.is_date(column.type) else column
    text = compute.utf8_trim_whitespace(column)
    text = compute.if_else(compute.is_in(text, value_set=pyarrow.array(_MISSING)), None, text)
    if compute.all(compute.match_substring_regex(text, _ONE_NUMBER)).as_py():
        row = _first_text(text, decimal)
        what = "--decimal says what stands before fractions; write no marks between thousands, and [] around lists"
        raise RowError(row, f"{text[row].as_py()!r:.80} may be a list or one number: {what}; or --types COLUMN=string")
    parts = compute.split_pattern_regex(compute.utf8_trim(_with_points(text, decimal), "[]() "), _LIST_MARKS)
    try:
        parts.slice(0, 1).flatten().cast(pyarrow.float64())  # pyarrow words an error for every row
        values = parts.flatten().cast(pyarrow.float64())
    except pyarrow.ArrowInvalid:
        return text
    lengths = compute.fill_null(compute.list_value_length(parts), 0).to_numpy(zero_copy_only=False)
    width = known.list_size if type_kind(known) == "list" else int(lengths[0])
    return pyarrow.FixedSizeListArray.from_arrays(values, check_lengths(lengths, width))


def _with_points(text: Any, decimal: str) -> Any:
    """Return text with decimal points, where decimals have commas and points stand between thousands."""
    if decimal == ".":
        return text
    return arrow().compute.replace_substring(arrow().compute.replace_substring(text, ".", "!"), ",", ".")


def _first_text(text: Any, decimal: str) -> int:
    """Return the first row of text without blanks around it that is no number, and there; 0 if there is none."""
    is_number = arrow().compute.match_substring_regex(_with_points(text, decimal), _NUMBER).fill_null(True)
    return max(0, int(arrow().compute.index(is_number, False).as_py()))


def _parsed(path: Path, head: Head, ids: Collection[str], decimal: str) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a file as tables, a block at a time, and the first row of each; ids are text."""
    row = head.first_row
    options = arrow().csv.ConvertOptions(
        column_types=dict.fromkeys(ids, arrow().large_string()),
        null_values=[blank + word for word in _MISSING for blank in ("", " ")],
        true_values=["true", "True", "TRUE"],
        false_values=["false", "False", "FALSE"],
        decimal_point=decimal,
    )
    for block in _blocks(path, head):
        with reading(path):
            table = _table_of(block, head, options, row)
        yield row, table
        row += table.num_rows


def _table_of(block: bytes, head: Head, options: Any, first_row: int) -> Any:
    csv = arrow().csv
    read = csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=head.names)
    parse = csv.ParseOptions(delimiter=head.delimiter, newlines_in_values=True)
    try:
        return csv.read_csv(arrow().BufferReader(block), read, parse, options)
    except arrow().ArrowInvalid as error:
        text = _ROW_OF_FILE.sub(lambda match: f"row {first_row - 1 + int(match[1])}", str(error))
        raise ValueError(text) from error


def _blocks(path: Path, head: Head) -> Iterator[bytes]:
    """Yield the rows of a file, as many whole ones as fit in a block."""
    rest = b""
    with opened(path) as file, reading(path):
        file.seek(head.begin)
        while data := file.read(_BLOCK_BYTES):
            rest += data
            quotes = _quotes_in(rest, head.delimiter)
            end, count = len(rest), 1
            while count % 2:  # a line that ends between quotes ends no row
                end = rest.rfind(b"\n", 0, end) + 1
                count = int(np.searchsorted(quotes, end))
                end = int(quotes[count - 1]) if count % 2 else end
            if not end and len(rest) > _LONGEST_LINE:
                raise ValueError(f"a row is longer than {_LONGEST_LINE} bytes: perhaps {_UNENDED}")
            if rest[:end].strip():
                yield rest[:end]
            rest = rest[end:]
        if len(_quotes_in(rest, head.delimiter)) % 2:
            raise ValueError(_UNENDED)
        if rest.strip():
            yield rest


def _quotes_in(data: bytes, delimiter: str) -> I64:
    """Return the places of quotes: each second one ends a field, or is one of two in it."""
    values = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(values == ord('"'))
    before = values[np.maximum(quotes[::2] - 1, 0)]
    if np.isin(before, np.frombuffer(f'{delimiter}"\r\n'.encode(), np.uint8)).all():
        return quotes
    fields = re.finditer(rf'(?<![^{re.escape(delimiter)}\r\n])"[^"]*(?:""[^"]*)*("?)'.encode(), data)  # as in 5" pipe
    return np.array([place for it in fields for place in (it.start(), it.end() - 1)[: 1 + len(it[1])]], np.int64)
