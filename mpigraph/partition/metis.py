"""METIS: few edges cut, on one rank, of the finest level of the multilevel graph.

The only module that knows pymetis. METIS needs a symmetric adjacency without self loops and crashes on anything else,
which a level is. Its 64-bit build needs several times the memory of the adjacency; nothing else is held meanwhile.

METIS is called by its own entry point in pymetis's library: it takes several balance criteria, and ctypes lets other
threads run meanwhile, such as the one that shows the time.
"""

import ctypes
from dataclasses import replace

import numpy as np
import pymetis
from pymetis import _internal

from mpigraph.arrays import F64, I32, I64, Array
from mpigraph.collective import collective
from mpigraph.errors import PartitionError
from mpigraph.log import get_logger
from mpigraph.partition.assigning import Method, Task, Workload, limits, loads_of, spread_types
from mpigraph.partition.exchange import ALONE
from mpigraph.partition.multilevel.levels import finest_level
from mpigraph.partition.multilevel.loops import Rows
from mpigraph.partition.multilevel.refinement import balanced

_MAX_CONSTRAINTS = 8
_METIS_OK = 1
_METIS_OPTIONS = 40


@collective("ranks")
def assign(task: Task) -> I32:
    """Assign the nodes of all types: int32[own nodes], worked out on rank 0.

    All relations count alike. A graph that METIS cannot partition (no edges, fewer nodes than parts) is spread evenly.
    The objective "cut" minimises the edges cut, "vol" the communication volume.
    """
    weights = task.exchange.gather_to_first(task.weights)
    whole = replace(task, weights=weights, bounds=task.bounds[[0, -1]], exchange=ALONE)
    return task.on_first(lambda: _assign_all(whole))


def _assign_all(task: Task) -> I32:
    """Return int32[all nodes]."""
    num_parts = task.num_parts
    level = finest_level(task) if task.num_nodes > num_parts > 1 else None
    if level is None or len(level.rows.indices) == 0:
        return spread_types(task)
    parts = call_metis(level.rows, num_parts, task.weights, task.seed, task.objtype)
    bounds = limits(task.weights.sum(axis=0), num_parts)
    if (loads_of(task.weights, parts, num_parts) <= bounds).all():
        return parts
    get_logger().info("parts of METIS are balanced")
    return balanced(level, parts, num_parts, bounds, task.seed)


def _memory(work: Workload, ranks: int, mapping: bool) -> tuple[int, int]:
    return 200 * work.num_nodes + 130 * work.num_edges, 16 * work.num_edges


METIS = Method(assign, _memory)


def _one_weight(weights: Array) -> I64:
    """Combine criteria into one weight: 1000 times the mean over criteria of weight over mean weight.

    Every criterion then has the same total, so none dominates; a part of equal combined weight can still be heavy in
    one and light in another, which the measured balance shows.
    """
    relative = [of_nodes / of_nodes.mean() for of_nodes in weights.T if of_nodes.any()]
    combined: F64 = np.rint(1000.0 * np.mean(relative, axis=0))
    return np.maximum(combined.astype(np.int64), 1)


def widened(rows: Rows) -> Rows:
    """Return rows in METIS's integer type, so that METIS copies nothing."""
    integer = pymetis.zero_copy_dtype()
    return Rows(*(array.astype(integer, copy=False) for array in rows))


def call_metis(rows: Rows, num_parts: int, weights: Array, seed: int = 0, objtype: str = "cut") -> I32:
    """Return int32[n], the part of each node; METIS balances what it can of the criteria, else their sum.

    Args:
        rows: symmetric, without self loops or repeats, of more nodes than parts.
        num_parts: number of parts, > 1.
        weights: int[n, criteria], to balance; those that parts would hardly get are left out.
        seed: any integer.
        objtype: "cut" or "vol". Up to 8 parts of least cut are made by bisection, which cuts less and balances better.

    Raises:
        PartitionError: METIS fails, as happens with several criteria.
    """
    entry = "METIS_PartGraphRecursive" if num_parts <= 8 and objtype == "cut" else "METIS_PartGraphKway"
    rows = widened(rows)
    most = int(np.iinfo(rows.indptr.dtype).max)
    seed = seed if abs(seed) <= most else seed % most
    weights = weights[:, weights.sum(axis=0) >= 10 * num_parts]
    if weights.shape[1] <= 1 and (weights == weights[:1]).all():
        weights = weights[:, :0]
    elif not 1 < weights.shape[1] <= _MAX_CONSTRAINTS:
        weights = _one_weight(weights)[:, None]
    return call_library(entry, rows, weights, num_parts, seed, objtype)


def call_library(entry: str, rows: Rows, weights: Array, num_parts: int, seed: int, objtype: str) -> I32:
    """Call METIS's function ``entry`` (METIS manual, section 5.5). Releases the GIL.

    ``weights`` are int[n, criteria]; of no criterion: all nodes the same. Other arguments are those of
    :func:`call_metis`, rows in METIS's integer type.
    """
    indptr, indices, weights_of_edges = rows
    integer = ctypes.c_int64 if indptr.dtype.itemsize == 8 else ctypes.c_int32
    options = np.full(_METIS_OPTIONS, -1, indptr.dtype)
    options[int(pymetis.OptionKey.SEED)] = seed
    options[int(pymetis.OptionKey.OBJTYPE)] = int(pymetis.ObjType.VOL if objtype == "vol" else pymetis.ObjType.CUT)
    weights = np.ascontiguousarray(weights, indptr.dtype)
    parts = np.zeros(len(indptr) - 1, indptr.dtype)

    def address(array: Array) -> ctypes.c_void_p | None:
        return ctypes.c_void_p(array.ctypes.data) if array.size else None

    nodes, criteria, count, cut = (
        ctypes.byref(integer(number)) for number in (len(parts), weights.shape[1] or 1, num_parts, 0)
    )
    status = getattr(ctypes.CDLL(_internal.__file__), entry)(
        nodes, criteria, address(indptr), address(indices), address(weights), None, address(weights_of_edges), count,
        None, None, address(options), cut, address(parts),
    )  # fmt: skip
    if status != _METIS_OK:
        raise PartitionError(f"METIS failed with status {status}")
    return parts.astype(np.int32)
