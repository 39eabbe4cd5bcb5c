"""Shared memory that killed processes have left behind."""

import os
import time
from mmap import mmap
from pathlib import Path

from mpigraph.mpi import compat


def test_segments_of_ended_processes_are_removed(tmp_path: Path) -> None:
    names = [
        "mpich_shm_12ab_0",
        "mpich_vci_12ab_1",
        "mpich_shm_77_0",
        "mpich_shm_99_0",
        "mpich_other",
        "a_mpich_shm_1_0",
    ]
    for name in names:
        (tmp_path / name).write_bytes(bytes(4096))
        os.utime(tmp_path / name, (0, time.time() - 2 * compat._STARTING))
    os.utime(tmp_path / "mpich_shm_77_0")  # of a job that is starting
    with (tmp_path / "mpich_shm_99_0").open("r+b") as file, mmap(file.fileno(), 4096):  # of a job that runs
        compat.remove_dead_segments(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[2:])
    compat.remove_dead_segments(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([names[2], *names[4:]])
    compat.remove_dead_segments(str(tmp_path / "nowhere"))
