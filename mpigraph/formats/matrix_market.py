"""Read a graph in the Matrix Market's exchange format, ``.mtx``, as the SuiteSparse collection and scipy write it.

The first line is ``%%MatrixMarket matrix coordinate <field> <symmetry>``; then come comments (``%``), a line of the
numbers of rows, columns and entries, and a line for each entry: row and column, counted from 1, and its value. An entry
is an edge from the node of its row to the node of its column, the value (``integer``: int64, ``real``: float64) its
feature "weight"; of a ``pattern`` there are no values.

**Square matrices** are graphs of one node type. ``symmetric`` and ``skew-symmetric`` ones store one triangle, and get
the reverse of each edge (skew-symmetric: of the opposite weight), except loops. **Other matrices** have two node types,
"row" and "column", and the relation ``("row", "to", "column")``. Dense matrices (``array``) and complex numbers are
refused.
"""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpigraph.errors import GraphDataError
from mpigraph.formats.collected_edges import CollectedEdges
from mpigraph.formats.layout import Layout, ReadOptions
from mpigraph.formats.text_lines import comments_of, first_bytes, number_blocks
from mpigraph.metadata.schema import DEFAULT_ETYPE, Schema, relation_key
from mpigraph.partition.source import Feature, GraphSource

__all__ = ["MATRIX_MARKET"]

_MARK = b"%%MatrixMarket"
_FIELDS = {"pattern": None, "integer": "i8", "real": "f8", "double": "f8"}
_SYMMETRIES = ("general", "symmetric", "skew-symmetric")
_RELATION = ("row", "to", "column")


class _Head(NamedTuple):
    """The first line and the line of sizes."""

    value: str | None  # dtype of values
    symmetry: str
    rows: int
    columns: int
    entries: int


def _is_at(path: Path) -> bool:
    is_named = re.search(r"\.mtx(\.(gz|bz2))?$", path.name, re.IGNORECASE) is not None
    return path.is_file() and (is_named or first_bytes(path, len(_MARK)).lower() == _MARK.lower())


def _read(path: Path, options: ReadOptions) -> GraphSource:
    head = _head(path)
    columns = [("row", "i8"), ("column", "i8")]
    if head.value is not None:
        columns.append(("weight", head.value))
    with CollectedEdges(columns, options.scratch) as edges:
        triangle = 0
        for block in number_blocks(path, columns, b"%", skipped=1):
            rows = block.rows
            for end, size in (("row", head.rows), ("column", head.columns)):
                block.check((rows[end] >= 1) & (rows[end] <= size), f"{end} must be one of 1 to {size}")
            if head.symmetry != "general":
                side = np.sign(rows["row"] - rows["column"])
                triangle = triangle or int(side[np.argmax(side != 0)])
                block.check((side == 0) | (side == triangle), f"entries of a {head.symmetry} matrix in both triangles")
            rows["row"] -= 1
            rows["column"] -= 1
            edges.add(rows)
            if triangle:
                mirrored = rows[side != 0]
                if head.symmetry == "skew-symmetric" and head.value is not None:
                    mirrored["weight"] *= -1
                edges.add_reverses(mirrored)
        if len(edges) != head.entries:
            raise GraphDataError(f"{path} has {len(edges)} entries, but its line of sizes says {head.entries}")
        src, dst, *weight = edges.finish()
    is_square = head.rows == head.columns
    feats = {"weight": Feature.of(weight[0])} if weight else {}
    return GraphSource(
        Schema.homogeneous() if is_square else Schema(("column", "row"), (_RELATION,)),
        (head.rows,) if is_square else (head.columns, head.rows),
        ((src, dst),),
        edge_feats={relation_key(DEFAULT_ETYPE if is_square else _RELATION): feats},
        has_reverse=head.symmetry != "general",
    )


def _head(path: Path) -> _Head:
    comments, sizes = comments_of(path, b"%")
    first = comments[0] if comments else ""
    words = first.lower().split()
    if (
        first_bytes(path, len(_MARK)).lower() != _MARK.lower()
        or len(words) != 5
        or words[1] != "matrix"
        or words[2] not in ("coordinate", "array")
    ):
        raise GraphDataError(
            f"{path}, line 1: must be %%MatrixMarket matrix coordinate, field, symmetry (got {first!r:.80})"
        )
    if words[2] == "array":
        raise GraphDataError(f"{path} is a dense matrix (array), which is no graph: write it as coordinate")
    if words[3] not in _FIELDS or words[4] not in _SYMMETRIES:
        raise GraphDataError(
            f"{path}: a matrix must be one of {list(_FIELDS)}, and one of {list(_SYMMETRIES)} "
            f"(got {words[3]!r} and {words[4]!r})"
        )
    if len(sizes) != 3 or not all(size.isascii() and size.isdecimal() and len(size) < 19 for size in sizes):
        raise GraphDataError(f"{path}: after the comments must come numbers of rows, columns and entries (got {sizes})")
    head = _Head(_FIELDS[words[3]], words[4], *map(int, sizes))
    if head.symmetry != "general" and head.rows != head.columns:
        raise GraphDataError(f"{path}: a {head.symmetry} matrix must be square (got {head.rows} x {head.columns})")
    return head


MATRIX_MARKET = Layout("Matrix Market", "", _is_at, _read)
