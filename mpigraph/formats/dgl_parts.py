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

DGL's binary files are dictionaries of tensors (``save_tensors``) and graphs (``save_graphs``), both streams
of dmlc-core: little-endian numbers, and 8 bytes with the length before every list and every name. They
hold no code. Arrays are mapped, not read. A file of graphs has::

    magic, 2, kind of graphs, number of graphs      the first 4 KiB
    where the graphs begin, dictionary of labels
    for each graph: its relations as COO, CSR or CSC, number of nodes of each type, node data, edge data, names of types

Of a graph only the first relation is read: DGL's parts are homogeneous, also those of typed graphs.
"""

import json
import os
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError, check_text
from mpigraph.formats.id_maps import typewise
from mpigraph.formats.input_files import FolderFiles, GrowingFile, reading
from mpigraph.formats.shards import parts_of
from mpigraph.log import get_logger
from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Relation, Schema, relation_key, relations_in
from mpigraph.partition.row_arrays import MadeRows, RowArray, concatenated
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage.files import open_regular, read_text

_TENSORS = 0xDD5A9FBE3FA2443F
_GRAPHS = 0xDD2E4FF046B4A13F
_HETERO = 0xDD589FBE35224ABF
_IMMUTABLE = 0xDD3C5FFE20046ABF
_UNIT = 0xDD2E60F0F6B4A127
_NDARRAY = 0xDD5E40F096B4A13F
_CSR_MATRIX = 0xDD6CD31205DFF127
_COO_MATRIX = 0xDD61FFD305DFF127

_VERSION = 2
_HETERO_GRAPHS = 2  # the kind
_META = 4096  # bytes before the graphs

_COO, _CSR, _CSC = 1, 2, 4  # bits of the formats in which a relation is stored
_FLAGS = 1 << 32  # set where formats are given as bits; before, one was given by its number
_BY_NUMBER = {1: _COO, 2: _CSR, 3: _CSC}

_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}
_MOST_DIMENSIONS = 32


@dataclass
class _PartGraph:
    """The graph in a part's ``graph.dgl``: edges int[m] between nodes numbered inside the part, and data by name."""

    num_nodes: int
    src: Array
    dst: Array
    ndata: dict[str, Array]
    edata: dict[str, Array]


def _read_tensors(path: Path) -> dict[str, Feature]:
    """Read a dictionary of tensors. DGL stores bool as uint8.

    Raises GraphDataError: the file is missing, damaged or another one; names it.
    """
    with _opened(path) as stream:
        stream.magic(_TENSORS, "dictionary of tensors")
        stream.skip(8)  # how many there are, which stands there twice
        return stream.named_arrays()


def _read_part_graph(path: Path) -> _PartGraph:
    """Read the graph of a part.

    Raises GraphDataError: the file is missing, damaged, or holds no homogeneous graph; names it.
    """
    with _opened(path) as stream:
        stream.magic(_GRAPHS, "graphs")
        version = stream.number()
        kind = stream.number()
        number = stream.number()
        if (version, kind) != (_VERSION, _HETERO_GRAPHS) or number != 1:
            raise stream.error(f"has {number} graphs of kind {kind} and version {version} (expected one of {_VERSION})")
        stream.at = _META
        stream.at = stream.number()
        stream.magic(_HETERO, "graph")
        _skip_immutable(stream)
        relations = stream.count(8)
        if relations != 1:
            raise stream.error(f"has a graph of {relations} relations (the graph of a part has one)")
        src, dst = _ends(stream)
        counts = [stream.number() for _ in range(stream.count(8))]
        data = [[stream.named_arrays() for _ in range(stream.count(8))] for _ in ("nodes", "edges")]
        if len(counts) != 1 or any(len(frames) != 1 for frames in data):
            raise stream.error("has a typed graph (the graph of a part has no types)")
        tables = []
        for frames, length, what in zip(data, (counts[0], len(src)), ("nodes", "edges"), strict=True):
            for name, feature in frames[0].items():
                if feature.values.ndim < 1 or len(feature.values) != length:
                    raise stream.error(f"data {name!r} must have a row for each of {length} {what}")
            tables.append({name: np.asarray(feature.values) for name, feature in frames[0].items()})
        return _PartGraph(counts[0], src, dst, *tables)


