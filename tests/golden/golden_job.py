"""A job of ``golden.py``, on any number of ranks: prints ``name digest`` for each thing that must not change.

    mpiexec -n 4 python tests/golden/golden_job.py draws FOLDER
    mpiexec -n 2 python tests/golden/golden_job.py begin FOLDER
    mpiexec -n 3 python tests/golden/golden_job.py resume FOLDER

It uses public names alone, so that it runs on commits whose insides differ. Each trainer prints its lines, with its
rank; a name whose value differs between layouts is a fault by itself.
"""

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as td
from torch.nn import functional as F

import mpigraph as mg
import mpigraph.distributed as dist
from mpigraph.dataloading import LaborSampler, NeighborSampler, negative_sampler

NODES, EDGES = 2000, 30_000
AUTHORS, WRITES = 700, 9_000
TYPES = {"author": AUTHORS, "paper": NODES}
WRITE, WRITTEN, CITE = ("author", "writes", "paper"), ("paper", "written_by", "author"), ("paper", "cites", "paper")


def ends(rng: np.random.Generator, sources: int, destinations: int, count: int) -> Any:
    """Edges of skewed degrees, some of them parallel."""
    return tuple(torch.from_numpy((n * rng.random(count) ** 2).astype(np.int64)) for n in (sources, destinations))


def plain() -> Any:
    rng = np.random.default_rng(1)
    g = mg.graph(ends(rng, NODES, NODES, EDGES), num_nodes=NODES)
    g.ndata["feat"] = torch.from_numpy(rng.random((NODES, 16), np.float32))
    g.ndata["half"] = g.ndata["feat"].half()
    g.ndata["label"] = torch.from_numpy(rng.integers(0, 5, NODES))
    g.ndata["train_mask"] = torch.from_numpy(rng.random(NODES) < 0.5)
    g.edata["weight"] = torch.from_numpy(rng.integers(0, 4, EDGES).astype(np.float32))
    g.edata["even"] = torch.from_numpy(rng.random(EDGES) < 0.6)
    g.edata["time"] = torch.from_numpy(rng.integers(0, 50, EDGES))
    return g


def typed() -> Any:
    rng = np.random.default_rng(2)
    src, dst = ends(rng, AUTHORS, NODES, WRITES)
    g = mg.heterograph({WRITE: (src, dst), WRITTEN: (dst, src), CITE: ends(rng, NODES, NODES, EDGES)}, TYPES)
    for ntype, count in TYPES.items():
        g.nodes[ntype].data["feat"] = torch.from_numpy(rng.random((count, 8), np.float32))
    for relation in (WRITE, WRITTEN, CITE):
        g.edges[relation].data["weight"] = torch.from_numpy(rng.random(g.num_edges(relation), np.float32))
    return g


def write(folder: Path) -> None:
    """The partitioned graphs of all jobs."""
    for name, make in (("plain", plain), ("typed", typed)):
        mg.distributed.partition_graph(make(), name, 4, str(folder / name), part_method="random")


