"""``mg.report``: what a script asks for."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError
from mpigraph.session.context import current
from mpigraph.session.control import Operation
from mpigraph.session.reporting import Reporting


@contextmanager
@collective("trainers", "at the begin and the end of the block")
def report(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Record what all ranks do in the block, and write a report of it: why the job is as slow as it is.

    ``folder`` gets ``report.html``, ``summary.json`` and ``trace.json.gz`` (Chrome's format, for Perfetto); an earlier
    report there is removed at the begin. Servers take part. Everything is counted; of spans the last 4,096 of each
    thread are kept, and of steps the last 1,000. There is one report at a time; that of a whole job is asked for by
    ``initialize(report=folder)`` or ``MPIGRAPH_REPORT=folder``.

    If the block raises an error, the other trainers may not come: the report ends with the job, or as the next one
    begins.

    Args:
        folder: where trainer 0 writes. The same on every trainer.

    Raises:
        NotInitializedError: ``initialize()`` was not called.
        InvalidArgumentError: another report is being made, or the folder is no path, cannot be written to, or has a
            file of such a name that is no report's; on every trainer, before the block.
        StorageError: the report cannot be written; on every trainer, after the block.
    """
    session = current()
    reporting = session.control.reporting
    name, wrong = "", None
    try:
        name = _check(reporting, folder)
    except InvalidArgumentError as error:
        wrong = error
    session.control.call(Operation.BEGIN_REPORT, doing="beginning a report", error=wrong, folder=name)
    try:
        yield
    except BaseException:
        reporting.left = True
        raise
    if reporting.folder and not session.world.closed:  # else the job's end has ended it
        session.control.call(Operation.END_REPORT)


def _check(reporting: Reporting, folder: object) -> str:
    """Return the name of the folder, or raise InvalidArgumentError."""
    if reporting.folder and not reporting.left:
        raise InvalidArgumentError(
            f"one report is made at a time, and one in {reporting.folder!r} is being made: end its block before, or "
            "start the job without MPIGRAPH_REPORT and initialize(report=)"
        )
    if not isinstance(folder, (str, bytes, os.PathLike)) or not os.fsdecode(folder):
        raise InvalidArgumentError(f"the folder of a report must be a path (got {folder!r})")
    return os.fsdecode(folder)
