"""No public call takes an argument and drops it without a word: what it does not use, its docstring says so."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "mpigraph").rglob("*.py"))}
SAYS = re.compile(r"accepted|without effect|ignore[ds]|changes? nothing", re.IGNORECASE)
ELSEWHERE = re.compile(r"^As :meth:|(options|arguments) are those of|[Tt]he same as :meth:")
OWN = {"self", "cls"}
NOT_OF_USERS = (
    "checkpoint/background",
    "partition/",
    "cli/",
    "kernels/",
    "mpi/",
    "rows/",
    "sampling/",
    "storage/",
    "store/",
)


def callables(tree: ast.AST, above: str = "") -> Iterator[tuple[ast.FunctionDef, str]]:
    """Public functions and methods, and the docstring of the class."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from callables(node, ast.get_docstring(node) or "")
        elif isinstance(node, ast.FunctionDef) and (
            not node.name.startswith("_") or node.name in ("__init__", "__new__")
        ):
            yield node, above


def dropped(source: str) -> Iterator[str]:
    """Arguments that a function does not use, without saying so."""
    for function, above in callables(ast.parse(source)):
        body = [
            part for part in function.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
        ]
        if all(isinstance(part, ast.Raise | ast.Pass) for part in body):
            continue  # for subclasses to say
        used = {node.id for part in body for node in ast.walk(part) if isinstance(node, ast.Name)} | OWN
        args = function.args
        more = [arg for arg in (args.vararg, args.kwarg) if arg is not None]
        text = f"{ast.get_docstring(function) or ''}\n{above}"
        for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, *more):
            entry = re.search(rf"^ *{arg.arg}: .*(\n {{8,}}.*)*", text, re.MULTILINE)
            said = SAYS.search(entry.group() if entry else text) or (arg not in more and ELSEWHERE.search(text))
            if arg.arg not in used and not said:
                yield f"{function.name} drops {arg.arg}"


def test_no_argument_is_taken_and_dropped() -> None:
    files = {
        file: text for file, text in FILES.items() if not file.startswith(tuple(f"mpigraph/{p}" for p in NOT_OF_USERS))
    }
    assert [f"{file}: {text}" for file, source in files.items() for text in dropped(source)] == []


def test_an_argument_can_be_dropped() -> None:
    source = '''
class Loader:
    """A loader."""
    def __new__(cls, graph, *_, **options):
        """Make it."""
        return cls.make(graph, **options)
    def go(self, fast, slow):
        """Go.

        Args:
            fast: whether to hurry.
            slow: accepted for scripts.
        """
        return 1
'''
    assert list(dropped(source)) == ["__new__ drops _", "go drops fast"]
