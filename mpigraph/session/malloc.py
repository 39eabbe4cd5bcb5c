"""The process's memory: keep freed blocks for the next minibatch.

By default glibc gives blocks of more than 32 MiB back to the kernel when they are freed, so that each large
intermediate of each step is zeroed and mapped anew, page by page. Kept, they are reused.
"""

import ctypes
import platform

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""``M_TRIM_THRESHOLD``, ``M_MMAP_THRESHOLD`` and ``M_ARENA_MAX`` of glibc's ``malloc.h``."""

_LARGEST = 1 << 30
"""Blocks of more bytes than this are still given back, such as features of a whole graph."""

_LARGEST_BEFORE = 32 << 20
"""The most that older glibc accepts."""


def keep_freed_memory() -> bool:
    """Let the allocator keep freed blocks of up to 1 GiB in this process.

    Threads that start later allocate from the same pool, since a pool of a thread's own gives back what is large.
    The process then holds on to the most memory that it used at a time in such blocks.

    Returns:
        Whether the C library could be told; only glibc can.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    mallopt.restype = ctypes.c_int
    if not any(mallopt(_MMAP_THRESHOLD, largest) for largest in (_LARGEST, _LARGEST_BEFORE)):
        return False  # the other settings alone would do harm: they freeze this threshold where it is
    return bool(mallopt(_TRIM_THRESHOLD, 2 * _LARGEST - 1)) and bool(mallopt(_ARENA_MAX, 1))
