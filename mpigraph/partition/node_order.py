"""The order of the nodes of a part: as the input has them, or by clusters, so that rows read together lie together.

A minibatch reads nodes with many of their neighbours. The multilevel method's clustering joins such nodes, and with
growing caps joins clusters of clusters. Nodes are ordered by their clusters, those of the last level first, which is
the order of a depth-first search in the tree of clusters. This follows Rabbit Order: Arai et al., "Rabbit Order:
Just-in-time Parallel Reordering for Fast Graph Analysis", IPDPS 2016.
"""

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.memory import give_back
from mpigraph.partition.exchange import Exchange, Route, even_bounds, owners_of
from mpigraph.partition.multilevel.assign import Report, all_edges
from mpigraph.partition.multilevel.clustering import find_clusters
from mpigraph.partition.multilevel.contraction import Descent, contract
from mpigraph.partition.multilevel.dist_csr import level_of_edges
from mpigraph.partition.source import GraphSource
from mpigraph.partition.spill import Scratch

_CAPS = (16, 128, 1024, 8192)  # nodes of a cluster of each level
_DONE = (0.75, 0.9, 0.95, 1.0)  # of the time has passed after each level, about


@collective("ranks")
def cluster_keys(
    source: GraphSource,
    *,
    seed: int,
    both_ways: bool,
    exchange: Exchange,
    bounds: I64,
    scratch: Scratch,
    report: Report,
) -> I64:
    """Return int64[own nodes], keys to sort nodes by: those of a cluster are equal, those of near clusters close.

    Keys are below the number of all nodes, and the same on any number of ranks. All relations count alike. Arguments
    are those of :func:`.multilevel_assign`.
    """
    num_own = int(bounds[exchange.rank + 1] - bounds[exchange.rank])
    if bounds[-1] == 0:
        return np.empty(0, np.int64)
    weights = np.ones((num_own, 1), np.int32)
    level = level_of_edges(exchange, bounds, all_edges(source, exchange, report), weights, scratch, both_ways)
    descents: list[Descent] = []
    for number, cap in enumerate(_CAPS):
        give_back()
        clusters = find_clusters(level, np.array([cap]), 1, seed + number)
        level, descent = contract(level, clusters, scratch)
        del clusters
        descents.append(descent)
        report(_DONE[number])
    own = level.num_own
    del level
    keys: Array = np.arange(own) + _before(exchange, own)
    while descents:
        descent = descents.pop()
        keys = descent.project(keys)[: descent.mirror.num_own]
        if descents:
            keys = _numbered(exchange, keys)
    return keys.astype(np.int64, copy=False)


@collective("ranks")
def _numbered(exchange: Exchange, keys: Array) -> I64:
    """Number all ranks' items by key, those of a key by rank and position: int64[n]."""
    bounds = even_bounds(exchange.sum_of(len(keys)), exchange.size)
    route = Route(exchange, owners_of(bounds, keys))
    came = route.there(keys[:, None])[:, 0]
    numbers = np.empty(len(came), np.int64)
    numbers[np.argsort(came, kind="stable")] = np.arange(len(came)) + _before(exchange, len(came))
    return route.back(numbers[:, None])[:, 0]


@collective("ranks")
def _before(exchange: Exchange, count: int) -> int:
    """Return the sum of the counts of the ranks before this one."""
    return int(exchange.gather(np.array([[count]], np.int64))[: exchange.rank].sum())
