"""Partitioned graphs as inputs, to be repartitioned without the original data, and as a folder of .npy files.

Nothing is read before its time. Nodes are numbered by the ids that they have in the partition; their original ids go
along, and so do those of edges. All rows are compared with checksums, each of a few MiB: read in order, or large
ranges.
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.formats.input_files import once
from mpigraph.metadata.schema import escape, relation_key
from mpigraph.partition.exchange import Progress, silent
from mpigraph.partition.output_folder import README, refusal, write_readme
from mpigraph.partition.row_arrays import RowArray, Rows, even_blocks, rows_in_blocks
from mpigraph.partition.source import EDGES_PER_CHUNK, Feature, GraphSource, Parts
from mpigraph.partition.spill import Scratch
from mpigraph.storage.contents import InEdges, PartFiles, StoredRows, overlaps, read_rows
from mpigraph.storage.files import read_text, storage_errors
from mpigraph.storage.format import index_dtype, node_orig_ids_name, segment_rows, storage_dtype
from mpigraph.storage.narrow import widened
from mpigraph.storage.part_config import FeatureInfo, PartConfig

_File: TypeAlias = tuple[str, tuple[str, Callable[[], Array]]]
"""Name of a file, what it is, and what makes its content."""
_ABOUT = "The graph {!r} in its original order: row k is node k, or edge k, of the input."
_AGAIN = "As a partitioned graph: python -m mpigraph partition FOLDER --parts 4 -o parts"
_TEXT = ", text in UTF-8 filled up with zeros: numpy.char.decode(a.view(f'S{a.shape[1]}')[:, 0], 'utf-8')"


def _rows_of(
    files: PartFiles, stored: StoredRows, dtype: npt.DTypeLike = np.int64, shape: tuple[int, ...] = ()
) -> Rows:
    """Return the rows of a dataset, in one file of each part."""

    def read(begin: int, end: int) -> Array:
        rows = np.empty((end - begin, *shape), dtype)
        read_rows(files, stored, [(begin, end)], rows)
        return rows

    count = int(stored.offsets[0, -1])
    segment = segment_rows(count, np.dtype(dtype).itemsize * math.prod(shape))
    return rows_in_blocks(read, (count, *shape), dtype, even_blocks(count, segment))


def _numbers_of(files: PartFiles, relation: int, field: str, dtype: npt.DTypeLike = np.int64) -> Rows:
    """Return "indices", "orig_ids" or "destinations" of the edges of a relation, the last as global ids."""
    config = files.config
    book = config.book
    offsets = book.edge_offsets[relation]
    in_edges: dict[int, InEdges] = {}  # of the part that was read last

    def of_part(part: int, first: int, last: int) -> Array:
        if field != "destinations":
            return files.read_edges(relation, part, field, first, last)
        if relation in config.place_of_shared:
            base = book.node_range(part, config.schema.ends(relation)[1])[0]
            return files.read_edges(relation, part, field, first, last) + np.int64(base)
        if part not in in_edges:
            in_edges.clear()
            in_edges[part] = InEdges(files, relation, part)
        return in_edges[part].destinations(first, last)

    def read(begin: int, end: int) -> Array:
        pieces = [of_part(*piece) for piece in overlaps(offsets, begin, end)]
        return np.concatenate([np.empty(0, dtype), *pieces], dtype=dtype, casting="same_kind")

    return rows_in_blocks(read, (book.num_edges(relation),), dtype, offsets)


def read_partition(path: str | os.PathLike[str]) -> GraphSource:
    """Return a graph that was partitioned, by its configuration ``<name>.json``, as an input; its files stay open.

    Raises:
        PartitionError: the configuration is missing or damaged, or is not one.
        ShardFormatError: a shard is missing or damaged.
    """
    config = PartConfig.read(path)
    book = config.book
    schema = config.schema
    files = PartFiles(config)
    for part in range(config.num_parts):
        files.check(part)

    def features(is_node: bool, owner: int, infos: Mapping[str, FeatureInfo]) -> dict[str, Feature]:
        of_owner = {}
        for name, info in infos.items():
            stored = StoredRows.of_feature(config, is_node, [owner], name)
            rows = _rows_of(files, stored, storage_dtype(info.stored), info.shape)
            of_owner[name] = Feature(rows, info.dtype, info.narrow, info.categories)
        return of_owner

    ntypes = list(enumerate(schema.ntypes))
    relations = range(len(schema.relations))
    numbers = np.arange(book.num_parts, dtype=np.int32)
    return GraphSource(
        schema,
        tuple(book.num_nodes(t) for t, _ in ntypes),
        tuple(
            (
                _numbers_of(files, r, "indices", index_dtype(book.num_nodes(schema.ends(r)[0]))),
                _numbers_of(files, r, "destinations"),
            )
            for r in relations
        ),
        {ntype: features(True, t, config.node_features[ntype]) for t, ntype in ntypes},
        {key: features(False, r, config.edge_features[key]) for r, key in enumerate(schema.relation_keys)},
        node_ids=tuple(
            _rows_of(files, StoredRows.alone("part_graph", node_orig_ids_name(ntype), book.node_offsets[t]))
            for t, ntype in ntypes
        ),
        edge_ids=tuple(_numbers_of(files, r, "orig_ids") for r in relations),
        parts=Parts(np.concatenate([np.repeat(numbers, np.diff(of)) for of in book.node_offsets]), book.num_parts),
    )


def check_apart(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
    """Raise InvalidArgumentError if a graph that is repartitioned would be written over the parts that are read."""
    source = Path(path)
    if source.suffix == ".json" and source.is_file() and source.parent.resolve() == Path(out).resolve():
        raise InvalidArgumentError(f"{out}: the parts of {path} lie there, which are read: write to another folder")


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
        arrays = once(_arrays(source, scratch or Scratch(folder)))
        old = {*_files_named(meta), meta.name} if overwrite else set()
        there = sorted(path.name for path in (*folder.glob("*.npy"), *folder.glob(meta.name)) if path.name not in old)
        if there:
            raise refusal(f"{folder / there[0]} is there already, and")
        for name in sorted(old):
            (folder / name).unlink(missing_ok=True)
        files = {}
        for number, (name, (about, make)) in enumerate(arrays.items()):
            progress("write arrays", number, len(arrays))
            rows = make()
            np.save(folder / name, rows)
            files[name] = f"{rows.dtype}{list(rows.shape)}, {about}"
        progress("write arrays", len(arrays), len(arrays))
        write_readme(folder, _ABOUT.format(Path(part_config).stem), files, _AGAIN)
        tables = {**source.node_feats, **source.edge_feats}
        names = {owner: {name: f.categories for name, f in of.items() if f.categories} for owner, of in tables.items()}
        told = {"files": [*arrays, README], "categories": {owner: of for owner, of in names.items() if of}}
        meta.write_text(json.dumps(told, ensure_ascii=False), "utf-8")
    return folder


def _arrays(source: GraphSource, scratch: Scratch) -> Iterator[_File]:
    """Yield each file. Raises GraphDataError: original ids of nodes are not 0 to n - 1, each once."""
    plain = source.schema.is_homogeneous
    assert source.node_ids is not None and source.edge_ids is not None
    ids_of_nodes = [*map(_permutation, source.node_ids)]

    def file(name: str, about: str, make: Callable[[], Array]) -> _File:
        return f"{escape(name, '/', '%')}.npy", (about, make)

    def in_order(values: RowArray, ids: Callable[[], I64], convert: Callable[[Array], Array]) -> Array:
        """Return the rows of ``values``, converted, each at its original id."""
        order = ids()
        row = convert(values[0:0])
        result = scratch.empty(len(order) * int(np.prod(row.shape[1:])), row.dtype).reshape(-1, *row.shape[1:])
        for begin in range(0, len(order), EDGES_PER_CHUNK):
            end = min(begin + EDGES_PER_CHUNK, len(order))
            result[order[begin:end]] = convert(values[begin:end])
        return result

    def features(prefix: str, owner: str, table: Mapping[str, Feature], ids: Callable[[], I64]) -> Iterator[_File]:
        for name, feature in table.items():
            is_text = name == "id" and feature.dtype == "uint8" and len(feature.values.shape) == 2
            about = f"feature {name!r} of {owner}{_TEXT if is_text else ''}"
            if feature.categories:
                about += f"; its numbers are those of {json.dumps(feature.categories, ensure_ascii=False)}; -1: none"
            yield file(f"{prefix}{name}", about, partial(in_order, feature.values, ids, partial(as_numpy, feature)))

    for t, ntype in enumerate(source.schema.ntypes):
        of_type = "nodes" if plain else f"nodes of type {ntype!r}"
        prefix = "" if plain else f"{ntype}__"
        yield file(f"{prefix}num_nodes", f"the number of {of_type}", partial(np.array, source.num_nodes[t]))
        ids = partial(ids_of_nodes.__getitem__, t)
        yield from features(prefix or "node_", of_type, source.node_feats.get(ntype, {}), ids)
    for r, relation in enumerate(source.schema.relations):
        prefix = "edge_" if plain else "__".join(relation) + "__"
        of_type = "edges" if plain else f"edges {' '.join(relation)!r}"
        ids = partial(_permutation, source.edge_ids[r])
        for side, end in enumerate(("src", "dst")):
            about = f"the {('source', 'destination')[side]} of each of the {of_type}"
            original = ids_of_nodes[source.schema.ends(r)[side]]
            yield file(f"{prefix}{end}", about, partial(in_order, source.edges[r][side], ids, original.__getitem__))
        yield from features(prefix, of_type, source.edge_feats.get(relation_key(relation), {}), ids)


def _files_named(meta: Path) -> list[str]:
    """Return the files that an earlier export has written; an empty list without one."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        return [name for name in json.loads(read_text(meta))["files"] if name == Path(name).name]
    return []


def _permutation(ids: RowArray) -> I64:
    originals: I64 = np.asarray(ids[:], np.int64)
    if not np.array_equal(np.sort(originals), np.arange(len(originals))):
        raise GraphDataError(f"original ids must be 0 to {len(originals) - 1}, each once, to be exported")
    return originals


def as_numpy(feature: Feature, rows: Array) -> Array:
    """Return rows of a feature as they were before they were stored; bfloat16 becomes float32."""
    rows = widened(rows, feature.info.stored, feature.dtype)
    if feature.dtype == "bool":
        return rows.astype(np.bool_)
    return (rows.astype(np.uint32) << np.uint32(16)).view(np.float32) if feature.dtype == "bfloat16" else rows
