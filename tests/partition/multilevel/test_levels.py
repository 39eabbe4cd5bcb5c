"""The steps between the levels: clusters keep their caps, nothing is lost when they become nodes, refinement helps."""

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from mpigraph.metadata.schema import Schema
from mpigraph.partition.assigning import Task, loads_of
from mpigraph.partition.exchange import even_bounds
from mpigraph.partition.multilevel.assign import spread
from mpigraph.partition.multilevel.levels import Level, contract, find_clusters, finest_level
from mpigraph.partition.multilevel.refinement import refine
from mpigraph.partition.over_mpi import MPIExchange
from mpigraph.partition.source import GraphSource
from mpigraph.partition.spill import Scratch

NODES, CAPS = 1200, np.array([6, 40])


def grid_with_tail(comm: MPI.Intracomm) -> Level:
    """A grid of 30 x 30 whose ids are shuffled, and 300 nodes without edges; criteria: nodes and degrees."""
    x, y = np.divmod(np.arange(900), 30)
    shuffle = np.random.default_rng(0).permutation(NODES)
    src = np.concatenate([np.flatnonzero(x < 29), np.flatnonzero(y < 29)])
    dst = np.concatenate([src[:870] + 30, src[870:] + 1])
    bounds = even_bounds(NODES, comm.size)
    degrees = np.bincount(shuffle[np.concatenate([src, dst])], minlength=NODES)
    weights = np.stack([np.ones_like(degrees), degrees], axis=1)[slice(*bounds[comm.rank : comm.rank + 2])].astype("i4")
    graph = GraphSource(Schema.homogeneous(), (NODES,), ((shuffle[src], shuffle[dst]),))
    return finest_level(Task(graph, 4, bounds, MPIExchange(comm), weights=weights))


def global_loads(level: Level, parts: npt.NDArray[np.int32], num_parts: int) -> npt.NDArray[np.int64]:
    return level.exchange.total(loads_of(level.weights, parts[: level.num_own], num_parts))


def cut_of(comm: MPI.Intracomm, level: Level, parts: npt.NDArray[np.int32]) -> int:
    indptr, indices, weights = level.rows
    cut = parts[np.repeat(np.arange(level.num_own), np.diff(indptr))] != parts[indices]
    return comm.allreduce(int(weights[cut].sum() if len(weights) else cut.sum()))


def test_clusters_keep_their_caps_and_become_nodes(comm: MPI.Intracomm) -> None:
    level = grid_with_tail(comm)
    own = level.num_own
    clusters = find_clusters(level, CAPS, 50, seed=1)
    keys = clusters.table.keys[clusters.labels]  # of the clusters of own nodes and ghosts
    told = keys.copy()
    level.ghosts.tell(told)
    assert np.array_equal(keys, told)  # ghosts are where their owners say
    counts = np.zeros((NODES, 3), np.int64)
    np.add.at(counts, keys[:own], np.column_stack([np.ones(own, np.int64), level.weights]))
    counts = comm.allreduce(counts)
    first = level.keys[0] if own else 0
    assert np.array_equal(counts[first : first + own, 0], clusters.members)
    assert np.array_equal(counts[:, 1:][clusters.table.keys], clusters.loads)
    assert (counts[:, 1:] <= CAPS).all() and np.count_nonzero(counts[:, 0]) <= 300

    coarse, descent = contract(level, clusters, Scratch())
    assert comm.allreduce(coarse.num_own) == np.count_nonzero(counts[:, 0])
    assert np.array_equal(coarse.weights, counts[coarse.keys[: coarse.num_own], 1:])
    parts = (coarse.keys % 3).astype(np.int32)
    finer = descent.project(parts)
    assert np.array_equal(finer, keys % 3)
    assert cut_of(comm, coarse, parts) == cut_of(comm, level, finer) > 0
    assert np.array_equal(global_loads(coarse, parts, 3), global_loads(level, finer, 3))


def test_refinement_cuts_less_and_restores_balance(comm: MPI.Intracomm) -> None:
    level = grid_with_tail(comm)
    limits = np.array([310, 900])
    total = comm.allreduce(level.weights.sum(axis=0))
    dealt = spread(np.ones((NODES, 1), np.int64), np.arange(NODES), 4, seed=0)[level.keys]
    better = refine(level, dealt.copy(), 4, limits, seed=2, finest=True)
    loads = global_loads(level, better, 4)
    assert np.array_equal(loads.sum(axis=0), total) and (loads <= limits).all()
    assert cut_of(comm, level, better) < cut_of(comm, level, dealt) / 3
    crowded = np.where(level.keys % 10 < 8, 0, dealt).astype(np.int32)
    assert (global_loads(level, crowded, 4)[0] > limits).all()
    mended = refine(level, crowded, 4, limits, seed=2, finest=True)
    assert (global_loads(level, mended, 4) <= limits).all()
