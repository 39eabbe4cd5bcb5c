"""The reference of the public names: every name is on it, and nothing in it warns."""

import sys
from importlib import import_module
from pathlib import Path

import pytest
import reference
from jobs import ROOT, run

pytestmark = pytest.mark.slow


def test_every_public_name_is_on_the_reference(tmp_path: Path) -> None:
    run(sys.executable, ROOT / "tests" / "support" / "reference.py", tmp_path)  # it changes modules
    missing = []
    for name in reference.MODULES:
        path = tmp_path / name.replace(".", "/")
        page = path.with_suffix(".html").read_text(encoding="utf-8")
        for public in import_module(name).__all__:
            if f'id="{public}"' not in page and not (path / f"{public}.html").exists():
                missing.append(f"{name}.{public}")
        assert ":class:`" not in page and ":meth:`" not in page, name
    assert not missing
