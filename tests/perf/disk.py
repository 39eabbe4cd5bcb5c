"""Epochs of minibatches with features on disk, in a control group without memory for them, beside ones in memory.

    python tests/perf/disk.py DIR --graph products            # as root
    python tests/perf/disk.py DIR --graph igb --ranks 2 --servers 1
    DGL_PYTHON=... python tests/perf/disk.py DIR --graph products --graphbolt

Whole jobs alternate. First a job with features on disk and the smallest of the caches, which samples as far ahead as
with little free memory, runs in a group without limit: what it holds at most besides the caches is the base. Then a job
on disk has the base and a share of the features' bytes (``--shares``) as its budget, 5 % more as the limit of its
group, page cache included, and ``--kept`` of the share as the loader's caches, which the hosts have in equal parts. The
shards leave the page cache before. Every minibatch of the first and the last epoch is compared with memory's; the
epochs between are timed. Bytes from the disk are those that the kernel counts for the processes of the group
(``read_bytes``); needed are the rows that were not in the cache. ``--ranks 2`` makes as many simulated hosts, and
``--servers 1`` gives each a server.

``--graph igb`` is a graph with the rows of IGB, 4 KiB: 2 M nodes, 30 M edges, 8.2 GB of features; made by

    python -m mpigraph generate --nodes 2000000 --edges 30000000 --feat-dim 1024 --classes 47 --homophily 0.85 \\
      --block-share 0.65 --block-size 800 --train-fraction 0.02 -o DIR/igb/data
    python -m mpigraph partition DIR/igb/data --parts 2 --method multilevel --balance-train --name igb \\
      -o DIR/igb/parts-2

``--graphbolt``: also GraphBolt of DGL 2.1.0 (``disk_graphbolt.py``), with the features mapped from their file, which is
what it has for a disk (its ``DiskBasedFeature`` is of later versions), in groups with its own base and the same shares.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import common
import memory_group
import numpy as np

from mpigraph.dataloading.caches import LOOKAHEAD
from mpigraph.storage.part_config import PartConfig

MEMORY = "memory"
PEER = "GraphBolt"
WORST = {0.25: 1.3, 0.1: 2.0}  # epochs beside memory's, asked
EPOCH = ("seconds", "cpu", "read", "fetched_bytes", "bytes")


def main():
    p = common.parser(__doc__, graphs=("products", "igb", "S"))
    p.add_argument("--shares", type=float, nargs="*", default=[0.25, 0.1], help="of the features' bytes (%(default)s)")
    p.add_argument("--kept", type=float, default=0.9, help="of a share, for the cache; 0: the default (%(default)s)")
    p.add_argument("--parts", default="parts-2", help="folder of the parts (%(default)s)")
    p.add_argument("--ranks", type=int, default=1, help="simulated hosts, one trainer on each (%(default)s)")
    p.add_argument("--servers", type=int, default=0, help="on each host (%(default)s)")
    p.add_argument("--minibatches", type=int, default=48, help="of a trainer's epoch (%(default)s)")
    p.add_argument("--epochs", type=int, default=2, help="that are timed (%(default)s)")
    p.add_argument("--fanouts", default="10,25")
    p.add_argument("--batch_size", type=int, default=1000, help="seeds of a minibatch (%(default)s)")
    p.add_argument("--train", action="store_true", help="with a model: two layers of GraphSAGE, 256 wide")
    p.add_argument("--lookahead", type=int, help="minibatches (default: the loader's)")
    p.add_argument("--graphbolt", action="store_true", help="compare with it, too; without --train")
    args = p.parse_args()
    if args.graphbolt and args.train:
        sys.exit("--graphbolt compares minibatches without a model")
    if memory_group.missing():
        sys.exit(memory_group.missing())
    config = PartConfig.read(args.dir / args.graph / args.parts / f"{args.graph}.json")
    info = config.node_features["_N"]["feat"]
    nbytes = config.book.num_nodes(0) * int(np.dtype(info.dtype).itemsize) * int(np.prod(info.shape))
    bench = Bench(args, config, nbytes)
    sides = {MEMORY: bench.in_memory} | {f"{share:.0%}": partial(bench.on_disk, share) for share in args.shares}
    if args.graphbolt and common.dgl_python():
        sides[f"{PEER} {MEMORY}"] = bench.peer_in_memory
        sides |= {f"{PEER} {share:.0%}": partial(bench.peer_on_disk, share) for share in args.shares}
    bench.rehearse()
    found, loads = common.alternate(sides, args.rounds, args.quiet)
    common.report(args, rows_of(found), common.side_by_side, others=loads, features=nbytes, options=vars_of(args))
    for share in args.shares:
        if share in WORST:
            pairs = zip(found[f"{share:.0%}"], found[MEMORY], strict=True)
            ratio = statistics.median(disk["seconds"] / memory["seconds"] for disk, memory in pairs)
            verdict = "reached" if ratio <= WORST[share] else "not reached"
            print(f"{share:.0%}: {ratio:.2f} of an epoch in memory; asked: {WORST[share]}; {verdict}")


def vars_of(args):
    """The options as JSON has them."""
    return {name: value for name, value in vars(args).items() if not isinstance(value, Path)}


class Bench:
    """Runs the jobs; the one in memory first, which says what the others get."""

    def __init__(self, args, config, nbytes):
        self._args, self._config, self._nbytes = args, config, nbytes
        self._bases, self._hashes = {}, None

    def rehearse(self):
        """Compile the kernels, which takes memory, and then see what a job takes besides its cache."""
        self._ours("disk", None, "1MiB")
        kept = self._cache(min(self._args.shares))
        summary = self._ours("disk", None, str(kept or "1MiB"), LOOKAHEAD)
        self._bases["ours"] = summary["held"] - kept * self._args.ranks

    def in_memory(self):
        """A job with the features in memory, without a limit."""
        return self._ours(MEMORY, None, "none")

    def on_disk(self, share):
        """A job with them on disk, and memory for a share of them."""
        forget(self._config.directory)
        return self._ours("disk", self._limit("ours", share), str(self._cache(share) or "auto"))

    def peer_in_memory(self):
        """GraphBolt with the features in memory."""
        return self._peer(MEMORY, None)

    def peer_on_disk(self, share):
        """GraphBolt with the features mapped."""
        forget(self._flat)
        return self._peer("disk", self._limit(PEER, share))

    @property
    def _flat(self):
        return self._args.dir / self._args.graph / "flat-2"

    def _cache(self, share):
        """The bytes of a host's cache; the hosts are all in one group."""
        return int(self._nbytes * share * self._args.kept) // self._args.ranks

    def _limit(self, side, share):
        return int(1.05 * (self._bases[side] + share * self._nbytes))

    def _ours(self, storage, limit, cache, lookahead=None):
        args, per_host = self._args, 1 + self._args.servers
        command = [sys.executable, common.HERE / "disk_job.py", "--config", self._config.path, "--storage", storage]
        command += ["--cache", cache, "--servers", args.servers, "--minibatches", args.minibatches]
        command += ["--epochs", args.epochs, "--fanouts", args.fanouts]
        command += ["--batch_size", args.batch_size, *(["--train"] if args.train else [])]
        lookahead = lookahead if args.lookahead is None else args.lookahead
        command += [] if lookahead is None else ["--lookahead", lookahead]
        ranks = args.ranks * per_host
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(common.HERE)}
        env |= {"MPIGRAPH_RANKS_PER_NODE": str(per_host)} if ranks > per_host else {}
        mpiexec = [Path(sys.executable).with_name("mpiexec"), "-n", ranks] if ranks > 1 else []
        trainers, group = run_in_group([*mpiexec, *command], env, limit)
        hashes = [(trainer["first"]["hash"], trainer["last"]["hash"]) for trainer in trainers]
        if self._hashes is None:
            self._hashes = hashes
        if hashes != self._hashes:
            raise RuntimeError(f"minibatches differ from memory's: {hashes} and {self._hashes}")
        return self._summary(storage, trainers, group, limit)

    def _peer(self, storage, limit):
        args = self._args
        command = [os.environ["DGL_PYTHON"], common.HERE / "disk_graphbolt.py", self._flat, "--storage", storage]
        command += ["--minibatches", args.minibatches, "--epochs", args.epochs, "--fanouts", args.fanouts]
        command += ["--batch_size", args.batch_size]
        trainers, group = run_in_group(command, common.dgl_environment() | {"PYTHONPATH": str(common.HERE)}, limit)
        if storage == MEMORY:
            self._bases[PEER] = group.held_peak - self._nbytes
        return self._summary(f"{PEER} {storage}", trainers, group, limit)

    def _summary(self, side, trainers, group, limit):
        """Means over the timed epochs, sums over the trainers (the group's totals are of the first)."""
        numbers = {"limit": limit or 0, "peak": group.peak or 0, "held": group.held_peak}
        for name in EPOCH:
            of_epochs = [[trainer["epochs"][i].get(name, 0) for trainer in trainers] for i in range(self._args.epochs)]
            of_epochs = [sum(values) if "bytes" in name else values[0] for values in of_epochs]
            numbers[name] = statistics.mean(of_epochs)
        numbers["first"] = trainers[0]["first"]["seconds"]
        words = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        common.say(f"{side}: {words}\n{trainers[0]['epochs'][-1].get('text', '')}")
        return numbers


