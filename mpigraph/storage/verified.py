"""Notes of datasets that were read from end to end and found undamaged, so that no job reads them again for that.

A note is on one path, and holds for one state of the file there: its inode and its times, which change with every
write, copy or rename. Small files have no notes.
"""

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mpigraph.kernels.cache import read_note, write_note

SMALL = 64 << 20
"""Bytes of a file that is read in no time."""


def is_verified(path: Path, status: os.stat_result, seal: str, dataset: str) -> bool:
    """Return whether a dataset of a file in this state was found undamaged; ``seal`` is that of the file."""
    return read_note(_name(path, dataset)) == _state(status, seal)


def note_verified(path: Path, status: os.stat_result, seal: str, datasets: Iterable[str]) -> None:
    """Note that datasets of a file, if it is still in this state, are undamaged.

    Does nothing if the folder of notes is read-only.
    """
    with suppress(OSError):  # it has vanished
        if status.st_size > SMALL and _state(os.stat(path), seal) == _state(status, seal):
            for dataset in datasets:
                write_note(_name(path, dataset), _state(status, seal))


def _name(path: Path, dataset: str) -> str:
    key = repr((os.uname().nodename, str(path.resolve()), dataset))  # nodes have different files of one name
    return f"verified-{hashlib.sha256(key.encode(errors='backslashreplace')).hexdigest()[:24]}"


def _state(status: os.stat_result, seal: str) -> str:
    times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
    return f"{seal} {status.st_dev} {status.st_ino} {status.st_size} {times}"
