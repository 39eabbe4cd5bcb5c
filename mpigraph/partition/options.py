"""Arguments of :func:`~mpigraph.partition.pipeline.partition_source`: checked before the work, equal on all ranks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.errors import CollectiveError, InvalidArgumentError, check_integer
from mpigraph.partition.exchange import Exchange
from mpigraph.partition.identity import sampled, word_of
from mpigraph.partition.row_arrays import RowArray
from mpigraph.partition.source import GraphSource, feature_infos
from mpigraph.storage.part_config import check_graph_name

__all__ = ["PART_METHODS", "Method", "check_assignment", "check_options", "check_same"]

PART_METHODS = ("metis", "multilevel", "random")


@dataclass(frozen=True)
class Method:
    """How nodes are assigned; the arguments of :func:`~mpigraph.partition.pipeline.partition_source`."""

    name: str
    num_parts: int
    seed: int
    objtype: str
    recursive: bool | None
    balance_edges: bool


def check_options(
    graph_name: str, num_parts: int, part_method: str = "metis", objtype: str = "cut", seed: int = 0
) -> None:
    """Check what can be checked without the graph; the arguments are those of ``partition_source``.

    Raises:
        InvalidArgumentError: one is not usable.
    """
    check_graph_name(graph_name)
    check_integer("num_parts", num_parts, 1, 2**31 - 1)
    if part_method not in PART_METHODS:
        raise InvalidArgumentError(f"part_method must be one of {list(PART_METHODS)} (got {part_method!r})")
    if objtype not in ("cut", "vol"):
        raise InvalidArgumentError(f"objtype must be 'cut' or 'vol' (got {objtype!r})")
    if part_method == "multilevel" and objtype != "cut":
        raise InvalidArgumentError(f"part_method 'multilevel' minimises the cut (got objtype {objtype!r})")
    check_integer("seed", seed, -(2**63), 2**64 - 1)


@collective("ranks")
def check_same(
    exchange: Exchange,
    source: GraphSource,
    graph_name: str,
    method: Method,
    classes: Mapping[str, Array] | None,
    assignment: Array | None,
    resume: bool,
) -> None:
    """Check that all ranks do the same to the same graph; of the rows of an array some are compared.

    Raises:
        CollectiveError: they do not; on every rank.
        GraphDataError: rows cannot be read; on every rank.
    """
    if exchange.size == 1:
        return
    schema = source.schema
    told = {
        "graph_name": graph_name,
        "the method": method,
        "balance classes": {ntype: len(given) for ntype, given in sorted((classes or {}).items())},
        "whether an assignment is given": assignment is not None,
        "whether to resume": bool(resume),
        "types": (schema.ntypes, schema.relations),
        "numbers of nodes and edges": (tuple(map(int, source.num_nodes)), tuple(source.edge_counts)),
        "features": feature_infos(source),
        "original ids": (source.node_ids is None, source.edge_ids is None),
    }
    with exchange.together(f"partitioning {graph_name!r}"):
        told |= {what: sampled(array) for what, array in _arrays_of(source, classes, assignment)}
    words = [word_of(value) for value in told.values()]
    everyone = [data.decode().split() for data in exchange.gather_bytes(" ".join(words).encode())]
    with exchange.together(f"partitioning {graph_name!r}"):
        for what, found in zip(told, zip(*everyone, strict=False), strict=False):  # as many arrays, if types are equal
            other = next((rank for rank, word in enumerate(found) if word != found[0]), None)
            if other is not None:
                raise CollectiveError(f"{what} of rank {other} differ from those of rank 0")


def _arrays_of(
    source: GraphSource, classes: Mapping[str, Array] | None, assignment: Array | None
) -> Iterator[tuple[str, RowArray]]:
    """Yield all that ranks read, and what it is."""
    for relation, ends in zip(source.schema.relations, source.edges, strict=True):
        for end, ids in zip(("sources", "destinations"), ends, strict=True):
            yield f"{end} of {relation}", ids
    yield from source.tables()
    for ntype, given in sorted((classes or {}).items()):
        yield f"balance classes of {ntype!r}", np.asarray(given)
    if assignment is not None:
        yield "the assignment", assignment


def check_assignment(graph_name: str, num_parts: int, part_method: str, assignment: Array, num_nodes: int) -> None:
    """Check the arguments of a graph whose parts were chosen by other means."""
    if part_method != "given":
        raise InvalidArgumentError(f"part_method must be 'given' (got {part_method!r})")
    check_options(graph_name, num_parts)
    wanted = f"assignment must hold a part in [0, {num_parts}) for each of {num_nodes} nodes"
    if assignment.shape != (num_nodes,) or assignment.dtype.kind not in "iu":
        raise InvalidArgumentError(f"{wanted} (got {assignment.dtype}{list(assignment.shape)})")
    bad = np.flatnonzero((assignment < 0) | (assignment >= num_parts))
    if len(bad):
        raise InvalidArgumentError(f"{wanted} (got {assignment[bad[0]]} for node {bad[0]})")
