"""Signatures of the upper floors say what they take: ``Any`` is the exception."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "mpigraph"
ROOMS = ("distgraph", "dataloading", "session", "distributed", "optim", "nn", "graphs")
MOST = 0.05


def parameters(tree: ast.AST) -> Iterator[ast.arg]:
    """The annotated parameters of all functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            some = node.args
            listed = [*some.posonlyargs, *some.args, *some.kwonlyargs, some.vararg, some.kwarg]
            yield from (arg for arg in listed if arg is not None and arg.annotation is not None)


def aliases(tree: ast.Module) -> set[str]:
    """``Any``, and the names that a module gives to it or to something made of it."""
    found = {"Any"}
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if value is not None and any(isinstance(one, ast.Name) and one.id in found for one in ast.walk(value)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def untyped(tree: ast.Module) -> list[str]:
    """The names of the parameters that are ``Any``, or of it."""
    names = aliases(tree)
    return [
        arg.arg
        for arg in parameters(tree)
        if any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(arg.annotation))
    ]


def test_few_parameters_are_untyped() -> None:
    trees = {path: ast.parse(path.read_text()) for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))}
    found = {str(path.relative_to(ROOT)): untyped(tree) for path, tree in trees.items()}
    count = sum(len(list(parameters(tree))) for tree in trees.values())
    assert count > 1000
    assert sum(map(len, found.values())) <= MOST * count, {path: names for path, names in found.items() if names}


def test_untyped_parameters_are_found() -> None:
    source = "A = dict[str, Any]\nB: TypeAlias = A\ndef f(a: Any, b: dict[str, Any], /, c: int, d, *e: B, g: 'int' = 1, **h: Callable[[int], Any]): ..."
    assert untyped(ast.parse(source)) == ["a", "b", "e", "h"]
    assert len(list(parameters(ast.parse(source)))) == 6
