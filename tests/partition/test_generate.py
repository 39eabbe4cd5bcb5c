"""Generated graphs are what their recipe says."""

import errno
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mpigraph.errors import InvalidArgumentError, StorageError
from mpigraph.partition import generate
from mpigraph.partition.generate import GRAPH_FILES, Recipe, generate_graph, write_graph
from mpigraph.partition.output_folder import NpyFile

RECIPE = Recipe(num_nodes=2000, num_edges=30000, feat_dim=16, num_classes=6, seed=3)
KNOWN = {
    "edge_src": "53d346b8e4007949",
    "edge_dst": "41f205d6b1c0c75a",
    "label": "6713ad3bee9d71f6",
    "train_mask": "e81c5b80a714ca0e",
    "val_mask": "69723250bf3c1758",
    "test_mask": "dcad5d4055720a2e",
}


def test_homophily_is_the_share_of_edges_that_stay_in_a_class():
    g = generate_graph(Recipe(20_000, 200_000, 1, 16, homophily=0.6))
    sizes = np.bincount(g["label"]) / 20_000
    inside = (g["label"][g["edge_src"]] == g["label"][g["edge_dst"]]).mean()
    by_chance = 0.4 * (sizes**2).sum()  # of those that are drawn from all nodes
    assert abs(inside - 0.6 - by_chance) < 0.05


def test_todays_seeds_give_yesterdays_graphs():
    """Numbers that were published come from such graphs; features are not compared, which need the same libm."""
    g = generate_graph(RECIPE)
    assert (g["train_mask"].astype(int) + g["val_mask"] + g["test_mask"] == 1).all() and g["feat"].shape == (2000, 16)
    assert (g["train_mask"].sum(), g["val_mask"].sum()) == (200, 100) and set(g["label"]) == set(range(6))
    hashes = {name: hashlib.sha256(g[name].tobytes()).hexdigest()[:16] for name in GRAPH_FILES if name != "feat"}
    assert hashes == KNOWN


def small_chunks(monkeypatch):
    """Several rounds of draws, several chunks of features for each rank."""
    monkeypatch.setattr(generate, "_EDGES_PER_CHUNK", 1000)
    monkeypatch.setattr(generate, "_ROWS_PER_CHUNK", 128)


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize(
    "recipe",
    [RECIPE, Recipe(300, 20_000, 2, 2), Recipe(2, 0, 1, 1)],  # the second is dense
    ids=lambda recipe: f"{recipe.num_nodes}-{recipe.num_edges}",
)
def test_the_size_of_chunks_does_not_show(monkeypatch, tmp_path: Path, recipe: Recipe):
    whole = generate_graph(recipe)
    small_chunks(monkeypatch)
    calls = []
    found = write_graph(recipe, tmp_path / "files", lambda *call: calls.append(call))
    assert calls and sorted(contents(found)) == sorted([*(f"{name}.npy" for name in GRAPH_FILES), "meta.json"])
    for name, values in whole.items():  # another size of chunks makes other features
        assert name == "feat" or np.array_equal(np.load(found / f"{name}.npy"), values)
    meta = json.loads((found / "meta.json").read_text())
    assert (meta["num_nodes"], meta["num_edges"]) == (recipe.num_nodes, len(whole["edge_src"]))
    assert meta["both_directions"]


def test_what_is_there_stays_until_all_is_written(tmp_path, monkeypatch):
    """The disk is full."""
    before = contents(write_graph(RECIPE, tmp_path))

    def full(*_: object, at: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(NpyFile, "write", full)
    with pytest.raises(StorageError, match="cannot write: No space left on device"):
        write_graph(replace(RECIPE, seed=4), tmp_path, overwrite=True)
    assert contents(tmp_path) == before


def test_another_graph_is_refused(tmp_path: Path) -> None:
    """Before anything is written; the same graph is written again."""
    one = Recipe(num_nodes=100, num_edges=200, feat_dim=2, num_classes=2)
    other = replace(one, seed=1)
    write_graph(one, tmp_path)
    before = contents(tmp_path)
    write_graph(one, tmp_path)
    for _ in ("complete", "without meta.json"):
        with pytest.raises(InvalidArgumentError, match="holds another graph, whose .* --overwrite"):
            write_graph(other, tmp_path)
        assert (tmp_path / "feat.npy").read_bytes() == before["feat.npy"]
        (tmp_path / "meta.json").unlink(missing_ok=True)
    write_graph(other, tmp_path, overwrite=True)
    after = contents(tmp_path)
    assert after.keys() == before.keys() and after["feat.npy"] != before["feat.npy"]


def test_more_ends_than_can_be_told_apart_are_refused(monkeypatch):
    monkeypatch.setattr(generate, "_MAX_STUBS", 10_000)
    with pytest.raises(InvalidArgumentError, match=r"too large: 1\d{4} ends of edges, at most 10000"):
        generate_graph(RECIPE)


@pytest.mark.parametrize(
    "recipe",
    [
        RECIPE,
        Recipe(2, 0, 1, 1),
        Recipe(50, 51, 1, 50),
        Recipe(40, 780, 1, 1),  # half of all pairs, the most there can be
        Recipe(40, 700, 1, 20, homophily=1.0),  # more than the classes hold
    ],
    ids=lambda recipe: f"{recipe.num_nodes}-{recipe.num_edges}",
)
def test_each_pair_is_there_once_and_in_both_directions(recipe: Recipe):
    g = generate_graph(recipe)
    src, dst = g["edge_src"].astype(np.int64), g["edge_dst"]
    assert (src != dst).all()
    key = np.unique(src * recipe.num_nodes + dst)
    assert len(src) == recipe.num_edges // 2 * 2 == len(key)
    assert np.array_equal(np.unique(dst.astype(np.int64) * recipe.num_nodes + src), key)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"num_nodes": 1}, r"num_nodes must be an integer >= 2 \(got 1\)"),
        ({"num_nodes": 2**31}, "num_nodes must be an integer <= 2147483647"),
        ({"num_edges": -1}, "num_edges must be an integer >= 0"),
        ({"num_edges": 60}, "num_edges must be an integer <= 45 .got 60."),
        ({"num_classes": 11}, "num_classes must be an integer <= 10 .got 11."),
        ({"homophily": 1.5}, "homophily must lie in 0 to 1"),
        ({"train_fraction": 0.96}, "train_fraction must lie in 0 to 0.95"),
    ],
)
def test_impossible_recipes(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Recipe(**{"num_nodes": 10, "num_edges": 20, "num_classes": 2, **arguments})
