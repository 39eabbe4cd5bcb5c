"""Read property graphs from tables: rows of nodes have labels, rows of edges a type, and their ends are ids of nodes.

**Types.** The first label of a node is its type, and every further label a truth value, the feature ``label_<name>``.
The relation of an edge is the type of its source, its own type and the type of its destination. Nodes of a type are
numbered in the order of their rows; types and relations get ids in alphabetical order.

**Ids** are strings, also those of digits (``007`` is not ``7``), and an id is that of one node in its id space. The
node feature "id" has them: int64[n] if all are written as integers are, else uint8[n, width], their UTF-8 filled up
with zeros.

Nodes are read twice and edges once, a block at a time. In memory are the ids, about 30 bytes for each node and, of a
file with edges of several relations, 16 bytes for each edge.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError
from mpigraph.formats.arrow_values import Place, arrow, distinct_in
from mpigraph.formats.id_maps import Distinct
from mpigraph.formats.stored_rows import Grow, Property, StoredRows, codes_of, features_of
from mpigraph.formats.table_files import Piece, TextFiles
from mpigraph.metadata.schema import Relation, Schema, relation_key
from mpigraph.partition.chunks import GrowingFile, concatenated
from mpigraph.partition.row_arrays import MadeRows, RowArray
from mpigraph.partition.source import Feature, GraphSource

__all__ = ["IdColumn", "LabelledTable", "read_labelled_tables"]

_LABEL_MARK = ";"
_TEXTS = 1 << 32  # types of edges, at most


@dataclass(frozen=True)
class IdColumn:
    """A column of ids.

    Attributes:
        column: its name in the tables.
        space: the ids among which each is that of one node.
    """

    column: str
    space: str = ""


@dataclass(frozen=True)
class LabelledTable:
    """Files with one header, of nodes or of edges.

    Attributes:
        tables: the files.
        ids: the ids of nodes; of edges those of sources, then those of destinations.
        label: the column of labels, or of the type of edges; "" if there is none.
        default: label of the rows that have none.
        properties: the columns that become features.
        left_out: name of each other column -> the reason.
    """

    tables: TextFiles
    ids: tuple[IdColumn, ...]
    label: str
    default: str
    properties: tuple[Property, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


def read_labelled_tables(
    nodes: Sequence[LabelledTable], edges: Sequence[LabelledTable], scratch: Path | None = None
) -> GraphSource:
    """Read a property graph.

    Args:
        nodes: tables of nodes.
        edges: tables of edges.
        scratch: folder of temporary files; None for the system's.

    Raises:
        GraphDataError: an id is missing, not usable or there twice, or an edge has an end that is no node; names file
            and row.
        StorageError: a temporary file cannot be written.
    """
    with ExitStack() as stack:

        def grow(dtype: npt.DTypeLike) -> GrowingFile:
            return stack.enter_context(GrowingFile(dtype, (), scratch))

        known = _Nodes(nodes, grow)
        stored = _Edges(edges, known, grow)
    left_out = [
        f"column {name!r} of {table.tables.paths[0].name}: {reason}"
        for table in [*nodes, *edges]
        for name, reason in table.left_out.items()
    ]
    node_feats = {ntype: known.features(number, left_out) for number, ntype in enumerate(known.types)}
    edge_feats = {
        relation_key(relation): features_of(stored.stored, number, relation_key(relation), left_out)
        for number, relation in enumerate(stored.relations)
    }
    return GraphSource(
        Schema(known.types, stored.relations),
        tuple(known.counts.tolist()),
        tuple(stored.ends(number) for number in range(len(stored.relations))),
        node_feats,
        edge_feats,
        left_out=tuple(left_out),
    )


class _Nodes:
    """The nodes of all tables, numbered in the order of their rows.

    Attributes:
        types: their names, in alphabetical order.
        counts: int64[types].
        type_of: int64[nodes].
        number_in_type: int64[nodes].
    """

    def __init__(self, nodes: Sequence[LabelledTable], grow: Grow) -> None:
        codes: dict[str, int] = {}
        distinct = {table.ids[0].space: Distinct() for table in nodes}
        self._stored = [_stored_nodes(table, distinct[table.ids[0].space], codes, grow) for table in nodes]
        self._labels = [text.split(_LABEL_MARK) for text in codes]
        self.types = tuple(sorted({labels[0] for labels in self._labels}))
        if not self.types:
            raise GraphDataError("there are no nodes")
        type_of_code = np.array([self.types.index(labels[0]) for labels in self._labels], np.int64)
        for stored in self._stored:
            stored.finish(type_of_code, len(self.types))
        self.type_of = np.concatenate([type_of_code[stored.codes] for stored in self._stored])
        self.counts = np.bincount(self.type_of, minlength=len(self.types))
        self.number_in_type = np.empty(len(self.type_of), np.int64)
        numbers = np.concatenate([np.arange(count) for count in self.counts])
        self.number_in_type[np.argsort(self.type_of, kind="stable")] = numbers
        keys = {space: found.sorted() for space, found in distinct.items()}
        width = max((array.dtype.itemsize for array in keys.values() if array.dtype.kind == "S"), default=1)
        self._keys = {space: _kept(array.astype(f"S{width}"), grow) for space, array in keys.items()}
        self._node_of_key = {space: np.full(len(array), -1) for space, array in self._keys.items()}
        self._ids = _row_arrays_of_ids(self._keys)
        self._spaces = [table.ids[0].space for table in nodes]
        self._key_of_row: list[Array] = []
        for table in nodes:
            self._key_of_row.append(self._number(table, sum(map(len, self._key_of_row)), grow))

    def _number(self, table: LabelledTable, first: int, grow: Grow) -> Array:
        """Give the ids of a table to its nodes, from the node ``first`` on; return the key of each row, int64[rows]."""
        keys = self._keys[table.ids[0].space]
        node_of_key = self._node_of_key[table.ids[0].space]
        with grow(np.int64) as key_of_row:
            for _, place, batch in _batches(table):
                values, positions = _ids_in(batch.column(table.ids[0].column), place)
                found = np.searchsorted(keys, values)[positions]
                numbers = first + len(key_of_row) + np.arange(len(found))
                is_new = node_of_key[found] < 0
                node_of_key[found[::-1]] = numbers[::-1]  # so that the first of equal ones stays
                twice = np.flatnonzero(~is_new | (node_of_key[found] != numbers))
                if len(twice):
                    text = values[positions[twice[0]]].decode()
                    raise GraphDataError(f"{place(int(twice[0]))}: there is another node with the id {text!r}")
                key_of_row.append(found)
            return key_of_row.finish()

    def find(self, ids: IdColumn, batch: Any, place: Place) -> I64:
        """Return the nodes that a column of edges names, int64[rows]."""
        values, positions = _ids_in(batch.column(ids.column), place)
        keys = self._keys.get(ids.space, np.zeros(0, "S1"))
        found = np.searchsorted(keys, values) if len(keys) else np.zeros(len(values), np.int64)
        is_there = found < len(keys)
        is_there[is_there] = keys[found[is_there]] == values[is_there]
        if not is_there.all():
            row = int(np.flatnonzero(~is_there[positions])[0])
            space = f" in id space {ids.space!r}" if ids.space else ""
            raise GraphDataError(f"{place(row)}: there is no node {values[positions[row]].decode()!r}{space}")
        nodes: I64 = self._node_of_key[ids.space][found[positions]] if len(positions) else np.zeros(0, np.int64)
        return nodes

    def features(self, ntype: int, left_out: list[str]) -> dict[str, Feature]:
        """Return the features of a type."""
        tables = [number for number, stored in enumerate(self._stored) if stored.counts[ntype]]
        ids = [self._ids_of(number, ntype) for number in tables]
        features = features_of(self._stored, ntype, self.types[ntype], left_out)
        features["id"] = Feature.of(concatenated(ids))
        codes = concatenated([self._stored[number].rows(self._stored[number].codes, ntype) for number in tables])
        of_type = [labels for labels in self._labels if labels[0] == self.types[ntype]]
        for label in sorted({label for labels in of_type for label in labels[1:] if label}):
            has_label = np.array([label in labels[1:] for labels in self._labels])
            features[f"label_{label}"] = Feature.of(MadeRows(has_label.__getitem__, np.bool_, codes))
        return features

    def _ids_of(self, table: int, ntype: int) -> RowArray:
        ids = self._ids[self._spaces[table]]
        keys = self._stored[table].rows(self._key_of_row[table], ntype)
        return MadeRows(ids.__getitem__, ids.dtype, keys, row_shape=ids.shape[1:])


class _Edges:
    """The edges of all tables.

    Attributes:
        relations: their relations, in alphabetical order.
        stored: the properties.
    """

    def __init__(self, edges: Sequence[LabelledTable], nodes: _Nodes, grow: Grow) -> None:
        self._numbers = nodes.number_in_type
        self._ends: list[tuple[Array, Array]] = []
        self.stored: list[StoredRows] = []
        types: dict[str, int] = {}
        codes: dict[int, int] = {}  # (type of source, type of destination, type of edge) as one integer -> code
        for table in edges:
            self._store(table, nodes, types, codes, grow)
        names = list(types)
        found: list[Relation] = []
        for key in codes:
            src, dst = divmod(key // _TEXTS, len(nodes.types))
            found.append((nodes.types[src], names[key % _TEXTS], nodes.types[dst]))
        self.relations = tuple(sorted(found))
        owner_of_code = np.array([self.relations.index(relation) for relation in found], np.int64)
        for stored in self.stored:
            stored.finish(owner_of_code, len(self.relations))

    def _store(
        self, table: LabelledTable, nodes: _Nodes, types: dict[str, int], codes: dict[int, int], grow: Grow
    ) -> None:
        stored = StoredRows(table.tables, table.properties, grow)
        with grow(np.int64) as sources, grow(np.int64) as destinations:
            for piece, place, batch in _batches(table):
                src, dst = (nodes.find(ids, batch, place) for ids in table.ids)
                text = _codes_of(table, batch, types)
                pair = nodes.type_of[src] * len(nodes.types) + nodes.type_of[dst]
                keys, inverse = np.unique(pair * _TEXTS + text, return_inverse=True)
                numbers = np.array([codes.setdefault(key, len(codes)) for key in keys.tolist()], np.int64)
                stored.append(piece, numbers[inverse], batch, place)
                sources.append(nodes.number_in_type[src])
                destinations.append(nodes.number_in_type[dst])
            self._ends.append((sources.finish(), destinations.finish()))
        self.stored.append(stored)

    def ends(self, relation: int) -> tuple[RowArray, RowArray]:
        """Return the sources and the destinations of a relation's edges, int64[edges] each."""
        found = [
            [stored.rows(end, relation) for end in ends]
            for stored, ends in zip(self.stored, self._ends, strict=True)
            if stored.counts[relation]
        ]
        src, dst = zip(*found, strict=True)
        return concatenated(src), concatenated(dst)


