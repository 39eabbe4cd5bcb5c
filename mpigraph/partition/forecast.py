"""How much memory partitioning will take, before it starts, and how much there is."""

import os
from typing import NamedTuple

import numpy as np

from mpigraph.errors import InvalidArgumentError
from mpigraph.partition.exchange import Exchange

__all__ = ["Forecast", "check_memory", "forecast", "ranks_on_this_node"]

# Measured (tests/perf/README.md, "Partitioning on several ranks").
_READING = 150 << 20  # chunks of edges
_ROUND = 350 << 20  # edges on their way, and what spills keep
_BUCKET = 400 << 20  # edges of a part while they are sorted
_CLUSTERING_NODE = 100  # bytes for each own node and ghost: keys, labels, loads, hash tables, who follows whom
_WAITING_NODE = 70  # of these while the coarsest level is cut
_CONTRACTED = 0.7  # of the edges are there on the next level, where contraction does little, as on generated graphs
_METIS_EDGE = 120
_METIS_EDGES = 6_000_000
_METIS_NODE = 150
_COARSEST = 0.1  # of the nodes are there on the last level, or fewer
_MOST_RANKS = 1 << 16
# Bytes in temporary files for each edge of a rank
_SHUFFLED = 16  # both ends of each edge both ways, repeats not yet dropped
_RELABELLED = 12  # or twice that, where ids need 64 bits
_MAPPED = 12  # the levels' edges, before repeats are dropped


class Forecast(NamedTuple):
    """What partitioning will take.

    Attributes:
        stages: the peak memory of the largest rank in each stage, bytes. Pages of files do not count: the kernel takes
            them back when there is need.
        mapping: whether the edges of the levels lie in temporary files.
        scratch: the largest size of a rank's temporary files, bytes.
    """

    stages: dict[str, int]
    mapping: bool
    scratch: int

    @property
    def memory(self) -> int:
        """The peak of all stages, bytes."""
        return max(self.stages.values())


def forecast(
    num_nodes: int, num_edges: int, method: str, ranks: int = 1, held: int = 200 << 20, mapping: bool = False
) -> Forecast:
    """Return an estimate of what partitioning takes.

    Args:
        num_nodes: all nodes.
        num_edges: all directed edges; for "multilevel" each is thought to be there both ways.
        method: "metis", "multilevel", "random" or "given".
        ranks: number of ranks.
        held: what each rank holds before, of Python, libraries and the input (memory-mapped files do not count).
        mapping: whether the edges of the levels lie in temporary files; of "multilevel" alone.
    """
    own_nodes = -(-num_nodes // ranks)
    own_edges = -(-num_edges // ranks)
    stages = {"check edges": held + _READING}
    scratch = own_edges * _RELABELLED * (2 if max(num_nodes, num_edges) >= 2**31 else 1)
    if method == "metis":
        stages["assign nodes"] = held + 200 * num_nodes + 130 * num_edges
    elif method == "multilevel":
        ghosts = min(num_nodes - own_nodes, own_edges) if ranks > 1 else 0
        coarse = int(8 * _CONTRACTED * own_edges)
        metis = _METIS_EDGE * min(num_edges, _METIS_EDGES) + int(_METIS_NODE * _COARSEST * num_nodes)
        contracting = _CLUSTERING_NODE * (own_nodes + ghosts) + (0 if ranks == 1 else _ROUND // 2)
        cutting = _WAITING_NODE * (own_nodes + ghosts) + metis
        if not mapping:
            contracting += 4 * own_edges + (coarse * 3 // 2 if ranks == 1 else coarse)
            cutting += coarse
        stages["assign nodes"] = held + max(contracting, cutting)
        scratch = max(scratch, own_edges * (_SHUFFLED + (_MAPPED if mapping else 0)))
    else:
        stages["assign nodes"] = held + 16 * num_nodes
    stages["relabel edges"] = held + _ROUND + 32 * own_nodes
    stages["write parts"] = held + _BUCKET + 40 * own_nodes
    return Forecast(stages, mapping, scratch)


def ranks_on_this_node(exchange: Exchange) -> int:
    """Return how many of the ranks share this node's memory. Collective on the ranks."""
    name = np.frombuffer(os.uname().nodename.encode()[:256].ljust(256, b"\0"), np.uint8)
    return int((exchange.gather(name[None]) == name).all(axis=1).sum())


def check_memory(num_nodes: int, num_edges: int, method: str, ranks: int, held: int, memory: int) -> Forecast:
    """Return the forecast, if the ranks have so much memory; with edges in temporary files, if it takes that.

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
    for mapping in (False, True) if method == "multilevel" else (False,):
        found = forecast(num_nodes, num_edges, method, ranks, held, mapping)
        if found.memory <= memory:
            return found
    text = (
        f"partitioning by {method} on {ranks} rank(s) is forecast to take {_gib(found.memory)} a rank, of which there "
        f"are {_gib(memory)}"
    )
    enough = ranks
    while enough < _MOST_RANKS:
        if forecast(num_nodes, num_edges, "multilevel", enough, held, mapping=True).memory <= memory:
            raise InvalidArgumentError(
                f"{text}: --method multilevel takes so much on {enough} ranks; --memory says what a rank may take"
            )
        enough *= 2
    raise InvalidArgumentError(f"{text}; no number of ranks makes it less than that")


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
