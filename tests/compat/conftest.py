"""The alias, for a test."""

import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import pytest

from mpigraph.compat.dgl import install


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "dgl"]:
        del sys.modules[name]


@pytest.fixture
def dgl() -> Iterator[ModuleType]:
    """The alias, gone after the test."""
    before = list(sys.meta_path)
    forget()
    install()
    try:
        yield import_module("dgl")
    finally:
        sys.meta_path[:] = before
        forget()