def _stored_nodes(table: LabelledTable, distinct: Distinct, codes: dict[str, int], grow: Grow) -> StoredRows:
    """Store labels and properties of nodes, and collect their ids."""
    stored = StoredRows(table.tables, table.properties, grow)
    for piece, place, batch in _batches(table):
        distinct.add(_ids_in(batch.column(table.ids[0].column), place)[0])
        stored.append(piece, _codes_of(table, batch, codes), batch, place)
    return stored


def _batches(table: LabelledTable) -> Iterator[tuple[Piece, Place, Any]]:
    """Yield blocks of the columns in use, each with the file and with what names its rows."""
    names = [*(ids.column for ids in table.ids), table.label, *(entry.name for entry in table.properties)]
    names = list(dict.fromkeys(name for name in names if name))
    for piece in table.tables.pieces():
        first = table.tables.first_row(piece)
        for batch in table.tables.batches(piece, names):
            yield piece, partial(_place, table.tables.paths[piece.file], first), batch
            first += batch.num_rows


def _place(path: Path, first: int, row: int) -> str:
    return f"{path}, row {first + row}"


def _ids_in(column: Any, place: Place) -> tuple[Array, I64]:
    """Return the distinct ids of a column, of dtype S, and the position of each row's."""
    return distinct_in(arrow().compute.utf8_trim_whitespace(column), place)


