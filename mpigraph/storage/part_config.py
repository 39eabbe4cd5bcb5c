"""The partition configuration ``<name>.json``: the files of a partitioned graph, and the part that owns each id.

It has the keys of DGL's ``part_config``: ``node_map`` and ``edge_map`` hold half-open ranges of
*homogeneous* ids, which are numbered part by part and, inside a part, type by type. Further keys are a format
name and version, the dtype and row shape of every feature, and the report of the partitioning.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import I64
from mpigraph.errors import InvalidArgumentError, MPIGraphError, PartitionError
from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import Schema, parse_relation, relation_key

__all__ = ["FeatureInfo", "PartConfig", "homogeneous_ranges"]

CONFIG_FORMAT = "mpigraph"
CONFIG_VERSION = 1

_FILES = {"part_graph": "graph.h5", "node_feats": "node_feat.h5", "edge_feats": "edge_feat.h5"}
_REQUIRED = "graph_name num_nodes num_edges part_method num_parts node_map edge_map ntypes etypes".split()

Ranges = list[I64]


class FeatureInfo(NamedTuple):
    """Logical dtype and row shape of a feature."""

    dtype: str
    shape: tuple[int, ...]


Features = Mapping[str, Mapping[str, FeatureInfo]]


@dataclass(frozen=True, eq=False)
class PartConfig:
    """A partitioned graph as its configuration file describes it.

    Attributes:
        graph_name: name of the graph.
        part_method: how it was partitioned.
        book: types, and the ranges of ids that each part owns.
        node_features: for each node type, name -> dtype and row shape. Every type is a key.
        edge_features: the same by ``"src:rel:dst"``.
        files: for each part, paths relative to ``directory`` under the keys part_graph, node_feats,
            edge_feats.
        report: what the partitioning reached (edge cut, balance); free form.
        directory: where the configuration file lies.
    """

    graph_name: str
    part_method: str
    book: RangeBook
    node_features: Features
    edge_features: Features
    files: tuple[Mapping[str, str], ...]
    report: Mapping[str, Any] = field(default_factory=dict)
    directory: Path = Path()

    @staticmethod
    def default_files(num_parts: int) -> tuple[Mapping[str, str], ...]:
        """Return the usual file names of each part."""
        return tuple({key: f"part{k}/{name}" for key, name in _FILES.items()} for k in range(num_parts))

    @property
    def schema(self) -> Schema:
        """The types."""
        return self.book.schema

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
        """
        if which not in _FILES:
            raise InvalidArgumentError(f"which must be one of {list(_FILES)} (got {which!r})")
        if not 0 <= part < self.num_parts:
            raise PartitionError(f"part {part} does not exist: {self.path} has {self.num_parts} parts")
        return self.directory / self.files[part][which]

    def write(self, directory: str | os.PathLike[str]) -> Path:
        """Write ``<directory>/<graph_name>.json`` and return its path."""
        path = Path(directory) / f"{self.graph_name}.json"
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(self._to_json(), indent=2) + "\n", encoding="utf-8")
        os.replace(temporary, path)  # atomic: a reader meets the old file or the new one, never half of one
        return path

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "PartConfig":
        """Read a configuration file.

        Raises:
            PartitionError: the file is missing, no valid JSON, of another format, or contradicts itself.
        """
        path = Path(path)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise PartitionError(f"{path}: cannot read the partition configuration: {error.strerror}") from error
        except ValueError as error:
            raise PartitionError(f"{path}: not a valid JSON file: {error}") from error
        _check_format(path, content)
        try:
            return cls._from_json(path, content)
        except MPIGraphError as error:
            raise PartitionError(f"{path}: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise PartitionError(f"{path}: damaged partition configuration: {error!r}") from error

    def _to_json(self) -> dict[str, Any]:
        book = self.book
        ntypes = self.schema.ntypes
        keys = [relation_key(relation) for relation in self.schema.relations]
        nodes = homogeneous_ranges(book.node_offsets)
        edges = homogeneous_ranges(book.edge_offsets)
        return {
            "format": CONFIG_FORMAT,
            "format_version": CONFIG_VERSION,
            "graph_name": self.graph_name,
            "num_nodes": sum(book.num_nodes(i) for i in range(len(ntypes))),
            "num_edges": sum(book.num_edges(i) for i in range(len(keys))),
            "part_method": self.part_method,
            "num_parts": self.num_parts,
            "halo_hops": 0,
            "node_map": {name: nodes[i].tolist() for i, name in enumerate(ntypes)},
            "edge_map": {key: edges[i].tolist() for i, key in enumerate(keys)},
            "ntypes": {name: i for i, name in enumerate(ntypes)},
            "etypes": {key: i for i, key in enumerate(keys)},
            "node_features": _features_to_json(self.node_features),
            "edge_features": _features_to_json(self.edge_features),
            "report": dict(self.report),
            **{f"part-{k}": dict(files) for k, files in enumerate(self.files)},
        }

    @classmethod
    def _from_json(cls, path: Path, content: dict[str, Any]) -> "PartConfig":
        ntypes = _by_id(content["ntypes"])
        etypes = _by_id(content["etypes"])
        schema = Schema(tuple(ntypes), tuple(parse_relation(key) for key in etypes))
        num_parts = int(content["num_parts"])
        book = RangeBook(
            schema,
            _offsets("node_map", content["node_map"], ntypes, num_parts, int(content["num_nodes"])),
            _offsets("edge_map", content["edge_map"], etypes, num_parts, int(content["num_edges"])),
        )
        return cls(
            graph_name=str(content["graph_name"]),
            part_method=str(content["part_method"]),
            book=book,
            node_features=_features_from_json(content["node_features"], ntypes),
            edge_features=_features_from_json(content["edge_features"], etypes),
            files=tuple({key: str(content[f"part-{k}"][key]) for key in _FILES} for k in range(num_parts)),
            report=dict(content.get("report", {})),
            directory=path.parent,
        )


def homogeneous_ranges(offsets: Sequence[I64]) -> Ranges:
    """Return for each type int64[num_parts, 2]: its ranges of homogeneous ids.

    Homogeneous ids are numbered part by part and, inside a part, type by type.
    """
    # [parts, types], so that the running sum over its rows counts in the order of homogeneous ids
    counts = np.stack([np.diff(table) for table in offsets], axis=1) if offsets else np.zeros((0, 0), np.int64)
    ends = np.cumsum(counts.ravel()).reshape(counts.shape)
    return [np.stack([ends[:, i] - counts[:, i], ends[:, i]], axis=1) for i in range(counts.shape[1])]


def _offsets(what: str, table: dict[str, Any], names: list[str], num_parts: int, total: int) -> tuple[I64, ...]:
    """Turn homogeneous ranges into type-wise offsets; they must tile ``[0, total)`` in order."""
    if sorted(table) != sorted(names):
        raise PartitionError(f"{what} has the types {sorted(table)}, expected {sorted(names)}")
    ranges = [np.asarray(table[name], dtype=np.int64) for name in names]
    for name, rows in zip(names, ranges, strict=True):
        if rows.shape != (num_parts, 2):
            raise PartitionError(f"{what} of {name!r} must have {num_parts} ranges (got shape {rows.shape})")
        if (rows[:, 1] < rows[:, 0]).any():
            raise PartitionError(f"{what} of {name!r} has a range that ends before it begins")
    offsets = tuple(np.concatenate([[0], np.cumsum(rows[:, 1] - rows[:, 0])]) for rows in ranges)
    # lengths of ranges determine type-wise offsets, and these the only ranges that tile without gaps
    expected = homogeneous_ranges(offsets)
    for name, rows, tiled in zip(names, ranges, expected, strict=True):
        if not np.array_equal(rows, tiled):
            raise PartitionError(f"{what} of {name!r} is inconsistent: the ranges do not follow each other")
    if sum(int(table[-1]) for table in offsets) != total:
        raise PartitionError(f"{what} covers {sum(int(table[-1]) for table in offsets)} ids, expected {total}")
    return offsets


def _check_format(path: Path, content: object) -> None:
    """Raise PartitionError unless the file is of this format and version; recognise DGL's files."""
    if not isinstance(content, dict):
        raise PartitionError(f"{path}: not a partition configuration (the top level is no object)")
    if content.get("format") != CONFIG_FORMAT:
        part = content.get("part-0")
        names = [str(name) for name in part.values()] if isinstance(part, dict) else []
        if any(name.endswith((".dgl", ".pt")) for name in names):
            raise PartitionError(
                f"{path}: written by DGL (its parts are {', '.join(names)}); partition the graph again with mpigraph"
            )
        raise PartitionError(f"{path}: not a partition configuration of this library (no format {CONFIG_FORMAT!r})")
    if content.get("format_version") != CONFIG_VERSION:
        raise PartitionError(
            f"{path}: format version {content.get('format_version')} (this library reads {CONFIG_VERSION})"
        )
    missing = [key for key in _REQUIRED if key not in content]
    if missing:
        raise PartitionError(f"{path}: key {missing[0]!r} is missing")


def _by_id(table: dict[str, Any]) -> list[str]:
    """Return names in the order of their ids, which must be 0..n-1."""
    names = sorted(table, key=lambda name: int(table[name]))
    if [int(table[name]) for name in names] != list(range(len(names))):
        raise PartitionError(f"type ids must be 0 to {len(names) - 1} (got {table})")
    return names


def _features_to_json(features: Features) -> dict[str, Any]:
    return {
        owner: {name: {"dtype": info.dtype, "shape": list(info.shape)} for name, info in table.items()}
        for owner, table in features.items()
    }


def _features_from_json(content: dict[str, Any], names: list[str]) -> Features:
    unknown = sorted(set(content) - set(names))
    if unknown:
        raise PartitionError(f"features of unknown type {unknown[0]!r}")
    return {
        owner: {
            name: FeatureInfo(str(info["dtype"]), tuple(int(size) for size in info["shape"]))
            for name, info in content.get(owner, {}).items()
        }
        for owner in names
    }
