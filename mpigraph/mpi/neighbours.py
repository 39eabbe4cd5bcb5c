"""Checks of what the processes of a job must have in common: the ``/dev/shm`` of their node, and their software.

Where each process has a ``/dev/shm`` of its own, as in a container for each, MPI's first call never returns. So the
processes of a node look for each other before: one that starts later sees those that started before, and the last one
sees all.
"""

import os
import platform
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path

from mpigraph import config
from mpigraph.errors import SharedMemoryError

_SHM = "dev/shm"
_SPEAKING_TIME = 8.0  # seconds in which the highest rank of a node, which may still start, prints the error and ends
_ENDING_TIME = 0.5  # seconds in which the launcher then ends the others


def check_neighbours(proc: Path = Path("/proc")) -> None:
    """Check that the processes that this launcher has started on this node share ``/dev/shm``.

    Raises SharedMemoryError if one has another one, and the same host name and network.
    """
    ours = _shared_memory(proc / "self")
    if ours is None:
        return
    rank = config.launcher_rank()
    neighbours = dict(_neighbours(proc))
    apart = [other for other, pid in neighbours.items() if _shared_memory(proc / str(pid)) not in (None, ours)]
    if not apart:
        return
    speaker = max(neighbours)
    if rank < speaker:
        end = time.monotonic() + _SPEAKING_TIME
        while (proc / str(neighbours[speaker])).exists() and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(_ENDING_TIME)
    raise SharedMemoryError(
        f"processes {min(rank, *apart)} and {max(rank, *apart)} run on one node and do not share /dev/shm, as where "
        "each has a container of its own: MPI could not start. Let the container see the node's /dev/shm (Apptainer: "
        "without --contain, or with --bind /dev/shm), or run all processes of a node in one container "
        '(slurm/README.md, "Shared memory")'
    )


def machine(proc: Path = Path("/proc")) -> int:
    """Return a number that processes have in common if they share host name, boot of Linux, and ``/dev/shm``: int64."""
    boot = ""
    with suppress(OSError):
        boot = (proc / "sys/kernel/random/boot_id").read_text()
    text = f"{socket.gethostname()} {boot} {_shared_memory(proc / 'self')}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


@cache
def software() -> str:
    """Return what decides the bits of a job: versions, and the size of this library's code."""
    size = sum(path.stat().st_size for path in Path(__file__).parents[1].rglob("*.py"))
    loaded = [name for name in ("mpigraph", "torch", "numpy", "mpi4py") if name in sys.modules]
    versions = ", ".join(f"{name} {sys.modules[name].__version__}" for name in loaded)
    return f"{versions}, Python {platform.python_version()}, {size} bytes of library code"


def _neighbours(proc: Path) -> Iterator[tuple[int, int]]:
    """Yield rank and process id of the other processes of this launcher on this node that run this program."""
    launcher = _launcher(proc, os.getpid())
    kind = _kind(proc / "self")
    for path in proc.glob("[0-9]*"):
        pid = int(path.name)
        if _kind(path) != kind:  # also what starts a rank's container
            continue
        rank = _rank(path)
        if rank is not None and rank != config.launcher_rank() and _launcher(proc, pid) == launcher:
            yield rank, pid


def _launcher(proc: Path, pid: int) -> int:
    """Return the nearest process above that no launcher gave a rank."""
    while pid > 1 and _rank(proc / str(pid)) is not None:
        try:
            pid = int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return 0
    return pid


def _rank(process: Path) -> int | None:
    """Return the rank in the environment of a process, None if it has none or is not ours to read."""
    with suppress(OSError):
        words = (process / "environ").read_bytes().split(b"\0")
        return config.rank_in(dict(word.partition(b"=")[::2] for word in words))
    return None


def _kind(process: Path) -> tuple[str, ...] | None:
    """Return host name, network and program of a process; None if it is not ours to read."""
    with suppress(OSError):
        return tuple(os.readlink(process / link) for link in ("ns/uts", "ns/net", "exe"))
    return None


def _shared_memory(process: Path) -> int | None:
    with suppress(OSError):
        return os.stat(process / "root" / _SHM).st_dev
    return None
