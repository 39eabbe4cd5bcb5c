"""Layer by layer over all nodes, against the whole graph in memory and float64."""

import copy
from typing import Any

import numpy as np
import oracle
import torch
from torch import nn

import mpigraph as mg
import mpigraph.distributed as dist
from mpigraph.inference import layerwise
from mpigraph.inference.layerwise import Inference

WIDTH = 6


def whole(g: dist.DistGraph) -> mg.HeteroGraph:
    """The graph in memory, edges in the order of their ids."""
    edges = {r: g.find_edges(torch.arange(g.num_edges(r)), r) for r in g.canonical_etypes}
    return mg.HeteroGraph(g.schema, edges, {t: g.num_nodes(t) for t in g.ntypes})


def rows_of(g: dist.DistGraph, ntype: str, width: int = WIDTH, dtype: torch.dtype = torch.float32) -> dist.DistTensor:
    """Rows that are the same function of a node's id on every layout."""
    ids = torch.arange(g.num_nodes(ntype), dtype=torch.float64)[:, None]
    values = torch.sin(ids * torch.arange(1, width + 1) + len(ntype))
    x = dist.DistTensor((len(ids), width), dtype, part_policy=g.get_node_partition_policy(ntype))
    if g.rank() == 0:
        x[:] = values
    g.barrier()
    return x


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool(((found.double() - wanted).abs() <= 1e-5 * wanted.abs().clamp(min=1)).all())


def chain(layers: list[Any], graph: Any, x: Any) -> Any:
    """The layers on the whole graph, in float64."""
    layers = [copy.deepcopy(layer).double().eval() for layer in layers]
    with torch.no_grad():
        for layer in layers:
            x = layer(graph, x)
    return x


def models(kind: str) -> list[nn.Module]:
    torch.manual_seed(3)
    sizes = [(WIDTH, 8), (8, 5), (5, 4)]
    if kind.startswith("GCN"):
        norm = kind.split("-")[1]
        act = torch.relu
        return [mg.nn.GraphConv(a, b, norm, activation=act, allow_zero_in_degree=True) for a, b in sizes]
    if kind == "GAT":
        return [Heads(a, b) for a, b in sizes]
    return [mg.nn.SAGEConv(a, b, "mean", feat_drop=0.5, activation=torch.relu) for a, b in sizes]


class Heads(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.conv = mg.nn.GATConv(width, out, 2, allow_zero_in_degree=True)

    def forward(self, graph: Any, h: Any) -> torch.Tensor:
        return self.conv(graph, h).mean(1)


KINDS = ["SAGE", "GCN-both", "GCN-left", "GCN-right", "GCN-none", "GAT"]


def test_equals_the_whole_graph(job):
    g = job.open(job.write(oracle.write_oracle))
    x = rows_of(g, g.ntypes[0])
    graph = whole(g)
    for kind in KINDS:
        layers = models(kind)
        wanted = chain(layers, graph, x[:].double())
        for batch_size in (7, 1000):
            found = layerwise(g, layers, x, batch_size=batch_size)
            assert close(found[:], wanted), (kind, batch_size)
            found.close()
        assert all(layer.training for layer in layers)
    g.barrier()


def test_far_rows_come_once(job):
    g = job.open(job.write(oracle.write_oracle))
    x = rows_of(g, g.ntypes[0])
    inference = Inference(g, models("SAGE"), batch_size=5)
    inference.run(x).close()
    total = job.trainers.allreduce(np.array([[c.halo_rows, c.fetched_rows] for c in inference.counts]))
    src, dst = (ends.numpy() for ends in g.find_edges(torch.arange(g.num_edges())))
    world, hosts = g.session.world, g.loaded.topology.hosts
    nodes = [world.nodes_of_hosts[hosts.node_owner(ids, 0)] for ids in (src, dst)]
    far = nodes[0] != nodes[1]
    unique = len(set(zip(nodes[1][far].tolist(), src[far].tolist(), strict=True)))
    assert total[:, 0].tolist() == [unique] * 3
    assert (total[:, 1] <= 1.05 * unique).all()
    g.barrier()
