"""``python -m mpigraph run``: run a script as Python does, with this library as DGL."""

import argparse
import io
import os
import runpy
import sys
from types import ModuleType

from mpigraph.compat import dgl


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
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
