"""How much memory partitioning will take, before it starts, and how much there is."""

import os

import numpy as np

from mpigraph.errors import InvalidArgumentError
from mpigraph.partition.exchange import Exchange

__all__ = ["check_memory", "forecast", "ranks_on_this_node"]

# Measured (tests/perf/README.md, "Partitioning on several ranks").
_READING = 150 << 20  # chunks of edges
_ROUND = 350 << 20  # edges on their way, and what spills keep
_BUCKET = 400 << 20  # edges of a part while they are sorted
_NODE = 90  # bytes for each own node and ghost: keys, labels, loads, hash tables, who follows whom
_CONTRACTED = 0.7  # of the edges are there on the next level, where contraction does little, as on generated graphs
_METIS_EDGE = 120
_METIS_EDGES = 6_000_000
_METIS_NODE = 150
_COARSEST = 0.1  # of the nodes are there on the last level, or fewer
_MOST_RANKS = 1 << 16


def forecast(num_nodes: int, num_edges: int, method: str, ranks: int = 1, held: int = 200 << 20) -> dict[str, int]:
    """Return an estimate of the peak memory of the largest rank in each stage, in bytes.

    Args:
        num_nodes: all nodes.
        num_edges: all directed edges; for "multilevel" each is thought to be there both ways.
        method: "metis", "multilevel", "random" or "given".
        ranks: number of ranks.
        held: what each rank holds before, of Python, libraries and the input (memory-mapped files do not count).
    """
    own_nodes = -(-num_nodes // ranks)
    own_edges = -(-num_edges // ranks)
    stages = {"check edges": held + _READING}
    if method == "metis":
        stages["assign nodes"] = held + 200 * num_nodes + 130 * num_edges
    elif method == "multilevel":
        ghosts = min(num_nodes - own_nodes, own_edges) if ranks > 1 else 0
        coarse = int(8 * _CONTRACTED * own_edges)
        contracting = 4 * own_edges + (coarse * 3 // 2 if ranks == 1 else coarse + _ROUND // 2)
        metis = _METIS_EDGE * min(num_edges, _METIS_EDGES) + int(_METIS_NODE * _COARSEST * num_nodes)
        cutting = coarse + metis
        stages["assign nodes"] = held + _NODE * (own_nodes + ghosts) + max(contracting, cutting)
    else:
        stages["assign nodes"] = held + 16 * num_nodes
    stages["relabel edges"] = held + _ROUND + 32 * own_nodes
    stages["write parts"] = held + _BUCKET + 40 * own_nodes
    return stages


def ranks_on_this_node(exchange: Exchange) -> int:
    """Return how many of the ranks share this node's memory. Collective on the ranks."""
    name = np.frombuffer(os.uname().nodename.encode()[:256].ljust(256, b"\0"), np.uint8)
    return int((exchange.gather(name[None]) == name).all(axis=1).sum())


def check_memory(num_nodes: int, num_edges: int, method: str, ranks: int, held: int, memory: int) -> dict[str, int]:
    """Return the forecast, if the ranks have so much memory.

    Args:
        num_nodes: as for :func:`forecast`, like the next ones.
        num_edges: see there.
        method: see there.
        ranks: see there.
        held: see there.
        memory: bytes that a rank may take.

    Raises:
        InvalidArgumentError: it cannot work; says what would.
    """
    stages = forecast(num_nodes, num_edges, method, ranks, held)
    needed = max(stages.values())
    if needed <= memory:
        return stages
    text = (
        f"partitioning by {method} on {ranks} rank(s) is forecast to take {_gib(needed)} a rank, of which there are "
        f"{_gib(memory)}"
    )
    enough = ranks
    while enough < _MOST_RANKS:
        enough *= 2
        if max(forecast(num_nodes, num_edges, "multilevel", enough, held).values()) <= memory:
            raise InvalidArgumentError(
                f"{text}: --method multilevel takes so much on {enough} ranks; --memory says what a rank may take"
            )
    raise InvalidArgumentError(f"{text}; no number of ranks makes it less than that")


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
