"""DGL's names that this library lacks: ``python tests/support/dgl_names.py`` writes examples/dgl_names.md anew.

It drops names that are there by now, and sorts the others by what the alias says to use instead. To add a name, write
it into a row of its module.
"""

import re
from importlib import import_module
from pathlib import Path

from mpigraph.compat import dgl

LIST = Path(__file__).resolve().parents[2] / "examples" / "dgl_names.md"
TEXT = """# Names of DGL that this library lacks

Public names of DGL 2.1. Each is an `AttributeError` that says what to use instead, if anything does it.

| module | names | instead |
|---|---|---|
{}

A graph in memory is not changed in place: `g.add_edges` is `dgl.add_edges(g, ...)`, which returns another.
"""


def listed() -> list[tuple[str, str]]:
    """Return module and name of each entry of the list."""
    rows = [line.split("|")[1:3] for line in LIST.read_text("utf-8").splitlines() if line.startswith("| `dgl")]
    return [(module.strip(" `"), name) for module, names in rows for name in re.findall("`([A-Za-z_0-9]+)`", names)]


def generated() -> str:
    """Return the list's text as it should be; the alias has to be installed."""
    rows: dict[tuple[str, str], list[str]] = {}
    for module, name in listed():
        home = import_module("dgl").DGLGraph if module == "dgl.DGLGraph" else import_module(module)
        if not hasattr(home, name):
            rows.setdefault((module, dgl.instead(module, name)), []).append(f"`{name}`")
    return TEXT.format("\n".join(f"| `{home}` | {', '.join(rows[home, text])} | {text} |" for home, text in rows))


if __name__ == "__main__":
    dgl.install()
    LIST.write_text(generated(), "utf-8")
