"""Accuracy of the examples of links and embeddings in several starts, against plain torch; not collected by pytest.

    python tests/accuracy/accuracy_links.py DIR [--graphs fb15k237] [--starts python servers-1] [--seeds 0 1 2]

DIR (or MPIGRAPH_TEST_DATA) holds npz files with the keys that ``reference_links.py`` lists:

* gowalla: the check-ins of LightGCN's repository with its split. ``examples/link_prediction.py`` factorises them, users
  and items being nodes of one graph with edges both ways, and ranks for each user all items without an edge.
* fb15k237: the triples of FB15k-237 with their split. ``examples/knowledge_graph.py``; its filtered MRR.
* cora: Planetoid's, without the features. ``examples/node_embedding.py``, beside a linear model on the embeddings.

Each is cut in two parts and trained in each of :data:`STARTS`, and by ``reference_links.py``, with equal settings and
seeds. A Markdown table of percents, mean and (largest - smallest), goes to stdout, progress to stderr. The exit status
is 1 if the mean of a graph's first measure is below that of the reference by more than the limit, or below its floor;
for cora the floor is the linear model.
"""

import os
import re
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # before torch looks

import numpy as np
import reference_links
import reference_sage
import torch
from accuracy import Start, arguments, cell, launched, repeat, report

import mpigraph as mg
from mpigraph.distgraph.partitioning import partition_graph

STARTS = {
    "python": Start("`python`", 0, 0),
    "servers-1": Start("4 ranks, 1 server", 4, 1),
    "two-nodes": Start("2 simulated nodes, 1 server each", 4, 1, ranks_per_node=2),
}
ROOT = Path(__file__).resolve().parents[2]


class Graph(NamedTuple):
    """Training of one graph, and its measures."""

    measures: dict[str, str]  # what the reference returns -> how the script prints it
    write: Callable[[Path, Path], None]  # (npz file, directory): the partitioned graph, and what is held out
    load: Callable[[Path], object]
    train: Callable[..., dict[str, float]]
    settings: reference_links.Settings
    script: str
    flags: str  # besides those of the settings
    limit: float  # points by which the mean of the first measure may be below that of the reference
    floor: float = 0.0


def main():
    args = arguments(__doc__, GRAPHS, STARTS, ["metis"])
    rows, failures = [], []
    for name in args.graphs:
        results = measure(args.data / f"{name}.npz", name, args.starts, args.seeds)
        for what in GRAPHS[name].measures:
            rows.append([f"{name}, {what}", *(cell(runs[what]) for runs in results.values())])
        failures += too_low(name, results)
    settings = "; ".join(f"{name}: `{GRAPHS[name].script} {flags(GRAPHS[name])}`" for name in args.graphs)
    report([STARTS[start] for start in args.starts], rows, f"seeds {args.seeds}; {settings}", failures, "metis")


def too_low(name, results):
    """Lines about the starts whose first measure is too low."""
    graph = GRAPHS[name]
    first, lines = next(iter(graph.measures)), []
    for start, runs in results.items():
        floors = [graph.floor, np.mean(results["reference"][first]) - graph.limit]
        floors += [np.mean(runs[what]) for what in graph.measures if what == "linear model"]
        if np.mean(runs[first]) < max(floors):
            lines.append(f"{name}, {start}: {first} {np.mean(runs[first]):.2f} < {max(floors):.2f}")
    return lines


def measure(path, name, starts, seeds):
    """Train one graph by the reference and in every start; return the percents of each by measure."""
    graph = GRAPHS[name]
    problem = graph.load(path)
    results = {"reference": repeat(f"{name}, reference", seeds, partial(graph.train, problem, graph.settings))}
    with tempfile.TemporaryDirectory() as directory:
        graph.write(path, Path(directory))
        for start in starts:
            results[start] = repeat(f"{name}, {start}", seeds, partial(run, directory, graph, STARTS[start]))
    return results


