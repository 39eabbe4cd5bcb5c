"""Notes of datasets that were read from end to end and found undamaged, so that no job reads them again for that.

A note holds for one state of one file: it names the inode and its times, which change with every write, copy or rename.
"""

import hashlib
import os
from collections.abc import Iterable

from mpigraph.kernels.cache import read_note, write_note

__all__ = ["is_verified", "note_verified"]


def _name(status: os.stat_result, seal: str, dataset: str) -> str:
    state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return f"verified-{hashlib.sha256(repr((seal, dataset, state)).encode()).hexdigest()[:24]}"


def is_verified(status: os.stat_result, seal: str, dataset: str) -> bool:
    """Return whether a dataset of a file in this state was found undamaged; ``seal`` is that of the file."""
    return read_note(_name(status, seal, dataset)) == dataset


def note_verified(status: os.stat_result, seal: str, datasets: Iterable[str]) -> None:
    """Note that datasets of a file in this state are undamaged; nothing if the folder of notes is read-only."""
    for dataset in datasets:
        write_note(_name(status, seal, dataset), dataset)
