"""``run`` runs a script, with this library as DGL; ``examples`` and ``slurm`` copy the scripts of the library."""

import io
import os
import runpy
import shutil
import sys
from pathlib import Path
from types import ModuleType

from mpigraph.cli.grammar import Examples, Run
from mpigraph.cli.main import fail, put
from mpigraph.compat import dgl


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
    # unlike that of runpy, it stays __main__ until the process ends, for what functions at exit and late threads pickle
    main = ModuleType("__main__")
    main.__file__ = options.script
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    exec(compile(source, options.script, "exec"), vars(main))
    return 0


def examples(options: Examples) -> int:
    """Copy the files of the folder that the command is named after. Raises OSError: the new folder exists."""
    name = type(options).__name__.lower()
    package = Path(__file__).parents[1]
    installed = package / "templates" / name
    source = installed if installed.is_dir() else package.parent / name  # that of the checkout
    put(shutil.copytree(source, options.directory, ignore=shutil.ignore_patterns("__pycache__")))
    return 0


slurm = examples
