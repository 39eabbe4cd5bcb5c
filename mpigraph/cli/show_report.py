"""``python -m mpigraph report``: make the page of a report again, print its verdict, compare two runs."""

import argparse
from pathlib import Path

from mpigraph.reports.comparison import compare
from mpigraph.reports.page import picture, write_page
from mpigraph.reports.summary import read, replacing
from mpigraph.reports.verdict import judge

__all__ = ["add_parser", "run"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "report",
        help="say why a job was slow, from the report that it wrote; compare two",
        description="Write DIR/report.html again from the summary beside it and print the verdict: the rank or stage "
        "that makes the job slow. With OTHER print what differs between the two runs.",
    )
    parser.add_argument("folder", metavar="DIR", help="the folder of a report (MPIGRAPH_REPORT, mg.report)")
    parser.add_argument("other", metavar="OTHER", nargs="?", help="the folder of another run's report, to compare with")
    parser.add_argument("--picture", metavar="FILE.svg", help="also draw verdict, steps and stages for a document")
    parser.set_defaults(run=lambda arguments: run(arguments.folder, arguments.other, arguments.picture))


def run(folder: str, other: str | None = None, drawing: str | None = None) -> int:
    """Print the verdict of a report and write its page, or compare two reports.

    Args:
        folder: of the report.
        other: of the report to compare with.
        drawing: a file for a picture of the first report.

    Returns:
        The exit status.

    Raises:
        StorageError: a summary is missing, damaged or of another version; names file and field.
    """
    summary = read(Path(folder))
    print(judge(summary).text)
    if drawing is not None:
        with replacing(Path(drawing)) as temporary:
            temporary.write_text(picture(summary), encoding="utf-8")
    if other is None:
        write_page(Path(folder), summary)
        print(Path(folder) / "report.html")
        return 0
    second = read(Path(other))
    print(judge(second).text)
    print("\n".join(["", *compare(summary, second)]))
    return 0
