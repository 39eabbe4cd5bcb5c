"""Edges in text: blocks of lines of numbers, parsed by pyarrow; Matrix Market, KONECT, and the comments of SNAP.

**Matrix Market** (``.mtx``, as the SuiteSparse collection and scipy write it). The first line is ``%%MatrixMarket
matrix coordinate <field> <symmetry>``; then come comments (``%``), a line of the numbers of rows, columns and entries,
and a line for each entry: row and column, counted from 1, and its value. An entry is an edge from the node of its row
to the node of its column, the value (``integer``: int64, ``real``: float64) its feature "weight"; a ``pattern`` has no
values. Square matrices are graphs of one node type. ``symmetric`` and ``skew-symmetric`` ones store one triangle, and
get the reverse of each edge (skew-symmetric: of the opposite weight), except loops. Other matrices have two node types,
"row" and "column", and the relation ``("row", "to", "column")``. Dense matrices (``array``) and complex numbers are
refused.

**KONECT** (``out.<name>``, or the directory that its archive unpacks to). The first line is ``% <form> <weights>``,
perhaps followed by ``% <edges> <sources> <destinations>`` and further comments. Each other line is an edge: source and
destination, counted from 1, perhaps a weight, perhaps a time. These become the edge features "weight" and "time": int64
if all of them are integers, else float64. An edge that stands for several has their number as its weight. Of the form
``asym`` edges stay as they are, of ``sym`` they go in both directions, loops once; ``bip`` has node types "left" and
"right", counted from 1 each, and the relation ``("left", "to", "right")``.

**SNAP** (``.txt``) is read as any table (``typed_tables.py``) and then compared with its comments, which say ``# Nodes:
<nodes> Edges: <edges>``. A file with other edges, or with more nodes, is damaged. Nodes without edges are counted there
and have no ids, so they are not in the graph. Whether a file of an undirected graph lists each edge once or in both
directions differs by dataset, and by the files alone it shows only in the edges.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError
from mpigraph.formats.arrow_values import arrow
from mpigraph.formats.input_files import FolderFiles, first_bytes, graph_of, in_natural_order, opened, reading
from mpigraph.formats.layout import Layout, ReadOptions
from mpigraph.formats.mapped_files import GrowingFile
from mpigraph.log import get_logger
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Relation
from mpigraph.partition.row_arrays import CastRows, RowArray, concatenated
from mpigraph.partition.source import Feature, GraphSource, edge_chunks

_BLOCK_BYTES = 16 << 20
_PLUS = re.compile(rb"(?<![^\s,])\+(?=[0-9.])")
_ROW = re.compile(r"\bRow #(\d+)")


def blocks_of_lines(path: Path, longest: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield some lines of a file, and the number of the first of them, from 1. All of them end in a newline alone.

    A line may have ``longest`` bytes, 0 for those of a block. Raises GraphDataError if one is longer, or the file
    cannot be read.
    """
    number = 1
    rest = b""
    with reading(path), opened(path) as file:
        while data := file.read(_BLOCK_BYTES):
            while data.endswith(b"\r") and (more := file.read(1)):
                data += more
            text = rest + (data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data)
            end = text.rfind(b"\n") + 1
            if not end and len(text) > (longest or _BLOCK_BYTES):
                raise GraphDataError(f"{path}, line {number}: longer than {longest or _BLOCK_BYTES} bytes")
            rest = text[end:]
            yield number, text[:end]
            number += text.count(b"\n", 0, end)
        yield number, rest


def _comments_of(path: Path, mark: bytes) -> tuple[list[str], list[str]]:
    """Return the comments that a file begins with, without their mark, and the fields of the first line after them."""
    comments = []
    for _, text in blocks_of_lines(path):
        for line in map(bytes.strip, text.splitlines()):
            if line.startswith(mark):
                comments.append(line.lstrip(mark).strip().decode("utf-8", "replace"))
            elif line:
                return comments, line.decode("utf-8", "replace").split()
    return comments, []


@dataclass(frozen=True)
class NumberBlock:
    """Numbers of consecutive lines."""

    columns: dict[str, Array]  # by name, [lines]
    path: Path  # the file
    line_of: Callable[[int], tuple[int, bytes]]  # returns the number and the text of the line of a row

    def check(self, good: Array, what: str) -> None:
        """Raise a GraphDataError, which names file and line and says ``what`` is wrong, about the first row of
        bool[rows] that is not good.
        """
        if not good.all():
            number, line = self.line_of(int(np.flatnonzero(~good)[0]))
            raise GraphDataError(f"{self.path}, line {number}: {what} (got {line[:80].decode('utf-8', 'replace')!r})")


