"""Differences between MPI libraries and systems: versions, window memory as arrays, shared memory left behind.

MPICH 5 has one segment for each node's processes, ``/dev/shm/mpich_shm_<job>_<node>``, and removes its name only in
``MPI_Finalize``. A job that is aborted never gets there: the segment stays, and takes memory from every job after it.
When ``MPI_Init`` returns, all processes of the node have mapped the segment and need the name no more. Without a name
the kernel frees it with the last of them, however they end.
"""

import ctypes
import mmap
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from mpigraph import config
from mpigraph.arrays import Array
from mpigraph.errors import MPIGraphError

_LEVELS = ("single", "funneled", "serialized", "multiple")
_MAPPED = re.compile(r" (/\S+/mpich_(?:shm|vci)_[0-9a-f]+_\d+)$", re.MULTILINE)


def library_version() -> str:
    """Return name and version, such as "MPICH Version: 5.0.2" or "Open MPI v5.0.11"."""
    first_line = MPI.Get_library_version().rstrip("\0").partition("\n")[0]
    return " ".join(first_line.partition(",")[0].split())


def distrusts_windows() -> bool:
    """Return whether windows between nodes may crash here, which no test at start can find out.

    Those of Open MPI 4.1 do, except with ``osc/ucx``, which not all fabrics have: ``osc/rdma`` ends in a segmentation
    fault in ``Compare_and_swap``, and ``osc/pt2pt`` refuses threads.
    """
    vendor, version = MPI.get_vendor()
    components = config.open_mpi_osc()
    return vendor == "Open MPI" and version < (5, 0, 0) and ("ucx" not in components or components.startswith("^"))


def may_lose_messages() -> bool:
    """Return whether ranks of a node may wait for ever here: Open MPI 5.0 that was started with its fast boxes."""
    vendor, version = MPI.get_vendor()
    return vendor == "Open MPI" and version >= (5, 0, 0) and config.fast_boxes()


def thread_level() -> str:
    """Return MPI's thread level: "single", "funneled", "serialized" or "multiple"."""
    return next(level for level in _LEVELS if getattr(MPI, f"THREAD_{level.upper()}") == MPI.Query_thread())


def as_array(memory: MPI.buffer, dtype: npt.DTypeLike) -> Array:
    """View an MPI buffer as a writable array, without a copy."""
    return np.frombuffer(cast(memoryview, memory), np.dtype(dtype))


def check_memory_model(win: MPI.Win) -> None:
    """Check that a window has the unified memory model (MPI 4.1, 12.4): the library loads and stores beside MPI.

    Raises MPIGraphError if it has the separate model; the same on every rank.
    """
    if win.Get_attr(MPI.WIN_MODEL) != MPI.WIN_UNIFIED:
        raise MPIGraphError(
            f"{library_version()} keeps windows apart from memory here (MPI_WIN_SEPARATE): not supported"
        )


def advise_large_pages(memory: Array) -> None:
    """Ask the kernel for large pages for memory that was not touched yet: random rows then cost fewer TLB misses.

    Linux gives them to private memory (one rank alone), and to shared memory where ``/dev/shm`` is mounted with
    ``huge=advise``.
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    begin = -(-memory.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (memory.ctypes.data + memory.nbytes - begin) // mmap.PAGESIZE * mmap.PAGESIZE
    if advice is not None and length > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), ctypes.c_int(advice))


def unlink_segments() -> None:
    """Remove the names of the segments of MPICH that this process has mapped."""
    with suppress(OSError):  # not Linux
        for path in set(_MAPPED.findall(Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"))):
            with suppress(OSError):  # another rank was first
                os.unlink(path)
