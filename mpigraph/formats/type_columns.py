"""Types in a column: one table of nodes and one of edges that name the type, or the relation, of each row."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I64
from mpigraph.errors import GraphDataError
from mpigraph.formats.input_files import graph_of
from mpigraph.metadata.schema import DEFAULT_ETYPE, Relation
from mpigraph.partition.row_arrays import Reordered, RowArray
from mpigraph.partition.source import EdgeChunk, Feature, GraphSource


class Kinds(NamedTuple):
    """The names of types, and for each row the number of its own; -1: none."""

    title: str  # file and column
    names: list[str]
    codes: RowArray


def by_type(source: GraphSource, nodes: Kinds | None, edges: Kinds | None) -> GraphSource:
    """Return a graph of one type with the types that columns name; the node feature "id" keeps the ids of all nodes.

    Takes about 60 bytes an edge on each rank. Raises GraphDataError: a row has no type, or the graph has types already.
    """
    if not source.schema.is_homogeneous:
        raise GraphDataError(f"types in a column are for one table of nodes and one of edges (got {source.schema})")
    (ntype,) = source.schema.ntypes
    ntypes, of_nodes = _codes(nodes, ntype, source.num_nodes[0])
    names, of_edges = _codes(edges, DEFAULT_ETYPE[1], source.num_edges())
    src, dst = (np.asarray(end[:], np.int64) for end in source.edges[0])
    source.check_edges(EdgeChunk(0, np.zeros(1, np.int64), src, dst))
    order = np.argsort(of_nodes, kind="stable")
    bounds = np.searchsorted(of_nodes[order], np.arange(len(ntypes) + 1))
    local = np.empty(len(order), np.int64)
    local[order] = np.arange(len(order)) - bounds[of_nodes[order]]
    node_feats = {"id": Feature.of(np.arange(len(order))), **source.node_feats.get(ntype, {})}
    of_type = {name: order[begin:end] for name, begin, end in zip(ntypes, bounds, bounds[1:], strict=False)}
    keys = (of_nodes[src] * len(names) + of_edges) * len(ntypes) + of_nodes[dst]
    rising = np.argsort(keys, kind="stable")
    distinct, begins = np.unique(keys[rising], return_index=True)
    rows_of: dict[Relation, I64] = {}
    for key, rows in zip(distinct.tolist(), np.split(rising, begins[1:]), strict=False):
        src_type = ntypes[key // len(ntypes) // len(names)]
        rows_of[src_type, names[key // len(ntypes) % len(names)], ntypes[key % len(ntypes)]] = rows
    edge_feats = next(iter(source.edge_feats.values()), {})
    typed = graph_of(
        {name: len(rows) for name, rows in of_type.items()},
        {relation: (local[src[rows]], local[dst[rows]]) for relation, rows in rows_of.items()},
        {name: {key: _of_rows(feat, rows) for key, feat in node_feats.items()} for name, rows in of_type.items()},
        {rel: {key: _of_rows(feat, rows) for key, feat in edge_feats.items()} for rel, rows in rows_of.items()},
    )
    return replace(typed, left_out=source.left_out)


def _codes(kinds: Kinds | None, name: str, count: int) -> tuple[list[str], I64]:
    if kinds is None:
        return [name], np.zeros(count, np.int64)
    codes = np.asarray(kinds.codes[:], np.int64)
    if len(codes) and codes.min() < 0:
        raise GraphDataError(f"{kinds.title}: {int((codes < 0).sum())} rows have no type (the first: {codes.argmin()})")
    return kinds.names, codes


def _of_rows(feature: Feature, rows: I64) -> Feature:
    return feature._replace(values=Reordered(feature.values, rows))
