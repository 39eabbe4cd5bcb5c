"""Read a graph that DGL's ``partition_graph`` or its distributed partitioning has partitioned, without DGL.

A configuration ``<name>.json`` names for each part ``graph.dgl``, ``node_feat.dgl`` and ``edge_feat.dgl``. The graph of
a part has homogeneous ids in ``_ID``, whose types the configuration tells, and copies of nodes and edges of other parts
(``inner_node``, ``inner_edge`` are 0), which are left out. Older configurations have no types, relations by name alone,
or only the ends of the parts' ranges.

Nodes and edges keep the type-wise ids that DGL gave them. Original ids are known where a part's graph has ``orig_id``,
or where ``orig_nids.dgl`` and ``orig_eids.dgl`` lie beside it; else DGL's ids are taken for the original ones, and a
line of the log says so. Data keep their names and dtypes, except ``train_mask``, ``val_mask`` and ``test_mask``: DGL
stores them as uint8, and they become bool again. Names of files may lead out of the folder: look at the configuration
of strangers before you read it. ``fused_csc_sampling_graph.pt`` is not read: it is a pickle, which can
run code.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError, check_text
from mpigraph.formats.declared import MASKS
from mpigraph.formats.dgl_binary import read_part_graph, read_tensors
from mpigraph.formats.id_maps import typewise
from mpigraph.formats.input_files import FolderFiles, graph_of, reading
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.log import get_logger
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Relation, relation_key, relations_in
from mpigraph.partition.row_arrays import MadeRows, concatenated
from mpigraph.partition.source import Feature, GraphSource, Parts
from mpigraph.storage.files import read_text, storage_errors

_ID = "_ID"
_OWN = (_ID, "_TYPE", "inner_node", "inner_edge", "orig_id", "part_id")  # what DGL puts into the graph of a part


def is_dgl_partition(path: Path) -> bool:
    """Return whether a JSON file is the configuration of parts that DGL has written; reads no parts."""
    try:
        content = json.loads(read_text(path))
        part = content["part-0"]
        return "format" not in content and any(str(name).endswith((".dgl", ".pt")) for name in part.values())
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return False


@collective("ranks")
def read_dgl_partition(path: Path, ranks: ReadingRanks) -> GraphSource:
    """Read a graph that DGL has partitioned; the source has these parts.

    Args:
        path: the configuration.
        ranks: the ranks that read it, each some of the parts.

    Raises:
        GraphDataError: a file is missing or damaged, or they contradict one another; names the file.
        StorageError: a temporary file cannot be written.
    """
    with reading(path, path.parent):
        return _source(_Config(path), ranks)


class _Config:
    """The configuration, the files that it names, and what of them was not read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = json.loads(read_text(path))
        self.num_parts = int(self.content["num_parts"])
        if self.num_parts < 1:
            raise GraphDataError(f"num_parts must be at least 1 (got {self.num_parts})")
        self._files: list[Mapping[str, str]] = [self.content[f"part-{part}"] for part in range(self.num_parts)]
        self._folders: dict[Path, FolderFiles] = {}
        self.unread_data: Counter[str] = Counter()

    def file(self, part: int, which: str) -> Path:
        files = self._files[part]
        if which == "part_graph" and which not in files:
            raise GraphDataError(
                f"part {part} has no graph.dgl, only {', '.join(files.values())}: a .pt file of GraphBolt is a pickle, "
                "which runs code when it is read, so it is not. Write the parts again with use_graphbolt=False"
            )
        return self.read(self.path.parent / check_text(f"{which} of part {part}", files[which]))

    def read(self, path: Path) -> Path:
        """Note that a file of a part is read; return its path."""
        if path.parent not in self._folders:
            self._folders[path.parent] = FolderFiles(path.parent)
            self._folders[path.parent].read(self.path)
        return self._folders[path.parent].read(path)

    def left_out(self) -> tuple[str, ...]:
        """Name the data and the files of parts that were not read, and in how many parts they are."""
        counts = self.unread_data.copy()
        counts.update(name for folder in self._folders.values() for name in folder.left_out())
        return tuple(f"{name} of {count} part{'s' if count > 1 else ''}" for name, count in counts.items())


class _Own(NamedTuple):
    """Own nodes or edges of a part, of one type."""

    rows: I64  # in the part's graph
    ids: I64  # original ids, or the rows where they are not known
    are_known: bool


