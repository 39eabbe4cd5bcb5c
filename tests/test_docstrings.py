"""Everything public is described, and says whether it communicates: collective, one-sided or local."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "mpigraph").rglob("*.py"))}
WORDS = ("Collective on", "Local", "One-sided")
WITHOUT = {"errors.py", "config.py", "log.py"}  # nothing there could communicate
SPEAKING = {"mpi", "store", "service", "distributed", "dataloading"}  # where methods may

Definition = ast.FunctionDef | ast.ClassDef


def listed(tree: ast.Module) -> list[str]:
    """The names in ``__all__``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return list(ast.literal_eval(node.value))
    return []


def public(tree: ast.Module) -> Iterator[Definition]:
    """The functions and classes that ``__all__`` names."""
    names = listed(tree)
    yield from (node for node in tree.body if isinstance(node, Definition) and node.name in names)


def methods(node: Definition) -> Iterator[ast.FunctionDef]:
    for item in node.body if isinstance(node, ast.ClassDef) else []:
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
            yield item


def says(text: str) -> bool:
    return any(word in text for word in WORDS)


def is_property(method: ast.FunctionDef) -> bool:
    return any("property" in ast.unparse(d) or ".setter" in ast.unparse(d) for d in method.decorator_list)


def covered(method: ast.FunctionDef, about: str) -> bool:
    """Whether method or class says how the method communicates."""
    everything_local = "Local; no communication" in about and "Collective on" not in about and "but for" not in about
    return everything_local or f":meth:`{method.name}`" in about or says(ast.get_docstring(method) or "")


def complaints(path: str, source: str) -> Iterator[str]:
    """What is missing in one file."""
    tree = ast.parse(source)
    parts = Path(path).parts[1:]
    if not ast.get_docstring(tree):
        yield f"{path}: no module docstring"
    if listed(tree) == [] and parts[-1] not in ("__init__.py", "__main__.py"):
        yield f"{path}: no __all__"
    for node in public(tree):
        about = ast.get_docstring(node) or ""
        if not about:
            yield f"{path}: {node.name} has no docstring"
        elif parts[-1] not in WITHOUT and not says(about):
            yield f"{path}: {node.name} does not say whether it communicates"
        protocol = isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases)
        for method in methods(node):
            if not ast.get_docstring(method):
                yield f"{path}: {node.name}.{method.name} has no docstring"
            elif parts[0] in SPEAKING and not is_property(method) and not protocol and not covered(method, about):
                yield f"{path}: {node.name}.{method.name} does not say whether it communicates"


def test_everything_public_is_described() -> None:
    found = [text for path, source in FILES.items() for text in complaints(path, source)]
    assert not found, "\n".join(found)


def test_all_names_what_exists() -> None:
    for path, source in FILES.items():
        tree, names = ast.parse(source), set()
        if path == "mpigraph/__init__.py":
            continue  # looks its names up when they are used
        for node in tree.body:
            if isinstance(node, Definition):
                names.add(node.name)
            elif isinstance(node, ast.Assign):
                names |= {t.id for target in node.targets for t in ast.walk(target) if isinstance(t, ast.Name)}
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        assert set(listed(tree)) <= names, path
        assert len(listed(tree)) == len(set(listed(tree))), path


HEAD = '"""A module."""\n__all__ = ["f", "C"]\n'
GOOD = (
    HEAD
    + 'def f():\n    """Do. Local; no communication."""\n'
    + 'class C:\n    """Thing.\n\n    Collective on ``comm``: :meth:`close`.\n    """\n'
    + '    def close(self):\n        """End."""\n'
    + '    def look(self):\n        """See. One-sided; the target does nothing."""\n'
    + '    @property\n    def size(self):\n        """How many."""\n'
)


def test_the_rules_can_fail() -> None:
    def found(source: str, path: str = "mpigraph/mpi/x.py") -> list[str]:
        return [text.removeprefix(f"{path}: ") for text in complaints(path, source)]

    assert found(GOOD) == []
    assert found(GOOD.replace(" Local; no communication.", "")) == ["f does not say whether it communicates"]
    assert found(GOOD.replace('"""Do. Local; no communication."""', "pass")) == ["f has no docstring"]
    assert found(GOOD.replace(":meth:`close`", "closing")) == ["C.close does not say whether it communicates"]
    assert found(GOOD.replace('"""End."""', "pass")) == ["C.close has no docstring"]
    assert found(GOOD.replace(" One-sided; the target does nothing.", "")) == [
        "C.look does not say whether it communicates"
    ]
    assert found(GOOD.replace('"""How many."""', "pass")) == ["C.size has no docstring"]
    assert found(GOOD.removeprefix('"""A module."""\n')) == ["no module docstring"]
    assert found('"""A module."""\n') == ["no __all__"]
    assert found(GOOD.replace(" Local; no communication.", ""), "mpigraph/errors.py") == []
