"""Partition a graph in two by METIS, beside DGL's ``partition_graph``: time and memory.

    DGL_PYTHON=... python tests/perf/partition.py DIR --graph S

Both read the generated ``.npy`` files and write parts, in commands that alternate. Time and peak memory are those of
the whole command (``wait4``); DGL's call alone, without imports and building the graph, is a line of its own. What
they reached is read from the parts: METIS is called differently (two parts are bisected here, DGL always uses k-way).
For products only ours runs: DGL passed 22 GB there when it was stopped.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import common

CALL = "seconds of the call: "
REACHED = {
    "cut": "share of the edges that is cut",
    "nodes": "nodes, larger part / mean",
    "edges": "edges, larger part / mean",
}


def main():
    args = common.parser(__doc__).parse_args()
    data = args.dir / args.graph / "data"
    ours = [sys.executable, "-m", "mpigraph", "partition", data, "--parts", 2, "--method", "metis", "--name", "g"]
    ours += ["--balance-train", "--balance-edges", "-o"]
    sides = {common.OURS: lambda: measure(ours, dict(os.environ), lambda config: read(config)["report"]["edges_cut"])}
    dgl = common.dgl_python() if args.graph == "S" else None
    if dgl is not None:
        script = [dgl, common.HERE / "dgl_side.py"]
        env = common.dgl_environment(threads=os.cpu_count())
        sides["dgl"] = lambda: measure([*script, "partition", data], env, lambda config: dgl_edges_cut(script, config))
    found, loads = common.alternate(sides, args.rounds, args.quiet)
    common.report(args, rows(args, found), others=loads)


def dgl_edges_cut(script, config):
    """Have DGL read its parts."""
    command = list(map(str, [*script, "edges_cut", config]))
    return subprocess.run(command, env=common.dgl_environment(), capture_output=True, check=True).stdout.split()[-1]


def read(config):
    return json.loads(config.read_text(encoding="utf-8"))


def measure(command, env, edges_cut):
    """Run a command with a directory to write appended; return seconds, peak GiB, and how good the parts are."""
    with tempfile.TemporaryDirectory() as directory, open(Path(directory) / "log", "w+") as log:
        begin = time.perf_counter()
        words = [*map(str, command), f"{directory}/out"]
        process = subprocess.Popen(words, env=env, stdout=log, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - begin
        log.seek(0)
        printed = log.read()
        if process.returncode:
            raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}:\n{printed[-2000:]}")
        parts = quality(Path(directory, "out", "g.json"), edges_cut)
    call = [float(line.removeprefix(CALL)) for line in printed.splitlines() if line.startswith(CALL)]
    cpu = used.ru_utime + used.ru_stime
    times = {"seconds": seconds, "cpu": cpu, "call": call[0] if call else seconds}
    return times | {"peak": used.ru_maxrss / 2**20} | parts


def quality(config, edges_cut):
    """What a partition reached, by the names of :data:`REACHED`."""
    content = read(config)
    found = {"cut": int(edges_cut(config)) / content["num_edges"]}
    for what in ("nodes", "edges"):
        if ours := content.get(f"{what}_of_parts"):
            sizes = [count for (count,) in ours]
        else:
            (ranges,) = content[f"{what[:-1]}_map"].values()
            sizes = [end - begin for begin, end in ranges]
        found[what] = max(sizes) * len(sizes) / sum(sizes)
    return found


def rows(args, found):
    """Time and memory beside DGL's, then what the parts are like."""
    what = f"METIS into 2 parts, {args.graph}"
    lines = []
    for name, key, unit in (
        ("whole command", "seconds", "s"),
        ("CPU time", "cpu", "s"),
        ("peak memory", "peak", "GiB"),
    ):
        lines += common.beside(f"{what}: {name}", unit, common.pick(found, key))
    lines.append(common.alone(f"{what}: whole command, DGL's call alone", "s", common.pick(found, "call")))
    return lines + [common.alone(f"{what}: {text}", "", common.pick(found, name)) for name, text in REACHED.items()]


if __name__ == "__main__":
    main()
