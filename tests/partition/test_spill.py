"""Arrays in temporary files: they hold what was written, leave nothing behind, and a full disk is an error."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from mpigraph.errors import StorageError
from mpigraph.partition.spill import Scratch


def in_a_file(array: np.ndarray) -> bool:
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(word, 16) for word in line.split()[0].split("-"))
        if begin <= address < end:
            return int(line.split()[4]) > 0  # the inode
    raise AssertionError("an array that is not in memory")


@pytest.mark.parametrize("mapping", [False, True])
def test_large_arrays_lie_in_files_from_the_beginning_or_once_parked(tmp_path: Path, mapping: bool) -> None:
    scratch = Scratch(tmp_path, 1000, mapping)
    small, large = scratch.empty(250, np.int32), scratch.empty(2500, np.int32)
    assert (in_a_file(small), in_a_file(large)) == (False, mapping)
    for array in (small, large):
        array[:] = np.arange(len(array))
        parked = scratch.park(array)
        assert in_a_file(parked) == (array is large) and np.array_equal(parked, np.arange(len(array)))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_before_the_array_is_filled(tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match="cannot write a temporary file: No space left"):
        Scratch(tmp_path, 1000, mapping=True).empty(2500, np.int32)
    with pytest.raises(StorageError, match="cannot write a temporary file: No space left"):
        Scratch(tmp_path, 1000).park(np.arange(2500))