@contextmanager
def _opened(path: Path) -> Iterator["_Stream"]:
    with reading(path), open(open_regular(path), "rb") as file:
        yield _Stream(path, file.fileno())


class _Stream:
    """A file that is read from its beginning to its end, and whose arrays are mapped."""

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        self._file = number
        self._size = os.fstat(number).st_size
        self.at = 0

    def error(self, reason: str) -> GraphDataError:
        return GraphDataError(f"{self.path}: {reason}")

    def skip(self, size: int) -> int:
        """Return where so many bytes begin, and go on behind them."""
        begin = self.at
        if not 0 <= size <= self._size - begin:
            raise self.error(f"is too short, or damaged: {size} bytes are missing at byte {begin} of {self._size}")
        self.at += size
        return begin

    def bytes(self, size: int) -> bytes:
        begin = self.skip(size)
        return os.pread(self._file, size, begin)

    def number(self) -> int:
        return int.from_bytes(self.bytes(8), "little")

    def count(self, least: int) -> int:
        """Read the length of a list whose entries have at least so many bytes."""
        count = self.number()
        if count > (self._size - self.at) // least:
            raise self.error(f"is too short, or damaged: {count} entries do not fit behind byte {self.at}")
        return count

    def name(self) -> str:
        return self.bytes(self.count(1)).decode()

    def magic(self, expected: int, what: str) -> None:
        if self.number() != expected:
            raise self.error(f"holds no {what} of DGL at byte {self.at - 8}")

    def array(self) -> Feature:
        self.magic(_NDARRAY, "array")
        self.skip(8 + 8)  # reserved; the device that it was on
        (ndim,) = struct.unpack("<i", self.bytes(4))
        code, bits, lanes = struct.unpack("<BBH", self.bytes(4))
        if not 0 <= ndim <= _MOST_DIMENSIONS or code not in _KINDS or lanes != 1:
            raise self.error(f"has an array of {ndim} dimensions and of type {code}, {bits}, {lanes} at byte {self.at}")
        shape = struct.unpack(f"<{ndim}q", self.bytes(8 * ndim))
        size = self.number()
        name = f"{_KINDS[code]}{bits}"
        dtype = np.dtype(np.uint16 if name == "bfloat16" else name)
        if min(shape, default=0) < 0 or size != int(np.prod(shape, dtype=object)) * dtype.itemsize:
            raise self.error(f"has an array {name}{list(shape)} of {size} bytes at byte {self.at}")
        begin = self.skip(size)
        if size == 0:
            return Feature(np.zeros(shape, dtype), name)
        return Feature(np.memmap(self.path, dtype, "r", begin, shape), name)

    def ids(self) -> Array:
        ids = np.asarray(self.array().values)
        if ids.ndim != 1 or ids.dtype.kind != "i":
            raise self.error(f"has ids that are {ids.dtype}{list(ids.shape)}")
        return ids

    def named_arrays(self) -> dict[str, Feature]:
        return {self.name(): self.array() for _ in range(self.count(8 + 8))}


def _skip_immutable(stream: _Stream) -> None:
    stream.magic(_IMMUTABLE, "graph of types")
    _csr(stream)


def _csr(stream: _Stream) -> tuple[Array, Array, Array]:
    """Return indptr, indices and the edge of each index (none: its position)."""
    stream.magic(_CSR_MATRIX, "CSR matrix")
    stream.skip(8 + 8)  # the numbers of columns and rows
    arrays = stream.ids(), stream.ids(), stream.ids()
    stream.skip(1)  # whether it is sorted
    return arrays


