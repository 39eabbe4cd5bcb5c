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
(``table_files.py``), floats become float32 except in "time"; times become seconds since 1970; columns ``name_0``,
``name_1``, ... of numbers are one matrix "name" of float32. "feat" is float32 or float16, "label" int64, masks are
bool. "split" has the words train, val (valid, dev) and test, and becomes the three masks. Strings are left out, and
named in ``left_out``, unless they are ``categories``: these are numbered in their order.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.formats.arrow_values import arrow
from mpigraph.formats.id_maps import IdColumn, NodeIds
from mpigraph.formats.input_files import FolderFiles, graph_of, in_natural_order
from mpigraph.formats.layout import MASKS, Layout, ReadOptions, TableOptions, feature_of, relation_in
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.table_files import Tables, is_table, read_values
from mpigraph.formats.text_files import TextForm, Way
from mpigraph.log import get_logger
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Relation
from mpigraph.partition.row_arrays import RowArray, made_rows, reordered
from mpigraph.partition.source import EdgeChunk, Feature, GraphSource

_ID_COLUMNS = ("src", "dst", "id")  # in TableOptions.columns
_SPLIT = "split"
_SPLITS = {
    **dict.fromkeys(("train", "training"), "train_mask"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val_mask"),
    **dict.fromkeys(("test", "testing"), "test_mask"),
    **dict.fromkeys(("none", "unlabeled", "unlabelled"), ""),
}
_NUMBERED = re.compile(r"(.*\D)(\d+)")
_INDEX = ("", "Unnamed: 0", "__index_level_0__")  # names of the index that pandas writes beside the columns
_LISTED = 20  # categories that a line of the log names


_Kinds: TypeAlias = tuple[list[str], RowArray]
"""The names of types, and for each row the number of its own."""


class _Table:
    """A table with a row for each node of a type, or for each edge of a relation.

    Args:
        tables: its files.
        ids: of nodes the column by whose values edges name them, or none: by the number of the row, from 0; of edges
            those of sources and destinations.
        kind: the column with the types of the rows, if any.
        options: the user's words about columns.

    Attributes:
        tables: as given.
        words: feature -> column of categories, or of the split.
        values: feature -> columns of numbers.
        ids, features, kinds, left_out: what :meth:`read` reads: columns of ids, features, types of the rows, if a
            column has them, and words about columns that are no features.
    """

    def __init__(self, tables: Tables, ids: Sequence[str], kind: str | None, options: TableOptions) -> None:
        self.tables = tables
        self.ids = [IdColumn(tables, column) for column in ids]
        self.features: dict[str, Feature] = {}
        self.kinds: _Kinds | None = None
        self.left_out: list[str] = []
        self._options = options
        self._kind = kind
        if kind is not None and kind not in tables.names:
            raise GraphDataError(f"{tables.paths[0]}: has no column {kind!r} (got {', '.join(tables.names)})")
        unnamed = [name for name in tables.names if name in _INDEX and name not in ids]
        if unnamed:
            get_logger().warning("%s: column %r, an index of pandas, is left out", tables.paths[0], unnamed[0])
        features = _features_of([name for name in tables.names if name not in (*ids, *_INDEX, kind)], options)
        as_words = {_SPLIT, *options.categories}
        self.words = {name: its[0] for name, its in features.items() if as_words & {name, its[0]}}
        self.values = {name: its for name, its in features.items() if name not in self.words}

    @collective("ranks")
    def read(self) -> None:
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
            names, codes, missing = _numbered(tables, column)
            if feature == _SPLIT:
                self.features |= _masks(tables, column, names, codes)
                continue
            self.features[feature] = Feature.of(codes)._replace(categories=tuple(names))
            listed = ", ".join(map(repr, names[:_LISTED])) + ", ..." * (len(names) > _LISTED)
            none = f"; {missing} of {len(tables)} rows have none: -1" if missing else ""
            text = "%s: column %s: %d categories are numbered in their order: %s%s"
            get_logger().warning(text, tables.paths[0], column, len(names), listed, none)
        if self._kind is not None:
            names, codes, missing = _numbered(tables, self._kind)
            if missing:
                raise GraphDataError(f"{tables.paths[0]}: column {self._kind}: {missing} rows have no type")
            self.kinds = names, codes
        read, self.left_out = read_values(tables, self._matrices())
        for feature, rows in read.items():
            dtype = ways[self.values.get(feature, (feature,))[0]].dtype
            is_plain = feature == "label" and (rows.ndim > 1 or dtype.startswith("float"))
            self.features[feature] = Feature.of(rows) if is_plain else feature_of(feature, rows)

    def _matrices(self) -> dict[str, tuple[str, ...]]:
        """Return the columns of features of numbers; those with numbered names are one, if all of them are numbers."""
        result: dict[str, tuple[str, ...]] = {}
        for feature, columns in self.values.items():
            are_meant = len(columns) == 1 or feature in self._options.columns
            if are_meant or {self.tables.kinds[column] for column in columns} <= {"integer", "float", "bool", "none"}:
                result[feature] = columns
            else:
                result |= {column: (column,) for column in columns}
        return result


@collective("ranks")
def _graph_of_tables(
    nodes: Mapping[str, _Table], edges: Mapping[Relation, _Table], num_nodes: int | None, ranks: ReadingRanks
) -> GraphSource:
    """Number the nodes of tables by their ids, and return the graph.

    ``num_nodes`` is the number of nodes of a type without a table, whose ids are then the numbers of nodes.

    Raises GraphDataError: tables contradict one another; names the file, and the row.
    """
    ids = {}
    node_feats = {}
    for ntype in sorted({*nodes, *(end for relation in edges for end in relation[::2])}):
        ends = [table.ids[end] for relation, table in edges.items() for end in (0, 1) if relation[2 * end] == ntype]
        table, table_ids, count = nodes.get(ntype), None, num_nodes
        if table is not None:
            if num_nodes not in (None, len(table.tables)):
                what = f"{len(table.tables)} rows, but there are to be {num_nodes} nodes"
                raise GraphDataError(f"{table.tables.paths[0]}: has {what}")
            table_ids, count = (table.ids[0], None) if table.ids else (None, len(table.tables))
        ids[ntype] = NodeIds(repr(ntype), table_ids, ends, ranks, count)
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
    )


