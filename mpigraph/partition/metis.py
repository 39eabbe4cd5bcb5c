"""METIS: few edges cut, on one rank, of the finest level of the multilevel graph.

The only module that knows pymetis. METIS needs a symmetric adjacency without self loops and crashes on anything else,
which a level is. Its 64-bit build needs several times the memory of the adjacency; nothing else is held meanwhile.

METIS is called by its own entry point in pymetis's library: it takes several balance criteria, and ctypes lets other
threads run meanwhile, such as the one that shows the time.
"""

import ctypes
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pymetis
from pymetis import _internal

from mpigraph.arrays import F64, I32, I64, Array
from mpigraph.collective import collective
from mpigraph.errors import PartitionError
from mpigraph.log import get_logger
from mpigraph.partition.assigning import Criteria, Method, Task, Workload, limits, loads_of, spread_types
from mpigraph.partition.exchange import ALONE
from mpigraph.partition.multilevel.dist_csr import Level, level_of_edges
from mpigraph.partition.multilevel.refinement import balanced
from mpigraph.partition.source import all_edges_among_nodes

_MAX_CONSTRAINTS = 8
_METIS_OK = 1
_METIS_OPTIONS = 40


class Adjacency(NamedTuple):
    """Undirected simple graph over all nodes: indptr int64[n + 1], indices int[m]."""

    indptr: I64
    indices: Array


@collective("ranks")
def assign(task: Task) -> I32:
    """Assign the nodes of all types: int32[own nodes], worked out on rank 0.

    All relations count alike. A graph that METIS cannot partition (no edges, fewer nodes than parts) is spread evenly.
    The objective "cut" minimises the edges cut, "vol" the communication volume.
    """
    criteria = {name: task.exchange.gather_to_first(of[:, None])[:, 0] for name, of in task.criteria.items()}
    return task.on_first(lambda: _assign_all(replace(task, criteria=criteria)))


def _assign_all(task: Task) -> I32:
    """Return int32[all nodes]."""
    num_parts = task.num_parts
    if num_parts == 1:
        return np.zeros(task.num_nodes, np.int32)
    level = finest_level(task) if task.num_nodes > num_parts else None
    if level is None or len(level.indices) == 0:
        return spread_types(task)
    usable = {name: weights for name, weights in task.criteria.items() if weights.sum() >= 10 * num_parts}
    parts = call_metis(Adjacency(level.indptr, level.indices), num_parts, usable, task.seed, task.objtype)
    bounds = limits(np.array([weights.sum() for weights in task.criteria.values()]), num_parts)
    if (loads_of(task.criteria, parts, num_parts) <= bounds).all():
        return parts
    get_logger().info("parts of METIS are balanced")
    return balanced(level, parts, num_parts, bounds, task.seed)


def finest_level(task: Task) -> Level:
    """Return the whole graph on one rank, with the criteria, which are of all nodes, as weights."""
    weights = np.stack([*task.criteria.values()], axis=1).astype(np.int32)
    bounds = np.array([0, task.num_nodes], np.int64)
    edges = all_edges_among_nodes(task.source)
    return level_of_edges(ALONE, bounds, edges, weights, task.scratch, task.both_ways)


def _memory(work: Workload, ranks: int, mapping: bool) -> tuple[int, int]:
    return 200 * work.num_nodes + 130 * work.num_edges, 16 * work.num_edges


METIS = Method(assign, _memory)


def _one_weight(criteria: Criteria) -> I64:
    """Combine criteria into one weight: 1000 times the mean over criteria of weight over mean weight.

    Every criterion then has the same total, so none dominates; a part of equal combined weight can still be heavy in
    one and light in another, which the measured balance shows.
    """
    relative = [weights / weights.mean() for weights in criteria.values() if weights.any()]
    combined: F64 = np.rint(1000.0 * np.mean(relative, axis=0))
    return np.maximum(combined.astype(np.int64), 1)


