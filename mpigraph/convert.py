"""Conversion of graphs of other packages, and of files, to :class:`~mpigraph.graphs.hetero.HeteroGraph`.

No other package is imported to read its graphs: they are recognised by their attributes. Features keep their names;
attributes other than one number or one row of numbers for each node or edge are left out. PyG's graphs are converted in
``graphs/pyg.py``.
"""

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.formats.readers import read_source
from mpigraph.formats.shards import as_numpy
from mpigraph.graphs.fields import EID, NID, Frame
from mpigraph.graphs.hetero import HeteroGraph, graph, heterograph
from mpigraph.graphs.pyg import from_pyg
from mpigraph.log import get_logger
from mpigraph.metadata.schema import DEFAULT_ETYPE, Relation, relation_key
from mpigraph.namespaces import attach
from mpigraph.partition.exchange import ALONE
from mpigraph.partition.row_arrays import RowArray
from mpigraph.partition.source import Feature

__all__ = ["as_graph", "from_dgl", "from_files", "from_networkx", "from_pyg", "from_scipy"]


def as_graph(obj: Any) -> HeteroGraph:
    """Convert any object that describes a graph.

    Args:
        obj: a graph of this library (returned as it is); a tuple (src, dst), integers of shape [2, num_edges] or a list
            of pairs (u, v), as :func:`~mpigraph.graph` takes them; a dict (src_type, rel, dst_type) -> such edges; a
            square scipy sparse matrix; a networkx graph; a
            ``torch_geometric.data.Data`` or ``HeteroData``; a ``DGLGraph``; or a path, as :func:`from_files` takes it.

    Raises:
        InvalidArgumentError: ``obj`` describes no graph.
        GraphDataError: a file cannot be read, or a graph contradicts itself.
    """
    if isinstance(obj, HeteroGraph):
        return obj
    if isinstance(obj, os.PathLike) or (isinstance(obj, str) and os.path.lexists(obj)):
        return from_files(obj)
    if isinstance(obj, Mapping):
        return heterograph(obj)
    if isinstance(obj, list | np.ndarray | torch.Tensor) or (isinstance(obj, tuple) and len(obj) == 2):
        return graph(obj)
    # the most particular attributes first, since a later test may also hold for graphs of another package
    if hasattr(obj, "canonical_etypes") and hasattr(obj, "edata"):
        return from_dgl(obj)
    if hasattr(obj, "edge_index") or (hasattr(obj, "node_types") and hasattr(obj, "edge_types")):
        return from_pyg(obj)
    if hasattr(obj, "tocoo"):
        return from_scipy(obj)
    if hasattr(obj, "is_directed") and hasattr(obj, "edges"):
        return from_networkx(obj)
    got = f"str {obj!r}, which is not a file" if isinstance(obj, str) else type(obj).__name__
    raise InvalidArgumentError(
        "expected a graph, (src, dst), {(src_type, rel, dst_type): (src, dst)}, or a graph of scipy, networkx, "
        f"torch_geometric or dgl, or the path of one (got {got})"
    )


def from_files(path: str | os.PathLike[str], num_nodes: int | None = None, *, undirected: bool = False) -> HeteroGraph:
    """Read a graph from any file or folder that ``python -m mpigraph partition`` reads.

    That includes partitioned graphs of this library, DGL and PyG. Original ids that differ from the numbers of nodes
    and edges become ``ndata[NID]`` and ``edata[EID]``.

    Args:
        path: an ``.npz``, HDF5, csv or parquet file, the ``.json`` of a partitioned graph, or a folder.
        num_nodes: number of nodes of an edge list in csv or parquet whose ids are 0 to ``num_nodes - 1``.
        undirected: add the reverse of every edge, unless the files have it: within a type to the same relation, else
            as a relation ``rev_<name>``.

    Raises:
        GraphDataError: the path has no graph that can be read; the message names it.
        PartitionError, ShardFormatError: a partitioned graph is damaged.
    """
    read = partial(read_source, exchange=ALONE)  # not collective: this process alone
    source = read(path, num_nodes, undirected=undirected)
    schema = source.schema
    edges = {
        relation: (np.array(src[:], np.int64), np.array(dst[:], np.int64))
        for relation, (src, dst) in zip(schema.relations, source.edges, strict=True)
    }
    result = heterograph(edges, dict(zip(schema.ntypes, source.num_nodes, strict=True)))
    for t, ntype in enumerate(schema.ntypes):
        ids = None if source.node_ids is None else source.node_ids[t]
        _fill(result.nodes[ntype].data, source.node_feats.get(ntype, {}), NID, ids)
    for r, relation in enumerate(schema.relations):
        ids = None if source.edge_ids is None else source.edge_ids[r]
        _fill(result.edges[relation].data, source.edge_feats.get(relation_key(relation), {}), EID, ids)
    return result


