"""The files of many parts: each is opened by HDF5 once, and few are open at a time."""

import gc
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from mpigraph.errors import ShardFormatError
from mpigraph.formats.shards import read_partition
from mpigraph.storage.contents import PartFiles
from mpigraph.storage.part_config import PartConfig

PARTS, AWAKE = 4, 2


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_hdf5_opens_each_file_once_and_few_are_open(oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    class Counted(h5py.File):
        def __init__(self, path: Path, *args: object, **settings: object) -> None:
            opened.append(path)
            super().__init__(path, *args, **settings)

    monkeypatch.setattr(h5py, "File", Counted)
    config = PartConfig.read(oracle(PARTS))
    before = open_files()
    with PartFiles(config) as files:
        files._most_open = AWAKE
        names = {
            (part, which): list(files.check_file(part, which)) for part in range(PARTS) for which in config.files[0]
        }
        assert open_files() == before
        read = {}
        for _ in range(2):  # in an order in which the oldest file is always the next
            for (part, which), datasets in names.items():
                for name in datasets:
                    rows = files.open(part, which).read(name)
                    assert np.array_equal(read.setdefault((part, name), rows), rows)
                    assert open_files() <= before + AWAKE
    assert open_files() == before
    assert len(opened) == len(set(opened)) == len(names)
    with h5py.File(opened[0], "r") as file:
        assert all(np.array_equal(file[name][()], read[0, name]) for name in names[0, "part_graph"])


@pytest.mark.parametrize("damage", ["other bytes", "cut"])
def test_a_file_that_changes_after_its_check_is_damaged(oracle, damage: str, tmp_path: Path) -> None:
    shutil.copytree(Path(oracle(PARTS)).parent, tmp_path / "graph")
    config = PartConfig.read(tmp_path / "graph/oracle.json")
    path = config.part_path(1, "node_feats")
    with PartFiles(config) as files:
        content = files.check_file(1, "node_feats")
        with h5py.File(path, "r") as file:
            begin, name = max((file[name].id.get_offset(), name) for name in content)
        with open(path, "r+b") as file:
            if damage == "cut":
                file.truncate(begin + 1)
            else:
                file.seek(begin)
                byte = file.read(1)
                file.seek(begin)
                file.write(bytes([byte[0] ^ 1]))
        with pytest.raises(ShardFormatError, match="checksum|ends before its rows"):
            files.open(1, "node_feats").read(name)


def test_files_close_with_the_last_reader_of_their_rows(oracle) -> None:
    gc.collect()  # what earlier tests have left
    before = open_files()
    rows = read_partition(oracle(PARTS)).node_feats
    assert all(len(feature.values[:]) for table in rows.values() for feature in table.values())
    assert open_files() > before
    del rows
    gc.collect()
    assert open_files() == before