def update(state: Any, value: Any) -> None:
    """Add a value to a digest: tensors, graphs, blocks and PyG's data, in containers of any depth."""
    if isinstance(value, torch.Tensor):
        state.update(f"{value.dtype} {tuple(value.shape)}".encode())
        state.update(value.detach().contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    elif hasattr(value, "canonical_etypes"):
        for relation in sorted(value.canonical_etypes):
            edges = value.edges[relation].data
            update(state, [str(relation), *value.edges(etype=relation), dict(edges.items())])
        sides = (value.srcnodes, value.dstnodes) if hasattr(value, "is_block") and value.is_block else (value.nodes,)
        for nodes, types in zip(sides, (value.srctypes, value.dsttypes), strict=False):
            update(state, {ntype: dict(nodes[ntype].data.items()) for ntype in types})
    elif hasattr(value, "to_dict"):
        update(state, value.to_dict())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            update(state, [str(key), value[key]])
    elif isinstance(value, str | bytes | int | float | bool | None):
        state.update(repr(value).encode())
    else:
        for part in value:
            update(state, part)


def digest(value: Any) -> str:
    state = hashlib.sha256()
    update(state, value)
    return state.hexdigest()[:24]


def say(name: str, value: Any) -> None:
    """Print a digest, in one piece among other ranks' lines; trainers shuffle differently, so each has its own."""
    os.write(1, f"golden {name.replace(' ', '_')}_{td.get_rank()} {digest(value)}\n".encode())


SAMPLERS: dict[str, Any] = {
    "uniform": NeighborSampler([5, 5]),
    "replace": NeighborSampler([3, 8], replace=True),
    "all": NeighborSampler([-1, 20]),
    "prob": NeighborSampler([4, 4], prob="weight"),
    "prob-replace": NeighborSampler([4, 4], prob="weight", replace=True),
    "mask": NeighborSampler([4, 4], mask="even"),
    "no-eids": NeighborSampler([5, 5], return_eids=False),
    "disjoint": NeighborSampler([4, 3], disjoint=True),
    "labor": LaborSampler([5, 5]),
    "labor-layers": LaborSampler([5, 5], layer_dependency=True),
    "labor-steps": LaborSampler([5, 5], batch_dependency=3),
    "labor-prob": LaborSampler([4, 4], prob="weight"),
    "labor-mask": LaborSampler([4, 4], mask="even"),
}
TEMPORAL = {
    "time": NeighborSampler([4, 3], time_attr="time"),
    "time-last": NeighborSampler([4, 3], time_attr="time", temporal_strategy="last", temporal_comparison="<"),
    "time-window": NeighborSampler([-1, 3], time_attr="time", time_window=9),
}
TYPED = {
    "uniform": NeighborSampler([4, {WRITE: 3, WRITTEN: 2, CITE: 4}]),
    "prob": NeighborSampler([3, 3], prob="weight"),
    "labor": LaborSampler([4, 4]),
    "all": NeighborSampler([3, -1]),
}
NEGATIVES = {
    "uniform": negative_sampler.Uniform(2),
    "global": negative_sampler.GlobalUniform(3),
    "source": negative_sampler.PerSourceUniform(2),
    "joint": negative_sampler.JointUniform(2),
}


def two_epochs(loader: Any) -> list[Any]:
    return [list(batch) if isinstance(batch, tuple) else batch for _ in range(2) for batch in loader]


def draws(folder: Path) -> None:
    """Minibatches of each sampler, strategy and edge loader, the same seeds on each trainer; look-ups of edges."""
    rng = np.random.default_rng(3)
    seeds, times = torch.from_numpy(rng.permutation(NODES)[:70]), torch.from_numpy(rng.integers(5, 50, 70))
    options: dict[str, Any] = dict(batch_size=20, shuffle=True, seed=7)
    g = dist.DistGraph("plain", part_config=str(folder / "plain/plain.json"))
    for name, sampler in SAMPLERS.items():
        say(f"nodes {name}", two_epochs(dist.DistNodeDataLoader(g, seeds, sampler, **options)))
    for name, sampler in TEMPORAL.items():
        say(f"nodes {name}", two_epochs(dist.DistNodeDataLoader(g, seeds, sampler, input_time=times, **options)))
    for output in ("dgl", "pyg"):
        for depth in (0, 2):
            given = dict(features=["feat", "half"], labels=["label"], output=output, num_prefetch=depth, cache=100_000)
            loader = dist.DistNodeDataLoader(g, seeds, SAMPLERS["uniform"], **options, **given)
            say(f"features {output} {depth}", two_epochs(loader))
    eids = torch.from_numpy(rng.permutation(EDGES)[:60])
    for name, negatives in NEGATIVES.items():
        given = dict(negative_sampler=negatives, exclude="self" if name == "uniform" else None)
        say(f"edges {name}", two_epochs(dist.DistEdgeDataLoader(g, eids, SAMPLERS["uniform"], **options, **given)))
    loader = dist.DistEdgeDataLoader(g, eids, SAMPLERS["labor"], **options, exclude="self", output="pyg")
    say("edges pyg", two_epochs(loader))
    src, dst = g.find_edges(eids)
    say("find_edges", [src, dst, g.in_degrees(seeds), g.out_degrees(seeds), g.has_edges_between(src, dst)])
    say("sample_neighbors", [g.sample_neighbors(seeds, k, replace=r) for k in (2, -1) for r in (False, True)])
    say("in_subgraph", dist.in_subgraph(g, seeds))
    g = dist.DistGraph("typed", part_config=str(folder / "typed/typed.json"))
    by_type = {"paper": seeds, "author": torch.from_numpy(rng.permutation(AUTHORS)[:30])}
    for name, sampler in TYPED.items():
        given = dict(features={"paper": ["feat"], "author": ["feat"]})
        say(f"typed {name}", two_epochs(dist.DistNodeDataLoader(g, by_type, sampler, **options, **given)))
    reverse = {WRITE: WRITTEN, WRITTEN: WRITE}
    of_writes = {WRITE: torch.from_numpy(rng.permutation(WRITES)[:50])}
    given = dict(negative_sampler=NEGATIVES["uniform"], exclude="reverse_types", reverse_etypes=reverse)
    say("typed edges", two_epochs(dist.DistEdgeDataLoader(g, of_writes, TYPED["uniform"], **options, **given)))
    say("typed one", two_epochs(dist.DistNodeDataLoader(g, {"author": by_type["author"]}, TYPED["all"], **options)))


class SAGE(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([mg.nn.SAGEConv(20, 16, "mean"), mg.nn.SAGEConv(16, 5, "mean")])

    def forward(self, blocks: Any, x: torch.Tensor) -> torch.Tensor:
        for layer, block in zip(self.layers, blocks, strict=True):
            x = F.relu(layer(block, x)) if layer is not self.layers[-1] else layer(block, x)
        return x


class Training:
    """A model, an embedding and a loader, as a script has them."""

    def __init__(self, folder: Path) -> None:
        self.g = g = dist.DistGraph("plain", part_config=str(folder / "plain/plain.json"))
        torch.manual_seed(0)
        self.model = SAGE()
        self.emb = dist.DistEmbedding(NODES, 4, "emb", init_func=lambda shape, dtype: torch.ones(shape, dtype=dtype))
        self.sparse = dist.optim.SparseAdagrad([self.emb], lr=0.1)
        self.adam = torch.optim.Adam(self.model.parameters(), lr=0.01)
        own = dist.node_split(g.ndata["train_mask"])
        given: dict[str, Any] = dict(batch_size=30, shuffle=True, features=["feat"], labels=["label"])
        self.loader = dist.DistNodeDataLoader(g, own, NeighborSampler([4, 4]), **given, seed=3)

    def state(self) -> dict[str, Any]:
        return dict(model=self.model, emb=self.emb, sparse=self.sparse, adam=self.adam, loader=self.loader)

    def epoch(self) -> Iterator[Any]:
        """Train a step, yield its input nodes and seeds."""
        for inputs, seeds, blocks in self.loader:
            x = torch.cat([blocks[0].srcdata["feat"], self.emb(inputs)], 1)
            loss = F.cross_entropy(self.model(blocks, x), blocks[-1].dstdata["label"])
            self.adam.zero_grad()
            loss.backward()
            for parameter in self.model.parameters():
                assert parameter.grad is not None
                td.all_reduce(parameter.grad)
            self.adam.step()
            self.sparse.step()
            yield inputs, seeds

    def weights(self) -> Any:
        return [list(self.model.parameters()), self.emb(torch.arange(NODES))]


def train(folder: Path) -> None:
    """Weights after the steps of an epoch, on so many trainers; an inference with them."""
    job = Training(folder)
    some = list(job.epoch())
    number = job.g.session.num_trainers
    say(f"minibatches {number}", some)
    say(f"weights {number}", job.weights())


def begin(folder: Path) -> None:
    """Some steps of an epoch, and a checkpoint."""
    job = Training(folder)
    for number, some in enumerate(job.epoch()):
        say(f"begun {number}", some)
        if number == 4:
            break
    mg.checkpoint.save(job.state(), checkpoint_id=str(folder / "checkpoint" / "4"))


def resume(folder: Path) -> None:
    """The rest of that epoch, on any number of trainers."""
    job = Training(folder)
    mg.checkpoint.load(job.state(), checkpoint_id=mg.checkpoint.latest(str(folder / "checkpoint")))
    number = job.g.session.num_trainers
    say(f"loaded on {number}", job.weights()[1])
    say(f"rest {number}", list(job.epoch()))
    say(f"resumed weights {number}", job.weights())


if __name__ == "__main__":
    what, where = sys.argv[1:]
    if what == "write":
        write(Path(where))
        sys.exit()
    torch.set_num_threads(1)
    dist.initialize()
    td.init_process_group("gloo")
    {"draws": draws, "train": train, "begin": begin, "resume": resume}[what](Path(where))
    td.destroy_process_group()
