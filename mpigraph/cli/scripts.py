"""``run`` runs a script, with this library as DGL; ``examples`` and ``slurm`` copy the scripts of the library."""

import os
import runpy
import shutil
import sys
from pathlib import Path

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
    if not os.access(options.script, os.R_OK):
        return fail("run", f"cannot read {options.script}")
    sys.path.insert(0, os.path.dirname(os.path.abspath(options.script)))
    runpy.run_path(options.script, run_name="__main__")
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