def widened(adjacency: Adjacency) -> Adjacency:
    """Return the adjacency in METIS's integer type, so that METIS copies nothing."""
    integer = pymetis.zero_copy_dtype()
    return Adjacency(adjacency.indptr.astype(integer, copy=False), adjacency.indices.astype(integer, copy=False))


def call_metis(
    adjacency: Adjacency,
    num_parts: int,
    criteria: Criteria,
    seed: int = 0,
    objtype: str = "cut",
    edge_weights: I64 | None = None,
) -> I32:
    """Return int32[n], the part of each node; METIS balances what it can of the criteria, else their sum.

    Args:
        adjacency: symmetric, without self loops or repeats, of more nodes than parts.
        num_parts: number of parts, > 1.
        criteria: to balance; may be empty.
        seed: any integer.
        objtype: "cut" or "vol". Up to 8 parts of least cut are made by bisection, which cuts less and balances better.
        edge_weights: int64[m], the same both ways; None: all 1.

    Raises:
        PartitionError: METIS fails, as happens with several criteria.
    """
    entry = "METIS_PartGraphRecursive" if num_parts <= 8 and objtype == "cut" else "METIS_PartGraphKway"
    adjacency = widened(adjacency)
    most = int(np.iinfo(adjacency.indptr.dtype).max)
    seed = seed if abs(seed) <= most else seed % most
    first = next(iter(criteria.values()), np.zeros(1, np.int64))
    if len(criteria) <= 1 and (first == first[0]).all():
        weights = None
    elif 1 < len(criteria) <= _MAX_CONSTRAINTS:
        weights = np.stack(list(criteria.values()), axis=1).astype(np.int64)
    else:
        weights = _one_weight(criteria)[:, None]
    return call_library(entry, adjacency, weights, num_parts, seed, objtype, edge_weights)


def call_library(
    entry: str,
    adjacency: Adjacency,
    weights: I64 | None,
    num_parts: int,
    seed: int,
    objtype: str,
    edge_weights: I64 | None = None,
) -> I32:
    """Call METIS's function ``entry`` (METIS manual, section 5.5). Releases the GIL.

    ``weights`` are int64[n, criteria], ``edge_weights`` int64[m]; None: all the same. Other arguments are those of
    :func:`call_metis`, the adjacency in METIS's integer type.
    """
    indptr, indices = adjacency
    integer = ctypes.c_int64 if indptr.dtype.itemsize == 8 else ctypes.c_int32
    options = np.full(_METIS_OPTIONS, -1, indptr.dtype)
    options[int(pymetis.OptionKey.SEED)] = seed
    options[int(pymetis.OptionKey.OBJTYPE)] = int(pymetis.ObjType.VOL if objtype == "vol" else pymetis.ObjType.CUT)
    node_weights = None if weights is None else np.ascontiguousarray(weights.astype(indptr.dtype))
    weights_of_edges = None if edge_weights is None else np.ascontiguousarray(edge_weights.astype(indptr.dtype))
    num_criteria = 1 if weights is None else weights.shape[1]
    parts = np.zeros(len(indptr) - 1, indptr.dtype)
    cut = integer(0)

    def number(value: int) -> "ctypes._CArgObject":
        return ctypes.byref(integer(value))

    def address(array: npt.NDArray[np.integer] | None) -> ctypes.c_void_p | None:
        return None if array is None else ctypes.c_void_p(array.ctypes.data)

    library = ctypes.CDLL(_internal.__file__)
    if not hasattr(library, entry):
        raise PartitionError(f"this build of pymetis hides METIS's function {entry}: use a wheel (pip install pymetis)")
    status = getattr(library, entry)(
        number(len(parts)), number(num_criteria), address(indptr), address(indices), address(node_weights), None,
        address(weights_of_edges), number(num_parts), None, None, address(options), ctypes.byref(cut), address(parts),
    )  # fmt: skip
    if status != _METIS_OK:
        raise PartitionError(f"METIS failed with status {status}")
    return parts.astype(np.int32)