def _ends(stream: _Stream) -> tuple[Array, Array]:
    stream.magic(_UNIT, "relation")
    stored = stream.number()
    formats = stored & (_FLAGS - 1) if stored >= _FLAGS else _BY_NUMBER.get(stored, 0)
    stream.skip(8)  # the formats that it may have
    in_order: tuple[Array, Array] | None = None
    for bit in (_COO, _CSR, _CSC):
        if formats & bit:
            _skip_immutable(stream)
            ends = _coo_ends(stream) if bit == _COO else _csr_ends(stream, by_dst=bit == _CSC)
            in_order = in_order or ends
    if in_order is None:
        raise stream.error(f"has a relation in no known format ({stored:#x})")
    return in_order


def _coo_ends(stream: _Stream) -> tuple[Array, Array]:
    stream.magic(_COO_MATRIX, "COO matrix")
    stream.skip(8 + 8)
    src = stream.ids()
    dst = stream.ids()
    edges = stream.ids()
    stream.skip(2)  # whether it is sorted
    if len(src) != len(dst) or len(edges) not in (0, len(src)):
        raise stream.error(f"has a COO matrix of {len(src)}, {len(dst)} and {len(edges)} edges")
    return _in_order(stream, edges, src), _in_order(stream, edges, dst)


def _csr_ends(stream: _Stream, by_dst: bool) -> tuple[Array, Array]:
    indptr, indices, edges = _csr(stream)
    rising = len(indptr) and indptr[0] == 0 and indptr[-1] == len(indices) and (np.diff(indptr) >= 0).all()
    if not rising or len(edges) not in (0, len(indices)):
        raise stream.error("has a CSR matrix that contradicts itself")
    rows = np.repeat(np.arange(len(indptr) - 1, dtype=indices.dtype), np.diff(indptr))
    ends = _in_order(stream, edges, rows), _in_order(stream, edges, indices)
    return ends[::-1] if by_dst else ends


def _in_order(stream: _Stream, edges: Array, values: Array) -> Array:
    """Return the value of each edge, of values that stand beside the edges' numbers."""
    if not len(edges):
        return values
    if not np.array_equal(np.sort(edges), np.arange(len(values))):
        raise stream.error("has edges that are not numbered through")
    in_order = np.empty_like(values)
    in_order[edges] = values
    return in_order


_MASKS = ("train_mask", "val_mask", "test_mask")
_NID = _EID = "_ID"
_OWN = (_NID, "_TYPE", "inner_node", "inner_edge", "orig_id", "part_id")  # what DGL puts into the graph of a part


def is_dgl_partition(path: Path) -> bool:
    """Return whether a JSON file is the configuration of parts that DGL has written; reads no parts."""
    try:
        content = json.loads(read_text(path))
        part = content["part-0"]
        return "format" not in content and any(str(name).endswith((".dgl", ".pt")) for name in part.values())
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return False


def read_dgl_partition(path: Path, scratch: Path | None = None) -> GraphSource:
    """Read a graph that DGL has partitioned; the source has these parts.

    Args:
        path: the configuration.
        scratch: folder of temporary files, as large as the edges; None for the system's.

    Raises:
        GraphDataError: a file is missing or damaged, or they contradict one another; names the file.
        StorageError: a temporary file cannot be written.
    """
    with reading(path, path.parent):
        return _source(_Config(path), scratch)


