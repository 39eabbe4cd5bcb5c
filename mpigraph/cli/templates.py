"""``examples`` and ``slurm``: copy the example scripts, or the Slurm scripts, that come with the library."""

import argparse
import os.path
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from mpigraph.errors import InvalidArgumentError

_FOLDERS = {"examples": "the example scripts", "slurm": "the Slurm scripts"}
_LINK = re.compile(r"\[([^]]+)\]\((\.\.?/[^)#]+)[^)]*\)")


def add_parser(commands: Any) -> None:
    """Add both commands."""
    for name, what in _FOLDERS.items():
        parser = commands.add_parser(name, help=f"copy {what} into a folder", description=f"Copy {what} into a folder.")
        parser.add_argument("directory", type=Path, help="folder to copy into; files of the same names must not exist")
        parser.set_defaults(run=partial(_copy, name))


def _copy(name: str, arguments: argparse.Namespace) -> int:
    """Copy the files of one folder. Raises InvalidArgumentError if a file of this name exists."""
    target = arguments.directory
    package = Path(__file__).parents[1]
    installed = package / "templates" / name
    source = installed if installed.is_dir() else package.parent / name  # that of the checkout
    files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc")
    there = [str(path) for path in files if (target / path).exists()]
    if there:
        raise InvalidArgumentError(f"{target} has {', '.join(there)} already: give another folder")
    for path in files:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / path, target / path)
        if path.suffix == ".md":
            (target / path).write_text(_inner_links((source / path).read_text("utf-8"), name, path), "utf-8")
        print(target / path)
    return 0


def _inner_links(text: str, folder: str, path: Path) -> str:
    """Replace the links of a document that lead out of its folder by the names of documents in the sources."""

    def replaced(link: re.Match[str]) -> str:
        there = os.path.normpath(os.path.join(folder, path.parent, link[2]))
        if there.startswith(f"{folder}/"):
            return link[0]
        return link[1] if there in link[1] else f"{link[1]} (`{there}`)"

    return _LINK.sub(replaced, text)
