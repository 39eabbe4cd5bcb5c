"""The lookup of names in public modules: their API alone, and for others an error that names the right module.

The API of a module is what its ``__all__`` lists. One that only collects names needs no list: there it is what is
imported under its own name, ``from mpigraph.nn.layers import SAGEConv as SAGEConv``, as type checkers and editors see
it, too. Where that stands below ``if TYPE_CHECKING``, a name is imported when it is first used.
"""

import ast
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

_NAMESPACES = ("", *"distributed dataloading nn inference checkpoint convert data function errors".split())


def attach(module: str) -> None:
    """Give a module the ``__all__`` and the ``__dir__`` of its API, and :func:`missing` for other names."""

    def lookup(name: str) -> object:
        if name == "__all__":
            return public(module)
        if name not in public(module):
            raise missing(module, name)
        home = _read(module)[name]
        value = import_module(f"{home}.{name}") if home == module else getattr(import_module(home), name)
        vars(sys.modules[module])[name] = value
        return value

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
def _read(module: str) -> dict[str, str]:
    """Return the modules from which a module has the names of its API."""
    path = Path(__file__).parent.joinpath(*module.split(".")[1:])
    init = path / "__init__.py"
    path = init if init.is_file() else path.with_suffix(".py")
    names = dict[str, str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return dict.fromkeys(ast.literal_eval(node.value), module)
        if isinstance(node, ast.ImportFrom):
            home = str(node.module)
            listed = public(home) if node.names[0].name == "*" else [a.name for a in node.names if a.asname == a.name]
            names |= dict.fromkeys(listed, home)
    return dict(sorted(names.items()))
