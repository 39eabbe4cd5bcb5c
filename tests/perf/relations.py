"""CPU seconds and bytes of one graph by its number of relations: ``python tests/perf/relations.py [1 10 200 2000]``.

The same 20,000 edges among 20,000 nodes, in 4 parts at random, divided over the relations; one process. Each number of
relations has a process of its own, which first does all once with another graph, so that kernels are loaded. The last
columns are of the same graph with an edge weight in each relation: partitioning, opening, draws by it, and reading
1,000 weights of all relations, as a minibatch does.

``MPIGRAPH_RANKS_PER_NODE=1 MPIGRAPH_TRANSPORT=rma mpiexec -n 2 python tests/perf/relations.py --requests 1 200 2000``
counts the requests of such a read on two simulated nodes.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np

NODES = EDGES = 20_000
PARTS = 4


def source(relations, seed=0, weighted=False):
    """The graph, its edges dealt out to the relations."""
    from mpigraph.metadata.schema import Schema
    from mpigraph.partition.source import Feature, GraphSource

    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, NODES, (2, EDGES))
    edges = tuple((src[r::relations], dst[r::relations]) for r in range(relations))
    schema = Schema(("n",), tuple(("n", f"r{r}", "n") for r in range(relations)))
    weights = rng.random(EDGES, np.float32)
    feats = {f"n:r{r}:n": {"w": Feature.of(weights[r::relations])} for r in range(relations)} if weighted else {}
    return GraphSource(schema, (NODES,), edges, {}, feats)


def measure(relations, out):
    """Yield the stages' names with their CPU seconds, and the bytes of files and memory."""
    import torch

    from mpigraph.cli import info, verify
    from mpigraph.dataloading import NeighborSampler
    from mpigraph.distributed import DistGraph
    from mpigraph.partition.pipeline import partition_source
    from mpigraph.storage.part_config import PartConfig
    from mpigraph.store.host_ranges import host_memory

    graph, begin = source(relations), time.process_time()

    def lap():
        nonlocal begin
        before, begin = begin, time.process_time()
        return begin - before

    path = str(partition_source(graph, out.name, PARTS, out, "random").config_path)
    yield "partition", lap()
    yield "files, MB", sum(file.stat().st_size for file in out.rglob("*") if file.is_file()) / 1e6
    config = PartConfig.read(path)
    yield "memory, MB", host_memory(config, config.book).sum() / 1e6
    for name, command in (("info", info.run), ("verify", verify.run)):
        lap()
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            command(path)
        yield name, lap()
    g = DistGraph(out.name, part_config=path)
    yield "open", lap()
    name, path, graph = f"{out.name}w", out / "w", source(relations, weighted=True)
    lap()
    partition_source(graph, name, PARTS, path, "random")
    yield "partition weighted", lap()
    weighted = DistGraph(name, part_config=path / f"{name}.json")
    yield "open weighted", lap()
    for graph, prob in ((g, None), (weighted, "w")):
        sampler, seeds = NeighborSampler([5], prob=prob), torch.arange(100)
        sampler.sample_blocks(graph, seeds)
        lap()
        for _ in range(3):
            sampler.sample_blocks(graph, seeds)
        yield f"hop, prob={prob}", lap() / 3
    read = reader(weighted)
    read()
    lap()
    for _ in range(3):
        read()
    yield "read", lap() / 3


def reader(g):
    """Return a function that reads 1,000 edge weights, as many of each relation, as loaders do."""
    import torch

    from mpigraph.dataloading.fetcher import FeatureFetcher

    fetcher, data = FeatureFetcher(g.edges, False, "w"), {relation: {} for relation in g.canonical_etypes}
    each = -(-1000 // len(data))
    ids = {r: torch.arange(each) * (g.num_edges(r) // each) for r in data}
    return lambda: fetcher.fetch(ids.__getitem__, data.__getitem__)


def count_requests(numbers):
    """Print the requests of one such read."""
    import mpigraph.distributed as dist
    from mpigraph.partition.pipeline import partition_source
    from mpigraph.session.context import current

    dist.initialize(num_servers=0)
    session = current()
    for relations in map(int, numbers):
        folder = session.world.comm.bcast(tempfile.mkdtemp() if session.rank == 0 else None)
        if session.rank == 0:
            partition_source(source(relations, weighted=True), f"g{relations}", PARTS, folder, "random")
        session.world.comm.Barrier()
        g = dist.DistGraph(f"g{relations}", part_config=f"{folder}/g{relations}.json")
        read, before = reader(g), session.store.rows.traffic.messages
        read()
        requests = session.store.rows.traffic.messages - before
        g.barrier()
        if session.rank == 0:
            print(f"{relations} relations: {requests} requests", flush=True)
            shutil.rmtree(folder)


def one(relations):
    """Measure one number of relations in this process; print a row."""
    import mpigraph.distributed as dist

    dist.initialize()
    with tempfile.TemporaryDirectory() as folder:
        for _ in measure(3, Path(folder) / "warm"):
            pass
        row = [f"{value:.3g}" for _, value in measure(relations, Path(folder) / "g")]
    print(f"| {relations} | " + " | ".join(row) + " |", flush=True)


def main(numbers):
    """Print the table."""
    columns = "partition, s|files, MB|memory, MB|info, s|verify, s|open, s"
    columns += "|weighted: partition, s|weighted: open, s|hop, s|weighted hop, s|read, s"
    print("| relations | " + " | ".join(columns.split("|")) + " |")
    print("|---" * (2 + columns.count("|")) + "|", flush=True)
    for number in numbers:
        subprocess.run([sys.executable, __file__, "--one", number], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(int(sys.argv[2]))
    elif sys.argv[1:2] == ["--requests"]:
        count_requests(sys.argv[2:])
    else:
        main(sys.argv[1:] or ["1", "10", "200", "2000"])
