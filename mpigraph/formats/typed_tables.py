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
from pathlib import Path

import numpy as np

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.formats.id_maps import NodeIds, distinct_texts
from mpigraph.formats.node_ranks import NodeRanks
from mpigraph.formats.table_columns import NO_NUMBERS, IdColumn, ValueColumn, are_numbers, read_columns
from mpigraph.formats.table_files import ParquetFiles, TextFiles, TextForm, open_tables
from mpigraph.log import get_logger
from mpigraph.metadata.schema import Relation, Schema, relation_key
from mpigraph.partition.row_arrays import MadeRows, as_floats, as_labels, as_mask
from mpigraph.partition.source import Feature, GraphSource

__all__ = ["OF_IDS", "EdgeTable", "NodeTable", "TableOptions", "ids_feature", "log_categories", "read_typed_tables"]

OF_IDS = ("src", "dst", "id")
"""What ``TableOptions.columns`` calls columns of ids."""

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
_NO_NUMBERS = {
    "string": "text (--categories COLUMN numbers it)",
    "other": "no numbers",
    "none": "empty",
}
_LISTED = 20  # categories that a line of the log names


@dataclass(frozen=True)
class NodeTable:
    """A table with a row for each node of a type.

    Attributes:
        ntype: the node type.
        files: csv or parquet files of the same columns, one table in this order.
        id_column: the column by whose values edges name nodes; None: by the number of the row, from 0.
        columns: features by name, each of a column, or of several side by side; None: all columns, by their names.
        form: how text is to be read.
    """

    ntype: str
    files: tuple[Path, ...]
    id_column: str | None = None
    columns: Mapping[str, str | Sequence[str]] | None = None
    form: TextForm = field(default_factory=TextForm)


@dataclass(frozen=True)
class EdgeTable:
    """A table with a row for each edge of a relation.

    Attributes:
        relation: ``(src_type, rel, dst_type)``.
        files: as in :class:`NodeTable`.
        src_column: the column with the ids of the sources.
        dst_column: the column with the ids of the destinations.
        columns: as in :class:`NodeTable`.
        form: how text is to be read.
    """

    relation: Relation
    files: tuple[Path, ...]
    src_column: str = "src"
    dst_column: str = "dst"
    columns: Mapping[str, str | Sequence[str]] | None = None
    form: TextForm = field(default_factory=TextForm)


@dataclass(frozen=True)
class TableOptions:
    """What a user says of all tables.

    Attributes:
        types: dtypes of columns, or of the features they become; "string" keeps ids as text, and leaves other columns
            out.
        columns: features by name, each of a column, or of several side by side, which may be patterns such as
            ``f*``; where a table has such columns. "src", "dst" and "id" are the columns with the ids.
        categories: columns of names, which are numbered in their order.
    """

    types: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    categories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for column, dtype in self.types.items():
            if dtype not in _TYPES:
                raise InvalidArgumentError(
                    f"the type of column {column!r} must be one of {', '.join(_TYPES)} (got {dtype!r})"
                )


@dataclass(frozen=True)
class _Plan:
    """What to read of a table.

    Attributes:
        tables: its files.
        ids: columns of ids.
        words: features of columns of words: categories, and the split.
        features: columns of numbers, by the feature that they become.
    """

    tables: TextFiles | ParquetFiles
    ids: tuple[str, ...]
    words: dict[str, str]
    features: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, table: NodeTable | EdgeTable, options: TableOptions) -> "_Plan":
        """Open a table and choose what to read of it."""
        tables = open_tables(table.files, table.form)
        if isinstance(table, NodeTable):
            ids = tuple(filter(None, [table.id_column]))
        else:
            ids = (table.src_column, table.dst_column)
        if table.columns is None:
            features = _features_of([name for name in tables.names if name not in ids], tables, options)
        else:
            given = table.columns.items()
            features = {name: (column,) if isinstance(column, str) else tuple(column) for name, column in given}
        for column in (*ids, *(column for columns in features.values() for column in columns)):
            if column not in tables.names:
                raise GraphDataError(f"{table.files[0]}: has no column {column!r} (got {', '.join(tables.names)})")
        words = {
            name: columns[0]
            for name, columns in features.items()
            if name == _SPLIT or name in options.categories or columns[0] in options.categories
        }
        return cls(tables, ids, words, {name: columns for name, columns in features.items() if name not in words})