def number_blocks(
    path: Path, columns: Mapping[str, str], comment: bytes = b"", skipped: int = 0, delimiter: str | None = None
) -> Iterator[NumberBlock]:
    """Yield the numbers of all lines that are neither blank nor comments, except the first ``skipped`` of these.

    ``columns`` has names and dtypes, "int64" or "float64": a line must have all of them and no more, with ``delimiter``
    between them (None: any blanks). Comments begin with ``comment``; b"" without comments. Raises GraphDataError: a
    line does not have these numbers; names it.
    """

    def is_kept(line: bytes) -> bool:
        return bool(line.strip()) and not (comment and line.lstrip().startswith(comment))

    for first, text in blocks_of_lines(path):
        lines = text
        if delimiter is None:
            lines = lines.replace(b"\t", b" ")
            while b"  " in lines:
                lines = lines.replace(b"  ", b" ")
            lines = lines.replace(b"\n ", b"\n").replace(b" \n", b"\n").strip(b" ")
        if b"+" in lines:  # which pyarrow does not read
            lines = _PLUS.sub(b"", lines)
        has_blanks = lines[:1].isspace() or b"\n " in lines or b"\n\t" in lines
        if skipped or has_blanks or (comment and comment in lines):
            kept = list(filter(is_kept, lines.split(b"\n")))
            lines = b"\n".join(kept[skipped:])
        done, skipped = skipped, max(0, skipped - len(kept)) if skipped else 0

        def line_of(row: int, first: int = first, text: bytes = text, done: int = done) -> tuple[int, bytes]:
            numbered = (item for item in enumerate(text.splitlines(), first) if is_kept(item[1]))
            return list(numbered)[done + row]

        if lines.strip():
            numbers = numbers_in(path, lines, columns, delimiter or " ", line_of)
            yield NumberBlock(numbers, path, line_of)


def numbers_in(
    path: Path,
    lines: bytes,
    columns: Mapping[str, str],
    delimiter: str,
    line_of: Callable[[int], tuple[int, bytes]],
    needs: str = "",
) -> dict[str, Array]:
    """Return the numbers in lines, not all of them blank, by column; others are arguments of :func:`number_blocks`.

    For messages, ``line_of`` returns the number and the text of the line of a row, and ``needs`` says what a line must
    have.

    Raises:
        GraphDataError: a line does not have these numbers; names it.
    """
    pyarrow = arrow()
    try:
        table = pyarrow.csv.read_csv(
            pyarrow.BufferReader(lines),
            # one thread, so that errors name the row
            pyarrow.csv.ReadOptions(use_threads=False, block_size=len(lines) + 1, column_names=list(columns)),
            pyarrow.csv.ParseOptions(delimiter=delimiter, quote_char=False),
            pyarrow.csv.ConvertOptions(
                column_types={name: pyarrow.type_for_alias(dtype) for name, dtype in columns.items()},
                null_values=[],
                strings_can_be_null=False,
            ),
        )
    except pyarrow.ArrowInvalid as error:
        match = _ROW.search(str(error))
        number, line = line_of(int(match[1]) - 1 if match else 0)
        needs = needs or ", ".join(f"{name} ({dtype})" for name, dtype in columns.items())
        got = line[:80].decode("utf-8", "replace")
        raise GraphDataError(f"{path}, line {number}: must have {needs} (got {got!r})") from None
    return {name: np.array(table.column(name).to_numpy()) for name in columns}


class CollectedEdges:
    """Edges of one relation with their values, in temporary files; perhaps with reverses. A context manager.

    Args:
        columns: name -> dtype; the first two are source and destination.
        scratch: folder of the files; None for the system's.

    Raises:
        StorageError: a file cannot be written; by any method.
    """

    def __init__(self, columns: Mapping[str, str], scratch: Path | None) -> None:
        self._stack = ExitStack()
        self._edges, self._reverses = (
            [self._stack.enter_context(GrowingFile(dtype, (), scratch)) for dtype in columns.values()] for _ in range(2)
        )

    def __enter__(self) -> "CollectedEdges":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def __len__(self) -> int:
        """Return the number of edges, without reverses."""
        return len(self._edges[0])

    def add(self, columns: Mapping[str, Array]) -> None:
        """Add edges, [k] of each column."""
        for file, column in zip(self._edges, columns.values(), strict=True):
            file.append(column)

    def add_reverses(self, columns: Mapping[str, Array]) -> None:
        """Add edges whose source and destination change places; all of them come after those of :meth:`add`."""
        src, dst, *values = columns.values()
        for file, column in zip(self._reverses, (dst, src, *values), strict=True):
            file.append(column)

    def finish(self) -> list[RowArray]:
        """Return source, destination and values of all edges; they stay when the files are closed."""
        if not len(self._reverses[0]):
            return [file.finish() for file in self._edges]
        both = zip(self._edges, self._reverses, strict=True)
        return [concatenated([edges.finish(), reverses.finish()]) for edges, reverses in both]


