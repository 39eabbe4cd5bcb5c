"""Everything public is described, and whoever communicates collectively says so.

Silent means local. The second rule is read from the syntax trees: calls are resolved by names, imports, annotations and
what ``self.x`` is assigned; a call whose receiver stays unknown proves nothing, and so obliges nobody.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "mpigraph").rglob("*.py"))}

BLOCKING = """
Barrier Bcast Gather Gatherv Scatter Scatterv Allgather Allgatherv Alltoall Alltoallv Reduce Allreduce Reduce_scatter
""".split()
COLLECTIVES = {*BLOCKING, *(f"I{name.lower()}" for name in BLOCKING), "Split", "Split_type", "Dup", "Create_group"}
OF_WINDOWS = {"Allocate", "Allocate_shared", "Create"}  # of MPI.Win
HANDLES = {"win", "comm", "shared"}  # names of what only all ranks together can free
SAYS = re.compile(r"\bcollective on\b", re.IGNORECASE)

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.FunctionDef | ast.ClassDef


def listed(tree: ast.Module) -> list[str]:
    """The names in ``__all__``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return list(ast.literal_eval(node.value))
    return []


def public(tree: ast.Module) -> Iterator[Definition]:
    """The functions and classes that ``__all__`` names."""
    names = listed(tree)
    yield from (node for node in tree.body if isinstance(node, Definition) and node.name in names)


def methods(node: Definition) -> Iterator[ast.FunctionDef]:
    for item in node.body if isinstance(node, ast.ClassDef) else []:
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
            yield item


# Descriptions


def undescribed(path: str, source: str) -> Iterator[str]:
    """What has no docstring, or is missing, in one file."""
    tree = ast.parse(source)
    if not ast.get_docstring(tree):
        yield f"{path}: no module docstring"
    if listed(tree) == [] and Path(path).name not in ("__init__.py", "__main__.py"):
        yield f"{path}: no __all__"
    for node in public(tree):
        if not ast.get_docstring(node):
            yield f"{path}: {node.name} has no docstring"
        for method in methods(node):
            if not ast.get_docstring(method):
                yield f"{path}: {node.name}.{method.name} has no docstring"


def test_everything_public_is_described() -> None:
    found = [text for path, source in FILES.items() for text in undescribed(path, source)]
    assert not found, "\n".join(found)


def test_all_names_what_exists() -> None:
    for path, source in FILES.items():
        tree, names = ast.parse(source), set()
        if path == "mpigraph/__init__.py":
            continue  # looks its names up when they are used
        for node in tree.body:
            if isinstance(node, Definition):
                names.add(node.name)
            elif isinstance(node, ast.Assign):
                names |= {t.id for target in node.targets for t in ast.walk(target) if isinstance(t, ast.Name)}
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        assert set(listed(tree)) <= names, path
        assert len(listed(tree)) == len(set(listed(tree))), path


HEAD = '"""A module."""\n__all__ = ["f", "C"]\n'
DESCRIBED = HEAD + (
    'def f():\n    """Do."""\n'
    'class C:\n    """Thing."""\n    def look(self):\n        """See."""\n    def _hidden(self): ...\n'
)


def test_descriptions_can_be_missing() -> None:
    def found(source: str) -> list[str]:
        return [text.removeprefix("x.py: ") for text in undescribed("x.py", source)]

    assert found(DESCRIBED) == []
    assert found(DESCRIBED.replace('"""Do."""', "pass")) == ["f has no docstring"]
    assert found(DESCRIBED.replace('"""Thing."""', "pass")) == ["C has no docstring"]
    assert found(DESCRIBED.replace('"""See."""', "pass")) == ["C.look has no docstring"]
    assert found(DESCRIBED.removeprefix('"""A module."""\n')) == ["no module docstring"]
    assert found('"""A module."""\n') == ["no __all__"]


# Collective calls


@dataclass
class Callee:
    """A function or method of the library."""

    path: str
    node: Function
    owner: "Class | None" = None

    @property
    def name(self) -> str:
        return f"{self.owner.node.name}.{self.node.name}" if self.owner else self.node.name

    @cached_property
    def says(self) -> bool:
        """Whether its docstring, or its class's, or those of what it overrides, say that it is collective."""
        own = bool(SAYS.search(ast.get_docstring(self.node) or ""))
        return own or any(self.node.name in cls.said or self.node.name in cls.speaking for cls in self.above)

    @property
    def above(self) -> "list[Class]":
        return self.owner.line if self.owner else []

    @property
    def is_hook(self) -> bool:
        """Whether a method has nothing but a docstring, or an error: for subclasses to do."""
        (*rest, last) = self.node.body
        return bool(self.owner) and (isinstance(last, ast.Raise) or (not rest and isinstance(last, ast.Expr)))


