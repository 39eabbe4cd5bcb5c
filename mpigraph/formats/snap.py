"""Check a list of edges from SNAP, ``.txt``, against its comments; it is read as any table (``table_folders.py``).

The comments say ``# Nodes: <nodes> Edges: <edges>``. A file with other edges, or with more nodes, is damaged. Nodes
without edges are counted there and have no ids, so they are not in the graph. Whether a file of an undirected graph
lists each edge once or in both directions differs by dataset, and by the files alone it shows only in the edges.
"""

import re
from dataclasses import replace
from pathlib import Path

from mpigraph.errors import GraphDataError
from mpigraph.formats.text_lines import comments_of, first_bytes
from mpigraph.log import get_logger
from mpigraph.partition.source import GraphSource, edge_chunks

__all__ = ["checked_by_comments"]

_COUNTS = re.compile(r"\bNodes:\s*(\d{1,18})\s+Edges:\s*(\d{1,18})\b", re.IGNORECASE)


def checked_by_comments(path: Path, source: GraphSource, adds_reverse: bool) -> GraphSource:
    """Return a graph that was read from a table; if the table is a file of SNAP's, checked.

    Args:
        path: what was read, a file or a directory.
        source: the graph.
        adds_reverse: whether the user asks for reverse edges.

    Raises:
        GraphDataError: there are not as many edges as the comments say, or more nodes.
    """
    comments = comments_of(path, b"#")[0] if path.is_file() and first_bytes(path, 1) == b"#" else []
    counts = next((match for line in comments if (match := _COUNTS.search(line))), None)
    if counts is None or len(source.edges) != 1:
        return source
    nodes, edges = map(int, counts.groups())
    if source.num_edges() != edges:
        raise GraphDataError(f"{path} has {source.num_edges()} edges, but its comments say {edges}: it is not whole")
    if source.num_nodes[0] > nodes:
        raise GraphDataError(f"{path} has {source.num_nodes[0]} nodes, but its comments say {nodes}")
    if source.num_nodes[0] < nodes:
        get_logger().warning(
            "%s: %d of %d nodes have no edges, and no ids: they are not in the graph (where ids are 0 to N - 1: "
            "--nodes N)", path, nodes - source.num_nodes[0], nodes,
        )  # fmt: skip
    if adds_reverse or not any("undirected" in line.lower() for line in comments) or _goes_both_ways(source):
        return source
    question = "reverse edges, if there are to be any (--undirected): the graph is undirected, and its edges go one way"
    return replace(source, left_out=(*source.left_out, question))


def _goes_both_ways(source: GraphSource) -> bool:
    """Return whether as many edges go to larger ids as to smaller ones."""
    surplus = 0
    for _, src, dst in edge_chunks(source, 0):
        surplus += int((src < dst).sum()) - int((src > dst).sum())
    return surplus == 0
