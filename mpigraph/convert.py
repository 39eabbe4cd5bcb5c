"""Graphs of other packages as :class:`~mpigraph.heterograph.HeteroGraph`.

No other package is imported: their objects are known by what they offer. Names of features are kept as they are
(PyG's ``x`` stays ``x``, its ``edge_attr`` stays ``edge_attr``); what is not one number or one row of numbers for each
node or edge is left out.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mpigraph.base import as_tensor
from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.frame import Frame
from mpigraph.heterograph import HeteroGraph, graph, heterograph
from mpigraph.metadata.schema import DEFAULT_ETYPE, Relation

__all__ = ["as_graph", "from_dgl", "from_networkx", "from_pyg", "from_scipy"]


def as_graph(obj: Any) -> HeteroGraph:
    """Make a graph of whatever holds one. Local; no communication.

    Args:
        obj: a graph of this library (returned as it is); a pair (src, dst) or integers of shape [2, num_edges]; a
            dict (src_type, rel, dst_type) -> (src, dst); a square scipy sparse matrix; a networkx graph; a
            ``torch_geometric.data.Data`` or ``HeteroData``; a ``DGLGraph``.

    Raises:
        InvalidArgumentError: it is none of these.
    """
    if isinstance(obj, HeteroGraph):
        return obj
    if isinstance(obj, Mapping):
        return heterograph(obj)
    if isinstance(obj, tuple | list | np.ndarray | torch.Tensor) and len(obj) == 2:
        return graph((obj[0], obj[1]))
    if hasattr(obj, "canonical_etypes") and hasattr(obj, "edata"):
        return from_dgl(obj)
    if hasattr(obj, "edge_index") or (hasattr(obj, "node_types") and hasattr(obj, "edge_types")):
        return from_pyg(obj)
    if hasattr(obj, "tocoo"):
        return from_scipy(obj)
    if hasattr(obj, "is_directed") and hasattr(obj, "edges"):
        return from_networkx(obj)
    raise InvalidArgumentError(
        "expected a graph, (src, dst), {(src_type, rel, dst_type): (src, dst)}, or a graph of scipy, networkx, "
        f"torch_geometric or dgl (got {type(obj).__name__})"
    )


def from_scipy(sp_mat: Any, eweight_name: str | None = None) -> HeteroGraph:
    """Make a graph with an edge i -> j for each stored entry [i, j]. Local; no communication.

    Args:
        sp_mat: a square sparse matrix or array of scipy.
        eweight_name: name of the edge feature that takes the entries; None leaves them out.

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
    """Make a graph of a networkx graph; an undirected edge gives one edge in each direction.

    Nodes are numbered in sorted order where their labels can be sorted (so 0, 1, 2, ... stay), else in the order of
    the graph. Local; no communication.

    Args:
        nx_graph: any of networkx's four classes.
        node_attrs: attributes to take, which every node must have; None takes all numeric ones that every node has.
        edge_attrs: likewise for edges.

    Raises:
        GraphDataError: an attribute that was asked for is missing or not numeric.
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


def from_pyg(data: Any) -> HeteroGraph:
    """Make a graph of ``torch_geometric``'s ``Data`` or ``HeteroData``. Local; no communication.

    A tensor becomes a feature if it has one row for each node or edge; a name with "edge" in it is an edge feature.

    Args:
        data: needs ``edge_index`` (by relation, if typed).

    Raises:
        GraphDataError: there is no ``edge_index``.
    """
    if hasattr(data, "node_types") and hasattr(data, "edge_types"):
        edges = {tuple(r): _edge_index(data[r], f"relation {tuple(r)}") for r in data.edge_types}
        result = heterograph(edges, {t: int(data[t].num_nodes) for t in data.node_types})
        for ntype in data.node_types:
            _share(data[ntype].items(), result.nodes[ntype].data)
        for relation in edges:
            _share(data[relation].items(), result.edges[relation].data)
        return result
    result = graph(_edge_index(data, "data"), num_nodes=int(data.num_nodes))
    _share(data.to_dict().items(), result.nodes[result.ntypes[0]].data, result.edges[DEFAULT_ETYPE].data)
    return result


def from_dgl(g: Any) -> HeteroGraph:
    """Make a graph of a ``DGLGraph``; types, edge ids and features are kept. Local; no communication.

    Raises:
        InvalidArgumentError: it is a block.
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
    labels = list(labels)
    try:
        return sorted(labels)  # type: ignore[type-var]
    except TypeError:
        return labels


def _take(frame: Frame, records: list[dict[str, Any]], names: Sequence[str] | None) -> None:
    """Put attributes of nodes or edges into a frame."""
    wanted = _common_names(records) if names is None else names
    for name in wanted:
        missing = sum(name not in record for record in records)
        if missing:
            raise GraphDataError(f"attribute {name!r} is missing on {missing} {frame.owner}")
        try:
            frame[name] = torch.as_tensor(np.array([record[name] for record in records]))
        except (TypeError, ValueError) as error:
            if names is not None:
                raise GraphDataError(f"attribute {name!r} of {frame.owner} is not numeric: {error}") from error


def _common_names(records: list[dict[str, Any]]) -> list[str]:
    """Return the attributes that every record has, in the order of the first."""
    return [name for name in (records[0] if records else {}) if all(name in record for record in records)]


def _edge_index(store: Any, what: str) -> tuple[torch.Tensor, torch.Tensor]:
    index = getattr(store, "edge_index", None)
    if index is None:
        raise GraphDataError(f"{what} has no edge_index")
    return index[0], index[1]


def _share(fields: Iterable[tuple[str, Any]], *frames: Frame) -> None:
    """Give each array the frame of its length; of a node and an edge frame, the name decides first."""
    for name, values in fields:
        if name == "edge_index" or not isinstance(values, torch.Tensor | np.ndarray) or values.ndim == 0:
            continue
        candidates = reversed(frames) if "edge" in name else frames
        for frame in candidates:
            if len(values) == frame.num_rows:
                frame[name] = as_tensor(values)
                break
