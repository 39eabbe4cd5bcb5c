"""The partition configuration ``<name>.json``: the files of a partitioned graph, and the part that owns each id.

It has the names of types and relations, the numbers of nodes and edges that each part owns, in the order of these
names, the dtype and row shape of every feature (and in which dtype it is stored, if that is another one;
``categories``, if its numbers stand for names), the ids of the relations that share tables and the features that these
share, the report of the partitioning, its identity, its content, which every shard carries too, and a checksum of all
of this except the report and the paths of the shards, which are always the same.
"""

import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import I64
from mpigraph.errors import InvalidArgumentError, PartitionError, in_words
from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import Schema, parse_relation
from mpigraph.storage.files import NewFile, checksum, open_regular
from mpigraph.storage.format import own_relations

CONFIG_FORMAT = "mpigraph"
CONFIG_VERSION = 6

FILES = {"part_graph": "graph.h5", "node_feats": "node_feat.h5", "edge_feats": "edge_feat.h5"}
"""The files of a part."""


class FeatureInfo(NamedTuple):
    """A feature: logical dtype, row shape, and the narrower dtype in which it is stored; "" if it is the same.

    ``categories`` are the names that its numbers stand for, in the order of the numbers; empty if for none.
    """

    dtype: str
    shape: tuple[int, ...]
    narrow: str = ""
    categories: tuple[str, ...] = ()

    @property
    def stored(self) -> str:
        """The logical dtype of what is stored."""
        return self.narrow or self.dtype

    def as_json(self) -> dict[str, Any]:
        """The same as JSON has it."""
        stored = {"stored": self.narrow} if self.narrow else {}
        names = {"categories": list(self.categories)} if self.categories else {}
        return {"dtype": self.dtype, "shape": list(self.shape)} | stored | names


Features = Mapping[str, Mapping[str, FeatureInfo]]


class SharedFeature(NamedTuple):
    """A feature that relations have in common: its name, and the relation ids, ascending."""

    name: str
    relations: tuple[int, ...]


def features_in_common(relations: Sequence[int], tables: Iterable[Mapping[str, FeatureInfo]]) -> list[SharedFeature]:
    """Return the features that several relations have with one dtype and row shape, by name.

    Of a name with several dtypes or shapes those as in the first relation.

    Args:
        relations: relation ids, ascending.
        tables: the features of each.
    """
    by_name: dict[str, tuple[FeatureInfo, list[int]]] = {}
    for relation, table in zip(relations, tables, strict=True):
        for name, info in table.items():
            first, having = by_name.setdefault(name, (info, []))
            if info == first:
                having.append(relation)
    return [SharedFeature(name, tuple(ids)) for name, (_, ids) in sorted(by_name.items()) if len(ids) > 1]