@dataclass(eq=False)
class Class:
    """A class of the library, with what is known of its attributes."""

    path: str
    node: ast.ClassDef
    methods: dict[str, Callee] = field(default_factory=dict)
    line: "list[Class]" = field(default_factory=list)
    """The class and those that it derives from."""

    @cached_property
    def speaking(self) -> set[str]:
        """The methods that say so themselves."""
        return {name for name, it in self.methods.items() if SAYS.search(ast.get_docstring(it.node) or "")}

    @cached_property
    def said(self) -> set[str]:
        """The methods that the class's docstring calls collective."""
        found = set[str]()
        for paragraph in (ast.get_docstring(self.node) or "").split("\n\n"):
            if SAYS.search(paragraph):
                found |= set(re.findall(r":meth:`(\w+)`", paragraph))
                found |= {"__init__"} if "onstruction" in paragraph else set()
        return found


class Library:
    """The definitions of some files, and who calls whom."""

    def __init__(self, files: dict[str, str]) -> None:
        self.trees = {path: ast.parse(source) for path, source in files.items()}
        self.names: dict[str, dict[str, Callee | Class]] = {}
        for path, tree in self.trees.items():
            self.names[path] = {}
            for node in tree.body:
                if isinstance(node, Function):
                    self.names[path][node.name] = Callee(path, node)
                elif isinstance(node, ast.ClassDef):
                    made = self.names[path][node.name] = Class(path, node)
                    for item in node.body:
                        if isinstance(item, Function):
                            made.methods[item.name] = Callee(path, item, made)
        self.imported = {path: dict(self._imports(tree)) for path, tree in self.trees.items()}
        self.classes = [it for names in self.names.values() for it in names.values() if isinstance(it, Class)]
        for cls in self.classes:
            cls.line = list(self.bases(cls))
        self.by_name: dict[str, list[Callee]] = {}
        for callee in self.callees():
            self.by_name.setdefault(callee.node.name, []).append(callee)
        self._attributes: dict[tuple[Class, str], Class | None] = {}
        self._called: dict[ast.Call, Callee | None] = {}
        self._reaching: dict[ast.AST, bool] = {}

    def _imports(self, tree: ast.Module) -> Iterator[tuple[str, tuple[str, str]]]:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mpigraph"):
                for alias in node.names:
                    yield alias.asname or alias.name, ((node.module or "").replace(".", "/"), alias.name)

    def callees(self) -> Iterator[Callee]:
        for names in self.names.values():
            for thing in names.values():
                yield from thing.methods.values() if isinstance(thing, Class) else [thing]

    def look_up(self, path: str, name: str) -> Callee | Class | None:
        """What a plain name means in a file."""
        if name in self.names.get(path, {}):
            return self.names[path][name]
        module, original = self.imported.get(path, {}).get(name, ("", ""))
        for file in (f"{module}.py", f"{module}/__init__.py"):
            if file in self.names and (file, original) != (path, name):
                return self.look_up(file, original)
        return None

    def bases(self, cls: Class) -> Iterator[Class]:
        """A class and those that it derives from."""
        yield cls
        for base in cls.node.bases:
            found = self.look_up(cls.path, base.id) if isinstance(base, ast.Name) else None
            if isinstance(found, Class):
                yield from self.bases(found)

    def method(self, cls: Class, name: str) -> Callee | None:
        return next((base.methods[name] for base in cls.line if name in base.methods), None)

    def annotated(self, path: str, node: ast.expr | None) -> Class | None:
        """The class that an annotation names."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.parse(node.value, mode="eval").body
        if isinstance(node, ast.BinOp):
            return self.annotated(path, node.left) or self.annotated(path, node.right)
        found = self.look_up(path, node.id) if isinstance(node, ast.Name) else None
        return found if isinstance(found, Class) else None

    def attribute(self, cls: Class, name: str) -> Class | None:
        """The class of ``self.name``: annotated, a property, or what methods assign."""
        key = cls, name
        if key not in self._attributes:
            self._attributes[key] = None  # while it is being found out
            found = (self._declared(base, name) for base in cls.line)
            self._attributes[key] = next((it for it in found if it is not None), None)
        return self._attributes[key]

    def _declared(self, cls: Class, name: str) -> Class | None:
        if name in cls.methods:
            return self.annotated(cls.path, cls.methods[name].node.returns)
        for item in cls.node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id == name:
                return self.annotated(cls.path, item.annotation)
        for method in cls.methods.values():
            for node in ast.walk(method.node):
                targets = node.targets if isinstance(node, ast.Assign) else []
                targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
                if any(isinstance(t, ast.Attribute) and ast.unparse(t) == f"self.{name}" for t in targets):
                    if isinstance(node, ast.AnnAssign):
                        return self.annotated(cls.path, node.annotation)
                    known = self.type_of(method, node.value) if isinstance(node, ast.Assign) else None
                    if known is not None:
                        return known
        return None

    def variable(self, inside: Callee, name: str) -> Class | None:
        """The class of a parameter or local variable."""
        if name in ("self", "cls"):
            return inside.owner
        for node in ast.walk(inside.node):
            if isinstance(node, ast.arg) and node.arg == name:
                return self.annotated(inside.path, node.annotation)
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                refers = any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node.value))
                return None if refers else self.type_of(inside, node.value)
        return None

    def type_of(self, inside: Callee, node: ast.expr) -> Class | None:
        """The class of an expression in a function."""
        if isinstance(node, ast.Name):
            found = self.variable(inside, node.id) or self.look_up(inside.path, node.id)
            return found if isinstance(found, Class) else None
        if isinstance(node, ast.Attribute):
            owner = self.type_of(inside, node.value)
            return None if owner is None else self.attribute(owner, node.attr)
        if isinstance(node, ast.Call):
            called = self.called(inside, node)
            if called is not None and called.node.name == "__init__":
                return called.owner
            if isinstance(node.func, ast.Name) and isinstance(made := self.look_up(inside.path, node.func.id), Class):
                return made
            return None if called is None else self.annotated(called.path, called.node.returns)
        return None

    def called(self, inside: Callee, call: ast.Call) -> Callee | None:
        """What a call calls, where that can be told."""
        if call not in self._called:
            self._called[call] = self._find_called(inside, call)
        return self._called[call]

    def _find_called(self, inside: Callee, call: ast.Call) -> Callee | None:
        func = call.func
        if isinstance(func, ast.Name):
            found = self.look_up(inside.path, func.id)
            return self.method(found, "__init__") if isinstance(found, Class) else found
        if not isinstance(func, ast.Attribute):
            return None
        if isinstance(func.value, ast.Call) and ast.unparse(func.value) == "super()" and inside.owner:
            above = inside.owner.line[1:]
            return next((base.methods[func.attr] for base in above if func.attr in base.methods), None)
        owner = self.type_of(inside, func.value)
        return None if owner is None else self.method(owner, func.attr)

    def might_call(self, inside: Callee, call: ast.Call) -> Iterator[Callee]:
        """What a call may call: by its name alone where nothing else is known."""
        certain = self.called(inside, call)
        if certain is not None:
            yield certain
        elif isinstance(call.func, ast.Attribute):
            yield from self.by_name.get(call.func.attr, [])

    def reaches(self, function: Callee) -> bool:
        """Whether it certainly makes a collective call, itself or by a function that says so, or a private one."""
        key = function.node
        if key not in self._reaching:
            self._reaching[key] = False  # while it is being found out
            self._reaching[key] = any(self._commits(function, call) for call in made_by(function.node))
        return self._reaching[key]

    def _commits(self, function: Callee, call: ast.Call) -> bool:
        if of_mpi(call):
            return True
        callee = self.called(function, call)
        if callee is None or callee.node is function.node:
            return False
        return callee.says or (callee.node.name.startswith("_") and self.reaches(callee))

    def may_reach(self, function: Callee, seen: set[ast.AST]) -> bool:
        """Whether it may make a collective call, by anything that it calls or names."""
        if function.node in seen:
            return False
        seen.add(function.node)
        if function.is_hook:
            return True
        given = {it.arg for it in ast.walk(function.node) if isinstance(it, ast.arg)}
        for cls in self.classes if function.owner else []:
            if function.owner in cls.line[1:] and function.node.name in cls.methods:
                if self.may_reach(cls.methods[function.node.name], seen):
                    return True
        for call in calls(function.node):
            if of_mpi(call) or (isinstance(call.func, ast.Name) and call.func.id in given):
                return True
            if any(it.says or self.may_reach(it, seen) for it in self.might_call(function, call)):
                return True
        return False


@cache
def calls(node: ast.AST) -> list[ast.Call]:
    return [it for it in ast.walk(node) if isinstance(it, ast.Call)]


def made_by(function: Function) -> Iterator[ast.Call]:
    """The calls that a function makes itself: those of functions inside it only where it calls these by name."""
    called = {it.func.id for it in calls(function) if isinstance(it.func, ast.Name)}
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Call):
            yield node
        if isinstance(node, ast.Lambda) or (isinstance(node, Function) and node.name not in called):
            continue
        todo += ast.iter_child_nodes(node)


def of_mpi(call: ast.Call) -> bool:
    """Whether a call is one of MPI's collective ones."""
    if not isinstance(call.func, ast.Attribute):
        return False
    name, receiver = call.func.attr, ast.unparse(call.func.value)
    if name in OF_WINDOWS:
        return receiver == "MPI.Win"
    if name == "Free":
        return receiver.split(".")[-1].strip("_") in HANDLES
    return name in COLLECTIVES