def flags(graph):
    """The flags of the example that say what the reference's settings say."""
    s = graph.settings
    return (
        f"--num_hidden {s.dim} --sparse_lr {s.lr} --lr {s.dense_lr} --batch_size {s.batch_size} "
        f"--num_epochs {s.epochs} --graph_name graph --part_config {{DIR}}/graph.json {graph.flags}"
    )


def run(directory, graph, start, seed):
    """Train in one start; return what the last line says."""
    words = f"{flags(graph)} --seed {seed}".format(DIR=directory)
    last = launched(start, ROOT / graph.script, words).splitlines()[-1]
    return {what: float(re.search(f"{printed} ([0-9.]+)", last)[1]) for what, printed in graph.measures.items()}


def partition(g, directory):
    """Partition a graph in two; return the new id of each node."""
    orig_nids, _ = partition_graph(g, "graph", 2, directory, return_mapping=True)
    return torch.argsort(orig_nids)


def write_interactions(path, directory):
    problem = reference_links.load_interactions(path)
    user, item = problem.train.T
    g = mg.graph((torch.cat([user, item]), torch.cat([item, user])), num_nodes=problem.num_nodes)
    g.edata["train_mask"] = torch.arange(g.num_edges()) < len(user)  # from users to items
    g.ndata["candidate"] = torch.arange(problem.num_nodes) >= problem.num_users
    src, dst = partition(g, directory)[problem.test].T.numpy()
    np.savez(directory / "held_out.npz", src=src, dst=dst)


def write_triples(path, directory):
    problem = reference_links.load_triples(path)
    src, rel, dst = reference_links.both_ways(problem, problem.train).T
    g = mg.graph((src, dst), num_nodes=problem.num_entities)
    g.edata["rel"] = rel
    new, arrays = partition(g, directory), {"num_relations": problem.num_relations}
    for part, triples in (("valid", problem.valid), ("test", problem.test)):
        src, rel, dst = triples.T
        arrays |= {f"{part}_src": new[src], f"{part}_rel": rel, f"{part}_dst": new[dst]}
    np.savez(directory / "held_out.npz", **arrays)


def write_nodes(path, directory):
    problem = reference_sage.load(path, 0)
    num = len(problem.label)
    dst = np.repeat(np.arange(num), np.diff(problem.indptr))
    g = mg.graph((problem.indices, dst), num_nodes=num)
    g.ndata["label"] = problem.label
    with np.load(path) as file:
        g.ndata.update({f"{part}_mask": torch.from_numpy(file[f"{part}_mask"]) for part in ("train", "val", "test")})
    partition(g, directory)


GRAPHS = {
    "gowalla": Graph(
        {"recall@20": "^recall@20"},
        write_interactions,
        reference_links.load_interactions,
        reference_links.train_interactions,
        reference_links.GOWALLA,
        "tests/accuracy/recall_links.py 20",
        "--fan_out none --loss softmax --negatives JointUniform --num_negatives "
        f"{reference_links.GOWALLA.num_negatives} --held_out {{DIR}}/held_out.npz",
        limit=0.2,
    ),
    "fb15k237": Graph(
        {"filtered MRR": "^test MRR", "hits@10": "hits@10"},
        write_triples,
        reference_links.load_triples,
        reference_links.train_triples,
        reference_links.FB15K237,
        "examples/knowledge_graph.py",
        f"--num_negatives {reference_links.FB15K237.num_negatives} --triples {{DIR}}/held_out.npz",
        limit=0.5,
        floor=24.0,
    ),
    "cora": Graph(
        {"test accuracy": "^test accuracy", "linear model": "of a linear model on the same embeddings"},
        write_nodes,
        lambda path: reference_sage.load(path, 0),
        reference_links.train_nodes,
        reference_links.CORA,
        "examples/node_embedding.py",
        f"--fan_out {','.join(map(str, reference_links.CORA.fanouts))}",
        limit=3.0,  # seeds differ by more than that
    ),
}

if __name__ == "__main__":
    main()