@collective("ranks")
def read_typed_tables(
    nodes: Sequence[NodeTable],
    edges: Sequence[EdgeTable],
    ranks: NodeRanks | None = None,
    options: TableOptions | None = None,
    num_nodes: Mapping[str, int] | None = None,
) -> GraphSource:
    """Read a graph from tables.

    Args:
        nodes: at most one for each type.
        edges: one for each relation.
        ranks: the ranks that read it, and the folder of temporary files; None for this process and the system's.
        options: what the user says of columns.
        num_nodes: number of nodes of types without a table, whose ids are then the numbers of nodes.

    Raises:
        GraphDataError: a table cannot be read, or they contradict one another; names the file, and the row.
        StorageError: a temporary file cannot be written.
    """
    options = options or TableOptions()
    ranks = ranks or NodeRanks()
    plans = [*(_Plan.of(table, options) for table in nodes), *(_Plan.of(table, options) for table in edges)]
    _check_all_used(options, plans)  # before what takes long
    tables = [_Table(plan, options, ranks) for plan in plans]
    node_tables = {table.ntype: tables[number] for number, table in enumerate(nodes)}
    edge_tables = {table.relation: tables[len(nodes) + number] for number, table in enumerate(edges)}
    ntypes = sorted({*node_tables, *(end for relation in edge_tables for end in (relation[0], relation[2]))})
    relations = sorted(edge_tables)
    ids = {}
    for ntype in ntypes:
        ends = [
            table.ids[end] for relation, table in edge_tables.items() for end in (0, 1) if relation[2 * end] == ntype
        ]
        given = node_tables.get(ntype)
        count = (num_nodes or {}).get(ntype)
        if given is not None:
            if count is not None and count != given.length:
                raise GraphDataError(f"{given.name}: has {given.length} rows, but there are to be {count} nodes")
            count = None if given.ids else given.length
        ids[ntype] = NodeIds(repr(ntype), given.ids[0] if given and given.ids else None, ends, ranks, count)
    node_feats = {ntype: node_tables[ntype].features if ntype in node_tables else {} for ntype in ntypes}
    for ntype in ntypes:
        original = ids[ntype].original
        if original is not None:
            node_feats[ntype] = {"id": ids_feature(original), **node_feats[ntype]}
            if ntype not in node_tables:
                get_logger().warning(
                    'nodes of %r are numbered in the order of their ids, which are node feature "id"', ntype
                )
    return GraphSource(
        Schema(tuple(ntypes), tuple(relations)),
        tuple(ids[ntype].count for ntype in ntypes),
        tuple((ids[r[0]].numbers(edge_tables[r].ids[0]), ids[r[2]].numbers(edge_tables[r].ids[1])) for r in relations),
        node_feats,
        {relation_key(relation): edge_tables[relation].features for relation in relations},
        left_out=tuple(thing for table in tables for thing in table.left_out),
    )


def ids_feature(original: Array) -> Feature:
    """Return original ids as a feature: int64[n], or of strings uint8[n, width]."""
    is_text = original.dtype.kind == "S"
    return Feature.of(original.view(np.uint8).reshape(len(original), -1) if is_text else original)


class _Table:
    """A table that was read.

    Attributes:
        name: its first file, for messages.
        length: number of rows.
        ids: the columns of ids.
        features: by name.
        left_out: names each column that is not among them.
    """

    def __init__(self, plan: _Plan, options: TableOptions, ranks: NodeRanks) -> None:
        self.name = name = str(plan.tables.paths[0])
        ids = (*plan.ids, *plan.words.values())
        columns_of = {**plan.features, **{column: (column,) for column in ids}}
        given = options.types
        types = {
            feature: next(given[key] for key in (feature, *columns) if key in given)
            for feature, columns in columns_of.items()
            if not given.keys().isdisjoint((feature, *columns))
        }
        found = read_columns(plan.tables, ids, plan.features, types, ranks)
        self.length = sum(found.lengths)
        self.ids = [found.ids[column] for column in plan.ids]
        self.features: dict[str, Feature] = {}
        for feature, column in plan.words.items():
            if feature == _SPLIT:
                self.features |= _masks(found.ids[column], ranks)
            else:
                self.features[feature] = _category(f"{name}: column {column}", found.ids[column], ranks)
        self.left_out: list[str] = []
        for feature, values in found.values.items():
            if values.kind in NO_NUMBERS:
                self.left_out.append(f"{name}: column {feature} is {_NO_NUMBERS[values.kind]}")
            else:
                self.features[feature] = self._feature(feature, values)

    def _feature(self, name: str, values: ValueColumn) -> Feature:
        if values.kind == "time":
            get_logger().warning(
                "%s: times in %s become int64, seconds since 1970 (UTC), rounded down", self.name, name
            )
        if name == "label" and values.rows.ndim == 1:
            return Feature(as_labels(values.rows), "int64")
        if name in _MASKS:
            return Feature.of(as_mask(values.rows))
        return Feature.rows(as_floats(values.rows)) if name == "feat" else Feature.of(values.rows)


