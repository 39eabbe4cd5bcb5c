"""METIS's text format: every kind of weights, comments and empty lines; what is wrong is one error with its line."""

import numpy as np
import pytest

from mpigraph.errors import GraphDataError
from mpigraph.formats import metis_files
from mpigraph.formats.readers import read_source

NEIGHBOURS = [[2, 5], [1], [], [5], [1, 4]]  # numbered from 1
WANTED = [(0, 1), (0, 4), (1, 0), (3, 4), (4, 0), (4, 3)]


def weight(some, other):
    return 10 * min(some, other) + max(some, other)


@pytest.mark.parametrize("fmt", ["", "001", "010", "100", "011 2", "111 3", "110"])
@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_every_kind_of_weights(tmp_path, monkeypatch, fmt, chunk):
    monkeypatch.setattr(metis_files, "EDGES_PER_CHUNK", chunk)
    sizes, of_nodes, of_edges = (digit == "1" for digit in (fmt or "000")[:3])
    number = int(fmt[4:] or 1) * of_nodes
    lines = [f"5 3 {fmt}"]
    for node, others in enumerate(NEIGHBOURS):
        values = [7 + node] * sizes + [100 * node + i for i in range(number)]
        for other in others:
            values += [other, weight(node, other - 1)] if of_edges else [other]
        lines += ["% a comment", " ".join(map(str, values))]
    (tmp_path / "g.graph").write_text("\n".join([*lines, "", ""]))
    source = read_source(tmp_path / "g.graph")
    assert source.num_nodes == (5,)
    edges = np.stack(source.edges[0], 1)
    assert np.array_equal(edges, WANTED)
    nodes, feats = source.node_feats["_N"], source.edge_feats["_N:_E:_N"]
    assert ("size" in nodes, "weight" in nodes, "weight" in feats) == (sizes, of_nodes, of_edges)
    if sizes:
        assert np.array_equal(nodes["size"].values, 7 + np.arange(5))
    if of_nodes:
        wanted = 100 * np.arange(5)[:, None] + np.arange(number)
        assert np.array_equal(nodes["weight"].values, wanted[:, 0] if number == 1 else wanted)
    if of_edges:
        assert np.array_equal(feats["weight"].values, [weight(*edge) for edge in WANTED])


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "the first line must be numbers of nodes and edges"),
        ("3\n", "the first line must be numbers of nodes and edges"),
        ("2 1\n2\n1\n1\n", "line 4: there are more than 2 nodes"),
        ("3 1\n2\n1\n", "has 2 nodes with 2 neighbours, but its first line says 3 nodes and 1 edges"),
        ("2 2\n2\n1\n", "has 2 nodes with 2 neighbours, but its first line says 2 nodes and 2 edges"),
        ("2 1\n3\n1\n", "line 2: there is no node 3"),
        ("2 1\n2\n0\n", "line 3: there is no node 0"),
        ("2 1\n2\nx\n", "line 3: invalid literal"),
        ("2 1 1\n2 5\n1\n", "line 3: 1 numbers are no node of this format"),
        ("2 1 21\n2\n1\n", r"fmt has three digits that are 0 or 1 \(got 21\)"),
    ],
)
def test_wrong_files_name_the_line(tmp_path, text, message):
    (tmp_path / "g.metis").write_text(text)
    with pytest.raises(GraphDataError, match=rf"g\.metis.*{message}"):
        read_source(tmp_path / "g.metis")
