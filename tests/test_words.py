"""The words of the library, read from its source: plain English, and the field's own."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import sources
from sources import ROOT, nodes, parsed

FILES = {path.removeprefix("mpigraph/"): source for path, source in sources.FILES.items()}

# What reads badly, and the field's or MPI's word for it.
WORDS = {
    r"\bbut for\b": "except",
    r"\bsays? whether\b": "return whether",
    r"\bunder way\b": "outstanding, in progress",
    r"\blonely\b": "zero in-degree",
    r"\bunheard\b": "suppressed",
    r"\b(need_)?room\b": "memory, capacity",
    r"\bcharge\b": "owner",
}
ANY_WORD = re.compile("|".join(WORDS), re.IGNORECASE)
# Idioms that a reader has to decode, in docstrings, comments, messages and documents: name the actor instead.
IDIOMS = re.compile(
    r"\b([Ww]hoever|[Nn]obody|[Oo]f which|is none|are none|[Bb]ut for|[Aa]s such|(of|for|with) whom|"
    r"[Pp]retend\w*|[Ii]nput side|[Cc]uts? (a|the) graph)\b"
)
# Rows, hosts and ids are local or remote; what is left of the other two words is English.
FAR = re.compile(r"(?<![A-Za-z])(far|near)(?![A-Za-z])", re.IGNORECASE)
ENGLISH = re.compile(
    r"\b((so|as|how|however) far\b|far (apart|beyond)|near (it|where|clusters|the end))", re.IGNORECASE
)
# A docstring begins with an imperative verb or a noun phrase.
INDIRECT = re.compile(r"(What|Whether|Who|Whose)\b")
# Data has the name of what it is.
VAGUE = {"found", "some", "mine", "made", "others", "these"}


def tokens(source: str, sought: re.Pattern[str]) -> Iterator[tokenize.TokenInfo]:
    """The tokens of a module; none where it has nowhere what is sought in them."""
    if sought.search(" ".join(source.split())):
        yield from tokenize.generate_tokens(io.StringIO(source).readline)


def words(source: str) -> Iterator[tuple[int, str]]:
    """The words of docstrings, comments and names, by line; not the code of other strings, such as messages."""
    for token in tokens(source, ANY_WORD):
        if token.type in (tokenize.COMMENT, tokenize.NAME) or token.string.lstrip("rb").startswith('"""'):
            yield token.start[0], token.string


def unclear(path: str, source: str) -> list[str]:
    return [
        f"{path}:{line}: {found.group()!r} (say: {better})"
        for line, text in words(source)
        for pattern, better in WORDS.items()
        if (found := re.search(pattern, " ".join(text.split()), re.IGNORECASE))
    ]


def indirect(source: str) -> Iterator[tuple[int, str]]:
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
    for token in tokens(source, IDIOMS):
        if token.type == tokenize.COMMENT:
            yield from ((token.start[0], f"idiom: {idiom.group()}") for idiom in IDIOMS.finditer(token.string))


def test_rooms_are_in_plain_english() -> None:
    places = [f"{path}:{line}: {text}" for path, source in FILES.items() for line, text in indirect(source)]
    assert not places, "\n".join(places)


def test_documents_and_examples_are_in_plain_english() -> None:
    documents = [path for end in ("README.md", "*/*.md", "tests/*/README.md") for path in ROOT.glob(end)]
    places = [
        f"{path.relative_to(ROOT)}: {idiom.group()}"
        for path in documents
        for idiom in IDIOMS.finditer(" ".join(path.read_text().split()))
    ]
    for path in ROOT.glob("examples/*.py"):
        places += [f"examples/{path.name}:{line}: {text}" for line, text in indirect(path.read_text())]
    assert len(documents) >= 8 and not places, "\n".join(places)


def far(text: str) -> list[str]:
    """Return the places with "far" and "near" for remote and local, in names, too."""
    text = ENGLISH.sub("", " ".join(text.replace("_", " ").split()))
    return [text[max(match.start() - 20, 0) : match.end() + 20] for match in FAR.finditer(text)]


def test_rows_and_hosts_are_local_or_remote() -> None:
    paths = [path for end in ("*.md", "*.sbatch", "*.py") for path in ROOT.glob(f"[!.]*/**/{end}")]
    texts = {path: path.read_text() for path in [ROOT / "README.md", *paths] if path != Path(__file__).resolve()}
    places = [f"{path.relative_to(ROOT)}: {place}" for path, text in texts.items() for place in far(text)]
    assert len(texts) > 300 and not places, "\n".join(places)


def test_words_are_the_fields_own() -> None:
    found = [text for path, source in FILES.items() for text in unclear(path, source)]
    assert not found, "\n".join(found)


def test_these_checks_can_fail() -> None:
    assert unclear("x.py", '"""All but\nfor one."""\nlonely = 1  # nothing under way\n') == [
        "x.py:1: 'but for' (say: except)",
        "x.py:3: 'lonely' (say: zero in-degree)",
        "x.py:3: 'under way' (say: outstanding, in progress)",
    ]
    assert not unclear("x.py", "error('but for')  # except, outstanding, showroom\n")
    assert len(far("is_far = FAR_SERVERS\nnear_too  # so\nfar, as_far_as, nearest, linear, near it")) == 3
    source = "def f(some):\n    '''Whether it is None.'''\n    made = error(f'{some}: it is none')  # of which\n"
    assert sorted(indirect(source)) == [
        (1, "begin with a verb or a noun: Whether it is None."),
        (1, "vague argument: some"),
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
