"""Test accuracy of the example in every start, against the plain torch loop; not collected by pytest.

    python tests/accuracy.py DIR [--graphs cora] [--starts python servers-1] [--seeds 0 1 2]

DIR holds the files <graph>.npz of :data:`GRAPHS`, made from public data sets with the keys that README.md lists. cora
is Planetoid's, with its split (``Planetoid(name="Cora")`` of PyG, ``CoraGraphDataset`` of DGL). amazon_computers
(``Amazon(name="Computers")`` of PyG, ``AmazonCoBuyComputerDataset`` of DGL) is split at random, 20 nodes of each class
to train and 30 to validate. oewn are the synsets of Open English WordNet with 2000 words of their glosses as features
and their lexicographer files as classes, half of them at random to train, a quarter to validate.

Each is cut in two parts and trained in each of :data:`STARTS` by ``examples/node_classification.py``, and by
``reference_sage.py``, with equal settings and seeds. README's table and the settings go to stdout, progress to stderr.
The exit status is 1 if a mean differs from that of the reference by more than :data:`LIMIT` points or is below the
floor of its graph. Allow half an hour on two cores.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # before torch looks

import numpy as np
import reference_sage
import torch


class Graph(NamedTuple):
    """Settings of one graph: what the reference calls them, and the accuracy in percent that is asked for."""

    settings: reference_sage.Settings
    floor: float = 0.0


class Start(NamedTuple):
    """How the example is started: on how many ranks (0: without mpiexec), with how many servers on each node."""

    title: str
    ranks: int
    num_servers: int
    ranks_per_node: int = 0


class Result(NamedTuple):
    """Mean and spread (largest - smallest) of the test accuracy in percent."""

    mean: float
    spread: float


GRAPHS = {
    "cora": Graph(reference_sage.Settings((25, 10), 64, 0.5, 0.5, 0.01, 5e-4, epochs=100, batch_size=140), 78.0),
    "amazon_computers": Graph(reference_sage.Settings((10, 10), 64, 0.5, 0.5, 0.005, 5e-4, epochs=100, batch_size=100)),
    "oewn": Graph(reference_sage.Settings((5, 5), 64, 0.0, 0.5, 0.01, 0.0, epochs=2, batch_size=1024)),
}
STARTS = {
    "python": Start("`python`", 0, 0),
    "servers-0": Start("4 ranks, 0 servers", 4, 0),
    "servers-1": Start("4 ranks, 1 server", 4, 1),
    "servers-2": Start("4 ranks, 2 servers", 4, 2),
    "two-nodes": Start("2 pretended nodes, 1 server each", 4, 1, ranks_per_node=2),
}
NORM = 2  # by which feature rows are divided
LIMIT = 1.5  # points between a mean and that of the reference
DEADLINE = 900.0  # seconds of one run
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "node_classification.py"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DIR")
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    args = parser.parse_args()
    torch.set_num_threads(1)
    titles = ["graph", "plain torch", *(STARTS[start].title for start in args.starts)]
    rows, failures = [], []
    for name in args.graphs:
        results = measure(args.data / f"{name}.npz", name, args.starts, args.seeds)
        rows.append(line([name, *(f"{mean:.1f} ({spread:.1f})" for mean, spread in results.values())]))
        reference = results["reference"].mean
        for start, (mean, _) in results.items():
            if abs(mean - reference) > LIMIT or mean < GRAPHS[name].floor:
                failures.append(f"{name}, {start}: {mean:.2f} (reference {reference:.2f}, floor {GRAPHS[name].floor})")
    print(line(titles), "|---" * len(titles) + "|", *rows, sep="\n")
    print(f"\n{settings_line(args.graphs, args.seeds)}")
    print("\n".join(failures), file=sys.stderr)
    sys.exit(1 if failures else 0)


def line(cells):
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def settings_line(graphs, seeds):
    """The settings in words."""
    shared = (
        f"OMP_NUM_THREADS=1, seeds {', '.join(map(str, seeds))}, 2 parts by METIS, two layers, Adam, feature rows "
        f"divided by their {NORM}-norm"
    )
    return "; ".join([f"Settings: {shared}", *(f"{name}: {described(GRAPHS[name].settings)}" for name in graphs)]) + "."


def described(s):
    """The settings of one graph in words."""
    return (
        f"fanouts {','.join(map(str, s.fanouts))}, hidden {s.hidden}, dropout {s.feat_drop:g} of features and "
        f"{s.dropout:g} between layers, lr {s.lr:g}, weight decay {s.weight_decay:g}, batches of {s.batch_size}, "
        f"{s.epochs} epochs"
    )


def measure(path, name, starts, seeds):
    """Train one graph by the reference and in every start; return the result of each."""
    problem = reference_sage.load(path, NORM)
    settings = GRAPHS[name].settings
    results = {"reference": repeat("reference", seeds, lambda seed: reference_sage.train(problem, settings, seed))}
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "mpigraph", "partition", str(path), "--parts", "2", "--method", "metis"]
        output([*command, "--name", name, "-o", directory], {})
        for start in starts:
            results[start] = repeat(start, seeds, partial(train, directory, name, STARTS[start]))
    return results


def repeat(what, seeds, run):
    """Run once for each seed."""
    begin, found = time.perf_counter(), []
    for seed in seeds:
        found.append(100 * run(seed))
        print(f"{time.perf_counter() - begin:6.1f} s  {what}, seed {seed}: {found[-1]:.2f}", file=sys.stderr)
    return Result(float(np.mean(found)), float(np.ptp(found)))


def train(directory, name, start, seed):
    """Train the example once; return the test accuracy it prints."""
    s = GRAPHS[name].settings
    flags = (
        f"--graph_name {name} --num_servers {start.num_servers} --norm {NORM} --seed {seed} --num_hidden {s.hidden} "
        f"--fan_out {','.join(map(str, s.fanouts))} --feat_drop {s.feat_drop} --dropout {s.dropout} --lr {s.lr} "
        f"--weight_decay {s.weight_decay} --batch_size {s.batch_size} --num_epochs {s.epochs} "
        f"--eval_every {s.epochs + 1}"  # only after the last epoch
    )
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    launcher = [mpiexec, "-n", str(start.ranks)] if start.ranks else []
    command = [*launcher, sys.executable, str(EXAMPLE), "--part_config", f"{directory}/{name}.json", *flags.split()]
    printed = output(command, {"MPIGRAPH_RANKS_PER_NODE": str(start.ranks_per_node)} if start.ranks_per_node else {})
    return float(re.search(r"^test accuracy ([0-9.]+)", printed, re.MULTILINE)[1])


def output(command, env):
    """Run a command to its end; return what it printed, and stop with that if it failed."""
    process = subprocess.Popen(
        command, env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        printed = process.communicate(timeout=DEADLINE)[0]
    finally:
        process.terminate()  # a launcher takes its ranks with it
    if process.returncode:
        sys.exit(f"{' '.join(command)}\nended with {process.returncode}:\n{printed}")
    return printed


if __name__ == "__main__":
    main()
