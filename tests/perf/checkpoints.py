"""Checkpoints: how fast they are written beside ``dd``, what training feels of them, and what memory they take.

    python tests/perf/checkpoints.py [--ranks 3] [--num_servers 1] [--nodes 400000] [--dim 128] [--dir FOLDER]

A job trains embeddings of that many nodes with SparseAdagrad, so a checkpoint has twice the rows; a step has 500 seeds
in all, fanouts 10,10. Three figures:

* bytes a second of ``save``, of all trainers together, and of ``dd conv=fsync`` of as many bytes into the same folder,
  in turns;
* the step in which ``async_save`` is called, and the steps while it writes, beside steps without a save;
* the anonymous memory of a rank during ``save``, above what it had before.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import common
import jobs
import torch
import torch.nn.functional as F

import mpigraph as mg
import mpigraph.distributed as dist
from mpigraph import checkpoint

MANY = 40  # steps without a save


def anonymous() -> int:
    """Bytes of this process that no other one has."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.split("RssAnon:")[1].split()[0])


class Peak:
    """The most anonymous memory inside the ``with`` block, above what there was before."""

    def __enter__(self) -> "Peak":
        self.before = self.most = anonymous()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self.most = max(self.most, anonymous())

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()
        self.above = max(self.most, anonymous()) - self.before


def job(args: argparse.Namespace) -> None:
    """A rank of the job; trainer 0 prints what was measured."""
    dist.initialize(num_servers=args.num_servers)
    torch.distributed.init_process_group("mpi4py", init_method="mpi4py://")
    g = dist.DistGraph("perf", part_config=f"{args.dir}/graph/perf.json")
    trainers = torch.distributed.get_world_size()
    seeds = dist.node_split(torch.ones(g.num_nodes(), dtype=torch.bool))
    sampler = mg.dataloading.NeighborSampler([10, 10], return_eids=False)
    loader = dist.DistNodeDataLoader(g, seeds, sampler, batch_size=500 // trainers, shuffle=True)
    emb = dist.DistEmbedding(g.num_nodes(), args.dim, "emb")
    model = Stack(mg.nn.SAGEConv(args.dim, args.dim, "mean") for _ in range(2))
    model = torch.nn.parallel.DistributedDataParallel(model)
    dense, sparse = torch.optim.Adam(model.parameters()), dist.SparseAdagrad([emb], 0.1)
    state = {"model": model, "dense": dense, "sparse": sparse, "emb": emb, "loader": loader}
    batches = (batch for _ in itertools.count() for batch in loader)

    def step(save: bool = False) -> float:
        torch.distributed.barrier()
        begin = time.perf_counter()
        inputs, _, blocks = next(batches)
        scores = model(blocks, emb(inputs))
        F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.int64)).backward()
        dense.step()
        sparse.step()
        dense.zero_grad()
        if save:
            checkpoint.async_save(state, checkpoint_id=f"{args.dir}/async")
        torch.distributed.barrier()
        return time.perf_counter() - begin

    for _ in range(10):
        step()
    plain, starting, meanwhile, write, dd, memory, nbytes = [], [], [], [], [], [], 0
    for number in range(args.rounds):
        alone = [step() for _ in range(MANY)]
        plain.append(statistics.median(alone))
        with Peak() as peak:
            begin = time.perf_counter()
            checkpoint.save(state, checkpoint_id=f"{args.dir}/saved-{number}")
            seconds = time.perf_counter() - begin
        memory.append(peak.above)
        if g.rank() == 0:
            saved = Path(args.dir, f"saved-{number}")
            nbytes = sum(path.stat().st_size for path in saved.iterdir())
            shutil.rmtree(saved)  # as the file of dd
            write.append(seconds)
            dd.append(written_by_dd(Path(args.dir), nbytes))
        g.barrier()  # in which the others sleep: torch's barrier polls, and would take dd's core
        starting.append(step(save=True))
        thread = g.session.saver._thread
        some = []
        while torch.distributed.get_world_size() and all_alive(thread):
            some.append(step())
        if some:
            meanwhile.append(statistics.mean(alone) / statistics.mean(some))
        checkpoint.wait()
    above = torch.tensor([max(memory)])
    torch.distributed.all_reduce(above, torch.distributed.ReduceOp.MAX)
    if g.rank() == 0:
        found = {"bytes": nbytes, "plain": plain, "starting": starting, "meanwhile": meanwhile, "memory": int(above)}
        print(json.dumps(found | {"write": write, "dd": dd}), flush=True)
    torch.distributed.destroy_process_group()


def all_alive(thread: threading.Thread) -> bool:
    """Whether every trainer is still writing."""
    alive = torch.tensor([int(thread is not None and thread.is_alive())])
    torch.distributed.all_reduce(alive, torch.distributed.ReduceOp.MIN)
    return bool(alive)


def written_by_dd(folder: Path, nbytes: int) -> float:
    """Seconds that ``dd`` takes to write so many bytes and have them on the disk."""
    blocks = max(1, nbytes >> 20)
    command = ["dd", "if=/dev/zero", f"of={folder}/dd", "bs=1M", f"count={blocks}", "conv=fsync"]
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.perf_counter() - begin
    (folder / "dd").unlink()
    return seconds * nbytes / (blocks << 20)


class Stack(torch.nn.Module):
    """Layers one after the other."""

    def __init__(self, layers) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, blocks, h):
        for block, layer in zip(blocks, self.layers, strict=True):
            h = layer(block, h)
        return h


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ranks", type=int, default=3)
    p.add_argument("--num_servers", type=int, default=1)
    p.add_argument("--nodes", type=int, default=400_000)
    p.add_argument("--dim", type=int, default=128)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--dir", help="where to write; a temporary folder by default")
    p.add_argument("--job", action="store_true", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.job:
        job(args)
        return
    folder = tempfile.mkdtemp(dir=args.dir)
    try:
        g = mg.data.generate(args.nodes, 10 * args.nodes, feat_dim=1, num_classes=4)
        mg.distributed.partition_graph(g, "perf", 2, f"{folder}/graph", part_method="random")
        options = [f"--{name}={getattr(args, name)}" for name in ("num_servers", "nodes", "dim", "rounds")]
        command = [*jobs.mpiexec(args.ranks), sys.executable, __file__, "--job", f"--dir={folder}", *options]
        env = jobs.clean_environment()
        found = json.loads(subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout)
    finally:
        shutil.rmtree(folder)
    report(args, found)


def report(args: argparse.Namespace, found: dict) -> None:
    """Print what was measured; a ratio above 1 is better than that beside it."""
    write = {"save": found["write"], "dd": found["dd"]}
    rows = [
        common.compare("`save`, all trainers, beside `dd`", "s", write, "dd", "save"),
        common.compare(
            "step that starts `async_save`, beside one without",
            "s",
            {"async_save": found["starting"], "without": found["plain"]},
            "without",
            "async_save",
        ),
        common.alone(
            "speed of training while it writes, of that without", "", {common.OURS: found["meanwhile"] or [0]}
        ),
        common.alone("memory of a rank during `save`", "MiB", {common.OURS: [found["memory"] / 2**20]}),
    ]
    size = found["bytes"] / 2**20
    print(f"{size:.0f} MiB, {args.ranks} ranks, {args.num_servers} servers, load {os.getloadavg()[0]:.1f}")
    print(common.markdown(rows))


if __name__ == "__main__":
    main()
