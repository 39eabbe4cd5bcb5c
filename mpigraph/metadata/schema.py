"""The types of a graph: node types, and typed relations ``(src_type, rel, dst_type)`` between them.

A homogeneous graph has one node type and one relation; it is the one-element case of everything, never a
second code path. Users name types; inside the library they have ids, which are their positions here.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import Protocol, TypeAlias

import numpy as np

from mpigraph.arrays import I64
from mpigraph.errors import EdgeTypeError, InvalidArgumentError, NodeTypeError, check_text, is_plain

Relation: TypeAlias = tuple[str, str, str]

DEFAULT_NTYPE = "_N"
DEFAULT_ETYPE: Relation = ("_N", "_E", "_N")


def escape(name: str, separators: str, mark: str = "~") -> str:
    """Return a name without separators: each, and ``mark``, becomes ``mark`` and two hexadecimal digits.

    ``~`` marks escapes in files of this library, because no name in an older file has one.
    """
    for character in mark + separators:
        name = name.replace(character, f"{mark}{ord(character):02X}")
    return name


def unescape(name: str, mark: str = "~") -> str:
    """Undo :func:`escape`."""
    if mark not in name:
        return name
    return re.sub(f"{mark}([0-9A-F]{{2}})", lambda digits: chr(int(digits[1], 16)), name)


@lru_cache(1 << 14)
def relation_key(relation: Relation) -> str:
    """Return ``"src:rel:dst"``, the name of a relation in files; ``:`` and ``~`` inside a name are escaped."""
    key = ":".join(relation)
    return key if key.count(":") == 2 and "~" not in key else ":".join([escape(name, ":") for name in relation])


def parse_relation(key: str) -> Relation:
    """Return the triple of ``"src:rel:dst"``. Raises EdgeTypeError if it is not three names joined by colons."""
    names = key.split(":")
    if len(names) != 3 or not all(names):
        raise EdgeTypeError(f"edge type {key!r} is not of the form 'src:rel:dst'")
    src, name, dst = names if "~" not in key else map(unescape, names)
    return src, name, dst


def relations_in(text: str, ntypes: Sequence[str], separator: str = ":") -> list[Relation]:
    """Return each relation between node types whose names, joined by a separator, give a text of another program.

    There may be several if names have the separator in them.
    """
    relations = []
    for src in ntypes:
        for dst in ntypes:
            before, after = f"{src}{separator}", f"{separator}{dst}"
            fits = text.startswith(before) and text.endswith(after)
            if fits and (name := text[len(before) : max(len(before), len(text) - len(after))]):
                relations.append((src, name, dst))
    return relations


def check_name(what: str, name: object) -> str:
    """Return the name of a type or feature, which may have any characters except NUL and surrogates.

    Raises:
        InvalidArgumentError: it is no string, is empty, or has one of those; names it.
    """
    text = check_text(what, name)
    if not text:
        raise InvalidArgumentError(f"{what} must not be empty")
    return text


@dataclass(frozen=True)
class Schema:
    """Node types and relations ``(src_type, rel, dst_type)`` of one graph, in the order of their ids."""

    ntypes: tuple[str, ...]
    relations: tuple[Relation, ...]
    _keys: list[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ntypes", tuple(self.ntypes))
        relations = tuple(map(_as_triple, self.relations))
        object.__setattr__(self, "relations", relations)
        for ntype in self.ntypes:
            check_name("a node type's name", ntype)
        names = [name for _, name, _ in self.relations]
        if not all(names) or not is_plain(names):  # thousands of them are checked together
            for name in names:
                check_name("a relation's name", name)
        if not self.ntypes:
            raise InvalidArgumentError("a graph needs at least one node type (got none)")
        for what, types in (("node type", self.ntypes), ("relation", self.relations)):
            if len(set(types)) < len(types):
                repeated = sorted(str(name) for name, times in Counter[object](types).items() if times > 1)
                raise InvalidArgumentError(f"{what} {repeated[0]} is given twice")
        if not {*map(itemgetter(0), relations), *map(itemgetter(2), relations)} <= set(self.ntypes):
            wrong = [(r, end) for r in self.relations for end in (r[0], r[2]) if end not in self.ntypes]
            raise NodeTypeError(f"node type {wrong[0][1]!r} of relation {wrong[0][0]} does not exist")
        object.__setattr__(self, "_keys", list(map(relation_key, relations)))

    @cached_property
    def _ids(self) -> dict[str | Relation, list[int]]:
        """A table of all spellings, since a minibatch looks relations up hundreds of times.

        The name alone may be ambiguous.
        """
        ids: dict[str | Relation, list[int]] = {}
        for number, relation in enumerate(self.relations):
            spellings: set[str | Relation] = {relation, relation[1], ":".join(relation)}
            for spelling in spellings:
                ids.setdefault(spelling, []).append(number)
        for number, key in enumerate(self._keys):
            ids[key] = [number]  # also where another relation's name looks like it
        return ids

    @cached_property
    def _ends(self) -> list[tuple[int, int]]:
        return [(src, dst) for src, dst in self.all_ends.tolist()]

    @cached_property
    def all_ends(self) -> I64:
        """int64[relations, 2], the node type ids of source and destination of each relation."""
        number_of = {name: number for number, name in enumerate(self.ntypes)}
        sides = ([number_of[name] for name in map(itemgetter(end), self.relations)] for end in (0, 2))
        return np.array([*sides], np.int64).T.copy()

    @classmethod
    def homogeneous(cls) -> "Schema":
        """Return the schema of a graph without types."""
        return cls((DEFAULT_NTYPE,), (DEFAULT_ETYPE,))

    @property
    def is_homogeneous(self) -> bool:
        """True with one node type and one relation."""
        return len(self.ntypes) == 1 and len(self.relations) == 1

    def ntype_id(self, ntype: str | None = None) -> int:
        """Return the id of a node type; None means the only one.

        Raises:
            NodeTypeError: the type does not exist, or None with several types.
        """
        if ntype is None:
            if len(self.ntypes) > 1:
                raise NodeTypeError(
                    f"node type is ambiguous: name one of {list(self.ntypes)}, as ntype={self.ntypes[0]!r}"
                )
            return 0
        if ntype not in self.ntypes:
            raise NodeTypeError(f"node type {ntype!r} does not exist (there are {list(self.ntypes)})")
        return self.ntypes.index(ntype)

    def relation_id(self, etype: str | Relation | None = None) -> int:
        """Return the id of a relation given as triple, as name, as "src:rel:dst" or None (the only one).

        Raises:
            EdgeTypeError: the relation does not exist or is ambiguous.
        """
        if etype is None:
            ids = list(range(len(self.relations)))
        else:
            ids = self._ids.get(etype if isinstance(etype, str) else _as_triple(etype), [])
        if len(ids) == 1:
            return ids[0]
        if isinstance(etype, str) and ":" in etype:
            parse_relation(etype)  # a clearer error, if the form is wrong
        name = "edge type" if etype is None else f"edge type {etype!r}"
        if ids:
            raise EdgeTypeError(f"{name} is ambiguous: name one of {[self.relations[i] for i in ids]}")
        raise EdgeTypeError(f"{name} does not exist (there are {list(self.relations)})")

    def to_canonical(self, etype: str | Relation | None = None) -> Relation:
        """Return the triple of an edge type."""
        return self.relations[self.relation_id(etype)]

    def ends(self, relation_id: int) -> tuple[int, int]:
        """Return the node type ids of source and destination."""
        return self._ends[relation_id]

    @property
    def relation_keys(self) -> list[str]:
        """``"src:rel:dst"`` of each relation."""
        return self._keys

    def relation_key(self, relation: int | Relation) -> str:
        """Return ``"src:rel:dst"`` of a relation or of a relation id."""
        return self._keys[relation] if isinstance(relation, int) else relation_key(relation)


class _HasSchema(Protocol):
    @property
    def schema(self) -> Schema: ...


class TypeNames:
    """The types of a graph or book that has a ``schema``, with DGL's names."""

    @property
    def ntypes(self: _HasSchema) -> list[str]:
        """Node types, in the order of their ids."""
        return list(self.schema.ntypes)

    @property
    def etypes(self: _HasSchema) -> list[str]:
        """Names of the relations, in the order of their ids."""
        return [relation[1] for relation in self.schema.relations]

    @property
    def canonical_etypes(self: _HasSchema) -> list[Relation]:
        """Relations ``(src_type, rel, dst_type)``, in the order of their ids."""
        return list(self.schema.relations)

    @property
    def is_homogeneous(self: _HasSchema) -> bool:
        """True with one node type and one relation."""
        return self.schema.is_homogeneous

    def to_canonical_etype(self: _HasSchema, etype: str | Relation | None = None) -> Relation:
        """Return the triple of an edge type; None means the only one. Raises EdgeTypeError."""
        return self.schema.to_canonical(etype)

    def get_ntype_id(self: _HasSchema, ntype: str | None = None) -> int:
        """Return the id of a node type; None means the only one. Raises NodeTypeError."""
        return self.schema.ntype_id(ntype)

    def get_etype_id(self: _HasSchema, etype: str | Relation | None = None) -> int:
        """Return the id of an edge type; None means the only one. Raises EdgeTypeError."""
        return self.schema.relation_id(etype)


def _as_triple(relation: Relation) -> Relation:
    if isinstance(relation, str) or len(relation) != 3:
        raise EdgeTypeError(f"an edge type is a triple (src_type, rel, dst_type) (got {relation!r})")
    return relation[0], relation[1], relation[2]
