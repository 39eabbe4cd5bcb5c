"""Layers on minibatches that hold little: each parameter, and what a layer is given, still gets a gradient."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import numpy as np
import pytest
import torch
from layouts import Layout, SharedJob, on_layouts

import mpigraph as mg
from mpigraph import nn
from mpigraph.graphs.block import Block, to_block

WIDTH = 4
BLOCKS = {"no in-edges": [0, 4], "one edge": [3, 5], "some in-edges": [0, 1], "no seeds": [], "in-edges": [1, 3]}
ALLOWED = {"allow_zero_in_degree": True}
LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "gat": lambda: nn.GATConv(WIDTH, 3, 2, residual=True, **ALLOWED),
    "gatv2": lambda: nn.GATv2Conv(WIDTH, 3, 2, residual=True, **ALLOWED),
    "gine": lambda: nn.GINEConv(torch.nn.Linear(WIDTH, 3), learn_eps=True),
    "hgt": lambda: nn.HGTConv(WIDTH, 2, 2, 2, 3, dropout=0, use_norm=True),
    "hgt-residual": lambda: nn.HGTConv(WIDTH, 3, 2, 2, 3, dropout=0),
}
for out in (3, 9):  # narrower and wider than the input
    for aggregator in ("mean", "gcn", "pool", "lstm"):
        LAYERS[f"sage-{aggregator}-{out}"] = partial(nn.SAGEConv, WIDTH, out, aggregator)
    for norm in ("both", "left", "right", "none"):
        LAYERS[f"graphconv-{norm}-{out}"] = partial(nn.GraphConv, WIDTH, out, norm, **ALLOWED)
for aggregator in ("sum", "max", "mean"):
    LAYERS[f"gin-{aggregator}"] = lambda a=aggregator: nn.GINConv(torch.nn.Linear(WIDTH, 3), a, learn_eps=True)
for regularizer in (None, "basis", "bdd"):
    for loop in (False, True):
        LAYERS[f"rgcn-{regularizer}-{loop}"] = partial(
            nn.RelGraphConv, WIDTH, 2, 3, regularizer, 2, self_loop=loop, layer_norm=True
        )


def block(seeds: list[int]) -> Block:
    """The in-edges of some seeds in a graph where node 1 has two and node 3 one."""
    g = mg.graph((torch.tensor([0, 1, 2]), torch.tensor([1, 1, 3])), num_nodes=6)
    return to_block(mg.in_subgraph(g, seeds), np.array(seeds, np.int64))


class AfterLinear(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.layer = LAYERS[name]()

    def forward(self, seeds: list[int]) -> torch.Tensor:
        b = block(seeds)
        x = self.first(torch.randn(b.num_src_nodes(), WIDTH, generator=torch.Generator().manual_seed(3)))
        types = torch.arange(b.num_edges()) % 3
        extra = {
            nn.GINEConv: (torch.ones(b.num_edges(), WIDTH),),
            nn.RelGraphConv: (types,),
            nn.HGTConv: (torch.arange(b.num_src_nodes()) % 2, types),
        }.get(type(self.layer), ())
        return self.layer(b, x, *extra).float().square().sum()


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_each_parameter_has_a_gradient(name, autocast):
    for what, seeds in BLOCKS.items():
        model = AfterLinear(name)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(seeds)
        loss.backward()
        for parameter, values in model.named_parameters():
            assert values.grad is not None and values.grad.isfinite().all(), (what, parameter)


SCHEMA = {("a", "r", "b"): 3, ("b", "s", "a"): 3, ("a", "t", "c"): 0, ("c", "u", "a"): 0}


def typed(lacking: bool) -> Block:
    """A block of nodes of type b with in-edges, or without; relations without edges are left out, or not."""
    kept = [("a", "r", "b")] if lacking else list(SCHEMA)
    edges = {r: (torch.arange(SCHEMA[r]), torch.arange(SCHEMA[r]) % 2) for r in kept}
    return to_block(
        mg.heterograph(edges, {"a": 3, "b": 3, "c": 2}), {"b": [0, 1, 2], "a": [] if lacking else [0, 1, 2]}
    )


@pytest.mark.parametrize("aggregate", ["sum", "mean", "stack"])
@pytest.mark.parametrize("lacking", [False, True])
def test_each_parameter_of_relations_has_a_gradient(lacking, aggregate):
    b = typed(lacking)
    conv = nn.HeteroGraphConv({r: nn.SAGEConv(WIDTH, 2, "pool") for r in SCHEMA}, aggregate)
    first = torch.nn.ModuleDict({t: torch.nn.Linear(WIDTH, WIDTH) for t in "abc"})
    x = {t: first[t](torch.randn(b.num_src_nodes(t) if t in b.srctypes else 0, WIDTH)) for t in "abc"}
    del x["c"]  # no rows, so no features
    sum(rows.square().sum() for rows in conv(b, x).values()).backward()
    for parameter, values in [*conv.named_parameters(), *first["a"].named_parameters(), *first["b"].named_parameters()]:
        assert values.grad is not None and values.grad.isfinite().all(), parameter


@pytest.mark.slow
@on_layouts([Layout(2, 0, 0), Layout(3, 1, 0), Layout(4, 0, 2), Layout(4, 1, 2)])
def test_ddp_where_the_first_trainer_has_no_in_edges(job: SharedJob) -> None:
    for backend in ("gloo", "mpi4py"):
        torch.distributed.init_process_group(backend, timeout=timedelta(seconds=60))
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        given = [BLOCKS["in-edges" if trainer else "no in-edges"] for trainer in range(size)]
        try:
            for name in ("sage-mean-3", "sage-pool-3", "sage-lstm-9", "hgt"):
                model = torch.nn.parallel.DistributedDataParallel(AfterLinear(name))
                for _ in range(2):  # DDP builds its buckets anew after the first
                    model.zero_grad()
                    model(given[rank]).backward()
                alone = AfterLinear(name)
                torch.stack([alone(seeds) for seeds in given]).mean().backward()
                for ours, want in zip(model.parameters(), alone.parameters(), strict=True):
                    torch.testing.assert_close(ours.grad, want.grad, rtol=1e-4, atol=1e-5)
        finally:
            torch.distributed.destroy_process_group()