def is_public(function: Callee) -> bool:
    named = function.owner.node.name if function.owner else function.node.name
    method = function.node.name if function.owner else ""
    return not named.startswith("_") and (method == "__init__" or not method.startswith("_"))


@cache
def whole() -> Library:
    return Library(FILES)


def silent(library: Library) -> Iterator[str]:
    """Who makes collective calls and does not say so."""
    for function in library.callees():
        if is_public(function) and not function.says and library.reaches(function):
            yield f"{function.path}: {function.name} is collective and does not say so"


def boasting(library: Library) -> Iterator[str]:
    """Who says that it is collective, and calls nothing that could be."""
    for function in library.callees():
        if function.says and not library.may_reach(function, set()):
            yield f"{function.path}: {function.name} says that it is collective, and is not"


def test_whoever_is_collective_says_so() -> None:
    found = list(silent(whole()))
    assert not found, "\n".join(found)


def test_whoever_says_collective_is() -> None:
    found = list(boasting(whole()))
    assert not found, "\n".join(found)


COLLECTIVE = {
    "mpigraph/a.py": """
from mpigraph.b import Base, helper

class Child(Base):
    '''A thing.

    Collective on the ranks: construction and :meth:`close`.
    '''

    count: int

    def __init__(self, comm, other: "Base | None"):
        self.comm = comm.Dup()
        self.other = other

    def close(self):
        self.comm.Free()

    def read(self):
        '''Collective on the ranks.'''
        self.other.meet()

    def look(self):
        '''Nothing of it.'''
        self.row.Free()
        return helper(3)

def make(comm):
    '''Collective on the ranks.'''
    return Child(comm, None)

def through(child: Child):
    '''Collective on the ranks.'''
    other = child.other.inherited
    def later():
        return other.meet()
    def never():
        return make(3)
    return later(), never, lambda: make(3)

def maker():
    '''Nothing is made yet.'''
    def later():
        return make(3)
    return later

def unknown(thing):
    '''Collective on nobody knows whom.'''
    thing.meet()
""",
    "mpigraph/b.py": """
class Base:
    def meet(self):
        '''Collective on the ranks.'''
        self._meet()

    def _meet(self):
        self.comm.Barrier()

    @property
    def inherited(self) -> "Base": ...

def helper(x): ...
""",
}


