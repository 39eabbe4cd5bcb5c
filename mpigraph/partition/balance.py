"""What a partition must balance: criteria, limits, and the balance that was reached."""

from collections.abc import Mapping

import numpy as np

from mpigraph.arrays import F64, I32, I64, Array
from mpigraph.errors import GraphDataError
from mpigraph.kernels.csr import count_keys
from mpigraph.partition.source import GraphSource, edge_chunks

__all__ = ["Criteria", "balance_criteria", "limits", "loads_of", "measured_balance", "one_weight"]

TOLERANCE = 1.05

Criteria = dict[str, I64]


def balance_criteria(
    source: GraphSource, classes: Mapping[str, Array] | None = None, balance_edges: bool = False
) -> Criteria:
    """Return what is to be equal in all parts: name -> int64[all nodes], the weight of each node.

    Always the nodes of each type, or of each of its classes where ``classes`` has some; then, if asked for, edges,
    which count at their destination, because its part holds them.

    Args:
        source: the graph.
        classes: for node types, int[nodes] of class numbers >= 0 (training node or not, say).
        balance_edges: whether edges count.

    Raises:
        GraphDataError: the classes of a type do not fit its nodes.
    """
    bases = source.node_bases
    ntypes = source.schema.ntypes
    given = classes or {}
    criteria: Criteria = {}
    for i, ntype in enumerate(ntypes):
        num_nodes = source.num_nodes[i]
        node_classes = np.zeros(num_nodes, np.int64)
        if ntype in given:
            node_classes = np.asarray(given[ntype]).astype(np.int64).reshape(-1)
            if len(node_classes) != num_nodes or (node_classes < 0).any():
                expected = f"{num_nodes} numbers >= 0"
                raise GraphDataError(f"balance classes of {ntype!r} must be {expected} (got {len(node_classes)})")
        for number in np.unique(node_classes):
            name = f"nodes {ntype}" if len(ntypes) > 1 else "nodes"
            if ntype in given:
                name += f" class {number}"
            criteria[name] = np.zeros(int(bases[-1]), np.int64)
            criteria[name][bases[i] : bases[i + 1]] = node_classes == number
    if balance_edges:
        criteria["edges"] = _in_degrees(source)
    return criteria


def loads_of(weights: I64, parts: I32, num_parts: int) -> I64:
    """Return int64[num_parts], the weight in each part."""
    return np.bincount(parts, weights=weights, minlength=num_parts).astype(np.int64)


def limits(criteria: Criteria, num_parts: int) -> I64:
    """Return int64[criteria], what a part may hold: 5 % over the mean, and at least its ceiling."""
    means = np.array([weights.sum() / num_parts for weights in criteria.values()])
    bounds: F64 = np.maximum(np.floor(means * TOLERANCE), np.ceil(means))
    return bounds.astype(np.int64)


def measured_balance(criteria: Criteria, parts: I32, num_parts: int) -> dict[str, float]:
    """Return for each criterion the heaviest part over the mean (1.0 is perfect)."""
    balance = {}
    for name, weights in criteria.items():
        loads = loads_of(weights, parts, num_parts)
        balance[name] = round(float(loads.max() * num_parts / max(int(loads.sum()), 1)), 4)
    return balance


def one_weight(criteria: Criteria) -> I64:
    """Combine criteria into one weight: 1000 times the mean over criteria of weight over mean weight.

    Every criterion then has the same total, so none dominates; a part of equal combined weight can still be heavy in
    one and light in another, which the measured balance shows.
    """
    relative = [weights / weights.mean() for weights in criteria.values() if weights.any()]
    combined: F64 = np.rint(1000.0 * np.mean(relative, axis=0))
    return np.maximum(combined.astype(np.int64), 1)


def _in_degrees(source: GraphSource) -> I64:
    degrees = np.zeros(int(source.node_bases[-1]), np.int64)
    for relation_id in range(len(source.edges)):
        _, dst_type = source.schema.ends(relation_id)
        base = int(source.node_bases[dst_type])
        for _, _, dst in edge_chunks(source, relation_id):
            count_keys(dst, base, degrees)
    return degrees
