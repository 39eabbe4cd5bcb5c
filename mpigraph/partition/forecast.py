"""Forecasts of the memory that partitioning takes."""

import os
from typing import NamedTuple

import numpy as np

from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError
from mpigraph.partition.exchange import Exchange
from mpigraph.partition.multilevel.dist_csr import FEW_RANKS
from mpigraph.partition.shared_arrivals import EDGES_PER_BUCKET
from mpigraph.partition.spill import NOTHING_CARRIED, Carried, Scratch

# Measured (tests/perf/README.md, "Partitioning on several ranks").
_READING = 40 << 20  # chunks of edges
_ROUND = 225 << 20  # edges on their way, and what spills keep
_ROUND_ALONE = 160 << 20
_RELABELLED_NODE = 24
_WRITTEN_NODE = 40  # of a part, beside 20 for each own node
_BUCKET_EDGE = 80  # bytes for each edge of a part's bucket while it is sorted
_LEFT = 64 << 20  # that the allocator keeps of chunks
_CLUSTERING = (28, 26)  # bytes for each own node and ghost, and beyond that for each own node
_CONTRACTING = (26, 25)  # of these while the next level is made
_WAITING = (2, 20)  # and while the coarsest is partitioned
_HASHED = 20  # more for each own node and ghost where their positions lie in a hash table
_CONTRACTED = 0.75  # of the edges are there on the next level, where contraction does little, as on generated graphs
_COARSEST = 0.1  # of the nodes are there on the last level, or fewer, but at least
_COARSEST_LEAST = 30_000
_METIS_EDGES = 6_000_000
_METIS_EDGE = 56
_METIS_NODE = 180
_CARRYING = 140 << 20  # rows on their way to their parts and what their spill keeps; as much to put them in order
_METIS_LEVELS = (70, 3500)  # METIS's own levels: so many bytes for an edge, and at most for a node
_MOST_RANKS = 1 << 16
# Bytes in temporary files for each edge of a rank
_SHUFFLED = 16  # both ends of each edge both ways, repeats not yet dropped
_RELABELLED = 12  # or twice that, where ids need 64 bits
_MAPPED = 12  # the levels' edges, before repeats are dropped


class Workload(NamedTuple):
    """The sizes that memory depends on."""

    num_nodes: int  # all nodes
    num_edges: int  # all directed edges; "multilevel" counts each as stored both ways
    num_parts: int  # number of parts
    method: str  # "metis", "multilevel", "random" or "given"
    # bytes that each rank holds before, of Python, libraries and the input (memory-mapped files do not count)
    held: int = 200 << 20
    carried: Carried = NOTHING_CARRIED  # rows that travel with nodes and edges


class Forecast(NamedTuple):
    """An estimate of the memory and disk that partitioning takes."""

    stages: dict[str, int]  # the peak memory of the largest rank in each stage, bytes, without pages of files
    mapping: bool  # the edges of the levels of clusters lie in temporary files
    scratch: int  # the largest size of a rank's temporary files, bytes

    @property
    def memory(self) -> int:
        """The peak of all stages, bytes."""
        return max(self.stages.values())


def forecast(work: Workload, ranks: int = 1, mapping: bool = False) -> Forecast:
    """Return an estimate for a number of ranks, with edges in memory or in mapped files."""
    num_nodes, num_edges, num_parts, method, held, carried = work
    own_nodes = -(-num_nodes // ranks)
    own_edges = -(-num_edges // ranks)
    stages = {"check edges": held + _READING}
    scratch = own_edges * _RELABELLED * (2 if max(num_nodes, num_edges) >= 2**31 else 1)
    nodes = np.array([own_nodes + (min(num_nodes - own_nodes, own_edges) if ranks > 1 else 0), own_nodes])
    hashed = _HASHED * int(nodes[0]) if ranks > FEW_RANKS else 0
    clustering = int(nodes @ _CLUSTERING) + hashed + _LEFT
    contracting = int(nodes @ _CONTRACTING) + hashed + (0 if ranks == 1 else _ROUND)
    partitioning = int(nodes @ _WAITING) + _metis(num_nodes, num_edges)
    finest = 4 * own_edges
    coarse = int(8 * _CONTRACTED * own_edges)
    if not mapping:
        contracting += finest + coarse
        partitioning += min(finest, Scratch().limit) + coarse
        clustering += finest
    if method == "metis":
        stages["assign nodes"] = held + 200 * num_nodes + 130 * num_edges
    elif method == "multilevel":
        stages["assign nodes"] = held + max(clustering, contracting, partitioning)
    else:
        stages["assign nodes"] = held + 16 * num_nodes
    if method == "multilevel":
        scratch = max(scratch, own_edges * (_SHUFFLED + (_MAPPED if mapping else 0)))
    bucket = min(EDGES_PER_BUCKET, -(-num_edges // num_parts))
    stages["relabel edges"] = held + (_ROUND_ALONE if ranks == 1 else _ROUND) + _RELABELLED_NODE * own_nodes
    stages["write parts"] = held + _BUCKET_EDGE * bucket + 20 * own_nodes + _WRITTEN_NODE * -(-num_nodes // num_parts)
    if carried.total:
        stages["relabel edges"] += _CARRYING + 2 * carried.block  # as it is stored and as numbers
        stages["write parts"] += _CARRYING
        scratch += -(-carried.total // ranks)
    return Forecast(stages, mapping, scratch)


def _metis(num_nodes: int, num_edges: int) -> int:
    nodes = max(int(_COARSEST * num_nodes), min(num_nodes, _COARSEST_LEAST))
    edges = min(int(_CONTRACTED * num_edges), _METIS_EDGES)
    per_edge, per_node = _METIS_LEVELS
    return _METIS_EDGE * edges + _METIS_NODE * nodes + min(per_edge * edges, per_node * nodes)


@collective("ranks")
def ranks_on_this_node(exchange: Exchange) -> int:
    """Return the number of ranks that share this node's memory."""
    name = np.frombuffer(os.uname().nodename.encode()[:256].ljust(256, b"\0"), np.uint8)
    return int((exchange.gather(name[None]) == name).all(axis=1).sum())


def check_memory(work: Workload, ranks: int, memory: int) -> Forecast:
    """Return the forecast for ranks with ``memory`` bytes each; with edges in temporary files where that is needed.

    Raises InvalidArgumentError: the memory does not suffice; names the number of ranks that would.
    """
    for mapping in (False, True) if work.method == "multilevel" else (False,):
        foreseen = forecast(work, ranks, mapping)
        if foreseen.memory <= memory:
            return foreseen
    text = (
        f"partitioning {work.num_nodes} nodes and {work.num_edges} edges by {work.method} on {ranks} rank(s) is "
        f"forecast to take {_gib(foreseen.memory)} a rank, but a rank has {_gib(memory)}"
    )
    enough = ranks
    while enough < _MOST_RANKS:
        if forecast(work._replace(method="multilevel"), enough, mapping=True).memory <= memory:
            raise InvalidArgumentError(f"{text}: use --method multilevel on {enough} ranks, or allow more by --memory")
        enough *= 2
    raise InvalidArgumentError(f"{text}; no number of ranks suffices: use nodes with more memory")


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