_MARK = b"%%MatrixMarket"
_FIELDS = {"pattern": None, "integer": "int64", "real": "float64", "double": "float64"}
_SYMMETRIES = ("general", "symmetric", "skew-symmetric")
_OF_MATRIX: Relation = ("row", "to", "column")


class _Head(NamedTuple):
    value: str | None  # dtype of values
    symmetry: str
    rows: int
    columns: int
    entries: int


def _is_matrix(path: Path) -> bool:
    is_named = re.search(r"\.mtx(\.(gz|bz2))?$", path.name, re.IGNORECASE) is not None
    return path.is_file() and (is_named or first_bytes(path, len(_MARK)).lower() == _MARK.lower())


def _read_matrix(path: Path, options: ReadOptions) -> GraphSource:
    head = _head(path)
    columns = {"row": "int64", "column": "int64"}
    if head.value is not None:
        columns["weight"] = head.value
    with CollectedEdges(columns, options.scratch) as edges:
        triangle = 0
        for block in number_blocks(path, columns, b"%", skipped=1):
            rows = block.columns
            for end, size in (("row", head.rows), ("column", head.columns)):
                block.check((rows[end] >= 1) & (rows[end] <= size), f"{end} must be one of 1 to {size}")
                rows[end] -= 1
            edges.add(rows)
            if head.symmetry != "general":
                side = np.sign(rows["row"] - rows["column"])
                triangle = triangle or int(side[np.argmax(side != 0)])
                block.check((side == 0) | (side == triangle), f"entries of a {head.symmetry} matrix in both triangles")
                mirrored = {name: column[side != 0] for name, column in rows.items()}
                if head.symmetry == "skew-symmetric" and head.value is not None:
                    mirrored["weight"] *= -1
                edges.add_reverses(mirrored)
        if len(edges) != head.entries:
            raise GraphDataError(f"{path} has {len(edges)} entries, but its line of sizes says {head.entries}")
        src, dst, *weight = edges.finish()
    relation = DEFAULT_ETYPE if head.rows == head.columns else _OF_MATRIX
    counts = {relation[0]: head.rows, relation[2]: head.columns}
    feats = {relation: {"weight": Feature.of(weight[0])} if weight else {}}
    return graph_of(counts, {relation: (src, dst)}, edge_feats=feats, has_reverse=head.symmetry != "general")


def _head(path: Path) -> _Head:
    comments, sizes = _comments_of(path, b"%")
    first = comments[0] if comments else ""
    words = first.lower().split()
    is_marked = first_bytes(path, len(_MARK)).lower() == _MARK.lower()
    if not is_marked or len(words) != 5 or words[1] != "matrix" or words[2] not in ("coordinate", "array"):
        raise GraphDataError(
            f"{path}, line 1: must be %%MatrixMarket matrix coordinate, field, symmetry (got {first!r:.80})"
        )
    if words[2] == "array":
        raise GraphDataError(f"{path} is a dense matrix (array), which is no graph: write it as coordinate")
    if words[3] not in _FIELDS or words[4] not in _SYMMETRIES:
        known = f"one of {list(_FIELDS)}, and one of {list(_SYMMETRIES)}"
        raise GraphDataError(f"{path}: a matrix must be {known} (got {words[3]!r} and {words[4]!r})")
    if len(sizes) != 3 or not all(map(_is_count, sizes)):
        raise GraphDataError(f"{path}: after the comments must come numbers of rows, columns and entries (got {sizes})")
    head = _Head(_FIELDS[words[3]], words[4], *map(int, sizes))
    if head.symmetry != "general" and head.rows != head.columns:
        raise GraphDataError(f"{path}: a {head.symmetry} matrix must be square (got {head.rows} x {head.columns})")
    return head


def _is_count(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) < 19


MATRIX_MARKET = Layout("Matrix Market", "", _is_matrix, _read_matrix)

_ENDS = ("source", "destination")
_VALUES = ("weight", "time")
_OF_SIDES: Relation = ("left", "to", "right")
_LARGEST = np.iinfo(np.int64).max
_EXACT = 2.0**53  # from here on float64 does not have every integer


def _networks(path: Path) -> list[Path]:
    """Return the networks at a path: the file itself, or the files of a directory that are named ``out.*``."""
    files = [path] if path.is_file() else in_natural_order(path.glob("out.*"))
    return [file for file in files if file.is_file() and _form(file) in ("asym", "bip", "sym")]


def _form(path: Path) -> str:
    words = first_bytes(path, 80).split(b"\n")[0].decode("latin-1").split()
    return words[1] if len(words) > 1 and words[0] == "%" else ""


