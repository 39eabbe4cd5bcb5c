"""Read property graphs from tables: rows of nodes have labels, rows of edges a type, and their ends are ids of nodes.

**Types.** The first label of a node is its type, and every further label a truth value, the feature ``label_<name>``.
The relation of an edge is the type of its source, its own type and the type of its destination. Nodes of a type are
numbered in the order of their rows; types and relations get ids in alphabetical order.

**Ids** are strings, also those of digits (``007`` is not ``7``), and an id is that of one node in its id space. The
node feature "id" has them: int64[n] if all are written as integers are, else uint8[n, width], their UTF-8 filled up
with zeros.

**Properties** become features of the types and relations with values of them. If a value is missing, integers become
float64 and the missing one NaN; a missing truth value is False.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.formats.arrow_values import Place, arrow, values_as, values_of
from mpigraph.formats.id_maps import NodeIds
from mpigraph.formats.input_files import graph_of
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.table_columns import Block, IdColumn, read_columns
from mpigraph.formats.table_files import TextFiles
from mpigraph.metadata.schema import Relation, relation_key
from mpigraph.partition.row_arrays import CastRows, MadeRows, NamedRows, Reordered, RowArray, as_labels, concatenated
from mpigraph.partition.source import Feature, GraphSource

_LABEL_MARK = ";"
_TEXTS = 1 << 32  # types of edges, at most
_CHUNK = 1 << 20  # rows


@dataclass(frozen=True)
class Property:
    """A column that becomes a feature."""

    name: str  # of the column and the feature
    # of its values, "int64", "float32", "float64" or "bool"; "time" for dates and times, which become int64 seconds
    # since 1970
    dtype: str
    list_mark: str = ""  # separates the values of one row; "" if each row has one value
    # of categories, the code of each name so far, which all tables share; they are numbered in the order of the names,
    # and -1 without a name
    names: dict[str, int] | None = None

    def parse(self, text: Any, place: Place) -> list[Array]:
        """Return the values of a block of text, whether each is missing, and the lengths of two unlike lists."""
        compute = arrow().compute
        text = compute.utf8_trim_whitespace(text)
        is_there = compute.not_equal(text, "")
        filled = text.filter(is_there)
        there = is_there.to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(there)
        row_shape: tuple[int, ...] = ()
        if self.list_mark:
            lists = compute.split_pattern(filled, self.list_mark)
            lengths = compute.list_value_length(lists).to_numpy(zero_copy_only=False)
            unlike = lengths[lengths != lengths[:1].sum()]
            if len(unlike):
                return [np.zeros((len(there), 0)), ~there, np.array([lengths[0], unlike[0]])]
            row_shape = (int(lengths[:1].sum()),)
            filled, rows = lists.flatten(), np.repeat(rows, lengths)
        numbers = self._numbers(filled, lambda number: place(int(rows[number])))
        missing = np.nan if numbers.dtype.kind == "f" else 0 if self.names is None else -1
        values = np.full((len(there), *row_shape), missing, numbers.dtype)
        values[there] = numbers.reshape(-1, *row_shape)
        return [values, ~there, np.zeros(0, np.int64)]

    def _numbers(self, text: Any, place: Place) -> Array:
        if self.names is not None:
            encoded = text.dictionary_encode()
            codes = [self.names.setdefault(name, len(self.names)) for name in encoded.dictionary.to_pylist()]
            return np.asarray(np.array(codes, np.int64)[encoded.indices.to_numpy(zero_copy_only=False)])
        if self.dtype != "time":
            return values_as(np.dtype(self.dtype), text, place)
        values = values_of(text, place)
        if len(text) and values.kind != "time":
            got = text[0].as_py()
            raise GraphDataError(f"{place(0)}: a date or time is expected in this column (got {got!r:.80})")
        return values.rows.astype(np.int64)


@dataclass(frozen=True)
class LabelledTable:
    """Files with one header, of nodes or of edges."""

    tables: TextFiles  # the files
    # column and id space of the ids of nodes; of edges those of sources, then those of destinations
    ids: tuple[tuple[str, str], ...]
    label: str  # the column of labels, or of the type of edges; "" without such a column
    default: str  # label of the rows without one
    properties: tuple[Property, ...] = ()  # the columns that become features
    left_out: Mapping[str, str] = field(default_factory=dict)  # name of each other column -> the reason


@collective("ranks")
def read_labelled_tables(
    nodes: Sequence[LabelledTable], edges: Sequence[LabelledTable], ranks: ReadingRanks
) -> GraphSource:
    """Read a property graph from tables of nodes and of edges.

    Raises:
        GraphDataError: an id is missing, not usable or there twice, or an edge has an end that is no node; names file
            and row.
        StorageError: a temporary file cannot be written.
    """
    of_nodes = [_Rows(table, ranks) for table in nodes]
    of_edges = [_Rows(table, ranks) for table in edges]
    texts: dict[str, int] = {}
    codes = [rows.codes_of(texts, _labels_of) for rows in of_nodes]
    labels = [text.split(_LABEL_MARK) for text in texts]
    types = tuple(sorted({of_node[0] for of_node in labels}))
    if not types:
        raise GraphDataError("there are no nodes")
    type_of_code = np.array([types.index(of_node[0]) for of_node in labels], np.int64)
    for rows, code in zip(of_nodes, codes, strict=True):
        rows.sort(type_of_code[np.asarray(code[:])], len(types))
    spaces = _Spaces(of_nodes, of_edges, ranks)
    relations, ends = _relations(of_edges, spaces, types, ranks)
    left_out = [
        f"column {name!r} of {table.tables.paths[0].name}: {reason}"
        for table in [*nodes, *edges]
        for name, reason in table.left_out.items()
    ]
    node_feats = {}
    for number, ntype in enumerate(types):
        node_feats[ntype] = feats = _features(of_nodes, number, ntype, left_out)
        feats["id"] = Feature.of(spaces.ids_of(number))
        of_type = zip(of_nodes, codes, strict=True)
        code = concatenated([rows.chosen(code, number) for rows, code in of_type if rows.counts[number]])
        further = {label for of_node in labels if of_node[0] == ntype for label in of_node[1:]}
        for label in sorted(further - {""}):
            has_label = np.array([label in of_node[1:] for of_node in labels])
            feats[f"label_{label}"] = Feature.of(MadeRows(has_label.__getitem__, np.bool_, code))
    edge_feats = {r: _features(of_edges, number, relation_key(r), left_out) for number, r in enumerate(relations)}
    return graph_of(
        {ntype: sum(int(rows.counts[number]) for rows in of_nodes) for number, ntype in enumerate(types)},
        dict(zip(relations, ends, strict=True)),
        node_feats,
        edge_feats,
        left_out=tuple(left_out),
    )


def _labels_of(text: str) -> str:
    return _LABEL_MARK.join(label for label in map(str.strip, text.split(_LABEL_MARK)) if label)


class _Rows:
    """Rows of the files of one header. Each row belongs to an owner, a node type or a relation."""

    def __init__(self, table: LabelledTable, ranks: ReadingRanks) -> None:
        self.table = table
        self._ranks = ranks
        ids = dict.fromkeys([*(column for column, _ in table.ids), *filter(None, [table.label])])
        parsers = {entry.name: entry.parse for entry in table.properties}
        columns = read_columns(table.tables, list(ids), {}, dict.fromkeys(ids, "string"), ranks, parsers)
        self.length = sum(columns.lengths)
        self.ids = [columns.ids[column] for column, _ in table.ids]
        self._labels = columns.ids.get(table.label)
        self.properties = {entry.name: _Values(entry, columns.blocks[entry.name]) for entry in table.properties}

    def codes_of(self, codes: dict[str, int], cleaned: Callable[[str], str]) -> RowArray:
        """Return a number for the label of each row, int64[rows]; new ones are added to ``codes``."""

        def numbers() -> Iterator[I64]:
            for values, positions, _ in self._labels.texts(blanks=True) if self._labels is not None else ():
                texts = [cleaned(value.decode()) or self.table.default for value in values.tolist()]
                yield np.array([codes.setdefault(text, len(codes)) for text in texts], np.int64)[positions]
            if self._labels is None:
                yield np.full(self.length, codes.setdefault(self.table.default, len(codes)))

        return self._ranks.rows("reading labels", np.int64, numbers)

    def sort(self, owners: I64, count: int) -> None:
        """Sort the rows by owner, int64[rows]."""
        self.counts = np.bincount(owners, minlength=count)
        self._ends = np.cumsum(self.counts)
        self._order: RowArray | None = None
        if np.count_nonzero(self.counts) > 1:
            self._order = self._ranks.rows("sorting rows", np.int64, lambda: [np.argsort(owners, kind="stable")])
        for values in self.properties.values():
            values.present = np.bincount(owners[~np.asarray(values.missing[:])], minlength=count)

    def positions(self, owner: int) -> I64:
        """Return the rows of an owner, ascending, int64[rows]."""
        if self._order is None:
            return np.arange(self.counts[owner])
        return np.asarray(self._order[self._ends[owner] - self.counts[owner] : self._ends[owner]])

    def chosen(self, values: RowArray, owner: int) -> RowArray:
        """Return an owner's rows of an array that has one row for each row of the files."""
        return values if self._order is None else Reordered(values, self.positions(owner))


