"""The examples run as their first lines say, in the starts that this machine has."""

import re
from pathlib import Path

import accuracy_links
import numpy as np
import pytest
import torch
from jobs import EXAMPLES, clean_environment, mpiexec, run, run_job, warm_python

import mpigraph as mg
from mpigraph.distgraph.partitioning import partition_graph
from mpigraph.partition.generate import Recipe, generate_graph

STARTS = pytest.mark.parametrize("ranks", [1, 4], ids=["python", "mpiexec"])
TWO_NODES = ["env", "MPIGRAPH_RANKS_PER_NODE=2"]  # pretended, where there are ranks for two
CHECK_RANKS = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import torch
import knowledge_graph as example

example.TRIPLES, example.ENTITIES = 150, 300  # several blocks of each
evaluate = example.evaluate

@torch.no_grad()
def check(g, entities, model, triples, held_out, device):
    src, dst = g.find_edges(torch.arange(g.num_edges()))
    known = torch.cat([torch.stack([src, g.edata["rel"][:], dst], 1), held_out])
    rows, ranks = entities.weight[:], []
    for head, relation, tail in triples.tolist():
        scores = model.module(rows[head : head + 1], torch.tensor([relation]))[0] @ rows.T
        best = scores[tail].clone()
        scores[known[(known[:, 0] == head) & (known[:, 1] == relation), 2]] = -torch.inf
        ranks.append(1 + int((scores > best).sum()))
    expected = (1 / torch.tensor(ranks)).mean()
    return f"{evaluate(g, entities, model, triples, held_out, device)}  expected {expected:.4f}"

