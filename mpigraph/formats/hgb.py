"""Read a graph of the Heterogeneous Graph Benchmark (HGB), a directory of text files with tabs between fields.

===================  ====================================  ============================================================
file                 fields of a line                      what they become
===================  ====================================  ============================================================
``node.dat``         id, name, type, numbers with commas   the nodes of each type, in the order of their ids; the
                                                           numbers, if any, are feature "feat" (float32)
``link.dat``         source, destination, type, weight     the edges of each relation; feature "weight" (float64)
``label.dat``        id, name, type, labels with commas    feature "label" (int64, -1 for no label) and "train_mask";
                                                           where nodes have several labels [n, classes], 1 for those
                                                           of a node
``label.dat.test``   the same                              the same, and "test_mask"
``info.dat``                                               names of types and relations: JSON, or Freebase's tables
===================  ====================================  ============================================================

Ids count the nodes of all types through. Names of nodes are left out. In HGB's public files the labels of test nodes
are random.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError
from mpigraph.formats.edge_lists import CollectedEdges, blocks_of_lines, number_blocks, numbers_in
from mpigraph.formats.input_files import FolderFiles, failure, graph_of
from mpigraph.formats.layout import Layout, ReadOptions
from mpigraph.formats.mapped_files import GrowingFile
from mpigraph.metadata.schema import Relation
from mpigraph.partition.row_arrays import Reordered, RowArray
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage.files import read_text

_LINK = {"source": "int64", "destination": "int64", "type": "int64", "weight": "float64"}
_LABELS = {"train_mask": "label.dat", "test_mask": "label.dat.test"}
_MAX_CLASSES = 1 << 12  # where a node has several labels: a row has a number for each class


class _Link(NamedTuple):
    """A type of links: numbers of the node types at its ends, and its meaning, such as "paper-cite-paper"."""

    start: int
    end: int
    meaning: str


class _Names(NamedTuple):
    """The content of ``info.dat``, by number of the type."""

    ntypes: dict[int, str]
    links: dict[int, _Link]


def _read_names(path: Path) -> _Names:
    try:
        text = read_text(path)
        if not text.lstrip().startswith("{"):
            return _names_in_tables(text)
        info = json.loads(text)
        links = info["link.dat"]["link type"]
        return _Names(
            {int(number): str(name) for number, name in info["node.dat"]["node type"].items()},
            {int(n): _Link(int(link["start"]), int(link["end"]), str(link["meaning"])) for n, link in links.items()},
        )
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise failure(path, ValueError(f"no names of node types and links: {error!r}")) from error


def _names_in_tables(text: str) -> _Names:
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
    return _Names(
        {int(number): name for number, name in tables["TYPE"]},
        {int(number): _Link(int(start), int(end), meaning) for number, start, end, meaning in tables["LINK"]},
    )


def _relations(names: _Names) -> dict[int, Relation]:
    """Return the relation of each type of links.

    As in PyG, the name is the word between the types in its meaning, or "to" without such a word. Relations that would
    have one name get their whole meanings and numbers.
    """
    relations = {}
    for number, link in names.links.items():
        words = link.meaning.split("-")
        end = names.ntypes[link.end]
        word = words[1].lstrip(">") if len(words) > 1 else link.meaning
        relations[number] = names.ntypes[link.start], "to" if word.lower() == end.lower() else word, end
    counts = Counter(relations.values())
    for number, (start, name, end) in list(relations.items()):
        if counts[start, name, end] > 1:
            relations[number] = start, f"{names.links[number].meaning}-{number}", end
    return relations


class _Nodes(NamedTuple):
    types: I64  # [nodes], number of the type of each
    local: I64  # [nodes], id among those of its type


def _read(path: Path, options: ReadOptions) -> GraphSource:
    names = _read_names(path / "info.dat")
    numbers = {name: number for number, name in names.ntypes.items()}
    if len(numbers) < len(names.ntypes):
        raise GraphDataError(f"{path / 'info.dat'}: several node types have one name ({names.ntypes})")
    nodes, feats = _read_nodes(path / "node.dat", names, options.scratch)
    labels = _read_labels(path, nodes)
    edges = _read_links(path / "link.dat", nodes, names, options.scratch)
    files = FolderFiles(path)
    for name in ("node.dat", "link.dat", "info.dat", *_LABELS.values()):
        files.read(path / name)
    return graph_of(
        {ntype: int((nodes.types == number).sum()) for ntype, number in numbers.items()},
        {relation: (src, dst) for relation, (src, dst, *_) in edges.items()},
        {ntype: feats.get(number, {}) | labels.get(number, {}) for ntype, number in numbers.items()},
        {relation: {"weight": Feature.of(weight)} for relation, (*_, weight) in edges.items()},
        left_out=("names of nodes in node.dat", *files.left_out()),
    )


class _Records(NamedTuple):
    """Lines of id, name, type and perhaps more: int64[k] number of the line, id, type; the fourth field or b""."""

    lines: I64
    ids: I64
    types: I64
    texts: list[bytes]


def _records(path: Path, types: Sequence[int]) -> Iterator[_Records]:
    known = {str(number).encode() for number in types}
    for first, text in blocks_of_lines(path):
        numbers = []
        texts = []
        for number, line in enumerate(text.splitlines(), first):
            fields = line.split(b"\t")
            if len(fields) in (3, 4) and fields[0].isdigit() and len(fields[0]) < 19 and fields[2].strip() in known:
                numbers.append((number, int(fields[0]), int(fields[2])))
                texts.append(fields[3].strip() if len(fields) == 4 else b"")
            elif line.strip():
                needs = f"id, name and a type of {list(types)}, with tabs between them"
                got = line[:80].decode("utf-8", "replace")
                raise GraphDataError(f"{path}, line {number}: must have {needs} (got {got!r})")
        if numbers:
            lines_of, ids, ntypes = np.array(numbers, np.int64).T
            yield _Records(lines_of, ids, ntypes, texts)


class _Numbers:
    """The numbers of the nodes of a type, in a temporary file; as many for each as the first one has."""

    def __init__(self, first: bytes, scratch: Path | None, stack: ExitStack) -> None:
        self._width = len(first.split(b",")) if first else 0
        self._file = stack.enter_context(GrowingFile(np.float32, (self._width,), scratch))

    def add(self, path: Path, lines: Sequence[int], texts: Sequence[bytes]) -> None:
        for line, text in zip(lines, texts, strict=True):
            if bool(text) != bool(self._width):
                count = self._width or "no"
                raise GraphDataError(f"{path}, line {line}: must have {count} numbers, as others of its type")
        if self._width:
            columns = {str(column): "float64" for column in range(self._width)}
            count = f"numbers, {self._width} with commas between them"
            text = b"\n".join(texts)
            numbers = numbers_in(path, text, columns, ",", lambda row: (lines[row], texts[row]), count)
            self._file.append(np.stack(list(numbers.values()), 1))

    def finish(self, order: I64) -> dict[str, Feature]:
        if not self._width:
            return {}
        rows: RowArray = self._file.finish()
        return {"feat": Feature.of(rows if (np.diff(order) > 0).all() else Reordered(rows, order))}


def _read_nodes(path: Path, names: _Names, scratch: Path | None) -> tuple[_Nodes, dict[int, dict[str, Feature]]]:
    tables: dict[int, _Numbers] = {}
    blocks = []
    with ExitStack() as stack:
        for block in _records(path, list(names.ntypes)):
            blocks.append(np.stack([block.lines, block.ids, block.types]))
            for ntype in np.unique(block.types).tolist():
                rows = np.flatnonzero(block.types == ntype).tolist()
                if ntype not in tables:
                    tables[ntype] = _Numbers(block.texts[rows[0]], scratch, stack)
                tables[ntype].add(path, block.lines[rows].tolist(), [block.texts[row] for row in rows])
        lines, ids, types = np.concatenate(blocks, axis=1) if blocks else np.zeros((3, 0), np.int64)
        feats = {ntype: table.finish(np.argsort(ids[types == ntype])) for ntype, table in tables.items()}
    order = np.argsort(ids, kind="stable")
    wrong = np.flatnonzero(ids[order] != np.arange(len(ids)))
    if len(wrong):
        row = order[wrong[0]]
        raise GraphDataError(f"{path}, line {lines[row]}: ids must be 0 to {len(ids) - 1}, each once (got {ids[row]})")
    nodes = _Nodes(types[order], np.empty(len(ids), np.int64))
    for ntype in tables:
        nodes.local[nodes.types == ntype] = np.arange((types == ntype).sum())
    return nodes, feats


def _read_links(path: Path, nodes: _Nodes, names: _Names, scratch: Path | None) -> dict[Relation, list[RowArray]]:
    with ExitStack() as stack:
        links = {number: stack.enter_context(CollectedEdges(_LINK, scratch)) for number in names.links}
        for block in number_blocks(path, _LINK, delimiter="\t"):
            rows = block.columns
            block.check(np.isin(rows["type"], list(links)), f"the third field must be a type of {list(links)}")
            for end in ("source", "destination"):
                block.check((rows[end] >= 0) & (rows[end] < len(nodes.local)), f"{end} is not in node.dat")
            local = {end: nodes.local[rows[end]] for end in ("source", "destination")}
            for number, edges in links.items():
                link_type = names.links[number]
                is_it = rows["type"] == number
                for end, ntype in (("source", link_type.start), ("destination", link_type.end)):
                    fits = nodes.types[rows[end]] == ntype
                    block.check(fits | ~is_it, f"{end} is not of node type {ntype}, as links of type {number} need")
                edges.add({name: column[is_it] for name, column in (rows | local).items()})
        relations = _relations(names)
        return {relations[number]: edges.finish() for number, edges in links.items()}


def _read_labels(path: Path, nodes: _Nodes) -> dict[int, dict[str, Feature]]:
    labels = _all_labels(path, nodes)
    classes = 1 + int(labels[:, 1].max(initial=-1))
    is_single = len(np.unique(labels[:, 0])) == len(labels)
    if not is_single and classes > _MAX_CLASSES:
        most = f"{classes} classes (allowed: {_MAX_CLASSES})"
        raise GraphDataError(f"{path / 'label.dat'}: a node has several labels of {most}")
    feats: dict[int, dict[str, Feature]] = {}
    for ntype in np.unique(nodes.types[labels[:, 0]]).tolist():
        ids, values, are_test = labels[nodes.types[labels[:, 0]] == ntype].T
        rows = nodes.local[ids]
        count = int((nodes.types == ntype).sum())
        label: Array = np.full(count, -1) if is_single else np.zeros((count, classes), np.int64)
        label[rows if is_single else (rows, values)] = values if is_single else 1
        feats[ntype] = {"label": Feature.of(label)}
        for is_test, name in enumerate(_LABELS):
            mask = np.zeros(count, bool)
            mask[rows[are_test == is_test]] = True
            feats[ntype][name] = Feature.of(mask)
    return feats


def _all_labels(path: Path, nodes: _Nodes) -> I64:
    """Return int64[labels, 3]: node, label and whether it is for testing; checks that each node is there once."""
    seen = np.zeros(len(nodes.local), bool)
    rows: list[tuple[int, int, int]] = []
    for is_test, file in enumerate(path / name for name in _LABELS.values()):
        for block in _records(file, np.unique(nodes.types).tolist()) if os.path.lexists(file) else ():
            for line, node, ntype, text in zip(*map(np.ndarray.tolist, block[:3]), block.texts, strict=True):
                values = text.split(b",")
                if node >= len(seen) or nodes.types[node] != ntype or seen[node]:
                    what = f"node {node} of type {ntype} is not there, or labelled twice"
                    raise GraphDataError(f"{file}, line {line}: {what}")
                if not all(value.isdigit() and len(value) < 19 for value in values) or len({*values}) < len(values):
                    raise GraphDataError(f"{file}, line {line}: labels must be integers with commas (got {text!r:.80})")
                seen[node] = True
                rows += [(node, int(value), is_test) for value in values]
    return np.array(rows, np.int64).reshape(-1, 3)


HGB = Layout(
    "HGB", "node.dat and link.dat", lambda path: (path / "node.dat").is_file() and (path / "link.dat").is_file(), _read
)
