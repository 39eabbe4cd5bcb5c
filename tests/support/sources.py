"""The library's source, which a process reads, parses and walks once."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "mpigraph"
FILES = {str(path.relative_to(ROOT)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
PAGE = (PACKAGE / "README.md").read_text(encoding="utf-8")
parsed = cache(ast.parse)


def section(title: str) -> str:
    """The text of a section of mpigraph/README.md."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """A tree and everything in it."""
    return tuple(ast.walk(tree))
