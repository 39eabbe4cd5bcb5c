"""Progress of a command's stages on stderr: tqdm's bars in a terminal, now and then a line in a log.

A thread redraws them, so that the time goes on while a stage computes.
"""

import shutil
import sys
import threading
import time
from functools import partial
from types import TracebackType

from tqdm import tqdm

from mpigraph.compiling import REPORT

__all__ = ["ProgressBar"]

_BAR = "{desc:<22} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}]"
_LINE = "{desc:<22} {percentage:3.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}]"
_CLOCK = "{desc:<22} {elapsed}"
_CLOCK_STOPPED = "{desc:<22} done in {elapsed_s:.1f} s"
_SECONDS_IN_TERMINAL = 0.2
_SECONDS_IN_LOG = 10.0
_SCALED = 10_000  # steps from which they are shown as 12.3k


class ProgressBar:
    """Shows stages; called with (stage, done, total) as :mod:`mpigraph.partition.progress` says. A context manager."""

    def __init__(self) -> None:
        self._stage = ""
        self._shown: _Bar | _Lines | None = None  # of the stage in progress
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._redraw, name="mpigraph-bar", daemon=True)

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` steps of a stage are over."""
        if total == 0:
            return
        with self._lock:
            if stage != self._stage:
                self._end(finished=False)
            if self._shown is None:
                self._stage = stage
                self._shown = _Bar(stage, total) if sys.stderr.isatty() else _Lines(stage, total)
            self._shown.update(done, total)
            if done >= total:
                self._end(finished=True)

    def __enter__(self) -> "ProgressBar":
        self._thread.start()
        REPORT.tell = partial(tqdm.write, file=sys.stderr)  # which draws the bar again below the line
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        REPORT.tell = None
        self._stop.set()
        self._thread.join()
        self._end(finished=False)

    def _end(self, finished: bool) -> None:
        if self._shown is not None:
            self._shown.close(finished)
            self._shown = None

    def _redraw(self) -> None:
        while not self._stop.wait(_SECONDS_IN_TERMINAL if sys.stderr.isatty() else _SECONDS_IN_LOG):
            with self._lock:
                if self._shown is not None:
                    self._shown.draw()


def _described(stage: str) -> str:
    """The stage, with what stands in its way."""
    return f"{stage} ({status})" if (status := REPORT.status()) else stage


class _Bar:
    """A stage in a terminal; a clock where progress is not known."""

    def __init__(self, stage: str, total: int) -> None:
        self._stage = stage
        self._is_clock = total == 1
        size = shutil.get_terminal_size()  # tqdm's own guess is 0 where the terminal does not say, and shows nothing
        self._tqdm = tqdm(
            desc=stage,
            total=total,
            file=sys.stderr,
            ncols=size.columns,
            nrows=size.lines,
            unit="",
            unit_scale=total >= _SCALED,
            bar_format=_CLOCK if self._is_clock else _BAR,
        )

    def update(self, done: int, total: int) -> None:
        self._tqdm.n = done
        self._tqdm.total = total

    def draw(self) -> None:
        self._tqdm.desc = _described(self._stage)
        self._tqdm.refresh()

    def close(self, finished: bool) -> None:
        self._tqdm.desc = self._stage
        if self._is_clock and finished:
            self._tqdm.bar_format = _CLOCK_STOPPED
        self._tqdm.close()


class _Lines:
    """A stage in a log: every drawing is a line."""

    def __init__(self, stage: str, total: int) -> None:
        self._stage = stage
        self._is_clock = total == 1
        self._begin = time.monotonic()
        self.update(0, total)

    def update(self, done: int, total: int) -> None:
        self._done = done
        self._total = total

    def draw(self) -> None:
        self._print(_CLOCK if self._is_clock else _LINE)

    def close(self, finished: bool) -> None:
        if self._is_clock and finished:
            self._print(_CLOCK_STOPPED)
        else:
            self.draw()

    def _print(self, bar_format: str) -> None:
        seconds = time.monotonic() - self._begin
        line = tqdm.format_meter(
            self._done,
            self._total,
            seconds,
            prefix=_described(self._stage),
            unit="",
            unit_scale=self._total >= _SCALED,
            bar_format=bar_format,
        )
        print(line.rstrip(), file=sys.stderr, flush=True)
