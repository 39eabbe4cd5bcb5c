"""Minibatches as PyG's ``NeighborLoader`` and ``LinkNeighborLoader`` make them: its models train on them as they are.

Fanouts are given in DGL's order, outermost hop first: ``[25, 10]`` draws 10 neighbours of each seed, then 25 of each
new node. PyG's ``num_neighbors`` would be ``[10, 25]``.

A minibatch is a ``Data``, or a ``HeteroData`` where types have names, with these attributes. In a ``HeteroData`` each
is of a node type (down to the first features) or of a relation, for all of them, reached or not::

    n_id               int64[n]     ids in the graph: the seeds first, then hop after hop the new nodes
    num_nodes          n
    num_sampled_nodes  [1 + hops]   the number of seeds, and of the new nodes of each hop
    <feature>          [n, ...]     rows of all n_id, the times of a sampler with ``time_attr`` among them
    batch              int64[n]     the tree of each node, where trees are disjoint
    edge_index         int64[2, e]  positions in n_id, sources above destinations; hop after hop
    e_id               int64[e]     ids in the graph
    num_sampled_edges  [hops]       the number of edges of each hop
    <feature>          [e, ...]     rows of all e_id

Loaders of nodes add to the node types of their seeds::

    input_id           int64[b]     which of the loader's nids the seeds are; of those left when other trainers went on,
                                    which of the trainer's that had them first
    batch_size         b            how many they are
    seed_time          int64[b]     their times, with ``time_attr``

and loaders of edges, whose seeds are the ends of edges in the order of their first appearance, to the relations::

    input_id           int64[b]     which of the loader's eids these are
    seed_time          int64[b]     their times, with ``time_attr``
    edge_label_index   int64[2, l]  positions in n_id: the b edges, then the negatives
    edge_label         [l, ...]     with negatives float32: 1 for an edge, 0 for a negative; else rows of ``labels``
    edge_label_time    int64[l]     the times of these, with ``time_attr``

Where trees are disjoint PyG has a tree for each end of each edge and negative, and numbers in ``batch`` the edges; here
ends that are one node at one time share a tree, and ``batch`` numbers trees.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from mpigraph.arrays import I64
from mpigraph.dataloading.edge_sampler import EdgePredictionSampler
from mpigraph.dataloading.fetcher import FeatureFetcher, Making
from mpigraph.dataloading.loader import LoaderOptions
from mpigraph.dataloading.sampler import BlockSampler, Sampler, has_method, needs_of
from mpigraph.dataloading.seeds import Chosen
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.typed_ids import Names, by_ntype, by_relation
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.fields import SEED_TIME
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.graphs.pyg import OF_MINIBATCHES, Attributes, as_data, check_apart, check_names, need_pyg
from mpigraph.metadata.schema import Relation
from mpigraph.sampling.minibatch import Subgraph

_NodeSample: TypeAlias = tuple[dict[int, I64], Subgraph]
_EdgeSample: TypeAlias = tuple[Chosen, list[HeteroGraph], Subgraph]


def pyg_of_nodes(
    g: DistGraph, ids: Mapping[int, I64], sampler: BlockSampler, options: LoaderOptions, pin_memory: bool
) -> Making:
    """Return the making of ``Data`` or ``HeteroData`` of nodes, with the seeds' places in ``ids``.

    Raises:
        InvalidArgumentError: PyG is not installed, the sampler cannot do it, or a feature has the name of another
            attribute or, in a ``Data``, of nodes and of edges.
        FieldNameError: a feature does not exist.
    """
    schema = g.schema
    attributes = _Attributes(g, sampler, options.features, options.labels, pin_memory)

    def sample(chosen: Chosen) -> _NodeSample:
        subgraph = attributes.sampler.sample_subgraph(g, chosen.ids, **chosen.times_as("input_time"))
        return by_ntype(schema, chosen.places), subgraph

    def fetch(sampled: _NodeSample) -> object:
        places, subgraph = sampled
        nodes, edges = attributes.of(subgraph)
        for ntype in ids:
            at = places.get(ntype, np.empty(0, np.int64))
            of_type = nodes[schema.ntypes[ntype]]
            of_type |= {"input_id": torch.from_numpy(at), "batch_size": len(at)}
            if subgraph.trees is not None and subgraph.trees.times is not None:
                of_type["seed_time"] = torch.from_numpy(subgraph.trees.times[subgraph.trees.of_nodes[ntype][: len(at)]])
        return as_data(schema, nodes, edges)

    return sample, fetch, attributes.announce, attributes.inputs


def pyg_of_edges(
    g: DistGraph, ids: Mapping[Relation, torch.Tensor], sampler: Sampler, options: LoaderOptions, pin_memory: bool
) -> Making:
    """Return the making of ``Data`` or ``HeteroData`` of edges, with their places in ``ids``.

    Raises:
        InvalidArgumentError: as :func:`pyg_of_nodes`, or there are several labels for a relation, or labels and
            negatives.
        FieldNameError: a feature does not exist.
    """
    schema = g.schema
    if not isinstance(sampler, EdgePredictionSampler):
        raise InvalidArgumentError(
            f"output='pyg' needs a sampler of as_edge_prediction_sampler (got {type(sampler).__name__})"
        )
    attributes = _Attributes(g, sampler.sampler, options.features, (), pin_memory)
    of_edges = _labels(g, sampler, options.labels, pin_memory)
    none = torch.empty(0, dtype=torch.int64)

    def sample(chosen: Chosen) -> _EdgeSample:
        pairs = sampler.sample_pairs(g, chosen.ids, **chosen.times_as("edge_label_time"))
        told = (None if column is None else by_relation(schema, column, "seed edges") for column in chosen)
        return Chosen(*told), pairs.graphs, pairs.sample_ends(attributes.sampler.sample_subgraph, g)

    def fetch(sampled: _EdgeSample) -> object:
        chosen, pairs, subgraph = sampled
        nodes, edges = attributes.of(subgraph)
        read: dict[Relation, dict[str, torch.Tensor]] = {relation: {} for relation in schema.relations}
        of_edges.fetch(lambda r: chosen.ids.get(r, none), read.__getitem__)
        for relation in ids:
            edges[relation] |= {"input_id": chosen.places.get(relation, none)} | _ends(pairs, relation)
            if chosen.times is not None:
                edges[relation]["seed_time"] = chosen.times.get(relation, none)
            for rows in read[relation].values():
                edges[relation]["edge_label"] = rows
        return as_data(schema, nodes, edges)

    return sample, fetch, attributes.announce, attributes.inputs


class _Attributes:
    """Makes the attributes of nodes and edges of minibatches: ids, counts and features."""

    def __init__(self, g: DistGraph, sampler: BlockSampler, features: Names, labels: Names, pin_memory: bool) -> None:
        need_pyg()
        if not has_method(sampler, "sample_subgraph"):
            raise InvalidArgumentError(
                "output='pyg' needs a sampler with sample_subgraph, like NeighborSampler "
                f"(got {type(sampler).__name__})"
            )
        self.sampler: Any = sampler
        self._schema = g.schema
        needs = needs_of(sampler)
        times = None if needs.times is None else g.times(needs.times.attr)
        of_node = times.name if times is not None and times.of_nodes else ()
        of_edge = times.name if times is not None and times.of_edges else ()
        named = (features, labels, needs.node_feats, needs.labels, of_node)
        self._nodes = FeatureFetcher(g.nodes, pin_memory, *named)
        self._edges = FeatureFetcher(g.edges, pin_memory, needs.edge_feats, of_edge)
        self.inputs: list[FeatureFetcher[Any]] = [self._nodes, self._edges]
        of_nodes, of_edges = {name for _, name in self._nodes.tensors}, {name for _, name in self._edges.tensors}
        check_names(of_nodes, OF_MINIBATCHES, "nodes")
        check_names(of_edges, OF_MINIBATCHES, "edges")
        check_apart(g.schema, of_nodes, of_edges)

    def announce(self, sample: tuple[Any, ...], batch: int) -> None:
        """Note the subgraph of a sample, which is last in it. Raises OutOfRangeError if a node does not exist."""
        subgraph: Subgraph = sample[-1]
        ntypes, relations = self._schema.ntypes, self._schema.relations
        self._nodes.announce(lambda ntype: torch.from_numpy(subgraph.ids[ntypes.index(ntype)]), batch)
        if subgraph.eids is not None:
            eids = subgraph.eids
            self._edges.announce(lambda relation: torch.from_numpy(eids[relations.index(relation)]), batch)

    def of(self, subgraph: Subgraph) -> tuple[dict[str, Attributes], dict[Relation, Attributes]]:
        """Return attributes by name, by node type and by relation. One-sided.

        Raises:
            InvalidArgumentError: there are edge features to read, but no edge ids.
        """
        if self._edges.tensors and subgraph.eids is None:
            raise InvalidArgumentError("edge features need edge ids: the sampler has return_eids=False")
        nodes: dict[str, Attributes] = {}
        for ntype, ids, counts in zip(self._schema.ntypes, subgraph.ids, subgraph.num_nodes, strict=True):
            nodes[ntype] = {"n_id": torch.from_numpy(ids), "num_nodes": len(ids), "num_sampled_nodes": counts}
        if subgraph.trees is not None:
            for ntype, trees in zip(self._schema.ntypes, subgraph.trees.of_nodes, strict=True):
                nodes[ntype]["batch"] = torch.from_numpy(trees)
        edges: dict[Relation, Attributes] = {}
        for relation, ends, counts in zip(self._schema.relations, subgraph.edges, subgraph.num_edges, strict=True):
            edges[relation] = {"edge_index": torch.from_numpy(ends), "num_sampled_edges": counts}
        for relation, ids in zip(self._schema.relations, subgraph.eids or (), strict=False):
            edges[relation]["e_id"] = torch.from_numpy(ids)
        self._nodes.fetch(lambda ntype: nodes[ntype]["n_id"], nodes.__getitem__)
        self._edges.fetch(lambda relation: edges[relation]["e_id"], edges.__getitem__)
        return nodes, edges


def _labels(g: DistGraph, sampler: EdgePredictionSampler, labels: Names, pin_memory: bool) -> FeatureFetcher[Relation]:
    """Look up the feature that is the label of each relation's edges."""
    fetcher = FeatureFetcher(g.edges, pin_memory, labels, sampler.needs.edge_labels)
    if fetcher.tensors and sampler.negative_sampler is not None:
        raise InvalidArgumentError("labels and negatives: in PyG edge_label says which edges are negatives")
    if len({relation for relation, _ in fetcher.tensors}) < len(fetcher.tensors):
        raise InvalidArgumentError(f"labels: PyG has one edge_label for each relation (got {list(fetcher.tensors)})")
    return fetcher


def _ends(pairs: list[HeteroGraph], relation: Relation) -> Attributes:
    """Return the ends of edges and negatives, the labels that tell them apart, and their times."""
    ends = [torch.stack(graph.all_edges(etype=relation)) for graph in pairs]
    attributes = {"edge_label_index": torch.cat(ends, dim=1)}
    node_times = pairs[0].nodes[relation[0]].data
    if SEED_TIME in node_times:
        attributes["edge_label_time"] = node_times[SEED_TIME][attributes["edge_label_index"][0]]
    if len(ends) > 1:
        attributes["edge_label"] = torch.cat([torch.ones(ends[0].shape[1]), torch.zeros(ends[1].shape[1])])
    return attributes
