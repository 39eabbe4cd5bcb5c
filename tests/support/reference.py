"""Build the reference: a page for each subject with its public names, and the guides. Warnings are errors.

pip install pdoc
python tests/support/reference.py FOLDER
"""

import re
import sys
import warnings
from contextlib import redirect_stdout, suppress
from importlib import import_module
from importlib.machinery import ModuleSpec
from io import StringIO
from pathlib import Path
from types import ModuleType

import pdoc
import pdoc.docstrings
import pdoc.render

ROOT = Path(__file__).resolve().parents[2]
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
)
# Where the names of a page are from: the first pattern that fits the public module and the one that defines the name.
SUBJECTS = {
    "messages": ("Message functions, for graphs in memory and blocks", r"mpigraph.function:"),
    "errors": ("Every error, and its remedy", r".*:mpigraph.errors"),
    "checkpoints": ("Saving and resuming jobs", r"mpigraph.checkpoint:"),
    "initialize": ("Begin and end of a job", r".*:mpigraph.(session|process_group)"),
    "inference": ("A model on all nodes, layer by layer", r"mpigraph.inference:"),
    "layers": ("Layers on blocks and graphs", r"mpigraph.nn:"),
    "embeddings": ("Rows that are trained, and their optimizers", r".*:mpigraph.(distgraph.embedding|optim)"),
    "tensors": ("Rows over all hosts", r".*:mpigraph.distgraph.tensor"),
    "loaders": ("Minibatches", r".*:mpigraph.dataloading.(\w*loader|exclusion)$"),
    "negatives": ("Negative samplers", r".*:mpigraph.dataloading.negative_sampler"),
    "samplers": ("Ways to choose neighbours", r".*:mpigraph.(dataloading.(?!memory)|distgraph.sampled_graph)"),
    "partitions": ("Partitioning, partition books, splits", r".*:mpigraph.distgraph.(part|split)"),
    "distributed_graphs": ("Graphs over all hosts", r".*:mpigraph.distgraph"),
    "graphs": ("Graphs in memory, blocks, conversion", r""),
}
GUIDES = {
    "guide": "README.md",
    "guide_tutorial": "examples/README.md",
    "guide_partitioning": "examples/partitioning.md",
    "guide_troubleshooting": "examples/troubleshooting.md",
    "guide_slurm": "slurm/README.md",
    "guide_install": "slurm/install/README.md",
    "settings_and_architecture": "mpigraph/README.md",
}
ROLE = re.compile(r":(?:class|meth|func|data|attr|mod|exc):`~?\.?([\w.]+)`")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]*)(#[^)\s]+)?\)")


def pages() -> dict[str, dict[str, object]]:
    """Return the public objects of each subject by name."""
    result: dict[str, dict[str, object]] = {subject: {} for subject in SUBJECTS}
    for public in MODULES:
        module = import_module(public)
        for name in module.__all__:
            value = getattr(module, name)
            if not isinstance(value, ModuleType):
                source = f"{public}:{getattr(value, '__module__', '')}"
                subject = next(key for key, (_, pattern) in SUBJECTS.items() if re.match(pattern, source))
                assert result[subject].setdefault(name, value) is value, f"two names {name} in {subject}"
    return result


def own_members(some: type, public: set[object]) -> None:
    """Give a class the members of its bases that have no page, so that they are on its own."""
    for base in some.__mro__[1:]:
        if base.__module__.startswith("mpigraph.") and base not in public:
            for name, member in vars(base).items():
                if not name.startswith("_") and name not in vars(some):
                    setattr(some, name, member)


def guide(path: str) -> str:
    """Return the text of a document, whose links lead to pages, if there is one, else nowhere."""
    here = (ROOT / path).parent

    def page(match: re.Match[str]) -> str:
        target = (here / match[1]).resolve()
        there = [name for name, other in GUIDES.items() if (ROOT / other).resolve() in (target, target / "README.md")]
        return f"]({there[0]}.html{match[2] or ''})" if there else "](#)"

    text = re.sub(r"!\[[^]]*\]\([^)]*\)\n*", "", (ROOT / path).read_text(encoding="utf-8"))
    return LINK.sub(page, text)


def help_of_commands() -> str:
    """Return what ``--help`` prints."""
    line = import_module("mpigraph.cli.main")
    text = ["# Commands\n"]
    for command in line.COMMANDS:
        with redirect_stdout(StringIO()) as printed, suppress(SystemExit):
            line.main([command, "--help"])
        text.append(f"## {command}\n\n```text\n{printed.getvalue()}```\n")
    return "\n".join(text)


def module(name: str, text: str, names: dict[str, object], form: str) -> str:
    """Make a module that pdoc can load; return its name."""
    made = ModuleType(name, text)
    made.__spec__ = ModuleSpec(name, None)
    vars(made).update(names, __all__=list(names), __docformat__=form)
    sys.modules[name] = made
    return name


def build(folder: Path) -> None:
    """Write the pages.

    Raises:
        Warning: a name does not resolve, or a docstring cannot be rendered.
    """
    subjects = pages()
    public = {value for some in subjects.values() for value in some.values() if isinstance(value, type)}
    for some in public:
        own_members(some, public)
    page_of = {name: subject for subject, names in subjects.items() for name in names}

    def link(match: re.Match[str]) -> str:
        parts = match[1].split(".")
        start = next((i for i, part in enumerate(parts) if part in page_of), None)
        if start is None:
            return f"`{match[1]}`"
        target = ".".join(parts[start:])
        return f"[`{target}`]({page_of[parts[start]]}.html#{target})"

    rst = pdoc.docstrings.rst
    pdoc.docstrings.rst = lambda text, source: rst(ROLE.sub(link, text), source)
    names = [module(subject, f"{SUBJECTS[subject][0]}.", some, "google") for subject, some in subjects.items()]
    names += [module(name, guide(path), {}, "markdown") for name, path in GUIDES.items()]
    names.append(module("commands", help_of_commands(), {}, "markdown"))
    pdoc.render.configure(docformat="google", show_source=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdoc.pdoc(*names, output_directory=folder)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
