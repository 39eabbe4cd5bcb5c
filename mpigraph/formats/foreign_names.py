"""Names that DGL or PyG cannot have: their names in an export, and the original ones, for reading the export again.

An export notes each name that it has changed in its metadata, under :data:`NOTE`::

    {"node types": {"%2Fm%2F0": "/m/0"}, "edge types": {"%2Fm%2F0:r:%2Fm%2F0": ["/m/0", "r", "/m/0"]},
     "features": {"a%3Ab": "a:b"}}
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpigraph.errors import GraphDataError, MPIGraphError
from mpigraph.log import get_logger
from mpigraph.metadata.schema import Relation, Schema, check_name, escape, relation_key
from mpigraph.partition.source import GraphSource

NOTE = "original_names"
_TABLES = ("node types", "edge types", "features")

_OF_DGL = ":/~"  # DGL joins names by ":" and "~", and features to their types by "/"
_MOST_BYTES = 80  # of a node type, whose name three times in one file's must not exceed 255
_MOST_JOINED = 240
_MOST_TOLD = 3  # changed names in a warning


def dgl_name(name: str) -> str:
    """Return a name as DGL can have it: separators, and "%", as "%" and two hexadecimal digits."""
    return escape(name, _OF_DGL, "%")


def unique(name: str, taken: set[str], most: int, before: str = "", after: str = "") -> str:
    """Return a name that is not among those taken, and take it: the name itself, or its beginning and a number.

    With what stands ``before`` and ``after`` it, as in ``taken``, it has at most ``most`` bytes.
    """
    fitted, number = name, 1
    while f"{before}{fitted}{after}" in taken or len(f"{before}{fitted}{after}".encode()) > most:
        number += 1
        end = f"-{number}"
        kept = most - len(f"{before}{end}{after}".encode())
        fitted = name.encode()[: max(0, kept)].decode(errors="ignore") + end
    taken.add(f"{before}{fitted}{after}")
    return fitted


class ForeignNames:
    """The names that a graph has in an export.

    Args:
        schema: the types of the graph.
        target: "dgl"; or "pyg", where the names of a relation, joined by ``__``, are those of a file, and features may
            have any name.

    Attributes:
        ntypes: node type -> its name there, which can be the name of a file.
        relations: relation -> its triple there.
    """

    def __init__(self, schema: Schema, target: str) -> None:
        self._target = target
        separators = _OF_DGL if target == "dgl" else "/"
        taken: set[str] = set()
        self.ntypes = {n: unique(escape(n, separators, "%"), taken, _MOST_BYTES) for n in schema.ntypes}
        self.relations: dict[Relation, Relation] = {}
        taken = set()
        for relation in schema.relations:
            src, dst = self.ntypes[relation[0]], self.ntypes[relation[2]]
            name = escape(relation[1], separators, "%")
            if target == "pyg":
                name = unique(name, taken, _MOST_JOINED, f"{src}__", f"__{dst}")
            self.relations[relation] = src, name, dst
        self._features: dict[str, str] = {}

    def feature(self, name: str) -> str:
        """Return the name of a feature there."""
        foreign = dgl_name(name) if self._target == "dgl" else name
        if foreign != name:
            self._features[foreign] = name
        return foreign

    def note(self, path: Path) -> dict[str, Any]:
        """Return the changed names, if any, for the metadata in ``path``, and warn of them."""
        ntypes = {new: old for old, new in self.ntypes.items() if new != old}
        edges = {":".join(new): list(old) for old, new in self.relations.items() if new != old}
        tables: dict[str, dict[str, Any]] = dict(zip(_TABLES, (ntypes, edges, self._features), strict=True))
        told = [f"{old!r} as {new!r}" for table in tables.values() for new, old in table.items()]
        if not told:
            return {}
        more = f", and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else ""
        why = "':', '/' or '~' in a name" if self._target == "dgl" else "'/' in a type, or two files of one name"
        get_logger().warning(
            "%s: names were changed, as %s cannot have %s: %s%s (all are under %r there)",
            path,
            {"dgl": "DGL", "pyg": "PyG"}[self._target],
            why,
            ", ".join(told[:_MOST_TOLD]),
            more,
            NOTE,
        )
        return {NOTE: tables}


def with_original_names(source: GraphSource, path: Path, metadata: Mapping[str, Any]) -> GraphSource:
    """Return a graph that was read from an export with the names that it had, by the note in its metadata, if any.

    ``path``, the file of the metadata, is for messages. Raises GraphDataError if the note is malformed.
    """
    if NOTE not in metadata:
        return source
    try:
        ntypes, edges, features = (dict(metadata[NOTE].get(kind, {})) for kind in _TABLES)
        relations: list[Relation] = []
        for relation in source.schema.relations:
            src, name, dst = edges.get(":".join(relation), relation)
            relations.append((src, name, dst))
        schema = Schema(tuple(ntypes.get(n, n) for n in source.schema.ntypes), tuple(relations))
        keys = dict(zip(map(relation_key, source.schema.relations), map(relation_key, relations), strict=True))
        node_feats = {ntypes.get(t, t): _renamed(table, features) for t, table in source.node_feats.items()}
        edge_feats = {keys[key]: _renamed(table, features) for key, table in source.edge_feats.items()}
    except (AttributeError, TypeError, ValueError, MPIGraphError) as error:
        raise GraphDataError(f"{path}: {NOTE} must be tables from names to the original ones ({error})") from error
    return replace(source, schema=schema, node_feats=node_feats, edge_feats=edge_feats)


def _renamed(table: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {check_name("an original name", names.get(name, name)): values for name, values in table.items()}
    if len(renamed) < len(table):
        raise ValueError(f"two features of {list(table)} have one original name")
    return renamed
