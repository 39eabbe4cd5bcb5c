"""Exclusion of edges from the blocks of a minibatch of edges (``exclude=``), and look-up of reverse edges.

A model that predicts an edge must not see it, nor its reverse, among the neighbours it aggregates.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np
import torch

from mpigraph.arrays import I64
from mpigraph.collective import WHEN_REMOTE, collective
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.distgraph.typed_ids import ByEdgeType, EdgeIds, EdgeTensors, by_relation, canonical, unwrap_edges
from mpigraph.errors import EdgeTypeError, GraphDataError, InvalidArgumentError
from mpigraph.graphs.fields import EID, EdgeType, IdsLike, as_ids
from mpigraph.metadata.schema import Relation
from mpigraph.rows.owners import RowOwners

_SOURCES_AT_A_TIME = 1 << 14  # sources looked up at a time

Eids: TypeAlias = dict[Relation, torch.Tensor]
Exclude: TypeAlias = str | EdgeIds | Callable[[EdgeTensors], EdgeIds] | None
"""The values of ``exclude``; see :func:`.as_edge_prediction_sampler`."""
ReverseEids: TypeAlias = IdsLike | DistTensor | ByEdgeType[IdsLike | DistTensor] | None
"""The values of ``reverse_eids``."""
_Table = torch.Tensor | DistTensor  # the reverse edge of each edge of a relation
Exclusion = Callable[[DistGraph, Eids], Eids]
"""A function from the seed edges of a minibatch to the edges to exclude, both int64 by relation."""


def make_exclusion(
    exclude: Exclude, reverse_eids: ReverseEids, reverse_etypes: ByEdgeType[EdgeType] | None
) -> Exclusion | None:
    """Return the function that ``exclude`` stands for, or None; see :func:`.as_edge_prediction_sampler`.

    It reads ``reverse_eids`` one-sidedly, if that is a DistTensor. Raises InvalidArgumentError.
    """
    if exclude is None:
        return None
    if isinstance(exclude, Mapping | torch.Tensor | np.ndarray | list | tuple):
        ids = _of_types(_ascending, exclude)
        return lambda g, seeds: by_relation(g.schema, ids, "edges to exclude")
    if callable(exclude):
        return lambda g, seeds: by_relation(g.schema, exclude(unwrap_edges(g.schema, seeds)), "edges to exclude")
    if exclude == "self":
        return lambda g, seeds: seeds
    if exclude in ("reverse_id", "reverse_types"):
        pairs = cast(ByEdgeType[EdgeType], reverse_etypes) if exclude == "reverse_types" else None
        return partial(_with_reverse, pairs, _of_types(_table, reverse_eids))
    raise InvalidArgumentError(
        "exclude must be None, 'self', 'reverse_id', 'reverse_types', edge ids or a function of edge ids "
        f"(got {exclude!r})"
    )


def _of_types(convert: Callable[[Any], Any], values: object) -> Any:
    """Convert a value, or each of those by edge type."""
    if isinstance(values, Mapping):
        return {etype: convert(value) for etype, value in values.items()}
    return convert(values)


def _ascending(ids: IdsLike) -> torch.Tensor:
    """Sort edge ids once, and not for every minibatch."""
    return torch.from_numpy(np.unique(as_ids(ids, "edges to exclude").cpu().numpy()))


def _with_reverse(
    reverse_etypes: ByEdgeType[EdgeType] | None, tables: _Table | ByEdgeType[_Table], g: DistGraph, seeds: Eids
) -> Eids:
    """Return the seeds and their reverse edges, by tables of these; None: they are of the seeds' own relations."""
    by_etype: dict[Relation, _Table] = canonical(g.schema, tables, "reverse_eids")
    pairs = {relation: relation for relation in seeds} if reverse_etypes is None else reverse_etypes
    reverse: dict[Relation, EdgeType] = canonical(g.schema, pairs, "reverse_etypes")
    excluded: dict[Relation, list[torch.Tensor]] = {relation: [ids] for relation, ids in seeds.items()}
    for relation, ids in seeds.items():
        if relation in reverse:
            there = _reverse(by_etype, ids, g, relation)
            excluded.setdefault(g.schema.to_canonical(reverse[relation]), []).append(there)
    return {relation: torch.cat(parts) for relation, parts in excluded.items()}


def _reverse(by_etype: Mapping[Relation, _Table], ids: torch.Tensor, g: DistGraph, relation: Relation) -> torch.Tensor:
    if relation not in by_etype:
        raise InvalidArgumentError(f"reverse_eids has no edges of {relation} (has {list(by_etype)})")
    table = by_etype[relation]
    if len(table) != g.num_edges(relation):
        raise InvalidArgumentError(
            f"reverse_eids must have one entry for each of {g.num_edges(relation)} edges of {relation} "
            f"(got {len(table)})"
        )
    return as_ids(table[ids], "reverse_eids").cpu()


def _table(table: IdsLike | DistTensor | None) -> _Table:
    if isinstance(table, torch.Tensor | np.ndarray | list | tuple):
        return as_ids(table, "reverse_eids")
    if getattr(table, "dtype", None) != torch.int64 or not hasattr(table, "__getitem__"):
        raise InvalidArgumentError(
            f"reverse_eids must be a tensor, array or DistTensor of int64 (got {type(table).__name__} "
            f"of {getattr(table, 'dtype', None)})"
        )
    return cast(DistTensor, table)


