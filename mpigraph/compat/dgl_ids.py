"""DGL's functions on graphs that take *homogeneous* ids where a graph has types.

DGL up to 0.6, and some of its functions since, number the nodes and edges of all types together, part after part, and
within a part type after type (:class:`.RangePartitionBook` converts). Ids by type are as elsewhere in this library.
"""

from collections.abc import Mapping
from typing import Any

import torch

from mpigraph.collective import WHEN_REMOTE, collective
from mpigraph.dataloading.sampler import check_graph
from mpigraph.distgraph import partitioning
from mpigraph.distgraph.graph import DistGraph
from mpigraph.graphs.fields import EID, IdsLike
from mpigraph.graphs.hetero import HeteroGraph, graph

__all__ = [
    "find_edges",
    "in_degrees",
    "in_subgraph",
    "load_partition",
    "out_degrees",
    "sample_etype_neighbors",
    "sample_neighbors",
]


def load_partition(*args: Any, **options: Any) -> Any:
    """Call :func:`mpigraph.distributed.load_partition` for a graph without types, with homogeneous ids."""
    return partitioning.load_partition(*args, **{"homogeneous": True, **options})


@collective("trainers", WHEN_REMOTE)
def sample_neighbors(g: Any, nodes: Any, fanout: Any, *args: Any, **options: Any) -> Any:
    """Sample in-neighbours, as :func:`mpigraph.distributed.sample_neighbors` does.

    Of a graph with several node types, ``nodes`` without types are homogeneous ids. The result is then a graph without
    types, whose nodes and ``edata[EID]`` are homogeneous ids, too, as in DGL.
    """
    if fanout is None:
        fanout = -1
    if isinstance(nodes, Mapping) or len(check_graph(g).ntypes) == 1:
        return g.sample_neighbors(nodes, fanout, *args, **options)
    book = g.get_partition_book()
    kinds, ids = book.map_to_per_ntype(nodes)
    by_type = {ntype: ids[kinds == t] for t, ntype in enumerate(g.ntypes)}
    return _homogeneous(g, g.sample_neighbors(by_type, fanout, *args, **options))


sample_etype_neighbors = sample_neighbors


@collective("trainers", WHEN_REMOTE)
def in_subgraph(g: Any, nodes: Any, **options: Any) -> Any:
    """Return all in-edges of nodes, as :func:`sample_neighbors` does; for a graph in memory, as its own method."""
    if isinstance(g, DistGraph):
        return sample_neighbors(g, nodes, -1, **options)
    return g.in_subgraph(nodes, **options)


def find_edges(g: DistGraph, edge_ids: IdsLike) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sources and destinations of edges, int64[n] each; by homogeneous ids if there are several relations.

    One-sided; the target does nothing.
    """
    if len(g.canonical_etypes) == 1:
        return g.find_edges(edge_ids)
    book = g.get_partition_book()
    kinds, ids = book.map_to_per_etype(edge_ids)
    src, dst = torch.empty_like(ids), torch.empty_like(ids)
    for number, relation in enumerate(g.canonical_etypes):
        of_relation = kinds == number
        ends = g.find_edges(ids[of_relation], relation)
        src[of_relation], dst[of_relation] = (
            book.map_to_homo_nid(column, ntype) for column, ntype in zip(ends, relation[::2], strict=True)
        )
    return src, dst


def in_degrees(g: DistGraph, v: IdsLike) -> torch.Tensor:
    """Return in-degrees, int64[n], over all relations; nodes are homogeneous ids if there are several types.

    One-sided; the target does nothing.
    """
    return _degrees(g, v, side=2)


def out_degrees(g: DistGraph, u: IdsLike) -> torch.Tensor:
    """Return out-degrees of nodes, int64[n], as :func:`in_degrees`. One-sided; the target does nothing."""
    return _degrees(g, u, side=0)


def _degrees(g: DistGraph, nodes: IdsLike, side: int) -> torch.Tensor:
    kinds, ids = g.get_partition_book().map_to_per_ntype(nodes)
    degrees = torch.zeros_like(ids)
    for relation in g.canonical_etypes:
        of_type = kinds == g.get_ntype_id(relation[side])
        read = g.in_degrees if side else g.out_degrees
        degrees[of_type] += read(ids[of_type], relation)
    return degrees


def _homogeneous(g: DistGraph, frontier: HeteroGraph) -> HeteroGraph:
    book = g.get_partition_book()
    columns: list[tuple[torch.Tensor, ...]] = [(torch.empty(0, dtype=torch.int64),) * 3]
    for relation in g.canonical_etypes:
        src, dst = frontier.all_edges(etype=relation)
        eids = book.map_to_homo_eid(frontier.edges[relation].data[EID], relation)
        columns.append((book.map_to_homo_nid(src, relation[0]), book.map_to_homo_nid(dst, relation[2]), eids))
    src, dst, eids = (torch.cat(ids) for ids in zip(*columns, strict=True))
    result = graph((src, dst), num_nodes=g.num_nodes())
    result.edata[EID] = eids
    return result