def run_in_group(command, env, limit):
    """Run a job in a memory group of its own.

    Returns:
        What each trainer wrote, the group.

    Raises:
        RuntimeError: it failed; with the end of what it printed.
    """
    with tempfile.TemporaryDirectory(prefix="mpig-disk-") as out, memory_group.MemoryGroup(limit) as group:
        with open(Path(out) / "log", "w+", encoding="utf-8") as log:
            words = [*group.enter(), *map(str, command), "--out", out]
            process = subprocess.Popen(words, env=env, stdout=log, stderr=subprocess.STDOUT)
            try:
                while process.poll() is None:
                    group.poll()
                    time.sleep(0.05)
            finally:
                process.kill()
                process.wait()
            log.seek(0)
            text = log.read()
        if process.returncode:
            killed = f"; the group's peak was {group.peak} of {limit} bytes, held {group.held_peak}"
            raise RuntimeError(f"a job ended with {process.returncode}{killed}\n{text[-4000:]}")
        if text:
            common.say(text)
        trainers = [json.loads(path.read_text()) for path in sorted(Path(out).glob("trainer*.json"))]
        return trainers, Seen(group.peak, group.held_peak)


class Seen:
    """What is known of a group after its end."""

    def __init__(self, peak, held_peak):
        self.peak, self.held_peak = peak, held_peak


