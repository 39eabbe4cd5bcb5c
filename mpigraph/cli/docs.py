"""``docs`` writes the reference: a page of plain HTML for each public namespace, from its docstrings."""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from html import escape
from pathlib import Path
from types import ModuleType
from typing import Any

from mpigraph import errors
from mpigraph.cli.grammar import Docs

_STYLE = """body {max-width: 60em; margin: 2em auto; padding: 0 1em; font: 16px/1.5 sans-serif}
pre, code {font: 14px/1.5 monospace; background: #8881; border-radius: 3px} pre {padding: .5em; white-space: pre-wrap}
h2 {border-top: 1px solid #8888; padding-top: .7em} h2, h3 {font: bold 16px monospace}
:root {color-scheme: light dark}"""
_ROLE = re.compile(r":\w+:`[~.]*([\w.]+)`|``(.+?)``", re.DOTALL)
_SECTION = re.compile(r"^(Args|Attributes|Example|Raises|Returns|Yields):", re.MULTILINE)


def docs(options: Docs) -> int:
    """Write the pages into a new folder. Raises InvalidArgumentError if it has files."""
    folder = Path(options.directory)
    if folder.exists() and any(folder.iterdir()):
        raise errors.InvalidArgumentError(f"{folder} has files already: give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    library = sys.modules["mpigraph"]
    pages = dict(sorted((_public(library) | _public(errors)).items()))
    places = {name: f"{page}.html#{name}" for page, module in reversed(pages.items()) for name in _names(module)}
    index = [
        f"<h1>mpigraph {library.__version__}</h1><p>The public names. The tutorial: python -m mpigraph examples DIR</p>"
    ]
    for page, module in pages.items():
        about = inspect.getdoc(module) or page
        entries = [_entry(page, name, getattr(module, name), places) for name in _names(module)]
        text = f'<p><a href="index.html">all pages</a></p><h1>{page}</h1>{_html(about, places)}'
        _write(folder / f"{page}.html", page, text + "\n".join(entries))
        links = ", ".join(f'<a href="{page}.html#{name}">{name}</a>' for name in _names(module))
        first = _html(about.splitlines()[0], places)
        index.append(f'<h2><a href="{page}.html">{page}</a></h2>{first}<p>{links}</p>')
    _write(folder / "index.html", "mpigraph", "\n".join(index))
    print(folder / "index.html")
    return 0


def _write(path: Path, title: str, body: str) -> None:
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    path.write_text(f"{head}<title>{title}</title><style>{_STYLE}</style>\n{body}\n", "utf-8")


def _public(module: ModuleType) -> dict[str, ModuleType]:
    """Return a namespace, and those that are public in it, by name."""
    pages = {module.__name__: module}
    for name in module.__all__:
        value = getattr(module, name)
        if isinstance(value, ModuleType) and value.__name__.startswith("mpigraph.") and hasattr(value, "__all__"):
            pages |= _public(value)
    return pages


def _names(module: ModuleType) -> list[str]:
    return sorted(name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType))


def _entry(page: str, name: str, value: Any, places: dict[str, str]) -> str:
    """Return the text about a public name, with the members of a class."""
    text = [f'<h2 id="{name}">{page}.{name}</h2>']
    if not callable(value):
        return f"{text[0]}<pre>{name} = {escape(repr(value))}</pre>"
    text.append(f"<pre>{escape(_signature(name, value))}</pre>{_html(inspect.getdoc(value) or '', places)}")
    for member, own in _members(value) if isinstance(value, type) else ():
        title = f"{name}.{member}" if member != "__init__" else "Arguments"
        signature = f"<pre>{escape(_signature(member, own))}</pre>" if callable(own) and member != "__init__" else ""
        text.append(f'<h3 id="{name}.{member}">{title}</h3>{signature}{_html(inspect.getdoc(own) or "", places)}')
    return "\n".join(text)


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the constructor and the public members of a class, also of bases in this library."""
    bases = [base for base in cls.__mro__ if base.__module__.startswith("mpigraph.")]
    members = {name: value for base in reversed(bases) for name, value in vars(base).items()}
    for name, value in members.items():
        own = getattr(value, "__func__", value)  # of class methods
        described = callable(own) or isinstance(own, property)
        text = own.__doc__ if name == "__init__" else inspect.getdoc(own)  # which finds that of object
        if described and text and (name == "__init__" or not name.startswith("_")):
            yield name, own


def _signature(name: str, value: Any) -> str:
    """Return a signature in the words of its source, where types have short names."""
    code: Any = value
    try:
        source = inspect.getsource(inspect.unwrap(code.__init__ if isinstance(value, type) else code))
        (function,) = ast.parse(textwrap.dedent(source)).body
    except (OSError, TypeError, SyntaxError, ValueError):  # of C, or made by a decorator
        return name
    if not isinstance(function, ast.FunctionDef):
        return name
    if function.args.args and function.args.args[0].arg in ("self", "cls"):
        del function.args.args[0]
    returns = f" -> {ast.unparse(function.returns)}" if function.returns and not isinstance(value, type) else ""
    return f"{name}({ast.unparse(function.args)}){returns}"


def _html(text: str, places: dict[str, str]) -> str:
    """Return a docstring as HTML: paragraphs, and sections in their lines."""

    def linked(match: re.Match[str]) -> str:
        name = (match[1] or match[2]).rpartition(".")[2] if match[1] else ""
        code = f"<code>{match[1] or match[2]}</code>"
        return f'<a href="{places[name]}">{code}</a>' if name in places else code

    blocks = []
    for block in re.split(r"\n\n(?! )", text.strip()):
        marked = _SECTION.sub(r"<b>\1</b>", _ROLE.sub(linked, escape(block, quote=False)))
        in_lines = _SECTION.match(block) or "\n " in block or re.search(r"^[*-] ", block, re.MULTILINE)
        blocks.append(f"<pre>{marked}</pre>" if in_lines else f"<p>{marked}</p>")
    return "\n".join(blocks)
