"""A progress bar on stderr; where stderr is no terminal, one line for each finished stage."""

import sys
import time

__all__ = ["ProgressBar"]

_WIDTH = 30


class ProgressBar:
    """Callable with (stage, done, total), as partitioning and generating report."""

    def __init__(self) -> None:
        self._stage = ""
        self._begin = time.monotonic()
        self._live = sys.stderr.isatty()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` steps of a stage are over."""
        if stage != self._stage:
            self._stage, self._begin = stage, time.monotonic()
        seconds = time.monotonic() - self._begin
        share = done / total if total else 1.0
        if self._live:
            bar = "#" * round(share * _WIDTH)
            end = "\n" if done >= total else ""
            print(
                f"\r{stage:<24} [{bar:<{_WIDTH}}] {share:4.0%} {seconds:6.1f} s", end=end, file=sys.stderr, flush=True
            )
        elif done >= total:
            print(f"{stage:<24} {seconds:6.1f} s", file=sys.stderr, flush=True)
