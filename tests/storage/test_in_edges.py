"""In-edges that are read in chunks: a row may go on from one to the next."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from damaged import rewrite

from mpigraph.errors import ShardFormatError
from mpigraph.storage import in_edges, verify
from mpigraph.storage.contents import PartFiles
from mpigraph.storage.in_edges import InEdges, check_in_edges
from mpigraph.storage.part_config import PartConfig

INDICES = "relations/_N:_E:_N/indices"


def is_wrong(path: Path) -> bool:
    with PartFiles(PartConfig.read(path)) as files:
        try:
            check_in_edges(files, 0, 1)
        except ShardFormatError:
            return True
    return False


def test_sources_that_fall_are_found_wherever_a_chunk_ends(
    oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "_READ_BYTES", 8)
    monkeypatch.setattr(verify, "segment_rows", lambda rows, row_bytes: 2)
    monkeypatch.setattr(in_edges, "_ROWS", 5)
    with PartFiles(PartConfig.read(oracle(4))) as files:
        shard = files.open(1, "part_graph")
        indices, indptr = shard.read(INDICES), shard.read(INDICES.replace("indices", "indptr"))
    shutil.copytree(Path(oracle(4)).parent, tmp_path / "copy")
    outcomes = set()
    for at in range(16):
        changed = indices.copy()
        changed[[at, at + 1]] = indices[[at + 1, at]]
        rewrite(tmp_path / "copy/oracle.json", 1, "part_graph", INDICES, lambda _, rows=changed: rows)
        falls = any((np.diff(row) < 0).any() for row in np.split(changed, indptr[1:-1]))
        assert is_wrong(tmp_path / "copy/oracle.json") == falls, at
        outcomes.add((falls, at % 2))
    assert outcomes >= {(True, 0), (True, 1)}  # in chunks, and between them


@pytest.mark.parametrize("rows", [2, 5, 1000])
def test_destinations_of_any_range(oracle, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Node v has v mod 13 in-neighbours: some blocks have no edges."""
    monkeypatch.setattr(in_edges, "_ROWS", rows)
    config = PartConfig.read(oracle(3, "given"))
    for part in range(3):
        first, last = config.book.node_range(part)
        wanted = np.repeat(np.arange(first, last), np.arange(first, last) % 13)
        with PartFiles(config) as files:
            edges = InEdges(files, 0, part)
            for begin in (0, 1, 77, len(wanted)):
                for end in {begin, min(begin + 9, len(wanted)), len(wanted)}:
                    assert np.array_equal(edges.destinations(begin, end), wanted[begin:end])
