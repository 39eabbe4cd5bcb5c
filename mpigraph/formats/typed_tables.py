"""Read a graph from csv and parquet files: a table of nodes for each type that has one, of edges for each relation.

The names of files and columns tell what they hold.
A folder has ``nodes.csv`` and ``edges.csv``; with types ``nodes_<type>.csv`` and ``edges_<src>__<rel>__<dst>.csv``, or
``edges_<rel>.csv`` where there is one type of nodes. Parquet files are called alike. A table in several files is a
folder of that name, such as ``nodes_paper/``, read in natural order; so are ``nodes-0.csv``, ``nodes-1.csv`` of a graph
without types. Without any such name all files are
one list of edges. A character that no file name can have is written as "%" and two hexadecimal digits, as in URLs:
``edges_person__%2Fpeople%2Fplace_of_birth__place.csv``.

Ids of edges are in the columns src and dst, src_id and dst_id, source and target, or from and to; those of nodes in
id, node_id or <type>_id, or in a first column without a name, as pandas writes its index. Without such a column a node
is known by the number of its row.

**Nodes** have the order of the rows of their table; edges name them by its column of ids, or by the number of the row.
An id that no row has is an error. A type without a table gets its nodes from its edges, in the order of the ids
(``id_maps.py``). Where ids are not 0, 1, ..., n - 1 the node feature "id" has them: int64[n], or uint8[n, width] for
strings, which are their UTF-8 filled up with zeros.

**Columns** become features of their name. Integers, bools and lists of integers keep their type
(``table_columns.py``), floats become float32 except in "time"; times become seconds since 1970; columns ``name_0``,
``name_1``, ... of numbers are one matrix "name" of float32. "feat" is float32 or float16, "label" int64, masks are
bool. "split" has the words train, val (valid, dev) and test, and becomes the three masks. Strings are left out, and
named in ``left_out``, unless they are ``categories``: these are numbered in their order.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

import numpy as np

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.formats.declared import MASKS, feature_of, relation_in
from mpigraph.formats.id_maps import NodeIds, distinct_ids, positions_in
from mpigraph.formats.input_files import FolderFiles, graph_of, in_natural_order
from mpigraph.formats.layout import Layout, ReadOptions, TableOptions
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.table_columns import NO_NUMBERS, IdColumn, read_values
from mpigraph.formats.table_files import Tables, is_table
from mpigraph.formats.text_files import TextForm, Way
from mpigraph.formats.type_columns import Kinds, by_type
from mpigraph.log import get_logger
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Relation
from mpigraph.partition.row_arrays import MadeRows, RowArray
from mpigraph.partition.source import Feature, GraphSource

_ID_COLUMNS = ("src", "dst", "id")  # in TableOptions.columns
_SPLIT = "split"
_SPLITS = {
    **dict.fromkeys(("train", "training"), "train_mask"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val_mask"),
    **dict.fromkeys(("test", "testing"), "test_mask"),
    **dict.fromkeys(("none", "unlabeled", "unlabelled"), ""),
}
_NUMBERED = re.compile(r"(.*\D)(\d+)")
_NO_NUMBERS = {"string": "text (--categories COLUMN numbers it)", "other": "no numbers", "none": "empty"}
_INDEX = ("", "Unnamed: 0", "__index_level_0__")  # names of the index that pandas writes beside the columns
_LISTED = 20  # categories that a line of the log names


class _Table:
    """A table with a row for each node of a type, or for each edge of a relation.

    Args:
        owner: the node type, or the relation.
        tables: its files.
        ids: of nodes the column by whose values edges name them, or none: by the number of the row, from 0; of edges
            those of sources and destinations.
        options: the user's words about columns.

    Attributes:
        owner: as given.
        title: its first file.
        tables: as given.
        words: feature -> column of categories, or of the split.
        values: feature -> columns of numbers.
        ids, features, kinds, left_out: what :meth:`read` reads: columns of ids, features, types of the rows, if a
            column has them, and words about columns that are no features.
    """

    def __init__(self, owner: str | Relation, tables: Tables, ids: Sequence[str], options: TableOptions) -> None:
        self.owner = owner
        self.title = str(tables.paths[0])
        self.tables = tables
        self.ids = [IdColumn(tables, column) for column in ids]
        self.features: dict[str, Feature] = {}
        self.kinds: Kinds | None = None
        self.left_out: list[str] = []
        self._options = options
        self._kind = options.node_type if isinstance(owner, str) else options.edge_type
        if self._kind is not None and self._kind not in tables.names:
            raise GraphDataError(f"{self.title}: has no column {self._kind!r} (got {', '.join(tables.names)})")
        unnamed = [name for name in tables.names if name in _INDEX and name not in ids]
        if unnamed:
            get_logger().warning("%s: column %r, an index of pandas, is left out", self.title, unnamed[0])
        features = _features_of([name for name in tables.names if name not in (*ids, *_INDEX, self._kind)], options)
        as_words = {_SPLIT, *options.categories}
        self.words = {name: its[0] for name, its in features.items() if as_words & {name, its[0]}}
        self.values = {name: its for name, its in features.items() if name not in self.words}

    @collective("ranks")
    def read(self, ranks: ReadingRanks) -> None:
        """Read the columns. Raises GraphDataError: they cannot be read; names the file, and the row."""
        tables, types, fill = self.tables, self._options.types, self._options.fill
        ids = (*(ids.name for ids in self.ids), *self.words.values(), *filter(None, [self._kind]))
        ways = {column: Way(types.get(column, ""), is_ids=True) for column in ids}
        for feature, columns in self.values.items():
            dtype = next((types[name] for name in (feature, *columns) if name in types), "")
            for column in columns:
                filled = fill.get(column, fill.get(feature, ""))
                ways[column] = Way(dtype, filled, is_wide=feature in ("time", "label"))
        tables.parse(ways)
        for feature, column in self.words.items():
            if feature == _SPLIT:
                self.features |= _masks(IdColumn(tables, column), ranks)
            else:
                names = _category(IdColumn(tables, column), ranks)
                self.features[feature] = Feature.of(names.codes)._replace(categories=tuple(names.names))
        self.kinds = None if self._kind is None else _category(IdColumn(tables, self._kind), ranks)
        for feature, values in read_values(tables, self._matrices(), ways, ranks).items():
            rows = values.rows
            if values.kind in NO_NUMBERS:
                first = f": the first is {values.place}" if values.place else ""
                self.left_out.append(f"{self.title}: column {feature} is {_NO_NUMBERS[values.kind]}{first}")
                continue
            if values.kind == "time":
                text = "%s: times in %s become %s, seconds since 1970 (UTC)"
                get_logger().warning(text, self.title, feature, rows.dtype)
            dtype = ways[self.values.get(feature, (feature,))[0]].dtype
            is_plain = feature == "label" and (rows.ndim > 1 or dtype.startswith("float"))
            self.features[feature] = Feature.of(rows) if is_plain else feature_of(feature, rows)

    def _matrices(self) -> dict[str, tuple[str, ...]]:
        """Return the columns of features of numbers; those with numbered names are one, if all of them are numbers."""
        result: dict[str, tuple[str, ...]] = {}
        for feature, columns in self.values.items():
            kinds = {self.tables.kinds[column] for column in columns}
            result[feature] = columns
            if len(columns) == 1 or feature in self._options.columns:
                continue
            if kinds <= {"integer", "float", "bool", "none"}:
                text = "%s: columns %s to %s become the rows of one feature %r"
                get_logger().warning(text, self.title, columns[0], columns[-1], feature)
            else:
                del result[feature]
                result |= {column: (column,) for column in columns}
        return result


@collective("ranks")
def _graph_of_tables(tables: Sequence[_Table], ranks: ReadingRanks, num_nodes: Mapping[str, int]) -> GraphSource:
    """Number the nodes of tables by their ids, and return the graph.

    ``num_nodes`` has the number of nodes of types without a table, whose ids are then the numbers of nodes.

    Raises GraphDataError: tables contradict one another; names the file, and the row.
    """
    nodes = {table.owner: table for table in tables if isinstance(table.owner, str)}
    edges = {table.owner: table for table in tables if not isinstance(table.owner, str)}
    ids = {}
    node_feats = {}
    for ntype in sorted({*nodes, *(end for relation in edges for end in relation[::2])}):
        ends = [table.ids[end] for relation, table in edges.items() for end in (0, 1) if relation[2 * end] == ntype]
        table = nodes.get(ntype)
        count = num_nodes.get(ntype)
        if table is not None:
            if count is not None and count != len(table.tables):
                raise GraphDataError(f"{table.title}: has {len(table.tables)} rows, but there are to be {count} nodes")
            count = None if table.ids else len(table.tables)
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
        left_out=tuple(thing for table in tables for thing in table.left_out),
    )


def _features_of(names: Sequence[str], options: TableOptions) -> dict[str, tuple[str, ...]]:
    """Return the columns of each feature: as the user has named them, matrices by numbered names, and single ones."""
    features = {}
    taken = set()
    for feature, patterns in options.columns.items():
        columns = [name for pattern in patterns for name in names if fnmatchcase(name, pattern) and name not in taken]
        if columns and feature not in _ID_COLUMNS:
            features[feature] = tuple(columns)
            taken |= set(columns)
    matrices: dict[str, dict[int, str]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is not None and name not in taken and name not in options.categories:
            matrices.setdefault(match[1].rstrip("_-. "), {})[int(match[2])] = name
    for feature, by_number in matrices.items():
        numbers = sorted(by_number)
        is_row = len(numbers) > 1 and numbers in (list(range(len(numbers))), list(range(1, len(numbers) + 1)))
        if is_row and feature and feature not in names and feature not in features:
            features[feature] = tuple(by_number[number] for number in numbers)
            taken |= set(features[feature])
    return features | {name: (name,) for name in names if name not in taken}


def _check_all_used(options: TableOptions, tables: Sequence[_Table]) -> None:
    """Check that some table has each column that the user has named."""
    names = {name for table in tables for name in (*table.tables.names, *table.values, *table.words)}
    values = {name for table in tables for feature, its in table.values.items() for name in (feature, *its)}
    asked = [("types", name, names) for name in options.types] + [("categories", c, names) for c in options.categories]
    asked += [("fill", name, values) for name in options.fill]
    asked += [(f"columns of {feature!r}", glob, names) for feature, its in options.columns.items() for glob in its]
    for what, pattern, known in asked:
        if pattern not in known and not (what.startswith("columns") and any(fnmatchcase(n, pattern) for n in known)):
            column = "column of numbers" if what == "fill" else "column"
            raise GraphDataError(f"{what}: no table has a {column} {pattern!r} (there are {', '.join(sorted(known))})")


def _masks(words: IdColumn, ranks: ReadingRanks) -> dict[str, Feature]:
    known, codes, _ = _numbered(words, ranks)
    masks = [_SPLITS.get(word.lower(), "unknown") for word in known]
    if "unknown" in masks:
        word = known[masks.index("unknown")]
        row = int((np.asarray(codes[:]) == known.index(word)).argmax())
        raise GraphDataError(f"{words.place(row)}: split must be train, val or test, or nothing (got {word!r:.80})")
    of_codes = {name: np.array([mask == name for mask in [*masks, ""]]) for name in MASKS}  # the last: of no word, -1
    return {name: Feature.of(MadeRows(its.__getitem__, np.bool_, codes)) for name, its in of_codes.items()}


def _category(names: IdColumn, ranks: ReadingRanks) -> Kinds:
    """Number names; a line of the log says which there are, and how many rows have none."""
    title = f"{names.tables.paths[0]}: column {names.name}"
    known, codes, missing = _numbered(names, ranks)
    listed = ", ".join(map(repr, known[:_LISTED])) + ", ..." * (len(known) > _LISTED)
    none = f"; {missing} of {len(names)} rows have none: -1" if missing else ""
    get_logger().warning("%s: %d categories are numbered in their order: %s%s", title, len(known), listed, none)
    return Kinds(title, known, codes)


def _numbered(names: IdColumn, ranks: ReadingRanks) -> tuple[list[str], RowArray, int]:
    """Return all names in their order, the number of that of each row (int64, -1: none), and how many have none."""
    doing = "numbering categories"
    keys = distinct_ids(ranks, doing, [names], names.is_text, blanks=True)
    known = [key.decode() for key in keys.tolist()] if names.is_text else [*map(str, keys.tolist())]
    if known[:1] == [""]:
        known, keys = known[1:], keys[1:]
    missing = []

    def own() -> Iterator[tuple[int, Array]]:
        for first, values, positions, _ in names.chunks(ranks, names.is_text, blanks=True):
            codes = positions_in(keys, values)[positions]
            missing.append(int((codes < 0).sum()))
            yield first, codes

    codes = ranks.rows(doing, len(names), np.int64, own)
    return known, codes, ranks.exchange.sum_of(sum(missing))


_NAME = re.compile(r"(nodes|edges)(?:[_.](.+)|-\d+)?", re.IGNORECASE)
_ENDS = (("src", "dst"), ("src_id", "dst_id"), ("source", "target"), ("from", "to"))
_IDS = ("id", "node_id", "{ntype}_id", "")
"""Columns of ids; "" is the index that pandas writes in front."""

_Tables: TypeAlias = dict[tuple[str, str], list[Path]]
"""Files of each table, by "nodes" or "edges" and the name of a type ("" if none)."""


def _is_at(path: Path) -> bool:
    """Return whether a path is a csv or parquet file, or a directory with such files or with folders of tables."""
    folders = [entry for entry in path.iterdir() if entry.is_dir()] if path.is_dir() else []
    return bool(_files_of(path)) or any(_NAME.fullmatch(_stem(entry)) and _files_of(entry) for entry in folders)


@collective("ranks")
def _read(path: Path, options: ReadOptions) -> GraphSource:
    tables = _tables_in(path, options.nodes)
    for (kind, name), files in tables.items():
        if len(files) > 1:
            get_logger().warning("%s: %s%s of %s, in this order", path, kind, name and f" {name!r}", _listed(files))
    node_files = {name: files for (kind, name), files in tables.items() if kind == "nodes"}
    edge_files = {name: files for (kind, name), files in tables.items() if kind == "edges"}
    if not edge_files:
        raise GraphDataError(f"{path}: has files of nodes, but none of edges (edges*.csv, edges*.parquet)")
    only = (next(iter(node_files), "") or DEFAULT_NTYPE) if len(node_files) < 2 else None
    written = {name: _relation(path, name, only, [*node_files]) for name in edge_files}
    _check_numbers(path, node_files, written.values())
    relations: dict[str, Relation] = {n: (unquote(s), unquote(r), unquote(d)) for n, (s, r, d) in written.items()}
    if options.num_nodes is not None and relations != {"": DEFAULT_ETYPE}:
        raise GraphDataError(f"{path}: the number of nodes can be given only for a graph without types")
    columns = options.tables
    if columns.node_type is not None and not node_files:
        raise GraphDataError(f"types in column {columns.node_type!r} need a table of nodes")
    of_nodes = [_node_table(unquote(name) or DEFAULT_NTYPE, files, options) for name, files in node_files.items()]
    of_edges = [_edge_table(relations[name], files, options) for name, files in edge_files.items()]
    _check_all_used(columns, [*of_nodes, *of_edges])  # before what takes long
    for table in (*of_nodes, *of_edges):
        table.read(options.ranks)
    counts = {} if options.num_nodes is None else {DEFAULT_NTYPE: options.num_nodes}
    source = _graph_of_tables([*of_nodes, *of_edges], options.ranks, counts)
    if columns.node_type is not None or columns.edge_type is not None:
        source = by_type(source, of_nodes[0].kinds if of_nodes else None, of_edges[-1].kinds)
    if path.is_dir():
        folder = FolderFiles(path)
        for file in (file for files in tables.values() for file in files):
            folder.read(file)
        no_tables = (f"{name}, by whose name it has neither nodes nor edges" for name in folder.left_out())
        source = replace(source, left_out=(*source.left_out, *no_tables))
    return source


def _tables_in(path: Path, nodes: Sequence[Path]) -> _Tables:
    """Return the files of each table; ``nodes`` are further ones of nodes."""
    tables: _Tables = {}
    entries = [path] if path.is_file() else in_natural_order(path.iterdir())
    for entry in entries:
        files = _files_of(entry)
        match = _NAME.fullmatch(_stem(entry)) if files and path.is_dir() else None
        if match is not None:
            tables.setdefault((match[1].lower(), match[2] or ""), []).extend(files)
    if not tables:
        tables["edges", ""] = [*filter(is_table, entries)]
    for file in nodes:
        match = _NAME.fullmatch(_stem(file))
        name = match[2] if match is not None and match[1].lower() == "nodes" else None
        tables.setdefault(("nodes", name or ""), []).extend(_files_of(file) or [file])
    return tables


def _files_of(path: Path) -> list[Path]:
    """Return a table's files: the file itself, or those in a directory, in their natural order."""
    return list(filter(is_table, in_natural_order(path.iterdir()) if path.is_dir() else [path]))


