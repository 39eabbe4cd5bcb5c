"""What a partition shall balance: criteria, limits, and the balance that was reached."""

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

    Always nodes (of each type, when there are several); then each class of ``classes``; then edges, which
    weigh in at their destination, because its part holds them.

    Args:
        source: the graph.
        classes: for node types, int[nodes] of class numbers >= 0 (training node or not, say).
        balance_edges: whether edges count.
    """
    bases, names = source.node_bases, source.schema.ntypes
    total = int(bases[-1])
    found: Criteria = {}
    for i, name in enumerate(names):
        labels = np.zeros(source.num_nodes[i], np.int64)
        if classes is not None and name in classes:
            labels = np.asarray(classes[name]).astype(np.int64).reshape(-1)
            if len(labels) != source.num_nodes[i] or (labels < 0).any():
                expected = f"{source.num_nodes[i]} numbers >= 0"
                raise GraphDataError(f"balance classes of {name!r} must be {expected} (got {len(labels)})")
        for label in np.unique(labels):
            title = f"nodes {name}" if len(names) > 1 else "nodes"
            title += f" class {label}" if classes is not None and name in classes else ""
            found[title] = np.zeros(total, np.int64)
            found[title][bases[i] : bases[i + 1]] = labels == label
    if balance_edges:
        found["edges"] = _in_degrees(source)
    return found


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
    reached = {}
    for name, weights in criteria.items():
        loads = loads_of(weights, parts, num_parts)
        reached[name] = round(float(loads.max() * num_parts / max(int(loads.sum()), 1)), 4)
    return reached


def one_weight(criteria: Criteria) -> I64:
    """Combine criteria into one weight: 1000 times the mean over criteria of weight over mean weight.

    Every criterion then has the same total, so none dominates; a part of equal
    combined weight can still be heavy in one and light in another, which the measured balance shows.
    """
    shares = [weights / weights.mean() for weights in criteria.values() if weights.any()]
    combined: F64 = np.rint(1000.0 * np.mean(shares, axis=0))
    return np.maximum(combined.astype(np.int64), 1)


def _in_degrees(source: GraphSource) -> I64:
    degrees = np.zeros(int(source.node_bases[-1]), np.int64)
    for relation_id in range(len(source.edges)):
        base = int(source.node_bases[source.schema.ends(relation_id)[1]])
        for _, _, dst in edge_chunks(source, relation_id):
            count_keys(dst, base, degrees)
    return degrees
