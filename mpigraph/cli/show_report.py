"""``python -m mpigraph report``: make the page of a report again, print its verdict, compare two runs."""

import argparse
from pathlib import Path

from mpigraph.reports.comparison import compare
from mpigraph.reports.page import picture, write_page
from mpigraph.reports.summary import read, replacing
from mpigraph.reports.verdict import judge


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
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.folder)
    summary = read(folder)
    print(judge(summary).text)
    if arguments.picture is not None:
        with replacing(Path(arguments.picture)) as temporary:
            temporary.write_text(picture(summary), encoding="utf-8")
    if arguments.other is None:
        write_page(folder, summary)
        print(folder / "report.html")
        return 0
    second = read(Path(arguments.other))
    print(judge(second).text)
    print("\n".join(["", *compare(summary, second)]))
    return 0