def _read_konect(path: Path, options: ReadOptions) -> GraphSource:
    files = _networks(path)
    if len(files) > 1:
        raise GraphDataError(f"{path} has several networks, {', '.join(file.name for file in files)}: give one of them")
    folder = FolderFiles(path)
    folder.read(files[0])
    left_out = folder.left_out() if path.is_dir() else ()
    path = files[0]
    form = _form(path)
    comments, fields = _comments_of(path, b"%")
    words = comments[1].split() if len(comments) > 1 else []
    sizes = list(map(int, words)) if len(words) == 3 and all(map(_is_count, words)) else []
    values = _VALUES[: max(len(fields) - 2, 0)]
    columns = dict.fromkeys(_ENDS, "int64") | dict.fromkeys(values, "float64")
    largest = [0, 0]
    are_whole = dict.fromkeys(values, True)
    sum_of_weights = 0.0
    with CollectedEdges(columns, options.scratch) as edges:
        for block in number_blocks(path, columns, b"%"):
            rows = block.columns
            for side, end in enumerate(_ENDS):
                limit = sizes[1 + side] if sizes else _LARGEST
                block.check((rows[end] >= 1) & (rows[end] <= limit), f"{end} must be one of 1 to {limit}")
                largest[side] = max(largest[side], int(rows[end].max()))
                rows[end] -= 1
            for name in values:
                block.check(np.isfinite(rows[name]), f"{name} must be a number")
                whole = (rows[name] == np.rint(rows[name])) & (np.abs(rows[name]) < _EXACT)
                are_whole[name] &= bool(whole.all())
            sum_of_weights += float(rows["weight"].sum()) if values else 0
            edges.add(rows)
            if form == "sym":
                is_no_loop = rows["source"] != rows["destination"]
                edges.add_reverses({name: column[is_no_loop] for name, column in rows.items()})
        if sizes and len(edges) != sizes[0] and sum_of_weights != sizes[0]:
            raise GraphDataError(f"{path} has {len(edges)} edges, but its second line says {sizes[0]}")
        src, dst, *read = edges.finish()
    relation = DEFAULT_ETYPE
    counts = {DEFAULT_NTYPE: max(sizes[1:] or largest)}
    if form == "bip":
        relation = _OF_SIDES
        counts = dict(zip(relation[::2], sizes[1:] or largest, strict=True))
    feats = {
        name: Feature.of(CastRows(rows, np.int64) if are_whole[name] else rows)
        for name, rows in zip(values, read, strict=True)
    }
    ends = {relation: (src, dst)}
    edge_feats = {relation: feats}
    return graph_of(counts, ends, edge_feats=edge_feats, has_reverse=form == "sym", left_out=left_out)


KONECT = Layout("KONECT", "out.<name>", lambda path: bool(_networks(path)), _read_konect)

_COUNTS = re.compile(r"\bNodes:\s*(\d{1,18})\s+Edges:\s*(\d{1,18})\b", re.IGNORECASE)


def checked_by_comments(path: Path, source: GraphSource, adds_reverse: bool) -> GraphSource:
    """Return a graph that was read from ``path``, a table or a directory; if that is a file of SNAP's, checked.

    ``adds_reverse`` says if the user asks for reverse edges. Raises GraphDataError if there are not as many edges as
    the comments say, or more nodes.
    """
    comments = _comments_of(path, b"#")[0] if path.is_file() and first_bytes(path, 1) == b"#" else []
    counts = next((match for line in comments if (match := _COUNTS.search(line))), None)
    if counts is None or len(source.edges) != 1:
        return source
    nodes, edges = map(int, counts.groups())
    if source.num_edges() != edges:
        raise GraphDataError(f"{path} has {source.num_edges()} edges, but its comments say {edges}: it is not whole")
    if source.num_nodes[0] > nodes:
        raise GraphDataError(f"{path} has {source.num_nodes[0]} nodes, but its comments say {nodes}")
    if source.num_nodes[0] < nodes:
        get_logger().warning(
            "%s: %d of %d nodes have no edges, and no ids: they are not in the graph (where ids are 0 to N - 1: "
            "--nodes N)", path, nodes - source.num_nodes[0], nodes,
        )  # fmt: skip
    if adds_reverse or not any("undirected" in line.lower() for line in comments):
        return source
    chunks = edge_chunks(source, 0)
    if sum(int((src < dst).sum()) - int((src > dst).sum()) for _, src, dst in chunks) == 0:  # they go both ways
        return source
    question = "reverse edges, if there are to be any (--undirected): the graph is undirected, and its edges go one way"
    return replace(source, left_out=(*source.left_out, question))
