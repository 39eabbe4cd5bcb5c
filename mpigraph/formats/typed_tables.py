"""Build a graph from tables: one of nodes for each type that has one, one of edges for each relation.

::

    nodes = [NodeTable("paper", files=(Path("papers.csv"),), id_column="paper_id")]
    edges = [EdgeTable(("paper", "cites", "paper"), files=(Path("cites.parquet"),), src_column="from", dst_column="to")]
    source = read_typed_tables(nodes, edges)

**Nodes** have the order of the rows of their table; edges name them by its column of ids, or by the number of the row.
An id that no row has is an error. A type without a table gets its nodes from its edges, in the order of the ids
(``id_maps.py``). Where ids are not 0, 1, ..., n - 1 the node feature "id" has them: int64[n], or uint8[n, width] for
strings, which are their UTF-8 filled up with zeros.

**Columns** become features of their name. Integers, floats, bools and lists of numbers keep their type
(``table_columns.py``); times become int64 seconds since 1970; columns ``name_0``, ``name_1``, ... of numbers are one
matrix "name" of float32. "feat" is float32 or float16, "label" int64, masks are bool. "split" has the words train, val
(valid, dev) and test, and becomes the three masks. Strings are left out, and named in ``left_out``, unless they are
``categories``: these are numbered in their order.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.formats.id_maps import NodeIds, distinct_texts
from mpigraph.formats.input_files import graph_of
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.table_columns import NO_NUMBERS, IdColumn, ValueColumn, are_numbers, read_columns
from mpigraph.formats.table_files import ParquetFiles, TextFiles, open_tables
from mpigraph.log import get_logger
from mpigraph.metadata.schema import Relation
from mpigraph.partition.row_arrays import MadeRows, as_floats, as_labels, as_mask
from mpigraph.partition.source import Feature, GraphSource

_ID_COLUMNS = ("src", "dst", "id")  # in TableOptions.columns
_MASKS = ("train_mask", "val_mask", "test_mask")
_SPLIT = "split"
_SPLITS = {
    **dict.fromkeys((b"train", b"training"), 0),
    **dict.fromkeys((b"val", b"valid", b"validation", b"dev"), 1),
    **dict.fromkeys((b"test", b"testing"), 2),
    **dict.fromkeys((b"", b"none", b"unlabeled", b"unlabelled"), 3),
}
_TYPES = (*"bool int8 int16 int32 int64 uint8 uint16 uint32 float16 float32 float64".split(), "string")
_NUMBERED = re.compile(r"(.*\D)(\d+)")
_NO_NUMBERS = {"string": "text (--categories COLUMN numbers it)", "other": "no numbers", "none": "empty"}
_INDEX = ("", "Unnamed: 0", "__index_level_0__")  # names of the index that pandas writes beside the columns
_LISTED = 20  # categories that a line of the log names


@dataclass(frozen=True)
class NodeTable:
    """A table with a row for each node of a type.

    Attributes:
        ntype: the node type.
        files: csv or parquet files of the same columns, one table in this order.
        id_column: the column by whose values edges name nodes; None: by the number of the row, from 0.
    """

    ntype: str
    files: tuple[Path, ...]
    id_column: str | None = None


@dataclass(frozen=True)
class EdgeTable:
    """A table with a row for each edge of a relation.

    Attributes:
        relation: ``(src_type, rel, dst_type)``.
        files: as in :class:`NodeTable`.
        src_column: the column with the ids of the sources.
        dst_column: the column with the ids of the destinations.
    """

    relation: Relation
    files: tuple[Path, ...]
    src_column: str = "src"
    dst_column: str = "dst"


@dataclass(frozen=True)
class TableOptions:
    """Options of a user for all tables.

    Attributes:
        types: dtypes of columns, or of the features they become; "string" keeps ids as text, and leaves other columns
            out.
        columns: features by name, for tables with such columns. Each is made of a column, or of several side by side,
            which may be patterns such as ``f*``. "src", "dst" and "id" are the columns with the ids.
        categories: columns of names, which are numbered in their order.
    """

    types: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    categories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for column, dtype in self.types.items():
            if dtype not in _TYPES:
                known = ", ".join(_TYPES)
                raise InvalidArgumentError(f"the type of column {column!r} must be one of {known} (got {dtype!r})")


@dataclass(frozen=True)
class _Plan:
    """The columns to read of a table, by the feature that they become; ``words`` are categories and the split."""

    tables: TextFiles | ParquetFiles
    ids: tuple[str, ...]
    words: dict[str, str]
    features: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, table: NodeTable | EdgeTable, options: TableOptions) -> "_Plan":
        tables = open_tables(table.files)
        columns = [table.id_column] if isinstance(table, NodeTable) else [table.src_column, table.dst_column]
        ids = tuple(column for column in columns if column is not None)
        unnamed = [name for name in tables.names if name in _INDEX and name not in ids]
        if unnamed:
            get_logger().warning("%s: column %r, an index of pandas, is left out", table.files[0], unnamed[0])
        features = _features_of([name for name in tables.names if name not in (*ids, *_INDEX)], tables, options)
        for column in (*ids, *(column for its in features.values() for column in its)):
            if column not in tables.names:
                raise GraphDataError(f"{table.files[0]}: has no column {column!r} (got {', '.join(tables.names)})")
        as_words = {_SPLIT, *options.categories}
        words = {name: its[0] for name, its in features.items() if name in as_words or its[0] in options.categories}
        return cls(tables, ids, words, {name: its for name, its in features.items() if name not in words})


@collective("ranks")
def read_typed_tables(
    nodes: Sequence[NodeTable],
    edges: Sequence[EdgeTable],
    ranks: ReadingRanks | None = None,
    options: TableOptions | None = None,
    num_nodes: Mapping[str, int] | None = None,
) -> GraphSource:
    """Read a graph from tables.

    Args:
        nodes: at most one for each type.
        edges: one for each relation.
        ranks: the ranks that read it, and the folder of temporary files; None for this process and the system's.
        options: options of the user for columns.
        num_nodes: number of nodes of types without a table, whose ids are then the numbers of nodes.

    Raises:
        GraphDataError: a table cannot be read, or they contradict one another; names the file, and the row.
        StorageError: a temporary file cannot be written.
    """
    options = options or TableOptions()
    ranks = ranks or ReadingRanks()
    all_tables: list[NodeTable | EdgeTable] = [*nodes, *edges]
    plans = [_Plan.of(table, options) for table in all_tables]
    _check_all_used(options, plans)  # before what takes long
    tables = [_Table(plan, options, ranks) for plan in plans]
    of_nodes = {table.ntype: tables[number] for number, table in enumerate(nodes)}
    of_edges = {table.relation: tables[len(nodes) + number] for number, table in enumerate(edges)}
    return graph_of_tables(of_nodes, of_edges, ranks, num_nodes)


class ReadTable(Protocol):
    """A table that was read."""

    title: str  # names it in messages
    length: int  # number of rows
    ids: list[IdColumn]  # the columns of ids: of nodes one or none, of edges those of sources and of destinations
    features: dict[str, Feature]  # by name
    left_out: list[str]  # names each column that is not among them


@collective("ranks")
def graph_of_tables(
    nodes: Mapping[str, ReadTable],
    edges: Mapping[Relation, ReadTable],
    ranks: ReadingRanks,
    num_nodes: Mapping[str, int] | None = None,
) -> GraphSource:
    """Number the nodes of tables by their ids, and return the graph; see :func:`read_typed_tables`."""
    ids = {}
    node_feats = {}
    for ntype in sorted({*nodes, *(end for relation in edges for end in relation[::2])}):
        ends = [table.ids[end] for relation, table in edges.items() for end in (0, 1) if relation[2 * end] == ntype]
        table = nodes.get(ntype)
        count = (num_nodes or {}).get(ntype)
        if table is not None:
            if count is not None and count != table.length:
                raise GraphDataError(f"{table.title}: has {table.length} rows, but there are to be {count} nodes")
            count = None if table.ids else table.length
        ids[ntype] = NodeIds(repr(ntype), table.ids[0] if table and table.ids else None, ends, ranks, count)
        node_feats[ntype] = table.features if table else {}
        original = ids[ntype].original
        if original is not None:
            is_text = original.dtype.kind == "S"
            rows = original.view(np.uint8).reshape(len(original), -1) if is_text else original
            node_feats[ntype] = {"id": Feature.of(rows), **node_feats[ntype]}
            if table is None:
                text = 'nodes of %r are numbered in the order of their ids, which are node feature "id"'
                get_logger().warning(text, ntype)
    return graph_of(
        {ntype: numbered.count for ntype, numbered in ids.items()},
        {r: (ids[r[0]].numbers(t.ids[0]), ids[r[2]].numbers(t.ids[1])) for r, t in sorted(edges.items())},
        node_feats,
        {relation: table.features for relation, table in edges.items()},
        left_out=tuple(thing for table in (*nodes.values(), *edges.values()) for thing in table.left_out),
    )


class _Table:
    def __init__(self, plan: _Plan, options: TableOptions, ranks: ReadingRanks) -> None:
        self.title = name = str(plan.tables.paths[0])
        ids = (*plan.ids, *plan.words.values())
        columns_of = {**plan.features, **{column: (column,) for column in ids}}
        types = {
            feature: next(options.types[key] for key in (feature, *columns) if key in options.types)
            for feature, columns in columns_of.items()
            if not options.types.keys().isdisjoint((feature, *columns))
        }
        read = read_columns(plan.tables, ids, plan.features, types, ranks)
        self.length = sum(read.lengths)
        self.ids = [read.ids[column] for column in plan.ids]
        self.features: dict[str, Feature] = {}
        for feature, column in plan.words.items():
            if feature == _SPLIT:
                self.features |= _masks(read.ids[column], ranks)
            else:
                self.features[feature] = _category(f"{name}: column {column}", read.ids[column], ranks)
        self.left_out: list[str] = []
        for feature, values in read.values.items():
            if values.kind in NO_NUMBERS:
                first = f": the first is in {values.place}" if values.place else ""
                self.left_out.append(f"{name}: column {feature} is {_NO_NUMBERS[values.kind]}{first}")
            else:
                self.features[feature] = self._feature(feature, values)

    def _feature(self, name: str, values: ValueColumn) -> Feature:
        if values.kind == "time":
            text = "%s: times in %s become int64, seconds since 1970 (UTC)"
            get_logger().warning(text, self.title, name)
        if name == "label" and values.rows.ndim == 1:
            return Feature(as_labels(values.rows), "int64")
        if name in _MASKS:
            return Feature.of(as_mask(values.rows))
        return Feature.of(as_floats(values.rows)) if name == "feat" else Feature.of(values.rows)


def _features_of(
    names: Sequence[str], tables: TextFiles | ParquetFiles, options: TableOptions
) -> dict[str, tuple[str, ...]]:
    """Return the columns of each feature: as the user has named them, matrices by numbered names, and single ones."""
    features = {}
    taken = set()
    for feature, patterns in options.columns.items():
        if feature in _ID_COLUMNS:
            continue
        columns = [name for pattern in patterns for name in names if fnmatchcase(name, pattern) and name not in taken]
        if columns:
            features[feature] = tuple(columns)
            taken |= set(columns)
    rest = [name for name in names if name not in taken and name not in options.categories]
    matrices: dict[str, dict[int, str]] = {}
    for name in rest:
        match = _NUMBERED.fullmatch(name)
        if match is not None:
            matrices.setdefault(match[1].rstrip("_-. "), {})[int(match[2])] = name
    for feature, by_number in matrices.items():
        columns = [by_number[number] for number in sorted(by_number)]
        numbers = sorted(by_number)
        is_row = len(columns) > 1 and numbers in (list(range(len(columns))), list(range(1, len(columns) + 1)))
        if is_row and feature and feature not in names and feature not in features and are_numbers(tables, columns):
            features[feature] = tuple(columns)
            taken |= set(columns)
            text = "%s: columns %s to %s become the rows of one feature %r"
            get_logger().warning(text, tables.paths[0], columns[0], columns[-1], feature)
    return features | {name: (name,) for name in names if name not in taken}


def _check_all_used(options: TableOptions, plans: Sequence[_Plan]) -> None:
    """Check that some table has each column that the user has named."""
    names = {name for plan in plans for name in (*plan.tables.names, *plan.features, *plan.words)}
    asked = [("types", name) for name in options.types] + [("categories", name) for name in options.categories]
    asked += [(f"columns of {feature!r}", pattern) for feature, its in options.columns.items() for pattern in its]
    for what, pattern in asked:
        is_there = pattern in names or (what.startswith("columns") and any(fnmatchcase(n, pattern) for n in names))
        if not is_there:
            raise GraphDataError(f"{what}: no table has a column {pattern!r} (there are {', '.join(sorted(names))})")


def _masks(words: IdColumn, ranks: ReadingRanks) -> dict[str, Feature]:
    parts = ranks.rows("reading the split", np.uint8, lambda: _splits(words, ranks))
    return {name: Feature.of(MadeRows(partial(np.equal, part), np.bool_, parts)) for part, name in enumerate(_MASKS)}


def _splits(words: IdColumn, ranks: ReadingRanks) -> Iterator[Array]:
    for values, positions, place in words.texts(True, ranks):
        parts = np.array([_SPLITS.get(value.lower(), 4) for value in values.tolist()], np.uint8)[positions]
        if len(parts) and parts.max() == 4:
            row = int((parts == 4).argmax())
            word = values[positions[row]].decode()
            raise GraphDataError(f"{place(row)}: split must be train, val or test, or nothing (got {word!r:.80})")
        yield parts


def _category(title: str, names: IdColumn, ranks: ReadingRanks) -> Feature:
    """Return the number of each name in the order of all names, int64; -1 for a row without a name."""
    doing = "numbering categories"
    if names.is_text:
        keys = distinct_texts(ranks, doing, [names], blanks=True)
        keys = keys[keys != b""] if len(keys) else np.zeros(0, "S1")
    else:
        keys = np.unique(names.numbers[:]) if len(names) else np.zeros(0, np.int64)
    listed = ", ".join(repr(key.decode() if names.is_text else key) for key in keys[:_LISTED].tolist())
    listed += ", ..." * (len(keys) > _LISTED)
    get_logger().warning("%s: %d categories are numbered in their order: %s", title, len(keys), listed)
    if not names.is_text:
        return Feature.of(MadeRows(lambda rows: np.asarray(np.searchsorted(keys, rows)), np.int64, names.numbers))

    def own() -> Iterator[Array]:
        for values, positions, _ in names.texts(True, ranks):
            yield np.where(values == b"", -1, np.searchsorted(keys, values))[positions]

    return Feature.of(ranks.rows(doing, np.int64, own))
