"""Read a network of KONECT: its file ``out.<name>``, or the directory that its archive unpacks to.

The first line is ``% <form> <weights>``, perhaps followed by ``% <edges> <sources> <destinations>`` and further
comments. Each other line is an edge: source and destination, counted from 1, perhaps a weight, perhaps a time. These
become the edge features "weight" and "time": int64 if all of them are integers, else float64. An edge that stands for
several has their number as its weight.

========  =================================================================================================
form      graph
========  =================================================================================================
``asym``  one node type, edges as they are
``sym``   one node type, edges in both directions, loops once
``bip``   node types "left" and "right", counted from 1 each, and the relation ``("left", "to", "right")``
========  =================================================================================================
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from mpigraph.errors import GraphDataError
from mpigraph.formats.collected_edges import CollectedEdges
from mpigraph.formats.input_files import FolderFiles, in_natural_order
from mpigraph.formats.layout import Layout, ReadOptions
from mpigraph.formats.text_lines import NumberBlock, comments_of, first_bytes, number_blocks
from mpigraph.metadata.schema import DEFAULT_ETYPE, Relation, Schema, relation_key
from mpigraph.partition.row_arrays import CastRows
from mpigraph.partition.source import Feature, GraphSource

__all__ = ["KONECT"]

_ENDS = ("source", "destination")
_VALUES = ("weight", "time")
_RELATION: Relation = ("left", "to", "right")
_LARGEST = np.iinfo(np.int64).max
_EXACT = 2.0**53  # from here on float64 does not have every integer


def _files(path: Path) -> list[Path]:
    """Return the networks at a path: the file itself, or the files of a directory that are named ``out.*``."""
    files = [path] if path.is_file() else in_natural_order(path.glob("out.*"))
    return [file for file in files if file.is_file() and _form(first_bytes(file, 80)) in ("asym", "bip", "sym")]


def _form(line: bytes) -> str:
    words = line.split(b"\n")[0].decode("latin-1").split()
    return words[1] if len(words) > 1 and words[0] == "%" else ""


def _is_at(path: Path) -> bool:
    return bool(_files(path))


def _read(path: Path, options: ReadOptions) -> GraphSource:
    files = _files(path)
    if len(files) > 1:
        raise GraphDataError(f"{path} has several networks, {', '.join(file.name for file in files)}: give one of them")
    folder = FolderFiles(path)
    folder.read(files[0])
    return replace(_read_network(files[0], options), left_out=folder.left_out() if path.is_dir() else ())


@dataclass
class _Seen:
    """What the lines so far have: their largest ids, and whether all values are integers."""

    largest: list[int] = field(default_factory=lambda: [0, 0])
    are_whole: list[bool] = field(default_factory=lambda: [True, True])
    weights: float = 0.0  # their sum


def _read_network(path: Path, options: ReadOptions) -> GraphSource:
    comments, fields = comments_of(path, b"%")
    form = comments[0].split()[0]
    sizes = _sizes(comments)
    values = _VALUES[: max(len(fields) - 2, 0)]
    columns = [*((end, "i8") for end in _ENDS), *((name, "f8") for name in values)]
    seen = _Seen()
    with CollectedEdges(columns, options.scratch) as edges:
        for block in number_blocks(path, columns, b"%"):
            _check(block, sizes, values, seen)
            edges.add(block.rows)
            if form == "sym":
                edges.add_reverses(block.rows[block.rows["source"] != block.rows["destination"]])
        if sizes and len(edges) != sizes[0] and seen.weights != sizes[0]:
            raise GraphDataError(f"{path} has {len(edges)} edges, but its second line says {sizes[0]}")
        src, dst, *found = edges.finish()
    counts = sizes[1:] or seen.largest
    is_bipartite = form == "bip"
    feats = {
        name: Feature.of(CastRows(rows, np.int64) if is_whole else rows)
        for name, rows, is_whole in zip(values, found, seen.are_whole, strict=False)
    }
    return GraphSource(
        Schema(("left", "right"), (_RELATION,)) if is_bipartite else Schema.homogeneous(),
        tuple(counts) if is_bipartite else (max(counts),),
        ((src, dst),),
        edge_feats={relation_key(_RELATION if is_bipartite else DEFAULT_ETYPE): feats},
        has_reverse=form == "sym",
    )


def _sizes(comments: Sequence[str]) -> list[int]:
    """Return the numbers of edges, sources and destinations that the second line says; none if it does not."""
    words = comments[1].split() if len(comments) > 1 else []
    is_sizes = len(words) == 3 and all(word.isascii() and word.isdecimal() and len(word) < 19 for word in words)
    return list(map(int, words)) if is_sizes else []


def _check(block: NumberBlock, sizes: Sequence[int], values: Sequence[str], seen: _Seen) -> None:
    """Check the lines of a block, and count their ids from 0."""
    rows = block.rows
    for side, end in enumerate(_ENDS):
        limit = sizes[1 + side] if sizes else _LARGEST
        block.check((rows[end] >= 1) & (rows[end] <= limit), f"{end} must be one of 1 to {limit}")
        seen.largest[side] = max(seen.largest[side], int(rows[end].max()))
        rows[end] -= 1
    for number, name in enumerate(values):
        block.check(np.isfinite(rows[name]), f"{name} must be a number")
        whole = (rows[name] == np.rint(rows[name])) & (np.abs(rows[name]) < _EXACT)
        seen.are_whole[number] &= bool(whole.all())
    if values:
        seen.weights += float(rows["weight"].sum())


KONECT = Layout("KONECT", "out.<name>", _is_at, _read)