def _fill(frame: Frame, features: Mapping[str, Feature], ids_name: str, ids: RowArray | None) -> None:
    """Put features and original ids into a frame."""
    for name, feature in features.items():
        frame[name] = _as_tensor_rows(feature, feature.values[:])
    if ids is not None:
        frame[ids_name] = torch.from_numpy(np.array(ids[:]))


def from_scipy(sp_mat: Any, eweight_name: str | None = None) -> HeteroGraph:
    """Make a graph with an edge i -> j for each stored entry [i, j].

    Args:
        sp_mat: a square sparse matrix or array of scipy.
        eweight_name: name of the edge feature for the entries; None leaves them out.

    Raises:
        GraphDataError: the matrix is not square.
    """
    rows, columns = sp_mat.shape
    if rows != columns:
        raise GraphDataError(f"an adjacency matrix must be square (got {rows} x {columns})")
    coo = sp_mat.tocoo()
    result = graph((coo.row, coo.col), num_nodes=rows)
    if eweight_name is not None:
        result.edata[eweight_name] = coo.data
    return result


def from_networkx(
    nx_graph: Any, node_attrs: Sequence[str] | None = None, edge_attrs: Sequence[str] | None = None
) -> HeteroGraph:
    """Convert a networkx graph; an undirected edge gives one edge in each direction.

    Nodes are numbered in sorted order where their labels can be sorted (so 0, 1, 2, ... stay), else in the order of
    the graph.

    Args:
        nx_graph: any of networkx's four classes.
        node_attrs: attributes to take, which every node must have; None takes all numeric ones that every node has, and
            a warning names the others.
        edge_attrs: likewise for edges.

    Raises:
        GraphDataError: a named attribute is missing or not numeric.
    """
    nodes = _sorted_if_possible(nx_graph.nodes)
    number = {label: i for i, label in enumerate(nodes)}
    triples = list(nx_graph.edges(data=True))
    if not nx_graph.is_directed():
        triples += [(v, u, attributes) for u, v, attributes in triples if u != v]
    src, dst = ([number[triple[side]] for triple in triples] for side in (0, 1))
    result = graph((src, dst), num_nodes=len(nodes))
    _take(result.nodes[result.ntypes[0]].data, [nx_graph.nodes[label] for label in nodes], node_attrs)
    _take(result.edges[DEFAULT_ETYPE].data, [attributes for _, _, attributes in triples], edge_attrs)
    return result


def from_dgl(g: Any) -> HeteroGraph:
    """Convert a ``DGLGraph``; types, edge ids and features are kept.

    Raises:
        InvalidArgumentError: ``g`` is a block.
    """
    if getattr(g, "is_block", False):
        raise InvalidArgumentError("expected a DGLGraph that is not a block")
    relations: list[Relation] = [(r[0], r[1], r[2]) for r in g.canonical_etypes]
    edges = {relation: g.edges(etype=relation, form="uv", order="eid") for relation in relations}
    result = heterograph(edges, {t: g.num_nodes(t) for t in g.ntypes})
    for ntype in g.ntypes:
        result.nodes[ntype].data.update(g.nodes[ntype].data)
    for relation in relations:
        result.edges[relation].data.update(g.edges[relation].data)
    return result


def _sorted_if_possible(labels: Iterable[Hashable]) -> list[Hashable]:
    """Sort labels; keep the order of those that cannot be compared, such as strings and numbers."""
    labels = list(labels)
    try:
        return sorted(labels)  # type: ignore[type-var]
    except TypeError:
        return labels


def _take(frame: Frame, records: list[dict[str, Any]], names: Sequence[str] | None) -> None:
    """Put attributes of nodes or edges into a frame; without ``names``, all that are numbers, the others are logged."""
    left_out = []
    for name in dict.fromkeys(name for record in records for name in record) if names is None else names:
        missing = sum(name not in record for record in records)
        try:
            if missing:
                raise GraphDataError(f"attribute {name!r} is missing on {missing} {frame.owner}")
            frame[name] = torch.as_tensor(np.array([record[name] for record in records]))
        except (TypeError, ValueError) as error:
            if names is None:
                left_out.append(f"{name!r} (missing on {missing})" if missing else f"{name!r} (no numbers)")
            elif missing:
                raise
            else:
                raise GraphDataError(f"attribute {name!r} of {frame.owner} is not numeric: {error}") from error
    if left_out:
        get_logger().warning("from_networkx leaves out attributes of %s: %s", frame.owner, ", ".join(left_out))


attach(__name__)


def _as_tensor_rows(feature: Feature, rows: Array) -> torch.Tensor:
    """Return rows of a feature as a tensor, a copy of them, as they were before they were stored."""
    if feature.dtype != "bfloat16":
        return torch.from_numpy(as_numpy(feature, np.array(rows)))
    return torch.from_numpy(np.array(rows).view(np.int16)).view(torch.bfloat16)
