"""Minibatches as PyG's ``NeighborLoader`` and ``LinkNeighborLoader`` make them: its models train on them as they are.

Fanouts are given in DGL's order, input side first: ``[25, 10]`` draws 10 neighbours of each seed, then 25 of each node
that was found. PyG's ``num_neighbors`` would be ``[10, 25]``.

A minibatch is a ``Data``, or a ``HeteroData`` where types have names, with these attributes. In a ``HeteroData`` each
is of a node type (down to the first features) or of a relation, for all of them, reached or not::

    n_id               int64[n]     ids in the graph: the seeds first, then hop after hop what was found
    num_nodes          n
    num_sampled_nodes  [1 + hops]   how many of them are seeds, and how many each hop found
    <feature>          [n, ...]     rows of all n_id
    edge_index         int64[2, e]  positions in n_id, sources above destinations; hop after hop
    e_id               int64[e]     ids in the graph
    num_sampled_edges  [hops]       how many edges each hop drew
    <feature>          [e, ...]     rows of all e_id

Loaders of nodes add to the node types of their seeds::

    input_id           int64[b]     which of the loader's nids the seeds are
    batch_size         b            how many they are

and loaders of edges, whose seeds are the ends of edges in the order of their first appearance, to the relations::

    input_id           int64[b]     which of the loader's eids these are
    edge_label_index   int64[2, l]  positions in n_id: the b edges, then the negatives
    edge_label         [l, ...]     with negatives float32: 1 for an edge, 0 for a negative; else rows of ``labels``
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mpigraph.dataloading.edge_sampler import EdgePredictionSampler
from mpigraph.dataloading.edges import as_given as edges_as_given
from mpigraph.dataloading.edges import by_relation
from mpigraph.dataloading.sampler import Names
from mpigraph.distgraph.features import named_tensors
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.sampling_args import as_given, by_type
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.graphs.pyg import OF_MINIBATCHES, as_data, check_apart, check_names, need_pyg
from mpigraph.metadata.schema import Relation
from mpigraph.sampling.subgraph import Subgraph

__all__ = ["pyg_batches", "pyg_link_batches"]

_Batches = tuple[Any, Callable[[Any], Any]]


def pyg_batches(g: DistGraph, nids: Any, sampler: Any, features: Names, labels: Names) -> _Batches:
    """What a loader of nodes iterates over, and what makes a ``Data`` or ``HeteroData`` of some of it.

    Args:
        g: the graph.
        nids: int[n], or node type -> int[n].
        sampler: has ``sample_subgraph(g, seeds)``; may name features, as ``prefetch_node_feats``, ``prefetch_labels``
            and ``prefetch_edge_feats``.
        features: names of node features.
        labels: names of more of them: PyG makes no difference.

    Returns:
        Positions in ``nids``, in the same form, and a function of some of them.

    Raises:
        InvalidArgumentError: PyG is not installed, the sampler cannot do it, or a feature has the name of another
            attribute or, in a ``Data``, of nodes and of edges.
        FieldNameError: a feature does not exist.
        NodeTypeError: a node type does not exist, or there are several and ``nids`` are not by type.

    The function is collective on the trainers when hosts are far, local when all are near.
    """
    ids, attributes = by_type(g.schema, nids, "nids"), _Attributes(g, sampler, features, labels)

    def make(chosen: Any) -> Any:
        positions = by_type(g.schema, chosen)
        seeds = {ntype: ids[ntype][at] for ntype, at in positions.items()}
        nodes, edges = attributes.of(sampler.sample_subgraph(g, as_given(g.schema, seeds)))
        for ntype in ids:
            at = positions.get(ntype, np.empty(0, np.int64))
            nodes[g.schema.ntypes[ntype]] |= {"input_id": torch.from_numpy(at), "batch_size": len(at)}
        return as_data(g.schema, nodes, edges)

    return as_given(g.schema, {ntype: np.arange(len(some)) for ntype, some in ids.items()}), make


def pyg_link_batches(g: DistGraph, eids: Any, sampler: Any, features: Names, labels: Names) -> _Batches:
    """What a loader of edges iterates over, and what makes a ``Data`` or ``HeteroData`` of some of it.

    Args:
        g: the graph.
        eids: int[n], or edge type -> int[n].
        sampler: an :class:`.EdgePredictionSampler` of a sampler as in :func:`pyg_batches`; may name labels, as
            ``prefetch_labels``.
        features: names of node features.
        labels: the name of an edge feature, or edge type -> name.

    Returns:
        Positions in ``eids``, in the same form, and a function of some of them.

    Raises:
        InvalidArgumentError: as in :func:`pyg_batches`, or there are several labels for a relation, or labels and
            negatives.
        FieldNameError: a feature does not exist.
        EdgeTypeError: an edge type does not exist, or there are several and ``eids`` are not by type.

    The function is collective on the trainers when hosts are far, local when all are near.
    """
    ids = by_relation(g.schema, eids, "eids")
    if not isinstance(sampler, EdgePredictionSampler):
        raise InvalidArgumentError(
            f"output='pyg' needs a sampler of as_edge_prediction_sampler (got {type(sampler).__name__})"
        )
    attributes = _Attributes(g, sampler.sampler, features, ())
    label_of = _labels(g, sampler, labels)

    def make(chosen: Any) -> Any:
        positions = by_relation(g.schema, chosen, "seed edges")
        seeds = {relation: ids[relation][at] for relation, at in positions.items()}
        pairs, ends, excluded = sampler.sample_pairs(g, edges_as_given(g.schema, seeds))
        nodes, edges = attributes.of(sampler.sampler.sample_subgraph(g, ends, *excluded))
        none = torch.empty(0, dtype=torch.int64)
        for relation in ids:
            edges[relation] |= {"input_id": positions.get(relation, none)} | _ends(pairs, relation)
            if relation in label_of:
                edges[relation]["edge_label"] = label_of[relation][seeds.get(relation, none)]
        return as_data(g.schema, nodes, edges)

    return edges_as_given(g.schema, {relation: torch.arange(len(some)) for relation, some in ids.items()}), make


class _Attributes:
    """What nodes and edges of minibatches have: their numbers, and the features that were asked for."""

    def __init__(self, g: DistGraph, sampler: Any, features: Names, labels: Names) -> None:
        need_pyg()
        if not hasattr(sampler, "sample_subgraph"):
            raise InvalidArgumentError(
                "output='pyg' needs a sampler with sample_subgraph, like NeighborSampler "
                f"(got {type(sampler).__name__})"
            )
        named = (getattr(sampler, f"prefetch_{what}", ()) for what in ("node_feats", "labels"))
        self._schema = g.schema
        self._of_nodes: dict[tuple[str, str], DistTensor] = named_tensors(g.nodes, features, labels, *named)
        self._of_edges: dict[tuple[Relation, str], DistTensor]
        self._of_edges = named_tensors(g.edges, getattr(sampler, "prefetch_edge_feats", ()))
        of_nodes, of_edges = ({name for _, name in tensors} for tensors in (self._of_nodes, self._of_edges))
        check_names(of_nodes, OF_MINIBATCHES, "nodes")
        check_names(of_edges, OF_MINIBATCHES, "edges")
        check_apart(g.schema, of_nodes, of_edges)

    def of(self, subgraph: Subgraph) -> tuple[dict[str, dict[str, Any]], dict[Relation, dict[str, Any]]]:
        """Attributes by name, by node type and by relation.

        Raises:
            InvalidArgumentError: there are edge features to read, but no edge ids.
        """
        if self._of_edges and subgraph.eids is None:
            raise InvalidArgumentError("edge features need edge ids: the sampler has return_eids=False")
        nodes: dict[str, dict[str, Any]] = {}
        for ntype, ids, counts in zip(self._schema.ntypes, subgraph.ids, subgraph.num_nodes, strict=True):
            nodes[ntype] = {"n_id": torch.from_numpy(ids), "num_nodes": len(ids), "num_sampled_nodes": counts}
        edges: dict[Relation, dict[str, Any]] = {}
        for relation, ends, counts in zip(self._schema.relations, subgraph.edges, subgraph.num_edges, strict=True):
            edges[relation] = {"edge_index": torch.from_numpy(ends), "num_sampled_edges": counts}
        for relation, ids in zip(self._schema.relations, subgraph.eids or (), strict=False):
            edges[relation]["e_id"] = torch.from_numpy(ids)
        for (ntype, name), tensor in self._of_nodes.items():
            nodes[ntype][name] = tensor[nodes[ntype]["n_id"]]
        for (relation, name), tensor in self._of_edges.items():
            edges[relation][name] = tensor[edges[relation]["e_id"]]
        return nodes, edges


def _labels(g: DistGraph, sampler: EdgePredictionSampler, labels: Names) -> dict[Relation, DistTensor]:
    """The feature that is the label of each relation's edges."""
    found: dict[tuple[Relation, str], DistTensor]
    found = named_tensors(g.edges, labels, sampler.prefetch_labels)
    if found and sampler.negative_sampler is not None:
        raise InvalidArgumentError("labels and negatives: in PyG edge_label says which edges are negatives")
    if len({relation for relation, _ in found}) < len(found):
        raise InvalidArgumentError(f"labels: PyG has one edge_label for each relation (got {list(found)})")
    return {relation: tensor for (relation, _), tensor in found.items()}


def _ends(pairs: list[HeteroGraph], relation: Relation) -> dict[str, torch.Tensor]:
    """Ends of the edges, and of the negatives if there are any, and which are which."""
    ends = [torch.stack(graph.all_edges(etype=relation)) for graph in pairs]
    attributes = {"edge_label_index": torch.cat(ends, dim=1)}
    if len(ends) > 1:
        attributes["edge_label"] = torch.cat([torch.ones(ends[0].shape[1]), torch.zeros(ends[1].shape[1])])
    return attributes
