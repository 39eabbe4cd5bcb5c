"""Peak memory of trainers and servers, and the memory of a node with shared pages counted once.

A server has nothing to tell but answers, so a trainer of its node looks at its process; Linux only.
"""

import os
import re
from pathlib import Path

import numpy as np

from mpigraph.mpi.world import World

__all__ = ["measure_memory"]


def measure_memory(world: World) -> dict[str, float | None]:
    """Read the peaks in MiB of this trainer and of its node's ranks."""
    figures = {"memory_trainer": _read(os.getpid(), "status", "VmHWM")}
    if world.local_trainer == 0:
        hosts = np.flatnonzero(world.near)
        trainers = world.trainers_of_host(int(hosts[0]))
        servers = sorted(set(world.hosts[hosts].tolist()) - set(trainers))
        peaks = [_read(int(world.pids[rank]), "status", "VmHWM") for rank in servers]
        shares = [_read(int(world.pids[rank]), "smaps_rollup", "Pss") for rank in [*trainers, *servers]]
        figures["memory_server"] = max((peak for peak in peaks if peak is not None), default=None)
        there = [share for share in shares if share is not None]
        figures["memory_node"] = sum(there) if len(there) == len(shares) else None
    return figures


def _read(pid: int, name: str, field: str) -> float | None:
    """A field of /proc/<pid>/<name> in MiB, None where it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/{name}").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found.group(1)) / 1024 if found else None
