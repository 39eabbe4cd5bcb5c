"""Generated graphs are what their recipe says."""

import json

import numpy as np
import pytest

from mpigraph.errors import InvalidArgumentError
from mpigraph.partition import generate
from mpigraph.partition.generate import GRAPH_FILES, Recipe, generate_graph, write_graph

RECIPE = Recipe(num_nodes=2000, num_edges=30000, feat_dim=16, num_classes=6, seed=3)


def test_counts_simple_edges_and_both_directions():
    g = generate_graph(RECIPE)
    key = g["edge_src"].astype(np.int64) * 2000 + g["edge_dst"]
    assert len(key) == 30000 == len(np.unique(key))
    assert (g["edge_src"] != g["edge_dst"]).all()
    assert np.array_equal(np.sort(g["edge_dst"].astype(np.int64) * 2000 + g["edge_src"]), np.sort(key))
    assert g["edge_src"].dtype == np.int32 and g["feat"].dtype == np.float32 and g["label"].dtype == np.int64
    assert g["feat"].shape == (2000, 16) and set(np.unique(g["label"])) == set(range(6))


def test_degrees_follow_a_power_law():
    degrees = np.bincount(generate_graph(RECIPE)["edge_dst"], minlength=2000)
    assert np.median(degrees) < 0.8 * degrees.mean() and degrees.max() > 10 * degrees.mean()


def test_masks_split_all_nodes():
    g = generate_graph(RECIPE)
    assert (g["train_mask"].astype(int) + g["val_mask"] + g["test_mask"] == 1).all()
    assert (g["train_mask"].sum(), g["val_mask"].sum()) == (200, 100)


def test_the_seed_decides_everything():
    first, again, other = (generate_graph(recipe) for recipe in (RECIPE, RECIPE, Recipe(2000, 30000, 16, 6, seed=4)))
    for name in GRAPH_FILES:
        assert np.array_equal(first[name], again[name])
        assert not np.array_equal(first[name], other[name])


def test_chunks_change_nothing(tmp_path, monkeypatch):
    whole = generate_graph(RECIPE)
    monkeypatch.setattr(generate, "_EDGES_PER_CHUNK", 1000)
    write_graph(RECIPE, tmp_path)
    for name in ("label", "train_mask", "feat"):
        assert np.array_equal(np.load(tmp_path / f"{name}.npy"), whole[name])
    ends = [np.load(tmp_path / f"edge_{end}.npy", mmap_mode="r") for end in ("src", "dst")]
    assert np.array_equal(ends[0], whole["edge_src"]) and np.array_equal(ends[1], whole["edge_dst"])
    meta = json.loads((tmp_path / "meta.json").read_text())
    assert meta["num_nodes"] == 2000 and meta["num_edges"] == 30000 and meta["both_directions"]


def test_drawing_fills_one_bar_however_often_it_draws():
    calls = []
    dense = Recipe(num_nodes=300, num_edges=20_000, feat_dim=2, num_classes=2)
    generate._distinct_pairs(dense, lambda *call: calls.append(call))
    assert {stage for stage, _, _ in calls} == {"draw edges"}
    done = [done for _, done, _ in calls]
    assert done[0] == 0 and done == sorted(done) and len(set(done)) == len(done)
    assert [done >= total for _, done, total in calls] == [False] * (len(calls) - 1) + [True]
    assert len({total for _, _, total in calls}) > 1  # it did draw again


def nearest_centroid(rows, g):
    """Share of test nodes whose nearest class mean (over training nodes) is their own."""
    train, test = g["train_mask"], g["test_mask"]
    means = np.stack([rows[train & (g["label"] == c)].mean(axis=0) for c in range(g["label"].max() + 1)])
    scores = rows @ means.T - 0.5 * (means**2).sum(axis=1)
    return (scores.argmax(axis=1) == g["label"])[test].mean()


@pytest.mark.parametrize("num_classes", [8, 16])
def test_neighbours_tell_more_than_features_alone(num_classes):
    g = generate_graph(Recipe(num_nodes=10_000, num_edges=200_000, num_classes=num_classes))
    total = np.zeros_like(g["feat"])
    np.add.at(total, g["edge_dst"], g["feat"][g["edge_src"]])
    mean = total / np.maximum(np.bincount(g["edge_dst"], minlength=10_000), 1)[:, None]
    alone, together = nearest_centroid(g["feat"], g), nearest_centroid(g["feat"] + 4 * mean, g)
    assert 0.3 < alone < 0.75 and together > alone + 0.15


@pytest.mark.parametrize(
    "num_nodes, num_edges, num_classes", [(2, 0, 1), (3, 2, 3), (5, 10, 2), (50, 51, 50), (40, 700, 1)]
)
def test_tiny_graphs(num_nodes, num_edges, num_classes):
    g = generate_graph(Recipe(num_nodes, num_edges, 1, num_classes))
    assert len(g["edge_src"]) == num_edges // 2 * 2
    assert (g["edge_src"] != g["edge_dst"]).all()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"num_nodes": 1}, r"num_nodes must be >= 2 \(got 1\)"),
        ({"num_edges": -1}, "num_edges must be >= 0"),
        ({"seed": -1}, r"seed must be an integer >= 0 \(got -1\)"),
        ({"num_edges": 60}, "num_edges must be <= 45, half of all pairs"),
        ({"num_classes": 11}, "11 classes, 10 nodes"),
        ({"homophily": 1.5}, "homophily must lie in 0 to 1"),
        ({"train_fraction": 0.9, "val_fraction": 0.2}, "must be <= 1"),
    ],
)
def test_impossible_recipes(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Recipe(**{"num_nodes": 10, "num_edges": 20, "num_classes": 2, **arguments})