class _Config:
    """The configuration. Types are in DGL's order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        content: dict[str, Any] = json.loads(read_text(path))
        self.num_parts = int(content["num_parts"])
        if self.num_parts < 1:
            raise GraphDataError(f"num_parts must be at least 1 (got {self.num_parts})")
        self.files: list[Mapping[str, str]] = [content[f"part-{part}"] for part in range(self.num_parts)]
        self.ntypes = _by_id(content.get("ntypes", {DEFAULT_NTYPE: 0}))
        self.etypes = _by_id(content.get("etypes", {relation_key(DEFAULT_ETYPE): 0}))
        self.nodes = self._ranges("node_map", content["node_map"], self.ntypes, content["num_nodes"])
        self.edges = self._ranges("edge_map", content["edge_map"], self.etypes, content["num_edges"])
        of_parts = self.nodes.transpose(1, 0, 2).reshape(-1, 2)  # part by part, and inside a part type by type
        sizes = np.diff(self.nodes, axis=2)[:, :, 0]
        first = np.cumsum(sizes, axis=1) - sizes  # [types, parts], the first id of a type in a part
        self.ends = of_parts[:, 1]
        self.shift = first.T.reshape(-1) - of_parts[:, 0]
        self.folders: dict[Path, FolderFiles] = {}
        self.unread_data: Counter[str] = Counter()

    def _ranges(self, what: str, table: Any, names: Sequence[str], total: object) -> I64:
        """Return int64[types, parts, 2], the homogeneous ids of each type in each part."""
        if isinstance(table, list):
            table = {names[0]: table}
        if not isinstance(table, dict):
            old = "as DGL wrote before version 0.5 or without reshuffling"
            raise GraphDataError(f"{what} names a file, {old}: repartition the graph")
        if set(table) != set(names):
            raise GraphDataError(f"{what} has the types {sorted(table)}, expected {sorted(names)}")
        ranges_of = np.zeros((len(names), self.num_parts, 2), np.int64)
        for number, name in enumerate(names):
            rows = table[name]
            if rows and not isinstance(rows[0], list):  # only the ends of the ranges
                rows = list(zip([0, *rows[:-1]], rows, strict=True))
            ranges = np.asarray(rows)
            if ranges.shape != (self.num_parts, 2) or ranges.dtype.kind != "i":
                raise GraphDataError(f"{what} of {name!r} must have {self.num_parts} ranges (got {rows!r:.60})")
            ranges_of[number] = ranges
        flat = ranges_of.transpose(1, 0, 2).reshape(-1, 2)  # part by part, and inside a part type by type
        if flat[0, 0] != 0 or (flat[:, 0] > flat[:, 1]).any() or (flat[1:, 0] != flat[:-1, 1]).any():
            raise GraphDataError(f"the ranges in {what} do not follow each other")
        if flat[-1, 1] != total:
            raise GraphDataError(f"{what} covers {flat[-1, 1]} ids, expected {total}")
        return ranges_of

    def file(self, part: int, which: str) -> Path:
        files = self.files[part]
        if which == "part_graph" and which not in files:
            raise GraphDataError(
                f"part {part} has no graph.dgl, only {', '.join(files.values())}: a .pt file of GraphBolt is a pickle, "
                "which runs code when it is read, so it is not. Write the parts again with use_graphbolt=False"
            )
        return self.read(self.path.parent / check_text(f"{which} of part {part}", files[which]))

    def read(self, path: Path) -> Path:
        """Note that a file of a part is read; return its path."""
        if path.parent not in self.folders:
            self.folders[path.parent] = FolderFiles(path.parent)
            self.folders[path.parent].read(self.path)
        return self.folders[path.parent].read(path)

    def left_out(self) -> tuple[str, ...]:
        """Name the data and the files of parts that were not read, and in how many parts they are."""
        counts = self.unread_data.copy()
        counts.update(name for folder in self.folders.values() for name in folder.left_out())
        return tuple(f"{name} of {count} part{'s' if count > 1 else ''}" for name, count in counts.items())


def _by_id(table: Mapping[str, int]) -> list[str]:
    """Return names in the order of their ids, which must be 0 to n - 1."""
    names = sorted(table, key=lambda name: table[name])
    if [table[name] for name in names] != list(range(len(names))):
        raise GraphDataError(f"type ids must be 0 to {len(names) - 1} (got {table})")
    return names


@dataclass
class _Collected:
    """Edges by relation, the types that they join, and original ids by type and part, None where they are not known."""

    edges: list[tuple[GrowingFile, GrowingFile]]  # sources and destinations
    joined: list[tuple[int, int] | None]
    node_ids: list[list[I64 | None]]
    edge_ids: list[list[I64 | None]]


def _source(config: _Config, scratch: Path | None) -> GraphSource:
    with ExitStack() as stack:
        files = [stack.enter_context(GrowingFile(np.int64, (), scratch)) for _ in range(2 * len(config.etypes))]
        edges = list(zip(files[::2], files[1::2], strict=True))
        collected = _Collected(edges, [None] * len(edges), [[] for _ in config.ntypes], [[] for _ in edges])
        for part in range(config.num_parts):
            _Part(config, part).collect(collected)
        ends = [(src.finish(), dst.finish()) for src, dst in edges]
    relations = [_relation(config, name, joined) for name, joined in zip(config.etypes, collected.joined, strict=True)]
    node_feats, edge_feats = _features(config, relations)
    # in alphabetical order, as from the other readers
    ntype_order = sorted(range(len(config.ntypes)), key=config.ntypes.__getitem__)
    order = sorted(range(len(relations)), key=relations.__getitem__)
    schema = Schema(tuple(config.ntypes[t] for t in ntype_order), tuple(relations[r] for r in order))
    book = RangeBook(schema, _offsets(config.nodes, ntype_order), _offsets(config.edges, order))
    counts = tuple(book.num_nodes(t) for t in range(len(ntype_order)))
    return GraphSource(
        schema,
        counts,
        tuple(ends[r] for r in order),
        {name: node_feats.get(name, {}) for name in schema.ntypes},
        {relation_key(relation): edge_feats.get(relation, {}) for relation in schema.relations},
        path=str(config.path),
        node_ids=_known(config, "nodes", [collected.node_ids[t] for t in ntype_order], counts),
        edge_ids=_known(config, "edges", [collected.edge_ids[r] for r in order], [len(ends[r][0]) for r in order]),
        parts=parts_of(book),
        left_out=config.left_out(),
    )


class _Part:
    def __init__(self, config: _Config, part: int) -> None:
        self.config = config
        self.part = part
        self.path = config.file(part, "part_graph")
        self.graph: _PartGraph = _read_part_graph(self.path)
        self.inner = self._data("nodes", "inner_node").astype(bool)
        for what, data in (("node", self.graph.ndata), ("edge", self.graph.edata)):
            config.unread_data.update(f"{what} data {name!r} in {self.path.name}" for name in data if name not in _OWN)

    def _data(self, what: str, name: str) -> Array:
        data = self.graph.ndata if what == "nodes" else self.graph.edata
        if name not in data or data[name].ndim != 1 or data[name].dtype.kind not in "iu":
            raise GraphDataError(f"{self.path}: {what} have no integers {name!r}")
        return data[name]

    def collect(self, collected: _Collected) -> None:
        """Add the part's own edges to those of each relation, and its original ids."""
        graph = self.graph
        config = self.config
        nids = self._data("nodes", _NID)
        eids = np.asarray(self._data("edges", _EID), np.int64)
        inner_edges = self._data("edges", "inner_edge").astype(bool)
        own_ids = [np.arange(*ids) for ids in config.nodes[:, self.part].tolist()]
        if not np.array_equal(np.sort(nids[self.inner]), np.concatenate(own_ids)):
            raise GraphDataError(f"{self.path}: its own nodes are not those that {config.path.name} says")
        if len(graph.src) and max(int(graph.src.max()), int(graph.dst.max())) >= graph.num_nodes:
            raise GraphDataError(f"{self.path}: an edge ends in a node that does not exist")
        beside = self._beside("orig_nids.dgl", config.ntypes)
        for t, name in enumerate(config.ntypes):
            begin, end = config.nodes[t, self.part].tolist()
            own = graph.ndata.get("orig_id"), nids, self.inner
            collected.node_ids[t].append(self._originals(*own, (begin, end), beside.get(name)))
        beside = self._beside("orig_eids.dgl", config.etypes)
        for r, name in enumerate(config.etypes):
            begin, end = config.edges[r, self.part].tolist()
            chosen = self._in_range(f"edges of {name!r}", eids, inner_edges, begin, end)
            types_src, src = self._typed(nids, graph.src[chosen])
            types_dst, dst = self._typed(nids, graph.dst[chosen])
            if len(chosen):
                joined = collected.joined[r] = collected.joined[r] or (int(types_src[0]), int(types_dst[0]))
                if (types_src != joined[0]).any() or (types_dst != joined[1]).any():
                    raise GraphDataError(f"{self.path}: edges of {name!r} join different types of nodes")
            for file, ids in zip(collected.edges[r], (src, dst), strict=True):
                file.append(ids)
            own = graph.edata.get("orig_id"), eids, inner_edges
            collected.edge_ids[r].append(self._originals(*own, (begin, end), beside.get(name)))

    def _typed(self, nids: Array, local: Array) -> tuple[I64, I64]:
        """Return type and type-wise id of nodes that are numbered inside the part."""
        ids = nids[local].astype(np.int64)
        place = np.searchsorted(self.config.ends, ids, side="right")
        if (ids < 0).any() or (place == len(self.config.ends)).any():
            raise GraphDataError(f"{self.path}: an edge ends in a node that does not exist")
        return place % len(self.config.ntypes), ids + self.config.shift[place]

    def _in_range(self, what: str, ids: Array, inner: Array, begin: int, end: int) -> I64:
        """Return the positions of the ids ``begin`` to ``end - 1``, in the order of these ids."""
        chosen = np.flatnonzero(inner & (ids >= begin) & (ids < end))
        order = np.argsort(ids[chosen], kind="stable")
        if not np.array_equal(ids[chosen][order], np.arange(begin, end)):
            raise GraphDataError(f"{self.path}: its {what} are not the {end - begin} that the configuration says")
        return chosen[order]

    def _beside(self, name: str, types: Sequence[str]) -> dict[str, Feature]:
        """Return the original ids in a file beside the part's graph; nothing without such a file."""
        path = self.path.with_name(name)
        ids = _read_tensors(self.config.read(path)) if path.exists() else {}
        self.config.unread_data.update(f"{key!r} in {name}" for key in ids if key not in types)
        return ids

    def _originals(
        self, data: Array | None, ids: Array, inner: Array, bounds: tuple[int, int], beside: Feature | None
    ) -> I64 | None:
        """Return the original ids of one type, which are data of the graph or lie beside it; None if not known."""
        originals: Array = np.zeros(0, np.int64)
        if beside is not None:
            originals = np.asarray(beside.values[:])
        elif data is not None:
            originals = np.asarray(data[self._in_range("ids", ids, inner, *bounds)])
        is_known = originals.shape == (bounds[1] - bounds[0],) and originals.dtype.kind in "iu"
        return originals.astype(np.int64) if is_known else None


