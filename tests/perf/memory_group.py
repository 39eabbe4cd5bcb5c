"""A control group with a limit of memory, page cache included; needs root and version 1 or 2 of control groups."""

import os
import time
from contextlib import suppress
from pathlib import Path

_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
_ENTER = ["sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"']


def missing():
    """What keeps such groups from being made here; an empty string if nothing does."""
    try:
        with MemoryGroup():
            return ""
    except (OSError, StopIteration) as error:
        return f"no control group with a limit of memory can be made here: {error or 'there is no such controller'}"


class MemoryGroup:
    """A group from ``with`` to its end, when the processes in it must have ended.

    Attributes:
        held_peak: the most bytes that could not be reclaimed, private and shared memory, at any :meth:`poll`.
    """

    def __init__(self, limit=None):
        """Plan a group; ``limit`` in bytes, None for none."""
        self._limit = limit
        self.held_peak = 0

    def __enter__(self):
        self._v1 = (_V1 / "cgroup.procs").exists()
        if not self._v1 and "memory" not in (_V2 / "cgroup.subtree_control").read_text().split():
            (_V2 / "cgroup.subtree_control").write_text("+memory")
        self._path = (_V1 if self._v1 else _V2) / f"mpigraph-{os.getpid()}-{time.monotonic_ns()}"
        self._path.mkdir()
        if self._limit is not None:
            self._write("memory.limit_in_bytes" if self._v1 else "memory.max", self._limit)
            with suppress(OSError):  # a kernel without accounting of swap
                self._write(*("memory.memsw.limit_in_bytes", self._limit) if self._v1 else ("memory.swap.max", 0))
        return self

    def __exit__(self, *error):
        for _ in range(100):
            with suppress(OSError):
                self._path.rmdir()
                return
            time.sleep(0.1)  # the last process is being taken down

    def enter(self):
        """The words to put before a command that is to run in the group."""
        return [*_ENTER, str(self._path)]

    def poll(self):
        """Look what the group holds."""
        stat = dict(line.split() for line in (self._path / "memory.stat").read_text().splitlines())
        names = ("total_rss", "total_shmem") if self._v1 else ("anon", "shmem")
        self.held_peak = max(self.held_peak, sum(int(stat[name]) for name in names))

    @property
    def peak(self):
        """The most bytes that the group was charged with, page cache and kernel memory included; None if unknown."""
        with suppress(OSError):  # memory.peak came with Linux 5.19
            return int((self._path / ("memory.max_usage_in_bytes" if self._v1 else "memory.peak")).read_text())
        return None

    def _write(self, name, value):
        (self._path / name).write_text(str(value))


def own_group_totals():
    """Sums over the processes in the memory group of this one: bytes read from disks, and processor seconds."""
    groups = (line.rstrip("\n").split(":", 2) for line in open("/proc/self/cgroup", encoding="ascii"))
    path = next(path for _, kinds, path in sorted(groups, reverse=True) if kinds in ("memory", ""))
    root = _V1 if (_V1 / "cgroup.procs").exists() else _V2
    totals = {"read": 0, "cpu": 0.0}
    for pid in (root / path.lstrip("/") / "cgroup.procs").read_text().split():
        with suppress(OSError):  # it has ended
            io = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
            totals["read"] += int(io["read_bytes"])
            times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            totals["cpu"] += sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
    return totals
