"""Which edges a minibatch of edges must not be sampled from: what ``exclude=`` means.

A model that predicts an edge must not see it, nor its reverse, among the neighbours it aggregates.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias, cast

import numpy as np
import torch

from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.distgraph.typed_ids import ByEdgeType, EdgeIds, EdgeTensors, by_relation, canonical, unwrap_edges
from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.fields import EdgeType, IdsLike, as_ids
from mpigraph.metadata.schema import Relation

__all__ = ["Exclude", "Exclusion", "ReverseEids", "make_exclusion", "with_same_ids"]

Eids: TypeAlias = dict[Relation, torch.Tensor]
Exclude: TypeAlias = str | EdgeIds | Callable[[EdgeTensors], EdgeIds] | None
"""What ``exclude`` may be; see :func:`.as_edge_prediction_sampler`."""
ReverseEids: TypeAlias = IdsLike | DistTensor | ByEdgeType[IdsLike | DistTensor] | None
"""What ``reverse_eids`` may be."""
_Table = torch.Tensor | DistTensor  # the reverse edge of each edge of a relation
Exclusion = Callable[[DistGraph, Eids], Eids]
"""Makes the edges to exclude of the seed edges of a minibatch, both int64 by relation."""


def make_exclusion(
    exclude: Exclude, reverse_eids: ReverseEids, reverse_etypes: ByEdgeType[EdgeType] | None
) -> Exclusion | None:
    """What ``exclude`` means, or None if nothing is to be excluded; see :func:`.as_edge_prediction_sampler`.

    What it returns reads ``reverse_eids`` one-sidedly, if that is a DistTensor.

    Raises:
        InvalidArgumentError: not a way to exclude, or ``reverse_eids`` or ``reverse_etypes`` is wrong, or missing
            where it is needed.
    """
    if exclude is None:
        return None
    if callable(exclude):
        return partial(_chosen, exclude)
    if isinstance(exclude, Mapping):
        return partial(_always, {etype: _ascending(ids) for etype, ids in exclude.items()})
    if isinstance(exclude, torch.Tensor | np.ndarray | list | tuple):
        return partial(_always, _ascending(exclude))
    if exclude == "self":
        return _self
    if exclude == "reverse_id":
        return partial(_with_reverse_ids, _tables(reverse_eids))
    if exclude == "reverse_types":
        if not isinstance(reverse_etypes, Mapping):
            raise InvalidArgumentError("exclude='reverse_types' needs reverse_etypes, a dict edge type -> edge type")
        return partial(_with_reverse_types, reverse_etypes, _tables(reverse_eids))
    raise InvalidArgumentError(
        "exclude must be None, 'self', 'reverse_id', 'reverse_types', edge ids or a function of edge ids "
        f"(got {exclude!r})"
    )


def with_same_ids(reverse_etypes: ByEdgeType[EdgeType], g: DistGraph, seeds: Eids) -> Eids:
    """The seeds, and the edges of their ids in the reverse of their relation; for graphs that were not renumbered."""
    reverse: dict[Relation, EdgeType] = canonical(g.schema, reverse_etypes, "reverse_etypes")
    excluded: dict[Relation, list[torch.Tensor]] = {relation: [ids] for relation, ids in seeds.items()}
    for relation, ids in seeds.items():
        if relation in reverse:
            excluded.setdefault(g.schema.to_canonical(reverse[relation]), []).append(ids)
    return {relation: torch.cat(parts) for relation, parts in excluded.items()}


def _self(g: DistGraph, seeds: Eids) -> Eids:
    return seeds


def _ascending(ids: IdsLike) -> torch.Tensor:
    """Edge ids as sampling wants them, which is not done for every minibatch then."""
    return torch.from_numpy(np.unique(as_ids(ids, "edges to exclude").cpu().numpy()))


def _always(edges: EdgeIds, g: DistGraph, seeds: Eids) -> Eids:
    return by_relation(g.schema, edges, "edges to exclude")


def _chosen(choose: Callable[[EdgeTensors], EdgeIds], g: DistGraph, seeds: Eids) -> Eids:
    return by_relation(g.schema, choose(unwrap_edges(g.schema, seeds)), "edges to exclude")


def _with_reverse_ids(tables: _Table | ByEdgeType[_Table], g: DistGraph, seeds: Eids) -> Eids:
    by_etype: dict[Relation, _Table] = canonical(g.schema, tables, "reverse_eids")
    return {
        relation: torch.cat([ids, _reverse(_table_of(by_etype, relation), ids, g, relation)])
        for relation, ids in seeds.items()
    }


def _reverse(table: _Table, ids: torch.Tensor, g: DistGraph, relation: Relation) -> torch.Tensor:
    """The reverse of each edge, of a tensor or DistTensor."""
    if len(table) != g.num_edges(relation):
        raise InvalidArgumentError(
            f"reverse_eids must have one entry for each of {g.num_edges(relation)} edges of {relation} "
            f"(got {len(table)})"
        )
    return as_ids(table[ids], "reverse_eids").cpu()


def _tables(reverse_eids: ReverseEids) -> _Table | ByEdgeType[_Table]:
    """What was given, ids as tensors."""
    if isinstance(reverse_eids, Mapping):
        return {etype: _table(table) for etype, table in reverse_eids.items()}
    return _table(reverse_eids)


def _table(table: IdsLike | DistTensor | None) -> _Table:
    if isinstance(table, torch.Tensor | np.ndarray | list | tuple):
        return as_ids(table, "reverse_eids")
    if getattr(table, "dtype", None) != torch.int64 or not hasattr(table, "__getitem__"):
        raise InvalidArgumentError(
            f"reverse_eids must be a tensor, array or DistTensor of int64 (got {type(table).__name__} "
            f"of {getattr(table, 'dtype', None)})"
        )
    return cast(DistTensor, table)


def _with_reverse_types(
    reverse_etypes: ByEdgeType[EdgeType], tables: _Table | ByEdgeType[_Table], g: DistGraph, seeds: Eids
) -> Eids:
    """The seeds, and their reverse edges in the reverse of their relation; of both if both are seeds."""
    reverse: dict[Relation, EdgeType] = canonical(g.schema, reverse_etypes, "reverse_etypes")
    by_etype: dict[Relation, _Table] = canonical(g.schema, tables, "reverse_eids")
    excluded: dict[Relation, list[torch.Tensor]] = {relation: [ids] for relation, ids in seeds.items()}
    for relation, ids in seeds.items():
        if relation in reverse:
            there = _reverse(_table_of(by_etype, relation), ids, g, relation)
            excluded.setdefault(g.schema.to_canonical(reverse[relation]), []).append(there)
    return {relation: torch.cat(parts) for relation, parts in excluded.items()}


def _table_of(by_etype: Mapping[Relation, _Table], relation: Relation) -> _Table:
    if relation not in by_etype:
        raise InvalidArgumentError(f"reverse_eids has no edges of {relation} (has {list(by_etype)})")
    return by_etype[relation]
