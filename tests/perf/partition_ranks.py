"""Time and peak memory of each stage of partitioning, on some ranks, beside the forecast.

    mpiexec -n 2 python tests/perf/partition_ranks.py DATA --parts 4 --method multilevel -o OUT

Seconds are rank 0's. CPU seconds and MiB are those of the largest rank; MiB count what the process holds beyond shared
libraries' files (``VmHWM``, which is reset where a stage begins).
"""

import argparse
import re
import time
from pathlib import Path

import numpy as np

from mpigraph.cli.ranks import working_ranks
from mpigraph.kernels import warm_up
from mpigraph.memory import held_memory
from mpigraph.partition.forecast import forecast
from mpigraph.partition.options import PART_METHODS
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.readers import read_source


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("input", metavar="DATA")
    p.add_argument("--parts", type=int, required=True)
    p.add_argument("--method", default="multilevel", choices=PART_METHODS)
    p.add_argument("-o", "--out", required=True)
    args = p.parse_args()
    warm_up()
    with working_ranks("partition") as exchange:
        source = read_source(args.input)
        stages = Stages()
        held = int(exchange.gather(np.array([[held_memory()]])).max())
        begin = time.perf_counter()
        result = partition_source(source, "g", args.parts, args.out, args.method, progress=stages, exchange=exchange)
        stages.end()
        seconds = time.perf_counter() - begin
        rows = np.array([[round(1000 * cpu), peak] for _, _, cpu, peak in stages.found], np.int64)
        everyone = exchange.gather(rows).reshape(exchange.size, len(rows), 2)
        if exchange.rank == 0:
            foreseen = forecast(sum(source.num_nodes), sum(source.edge_counts), args.method, exchange.size, held)
            print(f"{seconds:.1f} s on {exchange.size} rank(s); report {result.report}")
            print("| stage | s | CPU s of a rank | MiB of a rank | forecast |")
            print("|---|---|---|---|---|")
            for number, (stage, wall, _, _) in enumerate(stages.found):
                cpu, peak = everyone[:, number].max(axis=0)
                expected = foreseen.get(re.sub(r" \(.*", "", stage), 0) >> 20
                print(f"| {stage} | {wall:.1f} | {cpu / 1000:.1f} | {peak >> 20} | {expected} |")


class Stages:
    """Notes what each stage takes."""

    def __init__(self):
        self.found = []
        self._stage = ""

    def __call__(self, stage, done, total):
        if stage != self._stage:
            self.end()
            self._stage = stage
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            self._begin = time.perf_counter(), time.process_time()

    def end(self):
        if self._stage:
            status = Path("/proc/self/status").read_text(encoding="ascii")
            peak = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024
            wall, cpu = self._begin
            self.found.append((self._stage, time.perf_counter() - wall, time.process_time() - cpu, peak))
            self._stage = ""


if __name__ == "__main__":
    main()