def _stem(path: Path) -> str:
    """Return a name without the endings of tables."""
    return re.sub(r"(\.(csv|tsv|txt|parquet|pq))?(\.(gz|bz2))?$", "", path.name, flags=re.IGNORECASE)


def _listed(paths: Iterable[Path]) -> str:
    names = [path.name for path in paths]
    return ", ".join(names if len(names) <= 8 else [*names[:3], "...", names[-1]])


def _relation(path: Path, name: str, only: str | None, ntypes: Sequence[str]) -> Relation:
    fields = relation_in(name, ntypes, f"{path}: edges_{name}", "write %5F for _") or name.split("__")
    if len(fields) == 3 and all(fields):
        return fields[0], fields[1], fields[2]
    if only is None or (name and len(fields) > 1):
        form = "edges_<src>__<rel>__<dst>"
        raise GraphDataError(f"{path}: edges of several types of nodes are in files {form} (got edges_{name})")
    return only, name or DEFAULT_ETYPE[1], only


def _check_numbers(path: Path, node_files: Iterable[str], relations: Iterable[Relation]) -> None:
    """Check that no piece of a table is taken for a type: a number at the end belongs to the name."""
    with_tables, in_edges = set(node_files), {end for relation in relations for end in relation[::2]}
    for name in sorted(with_tables ^ in_edges if with_tables else ()):
        match = re.fullmatch(r"(.+)-\d+", name)
        if match is not None:
            raise GraphDataError(
                f"{path}: is {name} the name of a type, or a piece of {match[1]}? Several files of a table lie in a "
                f"folder, such as nodes_{match[1]}; in a name write %2D for -"
            )