def _known(
    config: _Config, what: str, ids: Sequence[Sequence[I64 | None]], counts: Sequence[int]
) -> tuple[RowArray, ...] | None:
    """Return the original ids of "nodes" or "edges" by type, None if they are not known."""
    known = [[chunk for chunk in chunks if chunk is not None] for chunks in ids]
    if all(len(chunks) == config.num_parts for chunks in known):
        typed = typewise([np.concatenate(chunks) for chunks in known], counts)
        if typed is not None:
            return tuple(typed)
        raise GraphDataError(f"original ids of {what} are not those of {list(counts)} {what}")
    get_logger().warning("%s: DGL kept no original ids of %s: those that it gave are taken for them", config.path, what)
    return None


def _relation(config: _Config, name: str, ends: tuple[int, int] | None) -> Relation:
    """Return the triple of an edge type; older configurations have only its name."""
    if ":" in name:
        readings = relations_in(name, config.ntypes)
        if ends is not None:
            joined = config.ntypes[ends[0]], config.ntypes[ends[1]]
            if readings and joined not in {relation[::2] for relation in readings}:
                raise GraphDataError(f"edges of {name!r} join {joined[0]!r} and {joined[1]!r}")
            readings = [relation for relation in readings if relation[::2] == joined]
        if len(readings) != 1:
            raise GraphDataError(f"an edge type is <src>:<rel>:<dst>, with types of {config.ntypes} (got {name!r})")
        return readings[0]
    if ends is None:
        if len(config.ntypes) > 1:
            remedy = "name it <src>:<rel>:<dst>"
            raise GraphDataError(f"edge type {name!r} has no edges that tell which types it joins: {remedy}")
        ends = 0, 0
    return config.ntypes[ends[0]], name, config.ntypes[ends[1]]


