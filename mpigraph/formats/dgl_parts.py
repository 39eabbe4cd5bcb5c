"""Read a graph that DGL's ``partition_graph`` or its distributed partitioning has partitioned, without DGL.

A configuration ``<name>.json`` names for each part ``graph.dgl``, ``node_feat.dgl`` and ``edge_feat.dgl``. The graph of
a part has homogeneous ids in ``_ID``, whose types the configuration tells, and copies of nodes and edges of other parts
(``inner_node``, ``inner_edge`` are 0), which are left out. Configurations from before DGL 1.0, which know relations by
name alone, are refused.

Nodes and edges keep the type-wise ids that DGL gave them. Original ids are known where the parts' graphs have
``orig_id``, or where ``orig_nids.dgl`` and ``orig_eids.dgl`` lie beside them; else DGL's ids are taken for the original
ones, and a line of the log says so. Data keep their names and dtypes, except ``train_mask``, ``val_mask`` and
``test_mask``: DGL stores them as uint8, and they become bool again. Names of files may lead out of the folder: look at
the configuration of strangers before you read it. ``fused_csc_sampling_graph.pt`` is not read: it is a pickle, which
can run code.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.formats.dgl_binary import read_part_graph, read_tensors
from mpigraph.formats.id_maps import typewise
from mpigraph.formats.input_files import graph_of, read_json, reading
from mpigraph.formats.layout import MASKS, relation_of
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.log import get_logger
from mpigraph.partition.row_arrays import concatenated, made_rows
from mpigraph.partition.source import Feature, GraphSource, Parts
from mpigraph.storage.files import read_text, storage_errors

_ID = "_ID"


def is_dgl_partition(path: Path) -> bool:
    """Return whether a JSON file is the configuration of parts that DGL has written; reads no parts."""
    with suppress(Exception):  # of whatever else it may be
        content = json.loads(read_text(path))
        names = content["part-0"].values()
        return "format" not in content and any(str(name).endswith((".dgl", ".pt")) for name in names)
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
    """The configuration, and the files that it names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = read_json(path)
        self.num_parts = int(self.content["num_parts"])

    def file(self, part: int, which: str) -> Path:
        files: Mapping[str, str] = self.content[f"part-{part}"]
        if which not in files:
            told = f"part {part} has no {which}, only {', '.join(files.values())}"
            raise GraphDataError(
                f"{told}: a .pt file is a pickle, which can run code: partition with use_graphbolt=False"
            )
        return self.path.parent / files[which]


class _Rows:
    """The nodes, or the edges, of all parts.

    Attributes:
        names: their types, in DGL's order.
        ranges: int64[types, parts, 2], the homogeneous ids of each type in each part.
        sizes: int64[types, parts], their numbers.
    """

    def __init__(self, config: _Config, kind: str) -> None:
        what = f"{kind}_map"
        table, ranges = config.content.get(f"{kind[0]}types"), config.content[what]
        if table is None or not isinstance(ranges, dict):
            raise GraphDataError(f"{what} has no types, as before DGL 1.0: let a newer DGL partition the graph")
        self.names = sorted(table, key=table.__getitem__)
        self._config = config
        self.kind = kind
        shape = len(self.names), config.num_parts, 2
        self.ranges: I64 = np.array([ranges[name] for name in self.names], np.int64).reshape(shape)
        self.sizes: I64 = np.diff(self.ranges, axis=2)[:, :, 0]

    def own(self, part: int, path: Path, data: Mapping[str, Array]) -> tuple[list[I64], Any]:
        """Return for each type a part's own nodes or edges in the order of their ids, and their original ids, if known.

        ``data`` are those of the part's graph in the file ``path``.
        """
        rows = np.flatnonzero(data[f"inner_{self.kind}"])
        ids = data[_ID][rows]
        order = np.argsort(ids, kind="stable")
        if not np.array_equal(ids[order], np.arange(self.ranges[0, part, 0], self.ranges[-1, part, 1])):
            raise GraphDataError(f"its own {self.kind}s are not those that {self._config.path.name} says")
        of_types = np.split(rows[order], np.cumsum(self.sizes[:-1, part]))
        if "orig_id" in data:
            return of_types, [data["orig_id"][own] for own in of_types]
        file = path.with_name(f"orig_{self.kind[0]}ids.dgl")
        if not file.exists():
            return of_types, None
        beside = read_tensors(file)
        originals = [np.asarray(beside[name].values) if name in beside else np.zeros(0, int) for name in self.names]
        return of_types, originals if [*map(np.shape, originals)] == [*map(np.shape, of_types)] else None

    def originals(self, tables: Sequence[Sequence[Array]], ranks: ReadingRanks) -> list[I64]:
        """Return the original ids of each type, given in pieces, a part each."""
        counts = self.sizes.sum(axis=1).tolist()

        def make() -> list[tuple[int, Array]]:
            if ranks.exchange.rank:
                return []
            typed = typewise([np.concatenate(pieces) for pieces in tables], counts)
            if typed is None:
                raise GraphDataError(f"original ids of {self.kind}s are not those of {counts} {self.kind}s")
            return [(0, np.concatenate([np.zeros(0, np.int64), *typed]))]

        ids = ranks.rows("reading original ids", sum(counts), np.int64, make)
        return np.split(ids, np.cumsum(counts)[:-1])

    def features(self) -> list[dict[str, Feature]]:
        """Return the features of each type, in the files of all parts."""
        chunks: dict[tuple[int, str], list[Feature]] = {}
        for part in range(self._config.num_parts):
            path = self._config.file(part, f"{self.kind}_feats")
            with reading(path):
                for key, feature in read_tensors(path).items():
                    t, name = self._type_and_name(key)
                    count, shape = self.sizes[t, part], feature.values.shape
                    if shape[:1] != (count,):  # else the sum may be right, with rows of another part
                        raise GraphDataError(f"{key!r} must have {count} rows (got shape {list(shape)})")
                    chunks.setdefault((t, name), []).append(feature)
        feats: list[dict[str, Feature]] = [{} for _ in self.names]
        for (t, name), of_parts in chunks.items():
            feats[t][name] = _feature(name, of_parts)
        return feats

    def _type_and_name(self, key: str) -> tuple[int, str]:
        """Return the type of a feature "<type>/<name>"; DGL escapes no "/" in either."""
        types = [t for t, name in enumerate(self.names) if key.startswith(f"{name}/")]
        if len(types) != 1:
            several = f"can be of several types: {[self.names[t] for t in types]}"
            raise GraphDataError(f"feature {key!r} {several if types else 'has no type, or one that does not exist'}")
        return types[0], key.removeprefix(f"{self.names[types[0]]}/")


