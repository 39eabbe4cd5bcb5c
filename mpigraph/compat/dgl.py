"""``import dgl`` gives this library: :func:`install` puts an import finder in front of Python's own.

Every module of the alias looks names up on use: first those peculiar to DGL, then those of the modules of this library,
so that later additions are there, too. :mod:`.dgl_names` is the table. ``import mpigraph`` alone changes nothing.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from mpigraph.compat.dgl_names import LIBRARY_VERSION, MODULES, advice
from mpigraph.config import tell_num_servers
from mpigraph.errors import InvalidArgumentError

__all__ = ["install"]


class _Module(ModuleType):
    """A module of the alias; each is a package, so that Python asks the finder for names that it lacks."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":  # of "from dgl.distributed import *"
            return [listed for listed in dir(self) if not listed.startswith("_")]
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if f"{self.__name__}.{name}" in MODULES:
            return import_module(f"{self.__name__}.{name}")
        value = _look_up(self.__name__, name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        sources = MODULES[self.__name__]
        listed = {name for home in sources.homes for name in getattr(import_module(home), "__all__", ())}
        return sorted({*super().__dir__(), *sources.names, *listed})


class _Finder:
    """Finds and makes the modules of the alias."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return how to make a module. Raises ImportError for modules of DGL that this library lacks."""
        if fullname != "dgl" and not fullname.startswith("dgl."):
            return None
        if fullname not in MODULES:
            # no ModuleNotFoundError: "from dgl.distributed import name" would drop its message
            raise ImportError(advice(*fullname.rpartition(".")[::2]), name=fullname)
        return ModuleSpec(fullname, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name, f"``{spec.name}`` of DGL, made of mpigraph (mpigraph.compat.dgl).")

    def exec_module(self, module: ModuleType) -> None:
        """Set the version, which is not looked up."""
        if module.__name__ == "dgl":
            module.__version__ = LIBRARY_VERSION  # type: ignore[attr-defined]


def install() -> None:
    """Let ``import dgl``, ``import dgl.distributed`` and so on import this library from now on.

    Call it before the first ``import dgl`` of a script; or start the script by ``python -m mpigraph run --as-dgl``. A
    second call does nothing. Raises InvalidArgumentError: the real dgl is loaded already.
    """
    loaded = sys.modules.get("dgl")
    if loaded is not None and not isinstance(loaded, _Module):
        where = getattr(loaded, "__file__", None)
        raise InvalidArgumentError(
            f"dgl is loaded already (from {where}): call mpigraph.compat.dgl.install() before the first 'import dgl'"
        )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
        tell_num_servers()


def _look_up(module: str, name: str) -> Any:
    """Return the object behind a name of DGL's. Raises AttributeError that says what to do."""
    sources = MODULES[module]
    if name in sources.names:
        home, _, original = sources.names[name].partition(":")
        source = import_module(home)
        return getattr(source, original) if original else source
    for home in sources.homes:
        source = import_module(home)
        # a name that a module only imports, such as torch, it does not export
        if hasattr(source, name) and name in getattr(source, "__all__", (name,)):
            return getattr(source, name)
    if module in ("dgl.data", "dgl.data.utils") and name.endswith("Dataset"):
        instead = advice(module, name)

        def refuse(self: object, *_: object, **__: object) -> None:
            raise InvalidArgumentError(instead)

        return type(name, (), {"__init__": refuse, "__doc__": instead})  # scripts import datasets that they do not use
    raise AttributeError(advice(module, name), name=name)
