"""The lookup of names in public modules: their API alone, and for others an error that names the right module.

The API of a module is what its ``__all__`` lists. One that only collects names needs no list: there it is what is
imported under its own name, ``from mpigraph.nn.layers import SAGEConv as SAGEConv``, as type checkers and editors see
it, too.
"""

import ast
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

_NAMESPACES = ("", *"distributed dataloading nn inference checkpoint convert data function errors".split())


def attach(module: str, load: Callable[[str], object] | None = None) -> None:
    """Give a module the ``__all__`` and the ``__dir__`` of its API, and :func:`missing` for other names.

    ``load`` returns a value of the API that the module did not import, on its first use.
    """

    def lookup(name: str) -> object:
        if name == "__all__":
            return public(module)
        if load is not None and name in public(module):
            return load(name)
        raise missing(module, name)

    vars(sys.modules[module]).update(__getattr__=lookup, __dir__=lambda: public(module))


def missing(module: str, name: str) -> AttributeError:
    """Return the error of a module that lacks a name; it names the module that has it, without importing it."""
    text = f"module {module!r} has no attribute {name!r}"
    homes = [] if name.startswith("_") else [f"mpigraph.{home}".rstrip(".") for home in _NAMESPACES]
    listed = [f"{home}.{name}" for home in homes if name in public(home)]
    return AttributeError(f"{text}; there is {listed[0]}" if listed else text, name=name)


def public(module: str) -> list[str]:
    """Return the names of the API of a module, without importing it."""
    listed: list[str] | None = vars(sys.modules[module]).get("__all__") if module in sys.modules else None
    return list(_read(module) if listed is None else listed)


@cache
def _read(module: str) -> list[str]:
    path = Path(__file__).parent.joinpath(*module.split(".")[1:])
    init = path / "__init__.py"
    path = init if init.is_file() else path.with_suffix(".py")
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
        if isinstance(node, ast.ImportFrom):
            names += [alias.name for alias in node.names if alias.asname == alias.name]
            names += public(str(node.module)) if node.names[0].name == "*" else []
    return sorted(names)
