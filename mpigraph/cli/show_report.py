"""``python -m mpigraph report``: make the page of a report again, and print its verdict."""

import argparse
from pathlib import Path

from mpigraph.reports.page import write_page
from mpigraph.reports.summary import read
from mpigraph.reports.verdict import judge


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "report",
        help="say why a job was slow, from the report that it wrote",
        description="Write DIR/report.html again from the summary beside it and print the verdict: the rank or stage "
        "that makes the job slow.",
    )
    parser.add_argument("folder", metavar="DIR", help="the folder of a report (MPIGRAPH_REPORT, mg.report)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.folder)
    summary = read(folder)
    print(judge(summary).text)
    write_page(folder, summary)
    print(folder / "report.html")
    return 0
