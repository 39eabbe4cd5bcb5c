"""Read what the configuration of GraphStorm's ``gconstruct`` describes: nodes and edges in parquet, csv, HDF5 and JSON.

================  =====================================================================================================
files             a path, a pattern with ``*``, or a list; relative to the configuration's folder, else to the working
                  directory. They are read in the order of their names as text, as by GraphStorm: rows of nodes without
                  "node_id_col" are numbered so
format            ``parquet``, ``csv`` ("separator"; with a header), ``json`` (an object a line), ``hdf5`` (numbers)
features          float32[rows, columns], or as "out_dtype" says, several columns side by side; the transforms
                  ``max_min_norm`` and ``to_categorical`` (int8, a column for each name)
labels            under the name of their column, of "classification" int64; masks by "custom_split_filenames" (ids, one
                  JSON value a line) or "split_pct": as many rows as GraphStorm takes, chosen by a hash of their numbers
================  =====================================================================================================

Every other transform, task and format is an error that names it. A node type that only edges name has their ends as
nodes.
"""

import glob
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.formats.id_maps import Distinct
from mpigraph.formats.layout import Layout, ReadOptions
from mpigraph.formats.mapped_files import GrowingFile
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.table_columns import NO_NUMBERS, IdColumn, TableColumns, ValueColumn, read_columns
from mpigraph.formats.table_files import JsonFiles, TextForm, json_values, open_tables
from mpigraph.formats.typed_tables import graph_of_tables
from mpigraph.log import get_logger
from mpigraph.partition.multilevel.dist_csr import hashes
from mpigraph.partition.row_arrays import MadeRows, RowArray, as_dtype, as_labels, concatenated
from mpigraph.partition.source import Feature, GraphSource, mask_of
from mpigraph.storage.files import read_text
from mpigraph.storage.hdf5_rows import open_hdf5

_FORMATS = ("parquet", "csv", "json", "hdf5")
_TASKS = ("classification", "regression", "link_prediction")
_KNOWN = {
    "node_type", "relation", "format", "files", "node_id_col", "source_id_col", "dest_id_col", "features", "labels",
}  # fmt: skip
_SPLITS = ("train", "valid", "test")
_ROWS = 1 << 18
_DTYPES = ("float32", "float16", "int8")
_TRANSFORMS = ("no-op", "max_min_norm", "to_categorical")
_LARGEST = float(np.finfo(np.float32).max)
_SEED = np.uint64(0x9E3779B97F4A7C15)


def _is_at(path: Path) -> bool:
    if path.suffix != ".json" or not path.is_file():
        return False
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError, OSError):
        return False
    return isinstance(content, dict) and isinstance(content.get("nodes"), list) and "edges" in content


@collective("ranks")
def _read(path: Path, options: ReadOptions) -> GraphSource:
    content = json.loads(read_text(path))
    if not isinstance(content["edges"], list):
        raise GraphDataError(f"{path}: edges must be a list")
    nodes = _entries(path, content["nodes"], "nodes", options.ranks)
    edges = _entries(path, content["edges"], "edges", options.ranks)
    for ntype in sorted({end for relation in edges for end in relation[::2]} - nodes.keys()):
        # allowed by GraphStorm 0.4.2, for types without features
        get_logger().warning("%s: there is no node type %r under nodes: its nodes are the ends of edges", path, ntype)
    left_out = [f"{key!r} of the configuration" for key in sorted(set(content) - {"version", "nodes", "edges"})]
    source = graph_of_tables(nodes, edges, options.ranks)
    return replace(source, left_out=(*left_out, *source.left_out))


def _entries(path: Path, section: Sequence[object], kind: str, ranks: ReadingRanks) -> "dict[Any, _Entry]":
    entries: dict[Any, _Entry] = {}
    for conf in section:
        entry = _Entry(path, conf, kind, ranks)
        if entry.name in entries:
            raise GraphDataError(f"{entry.title} is there twice")
        entries[entry.name] = entry
    return entries


