"""Accuracy of the example of typed graphs in several starts, against plain torch; not collected by pytest.

    python tests/accuracy/accuracy_hetero.py DIR [--graphs hgb_dblp] [--starts python servers-1] [--seeds 0 1 2]

DIR (or MPIGRAPH_TEST_DATA) holds npz files with the keys that ``reference_rgcn.py`` lists:

* hgb_dblp: DBLP of the Heterogeneous Graph Benchmark (Lv et al., 2021): authors, papers, terms and venues;
  venues have no features. The authors' subjects, beside ``reference_rgcn.py`` on the whole graph: a start may be 1.5
  points below it. The published micro-F1 of RGCN is 92.07.
* oewn_hetero: Open English WordNet with a relation for each kind of link and its reverse, and the lemmas as nodes
  without features. The lexicographer files of synsets, beside ``reference_sage.py`` on oewn.npz, the same synsets with
  links of one kind, with as many layers: the types must be worth 3 points.

Each is cut in two parts and trained by ``examples/rgcn.py`` in each of :data:`STARTS`. A Markdown table of percents,
mean and (largest - smallest), goes to stdout, progress to stderr. The exit status is 1 if a mean is too low, or if the
means of two starts are more than :data:`SAME` apart.
"""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # before torch looks

import accuracy
import numpy as np
import reference_rgcn
import reference_sage
from accuracy import Start, accuracy_in, arguments, cell, launched, repeat, report

import mpigraph as mg

STARTS = {
    "python": Start("`python`", 0, 0),
    "two-trainers": Start("2 ranks, 0 servers", 2, 0),
    "two-ranks": Start("2 ranks, 1 server", 2, 1),
    "servers-0": Start("4 ranks, 0 servers", 4, 0),
    "servers-1": Start("4 ranks, 1 server", 4, 1),
    "two-nodes": Start("2 simulated nodes, 1 server each", 4, 1, ranks_per_node=2),
}
SAME = 1.0  # points
NORM = f"--norm {accuracy.NORM}"
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "rgcn.py"


class Graph(NamedTuple):
    """Training of one graph, and the least accuracy."""

    reference: Callable[[Path, int], float]  # (npz file, seed): the accuracy of plain torch
    margin: float  # points that the mean of a start must be above that of the reference
    flags: str


def whole_graph(path, seed):
    return reference_rgcn.train(reference_rgcn.load(path), DBLP, seed)["test"]


def without_types(path, seed):
    problem = reference_sage.load(path.with_name("oewn.npz"), accuracy.NORM)
    return reference_sage.train(problem, accuracy.GRAPHS["oewn"].settings, seed)


DBLP = reference_rgcn.Settings(weight_decay=5e-4, epochs=60)
GRAPHS = {
    "hgb_dblp": Graph(whole_graph, -1.5, "--fan_out 10,10 --batch_size 200 --num_epochs 10 --weight_decay 5e-4"),
    "oewn_hetero": Graph(without_types, 3.0, "--fan_out 5,5 --eval_fan_out 10 --batch_size 1024 --num_epochs 1"),
}


def main():
    args = arguments(__doc__, GRAPHS, STARTS)
    rows, failures = [], []
    for name in args.graphs:
        results = measure(args.data / f"{name}.npz", name, args.starts, args.seeds, args.method)
        rows.append([name, *map(cell, results.values())])
        floor = np.mean(results["reference"]) + GRAPHS[name].margin
        means = {start: np.mean(results[start]) for start in args.starts}
        failures += [f"{name}, {start}: {mean:.2f} < {floor:.2f}" for start, mean in means.items() if mean < floor]
        apart = np.ptp(list(means.values()))
        failures += [f"{name}: the starts are {apart:.2f} points apart"] if apart > SAME else []
    settings = "; ".join(f"{name}: `examples/rgcn.py {NORM} {GRAPHS[name].flags}`" for name in args.graphs)
    report([STARTS[start] for start in args.starts], rows, f"seeds {args.seeds}; {settings}", failures, args.method)


def measure(path, name, starts, seeds, method):
    """Train one graph by plain torch and in every start; return the percents of each."""
    plain = partial(GRAPHS[name].reference, path)
    results = {"reference": repeat(f"{name}, reference", seeds, lambda seed: {"test": plain(seed)})["test"]}
    with tempfile.TemporaryDirectory() as directory:
        target = write(reference_rgcn.load(path), name, directory, method)
        for start in starts:
            launch = partial(run, directory, name, target, STARTS[start])
            results[start] = repeat(f"{name}, {start}", seeds, launch)["test"]
    return results


def write(problem, name, directory, method):
    """Partition a graph in two; return the type of the labelled nodes."""
    g = mg.heterograph(problem.edges, problem.nodes)
    for ntype, feat in problem.feat.items():
        g.nodes[ntype].data["feat"] = feat.dense()
    g.nodes[problem.target].data.update({"label": problem.label, **problem.masks})
    mg.distributed.partition_graph(g, name, 2, directory, part_method=method)
    return problem.target


def run(directory, name, target, start, seed):
    """Train in one start; return what the last line says."""
    words = f"{NORM} {GRAPHS[name].flags} --graph_name {name} --part_config {directory}/{name}.json --target {target}"
    return {"test": accuracy_in(launched(start, EXAMPLE, f"{words} --seed {seed} --eval_every 1000"))}


if __name__ == "__main__":
    main()
