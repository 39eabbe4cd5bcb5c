"""Shared memory that would outlive a job that is killed.

MPICH 5 has one segment for each node's processes, ``/dev/shm/mpich_shm_<job>_<node>``, and takes its name away only in
``MPI_Finalize``. A job that is aborted or cancelled never gets there: the segment stays, and takes memory from every
job after it. When ``MPI_Init`` returns, all processes of the node have mapped it and nobody asks for the name again;
without a name the kernel frees it with the last of them, however they end.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

__all__ = ["unlink_segments"]

_MAPPED = re.compile(r" (/dev/shm/mpich_(?:shm|vci)_[0-9a-f]+_\d+)$", re.MULTILINE)


def unlink_segments() -> None:
    """Take the names off the segments of MPICH that this process has mapped. Local; no communication."""
    with suppress(OSError):  # not Linux, or another rank was first
        for path in set(_MAPPED.findall(Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"))):
            os.unlink(path)