class _Values:
    """The values of a property in the files of one header; ``reason`` tells why it is left out, if it is."""

    present: I64  # [owners], how many rows have a value

    def __init__(self, entry: Property, blocks: Sequence[Block]) -> None:
        self.entry = entry
        self.reason = ""
        widths = dict.fromkeys(length for block in blocks for length in block.arrays[2].tolist())
        if entry.list_mark:
            widths |= dict.fromkeys(block.arrays[0].shape[1] for block in blocks if not block.arrays[1].all())
        lengths = [length for length in widths if length]
        if len(lengths) > 1:
            self.reason = f"lists of {lengths[0]} and of {lengths[1]} values"
        self.row_shape = (lengths[0] if lengths else 0,) if entry.list_mark else ()
        dtype = np.dtype("int64" if entry.dtype == "time" else entry.dtype)
        rows: list[RowArray] = []
        for block in blocks:
            values = block.arrays[0]
            if values.shape[1:] != self.row_shape:
                fill = dtype.type(np.nan if dtype.kind == "f" else 0)
                values = np.broadcast_to(fill, (block.length, *self.row_shape))
            rows.append(NamedRows(values, block.path, block.row))
        self.rows = concatenated(rows) if rows else np.zeros((0, *self.row_shape), dtype)
        self.missing = concatenated([block.arrays[1] for block in blocks]) if blocks else np.zeros(0, bool)