class _Entry:
    """A :class:`~mpigraph.formats.typed_tables.ReadTable` that the configuration names as a node type or relation."""

    def __init__(self, path: Path, conf: object, kind: str, ranks: ReadingRanks) -> None:
        if not isinstance(conf, dict):
            raise GraphDataError(f"{path}: {kind} must be a list of objects (got {conf!r:.60})")
        self._conf: dict[str, Any] = conf
        self._folder = path.parent
        self._ranks = ranks
        self.name: Any = conf.get("node_type" if kind == "nodes" else "relation")
        self.title = f"{path}: {kind} {self.name!r}"
        if kind == "edges" and isinstance(self.name, list):
            self.name = tuple(self.name)
        names = self.name if kind == "edges" else (self.name,)
        if not isinstance(names, tuple) or len(names) not in (1, 3) or not all(isinstance(name, str) for name in names):
            raise GraphDataError(f"{self.title}: needs a node_type, a name, or a relation, three names")
        self.left_out = [f"{key!r} of {kind} {self.name!r}" for key in sorted(set(conf) - _KNOWN)]
        keys = ["source_id_col", "dest_id_col"] if kind == "edges" else ["node_id_col"] if "node_id_col" in conf else []
        self._columns: TableColumns = self._read([self._name(conf, key) for key in keys])
        self.length = sum(self._columns.lengths)
        self.ids = [self._columns.ids[conf[key]] for key in keys]
        self.features: dict[str, Feature] = {}
        for entry in self._list("features"):
            self._add_feature(entry)
        for entry in self._list("labels"):
            self._add_label(entry)

    def _name(self, conf: Mapping[str, Any], key: str) -> str:
        if not isinstance(conf.get(key), str) or not conf[key]:
            raise GraphDataError(f"{self.title}: {key} must be a name (got {conf.get(key)!r:.60})")
        return str(conf[key])

    def _list(self, key: str) -> list[dict[str, Any]]:
        entries = self._conf.get(key, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise GraphDataError(f"{self.title}: {key} must be a list of objects")
        return entries

    def _read(self, ids: Sequence[str]) -> TableColumns:
        values = [self._name(label, "label_col") for label in self._list("labels") if "label_col" in label]
        names: list[str] = []
        for entry in self._list("features"):
            is_of_names = _transform_of(entry, self._feature_title(entry))[0] == "to_categorical"
            (names if is_of_names else values).extend(self._columns_of(entry))
        ids = list(dict.fromkeys([*ids, *names]))
        both = sorted(set(ids) & set(values))
        if both:
            raise GraphDataError(f"{self.title}: the column {both[0]!r} cannot be names and numbers at once")
        form = self._conf.get("format")
        kind = str(form.get("name")).lower() if isinstance(form, dict) else None
        if not isinstance(form, dict) or kind not in _FORMATS:
            raise GraphDataError(f"{self.title}: the format {kind!r} is not read (known: {', '.join(_FORMATS)})")
        files = self._files(self._conf.get("files"))
        if kind == "hdf5":
            return _hdf5_columns(files, ids, values)
        tables: Any = JsonFiles(files) if kind == "json" else None
        if tables is None:
            tables = open_tables(files, TextForm(form.get("separator", ","), None, True), kind)
        missing = [name for name in (*ids, *values) if name not in tables.names]
        if missing:
            raise GraphDataError(f"{files[0]}: there is no column {missing[0]!r} (there are {tables.names})")
        return read_columns(tables, ids, {name: (name,) for name in values}, {}, self._ranks)

    def _files(self, names: object) -> list[Path]:
        patterns = [names] if isinstance(names, str) else names
        if not isinstance(patterns, list) or not patterns or not all(isinstance(name, str) for name in patterns):
            raise GraphDataError(f"{self.title}: files must be a path or a list of paths (got {names!r:.60})")
        files: set[str] = set()
        for pattern in patterns:
            for folder in (self._folder, Path()):
                whole = os.path.join(glob.escape(str(folder)), pattern)
                there = [str(folder / pattern)] if (folder / pattern).exists() else glob.glob(whole)
                if there:
                    break
            else:
                raise GraphDataError(f"{self.title}: there is no file {self._folder / pattern}")
            files.update(there)
        return [Path(file) for file in sorted(files)]

    def _columns_of(self, entry: Mapping[str, Any]) -> list[str]:
        columns = entry.get("feature_col")
        columns = [columns] if isinstance(columns, str) else columns
        if not isinstance(columns, list) or not columns or not all(isinstance(name, str) for name in columns):
            raise GraphDataError(f"{self.title}: feature_col must be a column or a list of these (got {columns!r:.60})")
        return columns

    def _feature_title(self, entry: Mapping[str, Any]) -> str:
        return f"{self.title}: feature {entry.get('feature_name', entry.get('feature_col'))!r:.80}"

    def _numbers(self, name: str, title: str) -> RowArray:
        column = self._columns.values[name]
        if column.kind in NO_NUMBERS:
            raise GraphDataError(f"{title}: the column {name!r} has no numbers ({column.kind})")
        return column.rows

    def _add_feature(self, entry: Mapping[str, Any]) -> None:
        columns = self._columns_of(entry)
        title = self._feature_title(entry)
        name = entry.get("feature_name", columns[0] if len(columns) == 1 else None)
        if not isinstance(name, str) or not name:
            raise GraphDataError(f"{title}: feature_name must be a name (got {name!r:.60})")
        if _transform_of(entry, title)[0] != "to_categorical":
            values = _numbers([self._numbers(column, title) for column in columns], entry, title)
        elif len(columns) > 1:
            raise GraphDataError(f"{title}: to_categorical takes one column")
        else:
            values = _categories(self._columns.ids[columns[0]], entry, title, self._ranks.folder)
        self._add(name, Feature.of(values), title)

    def _add_label(self, entry: Mapping[str, Any]) -> None:
        task = entry.get("task_type")
        title = f"{self.title}: label {entry.get('label_col', task)!r:.80}"
        if task not in _TASKS:
            raise GraphDataError(f"{title}: the task {task!r} is not read (known: {', '.join(_TASKS)})")
        labels = self._numbers(entry["label_col"], title) if "label_col" in entry else None
        if labels is not None:
            feature = Feature(as_labels(labels), "int64") if task == "classification" else Feature.of(labels)
            self._add(entry["label_col"], feature, title)
        elif task != "link_prediction" and "custom_split_filenames" not in entry:
            raise GraphDataError(f"{title}: {task} needs a label_col")
        custom = entry.get("custom_split_filenames")
        is_random = custom is None
        masks = _split_masks(labels, self.length, entry, title) if is_random else self._chosen(custom, entry, title)
        for name, mask in masks.items():
            self._add(name, mask, title)

    def _add(self, name: str, feature: Feature, title: str) -> None:
        if name in self.features:
            raise GraphDataError(f"{title}: there are two features {name!r}")
        self.features[name] = feature

    def _chosen(self, custom: object, entry: Mapping[str, Any], title: str) -> dict[str, Feature]:
        if not isinstance(custom, dict) or set(custom) - set(_SPLITS) or len(self.ids) != 1:
            needs = f"must name files for {', '.join(_SPLITS)}, of nodes with a node_id_col"
            raise GraphDataError(f"{title}: custom_split_filenames {needs}")
        masks = {}
        taken = np.zeros(self.length, bool)
        for name, split in zip(_mask_names(entry, title), _SPLITS, strict=True):
            names = custom.get(split, [])
            files = self._files(names) if names else []
            ids = np.unique(np.array([text for file in files for text in json_values(file)], "S"))
            chunks = [np.isin(texts, ids)[rows] for texts, rows, _ in self.ids[0].texts()] if len(ids) else []
            is_in = np.concatenate(chunks) if chunks else np.zeros(self.length, bool)
            if is_in.sum() != len(ids):
                raise GraphDataError(f"{title}: {len(ids)} ids of {split!r} are {is_in.sum()} nodes")
            masks[name] = Feature.of(is_in & ~taken)
            taken |= is_in
        return masks


def _hdf5_columns(files: Sequence[Path], ids: Sequence[str], values: Sequence[str]) -> TableColumns:
    contents = [open_hdf5(file)[0] for file in files]
    columns = {}
    for name in dict.fromkeys([*ids, *values]):
        for file, content in zip(files, contents, strict=True):
            if name not in content or not content[name].ndim:
                raise GraphDataError(f"{file}: there is no dataset of numbers {name!r} (there are {sorted(content)})")
        columns[name] = concatenated([content[name] for content in contents])
    lengths = [len(next(iter(content[name] for name in columns), ())) for content in contents]
    for name, column in columns.items():
        if len(column) != sum(lengths):
            raise GraphDataError(f"{files[0]}: {name!r} has {len(column)} rows, others {sum(lengths)}")
        if name in ids and (column.ndim > 1 or column.dtype.kind not in "iu"):
            got = f"{column.dtype}{list(column.shape)}"
            raise GraphDataError(f"{files[0]}: ids must be integers in one dimension (got {got})")
    return TableColumns(
        lengths,
        {name: IdColumn([columns[name]]) for name in ids},
        {name: ValueColumn("list" if columns[name].ndim > 1 else "float", columns[name]) for name in values},
    )


def _transform_of(conf: Mapping[str, Any], title: str) -> tuple[str, Mapping[str, Any]]:
    options = conf.get("transform", {"name": "no-op"})
    name = options.get("name") if isinstance(options, dict) else None
    if name not in _TRANSFORMS:
        raise GraphDataError(f"{title}: the transform {name!r} is not read (known: {', '.join(_TRANSFORMS)})")
    return name, options


def _numbers(columns: Sequence[RowArray], conf: Mapping[str, Any], title: str) -> RowArray:
    """Return columns of numbers side by side, transformed, float32[rows, columns] or as "out_dtype" says."""
    dtype = conf.get("out_dtype", "float32")
    if dtype not in _DTYPES:
        raise GraphDataError(f"{title}: out_dtype must be one of {list(_DTYPES)} (got {dtype!r})")
    name, options = _transform_of(conf, title)
    width = sum(column.shape[1] if column.ndim == 2 else 1 for column in columns)
    make = partial(_scaled, np.dtype(dtype), None)
    if name == "max_min_norm":
        make = partial(_scaled, np.dtype(dtype), [_range(column, options, title) for column in columns])
    return MadeRows(make, dtype, *columns, row_shape=(width,))


def _scaled(dtype: np.dtype[Any], ranges: Sequence[tuple[Array, Array]] | None, *columns: Array) -> Array:
    """Return columns side by side, each from its range to 0 to 1 if there are ranges."""
    parts = [column.reshape(len(column), -1) for column in columns]
    if ranges is None:
        return as_dtype(np.concatenate(parts, axis=1), dtype)
    scaled = [np.clip((part - low) / (high - low), 0, 1) for part, (low, high) in zip(parts, ranges, strict=True)]
    return np.concatenate(scaled, axis=1).astype(dtype)


def _range(column: RowArray, options: Mapping[str, Any], title: str) -> tuple[Array, Array]:
    """Return the smallest and the largest value of each position, [width]: those in the options, else of all rows."""
    try:
        chosen = {name: np.array(options[name], np.float32) for name in ("min_val", "max_val") if name in options}
        bounds = float(options.get("min_bound", -_LARGEST)), float(options.get("max_bound", _LARGEST))
    except (TypeError, ValueError) as error:
        raise GraphDataError(f"{title}: max_min_norm needs numbers for its options: {error}") from error
    lows, highs = [], []
    for first in range(0, len(column) if len(chosen) < 2 else 0, _ROWS):
        rows = np.asarray(column[first : first + _ROWS])
        lows.append(rows.reshape(len(rows), -1).min(axis=0))
        highs.append(rows.reshape(len(rows), -1).max(axis=0))
    if not lows and len(chosen) < 2:
        raise GraphDataError(f"{title}: max_min_norm of no rows")
    low = chosen["min_val"] if "min_val" in chosen else np.maximum(np.min(lows, axis=0), bounds[0])
    high = chosen["max_val"] if "max_val" in chosen else np.minimum(np.max(highs, axis=0), bounds[1])
    if not np.all(high > low):
        raise GraphDataError(f"{title}: max_min_norm needs a maximum above the minimum (got {high} and {low})")
    return low, high


def _categories(column: IdColumn, conf: Mapping[str, Any], title: str, scratch: Path | None) -> RowArray:
    options = _transform_of(conf, title)[1]
    if "separator" in options:
        raise GraphDataError(f"{title}: to_categorical with a separator is not read")
    mapping = options.get("mapping")
    if mapping is None:
        distinct = Distinct()
        for values, _, _ in column.texts(blanks=True):
            distinct.add(values)
        names = [name.decode() for name in distinct.sorted().tolist() if name]
        mapping = {name: number for number, name in enumerate(names)}
    if not isinstance(mapping, dict) or sorted(mapping.values()) != list(range(len(mapping))):
        raise GraphDataError(f"{title}: the mapping of to_categorical must give its names the numbers from 0")
    with GrowingFile(np.int32, (), scratch) as codes:
        for values, positions, _ in column.texts(blanks=True):
            of_values = np.array([mapping.get(value.decode(), -1) for value in values.tolist()], np.int32)
            codes.append(of_values[positions] if len(positions) else of_values)
        every = np.arange(len(mapping))
        return MadeRows(lambda c: (c[:, None] == every).astype(np.int8), np.int8, codes.finish(), row_shape=every.shape)


def _split_masks(labels: RowArray | None, count: int, conf: Mapping[str, Any], title: str) -> dict[str, Feature]:
    """Return the masks of a random split: as many rows as "split_pct" says, chosen by a hash of their numbers."""
    shares = conf.get("split_pct", (0.8, 0.1, 0.1))
    try:
        train, val, test = (float(share) for share in shares)
    except (TypeError, ValueError) as error:
        raise GraphDataError(f"{title}: split_pct must be three numbers (got {shares!r})") from error
    if min(train, val, test) < 0 or train + val + test > 1 + 1e-9:
        raise GraphDataError(f"{title}: split_pct must be shares of 1 at most in all (got {shares!r})")
    if not train + val + test:
        return {}
    is_labelled = np.ones(count, bool)
    for first in range(0, count if labels is not None and labels.dtype.kind == "f" else 0, _ROWS):
        chunk = np.asarray(labels[first : first + _ROWS])  # type: ignore[index]
        is_labelled[first : first + _ROWS] = ~np.isnan(chunk.reshape(len(chunk), -1)).any(axis=1)
    rows = np.flatnonzero(is_labelled)
    rows = rows[np.argsort(hashes(rows, _SEED), kind="stable")]
    ends = np.cumsum([0, *(int(len(rows) * share) for share in (train, val, test))])
    names = _mask_names(conf, title)
    return {name: mask_of(title, np.sort(rows[ends[i] : ends[i + 1]]), count) for i, name in enumerate(names)}


def _mask_names(conf: Mapping[str, Any], title: str) -> Sequence[str]:
    names = conf.get("mask_field_names", ("train_mask", "val_mask", "test_mask"))
    if not isinstance(names, list | tuple) or len(names) != 3 or not all(isinstance(name, str) for name in names):
        raise GraphDataError(f"{title}: mask_field_names must be three names (got {names!r})")
    return names


GRAPHSTORM = Layout("GraphStorm's gconstruct", "", _is_at, _read, by_all_ranks=True)
