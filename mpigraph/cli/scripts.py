"""``run`` runs a script, with this library as DGL; ``examples`` and ``slurm`` copy the scripts of the library."""

import argparse
import io
import os
import re
import runpy
import shutil
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

from mpigraph.compat import dgl
from mpigraph.errors import InvalidArgumentError

_FOLDERS = {"examples": "the example scripts", "slurm": "the Slurm scripts"}
_LINK = re.compile(r"\[([^]]+)\]\((\.\.?/[^)#]+)[^)]*\)")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the three commands."""
    _add_run(commands)
    for name, what in _FOLDERS.items():
        parser = commands.add_parser(name, help=f"copy {what} into a folder", description=f"Copy {what} into a folder.")
        parser.add_argument("directory", type=Path, help="folder to copy into; files of the same names must not exist")
        parser.set_defaults(run=partial(_copy, name))


def _add_run(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "run",
        help="run a script written for DGL",
        description="Run a script as python does. With --as-dgl its 'import dgl' gives mpigraph: "
        "mpiexec -n 4 python -m mpigraph run --as-dgl train.py ARGUMENTS",
        usage="python -m mpigraph run [--as-dgl] (SCRIPT | -m MODULE) [ARGUMENTS]",
    )
    parser.add_argument("--as-dgl", action="store_true", help="'import dgl' gives mpigraph")
    parser.add_argument("-m", dest="module", action="store_true", help="run a module by its name, as python -m does")
    parser.add_argument("script", metavar="SCRIPT", help="the script, or the module's name")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="its arguments")
    # an exception of the script shows as a traceback and ends the whole job
    parser.set_defaults(run=_run, raises=True)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.as_dgl:
        dgl.install()
    sys.argv = [arguments.script, *arguments.arguments]
    if arguments.module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments.script, run_name="__main__", alter_sys=True)
        return 0
    try:
        with io.open_code(os.path.abspath(arguments.script)) as file:
            source = file.read()
    except OSError as error:
        print(f"mpigraph run: error: cannot read {arguments.script}: {error.strerror}", file=sys.stderr)
        return 2
    sys.path.insert(0, os.path.dirname(os.path.abspath(arguments.script)))
    # it stays __main__ until the process ends, for functions called at exit and for processes that it starts
    main = ModuleType("__main__")
    main.__file__ = arguments.script
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    exec(compile(source, arguments.script, "exec"), vars(main))
    return 0


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