def _offsets(ranges: I64, order: Sequence[int]) -> tuple[I64, ...]:
    """Return for each type int64[parts + 1]: where each part begins."""
    return tuple(np.concatenate([[0], np.cumsum(np.diff(ranges[t], axis=1)[:, 0])]) for t in order)


def _features(
    config: _Config, relations: Sequence[Relation]
) -> tuple[dict[str, dict[str, Feature]], dict[Relation, dict[str, Feature]]]:
    of_nodes = {name: name for name in config.ntypes}
    of_edges: dict[str, Relation] = {}
    for name, relation in zip(config.etypes, relations, strict=True):
        of_edges |= {name: relation, ":".join(relation): relation}
    nodes = _joined(config, "node_feats", of_nodes, dict(zip(config.ntypes, config.nodes, strict=True)))
    edges = _joined(config, "edge_feats", of_edges, dict(zip(relations, config.edges, strict=True)))
    return nodes, edges


def _joined(config: _Config, which: str, known: Mapping[str, Any], ranges: Mapping[Any, I64]) -> dict[Any, Any]:
    """Return the features in the files of all parts. They are called "<type>/<name>", or "<name>" of the only type."""
    chunks: dict[tuple[Any, str], dict[int, Feature]] = {}
    for part in range(config.num_parts):
        path = config.file(part, which)
        for key, feature in _read_tensors(path).items():
            owner, name = _owner(path, key, known)
            rows = int(np.diff(ranges[owner][part])[0])
            if feature.values.ndim < 1 or len(feature.values) != rows:
                raise GraphDataError(f"{path}: {key!r} must have {rows} rows (got {list(feature.values.shape)})")
            chunks.setdefault((owner, name), {})[part] = feature
    joined: dict[Any, dict[str, Feature]] = {}
    for (owner, name), by_part in chunks.items():
        sizes = np.diff(ranges[owner], axis=1)[:, 0]
        missing = [part for part in range(config.num_parts) if part not in by_part and sizes[part]]
        if missing:
            path = config.file(missing[0], which)
            raise GraphDataError(f"{path}: feature {name!r} of {owner!r} is missing, which other parts have")
        joined.setdefault(owner, {})[name] = _feature(name, [by_part[part] for part in sorted(by_part)])
    return joined


