"""Read edge lists and other columns from csv and parquet files (``arrow_files.py``).

An edge list has the columns ``src`` and ``dst``; text of numbers alone needs no names, its first two columns are the
ends. Every other column of numbers becomes an edge feature, in parquet also lists of one length. Several files are one
edge list, in the natural order of their names: ``part-2`` before ``part-10``.

**Ids** that are 0, 1, ..., n - 1 are taken as they are, and so is every id if the number of nodes is given. Others
(strings, negative numbers, numbers with gaps) are numbered in their order (``id_maps.py``); the node feature "id" then
has the original ones: int64[n], or uint8[n, width] for strings, which are their UTF-8 filled up with zeros.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError
from mpigraph.log import get_logger
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Schema, relation_key
from mpigraph.partition.arrow_files import Tables, distinct_in, is_table, open_tables, to_numpy
from mpigraph.partition.chunks import GrowingFile, NamedRows, concatenated
from mpigraph.partition.id_maps import Distinct, distinct_numbers, kept_keys, numbers_of
from mpigraph.partition.natural_order import in_natural_order
from mpigraph.partition.row_arrays import RowArray
from mpigraph.partition.source import Feature, GraphSource

__all__ = ["read_columns", "read_edge_list", "table_files"]

_ENDS = ("src", "dst")
_NO_NUMBERS = ("string", "other")


def table_files(path: Path) -> list[Path]:
    """Return the csv or parquet files of an input: the file itself, or those in a directory; none if it is no such."""
    files = [path] if path.is_file() else in_natural_order(path.iterdir())
    return [file for file in files if is_table(file) and not file.name.startswith((".", "_"))]


def read_edge_list(paths: Sequence[Path], num_nodes: int | None = None, scratch: Path | None = None) -> GraphSource:
    """Read a homogeneous graph from its edges.

    Args:
        paths: csv files or parquet files.
        num_nodes: number of nodes, if ids are to be taken as they are.
        scratch: folder of temporary files; None for the system's.

    Raises:
        GraphDataError: an id is missing or no id, or files do not fit together; names file and row.
        StorageError: a temporary file cannot be written.
    """
    tables = open_tables(paths)
    kinds = tables.kinds
    for end in _ENDS:
        if kinds.get(end) not in ("integer", "string") or kinds[end] != kinds["src"]:
            found = ", ".join(f"{name}: {kind}" for name, kind in kinds.items())
            raise GraphDataError(
                f"{paths[0]}: needs columns src and dst, both of integers or both of strings (got {found})"
            )
    feats = [name for name in kinds if name not in _ENDS]
    other = [name for name in feats if kinds[name] in _NO_NUMBERS]
    if other:
        get_logger().warning("%s: columns %s are no numbers and are left out", paths[0], other)
    feats = [name for name in feats if name not in other]
    keys: Array | None = None
    if kinds["src"] == "string":
        if num_nodes is not None:
            raise GraphDataError(f"{paths[0]}: ids are strings, which are numbered: leave the number of nodes out")
        keys = kept_keys(_distinct_strings(tables), scratch)
        num_nodes = len(keys)
        columns = _columns(tables, feats, scratch, keys=keys)
    else:
        columns = _columns(tables, [*_ENDS, *feats], scratch)
        if num_nodes is None:
            num_nodes, found_keys = distinct_numbers([columns[end] for end in _ENDS])
            if found_keys is not None:
                keys = kept_keys(found_keys, scratch)
                columns |= {end: numbers_of(columns[end], keys) for end in _ENDS}
    node_feats = {}
    if keys is not None:
        get_logger().warning('%s: nodes are numbered in the order of their ids, which are node feature "id"', paths[0])
        is_text = keys.dtype.kind == "S"
        node_feats["id"] = Feature.of(keys.view(np.uint8).reshape(len(keys), -1) if is_text else keys)
    edge_feats = {name: Feature.of(columns[name]) for name in feats}
    return GraphSource(
        Schema.homogeneous(),
        (num_nodes,),
        ((columns["src"], columns["dst"]),),
        {DEFAULT_NTYPE: node_feats},
        {relation_key(DEFAULT_ETYPE): edge_feats},
    )


def read_columns(
    paths: Sequence[Path], kind: str, delimiter: str = " ", scratch: Path | None = None
) -> tuple[list[RowArray], list[int]]:
    """Return the columns of files, one after another, and the number of rows of each file.

    Args:
        paths: the files.
        kind: "csv" (without names of columns) or "parquet".
        delimiter: between the fields of a line of csv.
        scratch: folder of temporary files; None for the system's.

    Raises:
        GraphDataError: a column is no numbers, or files do not fit together; names file and row.
        StorageError: a temporary file cannot be written.
    """
    tables = open_tables(paths, kind, delimiter)
    for name, found in tables.kinds.items():
        if found in _NO_NUMBERS:
            raise GraphDataError(f"{paths[0]}: column {name} is no numbers")
    columns = _columns(tables, list(tables.kinds), scratch)
    return list(columns.values()), tables.lengths


def _columns(
    tables: Tables, names: Sequence[str], scratch: Path | None, keys: Array | None = None
) -> dict[str, RowArray]:
    """Return columns of numbers; if ``keys`` are given, also the ends, the numbers of the strings among these."""
    to_store = [] if keys is None else list(_ENDS)
    if tables.lazily:
        columns = {name: tables.rows(name) for name in names}
    else:
        columns = {}
        to_store += names
    if to_store:
        columns |= _stored(tables, to_store, scratch, keys)
    return columns


def _stored(tables: Tables, names: Sequence[str], scratch: Path | None, keys: Array | None) -> dict[str, RowArray]:
    """Read columns once, into temporary files."""
    growing: dict[str, GrowingFile] = {}
    lengths = []
    with ExitStack() as stack:
        for file in range(len(tables.paths)):
            done = 0
            for batch in tables.batches(file, names):
                place = _Place(tables, file, done)
                for name in names:
                    column = batch.column(name)
                    if keys is not None and name in _ENDS:
                        values, positions = distinct_in(column, place)
                        rows: Array = np.searchsorted(keys, values)[positions]
                    else:
                        rows = to_numpy(column, place)
                    if name not in growing:
                        growing[name] = stack.enter_context(GrowingFile(rows.dtype, rows.shape[1:], scratch))
                    growing[name].append(rows)
                done += batch.num_rows
            lengths.append(done)
        tables.lengths = lengths
        found = {name: file.finish() for name, file in growing.items()}
    return {name: _named(tables, found[name]) if name in found else np.zeros(0, np.int64) for name in names}


def _named(tables: Tables, rows: Array) -> RowArray:
    """Return rows that know the file that they were read from."""
    found: list[RowArray] = []
    begin = 0
    for file, (path, length) in enumerate(zip(tables.paths, tables.lengths, strict=True)):
        if length:
            found.append(NamedRows(rows[begin : begin + length], str(path), tables.first_row(file)))
        begin += length
    return concatenated(found) if found else rows


@dataclass
class _Place:
    """Names a row of a batch."""

    tables: Tables
    file: int
    done: int

    def __call__(self, row: int) -> str:
        first = self.tables.first_row(self.file) + self.done
        return f"{self.tables.paths[self.file]}, row {first + row}"


def _distinct_strings(tables: Tables) -> Array:
    """Return all ids, ascending, of dtype S."""
    found = Distinct()
    for file in range(len(tables.paths)):
        done = 0
        for batch in tables.batches(file, _ENDS):
            for end in _ENDS:
                found.add(distinct_in(batch.column(end), _Place(tables, file, done))[0])
            done += batch.num_rows
    return found.sorted()
