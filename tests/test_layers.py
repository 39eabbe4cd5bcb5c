"""The shape of the library, read from its source: layers, third parties, MPI. What ruff can forbid is in pyproject."""

import ast
import re
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from sources import FILES, PACKAGE, PAGE, nodes, parsed, section


def floors() -> list[str]:
    """The list in mpigraph/README.md, from the lowest floor up; two names on one line do not know each other."""
    block = PAGE.split("```floors\n")[1].split("```")[0]
    return [line.split(":")[0] for line in block.splitlines()]


# A module may import what stands above its line, and its own folder.
LAYER_OF = {name: layer for layer, line in enumerate(floors()) for name in line.split()}
FIRST_WITH_TORCH = LAYER_OF["graphs"]
ONLY_IN = {
    "numba": ("kernels",),
    "mpi4py": ("mpi", "rows", "sampling", "session", "process_group"),
    "h5py": ("storage", "formats/named_arrays.py"),
    "pymetis": ("partition/metis.py",),
    "pyarrow": ("formats/arrow_values.py",),
    "yaml": ("formats/graphbolt.py",),
    "torch_geometric": ("graphs/pyg.py",),
    "torch": tuple(name for name, layer in LAYER_OF.items() if layer >= FIRST_WITH_TORCH),
}
PICKLED_MESSAGES = {"bcast", "send", "recv", "isend", "irecv", "sendrecv", "allgather", "allreduce", "alltoall"}
COMMUNICATOR = re.compile(r"(comm|COMM_\w+|trainers|node|group)(\(\))?$")  # what a communicator is called here


def parts_of(path: str) -> tuple[str, ...]:
    """("distributed", "graph") of mpigraph/distgraph/graph.py; the package itself is ()."""
    parts = Path(path).with_suffix("").parts[1:]
    return parts[:-1] if parts and parts[-1] == "__init__" else parts


