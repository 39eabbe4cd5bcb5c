"""Build the reference of the public names, a page for each module, with warnings as errors.

pip install pdoc
python tests/support/reference.py FOLDER
"""

import re
import sys
import warnings
from importlib import import_module
from pathlib import Path

import pdoc
import pdoc.docstrings
import pdoc.render

MODULES = (
    "mpigraph",
    "mpigraph.distributed",
    "mpigraph.dataloading",
    "mpigraph.nn",
    "mpigraph.inference",
    "mpigraph.checkpoint",
    "mpigraph.data",
    "mpigraph.convert",
    "mpigraph.function",
    "mpigraph.errors",
    "mpigraph.config",
)
ROLE = re.compile(r":(?:class|meth|func|data|attr|mod|exc):`~?([\w.]+)`")


def build(folder: Path) -> None:
    """Write the pages.

    Raises:
        Warning: a name does not resolve, or a docstring cannot be rendered.
    """
    for name in MODULES:
        module = import_module(name)
        vars(module).update({public: getattr(module, public) for public in module.__all__})  # those that load late
    google = pdoc.docstrings.google
    pdoc.docstrings.google = lambda text: google(ROLE.sub(r"`\1`", text))
    pdoc.render.configure(docformat="google", show_source=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdoc.pdoc(
            "mpigraph", "mpigraph.errors", "mpigraph.config", output_directory=folder
        )  # and what "mpigraph" lists


if __name__ == "__main__":
    build(Path(sys.argv[1]))
