"""``report.html``: one file for any browser, without any address in it."""

from html import escape
from pathlib import Path

from mpigraph.reports.summary import Summary, replacing
from mpigraph.reports.verdict import judge

__all__ = ["render", "write_page"]


def write_page(folder: Path, summary: Summary) -> None:
    """Write ``report.html`` to a folder. Raises StorageError."""
    with replacing(folder / "report.html") as temporary:
        temporary.write_text(render(summary), encoding="utf-8")


def render(summary: Summary) -> str:
    """Return the page of a report."""
    return f"<!doctype html><title>mpigraph report</title><p>{escape(judge(summary).text)}</p>"
