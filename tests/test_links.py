"""Links between documents: each relative one names a file that is there, and a heading that it has."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", *(path for path in ROOT.glob("[!.]*/**/*.md") if ".venv" not in path.parts)]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_documents() -> None:
    bad = []
    for path in DOCUMENTS:
        for target, anchor in LINK.findall(path.read_text(encoding="utf-8")):
            there = (path.parent / target).resolve() if target else path
            if not there.exists() or (anchor and anchor not in anchors(there.read_text(encoding="utf-8"))):
                bad.append(f"{path.relative_to(ROOT)}: {target}#{anchor}")
    assert len(DOCUMENTS) >= 10 and not bad, "\n".join(bad)
