"""What is said while kernels are compiled."""

import re
from itertools import count
from types import SimpleNamespace

import pytest

from mpigraph import compiling
from mpigraph.compiling import Report


@pytest.fixture(autouse=True)
def first_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "launcher_rank", lambda: 0)


def test_a_log_has_a_line_at_first_and_then_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(compiling, "get_logger", lambda: SimpleNamespace(warning=lines.append))
    report, clock = Report(), count(100, 4)
    monkeypatch.setattr(compiling, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    for _ in range(3):  # one kernel calls another
        report.begin()
        report.begin()
        report.end()
        report.end()
    assert lines[0].startswith("compiling kernels (first use)") and 2 <= len(lines) <= 6
    assert all(line.startswith("compiling kernels: ") for line in lines[1:])
    assert report.compiled == 6 and report.status() == ""
    report.begin()
    assert re.fullmatch(r"compiling kernels: 6 done, \d+ s", report.status())
