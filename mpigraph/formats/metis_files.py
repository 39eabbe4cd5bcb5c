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

import numpy as np

from mpigraph.arrays import I64
from mpigraph.errors import GraphDataError
from mpigraph.formats.edge_lists import blocks_of_lines
from mpigraph.formats.input_files import graph_of
from mpigraph.formats.layout import Layout, ReadOptions
from mpigraph.formats.mapped_files import GrowingFile
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE
from mpigraph.partition.source import EDGES_PER_CHUNK, Feature, GraphSource

_ENDINGS = (".graph", ".metis")
_LONGEST_LINE = 1 << 32  # all neighbours of a node


def _read(path: Path, options: ReadOptions) -> GraphSource:
    with ExitStack() as stack:
        lines = _numbers(path)
        header = next(lines, (0, []))[1]
        if not 2 <= len(header) <= 4 or min(header) < 0:
            needs = "must be numbers of nodes and edges, fmt and ncon"
            raise GraphDataError(f"{path}: the first line {needs} (got {header})")
        num_nodes, num_edges, fmt, *ncon = [*header, 0] if len(header) == 2 else header
        sizes = fmt // 100 % 10
        weights = fmt // 10 % 10 * (ncon[0] if ncon else 1)
        edge_weights = fmt % 10
        if fmt > 111 or max(map(int, str(fmt))) > 1:
            raise GraphDataError(f"{path}: fmt has three digits that are 0 or 1 (got {fmt})")
        of_nodes = stack.enter_context(GrowingFile(np.int64, (sizes + weights,), options.scratch))
        edges = stack.enter_context(GrowingFile(np.int64, (2 + edge_weights,), options.scratch))
        for nodes, table in _nodes(path, lines, num_nodes, sizes + weights, 1 + edge_weights):
            of_nodes.append(nodes)
            edges.append(table)
        if len(of_nodes) != num_nodes or len(edges) != 2 * num_edges:
            raise GraphDataError(
                f"{path} has {len(of_nodes)} nodes with {len(edges)} neighbours, but its first line says {num_nodes} "
                f"nodes and {num_edges} edges, and every edge must stand at both its ends"
            )
        values = of_nodes.finish()
        rows = edges.finish()
    node_feats = {}
    if sizes:
        node_feats["size"] = Feature.of(values[:, 0])
    if weights:
        node_feats["weight"] = Feature.of(values[:, sizes] if weights == 1 else values[:, sizes:])
    edge_feats = {"weight": Feature.of(rows[:, 2])} if edge_weights else {}
    return graph_of(
        {DEFAULT_NTYPE: num_nodes},
        {DEFAULT_ETYPE: (rows[:, 0], rows[:, 1])},
        {DEFAULT_NTYPE: node_feats},
        {DEFAULT_ETYPE: edge_feats},
        has_reverse=True,
    )


def _numbers(path: Path) -> Iterator[tuple[int, list[int]]]:
    for first, text in blocks_of_lines(path, _LONGEST_LINE):
        for number, line in enumerate(text.splitlines(), first):
            if not line.startswith(b"%"):
                try:
                    yield number, list(map(int, line.split()))
                except ValueError as error:
                    raise GraphDataError(f"{path}, line {number}: {error}") from error


def _nodes(
    path: Path, lines: Iterator[tuple[int, list[int]]], num_nodes: int, weights: int, columns: int
) -> Iterator[tuple[I64, I64]]:
    """Yield for some nodes at a time [n, weights] and their edges: source, destination, and the weight if any."""
    node = 0
    counts: list[int] = []
    of_nodes: list[int] = []
    of_edges: list[int] = []

    def tables() -> tuple[I64, I64]:
        edges = np.array(of_edges, np.int64).reshape(-1, columns)
        edges[:, 0] -= 1
        sources = np.repeat(np.arange(node - len(counts), node), counts)
        return np.array(of_nodes, np.int64).reshape(len(counts), weights), np.column_stack([sources, edges])

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
        counts.append(len(ends))
        of_nodes += values[:weights]
        of_edges += values[weights:]
        node += 1
        if len(of_edges) >= EDGES_PER_CHUNK:
            yield tables()
            for values in (counts, of_nodes, of_edges):
                values.clear()
    yield tables()


METIS = Layout("METIS", "", lambda path: path.suffix in _ENDINGS, _read)