def forget(folder):
    """Have the kernel drop the pages of all files below a folder, which it may have from earlier jobs."""
    for path in filter(Path.is_file, folder.rglob("*")):
        with open(path, "rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def rows_of(found):
    """The table."""
    rows = [
        common.alone("epoch", "s", common.pick(found, "seconds")),
        common.alone("first epoch, hashed", "s", common.pick(found, "first")),
        common.alone("CPU time of an epoch", "s", common.pick(found, "cpu")),
        common.alone("features in minibatches", "MB", common.pick(found, "bytes", 1e-6)),
        common.alone("needed from the disk or fetched", "MB", common.pick(found, "fetched_bytes", 1e-6)),
        common.alone("read from the disk", "MB", common.pick(found, "read", 1e-6)),
        common.alone("limit of the group", "MB", common.pick(found, "limit", 1e-6)),
        common.alone("peak of the group", "MB", common.pick(found, "peak", 1e-6)),
        common.alone("of it private and shared memory", "MB", common.pick(found, "held", 1e-6)),
    ]
    ratios = {
        name: [one["read"] / one["fetched_bytes"] if one["fetched_bytes"] else 0.0 for one in rounds]
        for name, rounds in found.items()
    }
    return [*rows, common.alone("amplification: read / needed", "", ratios)]


if __name__ == "__main__":
    main()