class _Spaces:
    """The nodes of each id space, in the order of their rows."""

    def __init__(self, nodes: Sequence[_Rows], edges: Sequence[_Rows], ranks: ReadingRanks) -> None:
        self._tables: dict[str, list[_Rows]] = {space: [] for rows in edges for _, space in rows.table.ids}
        for rows in nodes:
            self._tables.setdefault(rows.table.ids[0][1], []).append(rows)
        self._ids = {}
        for space, tables in self._tables.items():
            ends = [rows.ids[e] for rows in edges for e, (_, of) in enumerate(rows.table.ids) if of == space]
            what = f"nodes of id space {space!r}" if space else "nodes"
            stretches = [stretch for rows in tables for stretch in rows.ids[0].stretches]
            self._ids[space] = NodeIds(what, IdColumn(stretches or [np.zeros(0, np.int64)]), ends, ranks)
        done = np.zeros(nodes[0].counts.shape, np.int64)
        of_rows: dict[int, tuple[I64, I64]] = {}
        for rows in nodes:
            types, numbers = np.empty(rows.length, np.int64), np.empty(rows.length, np.int64)
            for number in np.flatnonzero(rows.counts).tolist():
                types[rows.positions(number)] = number
                numbers[rows.positions(number)] = done[number] + np.arange(rows.counts[number])
            done += rows.counts
            of_rows[id(rows)] = types, numbers
        empty = np.zeros(0, np.int64)
        self._types, self._numbers = (
            {s: np.concatenate([empty, *(of_rows[id(rows)][side] for rows in of)]) for s, of in self._tables.items()}
            for side in (0, 1)
        )

    def ends(self, rows: _Rows, end: int) -> Iterator[tuple[I64, I64]]:
        """Yield type and number in it of the nodes that edges name, int64[edges] a chunk at a time."""
        space = rows.table.ids[end][1]
        numbers = self._ids[space].numbers(rows.ids[end])
        for first in range(0, rows.length, _CHUNK):
            nodes = np.asarray(numbers[first : first + _CHUNK], np.int64)
            yield self._types[space][nodes], self._numbers[space][nodes]

    def ids_of(self, ntype: int) -> RowArray:
        """Return the ids of a type: int64[n] if all ids of all spaces are written as integers are, else bytes."""
        originals = {space: ids.original for space, ids in self._ids.items() if ids.original is not None}
        width = max(ids.dtype.itemsize for ids in originals.values())
        are_integers = all(_are_integers(ids) for ids in originals.values())
        pieces: list[RowArray] = []
        for space, tables in self._tables.items():
            begin = 0
            for rows in tables:
                if rows.counts[ntype]:
                    ids = rows.chosen(originals[space][begin : begin + rows.length], ntype)
                    if are_integers:
                        pieces.append(MadeRows(lambda texts: texts.astype(np.int64), np.int64, ids))
                    else:
                        pieces.append(MadeRows(partial(_as_bytes, width), np.uint8, ids, row_shape=(width,)))
                begin += rows.length
        return concatenated(pieces)


def _are_integers(ids: Array) -> bool:
    for first in range(0, len(ids), _CHUNK):
        chunk = ids[first : first + _CHUNK]
        try:
            numbers = chunk.astype(np.int64)
        except (ValueError, OverflowError):
            return False
        if (numbers.astype(chunk.dtype) != chunk).any():
            return False
    return True


def _as_bytes(width: int, ids: Array) -> Array:
    return ids.astype(f"S{width}").view(np.uint8).reshape(len(ids), width)


