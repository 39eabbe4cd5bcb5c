"""Predictions in files: by the ids of the input and in its order, the same bytes on every layout; scores of pairs."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jobs import load_example
from layouts import SharedJob, on_all
from oracle import partitioned

import mpigraph as mg
import mpigraph.distributed as dist
from mpigraph.errors import (
    CollectiveError,
    FieldNameError,
    InvalidArgumentError,
    OutOfRangeError,
    StorageError,
    TensorMismatchError,
)
from mpigraph.formats.layout import TableOptions
from mpigraph.formats.readers import read_source
from mpigraph.inference import write_predictions

COUNT = 23
LABELS = ["b,c", "a", "ü"]
NAMES = sorted(LABELS)
IDS = [f"p{7 * k % COUNT}{'ö,' * (k % 2)}" for k in range(COUNT)]
CLASSES = [k // 2 % 3 for k in range(COUNT)]


def of_tables(directory: Path) -> str:
    """Users with ids of text and a label of names, items with numbers as ids; in three parts, dealt out at random."""
    tables = directory / "in"
    tables.mkdir()
    users = [f'"{name}","{LABELS[k % 3]}"' for k, name in enumerate(IDS)]
    (tables / "nodes_user.csv").write_text("\n".join(["id,label", *users]))
    (tables / "nodes_item.csv").write_text("\n".join(["id", *(str(90 - k) for k in range(9))]))
    edges = [f'"{name}",{90 - k % 9}' for k, name in enumerate(IDS)]
    (tables / "edges_user__buys__item.csv").write_text("\n".join(["src,dst", *edges]))
    source = read_source(tables, tables=TableOptions(categories=("label",)))
    return partitioned(source, "shop", 3, directory / "out", "random", seed=2)


def scores_of(g: dist.DistGraph, ntype: str) -> dist.DistTensor:
    """Scores by the row of the input, whose largest is that of ``CLASSES``; each trainer writes its share."""
    count = g.num_nodes(ntype)
    policy = g.get_node_partition_policy(ntype)
    rows = dist.DistTensor((count, 3), torch.float32, part_policy=policy)
    for first, ids in rows.in_original_order():
        originals = torch.arange(first, first + len(ids))
        rows[ids] = torch.eye(3)[originals // 2 % 3] * 0.5 + originals[:, None] * 0.1
    g.barrier()
    return rows


def test_all_nodes_by_the_ids_of_the_input(job: SharedJob) -> None:
    g = job.open(job.write(of_tables))
    folder = Path(job.path).parent / "predictions"
    assert write_predictions(folder, g, scores_of(g, "user")) == folder
    expected = (np.eye(3)[CLASSES] * 0.5 + np.arange(COUNT)[:, None] * 0.1).astype(np.float32)
    found = {name: np.load(folder / f"{name}.npy") for name in ("ids", "classes", "scores", "names")}
    assert found["ids"].tolist() == IDS and found["names"].tolist() == NAMES
    assert found["classes"].tolist() == CLASSES and np.allclose(found["scores"], expected)
    quoted = [f'"{name}"' if "," in name else name for name in IDS]
    names = [f'"{NAMES[k]}"' if "," in NAMES[k] else NAMES[k] for k in CLASSES]
    best = map(str, found["scores"].max(1))
    lines = map(",".join, zip(quoted, map(str, CLASSES), names, best, strict=True))
    assert (folder / "predictions.csv").read_text().splitlines() == ["id,class,name,score", *lines]
    g.barrier()  # the first trainer removes its temporary folder
    arrays = [f"{name}.npy" for name in found]
    assert sorted(path.name for path in folder.iterdir()) == sorted(["README", "predictions.csv", *arrays])
    about, _, *files = (folder / "README").read_text().splitlines()
    assert about == f"Predictions for {COUNT} nodes of type 'user' of the graph 'shop', in the order of the input."
    assert [line.partition(": ")[0] for line in files[:5]] == [*arrays, "predictions.csv"] and "numpy" in files[-1]
    g.barrier()


def test_some_nodes_replace_what_was_written(job: SharedJob) -> None:
    """Rows of each trainer's own nodes, in any distribution; classes and values."""
    g = job.open(job.write(of_tables))
    folder = Path(job.path).parent / "some"
    write_predictions(folder, g, scores_of(g, "user"))
    g.barrier()
    own = torch.arange(g.num_nodes("item"))[job.rank :: job.trainers.size].flip(0)
    ids = g.nodes["item"].data["id"][own]  # 90, 89, ...
    cases: list[tuple[torch.Tensor, dict[str, Any], str, list[str]]] = [
        (90 - ids, {"names": list("abcdefghi")}, "id,class,name", [f"{90 - k},{k},{'abcdefghi'[k]}" for k in range(9)]),
        ((ids / 4)[:, None].double(), {}, "id,value", [f"{90 - k},{(90 - k) / 4}" for k in range(9)]),
    ]
    for rows, options, head, lines in cases:
        write_predictions(folder, g, rows, own, ntype="item", **options)
        assert (folder / "predictions.csv").read_text().splitlines() == [head, *lines]
        assert not (folder / "scores.npy").exists() and "score" not in (readme := (folder / "README").read_text())
        assert ("class" in readme) == ("class" in head)
        g.barrier()
    few = own[(ids % 2 == 0)]
    write_predictions(folder, g, scores_of(g, "item"), few)
    assert np.load(folder / "ids.npy").tolist() == [90, 88, 86, 84, 82]
    write_predictions(folder, g, scores_of(g, "item"), few[:0])
    assert (folder / "predictions.csv").read_text() == "id,class,score\n"
    g.barrier()