def test_the_collective_rules_hold_where_they_should() -> None:
    library = Library(COLLECTIVE)
    assert list(silent(library)) == [] and list(boasting(library)) == []
    reached = {it.name for it in library.callees() if library.reaches(it)}
    assert reached == {"Child.__init__", "Child.close", "Child.read", "Base.meet", "Base._meet", "make", "through"}


@pytest.mark.parametrize(
    ("path", "old", "new", "says"),
    [
        ("a", "construction and", "", "Child.__init__ is collective and does not say so"),
        ("a", ":meth:`close`", "closing", "Child.close is collective and does not say so"),
        ("a", "Collective on the ranks.'''\n        self.other", "x'''\n        self.other", "Child.read is"),
        ("a", "Collective on the ranks.'''\n    return", "x'''\n    return", "make is collective and does not"),
        ("a", "self.row.Free()", "super().meet()", "Child.look is collective and does not say so"),
        ("a", "return helper(3)", "return Child.meet(self)", "Child.look is collective and does not say so"),
        ("a", "return later\n", "return later()\n", "maker is collective and does not say so"),
        ("b", "Collective on the ranks", "x", "Base.meet is collective and does not say so"),
        ("b", "self.comm.Barrier()", "pass", "Base.meet says that it is collective, and is not"),
        ("b", "def helper(x): ...", "def helper(x):\n    x.Win.Allocate(8)\n    MPI.Win.Allocate(8)", "helper is coll"),
        ("a", "Nothing of it", "Collective on the ranks", "Child.look says that it is collective, and is not"),
    ],
)
def test_each_collective_rule_can_fail(path: str, old: str, new: str, says: str) -> None:
    file = f"mpigraph/{path}.py"
    assert COLLECTIVE[file].count(old) == 1
    library = Library(COLLECTIVE | {file: COLLECTIVE[file].replace(old, new)})
    found = [*silent(library), *boasting(library)]
    assert any(text.removeprefix(f"{file}: ").startswith(says) for text in found), found