example.evaluate = check
example.main()
"""


def numbers(pattern: str, output: str) -> list[float]:
    """The numbers that a pattern finds in what was printed."""
    found = re.search(pattern, output, re.MULTILINE)
    assert found is not None, output
    return [float(number) for number in found.groups()]


@pytest.mark.parametrize("ranks", [1, 3], ids=["python", "mpiexec"])
def test_node_classification_beats_the_mlp(ranks: int) -> None:
    script = [*warm_python(), EXAMPLES / "node_classification.py", "--num_epochs", "12", "--eval_every", "12"]
    output = run(*mpiexec(ranks), *script)
    sage, mlp = numbers(r"test accuracy ([\d.]+), of an MLP .* ([\d.]+)", output)
    assert sage > mlp + 0.10, output
    assert len(re.findall(r"wait [\d.]+ s, compute [\d.]+ s", output)) == 24


def test_what_launch_sets_reaches_the_example(tmp_path: Path) -> None:
    data = generate_graph(Recipe(500, 4000, feat_dim=8, num_classes=4))
    g = mg.graph((data["edge_src"], data["edge_dst"]), num_nodes=500)
    g.ndata.update({name: torch.from_numpy(data[name]) for name in data if not name.startswith("edge")})
    partition_graph(g, "small", 2, tmp_path, part_method="random")
    variables = {"NUM_SERVERS": 2, "PART_CONFIG": tmp_path / "small.json", "LOG_LEVEL": "INFO"}
    start = ["env", *(f"MPIGRAPH_{name}={value}" for name, value in variables.items()), *mpiexec(3)]
    options = "--graph_name small --num_epochs 1 --fan_out 2,2 --num_hidden 8".split()
    done = run_job([*start, *warm_python(), EXAMPLES / "node_classification.py", *options], clean_environment())
    assert done.status == 0 and "1 trainers, 2 hosts, 1 nodes" in done.output, done.output
    assert "test accuracy" in done.output and "MLP" not in done.output  # which is for the generated graph


def test_partition_example(tmp_path: Path) -> None:
    assert "edge" in run(*warm_python(), EXAMPLES / "partition.py", cwd=tmp_path)


@STARTS
def test_link_prediction_ranks_held_out_edges_high(ranks: int) -> None:
    output = run(*mpiexec(ranks), *warm_python(), EXAMPLES / "link_prediction.py", "--num_epochs", "1")
    mrr, hits_at_50 = numbers(r"^MRR ([\d.]+) .* hits@50 ([\d.]+)", output)
    assert mrr > 5 * 0.0075, output  # by chance: a rank from 1 to 1001
    assert hits_at_50 > 5 * 0.05, output


@STARTS
def test_unsupervised_beats_the_features(ranks: int) -> None:
    output = run(*mpiexec(ranks), *warm_python(), EXAMPLES / "unsupervised.py")
    learned, plain = numbers(r"^test accuracy by representations ([\d.]+), by features ([\d.]+)", output)
    assert learned > plain + 0.10, output


@STARTS
def test_node_embedding_beats_the_linear_model(ranks: int) -> None:
    output = run(*mpiexec(ranks), *warm_python(), EXAMPLES / "node_embedding.py")
    sage, linear = numbers(r"^test accuracy ([\d.]+), of a linear model .* ([\d.]+)", output)
    assert sage > linear + 0.30, output


@pytest.mark.parametrize(("ranks", "model"), [(1, "ComplEx"), (4, "DistMult")], ids=["python", "mpiexec"])
def test_knowledge_graph_finds_held_out_triples(ranks: int, model: str) -> None:
    flags = f"--model {model} --num_epochs 2 --num_hidden 64".split()
    output = run(*mpiexec(ranks), *warm_python(), EXAMPLES / "knowledge_graph.py", *flags)
    (mrr,) = numbers(r"^test MRR ([\d.]+)", output)
    assert mrr > 0.4, output  # 0.007 by chance


@STARTS
def test_rgcn_learns_the_subject_of_authors_from_their_papers(ranks: int) -> None:
    flags = "--num_epochs 6 --eval_every 6 --num_hidden 32 --num_bases 3".split()
    output = run(*TWO_NODES, *mpiexec(ranks), *warm_python(), EXAMPLES / "rgcn.py", *flags)
    (accuracy,) = numbers(r"^test accuracy ([\d.]+)", output)
    assert accuracy > 0.7, output  # 0.125 by chance


@STARTS
def test_the_ranks_of_triples_are_those_of_a_plain_loop(tmp_path: Path, ranks: int) -> None:
    script, flags = tmp_path / "check.py", "--num_epochs 1 --num_hidden 16 --eval_every 2"
    script.write_text(CHECK_RANKS)
    output = run(*TWO_NODES, *mpiexec(ranks), *warm_python(), script, EXAMPLES, *flags.split())
    found, expected = numbers(r"^test MRR ([\d.]+) .* expected ([\d.]+)", output)
    assert 0.01 < expected < 1 and found == pytest.approx(expected, abs=1e-3), output


@STARTS
def test_factorisation_recommends_what_the_others_of_a_group_have(tmp_path: Path, ranks: int) -> None:
    pairs = [[(20 * g + u, 20 * g + (u + i) % 20) for g in range(5) for u in range(20)] for i in range(20)]
    train, test = (np.array(sum(some, [])).T for some in (pairs[:14], pairs[14:17]))  # 3 items are left out
    keys = {"user__likes__item__src": train[0], "user__likes__item__dst": train[1], "user__num_nodes": 100}
    keys |= {"test__user__likes__item__src": test[0], "test__user__likes__item__dst": test[1], "item__num_nodes": 100}
    np.savez(tmp_path / "groups.npz", **keys)
    accuracy_links.write_interactions(tmp_path / "groups.npz", tmp_path)
    flags = f"--graph_name graph --part_config {tmp_path}/graph.json --held_out {tmp_path}/held_out.npz --fan_out none "
    flags += (
        "--loss softmax --negatives JointUniform --num_negatives 64 --num_hidden 16 --batch_size 300 --num_epochs 20"
    )
    script = [*warm_python(), Path(accuracy_links.__file__).with_name("recall_links.py"), "6", *flags.split()]
    (recall,) = numbers(r"^recall@6 ([\d.]+)", run(*TWO_NODES, *mpiexec(ranks), *script))
    assert recall > 0.9  # the 6 are what is left of the group; by chance 6 / 86


@STARTS
def test_a_model_of_pyg_beats_the_mlp(ranks: int) -> None:
    flags = "--num_epochs 4 --eval_every 4 --fan_out 5,5 --num_hidden 32".split()
    output = run(*TWO_NODES, *mpiexec(ranks), *warm_python(), EXAMPLES / "hgt_pyg.py", *flags)
    hgt, mlp = numbers(r"^test accuracy ([\d.]+), of an MLP .* ([\d.]+)", output)
    assert hgt > mlp + 0.10, output
