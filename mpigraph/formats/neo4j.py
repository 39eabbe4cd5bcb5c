"""Read what Neo4j's ``neo4j-admin database import`` reads, and Amazon Neptune's csv: nodes and edges in csv files.

The files lie in one directory, or in directories in it. The headers tell what they are:

=================  =============================================  ====================================================
column             Neo4j                                          Neptune
=================  =============================================  ====================================================
id of a node       ``name:ID``, ``:ID(space)``                    ``~id``
ends of an edge    ``:START_ID(space)``, ``:END_ID(space)``       ``~from``, ``~to``
labels of a node   ``:LABEL``, several with ``;``                 ``~label``
type of an edge    ``:TYPE``                                      ``~label``
property           ``name:int``, ``name:float[]``                 ``name:Int``, ``name:Double(single)``
=================  =============================================  ====================================================

Properties that are numbers, truth values, dates or lists of as many numbers for each row become features: integers
int64, ``float`` float32, ``double`` float64, dates int64 seconds since 1970. Text is left out, also where a header
names no type, unless the user names one or takes it for categories, which are numbered alike in all types.

A file whose name ends in ``header`` is the header of the files that begin as it does and have none
(``movies-header.csv``, ``movies-1.csv``). Without a column of labels, nodes have the name of their id space (or "_N"),
edges that of their file; of Neptune they are "vertex" and "edge". ``labelled_tables.py`` says what becomes of labels.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mpigraph.errors import GraphDataError
from mpigraph.formats.input_files import first_bytes, in_natural_order
from mpigraph.formats.labelled_tables import LabelledTable, Property, read_labelled_tables
from mpigraph.formats.layout import Layout, ReadOptions
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.table_files import TextFiles, TextForm, fields_of, is_table
from mpigraph.formats.typed_tables import log_categories
from mpigraph.metadata.schema import DEFAULT_NTYPE
from mpigraph.partition.source import GraphSource

_LONGEST_HEADER = 1 << 20
_NUMBERS = {
    **dict.fromkeys(("byte", "short", "int", "integer", "long"), "int64"),
    **dict.fromkeys(("bool", "boolean"), "bool"),
    **dict.fromkeys(("date", "datetime", "localdatetime"), "time"),
    "float": "float32",
    "double": "float64",
}
_NEO4J_ROLES = {"ID": "id", "START_ID": "from", "END_ID": "to", "LABEL": "label", "TYPE": "label", "IGNORE": ""}
_NEPTUNE_ROLES = {"~id": "id", "~from": "from", "~to": "to", "~label": "label"}
_FIELD = re.compile(r"(.*?)(?:(?<!\\):(\w+)(\[\])?(?:\(([^)]*)\))?(?:\{.*\})?)?", re.DOTALL)
_HEADER_FILE = re.compile(r"(.*?)[-_. ]?headers?", re.IGNORECASE | re.DOTALL)


class _Field(NamedTuple):
    role: str  # "id", "from", "to" or "label"; "property"; "" to ignore the column
    name: str  # in front of the type
    type: str = ""  # of a property, in small letters
    is_list: bool = False
    space: str = ""  # of ids


class _Header(NamedTuple):
    """The header of files named ``stem``; ``is_in_files`` unless it has a file of its own."""

    fields: tuple[_Field, ...]
    delimiter: str
    stem: str
    is_in_files: bool


class _Dialect(NamedTuple):
    marks: str  # that may separate fields
    field_of: Callable[[str], _Field]
    node: str  # label of nodes without one, if they have no id space
    edge: str  # type of edges without one; "" for the name of their file


def _neo4j_field(text: str) -> _Field:
    name, kind, brackets, space = _FIELD.fullmatch(text).groups()  # type: ignore[union-attr]  # a name alone matches
    role = _NEO4J_ROLES.get(kind, "property")
    return _Field(role, name, (kind or "").lower(), brackets is not None, space or "")


def _neptune_field(text: str) -> _Field:
    if text.startswith("~"):
        return _Field(_NEPTUNE_ROLES.get(text, "property"), text)
    field = _neo4j_field(text)
    return field._replace(role="property", name=field.name.replace("\\:", ":"), space="")


_NEO4J = _Dialect("\t,;|", _neo4j_field, DEFAULT_NTYPE, "")
_NEPTUNE = _Dialect(",", _neptune_field, "vertex", "edge")


def _is_at(dialect: _Dialect, path: Path) -> bool:
    return path.is_dir() and any(_header_in(dialect, file) is not None for file in _files(path))


def _read(dialect: _Dialect, path: Path, options: ReadOptions) -> GraphSource:
    files, left_out = _files_by_header(dialect, path)
    if options.tables.columns:
        raise GraphDataError(f"{path}: features are the properties of the files, which cannot be put together")
    categories: dict[str, dict[str, int]] = {name: {} for name in options.tables.categories}
    names = {field.name for header in files for field in header.fields}
    unknown = sorted({*categories, *options.tables.types} - names)
    if unknown:
        raise GraphDataError(f"{path}: no file has a property {unknown[0]!r} (there are {', '.join(sorted(names))})")
    nodes: list[LabelledTable] = []
    edges: list[LabelledTable] = []
    for header, paths in files.items():
        roles = [field.role for field in header.fields]
        id_roles = ("from", "to") if "from" in roles or "to" in roles else ("id",)
        for role in {*id_roles, "label"}:
            if roles.count(role) > 1 or (role in id_roles and role not in roles):
                raise GraphDataError(f"{paths[0]}: the header needs one column of {role}s (got {roles.count(role)})")
        table = _table(dialect, header, paths, id_roles, options.tables.types, categories)
        (edges if len(id_roles) > 1 else nodes).append(table)
    source = read_labelled_tables(nodes, edges, ReadingRanks(options.scratch))
    for name, codes in categories.items():
        log_categories(f"{path}: property {name}", sorted(codes, key=lambda name: str(name).encode()))
    return replace(source, left_out=(*source.left_out, *left_out))


def _files_by_header(dialect: _Dialect, path: Path) -> tuple[dict[_Header, list[Path]], list[str]]:
    alone: list[tuple[str, _Header]] = []  # of headers in files of their own: the beginning of names, the header
    by_header: dict[_Header, list[Path]] = {}
    bare = []
    for file in _files(path):
        header = _header_in(dialect, file)
        match = _HEADER_FILE.fullmatch(_stem(file))
        if header is None:
            bare.append(file)
        elif match is None or len(_first_lines(file)) > 1:
            by_header.setdefault(header, []).append(file)
        else:
            prefix = str(file.parent / match[1]) if match[1] else f"{file.parent}/"
            alone.append((prefix, header._replace(stem=header.stem and match[1], is_in_files=False)))
    left_out = []
    for file in bare:
        heads = [(prefix, header) for prefix, header in alone if str(file).startswith(prefix)]
        if heads:
            by_header.setdefault(max(heads)[1], []).append(file)
        elif file.stat().st_size and not first_bytes(file, 1):
            raise GraphDataError(f"{file}: cannot be read")
        else:
            left_out.append(f"{file.name}: a file without a header")
    return by_header, left_out


def _table(
    dialect: _Dialect,
    header: _Header,
    paths: Sequence[Path],
    id_roles: Sequence[str],
    types: Mapping[str, str],
    categories: Mapping[str, dict[str, int]],
) -> LabelledTable:
    names: list[str] = []
    ids = {}
    label = ""
    properties = []
    left_out = {}
    list_mark = ";" if header.delimiter != ";" else ","
    for number, field in enumerate(header.fields):
        name = field.name if field.role == "property" else f"{field.name}:{field.role}"
        name = name if name not in names else f"{name} (column {number + 1})"
        names.append(name)
        if field.role in id_roles:
            ids[field.role] = name, field.space
        elif field.role == "label":
            label = name
        elif field.role == "property" and name in categories:
            properties.append(Property(name, "int64", names=categories[name]))
        elif field.role == "property" and (dtype := types.get(name, _NUMBERS.get(field.type, "string"))) != "string":
            properties.append(Property(name, dtype, list_mark if field.is_list else ""))
        elif field.role:
            left_out[name] = "ids of edges" if field.role == "id" else field.type or "text"
    if len(id_roles) > 1:
        default = dialect.edge or header.stem
    else:
        default = ids["id"][1] or dialect.node
    form = TextForm(header.delimiter, tuple(names), header.is_in_files)
    return LabelledTable(
        TextFiles(paths, form), tuple(ids[role] for role in id_roles), label, default, tuple(properties), left_out
    )


def _files(path: Path) -> list[Path]:
    folders = [path, *in_natural_order(folder for folder in path.iterdir() if folder.is_dir())]
    return [file for folder in folders for file in in_natural_order(folder.iterdir()) if is_table(file)]


def _first_lines(file: Path) -> list[str]:
    return first_bytes(file, _LONGEST_HEADER).decode("utf-8-sig", "replace").splitlines()


def _header_in(dialect: _Dialect, file: Path) -> _Header | None:
    """Return the header in the first line of a file; None for any other line."""
    line = (_first_lines(file) or [""])[0]
    delimiter = next((mark for mark in dialect.marks if mark in line), ",")
    fields = tuple(dialect.field_of(text.strip()) for text in fields_of(line, delimiter))
    roles = {field.role for field in fields}
    if not roles & {"id", "from", "to"}:
        return None
    names_type = roles >= {"label"} or not roles & {"from", "to"} or dialect.edge
    return _Header(fields, delimiter, "" if names_type else _stem(file), True)


def _stem(file: Path) -> str:
    return file.name.partition(".")[0]


def _layout(dialect: _Dialect, name: str, marks: str) -> Layout:
    return Layout(
        name, f"csv files with {marks} in headers", partial(_is_at, dialect), partial(_read, dialect), ("tables",)
    )


NEO4J = _layout(_NEO4J, "Neo4j's csv", ":ID and :START_ID")
NEPTUNE = _layout(_NEPTUNE, "Neptune's csv", "~id and ~from")