def imports(tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """Every name imported anywhere, in functions and for type checkers too, as a dotted path."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = tuple((node.module or "").split("."))
            yield from ((*("." * node.level), *base, alias.name) for alias in node.names)


def wrong_layers(path: str, tree: ast.AST) -> Iterator[str]:
    mine = parts_of(path)
    if not mine:
        return  # the package itself looks its names up when they are used
    if mine[0] not in LAYER_OF:
        yield f"{mine[0]} has no layer"
        return
    for name in imports(tree):
        if name[0] == ".":
            yield f"relative import of {'.'.join(name[1:])}"
        elif name == ("mpigraph",):
            yield "imports the whole package"
        elif name[0] == "mpigraph" and name[1] not in LAYER_OF:
            yield f"imports {name[1]}, which has no layer"
        elif name[0] == "mpigraph" and name[1] != mine[0] and LAYER_OF[name[1]] >= LAYER_OF[mine[0]]:
            yield f"{mine[0]} imports {name[1]}, which is not below it"


def wrong_third_parties(path: str, tree: ast.AST) -> Iterator[str]:
    inside = path.removeprefix("mpigraph/")
    first = inside.split("/")[0].removesuffix(".py")
    for name in imports(tree):
        allowed = ONLY_IN.get(name[0])
        if allowed is not None and first not in allowed and inside not in allowed:
            yield f"imports {name[0]}, which belongs in {', '.join(allowed[:3])}"
        if (
            name[0] == "importlib"
            and name[1:] != ("metadata",)
            and parts_of(path)[:1] not in ((), ("compat",), ("namespaces",))
            and inside != "cli/main.py"
        ):
            yield "imports dynamically"


def pickling(path: str, tree: ast.AST) -> Iterator[str]:
    speaks_mpi = any(name[0] == "mpi4py" for name in imports(tree))
    for node in nodes(tree):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                yield "allow_pickle that is not False"
        elif isinstance(node, ast.Attribute) and node.attr in PICKLED_MESSAGES and speaks_mpi:
            if COMMUNICATOR.search(ast.unparse(node.value)):
                yield f"{node.attr} pickles its message"


def finalizers(path: str, tree: ast.AST) -> Iterator[str]:
    yield from ("__del__" for node in nodes(tree) if isinstance(node, ast.FunctionDef) and node.name == "__del__")


RULES: list[Callable[[str, ast.AST], Iterator[str]]] = [
    wrong_layers, wrong_third_parties, pickling, finalizers
]  # fmt: skip


def modules(files: dict[str, str]) -> dict[str, str]:
    """Source by dotted module name."""
    return {".".join(("mpigraph", *parts_of(path))): source for path, source in files.items()}


def import_cycle(files: dict[str, str]) -> list[str]:
    """Modules that import one another in a ring, or nothing."""
    sources = modules(files)
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        if module == "mpigraph":
            continue
        named = [".".join(name) for name in imports(parsed(source))]
        # ``from package import submodule`` needs the submodule, ``from module import name`` the module
        needed = {name if name in sources else name.rpartition(".")[0] for name in named}
        graph[module] = {name for name in needed if name in sources} - {"mpigraph"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_library_obeys(rule: Callable[[str, ast.AST], Iterator[str]]) -> None:
    found = [f"{path}: {text}" for path, source in FILES.items() for text in rule(path, parsed(source))]
    assert not found, "\n".join(found)


def test_the_map_names_what_is_in_the_tree() -> None:
    """Each room has a paragraph, and each module that the table names exists."""
    rooms = {parts_of(path)[0] for path in FILES if parts_of(path)} - {"__main__"}
    heads = [name for head in re.findall(r"^\*\*(`.*`)\*\*", section("Rooms"), re.M) for name in head.split(", ")]
    assert sorted(name.strip("`") for name in heads) == sorted(rooms)
    assert set(LAYER_OF) == rooms | {"__main__"}
    modules = re.findall(r"`(\w+/[\w/]+)`", "\n".join(re.findall(r"^\| (`.*?) \|", section("Modules"), re.M)))
    assert len(modules) > 40 and [name for name in modules if not (PACKAGE / f"{name}.py").is_file()] == []
    threads = re.findall(r'(?:name=|, |Progress\(|else )"(mpigraph-[a-z-]+)"', "\n".join(FILES.values()))
    assert sorted(threads) == sorted(re.findall(r"^\| `(mpigraph-[a-z-]+)`", section("Threads and locks"), re.M))


def test_there_are_no_import_cycles() -> None:
    assert len(FILES) > 50
    assert import_cycle(FILES) == []


BAD = [
    (wrong_layers, "kernels/x.py", "from mpigraph.mpi.world import World"),
    (wrong_layers, "mpi/x.py", "from mpigraph.metadata.book import RangeBook"),
    (wrong_layers, "store/x.py", "if TYPE_CHECKING:\n    import mpigraph.session.store"),
    (wrong_layers, "distributed/x.py", "from .graph import DistGraph"),
    (wrong_layers, "distributed/x.py", "import mpigraph"),
    (wrong_layers, "distributed/x.py", "from mpigraph import sonnet"),
    (wrong_layers, "utils/x.py", ""),
    (wrong_third_parties, "store/x.py", "import numba"),
    (wrong_third_parties, "service/x.py", "def f():\n    import torch"),
    (wrong_third_parties, "service/x.py", "from importlib import import_module"),
    (pickling, "store/x.py", "np.load(path, allow_pickle=True)"),
    (pickling, "mpi/x.py", "from mpi4py import MPI\ncomm.bcast(1)"),
    (finalizers, "store/x.py", "class A:\n    def __del__(self): ..."),
]
GOOD = [
    (wrong_layers, "store/x.py", "from mpigraph import config, errors\nfrom mpigraph.storage.shard import ShardReader"),
    (wrong_layers, "__init__.py", "from mpigraph.cli.main import main"),
    (wrong_third_parties, "graphs/x.py", "import torch"),
    (wrong_third_parties, "compat/x.py", "from importlib import import_module"),
    (pickling, "store/x.py", "np.load(path, allow_pickle=False)\nwindow.allgather()"),
]


def test_each_rule_can_fail_and_hold() -> None:
    for wrong, cases in ((1, BAD), (0, GOOD)):
        for rule, path, source in cases:
            assert len(list(rule(f"mpigraph/{path}", ast.parse(source)))) == wrong, (rule.__name__, source)


def test_import_cycles_are_noticed() -> None:
    ring = {
        "mpigraph/store/a.py": "from mpigraph.store import b",
        "mpigraph/store/b.py": "def f():\n    from mpigraph.store.c import C",
        "mpigraph/store/c.py": "import mpigraph.store.a",
        "mpigraph/store/__init__.py": "",
    }
    assert len(set(import_cycle(ring))) == 3
    assert import_cycle(ring | {"mpigraph/store/c.py": "import mpigraph.errors"}) == []
    assert import_cycle({"mpigraph/a.py": "import mpigraph.a"}) != []