def test_what_cannot_be_written_is_an_error_on_every_trainer(job: SharedJob) -> None:
    g = job.open(job.write(of_tables))
    folder = Path(job.path).parent / "wrong"
    scores = scores_of(g, "user")
    cube = dist.DistTensor((COUNT, 2, 2), torch.float32, part_policy=scores.part_policy)
    (folder.parent / "file").touch()
    g.barrier()
    cases: list[tuple[type[mg.MPIGraphError], str, Any]] = [
        (InvalidArgumentError, "rows must be a DistTensor, or", (folder, g, torch.zeros(COUNT))),
        (InvalidArgumentError, "rows must be a DistTensor, or", (folder, g, [1, 2])),
        (InvalidArgumentError, r"rows must be classes \[n\] or scores", (folder, g, cube)),
        (TensorMismatchError, "has no rows of nodes of graph 'shop'", (folder, g, edge_rows(g))),
        (StorageError, "file", (folder.parent / "file", g, scores)),
    ]
    for error, text, arguments in cases:
        with pytest.raises(error, match=text):
            write_predictions(*arguments)
    with pytest.raises(FieldNameError, match="topic"):
        write_predictions(folder, g, scores, label="topic")
    with pytest.raises(InvalidArgumentError, match="class 2 has no name: there are 2 names"):
        write_predictions(folder, g, scores, names=["x", "y"])
    g.barrier()  # the first trainer removes what was begun
    assert not folder.exists() or not list(folder.iterdir())
    g.barrier()


def edge_rows(g: dist.DistGraph) -> dist.DistTensor:
    return dist.DistTensor((g.num_edges(),), torch.int64, part_policy=g.get_edge_partition_policy())


def test_fields_that_csv_must_quote_and_folders_of_others(job: SharedJob, tmp_path: Path) -> None:
    g = job.open(job.write(of_tables))
    folder = Path(job.one_has(lambda: str(tmp_path))) / "quoted"
    names = ['say "a"', "b,c", "d\ne"]
    write_predictions(folder, g, scores_of(g, "user"), names=names)
    with (folder / "predictions.csv").open(newline="", encoding="utf-8") as text:
        table = list(csv.reader(text))
    assert len(table) == 1 + COUNT and [row[2] for row in table[1:]] == [names[k] for k in CLASSES]
    g.barrier()
    if g.rank() == 0:
        (folder / "predictions.csv").unlink()
    g.barrier()
    with pytest.raises(InvalidArgumentError, match="has files that are no predictions, such as ids.npy"):
        write_predictions(folder, g, scores_of(g, "user"), names=names)
    if len(job.trainers.allgather(0)) > 1:
        with pytest.raises(CollectiveError, match="names"):
            write_predictions(folder, g, scores_of(g, "user"), names=names[:: 1 if g.rank() == 0 else -1])
    with pytest.raises(OutOfRangeError):
        write_predictions(folder, g, torch.zeros(1, 3), [0 if g.rank() else 10**6], ntype="user")


@pytest.mark.slow
def test_pairs_and_best_equal_the_dense_matrix(job: SharedJob, g: dist.DistGraph) -> None:
    """Of the example: against all products at once."""
    example = load_example("pairs")
    n = g.num_nodes()
    x = dist.DistTensor((n, 4), torch.float32, part_policy=g.get_node_partition_policy())
    if g.rank() == 0:
        x[:] = torch.randint(-2, 3, (n, 4), generator=torch.Generator().manual_seed(1))  # many equal products
    g.barrier()
    dense = x[:] @ x[:].T
    src = torch.arange(g.rank(), n, 3)
    for k in (0, 1, 5, n + 3):
        wanted = torch.sort(dense[src], dim=1, descending=True, stable=True)
        for step in (1, 7, 1000):
            scores, ids = example.top_k(x, src, k, step)
            on_all(job.trainers, torch.equal(scores, wanted[0][:, :k]) and torch.equal(ids, wanted[1][:, :k]))
    dst = src.flip(0)
    on_all(job.trainers, torch.equal(example.scores(x, src, dst), dense[src, dst]))
    g.barrier()
