"""Assign nodes to parts by METIS, few edges cut, or at random; criteria, limits and balance of all methods.

The only module that knows pymetis. METIS needs a symmetric adjacency without self loops and crashes on anything else,
so this module builds the adjacency from chunks of edges, and checks it. METIS's 64-bit build needs several times the
memory of the adjacency; nothing else is held meanwhile.

METIS is called by its own entry point in pymetis's library: it takes several balance criteria, and ctypes lets other
threads run meanwhile, such as the one that shows the time. Where a build of pymetis does not export the entry point,
pymetis's function does the same with one combined weight.
"""

import ctypes
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pymetis
from pymetis import _internal

from mpigraph.arrays import F64, I32, I64, Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError, PartitionError
from mpigraph.kernels.csr import count_keys
from mpigraph.log import get_logger
from mpigraph.partition.exchange import ALONE, Exchange, Route, owners_of
from mpigraph.partition.loops import asymmetry, drop_repeats, place_both_ways, rebalance
from mpigraph.partition.source import GraphSource, all_edges_among_nodes

TOLERANCE = 1.05

Criteria = dict[str, I32 | I64]


@collective("ranks")
def balance_criteria(
    source: GraphSource,
    classes: Mapping[str, Array] | None = None,
    balance_edges: bool = False,
    exchange: Exchange = ALONE,
    bounds: I64 | None = None,
) -> Criteria:
    """Return the criteria to balance: name -> int[own nodes], the weight of each node.

    Criteria are the nodes of each type, or of each of its classes (``classes`` of a type: int[nodes]) and, where nodes
    have no class (a number below 0), all nodes of the type; and with ``balance_edges`` the edges, which count at their
    destination, because its part holds them. Each rank owns the nodes between two ``bounds`` (int64[ranks + 1]); one
    rank owns all by default.

    Raises:
        GraphDataError: the classes of a type do not fit its nodes.
    """
    bases = source.node_bases
    bounds = bases[[0, -1]] if bounds is None else bounds
    first, last = bounds[exchange.rank : exchange.rank + 2]
    ntypes = source.schema.ntypes
    classes = classes or {}
    criteria: Criteria = {}
    for i, ntype in enumerate(ntypes):
        own = slice(*(np.clip(bases[i : i + 2], first, last) - first).tolist())
        node_classes = np.zeros(own.stop - own.start, np.int64)
        if ntype in classes:
            begin = int(first - bases[i]) + own.start
            with exchange.together("reading balance classes"):
                numbers = np.asarray(classes[ntype]).reshape(-1)
                node_classes = np.maximum(numbers[begin : begin + len(node_classes)].astype(np.int64), -1)
                if len(numbers) != source.num_nodes[i]:
                    expected = f"{source.num_nodes[i]} numbers (got {len(numbers)})"
                    raise GraphDataError(f"balance classes of {ntype!r} must be {expected}")
        for number in np.unique(exchange.gather(np.unique(node_classes)[:, None])):
            name = f"nodes {ntype}" if len(ntypes) > 1 else "nodes"
            if ntype in classes and number >= 0:
                name += f" class {number}"
            criteria[name] = np.zeros(int(last - first), np.int32)
            criteria[name][own] = (node_classes == number) | (number < 0)
    if balance_edges:
        criteria["edges"] = _in_degrees(source, exchange, bounds)
    return criteria


def loads_of(criteria: Criteria, parts: I32, num_parts: int) -> I64:
    """Return int64[parts, criteria], the weight in each part."""
    loads = np.zeros((num_parts, len(criteria)), np.int64)
    for column, weights in enumerate(criteria.values()):
        loads[:, column] = np.bincount(parts, weights=weights, minlength=num_parts)
    return loads


def limits(criteria: Criteria, num_parts: int) -> I64:
    """Return int64[criteria], the limit of a part: 5 % over the mean, and at least its ceiling."""
    means = np.array([weights.sum() / num_parts for weights in criteria.values()])
    bounds: F64 = np.maximum(np.floor(means * TOLERANCE), np.ceil(means))
    return bounds.astype(np.int64)


def measured_balance(criteria: Iterable[str], loads: I64) -> dict[str, float]:
    """Return for each criterion, by name, the heaviest part over the mean (1.0 is perfect); of :func:`loads_of`."""
    return {
        name: round(float(column.max() * len(column) / max(int(column.sum()), 1)), 4)
        for name, column in zip(criteria, loads.T, strict=True)
    }


def _one_weight(criteria: Criteria) -> I64:
    """Combine criteria into one weight: 1000 times the mean over criteria of weight over mean weight.

    Every criterion then has the same total, so none dominates; a part of equal combined weight can still be heavy in
    one and light in another, which the measured balance shows.
    """
    relative = [weights / weights.mean() for weights in criteria.values() if weights.any()]
    combined: F64 = np.rint(1000.0 * np.mean(relative, axis=0))
    return np.maximum(combined.astype(np.int64), 1)


@collective("ranks")
def _in_degrees(source: GraphSource, exchange: Exchange, bounds: I64) -> I64:
    degrees = np.zeros(int(bounds[exchange.rank + 1] - bounds[exchange.rank]), np.int64)
    for _, ends in all_edges_among_nodes(source, exchange.rank, exchange.size):
        came = Route(exchange, owners_of(bounds, ends)).there(ends[:, None])[:, 0]
        count_keys(came, -int(bounds[exchange.rank]), degrees)
    return degrees


