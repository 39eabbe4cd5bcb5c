"""Test accuracy and speed of convergence of the example with LABOR, beside uniform sampling; not collected by pytest.

    python tests/accuracy/accuracy_labor.py DIR [--graphs tolokers] [--starts python] [--samplers NS LABOR]

Graphs and settings are those of ``accuracy.py`` and :data:`GRAPHS` here. coauthor_cs (``Coauthor(name="CS")`` of PyG,
``CoauthorCSDataset`` of DGL) is split as amazon_computers; tolokers is that of the heterophilous graphs of Platonov et
al. (2023), with its first split; S is generated. After each epoch the validation nodes are evaluated. A graph's target
is the validation accuracy of uniform sampling after the last epoch, mean of the seeds, minus ``--below`` points; each
run is asked after how many epochs, and seconds of training without evaluation, it first reached that. A run that does
not counts as one that needed all epochs. The table goes to stdout, progress to stderr; the exit status is 1 if a mean
test accuracy is more than :data:`LIMIT` points below that of uniform sampling.
"""

import argparse
import re
import sys
import tempfile
import time
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import accuracy
import numpy as np
from accuracy import EXAMPLE, NORM, STARTS, Graph, accuracy_in, cell, described, launched, line, output
from reference_sage import Settings, with_dense_rows

GRAPHS = accuracy.GRAPHS | {
    "coauthor_cs": Graph(Settings((10, 10), 64, 0.5, 0.5, 0.005, 5e-4, epochs=30, batch_size=100)),
    "tolokers": Graph(Settings((10, 10), 128, 0.0, 0.2, 0.01, 0.0, epochs=50, batch_size=500)),
    "S": Graph(Settings((10, 25), 64, 0.0, 0.5, 0.005, 0.0, epochs=6, batch_size=2000)),
}
S = "--nodes 200000 --edges 5000000 --feat-dim 100 --classes 47 --homophily 0.85 --block-share 0.65 --block-size 400"
SAMPLERS = {  # name -> flags of the example
    "NS": "",
    "LABOR": "--sampler labor",
    "layers": "--sampler labor --layer_dependency",
    "kappa 4": "--sampler labor --batch_dependency 4",
    "kappa 16": "--sampler labor --batch_dependency 16",
    "kappa 64": "--sampler labor --batch_dependency 64",
}
EVALUATION = "--eval_every 1 --num_eval 5000 --eval layerwise"  # of about so many validation nodes; of all test nodes
FLAGS = {"tolokers": "--norm 0", "S": "--norm 0"}  # of the example, beside a graph's settings
LIMIT = 0.5
LINE = re.compile(r"validation accuracy ([\d.]+)  \(wait ([\d.]+) s, compute ([\d.]+) s;")


class Run(NamedTuple):
    """What a run printed: test accuracy, and after each epoch validation accuracy and seconds of training so far."""

    test: float
    validation: list[float]
    seconds: list[float]

    def until(self, target):
        """Return epochs and seconds until the validation accuracy first reached a target, or to the end."""
        epochs = next((i for i, value in enumerate(self.validation, 1) if value >= target), len(self.validation))
        return epochs, self.seconds[epochs - 1]


def main():
    more = argparse.ArgumentParser(add_help=False)
    more.add_argument("--samplers", nargs="+", choices=tuple(SAMPLERS), default=list(SAMPLERS))
    more.add_argument("--epochs", type=int, help="of each run (default: by graph)")
    more.add_argument("--below", type=float, default=1.0, help="points of the target below uniform sampling's end")
    args = accuracy.arguments(__doc__, GRAPHS, {name: STARTS[name] for name in ("python", "two-nodes")}, more=[more])
    samplers = ["NS", *(name for name in args.samplers if name != "NS")]
    titles = ["graph", "start", "sampler", "test accuracy", "target", "epochs to it", "seconds to it"]
    print(line(titles), "|---" * len(titles) + "|", sep="\n", flush=True)
    failures = []
    for name in args.graphs:
        with tempfile.TemporaryDirectory() as directory:
            cut(args, name, directory)
            for start in args.starts:
                found = {sampler: [] for sampler in samplers}
                for seed in args.seeds:  # the samplers in turn
                    for sampler, runs in found.items():
                        runs.append(train(directory, name, start, sampler, seed, args.epochs))
                failures += show(name, start, found, args.below)
    settings = "; ".join(
        f"{name} {FLAGS.get(name, f'--norm {NORM}')}: {described(settings_of(name, args.epochs))}"
        for name in args.graphs
    )
    print(f"\nSettings: seeds {args.seeds}, 2 parts by {args.method}; {settings}.")
    print("\n".join(failures), file=sys.stderr)
    sys.exit(1 if failures else 0)


def settings_of(name, epochs):
    """The settings of a graph, with another number of epochs unless that is None."""
    settings = GRAPHS[name].settings
    return settings if epochs is None else replace(settings, epochs=epochs)


def cut(args, name, directory):
    """Partition a graph in two."""
    if name != "S":
        path = with_dense_rows(args.data / f"{name}.npz", directory)
    else:
        path = f"{directory}/data"
        output([sys.executable, "-m", "mpigraph", "generate", *S.split(), "--train-fraction", "0.08", "-o", path], {})
    command = [sys.executable, "-m", "mpigraph", "partition", str(path), "--parts", "2", "--method", args.method]
    output([*command, "--name", name, "-o", directory], {})


def train(directory, name, start, sampler, seed, epochs):
    """Train the example once."""
    begin = time.perf_counter()
    flags = accuracy.flags_of(directory, name, settings_of(name, epochs), seed)
    printed = launched(STARTS[start], EXAMPLE, f"{flags} {FLAGS.get(name, '')} {EVALUATION} {SAMPLERS[sampler]}")
    validation, waited, computed = zip(*LINE.findall(printed), strict=True)
    spent = accumulate(float(a) + float(b) for a, b in zip(waited, computed, strict=True))
    run = Run(100 * accuracy_in(printed), [100 * float(value) for value in validation], list(spent))
    said = f"{name}, {start}, {sampler}, seed {seed}: test {run.test:.2f}, {run.seconds[-1]:.2f} s of training"
    print(f"{time.perf_counter() - begin:6.1f} s  {said}", file=sys.stderr)
    return run


def show(name, start, found, below):
    """Print a graph's lines of the table; return what is too low."""
    uniform = np.mean([run.test for run in found["NS"]])
    target = np.mean([run.validation[-1] for run in found["NS"]]) - below
    failures = []
    for sampler, runs in found.items():
        tests = [run.test for run in runs]
        epochs, seconds = zip(*(run.until(target) for run in runs), strict=True)
        needed = [cell(epochs), f"{np.mean(seconds):.2f} ({np.ptp(seconds):.2f})"]
        print(line([name, STARTS[start].title, sampler, cell(tests), f"{target:.1f}", *needed]), flush=True)
        if np.mean(tests) < uniform - LIMIT:
            failures.append(f"{name}, {start}, {sampler}: {np.mean(tests):.2f} (uniform sampling {uniform:.2f})")
    return failures


if __name__ == "__main__":
    main()
