"""The words of the library and of its documents: plain English, and the field's own."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import sources
from sources import ROOT, nodes, parsed

FILES = {path.removeprefix("mpigraph/"): source for path, source in sources.FILES.items()}

# What a reader has to decode, in docstrings, comments, messages and documents: name the actor, or use the field's word.
IDIOMS = re.compile(
    r"\b([Ww]hoever|[Nn]obody|[Oo]f which|is none|are none|[Bb]ut for|[Aa]s such|(of|for|with) whom|"
    r"[Pp]retend\w*|[Ii]nput side|[Cc]uts? (a|the) graph|[Uu]nheard|[Ll]onely|"
    r"(far|near) (rows?|hosts?|ids?|nodes?|neighbours?|servers?))\b"
)
# A docstring begins with an imperative verb or a noun phrase.
INDIRECT = re.compile(r"(What|Whether|Who|Whose)\b")
# Data has the name of what it is.
VAGUE = {"found", "some", "mine", "made", "others", "these"}


def unclear(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each place of a module that is not plain English."""
    for node in nodes(parsed(source)):
        line = getattr(node, "lineno", 1)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if INDIRECT.match(text):
                yield line, f"begin with a verb or a noun: {text.splitlines()[0]}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from ((line, f"idiom: {idiom.group()}") for idiom in IDIOMS.finditer(" ".join(node.value.split())))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE:
            yield line, f"vague name: {node.id}"
        elif isinstance(node, ast.arg) and node.arg in VAGUE:
            yield line, f"vague argument: {node.arg}"
    if IDIOMS.search(" ".join(source.split())):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield from ((token.start[0], f"idiom: {idiom.group()}") for idiom in IDIOMS.finditer(token.string))


def test_rooms_are_in_plain_english() -> None:
    places = [f"{path}:{line}: {text}" for path, source in FILES.items() for line, text in unclear(source)]
    assert not places, "\n".join(places)


def test_documents_and_examples_are_in_plain_english() -> None:
    documents = [path for end in ("README.md", "*/*.md", "tests/*/README.md") for path in ROOT.glob(end)]
    places = [
        f"{path.relative_to(ROOT)}: {idiom.group()}"
        for path in documents
        for idiom in IDIOMS.finditer(" ".join(path.read_text().split()))
    ]
    for path in ROOT.glob("examples/*.py"):
        places += [f"examples/{path.name}:{line}: {text}" for line, text in unclear(path.read_text())]
    assert len(documents) >= 8 and not places, "\n".join(places)


def test_these_checks_can_fail() -> None:
    source = "def f(some):\n    '''Whether it is None.'''\n    made = error(f'{some} is none')  # far rows of which\n"
    assert sorted(unclear(source)) == [
        (1, "begin with a verb or a noun: Whether it is None."),
        (1, "vague argument: some"),
        (3, "idiom: far rows"),
        (3, "idiom: is none"),
        (3, "idiom: of which"),
        (3, "vague name: made"),
    ]


def test_srun_is_told_how_mpi_connects() -> None:
    """Without ``--mpi=`` each rank is alone where Slurm's ``MpiDefault`` is none."""
    documents = [path for end in ("*.md", "*.sbatch", "*.py") for path in ROOT.glob(f"[!.]*/{end}")]
    lines = [line for path in [ROOT / "README.md", *documents] for line in path.read_text().splitlines()]
    starts = [line for line in lines if re.search(r"\bsrun -.*\bpython", line)]
    assert len(starts) >= 9 and [line for line in starts if "--mpi=" not in line] == []
