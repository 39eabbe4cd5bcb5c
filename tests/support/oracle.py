"""A graph whose every value says its own id, so that any sample can be checked without stored answers.

Node v has in-neighbours v+1 .. v+degree(v) (mod n), with degree(v) = v mod (max_degree + 1): isolated nodes occur. The
feature of node v is v, its label v mod 7; the feature of an edge is ``1000 * dst + src``. Feature names tell dtypes.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

import mpigraph as mg
import mpigraph.distributed as dist
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Schema
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import Feature, GraphSource

NAME = "oracle"
NUM_NODES = 101
MAX_DEGREE = 12


def oracle_source(num_nodes: int = NUM_NODES, max_degree: int = MAX_DEGREE) -> GraphSource:
    degrees = np.arange(num_nodes) % (max_degree + 1)
    dst = np.repeat(np.arange(num_nodes), degrees)
    step = np.concatenate([np.arange(1, d + 1) for d in degrees])
    src = (dst + step) % num_nodes
    v = np.arange(num_nodes)
    key = f"{DEFAULT_NTYPE}:{DEFAULT_ETYPE[1]}:{DEFAULT_NTYPE}"
    edge = 1000 * dst + src
    return GraphSource(
        Schema.homogeneous(),
        (num_nodes,),
        ((src, dst),),
        {
            DEFAULT_NTYPE: {
                "feat": Feature.of(np.repeat(v[:, None], 3, axis=1).astype(np.float32)),
                "label": Feature.of(v % 7),
                "orig": Feature.of(v),
                "third": Feature.of(v % 3 == 0),
            }
        },
        {
            key: {
                "edge": Feature.of(edge),
                "weight": Feature.of(((dst + src) % 4).astype(np.float32)),
                "even": Feature.of(src % 2 == 0),
            }
        },
    )


def in_memory() -> HeteroGraph:
    """The graph in this process, with its edges in the order of the ids that nodes in ranges give them."""
    ((src, dst),) = oracle_source().edges
    order = np.lexsort((src, dst))
    src, dst = (torch.from_numpy(column[order]) for column in (src, dst))
    g = mg.graph((src, dst), num_nodes=NUM_NODES)
    g.ndata["label"] = torch.arange(NUM_NODES) % 7
    g.edata["weight"] = ((src + dst) % 4).float()
    g.edata["even"] = src % 2 == 0
    return g


def whole(g: dist.DistGraph) -> HeteroGraph:
    """A distributed graph in memory, edges in the order of their ids, with their weights."""
    edges = {r: g.find_edges(torch.arange(g.num_edges(r)), r) for r in g.canonical_etypes}
    graph = HeteroGraph(g.schema, edges, {t: g.num_nodes(t) for t in g.ntypes})
    for r in g.canonical_etypes:
        if "weight" in g.edges[r].data:
            graph.edges[r].data["weight"] = g.edges[r].data["weight"][:]
    return graph


def partitioned(
    source: GraphSource, name: str, num_parts: int, directory: Path, part_method: str = "given", **options: Any
) -> str:
    """Partition a graph; return the path of its configuration. "given" cuts each type into ranges: ids stay."""
    if part_method == "given":
        options["assignment"] = np.concatenate([np.arange(n) * num_parts // n for n in source.num_nodes])
    return str(partition_source(source, name, num_parts, directory, part_method, **options).path)


def write_oracle(
    directory: Path, num_parts: int = 2, part_method: str = "random", name: str = NAME, seed: int = 0
) -> str:
    """Partition the oracle graph; return the path of its configuration."""
    return partitioned(oracle_source(), name, num_parts, directory, part_method, seed=seed)


def open_graph(path: str) -> dist.DistGraph:
    return dist.DistGraph(NAME, part_config=path)
