"""Random tables of text and of parquet: each value that comes out was written there, or the table is refused.

Damaged text is read as pandas reads it, or refused.
"""

import csv
import gzip
import io
import math
import random
from contextlib import suppress
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from input_checks import rows
from pyarrow import parquet

from mpigraph.errors import GraphDataError
from mpigraph.formats import text_files
from mpigraph.formats.layout import TableOptions
from mpigraph.formats.readers import read_source

MISSING = ("", "NA", "nan", "NULL", "None", "n/a", " ")
KINDS = (
    lambda draw: str(draw.randint(-9, 99)),
    lambda draw: str(draw.choice([2**31, 2**53 - 1, 2**53 + 1, 2**63 - 1, -(2**63), 16777217])),
    lambda draw: str(draw.choice([2**63, 2**64, -(2**63) - 1, 3])),
    lambda draw: draw.choice([repr(draw.random()), "5.", ".25", "1.5e-3", "1E5", "-0.0", "+1.5", "1e-320"]),
    lambda draw: draw.choice(["inf", "1e400", "3.5e38", "16777217.0", "1_000", "0x1F", "1,234", "5%", "\uff11", "1e"]),
    lambda draw: draw.choice(["True", "false", "TRUE"]),
    lambda draw: draw.choice(["0", "1", "T", "yes", "false"]),
    lambda draw: draw.choice(["007", "-01", "+7", "-0"]),
    lambda draw: draw.choice(["a", "b c", 'say "hi"', "x,y", "p;q", "tab\tin", "line\nend", "né", "z" * 300]),
    lambda draw: draw.choice(["2024-01-02", "1969-12-31 03:04:05", "2024-01-02T03:04:05", "2024-01-02 03:04:05.25"]),
)
TABLES = 40
IDS = ("0 1 2 3 4", "5 -3 9223372036854775807", "007 7 07 +7", "né b,c p;q NA null -", "1 a 9223372036854775808")


def column(draw, count, decimal):
    """Text of one kind or of two, some of it missing."""
    kinds, common, gaps = draw.choices(KINDS, k=2), draw.choice([1, 1, 0.9]), draw.choice([0, 0, 0.1, 1])
    values = [kinds[draw.random() >= common](draw) for _ in range(count)]
    if decimal == ",":
        values = [value.replace(".", ",") if set(value) <= {*"+-.0123456789eE"} else value for value in values]
    return [draw.choice(MISSING) if draw.random() < gaps else value for value in values]


def number(text, decimal):
    """What a value of text is: None if it is missing, NaN, which equals nothing, if it is no number."""
    text = text.strip()
    if text in MISSING:
        return None
    if not text.isascii() or "_" in text:
        return math.nan
    words = {"true": 1, "false": 0}
    ways = (
        lambda text: int(text, 16 if text[:2].lower() == "0x" else 10),
        lambda text: float(text.replace(decimal, ".")),
        lambda text: words[text.lower()],
        lambda text: datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp(),
    )
    for way in ways:
        with suppress(ValueError, KeyError):
            return way(text)
    return math.nan


def is_same(value, wanted, dtype, fill):
    """Whether a value of a feature is the number that was written, exactly or as the nearest float."""
    if wanted is None:
        return np.isnan(value) if fill is None else value == fill
    if isinstance(wanted, float) and dtype.kind == "f":
        return value == dtype.type(wanted) and (np.isfinite(value) or math.isinf(wanted))
    return int(value) == wanted if dtype.kind in "iu" else value == wanted


def written(draw, table, decimal):
    """Text of a table, and the delimiter."""
    stream = io.StringIO(newline="")
    end, quoting = draw.choice(["\n", "\r\n"]), draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    delimiter = draw.choice(";\t" if decimal == "," else ",;\t")
    writer = csv.writer(stream, delimiter=delimiter, lineterminator=end, quoting=quoting)
    writer.writerows([list(table), *zip(*table.values(), strict=True)])
    content = draw.choice([b"", b"", b"\xef\xbb\xbf"]) + (stream.getvalue() + draw.choice(["", "", end])).encode()
    return content, delimiter


def random_columns(draw, count, decimal):
    ends = {name: draw.choices(draw.choice(IDS).split(), k=count) for name in ("src", "dst")}
    return ends, {f"c{name}": column(draw, count, decimal) for name in "abc"}


