"""``python -m mpigraph report``."""

from pathlib import Path
from xml.etree import ElementTree

from made_summaries import Fault, Setup, made

from mpigraph.cli.main import main
from mpigraph.reports.summary import write


def test_the_page_is_made_again_and_the_verdict_printed(tmp_path: Path, capsys) -> None:
    write(tmp_path, made(1, Setup(), Fault("model", 3)))
    assert main(["report", str(tmp_path), "--picture", str(tmp_path / "picture.svg")]) == 0
    drawn = ElementTree.parse(tmp_path / "picture.svg").getroot()
    assert "Trainer 3 on node n3 is the slowest: " in "".join(drawn.itertext())
    printed = capsys.readouterr().out
    assert printed.startswith("Trainer 3 on node n3 is the slowest: ") and printed.endswith("report.html\n")
    assert "Trainer 3 on node n3 is the slowest: " in (tmp_path / "report.html").read_text()


def test_two_runs_are_compared(tmp_path: Path, capsys) -> None:
    before = made(1, Setup(hits=0.1, bandwidth=5e7))
    after = made(1, Setup(hits=0.8, bandwidth=5e7))
    after.job.arguments["cache"] = "2GiB"
    write(tmp_path / "a", before)
    write(tmp_path / "b", after)
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    lines = capsys.readouterr().out.splitlines()
    changes = lines[lines.index("") + 1 :]
    assert changes[0].startswith("median step: ") and float(changes[0].split("(")[1].rstrip("x)")) < 0.9
    assert "cache: not set -> 2GiB" in changes and "cache hits: 10 % -> 80 % (8.00x)" in changes
    assert any(line.startswith("  stage meet: ") for line in changes)
    assert any(line.startswith("received by a trainer in a step: ") for line in changes)
    assert not any("transport" in line for line in changes)
    assert not (tmp_path / "a" / "report.html").exists()


def test_a_damaged_summary_is_one_line(tmp_path: Path, capsys) -> None:
    (tmp_path / "summary.json").write_text('{"format": "mpigraph report", "version": 7}')
    assert main(["report", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "summary.json must have the fields format" in error and "7" in error
