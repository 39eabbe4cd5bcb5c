"""The reference of the public names: every name is on it, and nothing in it warns."""

import re
import sys
from pathlib import Path

import pytest
import reference
from jobs import ROOT, run

from mpigraph.errors import MPIGraphError

pytestmark = pytest.mark.slow


def test_every_public_name_is_on_the_reference(tmp_path: Path) -> None:
    run(sys.executable, ROOT / "tests" / "support" / "reference.py", tmp_path)  # it changes modules
    missing = []
    for subject, names in reference.pages().items():
        page = (tmp_path / f"{subject}.html").read_text(encoding="utf-8")
        missing += [f"{subject}: {name}" for name in names if f'id="{name}"' not in page]
        assert ":class:`" not in page and ":meth:`" not in page, subject
    assert not missing
    pages = {path.stem: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.html")}
    assert {*reference.SUBJECTS, *reference.GUIDES, "commands"} <= set(pages)
    assert max(map(len, pages.values())) < 500_000
    links = {link for page in pages.values() for link in re.findall(r'href="(\w+)\.html#([^"]+)"', page)}
    assert len(links) > 50 and [link for link in links if f'id="{link[1]}"' not in pages.get(link[0], "")] == []


def test_every_error_has_a_remedy() -> None:
    for name, error in reference.pages()["errors"].items():
        if isinstance(error, type) and error is not MPIGraphError:
            assert len((error.__doc__ or "").split("\n\n")) == 2, name