class _Rows:
    """The nodes, or the edges, of all parts.

    Attributes:
        names: their types, in DGL's order.
        ranges: int64[types, parts, 2], the homogeneous ids of each type in each part.
        sizes: int64[types, parts], their numbers.
    """

    def __init__(self, config: _Config, kind: str, only_type: str) -> None:
        table: Mapping[str, int] = config.content.get(f"{kind[0]}types", {only_type: 0})
        self.names = sorted(table, key=lambda name: table[name])
        if [table[name] for name in self.names] != list(range(len(self.names))):
            raise GraphDataError(f"type ids must be 0 to {len(self.names) - 1} (got {table})")
        self._config = config
        self._kind = kind
        self.ranges = self._ranges(f"{kind}_map", config.content[f"{kind}_map"], config.content[f"num_{kind}s"])
        self.sizes: I64 = np.diff(self.ranges, axis=2)[:, :, 0]

    def _ranges(self, what: str, table: Any, total: object) -> I64:
        if isinstance(table, list):
            table = {self.names[0]: table}
        if not isinstance(table, dict):
            old = "as DGL wrote before version 0.5 or without reshuffling"
            raise GraphDataError(f"{what} names a file, {old}: repartition the graph")
        if set(table) != set(self.names):
            raise GraphDataError(f"{what} has the types {sorted(table)}, expected {sorted(self.names)}")
        ranges_of = np.zeros((len(self.names), self._config.num_parts, 2), np.int64)
        for number, name in enumerate(self.names):
            rows = table[name]
            if rows and not isinstance(rows[0], list):  # only the ends of the ranges
                rows = list(zip([0, *rows[:-1]], rows, strict=True))
            ranges = np.asarray(rows)
            if ranges.shape != ranges_of.shape[1:] or ranges.dtype.kind != "i":
                raise GraphDataError(f"{what} of {name!r} must have {len(ranges_of[0])} ranges (got {rows!r:.60})")
            ranges_of[number] = ranges
        flat = _by_part(ranges_of)
        if flat[0, 0] != 0 or (flat[:, 0] > flat[:, 1]).any() or (flat[1:, 0] != flat[:-1, 1]).any():
            raise GraphDataError(f"the ranges in {what} do not follow each other")
        if flat[-1, 1] != total:
            raise GraphDataError(f"{what} covers {flat[-1, 1]} ids, expected {total}")
        return ranges_of

    def own(self, part: int, path: Path, data: Mapping[str, Array], unread: Counter[str]) -> list["_Own"]:
        """Return for each type a part's own nodes or edges in the order of their ids.

        ``data`` are those of the part's graph in the file ``path``; what is not read of them is counted.
        """
        for name in (_ID, f"inner_{self._kind}"):
            if name not in data or data[name].ndim != 1 or data[name].dtype.kind not in "iu":
                raise GraphDataError(f"{path}: {self._kind}s have no integers {name!r}")
        rows = np.flatnonzero(data[f"inner_{self._kind}"])
        ids = data[_ID][rows]
        order = np.argsort(ids, kind="stable")
        if not np.array_equal(ids[order], np.arange(self.ranges[0, part, 0], self.ranges[-1, part, 1])):
            raise GraphDataError(f"{path}: its own {self._kind}s are not those that {self._config.path.name} says")
        unread.update(f"{self._kind} data {name!r} in {path.name}" for name in data if name not in _OWN)
        file = self.ids_beside(path)
        beside = read_tensors(file) if file.exists() else {}
        unread.update(f"{key!r} in {file.name}" for key in beside if key not in self.names)
        of_types = []
        for name, of_type in zip(self.names, np.split(rows[order], np.cumsum(self.sizes[:-1, part])), strict=True):
            in_graph = data["orig_id"][of_type] if "orig_id" in data else np.zeros(0, bool)
            ids = np.asarray(beside[name].values) if name in beside else in_graph
            are_known = ids.shape == of_type.shape and ids.dtype.kind in "iu"
            of_types.append(_Own(of_type, ids.astype(np.int64) if are_known else of_type, are_known))
        return of_types

    def ids_beside(self, path: Path) -> Path:
        """Return the file of original ids beside a part's graph, which may not exist."""
        return path.with_name(f"orig_{self._kind[0]}ids.dgl")

    def originals(
        self,
        ids: Sequence[Sequence[Array]],
        are_known: Sequence[Sequence[bool]],
        keys: Sequence[Any],
        ranks: ReadingRanks,
    ) -> tuple[I64, ...] | None:
        """Return the original ids by type, in the order of ``keys``; None, and a line of the log, if not known.

        ``ids`` are those of all parts by type, ``are_known`` whether a part has those of a type.
        """
        if not all(map(all, are_known)):
            text = "%s: DGL kept no original ids of %ss: those that it gave are taken for them"
            get_logger().warning(text, self._config.path, self._kind)
            return None
        counts = self.sizes.sum(axis=1).tolist()

        def make() -> I64:
            typed = typewise([np.concatenate(of_type) for of_type, _ in zip(ids, counts, strict=False)], counts)
            if typed is None:
                raise GraphDataError(f"original ids of {self._kind}s are not those of {counts} {self._kind}s")
            joined: I64 = np.concatenate([np.zeros(0, np.int64), *typed])
            return joined

        whole = ranks.once("reading original ids", make)
        typed = np.split(whole, np.cumsum(counts)[:-1])
        return tuple(typed[t] for t in _order(keys))

    def features(self, types: Mapping[str, int]) -> list[dict[str, Feature]]:
        """Return the features of each type, in the files of all parts; ``types`` has the number of each name of one."""
        chunks: dict[tuple[int, str], dict[int, Feature]] = {}
        files = [self._config.file(part, f"{self._kind}_feats") for part in range(self._config.num_parts)]
        for part, path in enumerate(files):
            with reading(path):
                for key, feature in read_tensors(path).items():
                    t, name = _type_and_name(key, types)
                    if feature.values.shape[:1] != (self.sizes[t, part],):
                        got = list(feature.values.shape)
                        raise GraphDataError(f"{key!r} must have {self.sizes[t, part]} rows (got {got})")
                    chunks.setdefault((t, name), {})[part] = feature
        feats: list[dict[str, Feature]] = [{} for _ in self.names]
        for (t, name), by_part in chunks.items():
            missing = [files[part] for part in np.flatnonzero(self.sizes[t]).tolist() if part not in by_part]
            if missing:
                what = f"feature {name!r} of {self.names[t]!r} is missing, which other parts have"
                raise GraphDataError(f"{missing[0]}: {what}")
            feats[t][name] = _feature(name, list(by_part.values()))
        return feats