def _by_type(source: GraphSource, nodes: _Kinds | None, edges: _Kinds | None) -> GraphSource:
    """Return a graph of one type with the types that columns name; the node feature "id" keeps the ids of all nodes.

    Takes about 60 bytes an edge on each rank. Raises GraphDataError: a row has no type, or the graph has types already.
    """
    if not source.schema.is_homogeneous:
        raise GraphDataError(f"types in a column are for one table of nodes and one of edges (got {source.schema})")
    (ntype,) = source.schema.ntypes
    ntypes, of_nodes = nodes or ([ntype], np.zeros(source.num_nodes[0], np.int64))
    names, of_edges = edges or ([DEFAULT_ETYPE[1]], np.zeros(source.edge_counts[0], np.int64))
    of_nodes, of_edges = np.asarray(of_nodes[:]), np.asarray(of_edges[:])
    src, dst = (np.asarray(end[:], np.int64) for end in source.edges[0])
    source.check_edges(EdgeChunk(0, np.zeros(1, np.int64), src, dst))
    order = np.argsort(of_nodes, kind="stable")
    bounds = np.searchsorted(of_nodes[order], np.arange(len(ntypes) + 1))
    local = np.empty(len(order), np.int64)
    local[order] = np.arange(len(order)) - bounds[of_nodes[order]]
    node_feats = {"id": Feature.of(np.arange(len(order))), **source.node_feats.get(ntype, {})}
    of_type = {name: order[begin:end] for name, begin, end in zip(ntypes, bounds, bounds[1:], strict=False)}
    keys = (of_nodes[src] * len(names) + of_edges) * len(ntypes) + of_nodes[dst]
    rising = np.argsort(keys, kind="stable")
    distinct, begins = np.unique(keys[rising], return_index=True)
    rows_of: dict[Relation, I64] = {}
    for key, rows in zip(distinct.tolist(), np.split(rising, begins[1:]), strict=False):
        src_type = ntypes[key // len(ntypes) // len(names)]
        rows_of[src_type, names[key // len(ntypes) % len(names)], ntypes[key % len(ntypes)]] = rows
    edge_feats = next(iter(source.edge_feats.values()), {})
    return graph_of(
        {name: len(rows) for name, rows in of_type.items()},
        {relation: (local[src[rows]], local[dst[rows]]) for relation, rows in rows_of.items()},
        {name: {key: _of_rows(feat, rows) for key, feat in node_feats.items()} for name, rows in of_type.items()},
        {rel: {key: _of_rows(feat, rows) for key, feat in edge_feats.items()} for rel, rows in rows_of.items()},
    )


def _of_rows(feature: Feature, rows: I64) -> Feature:
    return feature._replace(values=reordered(feature.values, rows))


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
    numbers = {name for table in tables for feature, its in table.values.items() for name in (feature, *its)}
    globs = {f"columns of {feature!r}": its for feature, its in options.columns.items()}
    asked = {"types": options.types, "categories": options.categories, "fill": options.fill} | globs
    for what, glob in ((what, glob) for what, its in asked.items() for glob in its):
        known = numbers if what == "fill" else names
        if glob not in known and not (what in globs and any(fnmatchcase(name, glob) for name in known)):
            column = "column of numbers" if what == "fill" else "column"
            there = f"there are {', '.join(sorted(known))}"
            advice = "; give the option once for each column" if "," in glob else ""
            raise GraphDataError(f"{what}: no table has a {column} {glob!r} ({there}{advice})")


def _masks(tables: Tables, column: str, words: Sequence[str], codes: RowArray) -> dict[str, Feature]:
    masks = [_SPLITS.get(word.lower(), "unknown") for word in words]
    if "unknown" in masks:
        number = masks.index("unknown")
        place = tables.place(column, int((np.asarray(codes[:]) == number).argmax()))
        raise GraphDataError(f"{place}: split must be train, val or test, or nothing (got {words[number]!r:.80})")
    of_codes = {name: np.array([mask == name for mask in [*masks, ""]]) for name in MASKS}  # the last: of no word, -1
    return {name: Feature.of(made_rows(its.__getitem__, np.bool_, codes)) for name, its in of_codes.items()}


@collective("ranks")
def _numbered(tables: Tables, column: str) -> tuple[list[str], RowArray, int]:
    """Return all names in their order, the number of that of each row (int64, -1: none), and how many have none."""
    compute = arrow().compute

    def counts_in(number: int) -> list[tuple[str | int | None, int]]:
        counts = compute.value_counts(tables.columns(tables.groups[number], [column])[0]).to_pylist()
        return [(its["values"], its["counts"]) for its in counts]

    counts = Counter[Any]()
    for of_group in tables.ranks.exchange.map("numbering categories", len(tables.groups), counts_in):
        for name, count in of_group:
            counts[name] += count
    missing = counts.pop("", 0) + counts.pop(None, 0)
    names = arrow().array(sorted(counts), tables.types[column])

    def codes_in(words: Any) -> Array:
        codes = compute.index_in(words, value_set=names).fill_null(-1)
        return np.asarray(codes.to_numpy(zero_copy_only=False), np.int64)

    return [*map(str, names.to_pylist())], tables.rows({column: codes_in}), missing


_NAME = re.compile(r"(nodes|edges)(?:[_.](.+)|-\d+)?", re.IGNORECASE)
_ENDS = (("src", "dst"), ("src_id", "dst_id"), ("source", "target"), ("from", "to"))
_IDS = ("id", "node_id", "{ntype}_id", "")
"""Columns of ids; "" is the index that pandas writes in front."""


@collective("ranks")
def _read(path: Path, options: ReadOptions) -> GraphSource:
    of_files = _tables_in(path, options.nodes)
    node_files, edge_files = (
        {name: files for (of, name), files in of_files.items() if of == kind} for kind in ("nodes", "edges")
    )
    if not edge_files:
        raise GraphDataError(f"{path}: has files of nodes, but none of edges (edges*.csv, edges*.parquet)")
    only = (next(iter(node_files), "") or DEFAULT_NTYPE) if len(node_files) < 2 else None
    written = {name: _relation(path, name, only, [*node_files]) for name in edge_files}
    _check_numbers(path, node_files, written.values())
    relations: dict[str, Relation] = {n: (unquote(s), unquote(r), unquote(d)) for n, (s, r, d) in written.items()}
    if options.num_nodes is not None and relations != {"": DEFAULT_ETYPE}:
        raise GraphDataError(f"{path}: the number of nodes can be given only for a graph without types")
    kinds = options.tables.node_type, options.tables.edge_type
    if kinds[0] is not None and not node_files:
        raise GraphDataError(f"types in column {kinds[0]!r} need a table of nodes")
    names = {name: unquote(name) or DEFAULT_NTYPE for name in node_files}
    nodes = {names[name]: _node_table(names[name], files, options) for name, files in node_files.items()}
    edges = {relations[name]: _edge_table(files, options) for name, files in edge_files.items()}
    tables = [*nodes.values(), *edges.values()]
    _check_all_used(options.tables, tables)  # before what takes long
    for table in tables:
        table.read()
    source = _graph_of_tables(nodes, edges, options.num_nodes, options.ranks)
    if any(kinds):
        source = _by_type(source, tables[0].kinds if nodes else None, tables[-1].kinds)
    left_out = [thing for table in tables for thing in table.left_out]
    if path.is_dir():
        folder = FolderFiles(path)
        for file in chain(*of_files.values()):
            folder.read(file)
        left_out += [f"{name}, by whose name it has neither nodes nor edges" for name in folder.left_out()]
    return replace(source, left_out=tuple(left_out))


def _tables_in(path: Path, nodes: Sequence[Path]) -> dict[tuple[str, str], list[Path]]:
    """Return the files of each table, by "nodes" or "edges" and its name; ``nodes`` are further ones of nodes."""
    tables: dict[tuple[str, str], list[Path]] = {}
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


def _relation(path: Path, name: str, only: str | None, ntypes: Sequence[str]) -> Relation:
    remedy = "write %5F for _"
    relation = relation_in(name, "__", ntypes, f"{path}: edges", remedy) or relation_in(name, "__", None, path)
    if relation is not None:
        return relation
    if only is None or "__" in name:
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
    return _Table(tables, [] if column is None else [column], options.node_type, options)


def _edge_table(files: Sequence[Path], read: ReadOptions) -> _Table:
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
            return _Table(tables, pair, options.edge_type, options)
    raise GraphDataError(
        f"{files[0]}: needs columns src and dst with the ids of nodes (or source and target; or say "
        f"--columns src=NAME --columns dst=NAME, or --no-header; got {', '.join(names)})"
    )


TABLES = Layout("tables", "csv or parquet files", lambda path: any(_tables_in(path, ()).values()), _read)
