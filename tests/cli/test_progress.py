"""Progress: a bar in a terminal, a line now and then in a log."""

import io
import re
import time
from contextlib import redirect_stderr

from mpigraph.cli import ranks
from mpigraph.cli.main import main
from mpigraph.cli.ranks import ProgressBar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_in_a_terminal_has_rate_and_time_left(monkeypatch):
    monkeypatch.setattr(ranks, "_SECONDS_IN_TERMINAL", 0.01)
    monkeypatch.setenv("COLUMNS", "90")
    with redirect_stderr(terminal := Terminal()):
        report = ProgressBar()
        for done in range(0, 25_000, 5_000):
            report("draw edges", done, 20_000)
            time.sleep(0.05)
    *before, last = terminal.getvalue().split("\r")[1:]
    assert re.fullmatch(r"draw edges: 100%\|.+\| 20000/20000 \[\d\d:\d\d<00:00, \d.*/s\]\n", last), last
    assert len(before) == 4 and all(len(line) == 89 for line in before)  # each over the one before


def test_a_log_gets_a_line_now_and_then(capsys, monkeypatch):
    for seconds, number in ((10.0, 2), (0.0, 5)):
        monkeypatch.setattr(ranks, "_SECONDS_IN_LOG", seconds)
        report = ProgressBar()
        for done in range(5):
            report("write topology", done, 4)
        report("write node features", 0, 0)  # of no steps: nothing to say
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == number
        assert re.fullmatch(r"write topology: 100%\|\S+\| 4/4 \[\d\d:\d\d<00:00, .*/s\]", lines[-1]), lines


def test_generating_and_partitioning_tell_each_stage_once(tmp_path, capsys):
    sizes = ["--nodes", "300", "--edges", "20000", "--feat-dim", "2", "--classes", "2"]
    assert main(["generate", *sizes, "-o", str(tmp_path / "data")]) == 0
    assert stages(capsys) == ["write edges", "write features"]
    assert main(["partition", str(tmp_path / "data"), "--parts", "2", "-o", str(tmp_path / "parts")]) == 0
    assert stages(capsys) == ["check edges", "assign nodes (metis)", "relabel edges", "write parts"]


def stages(capsys):
    lines = capsys.readouterr().err.splitlines()
    return [line.partition(":")[0] for line in lines if " 100%|" in line]
