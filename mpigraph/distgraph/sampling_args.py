"""What a caller wants sampled, checked and by type id: seeds, fanouts, edge weights, edges to leave out.

Where a graph has one node type its nodes are given and returned as they are, else by node type; what belongs to
relations may be one value for all or a dict by edge type.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from mpigraph.arrays import I64
from mpigraph.dataloading.edges import by_relation, canonical
from mpigraph.dataloading.sampler import Names, Nodes, check_fanout, nodes_as_given
from mpigraph.distgraph.features import EdgeSpaces, named_tensors
from mpigraph.distgraph.ids import as_ids
from mpigraph.errors import EdgeTypeError, InvalidArgumentError, MPIGraphError, NodeTypeError
from mpigraph.metadata.book import check_ids
from mpigraph.metadata.schema import Schema
from mpigraph.sampling.hops import HopPlan
from mpigraph.store.graph_store import LoadedGraph

__all__ = ["as_given", "by_type", "check_nodes", "edge_weights", "plan_hops"]


class PlannedGraph(Protocol):
    """What plans need of a DistGraph."""

    loaded: LoadedGraph

    @property
    def schema(self) -> Schema: ...
    @property
    def edges(self) -> EdgeSpaces: ...


def by_type(schema: Schema, nodes: Any, what: str = "node ids") -> dict[int, I64]:
    """Node ids by node type id.

    Args:
        schema: node types and relations.
        nodes: int[n] where the graph has one node type, or node type -> int[n].
        what: names the ids in errors.

    Raises:
        NodeTypeError: a type does not exist, or the ids are not by type and the graph has several.
        InvalidArgumentError: the ids are not integers in one dimension.
    """
    given = nodes if isinstance(nodes, Mapping) else {None: nodes}
    if None in given and len(schema.ntypes) > 1:
        raise NodeTypeError(f"{what} must be a dict by node type: the graph has {list(schema.ntypes)}")
    return {schema.ntype_id(ntype): as_ids(ids, what) for ntype, ids in given.items()}


def as_given(schema: Schema, nodes: Mapping[int, I64]) -> Nodes:
    """The reverse of :func:`by_type`, with every node type."""
    none = np.empty(0, np.int64)
    return nodes_as_given({ntype: torch.from_numpy(nodes.get(t, none)) for t, ntype in enumerate(schema.ntypes)})


def plan_hops(
    g: PlannedGraph,
    nodes: Any,
    fanouts: Sequence[Any],
    *,
    edge_dir: str = "in",
    prob: Any = None,
    exclude_edges: Any = None,
    replace: bool = False,
    return_eids: bool = True,
) -> tuple[dict[int, I64], list[HopPlan], MPIGraphError | None]:
    """Check the arguments of this rank; what is wrong is returned, to be raised on every rank of the round.

    Without a layer there is no round, and it is raised here.

    Args:
        g: a :class:`DistGraph`.
        nodes: seeds, as in :func:`by_type`.
        fanouts: for each layer an integer, or edge type -> integer with every edge type.
        edge_dir: only "in".
        prob: what :func:`edge_weights` takes, or None.
        exclude_edges: int[k] edge ids, or edge type -> int[k], or None.
        replace: with replacement.
        return_eids: whether edge ids are wanted.

    Returns:
        Seeds by node type id, a plan for each layer, and the error if there is one.

    Raises:
        MPIGraphError: what is wrong, where there is no layer.
    """
    try:
        if edge_dir != "in":
            raise InvalidArgumentError(f"edge_dir must be 'in': parts hold in-edges (got {edge_dir!r})")
        weights = {} if prob is None else edge_weights(g, prob)
        excluded = _excluded(g, exclude_edges)
        plans = [HopPlan(_fanouts(g.schema, layer), replace, weights, return_eids, excluded) for layer in fanouts]
        seeds = by_type(g.schema, nodes)
        for ntype_id, ids in seeds.items():
            check_nodes(g, ids, ntype_id)
    except MPIGraphError as error:
        if not fanouts:
            raise  # no layer, no round that could tell the others
        return {}, [HopPlan({}, replace, {}, return_eids) for _ in fanouts], error
    return seeds, plans, None


def check_nodes(g: PlannedGraph, ids: I64, ntype_id: int) -> None:
    """Raise OutOfRangeError unless all nodes of a type exist."""
    check_ids(ids, g.loaded.topology.hosts.num_nodes(ntype_id), f"node id of type {g.schema.ntypes[ntype_id]!r}")


def edge_weights(g: PlannedGraph, prob: Names) -> dict[int, int]:
    """The number of the tensor of edge weights, by relation id.

    Args:
        g: a :class:`DistGraph`.
        prob: the name of an edge feature, for the relations that have it; or edge type -> name.

    Raises:
        EdgeTypeError: an edge type does not exist.
        FieldNameError: there is no such edge feature.
        InvalidArgumentError: it is not one number or mask for each edge.
    """
    weights = {}
    for (relation, name), tensor in named_tensors(g.edges, prob).items():
        if len(tensor.shape) != 1 or tensor.rows.dtype not in ("bool", "uint8", "float32", "float64"):
            raise InvalidArgumentError(
                f"edge weights {name!r} must be one bool, uint8, float32 or float64 for each edge "
                f"(got {tensor.dtype}, shape {tensor.shape})"
            )
        weights[g.schema.relation_id(relation)] = int(tensor.rows.number)
    return weights


def _fanouts(schema: Schema, fanout: Any) -> dict[int, int]:
    """Fanouts of one layer by relation id."""
    if not isinstance(fanout, Mapping):
        return dict.fromkeys(range(len(schema.relations)), check_fanout(fanout))
    given = canonical(schema, fanout, "fanouts")
    found = {schema.relation_id(relation): check_fanout(number) for relation, number in given.items()}
    missing = [relation for r, relation in enumerate(schema.relations) if r not in found]
    if missing:
        raise EdgeTypeError(f"a dict of fanouts needs every edge type (0 leaves one out): no fanout of {missing}")
    return found


def _excluded(g: PlannedGraph, edges: Any) -> dict[int, I64]:
    """By relation id, the ids of edges to leave out, ascending, each once."""
    if edges is None:
        return {}
    book, found = g.loaded.topology.hosts, {}
    for relation, some in by_relation(g.schema, edges, "exclude_edges").items():
        number, ids = g.schema.relation_id(relation), some.numpy()
        check_ids(ids, book.num_edges(number), f"exclude_edges: edge id of relation {relation}")
        ascending = bool((ids[1:] > ids[:-1]).all())  # those that every minibatch leaves out were sorted once
        found[number] = ids if ascending else np.unique(ids)
    return found
