"""Test accuracy of the example in every start, against the plain torch loop; not collected by pytest.

    python tests/accuracy/accuracy.py DIR [--graphs cora] [--starts python servers-1] [--seeds 0 1 2]

DIR (or MPIGRAPH_TEST_DATA) holds the files <graph>.npz of :data:`GRAPHS`, made from public data sets with the keys
that examples/README.md lists. cora is Planetoid's, with its split (``Planetoid(name="Cora")`` of PyG,
``CoraGraphDataset`` of DGL). amazon_computers (``Amazon(name="Computers")`` of PyG, ``AmazonCoBuyComputerDataset`` of
DGL) is split at random, 20 nodes of each class to train and 30 to validate. oewn are the synsets of Open English
WordNet with 2000 words of their glosses as features and their lexicographer files as classes, half of them at random
to train, a quarter to validate.

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

from mpigraph.partition.options import PART_METHODS


class Graph(NamedTuple):
    """Settings of one graph: what the reference calls them, and the accuracy in percent that is asked for."""

    settings: reference_sage.Settings
    floor: float = 0.0


class Start(NamedTuple):
    """A start of the example: number of ranks (0: without mpiexec), and of servers on each node."""

    title: str
    ranks: int
    num_servers: int
    ranks_per_node: int = 0


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
    "two-nodes": Start("2 simulated nodes, 1 server each", 4, 1, ranks_per_node=2),
}
NORM = 2  # by which feature rows are divided
LIMIT = 1.5  # points between a mean and that of the reference
DEADLINE = 900.0  # seconds of one run
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "node_classification.py"


def main():
    args = arguments(__doc__, GRAPHS, STARTS)
    rows, failures = [], []
    for name in args.graphs:
        results = measure(args.data / f"{name}.npz", name, args.starts, args.seeds, args.method)
        rows.append([name, *map(cell, results.values())])
        reference, floor = np.mean(results["reference"]), GRAPHS[name].floor
        for start, mean in ((start, np.mean(result)) for start, result in results.items()):
            if abs(mean - reference) > LIMIT or mean < floor:
                failures.append(f"{name}, {start}: {mean:.2f} (reference {reference:.2f}, floor {floor})")
    settings = settings_line(args.graphs, args.seeds)
    report([STARTS[start] for start in args.starts], rows, settings, failures, args.method)


def arguments(doc, graphs, starts, methods=PART_METHODS, more=()):
    """Parse the command line of a script of this folder; ``more`` are parsers with options of its own."""
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=how, parents=more)
    default = os.environ.get("MPIGRAPH_TEST_DATA")
    parser.add_argument("data", type=Path, metavar="DIR", nargs="?" if default else None, default=default)
    parser.add_argument("--graphs", nargs="+", choices=graphs, default=list(graphs))
    parser.add_argument("--starts", nargs="+", choices=starts, default=list(starts))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--method", default="metis", choices=methods, help="how the graph is cut (%(default)s)")
    torch.set_num_threads(1)
    return parser.parse_args()


def report(starts, rows, settings, failures, method):
    """Print a Markdown table, its settings and what is too low, and exit."""
    titles = ["graph", "plain torch", *(start.title for start in starts)]
    print(line(titles), "|---" * len(titles) + "|", *map(line, rows), sep="\n")
    print(f"\nSettings: OMP_NUM_THREADS=1, 2 parts by {method}, {settings}.")
    print("\n".join(failures), file=sys.stderr)
    sys.exit(1 if failures else 0)


def cell(percents):
    return f"{np.mean(percents):.1f} ({np.ptp(percents):.1f})"


def line(cells):
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def settings_line(graphs, seeds):
    """The settings in words."""
    shared = f"seeds {seeds}, two layers, Adam, feature rows divided by their {NORM}-norm"
    return "; ".join([shared, *(f"{name}: {described(GRAPHS[name].settings)}" for name in graphs)])


def described(s):
    """The settings of one graph in words."""
    return (
        f"fanouts {','.join(map(str, s.fanouts))}, hidden {s.hidden}, dropout {s.feat_drop:g} of features and "
        f"{s.dropout:g} between layers, lr {s.lr:g}, weight decay {s.weight_decay:g}, batches of {s.batch_size}, "
        f"{s.epochs} epochs"
    )


def measure(path, name, starts, seeds, method):
    """Train one graph by the reference and in every start; return the result of each."""
    problem = reference_sage.load(path, NORM)
    plain = partial(reference_sage.train, problem, GRAPHS[name].settings)
    results = {"reference": repeat(f"{name}, reference", seeds, lambda seed: {"test": plain(seed)})["test"]}
    with tempfile.TemporaryDirectory() as directory:
        dense = str(reference_sage.with_dense_rows(path, directory))
        command = [sys.executable, "-m", "mpigraph", "partition", dense, "--parts", "2", "--method", method]
        output([*command, "--name", name, "-o", directory], {})
        for start in starts:
            results[start] = repeat(f"{name}, {start}", seeds, partial(train, directory, name, STARTS[start]))["test"]
    return results


def repeat(what, seeds, run):
    """Run once for each seed; return the percents of all by measure."""
    result = []
    for seed in seeds:
        begin = time.perf_counter()
        result.append(run(seed))
        said = ", ".join(f"{measure} {value:.4f}" for measure, value in result[-1].items())
        print(f"{time.perf_counter() - begin:6.1f} s  {what}, seed {seed}: {said}", file=sys.stderr)
    return {measure: [100 * one[measure] for one in result] for measure in result[0]}


def train(directory, name, start, seed):
    """Train the example once; return the test accuracy that it prints."""
    s = GRAPHS[name].settings
    flags = f"{flags_of(directory, name, s, seed)} --eval_every {s.epochs + 1}"  # only after the last epoch
    return {"test": accuracy_in(launched(start, EXAMPLE, flags))}


def flags_of(directory, name, s, seed):
    """The settings as flags of the example."""
    return (
        f"--part_config {directory}/{name}.json --graph_name {name} --norm {NORM} --seed {seed} "
        f"--num_hidden {s.hidden} --fan_out {','.join(map(str, s.fanouts))} --feat_drop {s.feat_drop} "
        f"--dropout {s.dropout} --lr {s.lr} --weight_decay {s.weight_decay} --batch_size {s.batch_size} "
        f"--num_epochs {s.epochs}"
    )


def accuracy_in(printed):
    """The test accuracy that an example printed."""
    return float(re.search(r"^test accuracy ([0-9.]+)", printed, re.MULTILINE)[1])


def launched(start, script, flags):
    """Run a script in a start; return what it printed."""
    env = {"MPIGRAPH_RANKS_PER_NODE": str(start.ranks_per_node)} if start.ranks_per_node else {}
    command = [*launcher(start), sys.executable, str(script), *flags.split(), "--num_servers", str(start.num_servers)]
    return output(command, env)


def launcher(start):
    """Return the launcher's words before a command."""
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return [mpiexec, "-n", str(start.ranks)] if start.ranks else []


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
