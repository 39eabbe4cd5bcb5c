"""Stopping a job on a signal: from Slurm before the time limit or at preemption, or from a person.

The handler of a signal only notes it. :mod:`mpigraph.mpi.stopping` agrees on the step at which all trainers stop. Then
Slurm, or another program that sees the exit status, starts the job again.
"""

import atexit
import shutil
import signal as signals
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn

from mpigraph import config
from mpigraph.collective import collective
from mpigraph.errors import ClosedError, InvalidArgumentError
from mpigraph.log import get_logger
from mpigraph.mpi.stopping import ask, asked, forget
from mpigraph.session.context import current, exit_client, is_initialized

STATUS = 75
"""The exit status of a job that wants to be started again: EX_TEMPFAIL of sysexits.h."""
_SLURM_ANSWERS = 60.0  # seconds
_FATAL = {signals.SIGKILL, signals.SIGSTOP, signals.SIGSEGV, signals.SIGBUS, signals.SIGFPE, signals.SIGILL}

_open: list["Preemption"] = []  # at most one: handlers are the process's


def preemption(signal: str | Sequence[str] = "USR1") -> "Preemption":
    """Note signals instead of ending at them; return an object that tells if the job is to stop.

        preempted = mpigraph.checkpoint.preemption()
        mpigraph.distributed.initialize()
        ...
        for step, (inputs, seeds, blocks) in enumerate(loader):
            ...
            if preempted():
                mpigraph.checkpoint.save(state, checkpoint_id=folder)
                mpigraph.checkpoint.requeue()

    Call it before ``initialize()``: ``srun`` and some ``mpiexec`` pass a signal on to every rank, and servers stay in
    ``initialize()``. It is enough that one rank gets the signal. A handler that was there before is called, too.

    Args:
        signal: a name, such as "USR1", or several. "TERM" is what Slurm sends by default, about 30 s before it
            kills; ``mpiexec`` and ``scancel`` also end jobs with it.

    Raises:
        InvalidArgumentError: the signal is unknown or cannot be handled; a preemption is open already; the call is not
            in the main thread, or comes after ``initialize()`` in a job with servers.
    """
    several = isinstance(signal, Sequence) and not isinstance(signal, str)
    numbers = [_number(name) for name in (signal if several else [signal])]
    if not numbers:
        raise InvalidArgumentError("preemption() needs a signal")
    if _open:
        raise InvalidArgumentError("preemption() was called twice: close() the first one")
    _check_thread("preemption()")
    if is_initialized() and current().world.num_servers and current().world.size > 1:
        raise InvalidArgumentError(
            "call preemption() before initialize(): servers get signals, and stay in initialize()"
        )
    return Preemption(numbers)


class Preemption:
    """A callable that returns whether the job is to stop, and a context manager; made by :func:`preemption`."""

    def __init__(self, numbers: Sequence[signals.Signals]) -> None:
        """Handle these signals."""
        self._before: dict[signals.Signals, Any] = {}
        self._told = False
        self._closed = False
        for number in dict.fromkeys(numbers):
            self._before[number] = signals.signal(number, self._handle)
            signals.siginterrupt(number, False)  # restart system calls: not all C code does
        _open.append(self)
        atexit.register(self._at_exit)

    def __call__(self, at: int | None = None) -> bool:
        """Return whether the job is to stop here: the same on every trainer at the same call.

        Without a request to stop, a call reads and writes a word of the node's memory. After one, trainers go on for a
        call or two, and wait for one another in the call at which they stop. That takes about a second on a node, and a
        few on several nodes, plus the time that the slowest trainer is behind.

        Args:
            at: the number of the call, such as the step; it grows from call to call, and is the same for the same step
                on every trainer. By default calls are counted, anew from each collective call of the library: right
                where all trainers make equally many calls.

        Raises:
            ClosedError: it was closed.
            NotInitializedError: ``initialize()`` was not called.
            InvalidArgumentError: ``at`` does not grow, or only some calls have it; or this is not the main thread.

        Every trainer must call it.
        """
        if self._closed:
            raise ClosedError("preempted() after close()")
        _check_thread("preempted()")
        session = current()
        world = session.world
        stops = world.watchdog.stopping.call(at)
        if stops and not self._told:
            self._told = True
            if session.rank == 0:
                get_logger().warning("the job was asked to stop%s", f" by {asked()}" if asked() else "")
        return stops

    def close(self) -> None:
        """Restore the former handlers; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for number, before in self._before.items():
            if signals.getsignal(number) == self._handle:
                signals.signal(number, signals.SIG_DFL if before is None else before)
        _open.remove(self)
        atexit.unregister(self._at_exit)
        forget()

    def __enter__(self) -> "Preemption":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        ask(signals.Signals(number).name)
        before: Callable[[int, FrameType | None], object] | int | None = self._before.get(signals.Signals(number))
        if callable(before) and before is not signals.default_int_handler:
            before(number, frame)

    def _at_exit(self) -> None:
        """Ignore the signals while the process ends, when Python handles none any more."""
        for number in self._before:
            signals.signal(number, signals.SIG_IGN)


def _number(name: object) -> signals.Signals:
    known = {number.name.removeprefix("SIG"): number for number in signals.Signals}
    number = known.get(name.upper().removeprefix("SIG")) if isinstance(name, str) else None
    if number is None or number in _FATAL:
        raise InvalidArgumentError(f"signal must be the name of a signal that can be handled, as USR1 (got {name!r})")
    return number


def _check_thread(what: str) -> None:
    if threading.current_thread() is not threading.main_thread():
        raise InvalidArgumentError(f"{what} must be called by the main thread, to which Python gives signals")


@collective("trainers")
def requeue() -> NoReturn:
    """End the script on every trainer, and have Slurm start the job again.

    The servers end, too. Then the first trainer calls ``scontrol requeue``, in a job array for this task alone, and
    logs if Slurm refuses or is not there. The script always ends with status 75 on every trainer, so that a batch
    script can start it again (``slurm/train.sbatch``). With ``MPIGRAPH_REQUEUE=exit`` Slurm is not called.

    Slurm ends requeued jobs by SIGTERM, which is ignored from here on.

    Raises:
        SystemExit: always, unless another error is raised.
        StorageError: writing a checkpoint in the background failed; on every trainer. Nothing is requeued.
        NotInitializedError: ``initialize()`` was not called.
    """
    session = current()
    signals.signal(signals.SIGTERM, signals.SIG_IGN)
    first = session.rank == 0
    asks = session.world.config.requeue == "auto"
    exit_client()
    if first:
        _have_requeued() if asks else get_logger().info("ends with status %d to be started again", STATUS)
    sys.exit(STATUS)


def _have_requeued() -> None:
    job = config.slurm_job()
    scontrol = shutil.which("scontrol")
    again = f"the script ends with status {STATUS}, after which it can be started again"
    if job is None or scontrol is None:
        why = "this is not a job of Slurm" if job is None else "there is no scontrol on PATH"
        get_logger().warning("the job is not requeued (%s); %s", why, again)
        return
    try:
        done = subprocess.run(
            [scontrol, "requeue", job], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SLURM_ANSWERS
        )
        refusal = (done.stderr or done.stdout).strip() or f"status {done.returncode}" if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        refusal = str(error)
    if refusal:
        get_logger().error("Slurm does not requeue job %s: %s; %s", job, refusal, again)
    else:
        get_logger().warning("job %s is requeued", job)
