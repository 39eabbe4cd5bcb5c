"""A forecast of the memory that partitioning takes, from the sizes of the graph.

Its numbers are bytes, measured (tests/perf/README.md, "Partitioning on several ranks"): for each node and edge of a
rank, for each *ghost* (a node of another rank with an edge from here), and for chunks that do not grow with the graph.
"""

from typing import NamedTuple

from mpigraph.errors import InvalidArgumentError
from mpigraph.memory import in_units
from mpigraph.partition.multilevel.dist_csr import FEW_RANKS
from mpigraph.partition.relabel import EDGES_PER_BUCKET
from mpigraph.partition.spill import NOTHING_CARRIED, Carried

_ROUND = 225 << 20  # edges on their way to and from other ranks, and what spills keep; 160 MiB on one rank
_CARRYING = 140 << 20  # rows on their way to their parts and what their spill keeps; as much to put them in order


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
    nodes = -(-num_nodes // ranks)
    edges = -(-num_edges // ranks)
    scratch = edges * (24 if max(num_nodes, num_edges) >= 2**31 else 12)
    carrying = _CARRYING if carried.total else 0
    # a block of carried rows is there twice, as it is stored and as numbers
    relabelling = 24 * nodes + (160 << 20 if ranks == 1 else _ROUND) + carrying + 2 * carried.block
    writing = 20 * nodes + 40 * -(-num_nodes // num_parts) + carrying
    writing += 80 * min(EDGES_PER_BUCKET, -(-num_edges // num_parts))
    assigning = 16 * num_nodes
    if method == "metis":
        assigning = 200 * num_nodes + 130 * num_edges
    elif method == "multilevel":
        ghosts = min(num_nodes - nodes, edges)
        clustering = 54 * nodes + 28 * ghosts + (64 << 20 if ranks == 1 else _ROUND)
        clustering += 20 * (nodes + ghosts) if ranks > FEW_RANKS else 0  # their positions lie in a hash table
        coarsest = 22 * nodes + 2 * ghosts + 18 * num_nodes + 126 * min(3 * num_edges // 4, 6_000_000)  # for METIS
        if not mapping:  # 4 of the finest level, which waits in a file beyond 64 MiB, and 6 of the next one
            clustering += 10 * edges
            coarsest += 6 * edges + min(4 * edges, 64 << 20)
        assigning = max(clustering, coarsest)
        scratch = max(scratch, edges * (28 if mapping else 16))
    stages = {"assign nodes": held + assigning, "relabel edges": held + relabelling, "write parts": held + writing}
    return Forecast(stages, mapping, scratch + -(-carried.total // ranks))


def check_memory(work: Workload, ranks: int, memory: int) -> Forecast:
    """Return the forecast for ranks with ``memory`` bytes each; with edges in temporary files where that is needed.

    Raises InvalidArgumentError: the memory does not suffice; names the number of ranks that would.
    """
    for mapping in (False, True) if work.method == "multilevel" else (False,):
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
