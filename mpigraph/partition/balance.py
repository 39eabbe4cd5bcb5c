"""Balance of a partition: criteria, limits, and the measured balance."""

from collections.abc import Iterable, Mapping

import numpy as np

from mpigraph.arrays import F64, I32, I64, Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.kernels.csr import count_keys
from mpigraph.partition.exchange import ALONE, Exchange, Route, owners_of
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


def one_weight(criteria: Criteria) -> I64:
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
