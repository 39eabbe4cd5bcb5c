"""Names of node types and relations of an HGB graph, from its ``info.dat``: JSON, or the tables of Freebase's."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mpigraph.errors import GraphDataError
from mpigraph.metadata.schema import Relation
from mpigraph.storage.files import read_text

__all__ = ["Link", "Names", "read_names", "relations_named"]


class Link(NamedTuple):
    """A type of links: numbers of the node types at its ends, and its meaning, such as "paper-cite-paper"."""

    start: int
    end: int
    meaning: str


class Names(NamedTuple):
    """What ``info.dat`` says, by number of the type."""

    ntypes: dict[int, str]
    links: dict[int, Link]


def read_names(path: Path) -> Names:
    """Read the names.

    Raises:
        GraphDataError: the file has neither form; names it.
    """
    try:
        text = read_text(path)
        return _from_json(json.loads(text)) if text.lstrip().startswith("{") else _from_tables(text)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise GraphDataError(f"{path}: names of node types and links cannot be read: {reason}") from error


def _from_json(info: Mapping[str, Mapping[str, Mapping[str, Mapping[str, str]]]]) -> Names:
    links = info["link.dat"]["link type"]
    return Names(
        {int(number): str(name) for number, name in info["node.dat"]["node type"].items()},
        {int(n): Link(int(about["start"]), int(about["end"]), str(about["meaning"])) for n, about in links.items()},
    )


def _from_tables(text: str) -> Names:
    """Read the tables below the lines ``TYPE MEANING`` and ``LINK START END MEANING``, each up to an empty line."""
    tables: dict[str, list[list[str]]] = {}
    rows: list[list[str]] = []
    for line in text.splitlines():
        fields = line.split()
        if fields in (["TYPE", "MEANING"], ["LINK", "START", "END", "MEANING"]):
            rows = tables.setdefault(fields[0], [])
        elif fields:
            rows.append(fields)
        else:
            rows = []
    return Names(
        {int(number): name for number, name in tables["TYPE"]},
        {int(number): Link(int(start), int(end), meaning) for number, start, end, meaning in tables["LINK"]},
    )


def relations_named(names: Names) -> dict[int, Relation]:
    """Return the relation of each type of links.

    A relation is called as in PyG: by the word between the types in its meaning, "to" if there is none. Where two would
    have one name, they have their whole meanings and numbers.
    """
    relations = {}
    for number, link in names.links.items():
        words = link.meaning.split("-")
        end = names.ntypes[link.end]
        word = words[1].lstrip(">") if len(words) > 1 else link.meaning
        relations[number] = names.ntypes[link.start], "to" if word.lower() == end.lower() else word, end
    counts = Counter(relations.values())
    return {
        number: relation
        if counts[relation] == 1
        else (relation[0], f"{names.links[number].meaning}-{number}", relation[2])
        for number, relation in relations.items()
    }
