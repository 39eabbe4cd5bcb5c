"""Documents: links lead somewhere, no name is in them that does not exist, recipes have the versions of the library."""

import re
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import fields
from functools import cache, reduce
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest
from sources import ROOT

import mpigraph
from mpigraph.cli.main import COMMANDS, main
from mpigraph.config import Config

ALL = [ROOT / "README.md", *ROOT.glob(".github/*.md"), *ROOT.glob("[!.]*/**/*.md")]
USERS = [path for path in ALL if path.relative_to(ROOT).parts[0] != "tests" and path.name != "CHANGELOG.md"]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_documents() -> None:
    bad = []
    for path in ALL:
        for target, anchor in LINK.findall(path.read_text(encoding="utf-8")):
            there = (path.parent / target).resolve() if target else path
            if not there.exists() or (anchor and anchor not in anchors(there.read_text(encoding="utf-8"))):
                bad.append(f"{path.relative_to(ROOT)}: {target}#{anchor}")
    assert len(ALL) >= 10 and not bad, "\n".join(bad)


# Names

SETTING = re.compile(r"\bMPIGRAPH_[A-Z_]*[A-Z]\b")
COMMAND = re.compile(r"(?:-m |`)mpigraph ([a-z][\w-]*)((?:(?!-m mpigraph)[^`\n|;&#])*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
OTHERS = set(  # of pip, docker, Slurm, EasyBuild, git and DGL's and GraphStorm's programs
    "--check-contrib --contain --dependency --force-reinstall --no-binary --no-deps --no-kill --no-requeue "
    "--output-format --robot --save-orig-nids --shm-size --wheel-dir".split()
)
DOTTED = re.compile(r"\b(?:mpigraph|mg)((?:\.[A-Za-z]\w*)+)\b")


@cache
def options_of(command: str) -> set[str]:
    with redirect_stdout(StringIO()) as printed, suppress(SystemExit):
        main([command, "--help"])
    return set(OPTION.findall(printed.getvalue()))


@cache
def known_options() -> set[str]:
    """Options of the commands, of examples and batch scripts, and of the programs that documents start."""
    scripts = [path for end in ("examples/**/*.py", "slurm/**/*.sbatch", "tests/*/*.py") for path in ROOT.glob(end)]
    own = {option for path in scripts for option in OPTION.findall(path.read_text())}
    return own | {option for command in COMMANDS for option in options_of(command)}


def exists(dotted: str) -> bool:
    with suppress(AttributeError):
        reduce(getattr, dotted.split("."), mpigraph)
        return True
    with suppress(ImportError):
        import_module(f"mpigraph.{dotted}")
        return True
    return dotted == "def"  # mpigraph.def, a file


def unknown(text: str) -> Iterator[str]:
    """Yield what a text names and does not exist."""
    settings = {field.name for field in fields(Config)}
    yield from (name for name in SETTING.findall(text) if name.removeprefix("MPIGRAPH_").lower() not in settings)
    for command, words in COMMAND.findall(text):
        if command not in COMMANDS:
            yield f"mpigraph {command}"
        elif command != "run":  # whose other words are the script's
            yield from (f"{command} {name}" for name in OPTION.findall(words) if name not in options_of(command))
    yield from (name for name in set(OPTION.findall(text)) - OTHERS if name not in known_options())
    yield from (f"mpigraph{name}" for name in DOTTED.findall(text) if not exists(name[1:]))


@pytest.mark.parametrize("path", USERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_names_what_exists(path: Path) -> None:
    assert sorted(set(unknown(path.read_text(encoding="utf-8")))) == []


def test_the_library_is_installed_from_no_index() -> None:
    """Its name is free there: whoever takes it would run code at each site that follows such a line."""
    texts = [*ALL, ROOT / "pyproject.toml", *(ROOT / "mpigraph").rglob("*.py"), *(ROOT / "slurm").rglob("*.sh")]
    bare = re.compile(r"pip install(?!.*--no-index)[^\n|;]* ['\"`]?mpigraph(?![\w./-])")
    assert [str(path) for path in texts if bare.search(path.read_text(encoding="utf-8"))] == []
    assert bare.search("pip install 'mpigraph[mpich]'") and not bare.search("pip install ./mpigraph-1.whl")


def test_srun_is_told_how_mpi_connects() -> None:
    """Without ``--mpi=`` each rank is alone where Slurm's ``MpiDefault`` is none."""
    documents = [path for end in ("*.md", "*.sbatch", "*.py") for path in ROOT.glob(f"[!.]*/{end}")]
    lines = [line for path in [ROOT / "README.md", *documents] for line in path.read_text().splitlines()]
    starts = [line for line in lines if re.search(r"\bsrun -.*\bpython", line)]
    assert len(starts) >= 9 and [line for line in starts if "--mpi=" not in line] == []


def test_an_unknown_name_is_found() -> None:
    text = "`mpigraph plan` MPIGRAPH_NOWHERE=1 python -m mpigraph info --nope g.json; mpigraph.nowhere, mg.nn.SAGEConv"
    assert {*unknown(text)} == {"MPIGRAPH_NOWHERE", "mpigraph plan", "info --nope", "--nope", "mpigraph.nowhere"}


def test_the_table_for_users_of_dgl_names_what_exists() -> None:
    """Each of its names is a word of the library: names of DGL are in the alias."""
    text = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    table = text.split("| DGL | mpigraph | what is different |\n|---|---|---|\n")[1].split("\n\n")[0]
    words = {word for path in (ROOT / "mpigraph").rglob("*.py") for word in re.findall(r"[\w-]+", path.read_text())}
    names = {name for code in re.findall(r"`([^`]+)`", table) for name in re.findall(r"^[\w.-]*\w", code)}
    last = {name.rpartition(".")[2] for name in names if not name.endswith((".py", ".txt"))}
    words |= {f"--{word.replace('_', sign)}" for word in words for sign in "_-"}
    assert len(last) > 80 and last - words - {"F", "if", "sh"} == set()


# The recipes in slurm/install

RECIPES = ROOT / "slurm" / "install"
SPACK = RECIPES / "spack_repo" / "mpigraph" / "packages"
EASYBUILD = RECIPES / f"mpigraph-{mpigraph.__version__}-foss-2024a.eb"
DEPENDENCIES = re.search(r"^dependencies = \[(.+?)^\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
assert DEPENDENCIES


def bounds(text: str, requirement: str) -> dict[str, tuple[int, ...]]:
    """The lowest versions that a text asks for, by name on PyPI."""
    versions = {}
    for name, version in re.findall(requirement, text):
        name = name.lower().replace("_", "-").replace("pytorch", "torch")
        versions[name] = tuple(map(int, version.removesuffix(".0").split(".")))
    return versions


LOWEST = bounds(DEPENDENCIES[1], r'"([\w-]+)>=([\d.]+)"')


def test_lower_bounds_are_the_same() -> None:
    assert bounds((RECIPES / "environment.yml").read_text(), r"- (\w+)>=([\d.]+)") == LOWEST
    spack = bounds((SPACK / "py_mpigraph" / "package.py").read_text(), r'"py-([\w-]+)@([\d.]+):", type')
    assert spack == LOWEST
    pymetis = bounds((SPACK / "py_pymetis" / "package.py").read_text(), r'(version)\("([\d.]+)"')
    assert pymetis["version"] >= LOWEST["pymetis"]
    easybuild = bounds(EASYBUILD.read_text(), r"\('(\w+)', '([\d.]+)'")
    assert all(easybuild[name] >= LOWEST[name] for name in LOWEST.keys() - {"numpy"})  # it is in SciPy-bundle


def test_versions_are_the_librarys() -> None:
    assert f"version = '{mpigraph.__version__}'" in EASYBUILD.read_text()
    assert f'version("{mpigraph.__version__}")' in (SPACK / "py_mpigraph" / "package.py").read_text()
    assert f"/opt/mpigraph-{mpigraph.__version__}-py3-none-any.whl" in (RECIPES / "mpigraph.def").read_text()
