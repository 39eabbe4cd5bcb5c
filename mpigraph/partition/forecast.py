"""How much memory partitioning will take, before it starts, and how much there is."""

import os

import numpy as np

from mpigraph.errors import InvalidArgumentError
from mpigraph.partition.exchange import Exchange

__all__ = ["check_memory", "forecast", "ranks_on_this_node"]

# Measured (tests/perf/README.md): what a process holds before it reads anything; a round of edges on their way, with
# what spills keep; a bucket while it is sorted; METIS on 6 million edges, on rank 0.
_BASE = 170 << 20
_ROUND = 250 << 20
_BUCKET = 300 << 20
_METIS_EDGE = 75
_METIS_EDGES = 6_000_000
_MOST_RANKS = 1 << 16


def forecast(num_nodes: int, num_edges: int, method: str, ranks: int = 1, input_bytes: int = 0) -> dict[str, int]:
    """Return an estimate of the peak memory of the largest rank in each stage, in bytes.

    Args:
        num_nodes: all nodes.
        num_edges: all directed edges; for "multilevel" each is thought to be there both ways.
        method: "metis", "multilevel", "random" or "given".
        ranks: number of ranks.
        input_bytes: what the input holds in each rank's memory (0 for memory-mapped files).
    """
    own_nodes = -(-num_nodes // ranks)
    own_edges = -(-num_edges // ranks)
    ghosts = min(num_nodes - own_nodes, own_edges) if ranks > 1 else 0
    base = _BASE + input_bytes
    stages = {"check edges": base + _ROUND // 4}
    if method == "metis":
        stages["assign nodes"] = base + 200 * num_nodes + 130 * num_edges
    elif method == "multilevel":
        nodes = 90 * (own_nodes + ghosts) if ranks > 1 else 60 * own_nodes
        metis = _METIS_EDGE * min(num_edges, _METIS_EDGES)
        stages["assign nodes"] = base + max(_ROUND + nodes + 4 * own_edges, nodes + metis)
    else:
        stages["assign nodes"] = base + 16 * num_nodes
    stages["relabel edges"] = base + _ROUND + 32 * own_nodes
    stages["write parts"] = base + _BUCKET + 40 * own_nodes
    return stages


def ranks_on_this_node(exchange: Exchange) -> int:
    """Return how many of the ranks share this node's memory. Collective on the ranks."""
    name = np.frombuffer(os.uname().nodename.encode()[:256].ljust(256, b"\0"), np.uint8)
    return int((exchange.gather(name[None]) == name).all(axis=1).sum())


def check_memory(
    num_nodes: int, num_edges: int, method: str, ranks: int, input_bytes: int, memory: int
) -> dict[str, int]:
    """Return the forecast, if the ranks have so much memory.

    Args:
        num_nodes: as for :func:`forecast`, like the next ones.
        num_edges: see there.
        method: see there.
        ranks: see there.
        input_bytes: see there.
        memory: bytes that a rank may take.

    Raises:
        InvalidArgumentError: it cannot work; says what would.
    """
    stages = forecast(num_nodes, num_edges, method, ranks, input_bytes)
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
        if max(forecast(num_nodes, num_edges, "multilevel", enough, input_bytes).values()) <= memory:
            raise InvalidArgumentError(
                f"{text}: --method multilevel takes so much on {enough} ranks; --memory says what a rank may take"
            )
    raise InvalidArgumentError(f"{text}; no number of ranks makes it less than that")


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
