"""``run`` runs a script, with this library as DGL; ``examples`` and ``slurm`` copy the scripts of the library."""

import io
import os
import re
import runpy
import shutil
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

from mpigraph.cli.grammar import Examples, Run
from mpigraph.cli.main import fail, put
from mpigraph.compat import dgl
from mpigraph.errors import InvalidArgumentError

_LINK = re.compile(r"\[([^]]+)\]\((\.\.?/[^)#]+)[^)]*\)")


def run(options: Run) -> int:
    """Run a script, or a module; return the exit status."""
    if options.as_dgl:
        dgl.install()
    sys.argv = [options.script, *options.arguments]
    if options.module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(options.script, run_name="__main__", alter_sys=True)
        return 0
    try:
        with io.open_code(os.path.abspath(options.script)) as file:
            source = file.read()
    except OSError as error:
        return fail("run", f"cannot read {options.script}: {error.strerror}")
    sys.path.insert(0, os.path.dirname(os.path.abspath(options.script)))
    # it stays __main__ until the process ends, for functions called at exit and for processes that it starts
    main = ModuleType("__main__")
    main.__file__ = options.script
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    exec(compile(source, options.script, "exec"), vars(main))
    return 0


def examples(options: Examples, name: str = "examples") -> int:
    """Copy the files of one folder. Raises InvalidArgumentError if a file of this name exists."""
    target = Path(options.directory)
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
        put(target / path)
    return 0


slurm = partial(examples, name="slurm")


def _inner_links(text: str, folder: str, path: Path) -> str:
    """Replace the links of a document that lead out of its folder by the names of documents in the sources."""

    def replaced(link: re.Match[str]) -> str:
        there = os.path.normpath(os.path.join(folder, path.parent, link[2]))
        if there.startswith(f"{folder}/"):
            return link[0]
        return link[1] if there in link[1] else f"{link[1]} (`{there}`)"

    return _LINK.sub(replaced, text)
