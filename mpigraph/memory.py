"""Free memory of this node and of the job's control groups (Slurm's ``--mem``)."""

import ctypes
import platform
import re
import resource
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

from mpigraph.errors import InvalidArgumentError

_UNLIMITED = 1 << 60  # bytes; version 1 of cgroups uses such numbers for "no limit"


def as_bytes(text: str) -> int:
    """Return a size such as 8GiB, 8G (the same, as for Slurm), 500MB or 1000000 in bytes.

    Raises InvalidArgumentError for any other text.
    """
    units = {"": 1, "B": 1} | {f"{p}B": 1000**i for i, p in enumerate("KMGT", 1)}
    units |= {f"{p}{end}": 1024**i for i, p in enumerate("KMGT", 1) for end in ("", "iB")}
    size = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?i?B?)", text)
    if size is None or size[2] not in units:
        raise InvalidArgumentError(f"expected a size such as 8GiB or 500MB (got {text!r})")
    return int(Fraction(size[1]) * units[size[2]])


def in_units(nbytes: int) -> str:
    """Return a size as text, such as "1.5 GiB"."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes / 1024:.1f} KiB"


def free_memory() -> int | None:
    """Return the bytes that the processes of this node may still take, None if the system does not tell."""
    limits = []
    with suppress(OSError, TypeError):  # not Linux
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        limits.append(1024 * int(re.search(r"MemAvailable: +(\d+) kB", text)[1]))  # type: ignore[index]
    limit = free_in_groups()
    if limit is not None:
        limits.append(limit[0])
    return min(limits, default=None)


def held_memory() -> int:
    """Return the bytes that this process holds in memory, 200 MiB if the system does not tell."""
    with suppress(OSError, ValueError):  # not Linux
        with open("/proc/self/statm", "rb", 0) as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    return 200 << 20


def process_figures(proc: str = "/proc") -> dict[str, float | None]:
    """Return what this process has used so far; None for what the kernel does not tell.

    ``cpu_seconds``; ``run_delay_seconds``, in which its threads could run and no processor was free; ``major_faults``,
    pages that came from a disk; and ``memory_pressure_seconds``, in which some process of the node waited for memory.
    """
    figures: dict[str, float | None] = dict.fromkeys(("run_delay_seconds", "memory_pressure_seconds"))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    figures |= {"cpu_seconds": usage.ru_utime + usage.ru_stime, "major_faults": usage.ru_majflt}
    with suppress(OSError, ValueError, IndexError):
        threads = [path.read_text(encoding="ascii").split() for path in Path(proc, "self/task").glob("*/schedstat")]
        figures["run_delay_seconds"] = sum(int(delay) for _, delay, _ in threads) / 1e9 if threads else None
    with suppress(OSError, TypeError):
        text = Path(proc, "pressure/memory").read_text(encoding="ascii")
        figures["memory_pressure_seconds"] = int(re.search(r"some .*total=(\d+)", text)[1]) / 1e6  # type: ignore[index]
    return figures


def give_back() -> None:
    """Return freed memory to the system; glibc keeps arrays of less than 32 MiB otherwise."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


def unheld_on_node(proc: str = "/proc") -> tuple[int, int] | None:
    """Return the bytes of memory and swap that no process of this node holds, and of all; None if unknown.

    The first is an upper bound: the kernel has some, and may not release it. With strict accounting
    (``vm.overcommit_memory`` 2) it is the memory that is not yet committed.
    """
    with suppress(OSError, ValueError, KeyError):  # not Linux
        text = Path(proc, "meminfo").read_text(encoding="ascii")
        has = {name: 1024 * int(size) for name, size in re.findall(r"^(\w+): +(\d+) kB$", text, re.MULTILINE)}
        held = has["AnonPages"] + has["Shmem"] + has.get("Hugetlb", 0)
        free = max(has["MemTotal"] - held, has["MemAvailable"])
        bounds = [(free + has["SwapFree"], has["MemTotal"] + has["SwapTotal"])]
        if int(Path(proc, "sys/vm/overcommit_memory").read_text(encoding="ascii")) == 2:
            bounds.append((max(has["CommitLimit"] - has["Committed_AS"], 0), has["CommitLimit"]))
        return min(bounds)
    return None


def free_address_space() -> tuple[int, int] | None:
    """Return the bytes that this process may still map, and its limit (``ulimit -v``); None without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    with suppress(OSError, ValueError):  # not Linux
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        return None if limit == resource.RLIM_INFINITY else (max(limit - pages * resource.getpagesize(), 0), limit)
    return None


def free_in_groups(proc: str = "/proc", root: str = "/sys/fs/cgroup") -> tuple[int, int] | None:
    """Return the bytes that the control groups of this process leave free, and their limit; None without a limit.

    Memory that the kernel can reclaim (cached files) counts as free, and so does swap.
    """
    limits = []
    with suppress(OSError, ValueError):
        swap = re.search(r"SwapFree: +(\d+) kB", Path(proc, "meminfo").read_text(encoding="ascii"))
        spare = 1024 * int(swap[1]) if swap else 0
        for line in Path(proc, "self/cgroup").read_text(encoding="utf-8").splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds == "":
                top, names = Path(root), ("memory.max", "memory.current", "file", "shmem")
            elif "memory" in kinds.split(","):
                top = Path(root, "memory")
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem")
            else:
                continue
            group = top / path.lstrip("/")
            limits += [_free_in_group(at, *names) for at in (group, *group.parents) if top in (at, *at.parents)]
        return min(((free + spare, size) for free, size in filter(None, limits)), default=None)
    return None


def _free_in_group(
    group: Path, limit_name: str, usage_name: str, cached_name: str, shared_name: str
) -> tuple[int, int] | None:
    """Return the bytes that one group leaves free, without swap, and its limit; None without a limit."""
    try:
        limit = int((group / limit_name).read_text(encoding="ascii"))
        usage = int((group / usage_name).read_text(encoding="ascii"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
    except (OSError, ValueError):  # "max", or no such group in this container
        return None
    if limit >= _UNLIMITED:
        return None
    cached = max(int(stat.get(cached_name, 0)) - int(stat.get(shared_name, 0)), 0)
    return max(limit - usage + cached, 0), limit


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""``M_TRIM_THRESHOLD``, ``M_MMAP_THRESHOLD`` and ``M_ARENA_MAX`` of glibc's ``malloc.h``."""

_LARGEST = 1 << 30
"""Blocks of more bytes than this are still returned to the system, such as features of a whole graph."""

_LARGEST_BEFORE = 32 << 20
"""The most that older glibc accepts."""


def keep_freed_memory() -> bool:
    """Let the allocator keep freed blocks of up to 1 GiB in this process.

    Threads that start later allocate from the same pool, since a thread's own pool returns large blocks.
    The process then keeps the largest amount of memory that it ever used in such blocks.

    Returns:
        True if the C library supports it; only glibc does.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    mallopt.restype = ctypes.c_int
    if not any(mallopt(_MMAP_THRESHOLD, largest) for largest in (_LARGEST, _LARGEST_BEFORE)):
        return False  # the other settings alone would do harm: they freeze this threshold where it is
    return bool(mallopt(_TRIM_THRESHOLD, 2 * _LARGEST - 1)) and bool(mallopt(_ARENA_MAX, 1))
