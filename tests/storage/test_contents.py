"""The files of many parts: each is opened by HDF5 once, and none stays open."""

import gc
import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from mpigraph.errors import ShardFormatError
from mpigraph.storage.contents import PartFiles
from mpigraph.storage.part_config import PartConfig

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
    with PartFiles(config) as files:
        names = {
            (part, which): list(files.check_file(part, which)) for part in range(PARTS) for which in config.files[0]
        }
        read = {
            (part, name): files.open(part, which).read(name) for (part, which) in names for name in names[part, which]
        }
        assert os.listdir("/proc/self/fd") == before
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
