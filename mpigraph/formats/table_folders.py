"""Read a graph from csv and parquet files. The names of files and columns tell what they hold.

A folder has ``nodes.csv`` and ``edges.csv``; with types ``nodes_<type>.csv`` and ``edges_<src>__<rel>__<dst>.csv``, or
``edges_<rel>.csv`` where there is one type of nodes. Parquet files are called alike. A table in several files is a
folder of that name, or its files end in numbers, ``nodes_paper-0.csv``, ``nodes_paper-1.csv``, read in natural order.
The number belongs to the name where the names of edges have it in front of "__". Without any such name all files are
one list of edges. A character that no file name can have is written as "%" and two hexadecimal digits, as in URLs:
``edges_person__%2Fpeople%2Fplace_of_birth__place.csv``.

Ids of edges are in the columns src and dst, src_id and dst_id, source and target, or from and to; those of nodes in
id, node_id or <type>_id, or in a first column without a name, as pandas writes its index. Without such a column a node
is known by the number of its row.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.formats.input_files import FolderFiles, in_natural_order
from mpigraph.formats.layout import Layout, ReadOptions
from mpigraph.formats.table_files import TextFiles, is_table, open_tables
from mpigraph.formats.typed_tables import EdgeTable, NodeTable, TableOptions, read_typed_tables
from mpigraph.log import get_logger
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Relation, relations_in
from mpigraph.partition.source import GraphSource

_NAME = re.compile(r"(nodes|edges)(?:[_.](.+)|-\d+)?", re.IGNORECASE)
_PIECE = re.compile(r"(.+)-(\d+)")
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
    tables = _tables_in(path)
    for file in options.nodes:
        match = _NAME.fullmatch(_stem(file))
        name = match[2] if match is not None and match[1].lower() == "nodes" else None
        tables.setdefault(("nodes", name or ""), []).extend(_files_of(file) or [file])
    tables = _with_pieces_joined(path, tables)
    node_files = {name: files for (kind, name), files in tables.items() if kind == "nodes"}
    edge_files = {name: files for (kind, name), files in tables.items() if kind == "edges"}
    if not edge_files:
        raise GraphDataError(f"{path}: has files of nodes, but none of edges (edges*.csv, edges*.parquet)")
    only = DEFAULT_NTYPE if not node_files or set(node_files) == {""} else None
    if len(node_files) == 1 and only is None:
        only = unquote(next(iter(node_files)))
    relations = {name: _relation(path, name, only, [*node_files]) for name in edge_files}
    node_tables = [
        _node_table(unquote(name) or DEFAULT_NTYPE, files, options.tables) for name, files in node_files.items()
    ]
    edge_tables = [_edge_table(relations[name], files, options.tables) for name, files in edge_files.items()]
    if options.num_nodes is not None and relations != {"": DEFAULT_ETYPE}:
        raise GraphDataError(f"{path}: the number of nodes can be given only for a graph without types")
    counts = {} if options.num_nodes is None else {DEFAULT_NTYPE: options.num_nodes}
    source = read_typed_tables(node_tables, edge_tables, options.ranks, options.tables, counts)
    if path.is_dir():
        folder = FolderFiles(path)
        for file in (file for files in tables.values() for file in files):
            folder.read(file)
        no_tables = (f"{name}, by whose name it has neither nodes nor edges" for name in folder.left_out())
        source = replace(source, left_out=(*source.left_out, *no_tables))
    return source


def _tables_in(path: Path) -> _Tables:
    """Return the files of each table."""
    tables: _Tables = {}
    unnamed: list[Path] = []
    entries = [path] if path.is_file() else in_natural_order(path.iterdir())
    for entry in entries:
        files = _files_of(entry)
        match = _NAME.fullmatch(_stem(entry)) if files and path.is_dir() else None
        if match is not None:
            tables.setdefault((match[1].lower(), match[2] or ""), []).extend(files)
        elif is_table(entry):
            unnamed.append(entry)
    if not tables:
        tables[("edges", "")] = unnamed
    return tables


def _with_pieces_joined(path: Path, tables: _Tables) -> _Tables:
    """Join tables in pieces, ``nodes_paper-0`` and ``nodes_paper-1``, unless types have such names.

    The names of edges tell: ``edges_sars-1__to__...`` has a type "sars-1", ``edges_paper__cites__...`` a type "paper".
    """
    edges = [name for kind, name in tables if kind == "edges"]
    pieces = {key: (key[0], match[1], int(match[2])) for key in tables if (match := _PIECE.fullmatch(key[1]))}
    joined: _Tables = {}
    for key, files in tables.items():
        kind, whole, number = pieces.get(key, (*key, 0))
        end = whole.rpartition("__")[2] if kind == "edges" else whole  # the type whose name may end in the number
        if key in pieces and not any(re.match(rf"{re.escape(end)}-\d+__", name) for name in edges):
            is_type = ("nodes", end) in tables or any(f"__{end}__" in f"__{name}__" for name in edges)
            numbers = sorted(its[2] for its in pieces.values() if its[:2] == (kind, whole))
            if not is_type and numbers != list(range(len(numbers))):
                raise GraphDataError(
                    f"{path}: is {end}-{number} in {kind}_{key[1]} a name, or a piece of {end}? Number pieces from 0, "
                    f"or put them into a folder {kind}_{whole}; in a name write %2D for -"
                )
            key = kind, whole
        joined.setdefault(key, []).extend(files)
    for (kind, name), files in joined.items():
        if len(files) > 1:
            get_logger().warning("%s: %s%s of %s, in this order", path, kind, name and f" {name!r}", _listed(files))
    return joined


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
    relations = relations_in(name, ntypes, "__")  # a name may have "__" in it
    if len(relations) > 1:
        readings = " and as ".join(map(str, relations))
        raise GraphDataError(f"{path}: edges_{name} can be read as {readings}: write %5F for _")
    fields = relations[0] if relations else name.split("__")
    if len(fields) == 3 and all(fields):
        return unquote(fields[0]), unquote(fields[1]), unquote(fields[2])
    if only is None or (name and len(fields) > 1):
        form = "edges_<src>__<rel>__<dst>"
        raise GraphDataError(f"{path}: edges of several types of nodes are in files {form} (got edges_{name})")
    return only, unquote(name) or DEFAULT_ETYPE[1], only


def _node_table(ntype: str, files: Sequence[Path], options: TableOptions) -> NodeTable:
    tables = open_tables(files)
    known = [*options.columns.get("id", ()), *(name.format(ntype=ntype) for name in _IDS)]
    column = next((name for name in known if name in tables.names), None)
    if column is None:
        numbers = [name for name in tables.names if re.fullmatch(r"[+-]?[0-9.]+([eE][+-]?[0-9]+)?", name)]
        if isinstance(tables, TextFiles) and (tables.no_header or numbers):
            line = ", ".join(tables.no_header or tables.names)
            raise GraphDataError(f"{files[0]}: needs a header, a first line with names of columns (got {line:.80})")
        text = "%s: has no column of ids (%s): a node is known by the number of its row, from 0"
        get_logger().warning(text, files[0], ", ".join(filter(None, known)))
    return NodeTable(ntype, tuple(files), column)


def _edge_table(relation: Relation, files: Sequence[Path], options: TableOptions) -> EdgeTable:
    tables = open_tables(files)
    names = tables.names
    if isinstance(tables, TextFiles) and len(tables.no_header) == 3 and tables.no_header[2].lstrip("-").isdecimal():
        raise GraphDataError(
            f"{files[0]}: three integers in a line can be an edge with a number or a triple (head, relation, tail): "
            f"write a header such as src,dst,time or src,rel,dst (got {', '.join(tables.no_header)})"
        )
    named = zip(options.columns.get("src", ()), options.columns.get("dst", ()), strict=False)
    for pair in [*named, *_ENDS]:
        if all(end in names for end in pair):
            return EdgeTable(relation, tuple(files), *pair)
    raise GraphDataError(
        f"{files[0]}: needs columns src and dst with the ids of nodes (or source and target; or say "
        f"--columns src=NAME --columns dst=NAME; got {', '.join(names)})"
    )


TABLES = Layout("tables", "csv or parquet files", _is_at, _read, ("num_nodes", "nodes", "tables"), by_all_ranks=True)