def _features_of(
    names: Sequence[str], tables: TextFiles | ParquetFiles, options: TableOptions
) -> dict[str, tuple[str, ...]]:
    """Return the columns of each feature: as the user has named them, matrices by numbered names, and single ones."""
    features = {}
    taken = set()
    for feature, patterns in options.columns.items():
        if feature in OF_IDS:
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
            get_logger().warning(
                "%s: columns %s to %s become the rows of one feature %r",
                tables.paths[0],
                columns[0],
                columns[-1],
                feature,
            )
    return features | {name: (name,) for name in names if name not in taken}


def _check_all_used(options: TableOptions, plans: Sequence[_Plan]) -> None:
    """Check that some table has each column that the user has named."""
    names = {name for plan in plans for name in (*plan.tables.names, *plan.features, *plan.words)}
    for what, wanted in (("types", options.types), ("categories", options.categories)):
        for name in wanted:
            if name not in names:
                raise GraphDataError(f"{what}: no table has a column {name!r} (there are {', '.join(sorted(names))})")
    for feature, patterns in options.columns.items():
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise GraphDataError(
                    f"columns of {feature!r}: no table has a column {pattern!r} (there are {', '.join(sorted(names))})"
                )


def _masks(words: IdColumn, ranks: NodeRanks) -> dict[str, Feature]:
    """Return the masks of a column of the words train, val and test."""
    parts = ranks.rows("reading the split", np.uint8, lambda: _splits(words, ranks))
    return {name: Feature.of(MadeRows(_Is(part), np.bool_, parts)) for part, name in enumerate(_MASKS)}


def _splits(words: IdColumn, ranks: NodeRanks) -> Iterator[Array]:
    """Yield the number of the split of this rank's share of rows."""
    for values, positions, place in words.texts(True, ranks):
        parts = np.array([_SPLITS.get(value.lower(), 4) for value in values.tolist()], np.uint8)[positions]
        if len(parts) and parts.max() == 4:
            row = int((parts == 4).argmax())
            word = values[positions[row]].decode()
            raise GraphDataError(f"{place(row)}: split must be train, val or test, or nothing (got {word!r:.80})")
        yield parts


@dataclass(frozen=True)
class _Is:
    """Compares rows with a number."""

    number: int

    def __call__(self, rows: Array) -> Array:
        return np.asarray(rows == self.number)


def log_categories(title: str, names: Sequence[object]) -> None:
    """Tell in the log which categories a column has, in the order in which they are numbered."""
    listed = ", ".join(map(repr, names[:_LISTED])) + ", ..." * (len(names) > _LISTED)
    get_logger().warning("%s: %d categories are numbered in their order: %s", title, len(names), listed)


def _category(title: str, names: IdColumn, ranks: NodeRanks) -> Feature:
    """Return the number of each name in the order of all names, int64; -1 where there is none."""
    doing = "numbering categories"
    if names.is_text:
        keys = distinct_texts(ranks, doing, [names], blanks=True)
        keys = keys[keys != b""] if len(keys) else np.zeros(0, "S1")
    else:
        keys = np.unique(names.numbers[:]) if len(names) else np.zeros(0, np.int64)
    log_categories(title, [key.decode() if names.is_text else key for key in keys.tolist()])
    if not names.is_text:
        return Feature.of(MadeRows(lambda rows: np.asarray(np.searchsorted(keys, rows)), np.int64, names.numbers))

    def own() -> Iterator[Array]:
        for values, positions, _ in names.texts(True, ranks):
            yield np.where(values == b"", -1, np.searchsorted(keys, values))[positions]

    return Feature.of(ranks.rows(doing, np.int64, own))
