"""Read DGL's binary files without DGL.

They are dictionaries of tensors (``save_tensors``) and graphs (``save_graphs``), both streams of dmlc-core:
little-endian numbers, and 8 bytes with the length before every list and every name. They hold no code.
Arrays are mapped, not read. A file of graphs has::

    magic, 2, kind of graphs, number of graphs      the first 4 KiB
    where the graphs begin, dictionary of labels
    for each graph: its relations as COO, CSR or CSC, number of nodes of each type, node data, edge data, names of types

Of a graph only the first relation is read: DGL's parts are homogeneous, also those of typed graphs.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

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

_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}


class PartGraph(NamedTuple):
    """The graph in a part's ``graph.dgl``: edges int[m] between nodes numbered inside the part, and data by name."""

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
        version, kind, number = stream.unpack("<3Q")
        if (version, kind, number) != (_VERSION, _HETERO_GRAPHS, 1):
            raise stream.error(f"has {number} graphs of kind {kind} and version {version} (expected one of {_VERSION})")
        stream.at = _META
        stream.at = stream.number()
        stream.magic(_HETERO, "graph")
        stream.skip_types()
        relations = stream.number()
        if relations != 1:
            raise stream.error(f"has a graph of {relations} relations (the graph of a part has one)")
        src, dst = _ends(stream)
        counts = [stream.number() for _ in range(stream.number())]
        data = [[stream.named_arrays() for _ in range(stream.number())] for _ in ("nodes", "edges")]
        if [1, 1, 1] != [len(counts), *map(len, data)]:
            raise stream.error("has a typed graph (the graph of a part has no types)")
        if len(src) and not 0 <= min(src.min(), dst.min()) <= max(src.max(), dst.max()) < counts[0]:
            raise stream.error("an edge ends in a node that does not exist")
        tables = [{name: np.asarray(feature.values) for name, feature in frame.items()} for (frame,) in data]
        return PartGraph(src, dst, *tables)


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

    def unpack(self, form: str) -> tuple[Any, ...]:
        size = struct.calcsize(form)
        begin = self.skip(size)
        return struct.unpack(form, os.pread(self._file, size, begin))

    def number(self) -> int:
        return int(self.unpack("<Q")[0])

    def magic(self, expected: int, what: str) -> None:
        if self.number() != expected:
            raise self.error(f"holds no {what} of DGL at byte {self.at - 8}")

    def array(self) -> Feature:
        self.magic(_NDARRAY, "array")
        _, _, ndim, code, bits, lanes = self.unpack("<QQiBBH")  # the first: reserved; the device that it was on
        if code not in _KINDS or lanes != 1:
            raise self.error(f"has an array of {ndim} dimensions and of type {code}, {bits}, {lanes} at byte {self.at}")
        *shape, size = self.unpack(f"<{ndim}qQ")
        name = f"{_KINDS[code]}{bits}"
        dtype = np.dtype(np.uint16 if name == "bfloat16" else name)
        if size != int(np.prod(shape, dtype=object)) * dtype.itemsize:
            raise self.error(f"has an array {name}{shape} of {size} bytes at byte {self.at}")
        begin = self.skip(size)
        if size == 0:
            return Feature(np.zeros(shape, dtype), name)
        return Feature(np.memmap(self.path, dtype, "r", begin, tuple(shape)), name)

    def ids(self) -> Array:
        ids = np.asarray(self.array().values)
        if ids.ndim != 1 or ids.dtype.kind != "i":
            raise self.error(f"has ids that are {ids.dtype}{list(ids.shape)}")
        return ids

    def skip_types(self) -> None:
        """Read on behind a graph of types."""
        self.magic(_IMMUTABLE, "graph of types")
        _matrix(self, is_csr=True)

    def named_arrays(self) -> dict[str, Feature]:
        arrays = {}
        for _ in range(self.number()):
            (name,) = self.unpack(f"<{self.number()}s")
            arrays[name.decode()] = self.array()
        return arrays


def _ends(stream: _Stream) -> tuple[Array, Array]:
    """Return the ends of all edges of a relation, of the first format in which it is stored."""
    stream.magic(_UNIT, "relation")
    formats = stream.number()
    stream.skip(8)  # the formats that it may have
    ends = []
    for bit in (_COO, _CSR, _CSC):
        if formats & bit:
            stream.skip_types()
            rows, columns = _matrix(stream, is_csr=bit != _COO)
            ends.append((columns, rows) if bit == _CSC else (rows, columns))
    if not ends:
        raise stream.error(f"has a relation in no known format ({formats:#x})")
    return ends[0]


def _matrix(stream: _Stream, is_csr: bool) -> tuple[Array, Array]:
    """Return row and column of each edge in a sparse matrix, in the order of the edges."""
    stream.magic(_CSR_MATRIX if is_csr else _COO_MATRIX, "sparse matrix")
    stream.skip(8 + 8)  # the numbers of rows and columns
    rows, columns, edges = stream.ids(), stream.ids(), stream.ids()
    stream.skip(1 if is_csr else 2)  # whether it is sorted
    if is_csr:
        rows = np.repeat(np.arange(len(rows) - 1, dtype=columns.dtype), np.diff(rows))
    if len(rows) != len(columns) or len(edges) not in (0, len(rows)):
        raise stream.error(f"has a matrix of {len(rows)}, {len(columns)} and {len(edges)} edges")
    if not len(edges):  # they are in order
        return rows, columns
    if not np.array_equal(np.sort(edges), np.arange(len(rows))):
        raise stream.error("has edges that are not numbered through")
    in_order = np.empty_like(rows), np.empty_like(columns)
    for values, ordered in zip((rows, columns), in_order, strict=True):
        ordered[edges] = values
    return in_order