def check(path, ends, numbers, seed, **options):
    """Whether a file is read: then it has these ids, as text, and these numbers."""
    fill = options.get("fill", {})
    try:
        source = read_source(path, tables=TableOptions(**options))
        found = {name: (rows(its.values), its.dtype) for name, its in source.edge_feats["_N:_E:_N"].items()}
    except GraphDataError:
        return False
    original = source.node_feats["_N"].get("id")
    nodes = range(source.num_nodes[0]) if original is None else rows(original.values)
    names = [bytes(node).rstrip(b"\0").decode() if np.ndim(node) else str(node) for node in nodes]
    assert [[names[node] for node in rows(end)] for end in source.edges[0]] == ends, seed
    for name, wanted in numbers.items():
        assert name in found or f"column {name} is" in " ".join(source.left_out), (seed, name)
        values, dtype = found.get(name, ((), "float32"))
        pairs = zip(values, wanted, strict=name in found)
        filled = float(fill[name]) if name in fill else None
        assert all(is_same(*pair, np.dtype(dtype), filled) for pair in pairs), (seed, name, values, wanted)
    return True


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_what_was_written_comes_out_or_is_refused(tmp_path, monkeypatch, kind):
    read = 0
    for seed in range(TABLES):
        draw = random.Random(f"{seed} {kind}")
        count, decimal = draw.choice([1, 5, 60]), "." if kind == "parquet" else draw.choice("...,")
        ends, texts = random_columns(draw, count, decimal)
        numbers = {name: [number(text, decimal) for text in its] for name, its in texts.items()}
        path = tmp_path / f"g.{kind}"
        if kind == "parquet":
            kinds = {name: float if float in map(type, its) else int for name, its in numbers.items()}
            small = {name: its for name, its in numbers.items() if not any(abs(v or 0) >= 2**63 for v in its)}
            values = {n: pa.array([v if v is None else kinds[n](v) for v in its]) for n, its in small.items()}
            numbers = {name: [None if v != v else v for v in its.to_pylist()] for name, its in values.items()}
            parquet.write_table(pa.table(ends | values), path, row_group_size=7, write_statistics=seed % 2 == 0)
        else:
            content, _ = written(draw, ends | texts, decimal)
            path.write_bytes(gzip.compress(content) if kind == "csv.gz" else content)
        monkeypatch.setattr(text_files, "_BLOCK_BYTES", draw.choice([1000, 8 << 20]))
        fill = {name: "7" for name in numbers if draw.random() < 0.3}
        read += check(path, [*ends.values()], numbers, seed, decimal=decimal, fill=fill)
    assert read > (TABLES - 20) // 4


DAMAGES = (
    lambda draw, at, text: text[:at] + b'"' + text[at:],
    lambda draw, at, text: text[:at] + draw.choice([b",", b";", b"\t", b" ", b"\0"]) + text[at:],
    lambda draw, at, text: text[:at] + draw.choice([b"\n", b"\r", b"\r\n", b"\n\n\n", b"#"]) + text[at:],
    lambda draw, at, text: text[:at] + bytes([draw.randrange(256)]) + text[at + 1 :],
    lambda draw, at, text: text[:at] + text[at + draw.randint(1, 9) :],
    lambda draw, at, text: text[:at],
    lambda draw, at, text: text[:at] + b"x" * draw.choice([999, 9999, 99999]) + text[at:],
    lambda draw, at, text: text.decode("utf-8-sig", "replace").encode(
        draw.choice(["latin-1", "utf-16", "cp1252"]), "replace"
    ),
)


def test_damaged_text_is_read_as_pandas_reads_it_or_refused(tmp_path, monkeypatch):
    read = 0
    for seed in range(3 * TABLES):
        draw = random.Random(seed)
        ends, texts = random_columns(draw, draw.choice([1, 5, 60]), ".")
        text, delimiter = written(draw, ends | texts, ".")
        for _ in range(draw.choice([0, 1, 1, 2])):
            text = draw.choice(DAMAGES)(draw, draw.randrange(len(text) or 1), text)
        path = tmp_path / "g.csv"
        path.write_bytes(text)
        try:
            table = pd.read_csv(path, sep=delimiter, dtype=str, keep_default_na=False, encoding="utf-8-sig")
            table.columns = table.columns.str.strip()
        except ValueError:
            table = None
        monkeypatch.setattr(text_files, "_BLOCK_BYTES", draw.choice([2000, 8 << 20]))
        try:
            source = read_source(path)
        except GraphDataError:
            continue
        assert table is not None, (seed, text)
        ends = [table[name].str.strip().tolist() for name in ("src", "dst")]
        numbers = {name: [number(value, ".") for value in table[name]] for name in source.edge_feats["_N:_E:_N"]}
        read += check(path, ends, numbers, seed)
    assert read > (TABLES - 20) // 4
