"""The files of many parts: each is opened by HDF5 once, and none stays open; destinations of edges."""

import gc
import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from mpigraph.storage.contents import InEdges, PartFiles
from mpigraph.storage.part_config import FILES, PartConfig

PARTS = 4


def test_hdf5_opens_each_file_once_and_none_stays_open(oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    class Counted(h5py.File):
        def __init__(self, path: Path, *args: object, **settings: object) -> None:
            opened.append(path)
            super().__init__(path, *args, **settings)

    monkeypatch.setattr(h5py, "File", Counted)
    config = PartConfig.read(oracle(PARTS))
    gc.collect()  # else files of tests before this one may be closed meanwhile
    before = os.listdir("/proc/self/fd")
    files = PartFiles(config)
    names = {(part, which): list(files.check_file(part, which)) for part in range(PARTS) for which in FILES}
    read = {(part, name): files.open(part, which).read(name) for (part, which) in names for name in names[part, which]}
    assert os.listdir("/proc/self/fd") == before
    assert len(opened) == len(set(opened)) == len(names)
    with h5py.File(opened[0], "r") as file:
        assert all(np.array_equal(file[name][()], read[0, name]) for name in names[0, "part_graph"])


def test_destinations_of_any_range(oracle) -> None:
    """Node v has v mod 13 in-neighbours: some have none."""
    config = PartConfig.read(oracle(3, "given"))
    for part in range(3):
        first, last = config.book.node_range(part)
        expected = np.repeat(np.arange(first, last), np.arange(first, last) % 13)
        edges = InEdges(PartFiles(config), 0, part)
        for begin in range(len(expected) + 1):
            for end in {begin, min(begin + 9, len(expected)), len(expected)}:
                assert np.array_equal(edges.destinations(begin, end), expected[begin:end])