def _by_part(table: I64) -> I64:
    """Return a table [types, parts, ...] part by part, and inside a part type by type."""
    return table.swapaxes(0, 1).reshape(-1, *table.shape[2:])


def _source(config: _Config, ranks: ReadingRanks) -> GraphSource:
    nodes, edges = kinds = _Rows(config, "node"), _Rows(config, "edge")
    relations = [relation_of(name, ":", dict.fromkeys(nodes.names), config.path) for name in edges.names]
    limits = _by_part(nodes.ranges[:, :, 1])
    # what makes a homogeneous id one of its type
    shifts = _by_part(np.cumsum(nodes.sizes, axis=1) - nodes.sizes - nodes.ranges[:, :, 0])
    folder = ranks.new_file("")

    def read(part: int) -> list[bool]:
        """Write original ids of nodes and edges by type, then sources and destinations, to a file of the part.

        Returns whether the original ids of nodes, and of edges, are known.
        """
        path = config.file(part, "part_graph")
        with reading(path, config.path.parent):
            graph = read_part_graph(path)
            own = [rows.own(part, path, of) for rows, of in zip(kinds, (graph.ndata, graph.edata), strict=True)]
            ids = [of_type for rows, original in own for of_type in (rows if original is None else original)]
            for side, local in ((0, graph.src), (2, graph.dst)):
                for relation, of_relation in zip(relations, own[1][0], strict=True):
                    homogeneous = graph.ndata[_ID][local[of_relation]].astype(np.int64)
                    place = np.searchsorted(limits, homogeneous, side="right")
                    if (place % len(nodes.names) != nodes.names.index(relation[side])).any():
                        raise GraphDataError(f"an edge of {relation} ends in a node that is no {relation[side]!r}")
                    ids.append(homogeneous + shifts[place])
        with storage_errors(folder, "write a temporary file"):
            folder.mkdir(exist_ok=True)
            np.save(folder / f"{part}.npy", np.concatenate(ids, dtype=np.int64, casting="unsafe"))
        return [original is not None for _, original in own]

    are_known = ranks.exchange.map(f"reading {config.path}", config.num_parts, read)
    files = [np.load(folder / f"{part}.npy", mmap_mode="r") for part in range(config.num_parts)]
    sizes = np.concatenate([nodes.sizes, edges.sizes, edges.sizes, edges.sizes])
    pieces = [np.split(file, np.cumsum(its)[:-1]) for file, its in zip(files, sizes.T, strict=True)]
    tables = list(zip(*pieces, strict=True))
    original: list[tuple[I64, ...] | None] = []
    for rows, keys, known in zip(kinds, (nodes.names, relations), zip(*are_known, strict=True), strict=True):
        its, tables = tables[: len(rows.names)], tables[len(rows.names) :]
        if all(known):
            of_types = rows.originals(its, ranks)
            original.append(tuple(of_types[t] for t in _order(keys)))
        else:
            text = "%s: DGL kept no original ids of %ss: those that it gave are taken for them"
            get_logger().warning(text, config.path, rows.kind)
            original.append(None)
    src, dst = (list(map(concatenated, tables[begin : begin + len(relations)])) for begin in (0, len(relations)))
    numbers = np.arange(config.num_parts, dtype=np.int32)
    return graph_of(
        dict(zip(nodes.names, nodes.sizes.sum(axis=1).tolist(), strict=True)),
        dict(zip(relations, zip(src, dst, strict=True), strict=True)),
        dict(zip(nodes.names, nodes.features(), strict=True)),
        dict(zip(relations, edges.features(), strict=True)),
        path=str(config.path),
        node_ids=original[0],
        edge_ids=original[1],
        parts=Parts(
            np.concatenate([np.repeat(numbers, nodes.sizes[t]) for t in _order(nodes.names)]), config.num_parts
        ),
    )


def _order(keys: Sequence[Any]) -> list[int]:
    """Return the numbers of types in the order of their names, as in every graph."""
    return sorted(range(len(keys)), key=keys.__getitem__)


def _feature(name: str, chunks: Sequence[Feature]) -> Feature:
    filled = [chunk for chunk in chunks if len(chunk.values)] or chunks[:1]
    values = concatenated([chunk.values for chunk in filled])
    if name in MASKS and values.dtype == np.uint8:
        return Feature(made_rows(lambda rows: np.asarray(rows != 0, np.uint8), np.uint8, values), "bool")
    return Feature(values, filled[0].dtype)