def _order(keys: Sequence[Any]) -> list[int]:
    """Return the numbers of types in the order of their names, as in every graph."""
    return sorted(range(len(keys)), key=keys.__getitem__)


def _by_part(table: I64) -> I64:
    """Return a table [types, parts, ...] part by part, and inside a part type by type."""
    return table.swapaxes(0, 1).reshape(-1, *table.shape[2:])


def _source(config: _Config, ranks: ReadingRanks) -> GraphSource:
    nodes = _Rows(config, "node", DEFAULT_NTYPE)
    edges = _Rows(config, "edge", relation_key(DEFAULT_ETYPE))
    limits = _by_part(nodes.ranges[:, :, 1])
    # what makes a homogeneous id one of its type
    shifts = _by_part(np.cumsum(nodes.sizes, axis=1) - nodes.sizes - nodes.ranges[:, :, 0])
    folder = ranks.new_file("")
    for part in range(config.num_parts):
        path = config.file(part, "part_graph")
        for rows in (nodes, edges):
            if rows.ids_beside(path).exists():
                config.read(rows.ids_beside(path))

    def read(part: int) -> tuple[list[list[bool]], list[list[list[int]]], Mapping[str, int]]:
        """Write original ids of nodes and edges by type, then sources and destinations, to a file of the part.

        Returns what original ids are known, the types of nodes that edges join, and data that are not read.
        """
        path = config.file(part, "part_graph")
        graph = read_part_graph(path)
        unread: Counter[str] = Counter()
        own = [rows.own(part, path, of, unread) for rows, of in ((nodes, graph.ndata), (edges, graph.edata))]
        ids = [of_type.ids for of_kind in own for of_type in of_kind]
        joined: list[list[list[int]]] = [[] for _ in edges.names]
        for local in (graph.src, graph.dst):
            for types, of_relation in zip(joined, own[1], strict=True):
                homogeneous = graph.ndata[_ID][local[of_relation.rows]].astype(np.int64)
                place = np.searchsorted(limits, homogeneous, side="right")
                if (homogeneous < 0).any() or (place == len(limits)).any():
                    raise GraphDataError(f"{path}: an edge ends in a node that does not exist")
                ids.append(homogeneous + shifts[place])
                types.append(np.unique(place % len(nodes.names)).tolist())
        with storage_errors(folder, "write a temporary file"):
            folder.mkdir(exist_ok=True)
            np.save(folder / f"{part}.npy", np.concatenate(ids))
        return [[of_type.are_known for of_type in of_kind] for of_kind in own], joined, unread

    told = ranks.exchange.map(f"reading {config.path}", config.num_parts, read)
    sizes = np.concatenate([nodes.sizes, edges.sizes, edges.sizes, edges.sizes])
    files = [np.load(folder / f"{part}.npy", mmap_mode="r") for part in range(config.num_parts)]
    pieces = [np.split(file, np.cumsum(its)[:-1]) for file, its in zip(files, sizes.T, strict=True)]
    tables = list(zip(*pieces, strict=True))
    of_ends = [concatenated(table) for table in tables[len(nodes.names) + len(edges.names) :]]
    ends = list(zip(of_ends[: len(edges.names)], of_ends[len(edges.names) :], strict=True))
    config.unread_data = sum((Counter(unread) for *_, unread in told), Counter())
    joined = [[{t for _, its, _ in told for t in its[r][side]} for side in (0, 1)] for r in range(len(edges.names))]
    for name, sides in zip(edges.names, joined, strict=True):
        if max(map(len, sides)) > 1:
            raise GraphDataError(f"{config.path}: edges of {name!r} join different types of nodes")
    joined_names = [[nodes.names[t] for side in sides for t in side] for sides in joined]
    relations = [
        _relation(name, nodes.names, types_joined) for name, types_joined in zip(edges.names, joined_names, strict=True)
    ]
    if len(set(relations)) < len(relations):
        raise GraphDataError(f"there are two relations of one name among {relations}")
    of_nodes = nodes.features({name: t for t, name in enumerate(nodes.names)})
    names = zip(edges.names, map(":".join, relations), strict=True)
    of_edges = edges.features({name: r for r, both in enumerate(names) for name in both})
    numbers = np.arange(config.num_parts, dtype=np.int32)
    of_types = [np.repeat(numbers, nodes.sizes[t]) for t in _order(nodes.names)]
    return graph_of(
        dict(zip(nodes.names, nodes.sizes.sum(axis=1).tolist(), strict=True)),
        dict(zip(relations, ends, strict=True)),
        dict(zip(nodes.names, of_nodes, strict=True)),
        dict(zip(relations, of_edges, strict=True)),
        path=str(config.path),
        node_ids=nodes.originals(tables, [known[0] for known, *_ in told], nodes.names, ranks),
        edge_ids=edges.originals(tables[len(nodes.names) :], [known[1] for known, *_ in told], relations, ranks),
        parts=Parts(np.concatenate(of_types), config.num_parts),
        left_out=config.left_out(),
    )


