"""Time and peak memory of each stage of partitioning, on some ranks, beside the forecast.

    mpiexec -n 2 python tests/perf/partition_ranks.py DATA --parts 4 --method multilevel -o OUT

Seconds are rank 0's. CPU seconds and MiB are those of the largest rank. MiB count what it held before, and what its
anonymous memory (``RssAnon``, looked at 100 times a second) has grown by: pages of mapped files the kernel takes back.
"""

import argparse
import re
import threading
import time
from pathlib import Path

import numpy as np

from mpigraph.cli.ranks import working_ranks
from mpigraph.formats.readers import read_source
from mpigraph.kernels import warm_up
from mpigraph.memory import as_bytes, held_memory
from mpigraph.partition.assign import PART_METHODS, check_memory
from mpigraph.partition.assigning import Workload
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.shuffle import carried_bytes
from mpigraph.partition.spill import Scratch


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("input", metavar="DATA")
    p.add_argument("--parts", type=int, required=True)
    p.add_argument("--method", default="multilevel", choices=PART_METHODS)
    p.add_argument("-o", "--out", required=True)
    p.add_argument("--memory", type=as_bytes, default=1 << 62)
    p.add_argument("--scratch")
    args = p.parse_args()
    warm_up()
    with working_ranks("partition") as exchange:
        source = read_source(args.input)
        held = int(exchange.gather(np.array([[held_memory()]])).max())
        sizes = sum(source.num_nodes), sum(source.edge_counts)
        work = Workload(*sizes, args.parts, args.method, held, carried_bytes(source))
        foreseen = check_memory(work, exchange.size, args.memory)
        scratch = Scratch(args.scratch or args.out, mapping=foreseen.mapping)
        stages = Stages(held)
        begin = time.perf_counter()
        result = partition_source(
            source, "g", args.parts, args.out, args.method, progress=stages, exchange=exchange, scratch=scratch
        )
        stages.end()
        seconds = time.perf_counter() - begin
        rows = np.array([[round(1000 * cpu), peak] for _, _, cpu, peak in stages.found], np.int64)
        everyone = exchange.gather(rows).reshape(exchange.size, len(rows), 2)
        if exchange.rank == 0:
            told = f"forecast {foreseen.memory >> 20} MiB a rank, mapping {foreseen.mapping}"
            print(f"{seconds:.1f} s on {exchange.size} rank(s); {told}; report {result.report}")
            print("| stage | s | CPU s of a rank | MiB of a rank |")
            print("|---|---|---|---|")
            for number, (stage, wall, _, _) in enumerate(stages.found):
                cpu, peak = everyone[:, number].max(axis=0)
                print(f"| {stage} | {wall:.1f} | {cpu / 1000:.1f} | {peak >> 20} |")


class Stages:
    """Notes what each stage takes."""

    def __init__(self, held):
        self.found = []
        self._stage = ""
        self._others = held - anonymous()
        self._peak = 0
        threading.Thread(target=self._look, daemon=True).start()

    def __call__(self, stage, done, total):
        if stage != self._stage:
            self.end()
            self._stage = stage
            self._peak = anonymous()
            self._begin = time.perf_counter(), time.process_time()

    def end(self):
        if self._stage:
            wall, cpu = self._begin
            peak = self._others + self._peak
            self.found.append((self._stage, time.perf_counter() - wall, time.process_time() - cpu, peak))
            self._stage = ""

    def _look(self):
        while True:
            self._peak = max(self._peak, anonymous())
            time.sleep(0.01)


def anonymous():
    """Bytes of this process that no file backs."""
    return 1024 * int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text(encoding="ascii"))[1])


if __name__ == "__main__":
    main()
