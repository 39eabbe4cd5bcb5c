"""Docstrings name errors that exist and shapes of arrays, and a decorator writes the sentence of collective calls.

That everything public has one, ruff requires. Silent means local. Whether trainers make a collective call together is
compared while the tests run (``mpigraph/collective.py``); here only functions that call MPI themselves are looked at.
"""

import ast
import builtins
import re
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from sources import FILES, nodes, parsed

BLOCKING = """
Barrier Bcast Gather Gatherv Scatter Scatterv Allgather Allgatherv Alltoall Alltoallv Reduce Allreduce Reduce_scatter
""".split()
COLLECTIVES = {*BLOCKING, *(f"I{name.lower()}" for name in BLOCKING), "Split", "Split_type", "Dup", "Create_group"}
OF_WINDOWS = {"Allocate", "Allocate_shared", "Create"}  # of MPI.Win
HANDLES = {"win", "comm", "shared"}  # names of what only all ranks together can free
BY_HAND = re.compile(r"\bcollective on\b(?! \.\.\.)", re.IGNORECASE)
ARRAY = re.compile(r"[IUF]\d+|Array|Values|torch\.Tensor")
SHAPE = re.compile(r"\[|shape|\b(see|as)\b", re.IGNORECASE)
FOREIGN = {*dir(builtins), "ArrowInvalid"}


def test_every_error_has_a_remedy() -> None:
    errors = [node for node in parsed(FILES["mpigraph/errors.py"]).body if isinstance(node, ast.ClassDef)]
    short = [node.name for node in errors if len((ast.get_docstring(node) or "").split("\n\n")) != 2]
    assert len(errors) > 10 and set(short) <= {"_UnknownNameError", "MPIGraphError"}


def entries(docstring: str, section: str) -> dict[str, str]:
    """What a section of a docstring lists: its text by name."""
    if f"{section}:\n" not in docstring:
        return {}
    match = re.search(rf"^{section}:\n((?: {{4}}.*\n?|\n)+)", docstring, re.MULTILINE)
    return dict(re.findall(r"^ {4}(\w[\w, ]*): ((?:.*\n?)(?: {8}.*\n?)*)", match[1] if match else "", re.MULTILINE))


def unclear(path: str, source: str, classes: set[str]) -> Iterator[str]:
    """Errors that docstrings name and that do not exist, and arrays without a shape, in one file."""
    for node in nodes(parsed(source)):
        text = (ast.get_docstring(node) or "") if isinstance(node, ast.FunctionDef) else ""
        for names in entries(text, "Raises"):
            yield from (f"{path}: {name} does not exist" for name in names.split(", ") if name not in classes)
        arguments = entries(text, "Args") if text and node.name[0] != "_" else {}
        for arg in [*node.args.args, *node.args.kwonlyargs] if arguments else []:
            if ARRAY.fullmatch(ast.unparse(arg.annotation or arg)) and not SHAPE.search(arguments.get(arg.arg, "")):
                yield f"{path}: {node.name} does not say of which shape {arg.arg} is"


def test_errors_exist_and_arrays_have_shapes() -> None:
    trees = [parsed(source) for source in FILES.values()]
    classes = {node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    found = [text for path, source in FILES.items() for text in unclear(path, source, classes | FOREIGN)]
    assert not found, "\n".join(found)


# Collective calls


def of_mpi(call: ast.AST) -> bool:
    """Return whether a node calls one of MPI's collective operations."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    name = call.func.attr
    if name not in COLLECTIVES | OF_WINDOWS | {"Free"}:
        return False
    receiver = ast.unparse(call.func.value)
    if name in OF_WINDOWS:
        return receiver == "MPI.Win"
    if name == "Free":
        return receiver.split(".")[-1].strip("_") in HANDLES
    return name in COLLECTIVES


def decorated(function: ast.FunctionDef) -> bool:
    return any("collective" in ast.unparse(decorator).split("(")[0] for decorator in function.decorator_list)


def silent(path: str, source: str) -> Iterator[str]:
    """Public functions that make collective calls of MPI, and sentences that no decorator has written, in one file."""
    tree = parsed(source)
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and BY_HAND.search(
            ast.get_docstring(node) or ""
        ):
            yield f"{path}: a docstring says by hand what is collective: use @collective"
    for owner in [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_")]:
        for node in owner.body:
            if not isinstance(node, ast.FunctionDef) or (node.name[0] == "_" and node.name != "__init__"):
                continue
            if not decorated(node) and any(map(of_mpi, ast.walk(node))):
                yield f"{path}: {node.name} makes a collective call of MPI and has no @collective"


def test_what_is_collective_says_so() -> None:
    found = [text for path, source in FILES.items() for text in silent(path, source)]
    assert not found, "\n".join(found)


RAISES = 'def f(x: I64):\n    """Do.\n\n    Args:\n        x: int64[n].\n\n    Raises:\n        A, B: no.\n    """'
MAKES = "class C:\n    def __init__(self):\n        MPI.Win.Create(8)\n    def f(self):\n        self._win.Free()"


@pytest.mark.parametrize(
    ("rule", "source", "count"),
    [
        (partial(unclear, classes={"A", "B"}), RAISES, 0),
        (partial(unclear, classes={"A"}), RAISES, 1),
        (partial(unclear, classes={"A", "B"}), RAISES.replace("[n]", ""), 1),
        (silent, "def f(comm):\n    comm.Barrier()", 1),
        (silent, "@collective('comm')\ndef f(comm):\n    comm.Barrier()", 0),
        (silent, "def _f(comm):\n    comm.Barrier()", 0),
        (silent, MAKES, 2),
        (silent, "class C:\n    def f(self):\n        self.rows.Free()\n        self.Allocate()", 0),
        (silent, 'def f():\n    """Collective on the trainers."""', 1),
    ],
)
def test_each_rule_can_fail_and_hold(rule: Callable[[str, str], Iterator[str]], source: str, count: int) -> None:
    assert len(list(rule("x.py", source))) == count
