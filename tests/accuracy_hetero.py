"""Accuracy of the example of typed graphs in several starts, against plain torch; not collected by pytest.

    python tests/accuracy_hetero.py DIR [--graphs hgb_dblp] [--starts python servers-1] [--seeds 0 1 2]

DIR (or MPIGRAPH_TEST_DATA) holds npz files with the keys that ``reference_rgcn.py`` lists:

* hgb_dblp: DBLP of the Heterogeneous Graph Benchmark (Lv et al., 2021): authors, papers, terms and venues, of which the
  last have no features. The authors' subjects; RGCN's published micro-F1 is 92.07.
* oewn_hetero: Open English WordNet with a relation for each kind of link, and the lemmas as nodes without features. The
  lexicographer files of synsets; beside it belongs the run of oewn without types by ``accuracy.py``.

Each is cut in two parts and trained by ``examples/rgcn.py`` in each of :data:`STARTS` on minibatches, and by
``reference_rgcn.py`` on the whole graph. A Markdown table of percents, mean and (largest - smallest), goes to stdout,
progress to stderr. The exit status is 1 if a mean is below that of the reference by more than :data:`LIMIT` points, or
below the floor of its graph.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # before torch looks

import numpy as np
import reference_rgcn
import torch
from accuracy import Start, line, output
from accuracy_links import cell, repeat

import mpigraph as mg

STARTS = {
    "python": Start("`python`", 0, 0),
    "servers-0": Start("4 ranks, 0 servers", 4, 0),
    "servers-1": Start("4 ranks, 1 server", 4, 1),
    "two-nodes": Start("2 pretended nodes, 1 server each", 4, 1, ranks_per_node=2),
}
LIMIT = 1.5  # points by which a mean may be below that of the reference
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "rgcn.py"


class Graph(NamedTuple):
    """How one graph is trained: on the whole of it, and by the example."""

    settings: reference_rgcn.Settings
    flags: str
    floor: float = 0.0


GRAPHS = {
    "hgb_dblp": Graph(
        reference_rgcn.Settings(weight_decay=5e-4, epochs=60),
        "--fan_out 10,10 --batch_size 200 --num_epochs 10 --weight_decay 5e-4",
    ),
    "oewn_hetero": Graph(
        reference_rgcn.Settings(epochs=40),
        "--fan_out 5,5 --eval_fan_out 20 --batch_size 1024 --num_epochs 2",
        floor=83.0,  # 3 above oewn without types
    ),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("MPIGRAPH_TEST_DATA")
    parser.add_argument("data", type=Path, metavar="DIR", nargs="?" if default else None, default=default)
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    args = parser.parse_args()
    torch.set_num_threads(1)
    titles = ["graph", "plain torch, whole graph", *(STARTS[start].title for start in args.starts)]
    rows, failures = [], []
    for name in args.graphs:
        results = measure(Path(args.data) / f"{name}.npz", name, args.starts, args.seeds)
        rows.append(line([name, *(cell(found) for found in results.values())]))
        floor = max(GRAPHS[name].floor, np.mean(results["reference"]) - LIMIT)
        low = (start for start in args.starts if np.mean(results[start]) < floor)
        failures += [f"{name}, {start}: {np.mean(results[start]):.2f} < {floor:.2f}" for start in low]
    print(line(titles), "|---" * len(titles) + "|", *rows, sep="\n")
    settings = (f"{name}: {GRAPHS[name].settings}, `examples/rgcn.py {flags(name)}`" for name in args.graphs)
    print(f"\nOMP_NUM_THREADS=1, seeds {args.seeds}, 2 parts by METIS; {'; '.join(settings)}.")
    print("\n".join(failures), file=sys.stderr)
    sys.exit(1 if failures else 0)


def measure(path, name, starts, seeds):
    """Train one graph on the whole of it and in every start; return the percents of each."""
    problem = reference_rgcn.load(path)
    train = partial(reference_rgcn.train, problem, GRAPHS[name].settings)
    results = {"reference": repeat(f"{name}, reference", seeds, train)["test"]}
    with tempfile.TemporaryDirectory() as directory:
        write(problem, name, directory)
        target = problem.target
        del problem, train
        for start in starts:
            what, launch = f"{name}, {start}", partial(run, directory, name, target, STARTS[start])
            results[start] = repeat(what, seeds, launch)["test"]
    return results


def write(problem, name, directory):
    """Cut a graph in two."""
    g = mg.heterograph(problem.edges, problem.nodes)
    for ntype, feat in problem.feat.items():
        g.nodes[ntype].data["feat"] = feat.dense()
    g.nodes[problem.target].data.update({"label": problem.label, **problem.masks})
    mg.distributed.partition_graph(g, name, 2, directory)


def flags(name):
    """The flags of the example that say what the settings say, and those of its own."""
    s = GRAPHS[name].settings
    shared = f"--num_hidden {s.hidden} --norm {s.norm} --feat_drop {s.feat_drop} --dropout {s.dropout} --lr {s.lr}"
    return f"{shared} --sparse_lr {s.sparse_lr} {GRAPHS[name].flags}"


def run(directory, name, target, start, seed):
    """Train in one start; return what the last line says."""
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    launcher = [mpiexec, "-n", str(start.ranks)] if start.ranks else []
    words = f"{flags(name)} --graph_name {name} --part_config {directory}/{name}.json --target {target}"
    words += f" --num_servers {start.num_servers} --seed {seed} --eval_every 1000"
    env = {"MPIGRAPH_RANKS_PER_NODE": str(start.ranks_per_node)} if start.ranks_per_node else {}
    printed = output([*launcher, sys.executable, str(EXAMPLE), *words.split()], env)
    return {"test": float(re.search(r"^test accuracy ([0-9.]+)", printed, re.MULTILINE)[1])}


if __name__ == "__main__":
    main()
