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
from typing import IO, Any, NamedTuple

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

_ONE_GRAPH = (2, 2, 1)  # version, kind of graphs, and how many there are
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
        if stream.unpack("<3Q") != _ONE_GRAPH:
            raise GraphDataError("has not one graph in the form of DGL 0.9 to 2")
        stream.skip(_META - stream.file.tell())
        stream.file.seek(stream.number())
        stream.magic(_HETERO, "graph")
        stream.skip_types()
        stream.skip(8)  # the number of relations: parts of typed graphs have one, too
        src, dst = stream.ends()
        stream.skip(8 * stream.number())  # numbers of nodes
        frames = [stream.named_arrays() for _ in ("nodes", "edges") for _ in range(stream.number())]
        tables = [{name: np.asarray(feature.values) for name, feature in frame.items()} for frame in frames]
        return PartGraph(src, dst, *tables)


@contextmanager
def _opened(path: Path) -> Iterator["_Stream"]:
    with reading(path), open(open_regular(path), "rb") as file:
        yield _Stream(path, file)


class _Stream(NamedTuple):
    """A file that is read from its beginning to its end, and whose arrays are mapped."""

    path: Path
    file: IO[bytes]

    def skip(self, size: int) -> int:
        """Return where so many bytes begin, and go on behind them."""
        return self.file.seek(size, os.SEEK_CUR) - size

    def unpack(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self.file.read(struct.calcsize(form)))

    def number(self) -> int:
        return int(self.unpack("<Q")[0])

    def magic(self, expected: int, what: str) -> None:
        if self.number() != expected:
            raise GraphDataError(f"holds no {what} of DGL at byte {self.file.tell() - 8}")

    def array(self) -> Feature:
        self.magic(_NDARRAY, "array")
        _, _, ndim, code, bits, _ = self.unpack("<QQiBBH")  # the others: reserved, its device, lanes
        *shape, size = self.unpack(f"<{ndim}qQ")
        name = f"{_KINDS[code]}{bits}"
        dtype = np.dtype(np.uint16 if name == "bfloat16" else name)
        begin = self.skip(size)
        if size == 0:
            return Feature(np.zeros(shape, dtype), name)
        return Feature(np.memmap(self.path, dtype, "r", begin, tuple(shape)), name)

    def named_arrays(self) -> dict[str, Feature]:
        arrays = {}
        for _ in range(self.number()):
            (name,) = self.unpack(f"<{self.number()}s")
            arrays[name.decode()] = self.array()
        return arrays

    def skip_types(self) -> None:
        """Read on behind a graph of types."""
        self.magic(_IMMUTABLE, "graph of types")
        self.matrix(is_csr=True)

    def ends(self) -> tuple[Array, Array]:
        """Return the ends of all edges of a relation, of the first format in which it is stored."""
        self.magic(_UNIT, "relation")
        formats = self.number()
        self.skip(8)  # the formats that it may have
        ends = []
        for bit in (_COO, _CSR, _CSC):
            if formats & bit:
                self.skip_types()
                rows, columns = self.matrix(is_csr=bit != _COO)
                ends.append((columns, rows) if bit == _CSC else (rows, columns))
        return ends[0]

    def matrix(self, is_csr: bool) -> tuple[Array, Array]:
        """Return row and column of each edge in a sparse matrix, in the order of the edges."""
        self.magic(_CSR_MATRIX if is_csr else _COO_MATRIX, "sparse matrix")
        self.skip(8 + 8)  # the numbers of rows and columns
        rows, columns, edges = (np.asarray(self.array().values) for _ in range(3))
        self.skip(1 if is_csr else 2)  # whether it is sorted
        if is_csr:
            rows = np.repeat(np.arange(len(rows) - 1, dtype=columns.dtype), np.diff(rows))
        if not len(edges):  # they are in order
            return rows, columns
        in_order = np.empty_like(rows), np.empty_like(columns)
        for values, ordered in zip((rows, columns), in_order, strict=True):
            ordered[edges] = values
        return in_order
