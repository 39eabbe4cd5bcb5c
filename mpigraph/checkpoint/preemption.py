"""A job that is told to stop: by Slurm before the time limit or at preemption, or by a person.

The handler of a signal only notes it. Where all trainers stop is agreed by :mod:`mpigraph.mpi.stopping`. Then Slurm, or
another program that sees the exit status, starts the job again.
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

__all__ = ["STATUS", "Preemption", "preemption", "requeue"]

STATUS = 75
"""The exit status of a job that wants to be started again: EX_TEMPFAIL of sysexits.h."""
_SLURM_ANSWERS = 60.0  # seconds
_FATAL = {signals.SIGKILL, signals.SIGSTOP, signals.SIGSEGV, signals.SIGBUS, signals.SIGFPE, signals.SIGILL}

_open: list["Preemption"] = []  # at most one: handlers are the process's


def preemption(signal: str | Sequence[str] = "USR1") -> "Preemption":
    """Note signals instead of ending at them; return what to ask whether the job is to stop.

        preempted = mpigraph.checkpoint.preemption()
        mpigraph.distributed.initialize()
        ...
        for step, (inputs, seeds, blocks) in enumerate(loader):
            ...
            if preempted():
                mpigraph.checkpoint.save(state, checkpoint_id=folder)
                mpigraph.checkpoint.requeue()

    To be called before ``initialize()``: ``srun`` and some ``mpiexec`` pass a signal on to every rank, and servers come
    no further than that. It is enough that one rank gets the signal. A handler that was there is called, too.

    Args:
        signal: a name, such as "USR1", or several. "TERM" is what Slurm sends where nothing else was asked for, some
            30 s before it kills, but also what ``mpiexec`` and ``scancel`` end a job with.

    Raises:
        InvalidArgumentError: no such signal, or one that cannot be handled; there is one already; called by another
            thread than the main one, or after ``initialize()`` in a job with servers.
    """
    several = isinstance(signal, Sequence) and not isinstance(signal, str)
    numbers = [_number(name) for name in (signal if several else [signal])]
    if not numbers:
        raise InvalidArgumentError("preemption() needs a signal")
    if _open:
        raise InvalidArgumentError("preemption() was called twice: close() the first one")
    _check_thread("preemption()")
    if is_initialized() and current().world.num_servers and current().world.size > 1:
        raise InvalidArgumentError("call preemption() before initialize(): servers get signals, and come no further")
    return Preemption(numbers)


class Preemption:
    """Whether the job was asked to stop; made by :func:`preemption`. It is its own context manager, which closes it."""

    def __init__(self, numbers: Sequence[signals.Signals]) -> None:
        """Handle these signals."""
        self._before: dict[signals.Signals, Any] = {}
        self._told = False
        self._closed = False
        for number in dict.fromkeys(numbers):
            self._before[number] = signals.signal(number, self._handle)
            signals.siginterrupt(number, False)  # what the system was asked for goes on: not all C code begins it again
        _open.append(self)
        atexit.register(self._at_exit)

    def __call__(self, at: int | None = None) -> bool:
        """Return whether the job is to stop here: the same on every trainer at the same call.

        Until somebody was asked to stop, a call reads and writes a word of the node's memory. Then trainers go on for a
        call or two, and wait for one another in the one at which they stop. That takes about a second on a node, and a
        few on several; where trainers do not wait for one another in each step, the time that the slowest is behind.

        Args:
            at: what numbers the calls, such as the step; it grows from call to call, and is the same number for the
                same step on every trainer. By default calls are counted, anew from each barrier and other collective
                call of the library on: right where all trainers make as many of them.

        Raises:
            ClosedError: it was closed.
            NotInitializedError: ``initialize()`` was not called.
            InvalidArgumentError: ``at`` does not grow, or is not given in all calls; or this is another thread than the
                main one.

        To be called by every trainer.
        """
        if self._closed:
            raise ClosedError("preempted() after close()")
        _check_thread("preempted()")
        session = current()
        world = session.world
        stops = world.watchdog.stopping.call(at, lambda: world.watch("stopping all trainers at the same step"))
        if stops and not self._told:
            self._told = True
            if session.rank == 0:
                get_logger().warning("the job was asked to stop%s", f" by {asked()}" if asked() else "")
        return stops

    def close(self) -> None:
        """Put back the handlers that were there; a second call does nothing."""
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
        """A process that ends by itself is not to be ended by a signal meanwhile, when Python handles none any more."""
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

    The servers end, too. Then the first trainer calls ``scontrol requeue``, for this task alone in a job array. Where
    Slurm refuses or is not there it says so. In each case the script ends with status 75 on every trainer, so that a
    batch script can do what is missing (``slurm/train.sbatch``). With ``MPIGRAPH_REQUEUE=exit`` that is all.

    Slurm ends what it requeues by SIGTERM, which is ignored from here on.

    Raises:
        SystemExit: always, unless another error is raised.
        StorageError: the checkpoint that was being written in the background cannot be; on every trainer. Nothing is
            requeued.
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
    """Ask Slurm, and say what comes of it."""
    job = config.slurm_job()
    scontrol = shutil.which("scontrol")
    again = f"the script ends with status {STATUS}: whoever started it can start it again"
    if job is None or scontrol is None:
        why = "this is no job of Slurm" if job is None else "there is no scontrol on PATH"
        get_logger().warning("nobody requeues the job (%s); %s", why, again)
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
