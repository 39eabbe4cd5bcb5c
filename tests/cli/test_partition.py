"""The command line: inputs end in the same shards (readers: tests/formats); wrong ones in status 2 and one line."""

import re
import shutil
import tempfile
from dataclasses import replace

import numpy as np
import pytest
from typed_parts import COUNTS, EDGES, typed_source

from mpigraph.cli.main import main
from mpigraph.errors import GraphDataError
from mpigraph.formats.layout import add_reverse_edges
from mpigraph.storage.part_config import PartConfig


def run(*arguments):
    return main(["partition", *map(str, arguments)])


def test_a_scratch_folder_without_space_is_an_error_at_once(tmp_path, capsys, monkeypatch):
    graph = write_typed_npz(tmp_path / "g.npz")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 1 << 10))
    assert run(graph, "--parts", 2, "--method", "multilevel", "-o", tmp_path / "out") == 2
    assert "out lacks space: temporary files of 1 rank(s) needs " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_temporary_files_of_reading_lie_at_out(tmp_path, monkeypatch):
    (tmp_path / "g.csv").write_text("src,dst\n1,5\n5,9\n")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert run(tmp_path / "g.csv", "--parts", 2, "--method", "random", "-o", tmp_path / "new" / "out") == 0


def test_a_csv_file_gives_its_name_and_numbers_or_keeps_ids(tmp_path, capsys):
    (tmp_path / "g.csv").write_text("src,dst\n0,5\n5,9\n9,0\n")
    for inputs, count in ((), 3), (("--nodes", 20, "--overwrite"), 20):
        assert run(tmp_path / "g.csv", *inputs, "--parts", 2, "-o", tmp_path / "out", "--scratch", tmp_path) == 0
        assert f"{count} nodes, 3 directed edges" in capsys.readouterr().err
        assert PartConfig.read(tmp_path / "out" / "g.json").book.num_nodes(0) == count
    assert run(tmp_path / "g.csv", "--nodes", 9, "--parts", 2, "-o", tmp_path / "other") == 2
    assert "g.csv, row 4, column src: edge 2 of ('_N', '_E', '_N') has source 9, but" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["-o", "/proc/nowhere"], "nowhere: cannot write there: "),
        (["--parts", "0"], r"num_parts must be an integer >= 1 \(got 0\)"),
        (["--parts", str(2**31)], "num_parts must be an integer <= 2147483647"),
        (["--method", "spectral"], "'metis', 'multilevel', 'random'.*spectral"),
        (["--seed", str(2**64)], "seed must be an integer <= "),
        (["--name", "a/b"], "graph_name .*'a/b'"),
        (["--scratch", __file__], "no directory that can be written to"),
    ],
)
def test_options_are_checked_before_the_input_is_read(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr("mpigraph.cli.partition.read_source", lambda path: pytest.fail("was read"))
    assert run("x.npz", "--parts", 2, "-o", tmp_path, *arguments) == 2
    assert re.fullmatch(f"mpigraph partition: error: .*{message}.*\n", capsys.readouterr().err)


TYPED = typed_source()
PAPERS = COUNTS["paper"]
OF_PAPERS = {"label": np.arange(PAPERS) % 5 - 1, "train_mask": np.arange(PAPERS) % 3 == 0}


def write_typed_npz(path):
    arrays = {f"{ntype}__num_nodes": count for ntype, count in COUNTS.items()}
    for relation, ends in zip(EDGES, TYPED.edges, strict=True):
        arrays |= {f"{'__'.join(relation)}__{end}": ids for end, ids in zip(("src", "dst"), ends, strict=True)}
    arrays |= {f"paper__{name}": values for name, values in OF_PAPERS.items()}
    np.savez(path, **arrays)
    return path


BALANCE = ("--balance-train", "--balance-edges")


def test_a_typed_input_with_reverses_is_balanced(tmp_path, capsys):
    path = write_typed_npz(tmp_path / "g.npz")
    assert run(path, "--parts", 3, "--add-reverse", *BALANCE, "-o", tmp_path / "out", "--name", "g") == 0
    out, err = capsys.readouterr()
    assert "of 5 types in 14 relations" in err
    assert "largest part / mean, nodes paper class 1: 1.0" in out and "largest part / mean, edges: 1." in out
    book = PartConfig.read(tmp_path / "out" / "g.json").book
    assert {relation: book.num_edges(r) for r, relation in enumerate(book.schema.relations)} == EDGES | {
        (dst, f"rev_{rel}", src): count for (src, rel, dst), count in EDGES.items()
    }


def test_reverse_relations_hold_the_same_edges():
    merged, apart = add_reverse_edges(TYPED), add_reverse_edges(TYPED, own_relations=True)
    cites, rev_cites = ("paper", "cites", "paper"), ("paper", "rev_cites", "paper")
    assert len(merged.schema.relations) == 13 and len(apart.schema.relations) == 14
    assert rev_cites in apart.schema.relations and rev_cites not in merged.schema.relations
    for source in (merged, apart):
        edges = dict(zip(source.schema.relations, source.edges, strict=True))
        for relation, (src, dst) in zip(EDGES, TYPED.edges, strict=True):
            back = relation[2], f"rev_{relation[1]}", relation[0]
            if back in edges:
                assert np.array_equal(edges[relation], (src, dst)) and np.array_equal(edges[back], (dst, src))
                told = [source.edge_feats[":".join(r)]["told"].values for r in (relation, back)]
                assert np.array_equal(told[0], told[1])
            else:
                assert relation == cites and edges[cites][0][:].tolist() == [*src, *dst]
                assert edges[cites][1][:].tolist() == [*dst, *src]
    with pytest.raises(GraphDataError, match=r"there is a relation \('paper', 'rev_reviews', 'author'\) already"):
        add_reverse_edges(replace(apart, has_reverse=False))
    assert add_reverse_edges(apart) is apart  # none are added twice


def x_npz(**arrays):
    return lambda tmp: np.savez(tmp / "x.npz", **arrays) or tmp / "x.npz"


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda t: (t / "x").write_text("text") and t / "x", "not an .npz file"),
        (lambda t: t, "neither processed/.* nor metadata.json .* nor csv or parquet files"),
        (lambda t: (t / "raw").mkdir() or t, "raw/ has neither"),
        (x_npz(edge_src=[0], edge_dst=[1]), "train_mask"),
        (
            x_npz(a__num_nodes=3, a__b__num_nodes=2, a__b__to__a__src=[0], a__b__to__a__dst=[1]),
            r"'a__b__to__a' can be read as \('a', 'b__to', 'a'\) and as \('a__b', 'to', 'a'\): rename",
        ),
        (
            x_npz(a__num_nodes=3, a__to__b__src=[0], a__to__b__dst=[1]),
            "node type 'b' does not exist, there is no b__num_nodes",
        ),
        (x_npz(a__num_nodes=3, a__to__a__src=[0]), "there is no 'a__to__a__dst'"),
        (x_npz(a__num_nodes=3, a__label=[0, 1]), "'label' of 'a' must have 3 rows"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(tmp_path, capsys, make, message):
    more = ["--balance-train"] if message == "train_mask" else []
    assert run(make(tmp_path), "--parts", 2, "-o", tmp_path / "out", *more) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(lines) == 1 and re.search(message, lines[0]), lines
