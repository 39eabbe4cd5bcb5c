"""The library's source, which a process reads, parses and walks once."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "mpigraph"
FILES = {str(path.relative_to(ROOT)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
parsed = cache(ast.parse)


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """A tree and everything in it."""
    return tuple(ast.walk(tree))
