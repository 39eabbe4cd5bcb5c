"""A partitioned graph by its original ids, written as a folder of .npy files."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.formats.shards import read_partition
from mpigraph.metadata.schema import escape, relation_key
from mpigraph.partition.exchange import Progress, silent
from mpigraph.partition.output_folder import README, refusal, write_readme
from mpigraph.partition.row_arrays import RowArray
from mpigraph.partition.source import EDGES_PER_CHUNK, Feature, GraphSource
from mpigraph.partition.spill import Scratch
from mpigraph.storage.files import read_text, storage_errors
from mpigraph.storage.narrow import widened

_ABOUT = "The graph {!r} in its original order: row k is node k, or edge k, of the input."
_AGAIN = "As a partitioned graph: python -m mpigraph partition FOLDER --parts 4 -o parts"
_TEXT = ", text in UTF-8 filled up with zeros: numpy.char.decode(a.view(f'S{a.shape[1]}')[:, 0], 'utf-8')"


def write_npy(
    part_config: str | os.PathLike[str],
    out: str | os.PathLike[str],
    scratch: Scratch | None = None,
    progress: Progress = silent,
    overwrite: bool = False,
) -> Path:
    """Write a partitioned graph as a folder of .npy files in its original order, which ``partition`` reads.

    Names are those of ``formats/named_arrays.py``: ``edge_src``, ``edge_dst``, ``num_nodes``, ``node_<name>`` and
    ``edge_<name>``; with types ``<type>__num_nodes``, ``<src>__<rel>__<dst>__src`` and so on. What a file name cannot
    have is written as "%" and two hexadecimal digits. numpy has no bfloat16: such features are written as float32.
    ``README`` says what each file is.

    Args:
        part_config: the configuration of the partitioned graph.
        out: folder to write to.
        scratch: for arrays that do not fit into memory; in ``out`` by default.
        progress: what to report to.
        overwrite: write over another graph that was exported to the folder.

    Returns:
        The folder. ``meta.json``, which lists the files, is written last.

    Raises:
        InvalidArgumentError: files are there already, two arrays would get one name, or it is the graph's own folder.
        PartitionError, ShardFormatError: the partitioned graph is damaged.
        GraphDataError: original ids are not 0 to n - 1, each once.
        StorageError: a file cannot be written.
    """
    folder = Path(out)
    meta = folder / "meta.json"
    if folder.resolve() == Path(part_config).resolve().parent:
        raise InvalidArgumentError(f"{folder} is the folder of the partitioned graph: export to another one")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        source = read_partition(part_config)
        arrays = _arrays(source, scratch or Scratch(folder))
        old = {*_files_named(meta), meta.name} if overwrite else set()
        there = sorted(path.name for path in (*folder.glob("*.npy"), *folder.glob(meta.name)) if path.name not in old)
        if there:
            raise refusal(f"{folder / there[0]} is there already, and")
        for name in sorted(old):
            (folder / name).unlink(missing_ok=True)
        files = {}
        for number, (name, array) in enumerate(arrays.items()):
            progress("write arrays", number, len(arrays))
            rows = array.make()
            np.save(folder / name, rows)
            files[name] = f"{rows.dtype}{list(rows.shape)}, {array.about}"
        progress("write arrays", len(arrays), len(arrays))
        write_readme(folder, _ABOUT.format(Path(part_config).stem), files, _AGAIN)
        tables = {**source.node_feats, **source.edge_feats}
        names = {owner: {name: f.categories for name, f in of.items() if f.categories} for owner, of in tables.items()}
        about = {"files": [*arrays, README], "categories": {owner: of for owner, of in names.items() if of}}
        meta.write_text(json.dumps(about, ensure_ascii=False), "utf-8")
    return folder


class _Array(NamedTuple):
    """A file: what makes its content, and what that is."""

    make: Callable[[], Array]
    about: str


def _arrays(source: GraphSource, scratch: Scratch) -> dict[str, _Array]:
    """Return the array of each file. Raises GraphDataError: original ids of nodes are not 0 to n - 1, each once."""
    plain = source.schema.is_homogeneous
    arrays: dict[str, _Array] = {}
    assert source.node_ids is not None
    ids_of_nodes = [
        _permutation(f"nodes of {ntype!r}", ids)
        for ntype, ids in zip(source.schema.ntypes, source.node_ids, strict=True)
    ]

    def add(name: str, about: str, make: Callable[[], Array]) -> None:
        file = f"{escape(name, '/', '%')}.npy"
        if file in arrays:
            raise InvalidArgumentError(f"a feature has a name of the structure: {name!r} would be there twice")
        arrays[file] = _Array(make, about)

    def in_order(values: RowArray, ids: Callable[[], I64], convert: Callable[[Array], Array]) -> Array:
        """Return the rows of ``values``, converted, each at its original id."""
        order = ids()
        row = convert(values[0:0])
        result = scratch.empty(len(order) * int(np.prod(row.shape[1:])), row.dtype).reshape(-1, *row.shape[1:])
        for begin in range(0, len(order), EDGES_PER_CHUNK):
            end = min(begin + EDGES_PER_CHUNK, len(order))
            result[order[begin:end]] = convert(values[begin:end])
        return result

    def add_features(prefix: str, owner: str, features: Mapping[str, Feature], ids: Callable[[], I64]) -> None:
        for name, feature in features.items():
            is_text = name == "id" and feature.dtype == "uint8" and len(feature.values.shape) == 2
            about = f"feature {name!r} of {owner}{_TEXT if is_text else ''}"
            if feature.categories:
                about += f"; its numbers are those of {json.dumps(feature.categories, ensure_ascii=False)}; -1: none"
            add(f"{prefix}{name}", about, partial(in_order, feature.values, ids, partial(as_numpy, feature)))

    for t, ntype in enumerate(source.schema.ntypes):
        of_type = "nodes" if plain else f"nodes of type {ntype!r}"
        prefix = "" if plain else f"{ntype}__"
        add(f"{prefix}num_nodes", f"the number of {of_type}", partial(np.array, source.num_nodes[t]))
        ids = partial(ids_of_nodes.__getitem__, t)
        add_features(prefix or "node_", of_type, source.node_feats.get(ntype, {}), ids)
    for r, relation in enumerate(source.schema.relations):
        prefix = "edge_" if plain else "__".join(relation) + "__"
        of_type = "edges" if plain else f"edges {' '.join(relation)!r}"
        ids = partial(_ids_of_edges, source, r)
        for side, end in enumerate(("src", "dst")):
            about = f"the {('source', 'destination')[side]} of each of the {of_type}"
            original = ids_of_nodes[source.schema.ends(r)[side]]
            add(f"{prefix}{end}", about, partial(in_order, source.edges[r][side], ids, original.__getitem__))
        add_features(prefix, of_type, source.edge_feats.get(relation_key(relation), {}), ids)
    return arrays


def _ids_of_edges(source: GraphSource, relation: int) -> I64:
    assert source.edge_ids is not None
    return _permutation(f"edges of {relation_key(source.schema.relations[relation])!r}", source.edge_ids[relation])


def _files_named(meta: Path) -> list[str]:
    """Return the files that an earlier export has written; an empty list without one."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        return [name for name in json.loads(read_text(meta))["files"] if name == Path(name).name]
    return []


def _permutation(what: str, ids: RowArray) -> I64:
    originals: I64 = np.asarray(ids[:], np.int64)
    if not np.array_equal(np.sort(originals), np.arange(len(originals))):
        raise GraphDataError(f"original ids of {what} must be 0 to {len(originals) - 1}, each once, to be exported")
    return originals


def as_numpy(feature: Feature, rows: Array) -> Array:
    """Return rows of a feature as they were before they were stored; bfloat16 becomes float32."""
    rows = widened(rows, feature.info.stored, feature.dtype)
    if feature.dtype == "bool":
        return rows.astype(np.bool_)
    return (rows.astype(np.uint32) << np.uint32(16)).view(np.float32) if feature.dtype == "bfloat16" else rows