def _node_table(ntype: str, files: Sequence[Path], read: ReadOptions) -> _Table:
    options = read.tables
    text_form = TextForm(headless=options.no_header, first=("id",), decimal=options.decimal)
    tables = Tables(files, read.ranks, text_form)
    known = [*options.columns.get("id", ()), *(name.format(ntype=ntype) for name in _IDS)]
    column = next((name for name in known if name in tables.names), None)
    if tables.is_text and not options.no_header:
        numbers = [name for name in tables.names if re.fullmatch(r"[+-]?[0-9.]+([eE][+-]?[0-9]+)?", name)]
        if tables.no_header or (column is None and numbers):
            line = ", ".join(tables.no_header or tables.names)
            form = "a header, a first line with names of columns; --no-header: id, column1, column2 ..."
            raise GraphDataError(f"{files[0]}: needs {form} (got {line:.80})")
    if column is None:
        text = "%s: has no column of ids (%s): a node is known by the number of its row, from 0"
        get_logger().warning(text, files[0], ", ".join(filter(None, known)))
    return _Table(ntype, tables, [] if column is None else [column], options)


def _edge_table(relation: Relation, files: Sequence[Path], read: ReadOptions) -> _Table:
    options = read.tables
    tables = Tables(files, read.ranks, TextForm(headless=options.no_header, decimal=options.decimal))
    names = tables.names
    fields = [] if options.no_header else tables.no_header
    if len(fields) == 3 and fields[2].lstrip("-").isdecimal():
        raise GraphDataError(
            f"{files[0]}: three integers in a line can be an edge with a number or a triple (head, relation, tail): "
            f"write a header such as src,dst,time or src,rel,dst, or say --no-header (got {', '.join(fields)})"
        )
    named = zip(options.columns.get("src", ()), options.columns.get("dst", ()), strict=False)
    for pair in [*named, *_ENDS]:
        if all(end in names for end in pair):
            return _Table(relation, tables, pair, options)
    raise GraphDataError(
        f"{files[0]}: needs columns src and dst with the ids of nodes (or source and target; or say "
        f"--columns src=NAME --columns dst=NAME, or --no-header; got {', '.join(names)})"
    )


TABLES = Layout("tables", "csv or parquet files", _is_at, _read, ("num_nodes", "nodes", "tables"))