def _owner(path: Path, key: str, known: Mapping[str, Any]) -> tuple[Any, str]:
    """Return type and name of a feature; DGL does not escape a "/" in either."""
    types = [name for name in known if key.startswith(f"{name}/")]
    owners = {known[name] for name in types}
    if len(owners) > 1:
        raise GraphDataError(f"{path}: feature {key!r} can be of several types: {types}")
    if types:
        return known[types[0]], key.removeprefix(f"{types[0]}/")
    if "/" in key:
        raise GraphDataError(f"{path}: feature {key!r} of a type that does not exist")
    every = set(known.values())
    if len(every) > 1:
        raise GraphDataError(f"{path}: feature {key!r} has no type")
    return every.pop(), key


def _feature(name: str, chunks: Sequence[Feature]) -> Feature:
    filled = [chunk for chunk in chunks if len(chunk.values)] or chunks[:1]
    dtypes = sorted({chunk.dtype for chunk in filled})
    if len(dtypes) > 1:
        raise GraphDataError(f"feature {name!r} is {' and '.join(dtypes)} in different parts")
    values = concatenated([chunk.values for chunk in filled])
    if name in _MASKS and values.dtype == np.uint8:
        return Feature(MadeRows(lambda rows: np.asarray(rows != 0, np.uint8), np.uint8, values), "bool")
    return Feature(values, dtypes[0])