@collective("trainers")
def reverse_edges(g: DistGraph, reverse_etypes: ByEdgeType[EdgeType]) -> dict[Relation, DistTensor]:
    """Find the reverse edge of each edge of some relations, for ``reverse_eids`` of loaders and edge samplers.

    The reverse of an edge ``u -> v`` is the edge ``v -> u`` of the other relation; parallel edges are matched in their
    order. Every trainer looks up the edges near it, in blocks, by the in-edges of their sources. That takes about a
    microsecond and, while it runs, 60 bytes for each of its edges: a few percent of an epoch of training on them. A
    loader does it by itself when it is made; for several loaders call this once, and give them the result. Partitions
    do not hold it, which would cost every user 8 bytes an edge.

    Args:
        g: the graph.
        reverse_etypes: edge type -> edge type of the reverse edges, which may be itself.

    Returns:
        Relation -> int64[num_edges], the ids of the reverse edges, in the hosts' memory.

    Raises:
        EdgeTypeError: an edge type does not exist, or does not join the types of its reverse the other way round.
        GraphDataError: an edge has no reverse; names it. On every trainer.
    """
    pairs: Mapping[Relation, EdgeType] = canonical(g.schema, reverse_etypes, "reverse_etypes")
    there_and_back = {relation: g.to_canonical_etype(etype) for relation, etype in pairs.items()}
    for relation, back in there_and_back.items():
        if relation[::2] != back[::-2]:
            raise EdgeTypeError(
                f"edges of {back} are not the reverse of those of {relation}: they join other node types"
            )
    return {relation: _look_up_reverse(g, relation, back) for relation, back in there_and_back.items()}


def _look_up_reverse(g: DistGraph, relation: Relation, back: Relation) -> DistTensor:
    table = DistTensor((g.num_edges(relation),), torch.int64, part_policy=g.get_edge_partition_policy(relation))
    owners = RowOwners(g.session.world, table.rows.offsets)
    ranges = [(owned.first, owned.last) for owned in owners.ranges()]
    before = [_parallel_before(g, relation, first) for first, _ in ranges]
    eids = np.concatenate([np.empty(0, np.int64), *before, *(np.arange(*piece) for piece in ranges)])
    src, dst = (ends.numpy() for ends in g.find_edges(eids, relation))
    order = np.argsort(src, kind="stable")
    in_order = src[order]
    sources = in_order[np.diff(in_order, prepend=-1) != 0]
    rounds = g.session.world.allreduce_minmax(-(-len(sources) // _SOURCES_AT_A_TIME), True)
    reverse = np.full(len(eids), -1, np.int64)
    for number in range(rounds):
        piece = sources[number * _SOURCES_AT_A_TIME : (number + 1) * _SOURCES_AT_A_TIME]
        begin, end = np.searchsorted(in_order, [piece[0], piece[-1] + 1]) if len(piece) else (0, 0)
        which = order[begin:end]
        reverse[which] = _matched(g, back, piece, src[which], dst[which], eids[which])
    with g.session.world.together(f"looking up the reverse edges of {relation}"):
        if (reverse < 0).any():
            at = int(np.flatnonzero(reverse < 0)[0])
            raise GraphDataError(
                f"edge {eids[at]} of {relation}, from {src[at]} to {dst[at]}, has no reverse edge in {back}"
            )
    own = slice(sum(map(len, before)), None)
    table[eids[own]] = reverse[own]
    g.barrier()
    return table


def _parallel_before(g: DistGraph, relation: Relation, first: int) -> I64:
    """Return the edges before edge ``first`` with its destination, which may be parallel to it: int64[n]."""
    _, node = g.find_edges([first], relation)
    before = np.arange(max(0, first - int(g.in_degrees(node, relation))), first)
    _, dst = g.find_edges(before, relation)
    parallel: I64 = before[dst.numpy() == int(node)]
    return parallel


@collective("trainers", WHEN_REMOTE)
def _matched(g: DistGraph, back: Relation, sources: I64, src: I64, dst: I64, eids: I64) -> I64:
    """Return the edges ``dst -> src`` of a relation, int64[n], or -1; ``sources`` are the ids in ``src``, ascending."""
    fanouts = {relation: -1 if relation == back else 0 for relation in g.canonical_etypes}
    frontier = g.sample_neighbors({back[2]: sources}, fanouts, seed=0)
    ends = frontier.all_edges(etype=back)
    back_eids = frontier.edges[back].data[EID].numpy()
    width = max(g.num_nodes(back[0]), 1)
    keys = np.searchsorted(sources, ends[1].numpy()) * width + ends[0].numpy()
    order = np.lexsort((back_eids, keys))
    keys, back_eids = (np.append(column[order], -1) for column in (keys, back_eids))  # -1: no edge
    wanted_keys = np.searchsorted(sources, src) * width + dst
    by_key = np.lexsort((eids, wanted_keys))
    sorted_wanted = wanted_keys[by_key]
    rank = np.arange(len(by_key)) - np.searchsorted(sorted_wanted, sorted_wanted)  # among parallel edges
    place = np.minimum(np.searchsorted(keys[:-1], sorted_wanted) + rank, len(order))
    reverse = np.empty_like(eids)
    reverse[by_key] = np.where(keys[place] == sorted_wanted, back_eids[place], -1)
    return reverse