def _relation(name: str, ntypes: Sequence[str], joined: Sequence[str]) -> Relation:
    """Return the triple of an edge type; older configurations have only its name. ``joined`` is empty without edges."""
    readings = [relation for relation in relations_in(name, ntypes) if not joined or relation[::2] == tuple(joined)]
    if len(readings) == 1:
        return readings[0]
    if ":" in name or (not joined and len(ntypes) > 1):
        what = f"whose edges join {' and '.join(map(repr, joined))}" if joined else "without edges that tell its types"
        raise GraphDataError(f"edge type {name!r}, {what}, must be <src>:<rel>:<dst>, with types of {list(ntypes)}")
    src, dst = joined or (ntypes[0], ntypes[0])
    return src, name, dst


def _type_and_name(key: str, types: Mapping[str, int]) -> tuple[int, str]:
    """Return the type of a feature "<type>/<name>", or "<name>" of the only type; DGL escapes no "/" in either."""
    prefixes = [name for name in types if key.startswith(f"{name}/")]
    numbers = {types[name] for name in prefixes} or (set() if "/" in key else set(types.values()))
    if len(numbers) != 1:
        reason = f"can be of several types: {prefixes}" if prefixes else "has no type, or one that does not exist"
        raise GraphDataError(f"feature {key!r} {reason}")
    return numbers.pop(), key.removeprefix(f"{prefixes[0]}/") if prefixes else key


def _feature(name: str, chunks: Sequence[Feature]) -> Feature:
    filled = [chunk for chunk in chunks if len(chunk.values)] or chunks[:1]
    dtypes = sorted({chunk.dtype for chunk in filled})
    if len(dtypes) > 1:
        raise GraphDataError(f"feature {name!r} is {' and '.join(dtypes)} in different parts")
    values = concatenated([chunk.values for chunk in filled])
    if name in MASKS and values.dtype == np.uint8:
        return Feature(MadeRows(lambda rows: np.asarray(rows != 0, np.uint8), np.uint8, values), "bool")
    return Feature(values, dtypes[0])
