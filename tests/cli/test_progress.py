"""Progress: bars and moving clocks in a terminal, a line now and then in a log."""

import io
import re
import time
from contextlib import redirect_stderr

import pytest

from mpigraph.cli import ranks
from mpigraph.cli.main import main
from mpigraph.cli.ranks import ProgressBar
from mpigraph.compiling import REPORT


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """A terminal, for ``redirect_stderr``."""
    monkeypatch.setattr(ranks, "_SECONDS_IN_TERMINAL", 0.01)
    monkeypatch.setenv("COLUMNS", "90")
    return Terminal()


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_bar_in_a_terminal_has_rate_and_time_left(terminal):
    with redirect_stderr(terminal), ProgressBar() as report:
        for done in range(0, 20_000, 5_000):
            report("draw edges", done, 20_000)
            time.sleep(0.05)
        report("draw edges", 20_000, 20_000)
    last = terminal.getvalue().split("\r")[-1].strip()
    assert re.fullmatch(r"draw edges +100%\|.+\| 20.0k/20.0k \[\d\d:\d\d<00:00, \d.*/s\]", last), last
    assert len(last) <= 90


def test_a_clock_moves_while_a_stage_computes(terminal):
    with redirect_stderr(terminal), ProgressBar() as report:
        report("assign nodes (metis)", 0, 1)
        wait_for(lambda: re.search(r"assign nodes \(metis\)   00:0[1-9]", terminal.getvalue()))
        report("assign nodes (metis)", 1, 1)
    shown = terminal.getvalue()
    assert "%" not in shown  # of a bar
    assert re.search(r"assign nodes \(metis\)   done in \d.\d s *\n$", shown), shown


def test_a_bar_says_that_kernels_are_compiled(terminal):
    with redirect_stderr(terminal), ProgressBar() as report:
        report("write parts", 0, 4)
        REPORT.begin()
        try:
            wait_for(lambda: "write parts (compiling kernels: " in terminal.getvalue())
        finally:
            REPORT.end()
        report("write parts", 4, 4)
    assert re.match("write parts +100%", terminal.getvalue().split("\r")[-1])
    assert REPORT.tell is None


def test_a_stage_that_fails_is_not_done(terminal):
    with pytest.raises(ValueError, match="bad"), redirect_stderr(terminal), ProgressBar() as report:
        report("check edges", 0, 1)
        raise ValueError("bad")
    assert "done" not in terminal.getvalue() and terminal.getvalue().endswith("\n")


def test_a_log_gets_a_line_at_the_end_of_each_stage(capsys):
    with ProgressBar() as report:
        for done in range(5):
            report("write topology", done, 4)
        report("write node features", 0, 0)  # of no steps: nothing to say
        report("check edges", 0, 1)
        report("check edges", 1, 1)
    lines = capsys.readouterr().err
    assert re.fullmatch(
        r"write topology         100%\|\S+\| 4/4 \[\d\d:\d\d<00:00, .*/s\]\ncheck edges            done in \d+\.\d s\n",
        lines,
    ), lines


def test_a_log_gets_a_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(ranks, "_SECONDS_IN_LOG", 0.1)
    seen = []
    with ProgressBar() as report:
        report("assign nodes (metis)", 0, 1)
        wait_for(lambda: seen.append(capsys.readouterr().err) or len("".join(seen).splitlines()) >= 3)
    text = "".join(seen)
    assert re.fullmatch(r"(assign nodes \(metis\)   00:\d\d\n)+", text), text


def test_generating_and_partitioning_tell_each_stage_once(tmp_path, capsys):
    sizes = ["--nodes", "300", "--edges", "20000", "--feat-dim", "2", "--classes", "2"]
    assert main(["generate", *sizes, "-o", str(tmp_path / "data")]) == 0
    assert stages(capsys) == ["write edges", "write features"]
    assert main(["partition", str(tmp_path / "data"), "--parts", "2", "-o", str(tmp_path / "parts")]) == 0
    assert stages(capsys) == ["check edges", "assign nodes (metis)", "relabel edges", "write parts"]


def stages(capsys):
    lines = capsys.readouterr().err.splitlines()
    return [line[:22].strip() for line in lines if re.search(r" 100%\|| done in ", line)]
