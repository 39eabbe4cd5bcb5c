"""Having a job started again: by Slurm, or by whoever sees its exit status."""

import shutil
import signal
import subprocess
import sys
from typing import NoReturn

from mpigraph import config
from mpigraph.collective import collective
from mpigraph.log import get_logger
from mpigraph.session.context import current, exit_client

__all__ = ["STATUS", "requeue"]

STATUS = 75
"""The exit status of a job that wants to be started again: EX_TEMPFAIL of sysexits.h."""
_SLURM_ANSWERS = 60.0  # seconds


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
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    first, asks = session.rank == 0, session.world.config.requeue == "auto"
    exit_client()
    if first:
        _have_requeued() if asks else get_logger().info("ends with status %d to be started again", STATUS)
    sys.exit(STATUS)


def _have_requeued() -> None:
    """Ask Slurm, and say what comes of it."""
    job, scontrol = config.slurm_job(), shutil.which("scontrol")
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
