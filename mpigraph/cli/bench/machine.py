"""The machine under this rank, the age of this process, and the memory of processes; Linux tells most of it."""

import os
import platform
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpigraph.mpi.world import World

__all__ = ["describe", "measure_memory", "process_age"]


def describe() -> dict[str, Any]:
    """Return what machine this is."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_GiB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
    }


def process_age() -> float | None:
    """Return the seconds since this process was started, None where the system does not say."""
    try:
        after_name = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2]
        started = int(after_name.split()[19]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return age if age >= 0 else None


def measure_memory(world: World) -> dict[str, float | None]:
    """Return peaks in MB: of this trainer; on the first trainer of a node also of its servers and of the whole node.

    A server only answers requests, so a trainer of its node looks at its process.
    """
    figures = {"memory_trainer": _read_memory(os.getpid(), "status", "VmHWM")}
    if world.local_trainer == 0:
        near_hosts = np.flatnonzero(world.near)
        trainers = world.trainers_of_host(int(near_hosts[0]))
        servers = sorted(set(world.hosts[near_hosts].tolist()) - set(trainers))
        peaks = [_read_memory(int(world.pids[rank]), "status", "VmHWM") for rank in servers]
        figures["memory_server"] = max((peak for peak in peaks if peak is not None), default=None)
        sizes = [_read_memory(int(world.pids[rank]), "smaps_rollup", "Pss") for rank in [*trainers, *servers]]
        known = [size for size in sizes if size is not None]
        figures["memory_node"] = sum(known) if len(known) == len(sizes) else None
    return figures


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _read_memory(pid: int, name: str, field: str) -> float | None:
    """Return a field of /proc/<pid>/<name> in MB, None where it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/{name}").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found.group(1)) * 1024 / 1e6 if found else None
