"""Window memory as numpy arrays."""

import ctypes
import mmap
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

__all__ = ["advise_large_pages", "as_array"]


def as_array(memory: MPI.buffer, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """View an MPI buffer as a writable array, without a copy. Local; no communication."""
    return np.frombuffer(cast(memoryview, memory), np.dtype(dtype))


def advise_large_pages(memory: npt.NDArray[Any]) -> None:
    """Ask the kernel to back memory that was not touched yet with large pages, where it has them.

    Random rows then cost fewer misses of the address translation. Linux gives large pages to private memory (one rank
    alone); to shared memory only where ``/dev/shm`` is mounted with ``huge=advise``.

    Local; no communication.
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    begin = -(-memory.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (memory.ctypes.data + memory.nbytes - begin) // mmap.PAGESIZE * mmap.PAGESIZE
    if advice is not None and length > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), ctypes.c_int(advice))
