"""``examples`` and ``slurm``: copy the example scripts, or the Slurm scripts, that come with the library."""

import argparse
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from mpigraph.errors import InvalidArgumentError

_FOLDERS = {"examples": "the example scripts", "slurm": "the Slurm scripts"}


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
        print(target / path)
    return 0
