"""In-edges that are read in chunks: a row may go on from one to the next."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from damaged import rewrite

from mpigraph.arrays import Array
from mpigraph.errors import ShardFormatError
from mpigraph.storage import contents
from mpigraph.storage.contents import InEdges, PartFiles, check_in_edges
from mpigraph.storage.part_config import PartConfig
from mpigraph.storage.shard import ShardReader, read_chunks

INDICES = "relations/_N:_E:_N/indices"


def two_rows(reader: ShardReader, name: str, *rows: int) -> Iterator[tuple[int, Array]]:
    """Read as ``read_chunks`` does, two rows at a time."""
    for first, chunk in read_chunks(reader, name, *rows):
        for begin in range(0, len(chunk), 2):
            yield first + begin, chunk[begin : begin + 2]


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
    monkeypatch.setattr(contents, "read_chunks", two_rows)
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


def test_destinations_of_any_range(oracle) -> None:
    """Node v has v mod 13 in-neighbours: some have none."""
    config = PartConfig.read(oracle(3, "given"))
    for part in range(3):
        first, last = config.book.node_range(part)
        expected = np.repeat(np.arange(first, last), np.arange(first, last) % 13)
        with PartFiles(config) as files:
            edges = InEdges(files, 0, part)
            for begin in range(len(expected) + 1):
                for end in {begin, min(begin + 9, len(expected)), len(expected)}:
                    assert np.array_equal(edges.destinations(begin, end), expected[begin:end])