def _relations(
    edges: Sequence[_Rows], spaces: _Spaces, types: Sequence[str], ranks: ReadingRanks
) -> tuple[tuple[Relation, ...], list[tuple[RowArray, RowArray]]]:
    texts: dict[str, int] = {}
    codes: dict[int, int] = {}  # (type of source, type of destination, type of edge) as one integer -> code
    of_rows = []
    ends_of_rows = []
    for rows in edges:
        text = rows.codes_of(texts, str.strip)
        owners = np.empty(rows.length, np.int32)
        with ExitStack() as stack:
            src_file, dst_file = (stack.enter_context(ranks.growing(stack)(np.int64, ())) for _ in range(2))
            first = 0
            for (src_types, src), (dst_types, dst) in zip(spaces.ends(rows, 0), spaces.ends(rows, 1), strict=True):
                part = slice(first, first + len(src))
                pair = src_types * len(types) + dst_types
                keys, inverse = np.unique(pair * _TEXTS + np.asarray(text[part]), return_inverse=True)
                numbers = np.array([codes.setdefault(key, len(codes)) for key in keys.tolist()], np.int32)
                owners[part] = numbers[inverse]
                src_file.append(src)
                dst_file.append(dst)
                first += len(src)
            ends_of_rows.append((src_file.finish(), dst_file.finish()))
        of_rows.append(owners)
    names = list(texts)
    of_codes = [(*divmod(key // _TEXTS, len(types)), names[key % _TEXTS]) for key in codes]
    relation_of_code: list[Relation] = [(types[src], name, types[dst]) for src, dst, name in of_codes]
    relations = tuple(sorted(relation_of_code))
    number_of_code = np.array([relations.index(relation) for relation in relation_of_code], np.int64)
    for rows, owners in zip(edges, of_rows, strict=True):
        rows.sort(number_of_code[owners], len(relations))
    ends = []
    for number in range(len(relations)):
        with_rows = [pair for pair in zip(edges, ends_of_rows, strict=True) if pair[0].counts[number]]
        both = [concatenated([rows.chosen(of[end], number) for rows, of in with_rows]) for end in (0, 1)]
        ends.append((both[0], both[1]))
    return relations, ends


def _features(tables: Sequence[_Rows], owner: int, title: str, left_out: list[str]) -> dict[str, Feature]:
    tables = [rows for rows in tables if rows.counts[owner]]
    names = dict.fromkeys(name for rows in tables for name, its in rows.properties.items() if its.present[owner])
    features = {}
    for name in names:
        columns = [rows.properties[name] for rows in tables if name in rows.properties]
        columns = [values for values in columns if values.present[owner]]
        reason = next((values.reason for values in columns if values.reason), "")
        shapes = {values.row_shape for values in columns}
        if reason or len(shapes) > 1 or len({values.entry.dtype == "bool" for values in columns}) > 1:
            left_out.append(f"property {name!r} of {title}: {reason or 'its files differ in type or length of values'}")
            continue
        features[name] = _feature(name, tables, columns, owner)
    return features


def _feature(name: str, tables: Sequence[_Rows], columns: Sequence[_Values], owner: int) -> Feature:
    dtype = np.result_type(*(values.rows.dtype for values in columns))
    is_whole = sum(values.present[owner] for values in columns) == sum(rows.counts[owner] for rows in tables)
    names = columns[0].entry.names
    if not is_whole and names is None and dtype.kind == "i":
        dtype = np.dtype(np.float64)
    missing = -1 if names is not None else np.nan if dtype.kind == "f" else 0
    shape = columns[0].row_shape
    pieces: list[RowArray] = []
    for rows in tables:
        values = rows.properties.get(name)
        if values is None or not values.present[owner]:
            pieces.append(np.broadcast_to(dtype.type(missing), (int(rows.counts[owner]), *shape)))
            continue
        piece = rows.chosen(values.rows, owner)
        if values.present[owner] < rows.counts[owner] and values.rows.dtype.kind == "i" and names is None:
            piece = MadeRows(partial(_with_gaps, dtype), dtype, piece, rows.chosen(values.missing, owner))
        pieces.append(piece if piece.dtype == dtype else CastRows(piece, dtype))
    joined = concatenated(pieces)
    if names is not None:
        order = sorted(range(len(names)), key=[name.encode() for name in names].__getitem__)
        ranks = np.full(len(names) + 1, -1)  # the last is that of rows without a name, whose code is -1
        ranks[order] = np.arange(len(names))
        joined = MadeRows(ranks.__getitem__, np.int64, joined)
    return Feature(as_labels(joined), "int64") if name == "label" else Feature.of(joined)


def _with_gaps(dtype: np.dtype[Any], values: Array, missing: Array) -> Array:
    rows = values.astype(dtype)
    rows[missing] = np.nan
    return rows
