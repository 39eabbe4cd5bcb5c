"""Graphs of PyG (``torch_geometric``) read, and minibatches as PyG's ``Data``.

PyG's objects are recognised by their attributes; PyG is imported only to make them. Features keep their names, except
the original ids of nodes and edges, which PyG calls ``n_id`` and ``e_id``.
"""

from collections.abc import Iterable, Mapping, Set
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.graphs.fields import EID, NID, Frame, as_tensor
from mpigraph.graphs.hetero import HeteroGraph, graph, heterograph
from mpigraph.log import get_logger
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Relation, Schema

PygData: TypeAlias = Any
"""``Data``, ``HeteroData``, or the storage of one type in a ``HeteroData``: classes of an optional package."""
Attributes: TypeAlias = dict[str, Any]
"""Attributes of a PyG object by name: tensors, and the number of nodes."""

_OURS = {"n_id": NID, "e_id": EID}
_OF_GRAPHS = frozenset({"adj", "adj_t", "edge_index", "num_nodes"})
OF_MINIBATCHES = _OF_GRAPHS.union(
    ("batch", "batch_size", "e_id", "edge_label", "edge_label_index", "edge_label_time", "input_id", "n_id"),
    ("num_sampled_edges", "num_sampled_nodes", "seed_time"),
)
"""Names that PyG keeps for itself in minibatches."""


def need_pyg() -> None:
    """Check that PyG is installed. Raises InvalidArgumentError."""
    try:
        import torch_geometric.data  # noqa: F401
    except ImportError:
        raise InvalidArgumentError("graphs of PyG need torch_geometric: pip install torch_geometric") from None


def from_pyg(data: PygData) -> HeteroGraph:
    """Make a graph of ``torch_geometric``'s ``Data`` or ``HeteroData``.

    The i-th edge of a relation stays its i-th. A tensor becomes a feature if it has one row for each node or edge,
    except ``edge_index``, ``adj`` and ``adj_t``, and tensors that PyG slices along another dimension, such as those
    of several dimensions with "index" in their name. Where a ``Data`` has as many edges as nodes, tensors with
    "edge" in their name, and ``e_id``, belong to edges, and all others to nodes. A warning names the tensors that are
    left out. The number of nodes is PyG's, else the largest endpoint plus one.

    Args:
        data: needs ``edge_index`` (by relation, if typed).

    Raises:
        GraphDataError: there is no ``edge_index`` of shape [2, num_edges], an endpoint is out of range, or nothing says
            how many nodes a type has.
        InvalidArgumentError: the name of a type has one of the characters that separate names in files.
    """
    if hasattr(data, "node_types") and hasattr(data, "edge_types"):
        return _from_hetero(data)
    result = graph(_edge_index(data, "data"), _num_nodes(data))
    frames = result.nodes[DEFAULT_NTYPE].data, result.edges[DEFAULT_ETYPE].data
    _add_features(data, data, data.to_dict().items(), *frames)
    return result


def as_data(schema: Schema, nodes: Mapping[str, Attributes], edges: Mapping[Relation, Attributes]) -> PygData:
    """Make a ``Data`` of attributes by name if types have no names, else a ``HeteroData``.

    Raises:
        InvalidArgumentError: PyG is not installed, or nodes and edges of a ``Data`` have an attribute of one name.
    """
    need_pyg()
    from torch_geometric.data import Data, HeteroData

    if schema != Schema.homogeneous():
        hetero = HeteroData()
        for key, attributes in [*nodes.items(), *edges.items()]:
            for name, value in attributes.items():
                hetero[key][name] = value
        return hetero
    of_nodes = nodes[DEFAULT_NTYPE]
    of_edges = edges[DEFAULT_ETYPE]
    check_apart(schema, of_nodes, of_edges)
    data = Data()
    for name, value in (of_nodes | of_edges).items():
        data[name] = value
    return data


def check_names(names: Iterable[str], taken: Set[str], owner: str) -> None:
    """Raise InvalidArgumentError if a feature of ``owner`` has one of PyG's own names, ``taken``."""
    bad = sorted(taken & set(names))
    if bad:
        raise InvalidArgumentError(f"feature {bad[0]!r} on {owner}: PyG means something else by this name")


def check_apart(schema: Schema, of_nodes: Iterable[str], of_edges: Iterable[str]) -> None:
    """Raise InvalidArgumentError if types have no names and nodes and edges share one, which ``Data`` cannot tell
    apart.
    """
    both = sorted(set(of_nodes) & set(of_edges)) if schema == Schema.homogeneous() else []
    if both:
        raise InvalidArgumentError(f"nodes and edges both have {both[0]!r}, which Data cannot tell apart: rename one")


def _from_hetero(data: PygData) -> HeteroGraph:
    edges = {tuple(r): _edge_index(data[r], f"relation {tuple(r)}") for r in data.edge_types}
    counts = {t: _num_nodes(data[t]) for t in data.node_types}
    ends = {end for relation in edges for end in relation[::2]}
    for ntype, count in counts.items():
        if count is None and ntype not in ends:
            raise GraphDataError(f"nothing says how many nodes of type {ntype!r} there are: set its num_nodes")
    result = heterograph(edges, {t: count for t, count in counts.items() if count is not None})
    for ntype in counts:
        _add_features(data, data[ntype], data[ntype].items(), result.nodes[ntype].data)
    for relation in edges:
        _add_features(data, data[relation], data[relation].items(), result.edges[relation].data)
    return result


def _edge_index(store: PygData, what: str) -> tuple[torch.Tensor, torch.Tensor]:
    index = getattr(store, "edge_index", None)
    if index is None:
        raise GraphDataError(f"{what} has no edge_index")
    if index.ndim != 2 or len(index) != 2:
        raise GraphDataError(f"edge_index of {what} must have the shape [2, num_edges] (got {list(index.shape)})")
    return index[0], index[1]


def _num_nodes(store: PygData) -> int | None:
    count = getattr(store, "num_nodes", None)
    return None if count is None else int(count)


def _add_features(data: PygData, store: PygData, fields: Iterable[tuple[str, object]], *frames: Frame) -> None:
    """Put each array into the frame of its length; if both nodes and edges have that many, the name decides."""
    left_out = []
    for name, values in fields:
        if name in _OF_GRAPHS or not isinstance(values, torch.Tensor | np.ndarray):
            continue
        of_edges = "edge" in name or name == "e_id"
        # ``frames`` are one type's, or those of the nodes and of the edges of a Data, in this order
        fitting = [frame for frame in frames[:: -1 if of_edges else 1] if values.shape[:1] == (frame.num_rows,)]
        if fitting and _is_by_rows(data, store, name, values):
            fitting[0][_OURS.get(name, name)] = as_tensor(values)
        else:
            left_out.append(f"{name!r} {list(values.shape)}")
    if left_out:
        owners = " or ".join(f"{frame.num_rows} {frame.owner}" for frame in frames)
        get_logger().warning("from_pyg leaves out tensors that are no rows of %s: %s", owners, ", ".join(left_out))


def _is_by_rows(data: PygData, store: PygData, name: str, values: torch.Tensor | npt.NDArray[np.generic]) -> bool:
    """Return whether PyG, too, stacks nodes or edges along the first dimension of an attribute."""
    # PyG joins and slices an attribute along the dimension that this method returns; users may override it
    dimension_of = getattr(data, "__cat_dim__", None)
    return values.ndim == 1 or dimension_of is None or dimension_of(name, values, store) == 0
