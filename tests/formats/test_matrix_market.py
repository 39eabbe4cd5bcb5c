"""Matrix Market files are what scipy wrote into them, or one error that names the line."""

import bz2
import gzip

import numpy as np
import pytest
from input_checks import check_all, check_parts, rows
from scipy import io, sparse

from mpigraph.errors import GraphDataError
from mpigraph.formats import edge_lists
from mpigraph.formats.readers import read_source

RNG = np.random.default_rng(0)


def entries_of(source):
    """The edges of the one relation, sorted, with their weights."""
    ends = [rows(end) for end in source.edges[0]]
    feats = next(iter(source.edge_feats.values()), {})
    weights = [rows(feats["weight"].values)] if feats else []
    return sorted(zip(*ends, *weights, strict=True))


@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
@pytest.mark.parametrize("field", ["pattern", "integer", "real"])
@pytest.mark.parametrize("block", [40, 1 << 20])
def test_a_square_matrix_is_what_scipy_wrote(tmp_path, monkeypatch, symmetry, field, block):
    monkeypatch.setattr(edge_lists, "_BLOCK_BYTES", block)
    whole = np.triu(RNG.integers(0, 4, (9, 9)), symmetry == "skew-symmetric").astype(float if field == "real" else int)
    matrix = whole if symmetry == "general" else whole + np.triu(whole, 1).T * (-1 if symmetry[1] == "k" else 1)
    path = tmp_path / "m.mtx"
    io.mmwrite(path, sparse.coo_array(matrix), "one\ntwo", field, symmetry=symmetry)
    source = read_source(path)
    check_all(source)
    assert source.num_nodes == (9,) and source.schema.is_homogeneous
    ends = [end.tolist() for end in np.nonzero(matrix)]
    weights = [] if field == "pattern" else [matrix[tuple(ends)].tolist()]
    assert entries_of(source) == sorted(zip(*ends, *weights, strict=True))
    assert source.has_reverse == (symmetry != "general")
    if field != "pattern":
        assert source.edge_feats["_N:_E:_N"]["weight"].dtype == ("int64" if field == "integer" else "float64")


def test_other_matrices_have_two_types(tmp_path):
    (tmp_path / "m.mtx").write_bytes(
        b"%%matrixmarket MATRIX Coordinate Pattern General\r\n%\r\n3 5 2\r\n\r\n3 5\r\n% between\r\n 1\t4 \r\n"
    )
    source = read_source(tmp_path / "m.mtx")
    assert dict(zip(source.schema.ntypes, source.num_nodes, strict=True)) == {"row": 3, "column": 5}
    assert source.schema.relations == (("row", "to", "column"),)
    assert entries_of(source) == [(0, 3), (2, 4)]
    check_parts(source, tmp_path / "parts")


@pytest.mark.parametrize("pack", [gzip, bz2])
def test_packed_files(tmp_path, pack):
    text = b"%%MatrixMarket matrix coordinate pattern symmetric\n2 2 2\n1 1\n2 1\n"
    path = tmp_path / f"m.mtx.{'gz' if pack is gzip else 'bz2'}"
    path.write_bytes(pack.compress(text))
    assert entries_of(read_source(path)) == [(0, 0), (0, 1), (1, 0)]
    path.write_bytes(pack.compress(text)[:-9])
    with pytest.raises(GraphDataError, match=r"m\.mtx"):
        read_source(path)


HEAD = "%%MatrixMarket matrix coordinate real general\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (HEAD, "after the comments must come numbers of rows"),
        ("%%MatrixMarket", "line 1: must be"),
        ("", "line 1: must be"),
        ("3", "line 1: must be"),
        ("% x\n3 3 0\n", "line 1: must be"),
        (HEAD + "3 3\n", "after the comments must come numbers of rows"),
        (HEAD + "3 3 x\n", "after the comments must come numbers of rows"),
        (HEAD + "-3 3 1\n1 1 1\n", "after the comments must come numbers of rows"),
        (HEAD + "3 3 2\n1 1 1\n", "has 1 entries, but its line of sizes says 2"),
        (HEAD + "3 3 0\n1 1 1\n", "has 1 entries, but its line of sizes says 0"),
        (HEAD + "3 3 2\n1 1 1\n4 1 1\n", "line 4: row must be one of 1 to 3"),
        (HEAD + "% x\n3 3 2\n\n1 1 1\n1 0 1\n", "line 6: column must be one of 1 to 3"),
        (HEAD + "3 3 2\n1 1 1\n1 -1 1\n", "line 4: column must be one of 1 to 3"),
        (HEAD + "3 3 2\n1 1 1\n1 1\n", "line 4: must have row .int64., column .int64., weight .float64. .got '1 1'"),
        (HEAD + "3 3 2\n1 1 1\n1 1 1 1\n", "line 4: must have"),
        (HEAD + "3 3 2\n1 x 1\n1 1 1\n", "line 3: must have"),
        (HEAD + "3 3 1\n99999999999999999999 1 1\n", "line 3: must have"),
        (HEAD.replace("general", "symmetric") + "3 3 2\n2 1 1\n1 3 1\n", "line 4: entries .* in both triangles"),
        (HEAD.replace("general", "symmetric") + "3 4 1\n2 1 1\n", "must be square"),
        (HEAD.replace("general", "hermitian") + "3 3 0\n", "must be one of"),
        (HEAD.replace("real", "complex") + "3 3 0\n", "must be one of"),
        (HEAD.replace("coordinate", "array") + "3 3\n", "dense matrix"),
        (HEAD + "3 3 1\n1 1 " + "1" * 2000 + "\n", "line 3: longer than"),
    ],
)
def test_what_is_no_matrix_is_one_error(tmp_path, monkeypatch, text, error):
    monkeypatch.setattr(edge_lists, "_BLOCK_BYTES", 1000)
    (tmp_path / "m.mtx").write_text(text)
    with pytest.raises(GraphDataError, match=rf"m\.mtx.*{error}"):
        read_source(tmp_path / "m.mtx")


@pytest.mark.parametrize(("sizes", "nodes"), [("0 0 0", 0), ("1 1 0", 1), ("1 1 1\n1 1 5", 1)])
def test_the_smallest_graphs(tmp_path, sizes, nodes):
    (tmp_path / "m.mtx").write_text(HEAD + sizes)
    source = read_source(tmp_path / "m.mtx")
    check_all(source)
    assert source.num_nodes == (nodes,) and len(entries_of(source)) == sizes.count("\n")
