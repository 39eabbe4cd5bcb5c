"""Read a graph in METIS's text format, ``.graph`` or ``.metis``.

The first line has the numbers of nodes and of undirected edges, then optionally which weights there are (``fmt``: sizes
of nodes, weights of nodes, weights of edges) and how many weights a node has. Each further line is a node: its size,
its weights, and its neighbours, numbered from 1, each with the weight of the edge. Lines that begin with % are
comments. Every edge stands at both its ends, so it becomes one edge in each direction. Sizes and weights become the
node features "size" and "weight", and the edge feature "weight".
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np

from mpigraph.arrays import I64
from mpigraph.errors import GraphDataError
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Schema, relation_key
from mpigraph.partition.row_arrays import GrowingFile
from mpigraph.partition.source import EDGES_PER_CHUNK, Feature, GraphSource
from mpigraph.storage.files import open_regular

__all__ = ["is_metis", "read_metis"]

_ENDINGS = (".graph", ".metis")


def is_metis(path: Path) -> bool:
    """Return whether a file is METIS's by its name."""
    return path.suffix in _ENDINGS


def read_metis(path: Path, scratch: Path | None = None) -> GraphSource:
    """Read a graph.

    Args:
        path: the file.
        scratch: folder of temporary files, as large as the edges; None for the system's.

    Raises:
        GraphDataError: a line is no node, or there are more or fewer nodes or edges than the first line says; names
            the line.
        StorageError: a temporary file cannot be written.
    """
    with open(open_regular(path), encoding="ascii") as file, ExitStack() as stack:
        lines = _numbers(path, file)
        header = next(lines, (0, []))[1]
        if not 2 <= len(header) <= 4 or min(header) < 0:
            raise GraphDataError(
                f"{path}: the first line must be numbers of nodes and edges, fmt and ncon (got {header})"
            )
        num_nodes, num_edges, fmt, *ncon = [*header, 0] if len(header) == 2 else header
        sizes = fmt // 100 % 10
        weights = fmt // 10 % 10 * (ncon[0] if ncon else 1)
        edge_weights = fmt % 10
        if fmt > 111 or max(map(int, str(fmt))) > 1:
            raise GraphDataError(f"{path}: fmt has three digits that are 0 or 1 (got {fmt})")
        columns = 1 + edge_weights
        of_nodes = stack.enter_context(GrowingFile(np.int64, (sizes + weights,), scratch))
        edges = stack.enter_context(GrowingFile(np.int64, (1 + columns,), scratch))
        for nodes, table in _nodes(path, lines, num_nodes, sizes + weights, columns):
            of_nodes.append(nodes)
            edges.append(table)
        if len(of_nodes) != num_nodes or len(edges) != 2 * num_edges:
            raise GraphDataError(
                f"{path} has {len(of_nodes)} nodes with {len(edges)} neighbours, but its first line says {num_nodes} "
                f"nodes and {num_edges} edges, each of which stands at both ends"
            )
        told = of_nodes.finish()
        rows = edges.finish()
    node_feats = {}
    if sizes:
        node_feats["size"] = Feature.of(told[:, 0])
    if weights:
        node_feats["weight"] = Feature.of(told[:, sizes] if weights == 1 else told[:, sizes:])
    edge_feats = {"weight": Feature.of(rows[:, 2])} if edge_weights else {}
    return GraphSource(
        Schema.homogeneous(),
        (num_nodes,),
        ((rows[:, 0], rows[:, 1]),),
        {DEFAULT_NTYPE: node_feats},
        {relation_key(DEFAULT_ETYPE): edge_feats},
        has_reverse=True,
    )


def _numbers(path: Path, file: IO[str]) -> Iterator[tuple[int, list[int]]]:
    """Yield the numbers of each line that is no comment, and which line it is."""
    for number, line in enumerate(file, 1):
        if not line.startswith("%"):
            try:
                yield number, list(map(int, line.split()))
            except ValueError as error:
                raise GraphDataError(f"{path}, line {number}: {error}") from error


def _nodes(
    path: Path, lines: Iterator[tuple[int, list[int]]], num_nodes: int, weights: int, columns: int
) -> Iterator[tuple[I64, I64]]:
    """Yield for some nodes at a time [n, weights] and their edges: source, destination, and the weight if any."""
    node = 0
    found: list[list[int]] = []
    counts: list[int] = []
    flat: list[int] = []
    for number, values in lines:
        if node == num_nodes:
            if values:
                raise GraphDataError(f"{path}, line {number}: there are more than {num_nodes} nodes")
            continue  # empty lines at the end
        if len(values) < weights or (len(values) - weights) % columns:
            raise GraphDataError(f"{path}, line {number}: {len(values)} numbers are no node of this format")
        ends = values[weights::columns]
        if ends and not 1 <= min(ends) <= max(ends) <= num_nodes:
            raise GraphDataError(f"{path}, line {number}: there is no node {min(ends) if min(ends) < 1 else max(ends)}")
        found.append(values[:weights])
        counts.append(len(ends))
        flat += values[weights:]
        node += 1
        if len(flat) >= EDGES_PER_CHUNK:
            yield _tables(node, np.array(found, np.int64).reshape(len(found), weights), counts, flat, columns)
            found = []
            counts = []
            flat = []
    yield _tables(node, np.array(found, np.int64).reshape(len(found), weights), counts, flat, columns)


def _tables(end: int, nodes: I64, counts: list[int], flat: list[int], columns: int) -> tuple[I64, I64]:
    others = np.array(flat, np.int64).reshape(-1, columns)
    sources = np.repeat(np.arange(end - len(counts), end), counts)
    others[:, 0] -= 1
    return nodes, np.concatenate([sources[:, None], others], 1)
