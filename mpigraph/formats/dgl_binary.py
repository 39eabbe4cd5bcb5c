"""Read DGL's binary files without DGL: dictionaries of tensors (``save_tensors``) and graphs (``save_graphs``).

Both are streams of dmlc-core: little-endian numbers, and 8 bytes with the length before every list and every name. They
hold no code. Arrays are mapped, not read. A file of graphs has::

    magic, 2, kind of graphs, number of graphs      the first 4 KiB
    where the graphs begin, dictionary of labels
    for each graph: its relations as COO, CSR or CSC, number of nodes of each type, node data, edge data, names of types

Of a graph only the first relation is read: DGL's parts are homogeneous, also those of typed graphs.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError
from mpigraph.formats.input_files import reading
from mpigraph.partition.source import Feature
from mpigraph.storage.files import open_regular

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
class PartGraph:
    """The graph in a part's ``graph.dgl``: edges int[m] between nodes numbered inside the part, and data by name."""

    num_nodes: int
    src: Array
    dst: Array
    ndata: dict[str, Array]
    edata: dict[str, Array]


def read_tensors(path: Path) -> dict[str, Feature]:
    """Read a dictionary of tensors. DGL stores bool as uint8.

    Raises GraphDataError: the file is missing, damaged or another one; names it.
    """
    with _opened(path) as stream:
        stream.magic(_TENSORS, "dictionary of tensors")
        stream.skip(8)  # how many there are, which stands there twice
        return stream.named_arrays()


def read_part_graph(path: Path) -> PartGraph:
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
        src, dst = _relation(stream)
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
        return PartGraph(counts[0], src, dst, *tables)


@contextmanager
def _opened(path: Path) -> "Iterator[_Stream]":
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


def _relation(stream: _Stream) -> tuple[Array, Array]:
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
