"""Random tables of text and of parquet: each value that comes out was written there, or the table is refused."""

import csv
import gzip
import io
import math
import random
from contextlib import suppress
from datetime import UTC, datetime

import numpy as np
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
        int,
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


def write(path, draw, table, decimal):
    stream = io.StringIO(newline="")
    end, quoting = draw.choice(["\n", "\n", "\r\n", "\r"]), draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    delimiter = draw.choice(";\t" if decimal == "," else ",;\t")
    writer = csv.writer(stream, delimiter=delimiter, lineterminator=end, quoting=quoting)
    writer.writerows([list(table), *zip(*table.values(), strict=True)])
    content = draw.choice([b"", b"", b"\xef\xbb\xbf"]) + (stream.getvalue() + draw.choice(["", "", end])).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_what_was_written_comes_out_or_is_refused(tmp_path, monkeypatch, kind):
    read = 0
    for seed in range(40):
        draw = random.Random(f"{seed} {kind}")
        count, decimal = draw.choice([1, 5, 60]), "." if kind == "parquet" else draw.choice("...,")
        ends = {name: draw.choices(draw.choice(IDS).split(), k=count) for name in ("src", "dst")}
        texts = {f"c{name}": column(draw, count, decimal) for name in "abc"}
        numbers = {name: [number(text, decimal) for text in its] for name, its in texts.items()}
        path = tmp_path / f"g.{kind}"
        if kind == "parquet":
            kinds = {name: float if float in map(type, its) else int for name, its in numbers.items()}
            small = {name: its for name, its in numbers.items() if not any(abs(v or 0) >= 2**63 for v in its)}
            values = {n: pa.array([v if v is None else kinds[n](v) for v in its]) for n, its in small.items()}
            numbers = {name: [None if v != v else v for v in its.to_pylist()] for name, its in values.items()}
            parquet.write_table(pa.table(ends | values), path, row_group_size=7, write_statistics=seed % 2 == 0)
        else:
            write(path, draw, ends | texts, decimal)
        monkeypatch.setattr(text_files, "_BLOCK_BYTES", draw.choice([1000, 8 << 20]))
        fill = {name: draw.choice([None, None, 7]) for name in numbers}
        asked = TableOptions(decimal=decimal, fill={name: str(its) for name, its in fill.items() if its is not None})
        try:
            source = read_source(path, tables=asked)
            found = {name: (rows(its.values), its.dtype) for name, its in source.edge_feats["_N:_E:_N"].items()}
        except GraphDataError:
            continue
        read += 1
        original = source.node_feats["_N"].get("id")
        nodes = range(source.num_nodes[0]) if original is None else rows(original.values)
        names = [bytes(node).rstrip(b"\0").decode() if np.ndim(node) else str(node) for node in nodes]
        assert [[names[node] for node in rows(end)] for end in source.edges[0]] == [*ends.values()], seed
        for name, wanted in numbers.items():
            assert name in found or f"column {name} is" in " ".join(source.left_out), (seed, name)
            values, dtype = found.get(name, ((), "float32"))
            pairs = zip(values, wanted, strict=name in found)
            assert all(is_same(*pair, np.dtype(dtype), fill[name]) for pair in pairs), (seed, name, values, wanted)
    assert read > 8
