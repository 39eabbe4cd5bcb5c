"""Parts made elsewhere: every format gives the parts that it says; what is wrong is one error with file and row."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typed_parts import COUNTS, typed_source

from mpigraph.cli.main import main
from mpigraph.errors import GraphDataError
from mpigraph.formats.readers import read_assignment
from mpigraph.formats.shards import read_partition
from mpigraph.metadata.schema import Schema

RNG = np.random.default_rng(1)
PARTS = {ntype: RNG.integers(0, 4, count).astype(np.int32) for ntype, count in COUNTS.items()}
WHOLE = np.concatenate(list(PARTS.values()))
TYPED = typed_source().schema
SIZES = tuple(COUNTS.values())
PLAIN = Schema.homogeneous()


def write_folder(path: Path) -> Path:
    """As DGL's ``random_partition.py``: a text file for each type, and one with JSON; one type has an array instead."""
    path.mkdir()
    for ntype, parts in PARTS.items():
        if len(parts):
            np.savetxt(path / f"{ntype}.txt", parts, "%d")
    (path / "paper.txt").unlink()
    np.save(path / "paper.npy", PARTS["paper"].astype(np.uint8))
    (path / "partition_meta.json").write_text('{"num_parts": 4}')
    return path


def write_npy(path: Path) -> Path:
    np.save(path / "all.npy", WHOLE)
    return path / "all.npy"


def test_of_a_graph_without_types(tmp_path):
    parts = RNG.integers(0, 3, 50)
    np.savetxt(tmp_path / "graph.part.3", parts, "%d")  # METIS and ParMETIS
    (tmp_path / "of_types").mkdir()
    np.savetxt(tmp_path / "of_types" / "_N.txt", parts, "%d")
    for name in ("graph.part.3", "of_types"):
        assert np.array_equal(read_assignment(tmp_path / name, PLAIN, (50,)), parts)
    (tmp_path / "empty.txt").write_text("")
    assert len(read_assignment(tmp_path / "empty.txt", PLAIN, (0,))) == 0


@pytest.mark.parametrize(
    "text, message",
    [
        ("0\n1\n2\n", "a.txt, row 2: there is no part 2 among 2"),
        ("0\n-1\n1\n", "a.txt, row 1: there is no part -1 among 2"),
        ("0\n1\n", "a.txt has parts of 2 nodes, but there are 3"),
        ("0\n0.5\n1\n", "a.txt: cannot be read: could not convert string"),
        ("", "a.txt has parts of 0 nodes, but there are 3"),
        ("0 1\n1 1\n2 0\n", r"a.txt must hold one integer for each node \(got int64\[3, 2\]\)"),
    ],
)
def test_wrong_text(tmp_path, text, message):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(GraphDataError, match=message):
        read_assignment(tmp_path / "a.txt", PLAIN, (3,), 2)


@pytest.mark.parametrize(
    "spoil, message",
    [
        (
            lambda p: (p / "reader.txt").unlink(),
            "has no parts of the 40 nodes of type 'reader': reader.txt or reader.npy",
        ),
        (lambda p: np.save(p / "paper.npy", np.zeros(90)), "paper.npy must hold one integer for each node .*float64"),
    ],
)
def test_wrong_files_of_types(tmp_path, spoil: Callable[[Path], object], message):
    spoil(write_folder(tmp_path / "in"))
    with pytest.raises(GraphDataError, match=message) as error:
        read_assignment(tmp_path / "in", TYPED, SIZES, 4)
    assert str(tmp_path) in str(error.value)


def write_graph(path: Path) -> Path:
    ends = {}
    for (src, rel, dst), (of_src, of_dst) in zip(TYPED.relations, typed_source().edges, strict=True):
        ends |= {f"{src}__{rel}__{dst}__src": of_src, f"{src}__{rel}__{dst}__dst": of_dst}
    np.savez(path, **ends, **{f"{ntype}__num_nodes": count for ntype, count in COUNTS.items()})
    return path


def test_partition_takes_the_parts_and_their_number(tmp_path, capsys):
    graph = write_graph(tmp_path / "g.npz")
    for given in (write_folder(tmp_path / "of_types"), write_npy(tmp_path)):
        assert (
            main(["partition", str(graph), "--assignment", str(given), "-o", str(tmp_path / f"{given.name}.out")]) == 0
        )
        assert "4 part(s) by given" in capsys.readouterr().out
        found = read_partition(tmp_path / f"{given.name}.out" / "g.json")
        begin = 0
        for t, ntype in enumerate(found.schema.ntypes):
            ids = np.asarray(found.node_ids[t][:])
            assert np.array_equal(found.parts.of_nodes[begin : begin + len(ids)], PARTS[ntype][ids])
            begin += len(ids)


def test_parts_in_the_graphs_folder_are_not_left_out(tmp_path, capsys):
    graph = tmp_path / "g"
    (graph / "parts").mkdir(parents=True)
    for name in ("edge_src", "edge_dst"):
        np.save(graph / f"{name}.npy", np.arange(10))
    for name in ("parts/_N.txt", "all.txt"):
        np.savetxt(graph / name, np.arange(10) % 2, fmt="%d")
    for given, other in (("parts", "all.txt"), ("all.txt", "parts/ (1 file)")):
        assert main(["partition", str(graph), "--assignment", str(graph / given), "-o", str(tmp_path / given)]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == f"left out of {graph}: {other}"


def test_a_file_of_parts_beside_the_graph_stays(tmp_path):
    np.savez(tmp_path / "g.npz", edge_src=np.arange(10), edge_dst=np.arange(10)[::-1])
    given = tmp_path / "out" / "g.assignment"  # a run of its own keeps parts there in a file with nearly this name
    given.parent.mkdir()
    np.savetxt(given, np.arange(10) % 2, fmt="%d")
    for _ in range(2):
        words = ["--assignment", str(given), "-o", str(given.parent), "--overwrite"]
        assert main(["partition", str(tmp_path / "g.npz"), *words]) == 0 and given.exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--parts", "3"], r"author.txt, row \d+: there is no part 3 among 3"),
        (["--method", "random"], "give --method or --assignment, not both"),
    ],
)
def test_options_that_contradict_the_parts(tmp_path, capsys, arguments, message):
    given = ["--assignment", str(write_folder(tmp_path / "in")), "-o", str(tmp_path / "out")]
    assert main(["partition", str(write_graph(tmp_path / "g.npz")), *given, *arguments]) == 2
    assert re.search(f"mpigraph partition: error: .*{message}", capsys.readouterr().err)
