"""The lookup of names in public modules: their API alone, and for others an error that names the right module."""

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

_NAMESPACES = ("", *"distributed dataloading nn inference checkpoint convert data function errors".split())


def attach(module: str, names: list[str]) -> tuple[Callable[[str], NoReturn], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a module, for its public names."""

    def lookup(name: str) -> NoReturn:
        raise missing(module, name)

    return lookup, lambda: names


def missing(module: str, name: str) -> AttributeError:
    """Return the error of a module that lacks a name; it names the module that has it, without importing it."""
    text = f"module {module!r} has no attribute {name!r}"
    homes = [] if name.startswith("_") else [f"mpigraph.{home}".rstrip(".") for home in _NAMESPACES]
    listed = [f"{home}.{name}" for home in homes if name in _names(home)]
    return AttributeError(f"{text}; there is {listed[0]}" if listed else text, name=name)


def _names(module: str) -> list[str]:
    """Return the names in the ``__all__`` of a module."""
    if module in sys.modules:
        return list(sys.modules[module].__all__)
    path = Path(__file__).parent.joinpath(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "__all__" for to in node.targets):
            return list(ast.literal_eval(node.value))
    return []