_MAX_CONSTRAINTS = 8
_METIS_OK = 1
_METIS_OPTIONS = 40


class Adjacency(NamedTuple):
    """Undirected simple graph over all nodes: indptr int64[n + 1], indices int[m]."""

    indptr: I64
    indices: Array


def metis_assign(
    source: GraphSource, num_parts: int, criteria: Criteria, *, seed: int = 0, objtype: str = "cut"
) -> I32:
    """Assign every node of every type to a part: int32[all nodes], types one after the other.

    All relations count alike. A graph that METIS cannot partition (no edges, fewer nodes than parts) is spread evenly.
    Up to 8 parts are made by recursive bisection, unless ``objtype`` is "vol", which minimises the communication volume
    and which only the k-way method knows; "cut" minimises the edges cut. Equal seeds, any integers, give equal
    assignments.
    """
    total = int(source.node_bases[-1])
    if num_parts == 1:
        return np.zeros(total, np.int32)
    recursive = num_parts <= 8 and objtype == "cut"  # cuts less and balances better there, at the same memory
    adjacency = widened(symmetric_adjacency(source))
    if total <= num_parts or len(adjacency.indices) == 0:
        return random_assign(source, num_parts, seed)
    usable = {name: weights for name, weights in criteria.items() if weights.sum() >= 10 * num_parts}
    most = int(np.iinfo(adjacency.indptr.dtype).max)
    parts = call_metis(adjacency, num_parts, usable, seed if abs(seed) <= most else seed % most, objtype, recursive)
    return _restore_balance(adjacency, parts, num_parts, criteria)


def metis_cut(adjacency: Adjacency, edge_weights: I64, num_parts: int, criteria: Criteria, *, seed: int = 0) -> I32:
    """Partition a graph whose edges have weights (int64[m], the same both ways) into parts: int32[n].

    The adjacency is symmetric, without self loops or repeats, and has more nodes than parts, which are more than 1.
    Criteria to balance may be empty. Raises PartitionError if METIS fails, as happens with several criteria.
    """
    return call_metis(widened(adjacency), num_parts, criteria, seed, "cut", num_parts <= 8, edge_weights)


def random_assign(source: GraphSource, num_parts: int, seed: int = 0) -> I32:
    """Assign every node to a part, each type evenly: int32[all nodes]; the arguments are those of metis_assign."""
    rng = np.random.default_rng(seed % 2**64)  # numpy takes no negative seeds
    assignment = np.empty(int(source.node_bases[-1]), np.int32)
    first = 0  # each type continues where the one before stopped, so that small types do not all lie in part 0
    for base, count in zip(source.node_bases[:-1], source.num_nodes, strict=True):
        assignment[base : base + count] = (rng.permutation(count) + first) % num_parts
        first = (first + count) % num_parts
    return assignment


def symmetric_adjacency(source: GraphSource) -> Adjacency:
    """Return the undirected simple graph of all relations together."""
    total = int(source.node_bases[-1])
    counts = np.zeros(total + 1, np.int64)
    for src, dst in all_edges_among_nodes(source):
        count_keys(src, 1, counts)
        count_keys(dst, 1, counts)
    indptr = np.cumsum(counts)
    indices = np.empty(int(indptr[-1]), np.int32 if total < 2**31 else np.int64)
    fill = indptr[:-1].copy()
    for src, dst in all_edges_among_nodes(source):
        place_both_ways(src, dst, fill, indices)
    kept = drop_repeats(indptr, fill, indices, np.full(total, -1, indices.dtype), counts)
    if asymmetry(counts, indices[:kept]) != 0:
        raise PartitionError("the adjacency for METIS came out asymmetric")
    return Adjacency(counts, indices[:kept])


def widened(adjacency: Adjacency) -> Adjacency:
    """Return the adjacency in METIS's integer type, so that METIS copies nothing."""
    integer = pymetis.zero_copy_dtype()
    return Adjacency(adjacency.indptr.astype(integer, copy=False), adjacency.indices.astype(integer, copy=False))


def call_metis(
    adjacency: Adjacency,
    num_parts: int,
    criteria: Criteria,
    seed: int,
    objtype: str,
    recursive: bool,
    edge_weights: I64 | None = None,
) -> I32:
    """Return int32[num_nodes], the part of each node; METIS balances what it can of the criteria, else their sum."""
    entry = "METIS_PartGraphRecursive" if recursive else "METIS_PartGraphKway"
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
    :func:`metis_assign`, the adjacency in METIS's integer type.
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


def _restore_balance(adjacency: Adjacency, parts: I32, num_parts: int, criteria: Criteria) -> I32:
    """Move nodes greedily while a criterion is over its limit: first moves that cost nothing, then any."""
    weights = np.stack(list(criteria.values()), axis=1).astype(np.int64)
    bounds = limits(criteria, num_parts)
    loads = loads_of(criteria, parts, num_parts)
    before = measured_balance(criteria, loads)
    for max_loss in (0, 1, 4, 16, 2**62):
        if (loads <= bounds).all():
            break
        moves = rebalance(adjacency.indptr, adjacency.indices, weights, bounds, max_loss, loads, parts)
        get_logger().info("balance %s: moved %d nodes", before, moves)
    return parts
