"""The recipes in slurm/install have the version of the library, and ask for the packages that it asks for."""

import re
from pathlib import Path

import mpigraph

ROOT = Path(__file__).resolve().parents[1]
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
