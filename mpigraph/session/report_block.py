"""``mg.report``: what a script asks for."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from mpigraph import trace
from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError, MPIGraphError, check_integer
from mpigraph.mpi.agree import describe
from mpigraph.session.context import Session, current
from mpigraph.session.control import Operation
from mpigraph.trace import Snapshot


class _Report:
    """Callable, so that ``with mg.report(folder):`` reads well beside ``mg.report.scalars()``."""

    def __init__(self) -> None:
        self._before = (trace.clock(), dict[str, Snapshot]())

    @contextmanager
    @collective("trainers", "at the begin and the end of the block")
    def __call__(self, folder: str | os.PathLike[str], steps: tuple[int, int] | None = None) -> Iterator[None]:
        """Record what all ranks do in the block, and write a report of it: why the job is as slow as it is.

        ``folder`` gets ``report.html``, ``summary.json`` and ``trace.json.gz`` (Chrome's format, for Perfetto); an
        earlier report there is removed at the begin. Servers take part. There is one report at a time; that of a whole
        job is asked for by ``initialize(report=folder)`` or ``MPIGRAPH_REPORT=folder``.

        If the block raises an error that all trainers raise, the report of what was done until then is written. After
        another error the other trainers may not come: if it ends the job, each node writes what it knows
        (``summary.json``, and ``summary-NODE.json`` of the others), else the report ends with the job, or as the next
        one begins.

        Args:
            folder: where trainer 0 writes. The same on every trainer.
            steps: record from the step with the first of these numbers until that with the second, which is not
                recorded: minibatches of this trainer's loaders, counted from 0 at the begin of the block. Servers go
                along with the first trainer of their node. By default everything is counted; of spans the last 4,096 of
                each thread are kept, and of steps the last 1,000.

        Raises:
            NotInitializedError: ``initialize()`` was not called.
            InvalidArgumentError: ``steps`` are not two rising numbers, another report is being made, or the folder is
                no path, cannot be written to, or has a file of such a name that is no report's; on every trainer,
                before the block.
            StorageError: the report cannot be written; on every trainer, after the block.
        """
        session = current()
        reporting = session.control.reporting
        arguments: dict[str, Any] = {}
        wrong = None
        try:
            arguments = _check(session, folder, steps)
        except InvalidArgumentError as error:
            wrong = error
        session.control.call(Operation.BEGIN_REPORT, doing="beginning a report", error=wrong, **arguments)
        try:
            yield
        except BaseException as error:
            if session.world.size == 1 or getattr(error, "everywhere", False):
                with suppress(MPIGraphError):
                    _end(session, describe(error))
            reporting.left = True
            raise
        _end(session)

    def scalars(self) -> dict[str, float]:
        """Return numbers for a chart, as of TensorBoard or W&B, of this rank since the call before or the start.

        Local, and takes about a millisecond.

        Returns:
            "seconds" that have passed; "seconds/<thread>/<stage>" in each stage, without the stages inside it; each
            counter by its name, such as "fetched_bytes", those of hosts together; and "cache_hits", the share of remote
            rows that were not fetched.
        """
        now, before = (trace.clock(), trace.sums()), self._before
        self._before = now
        numbers = {"seconds": now[0] - before[0]}
        for thread, sums in now[1].items():
            passed = sums.since(before[1].get(thread, Snapshot()))
            numbers |= {f"seconds/{thread}/{name}": max(stage.own, 0.0) for name, stage in passed.stages.items()}
            for key, number in passed.counts.items():
                name = key if isinstance(key, str) else key[0]
                numbers[name] = numbers.get(name, 0.0) + number
        remote = numbers.get("remote_rows", 0.0)
        numbers["cache_hits"] = 1 - numbers.get("fetched_rows", 0.0) / remote if remote else 0.0
        return numbers


def _check(session: Session, folder: object, steps: object) -> dict[str, Any]:
    """Return the arguments of the call that begins a report, or raise InvalidArgumentError."""
    reporting = session.control.reporting
    if reporting.folder and not reporting.left:
        raise InvalidArgumentError(
            f"one report is made at a time, and one in {reporting.folder!r} is being made: end its block before, or "
            "start the job without MPIGRAPH_REPORT and initialize(report=)"
        )
    if not isinstance(folder, (str, bytes, os.PathLike)) or not os.fsdecode(folder):
        raise InvalidArgumentError(f"the folder of a report must be a path (got {folder!r})")
    window = None
    if steps is not None:
        pair = isinstance(steps, (tuple, list)) and len(steps) == 2
        window = [check_integer("steps", number, 0) for number in steps] if pair else []  # type: ignore[attr-defined]
        if not pair or window[0] >= window[1]:
            raise InvalidArgumentError(f"steps must be two integers, the first one below the second (got {steps!r})")
    return {"folder": os.fsdecode(folder), "window": window}


def _end(session: Session, because: str = "") -> None:
    """End the report, unless the job's end has."""
    if session.control.reporting.folder and not session.world.closed:
        session.control.call(Operation.END_REPORT, because=because)


report = _Report()
"""Makes reports; see :meth:`_Report.__call__`."""
