"""``python -m mpigraph report``."""

from pathlib import Path

from made_summaries import Fault, Setup, made

from mpigraph.cli.main import main
from mpigraph.reports.summary import write


def test_the_page_is_made_again_and_the_verdict_printed(tmp_path: Path, capsys) -> None:
    write(tmp_path, made(1, Setup(), Fault("model", 3)))
    assert main(["report", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Trainer 3 on node n3 is the slowest: ") and printed.endswith("report.html\n")
    assert "Trainer 3 on node n3 is the slowest: " in (tmp_path / "report.html").read_text()


def test_a_damaged_summary_is_one_line(tmp_path: Path, capsys) -> None:
    (tmp_path / "summary.json").write_text('{"format": "mpigraph report", "version": 7}')
    assert main(["report", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "summary.json is no report of this version" in error and "7" in error
