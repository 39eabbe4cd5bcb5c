"""The table of reports in README.md: each row names reports, and a test that is there; each test here is in a row."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("README.md")
REPORTS = re.compile(r"[\w.-]+/[\w.-]+#\d+(, [\w.-]+/[\w.-]+#\d+)*")


def rows() -> list[list[str]]:
    """The cells of each row, without the heads of tables."""
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("| ") and line != HEAD]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


HEAD = "| report | there | here | test |"


def names_in(path: str) -> set[str]:
    return set(re.findall(r"^def (test_\w+)\(", (ROOT / path).read_text(), re.MULTILINE))


def test_every_row_names_reports_and_a_test_that_is_there() -> None:
    wrong = []
    for row in rows():
        path, _, name = row[-1].strip("`").partition("::")
        there = len(row) == 4 and all(row) and REPORTS.fullmatch(row[0]) and (ROOT / path).is_file()
        if not there or name not in names_in(path):
            wrong.append(row)
    assert wrong == [] and len(rows()) >= 70


def test_no_report_is_there_twice() -> None:
    reports = [report for row in rows() for report in row[0].split(", ")]
    assert len(reports) == len(set(reports)) >= 70


def test_every_test_of_this_folder_is_in_the_table() -> None:
    named = {row[-1].strip("`").partition("::")[2] for row in rows()}
    assert names_in("tests/user_reports/test_reports.py") <= named
