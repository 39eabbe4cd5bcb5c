"""What machine this is, and how fast it copies memory."""

import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpigraph.cli.bench.clock import alone_then_together
from mpigraph.mpi.world import World

__all__ = ["describe", "measure_copy"]

_COPY_BYTES = 32 << 20


def measure_copy(world: World, seconds: float) -> dict[str, float | None]:
    """Copy memory by numpy, far more than caches hold. Collective on the trainers."""
    source, target = np.ones(_COPY_BYTES, np.uint8), np.ones(_COPY_BYTES, np.uint8)
    (alone,), (together,) = alone_then_together(world, [lambda: np.copyto(target, source)], seconds)
    return {
        "memcpy_one": None if alone is None else _COPY_BYTES / alone / 1e9,
        "memcpy_all": _COPY_BYTES / together / 1e9,
    }


def describe() -> dict[str, Any]:
    """The machine under this rank."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_GiB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
