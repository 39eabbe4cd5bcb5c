"""The methods that assign nodes to parts, their options, and a forecast of memory: theirs, and that of later stages.

A new method is a module with a :class:`.Method`, and a line in ``METHODS``. The forecast's numbers are bytes, measured
(tests/perf/README.md, "Partitioning on several ranks"): for each node and edge of a rank, for each *ghost* (a node of
another rank with an edge from here), and for chunks that do not grow with the graph.
"""

from typing import NamedTuple

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import InvalidArgumentError, check_integer
from mpigraph.memory import in_units
from mpigraph.partition.assigning import ROUND_BYTES, Method, Workload, spread_types
from mpigraph.partition.metis import METIS
from mpigraph.partition.multilevel.assign import MULTILEVEL
from mpigraph.partition.shuffle import BUCKET_BYTES
from mpigraph.storage.part_config import check_graph_name

GIVEN = "given"
METHODS = {
    "metis": METIS,
    "multilevel": MULTILEVEL,
    "random": Method(lambda task: task.on_first(lambda: spread_types(task)), lambda work, *_: (16 * work.num_nodes, 0)),
    GIVEN: Method(lambda task: np.asarray(task.given)[task.own].astype(np.int32), lambda work, *_: (0, 0)),
}
PART_METHODS = tuple(name for name in METHODS if name != GIVEN)
_CARRYING = 140 << 20  # rows on their way to their parts and what their spill keeps; as much to put them in order


def check_options(
    graph_name: str,
    num_parts: int,
    part_method: str = "metis",
    objtype: str = "cut",
    seed: int = 0,
    assignment: Array | None = None,
) -> None:
    """Check the arguments of ``partition_source`` that need no graph. Raises InvalidArgumentError.

    ``assignment``, int[nodes], are parts that were made elsewhere, in place of a method.
    """
    check_graph_name(graph_name)
    check_integer("num_parts", num_parts, 1, 2**31 - 1)
    if assignment is not None:
        bad = np.flatnonzero((assignment < 0) | (assignment >= num_parts))
        if len(bad):
            got = f"(got {assignment[bad[0]]} for node {bad[0]})"
            raise InvalidArgumentError(f"assignment must hold a part in [0, {num_parts}) for each node {got}")
        return
    if part_method not in PART_METHODS:
        raise InvalidArgumentError(f"part_method must be one of {list(PART_METHODS)} (got {part_method!r})")
    known = METHODS[part_method].objectives
    if objtype not in known:
        raise InvalidArgumentError(f"objtype of {part_method!r} must be one of {list(known)} (got {objtype!r})")
    check_integer("seed", seed, -(2**63), 2**64 - 1)


class Forecast(NamedTuple):
    """An estimate of the memory and disk that partitioning takes."""

    memory: int  # the peak of the largest rank, bytes, without pages of files
    scratch: int  # the largest size of a rank's temporary files, bytes
    mapping: bool  # the edges of the levels of clusters lie in temporary files


def forecast(work: Workload, ranks: int = 1, mapping: bool = False) -> Forecast:
    """Return an estimate for a number of ranks, with large arrays of the method in memory or in mapped files."""
    nodes = -(-work.num_nodes // ranks)
    edges = -(-work.num_edges // ranks)
    carrying = _CARRYING if work.carried else 0
    assigning, scratch = METHODS[work.method].memory(work, ranks, mapping)
    relabelling = 24 * nodes + (160 << 20 if ranks == 1 else ROUND_BYTES) + carrying
    writing = 20 * nodes + 40 * -(-work.num_nodes // work.num_parts) + carrying
    writing += 80 * min(BUCKET_BYTES // 12, -(-work.num_edges // work.num_parts))
    scratch = max(scratch, edges * (24 if max(work.num_nodes, work.num_edges) >= 2**31 else 12))
    memory = work.held + max(assigning, relabelling, writing)
    return Forecast(memory, scratch + -(-work.carried // ranks), mapping)


def check_memory(work: Workload, ranks: int, memory: int) -> Forecast:
    """Return the forecast for ranks with ``memory`` bytes each; with edges in temporary files where that is needed.

    Raises InvalidArgumentError: the memory does not suffice; names the number of ranks that would.
    """
    for mapping in (False, True):  # which lowers the forecast of some methods alone
        foreseen = forecast(work, ranks, mapping)
        if foreseen.memory <= memory:
            return foreseen
    multilevel = work._replace(method="multilevel")
    enough = next((ranks << k for k in range(17) if forecast(multilevel, ranks << k, True).memory <= memory), None)
    advice = "no number of ranks suffices: use nodes with more memory"
    if enough is not None:
        advice = f"use --method multilevel on {enough} ranks, or allow more by --memory"
    raise InvalidArgumentError(
        f"partitioning {work.num_nodes} nodes and {work.num_edges} edges by {work.method} on {ranks} rank(s) is "
        f"forecast to take {in_units(foreseen.memory)} a rank, but a rank has {in_units(memory)}: {advice}"
    )