@dataclass(frozen=True, eq=False)
class PartConfig:
    """A partitioned graph as its configuration file describes it.

    Attributes:
        graph_name: name of the graph.
        part_method: how it was partitioned.
        book: types, and the ranges of ids that each part owns.
        node_features: for each node type, name -> dtype and row shape. Every type is a key.
        edge_features: the same by ``"src:rel:dst"``.
        report: results of the partitioning (edge cut, balance); free form.
        directory: the folder of the configuration file.
        identity: of this partitioning, that is of the new ids of nodes and edges.
        content: of this partitioning with its features; every shard carries it.
        shared: ids of the relations whose edges lie in tables that they share, ascending.
        shared_features: the features of these that lie in datasets that they share.
    """

    graph_name: str
    part_method: str
    book: RangeBook
    node_features: Features
    edge_features: Features
    report: Mapping[str, Any] = field(default_factory=dict)
    directory: Path = Path()
    identity: str = field(default_factory=lambda: secrets.token_hex(16))
    content: str = field(default_factory=lambda: secrets.token_hex(16))
    shared: tuple[int, ...] = ()
    shared_features: tuple[SharedFeature, ...] = ()

    @staticmethod
    def files_of(part: int) -> dict[str, str]:
        """Return the files of a part, relative to ``directory``, by their keys in :data:`FILES`."""
        return {key: f"part{part}/{name}" for key, name in FILES.items()}

    @property
    def schema(self) -> Schema:
        """The types."""
        return self.book.schema

    @cached_property
    def shared_begins(self) -> I64:
        """int64[shared relations + 1, parts]: the first edge of each relation in the tables that they share."""
        return self._begins(self.shared)

    def _begins(self, relations: Sequence[int]) -> I64:
        """Return int64[relations + 1, parts], where the edges of each begin in a table of these."""
        counts = np.diff(self.book.edge_table[list(relations)], axis=1)
        begins: I64 = np.pad(np.cumsum(counts, axis=0), ((1, 0), (0, 0)))
        return begins

    @cached_property
    def shared_ends(self) -> I64:
        """int64[shared relations, 2], the node type ids of source and destination of each."""
        ends: I64 = self.schema.all_ends[list(self.shared)]
        return ends

    @cached_property
    def place_of_shared(self) -> dict[int, int]:
        """The place of each relation among those that share tables."""
        return {relation: place for place, relation in enumerate(self.shared)}

    def own_features(self, relation: int) -> dict[str, FeatureInfo]:
        """Return the features of a relation that have datasets of their own."""
        features = self.edge_features[self.schema.relation_keys[relation]]
        return {name: of for name, of in features.items() if (relation, name) not in self.begins_of_features}

    @cached_property
    def own(self) -> list[int]:
        """The relations that have tables of their own."""
        return own_relations(self.schema, self.shared)

    @cached_property
    def begins_of_features(self) -> dict[tuple[int, str], I64]:
        """By relation id and name int64[parts], the first row of a feature in the dataset that relations share."""
        return {
            (relation, name): begins
            for name, relations in self.shared_features
            for relation, begins in zip(relations, self._begins(relations)[:-1], strict=True)
        }

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return self.book.num_parts

    @property
    def path(self) -> Path:
        """The configuration file itself."""
        return self.directory / f"{self.graph_name}.json"

    def part_path(self, part: int, which: str) -> Path:
        """Return a file of a part.

        Args:
            part: 0 to num_parts - 1.
            which: ``"part_graph"``, ``"node_feats"`` or ``"edge_feats"``.

        Raises:
            PartitionError: there is no such part.
        """
        if not 0 <= part < self.num_parts:
            raise PartitionError(f"part {part} does not exist: {self.path} has {self.num_parts} parts")
        return self.directory / self.files_of(part)[which]

    def file_sizes(self, part: int) -> dict[str, int]:
        """Return the bytes of the files of a part, by their keys. Raises PartitionError: one cannot be found."""
        try:
            return {which: self.part_path(part, which).stat().st_size for which in FILES}
        except OSError as error:
            raise PartitionError(f"{error.filename}: {error.strerror} (part {part} of {self.path})") from error

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of all that the shards depend on."""
        return _checksum(self._to_json())

    def write(self, directory: str | os.PathLike[str]) -> Path:
        """Write ``<directory>/<graph_name>.json``, unless it is as it would be written, and return its path.

        Raises:
            StorageError: it cannot be written.
        """
        path = Path(directory) / f"{self.graph_name}.json"
        content = self._to_json()
        content["checksum"] = _checksum(content)
        # thousands of relations would be hundreds of thousands of lines
        text = json.dumps(content, indent=None if self.shared else 2) + "\n"
        with suppress(OSError, ValueError):
            if text_of(path) == text.encode():  # also where nothing can be written
                return path
        with NewFile(path, queue=True) as file:  # a reader meets the old file or the new one, never half of one
            file.write(text.encode())
        return path

    @classmethod
    def read(cls, path: str | os.PathLike[str], text: bytes | None = None) -> "PartConfig":
        """Read a configuration file, or the ``text`` that another rank has read there.

        Raises:
            PartitionError: the file is missing, no valid JSON, of another format, or contradicts itself.
        """
        path = Path(path)
        text = text_of(path) if text is None else text
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            what = f"not a valid JSON file: {error}" if path.suffix == ".json" else _not_cut(path)
            raise PartitionError(f"{path}: {what}") from error
        _check_format(path, content)
        damaged = f"{path}: damaged partition configuration"
        if content.get("checksum") != _checksum(content):
            raise PartitionError(f"{damaged}: it was changed after it was written")
        try:
            return cls._from_json(path, content)
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # paths are outside the checksum
            raise PartitionError(f"{damaged}: {in_words(error)}") from error

    def _to_json(self) -> dict[str, Any]:
        tables = np.array(self.book.node_offsets), self.book.edge_table
        return {
            "format": CONFIG_FORMAT,
            "format_version": CONFIG_VERSION,
            "identity": self.identity,
            "content": self.content,
            "graph_name": self.graph_name,
            "num_nodes": int(tables[0][:, -1].sum()),
            "num_edges": int(tables[1][:, -1].sum()),
            "part_method": self.part_method,
            "num_parts": self.num_parts,
            "ntypes": self.schema.ntypes,
            "relations": self.schema.relation_keys,
            "nodes_of_parts": np.diff(tables[0], axis=1).T.tolist(),
            "edges_of_parts": np.diff(tables[1], axis=1).T.tolist(),
            "node_features": _features_to_json(self.node_features),
            "edge_features": _features_to_json(self.edge_features),
            "shared_relations": self.shared,
            "shared_features": self.shared_features,
            "report": dict(self.report),
            **{f"part-{k}": self.files_of(k) for k in range(self.num_parts)},  # as in DGL's, for other readers
        }

    @classmethod
    def _from_json(cls, path: Path, content: dict[str, Any]) -> "PartConfig":
        schema = Schema(tuple(content["ntypes"]), tuple(map(parse_relation, content["relations"])))
        config = cls(
            graph_name=content["graph_name"],
            part_method=content["part_method"],
            book=RangeBook(schema, _offsets(content["nodes_of_parts"]), _offsets(content["edges_of_parts"])),
            node_features=_features_from_json(content["node_features"], schema.ntypes),
            edge_features=_features_from_json(content["edge_features"], schema.relation_keys),
            report=dict(content.get("report", {})),
            directory=path.parent,
            identity=content["identity"],
            content=content["content"],
            shared=tuple(content["shared_relations"]),
            shared_features=tuple(SharedFeature(name, tuple(ids)) for name, ids in content["shared_features"]),
        )
        vars(config)["checksum"] = content["checksum"]  # else counted from the same again
        return config


def text_of(path: str | os.PathLike[str]) -> bytes:
    """Return the text of a configuration file.

    Raises:
        PartitionError: it cannot be read.
    """
    path = Path(path)
    try:
        with open(open_regular(path), "rb") as file:
            return file.read()
    except OSError as error:
        what = _not_cut(path) if path.is_dir() else str(error.strerror)
        if isinstance(error, FileNotFoundError):
            what += f" (the folder {next(folder for folder in path.absolute().parents if folder.is_dir())} exists)"
        raise PartitionError(f"{path}: cannot read the partition configuration: {what}") from error


def check_graph_name(name: str) -> None:
    """Check that a graph's name can be the name of a file in any folder.

    Raises:
        InvalidArgumentError: it cannot.
    """
    usable = isinstance(name, str) and name and "/" not in name
    if not usable or name.startswith(".") or not name.isprintable() or len(name.encode()) > 200:
        raise InvalidArgumentError(f"graph_name must be usable as a file name (got {name!r})")


def _checksum(content: Mapping[str, Any]) -> str:
    """Return the checksum of all but the report and the paths: shards identify themselves, wherever they are."""
    free = ("report", "checksum")
    return checksum({key: of for key, of in content.items() if key not in free and not key.startswith("part-")})


def _offsets(counts: Sequence[Sequence[int]]) -> I64:
    """Return int64[types, parts + 1], the ranges of ids; ``counts`` has the numbers of each type for each part."""
    offsets: I64 = np.pad(np.cumsum(np.array(counts, np.int64), axis=0), ((1, 0), (0, 0))).T
    return offsets


def _not_cut(path: Path) -> str:
    """Return the remedy for a file or folder that is no configuration."""
    configs = [str(file) for file in sorted(path.glob("*.json")) if _is_config(file)]
    if configs:
        return f"it is a folder: give the configuration of a partitioned graph, as {' or '.join(configs)}"
    return (
        "no configuration of a partitioned graph (<name>.json): partition the graph first, by python -m mpigraph "
        f"partition {path} --parts 2 -o FOLDER, and give the <name>.json in FOLDER"
    )


def _is_config(path: Path) -> bool:
    """Return whether a file is of this format, of any version."""
    with suppress(OSError, ValueError, AttributeError):
        return json.loads(path.read_bytes()).get("format") == CONFIG_FORMAT  # type: ignore[no-any-return]
    return False


def _check_format(path: Path, content: Any) -> None:
    """Raise PartitionError unless the file is of this format and version; recognise DGL's files."""
    if not isinstance(content, dict) or content.get("format") != CONFIG_FORMAT:
        if isinstance(content, dict) and re.search(r'\.(dgl|pt)"', json.dumps(content.get("part-0"))):
            raise PartitionError(
                f"{path}: written by DGL: python -m mpigraph partition {path} -o FOLDER keeps its parts"
            )
        raise PartitionError(f"{path}: not a partition configuration of this library (no format {CONFIG_FORMAT!r})")
    version = content.get("format_version")
    if version != CONFIG_VERSION:
        raise PartitionError(
            f"{path}: format version {version!r} (this library reads {CONFIG_VERSION}): partition the graph again"
        )


def _features_to_json(features: Features) -> dict[str, Any]:
    return {owner: {name: info.as_json() for name, info in table.items()} for owner, table in features.items() if table}


def _features_from_json(content: Mapping[str, Any], names: Sequence[str]) -> dict[str, dict[str, FeatureInfo]]:
    none: dict[str, FeatureInfo] = {}  # thousands of relations without features share a table
    tables = dict.fromkeys(names, none)
    for owner, table in content.items():
        tables[owner] = {
            name: FeatureInfo(of["dtype"], tuple(of["shape"]), of.get("stored", ""), tuple(of.get("categories", ())))
            for name, of in table.items()
        }
    return tables