def _codes_of(table: LabelledTable, batch: Any, codes: dict[str, int]) -> I64:
    """Return numbers for the labels or types of rows, int64[rows]; new ones are added to ``codes``."""
    if not table.label:
        return np.full(batch.num_rows, codes.setdefault(table.default, len(codes)))
    is_of_nodes = len(table.ids) == 1

    def cleaned(text: str) -> str:
        labels = [label.strip() for label in (text.split(_LABEL_MARK) if is_of_nodes else [text])]
        return _LABEL_MARK.join(label for label in labels if label) or table.default

    return codes_of(batch.column(table.label), codes, cleaned)


def _kept(keys: Array, grow: Grow) -> Array:
    """Return the same keys, mapped."""
    with grow(keys.dtype) as file:
        file.append(keys)
        return file.finish()


def _row_arrays_of_ids(keys: Mapping[str, Array]) -> dict[str, Array]:
    """Return the ids of all spaces as int64, if all are integers as Python writes them, else as rows of bytes."""
    integers = {space: _as_integers(array) for space, array in keys.items()}
    if all(array is not None for array in integers.values()):
        return {space: array for space, array in integers.items() if array is not None}
    return {space: array.view(np.uint8).reshape(len(array), -1) for space, array in keys.items()}


def _as_integers(keys: Array) -> I64 | None:
    try:
        numbers = keys.astype(np.int64)
    except (ValueError, OverflowError):
        return None
    return numbers if (numbers.astype(keys.dtype) == keys).all() else None
