"""Features and splits as GraphStorm's ``gconstruct`` makes them from columns."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError
from mpigraph.formats.id_maps import Distinct
from mpigraph.formats.table_columns import IdColumn
from mpigraph.partition.chunks import GrowingFile
from mpigraph.partition.multilevel.hashes import hashes
from mpigraph.partition.row_arrays import MadeRows, RowArray, RowError
from mpigraph.partition.source import Feature, mask_of

__all__ = ["categories", "mask_names", "numbers", "split_masks", "transform_of"]

_ROWS = 1 << 18
_DTYPES = ("float32", "float16", "int8")
_TRANSFORMS = ("no-op", "max_min_norm", "to_categorical")
_LARGEST = float(np.finfo(np.float32).max)
_SEED = np.uint64(0x9E3779B97F4A7C15)


def transform_of(conf: Mapping[str, Any], title: str) -> tuple[str, Mapping[str, Any]]:
    """Return the name of a feature's transform and its options.

    Args:
        conf: an entry of "features".
        title: file and feature, for messages.

    Raises:
        GraphDataError: it is not read, or has another form.
    """
    options = conf.get("transform", {"name": "no-op"})
    name = options.get("name") if isinstance(options, dict) else None
    if name not in _TRANSFORMS:
        raise GraphDataError(f"{title}: the transform {name!r} is not read (known: {', '.join(_TRANSFORMS)})")
    return name, options


def numbers(columns: Sequence[RowArray], conf: Mapping[str, Any], title: str) -> RowArray:
    """Return columns of numbers side by side, transformed, float32[rows, columns] or as "out_dtype" says.

    Args:
        columns: [rows] or [rows, width] each.
        conf: the entry of "features".
        title: file and feature, for messages.

    Raises:
        GraphDataError: an option of the transform is not usable, or a column has no two different values.
    """
    dtype = conf.get("out_dtype", "float32")
    if dtype not in _DTYPES:
        raise GraphDataError(f"{title}: out_dtype must be one of {list(_DTYPES)} (got {dtype!r})")
    name, options = transform_of(conf, title)
    width = sum(column.shape[1] if column.ndim == 2 else 1 for column in columns)
    make = partial(_side_by_side, np.dtype(dtype))
    if name == "max_min_norm":
        make = partial(_scaled, np.dtype(dtype), [_range(column, options, title) for column in columns])
    return MadeRows(make, dtype, *columns, row_shape=(width,))


def _side_by_side(dtype: np.dtype[Any], *rows: Array) -> Array:
    flat = np.concatenate([part.reshape(len(part), -1) for part in rows], axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        made = flat.astype(dtype)
        fits = np.isfinite(made) | ~np.isfinite(flat) if dtype.kind == "f" else made == flat
    if not fits.all():
        row, column = np.argwhere(~fits)[0].tolist()
        raise RowError(row, f"{flat[row, column]} does not fit {dtype.name}")
    return made


def _scaled(dtype: np.dtype[Any], ranges: Sequence[tuple[Array, Array]], *rows: Array) -> Array:
    parts = [
        np.clip((part.reshape(len(part), -1) - low) / (high - low), 0, 1)
        for part, (low, high) in zip(rows, ranges, strict=True)
    ]
    return np.concatenate(parts, axis=1).astype(dtype)


def _range(column: RowArray, options: Mapping[str, Any], title: str) -> tuple[Array, Array]:
    """Return the smallest and the largest value of each position, [width]: given ones, else those of all rows."""
    try:
        given = {name: np.array(options[name], np.float32) for name in ("min_val", "max_val") if name in options}
        bounds = float(options.get("min_bound", -_LARGEST)), float(options.get("max_bound", _LARGEST))
    except (TypeError, ValueError) as error:
        raise GraphDataError(f"{title}: max_min_norm needs numbers for its options: {error}") from error
    lows = []
    highs = []
    for first in range(0, len(column) if len(given) < 2 else 0, _ROWS):
        rows = np.asarray(column[first : first + _ROWS])
        lows.append(rows.reshape(len(rows), -1).min(axis=0))
        highs.append(rows.reshape(len(rows), -1).max(axis=0))
    if not lows and len(given) < 2:
        raise GraphDataError(f"{title}: max_min_norm of no rows")
    low = given["min_val"] if "min_val" in given else np.maximum(np.min(lows, axis=0), bounds[0])
    high = given["max_val"] if "max_val" in given else np.minimum(np.max(highs, axis=0), bounds[1])
    if not np.all(high > low):
        raise GraphDataError(f"{title}: max_min_norm needs a maximum above the minimum (got {high} and {low})")
    return low, high


def categories(column: IdColumn, conf: Mapping[str, Any], title: str, scratch: Path | None) -> RowArray:
    """Return categories as rows of zeros with a one, int8[rows, categories].

    Args:
        column: their names.
        conf: the entry of "features". Rows without a name, or with one that its "mapping" has not, are zeros.
        title: file and feature, for messages.
        scratch: folder of temporary files; None for the system's.
    """
    options = transform_of(conf, title)[1]
    if "separator" in options:
        raise GraphDataError(f"{title}: to_categorical with a separator is not read")
    mapping = options.get("mapping")
    if mapping is None:
        found = Distinct()
        for values, _, _ in column.texts(blanks=True):
            found.add(values)
        names = [name.decode() for name in found.sorted().tolist() if name]
        mapping = {name: number for number, name in enumerate(names)}
    if not isinstance(mapping, dict) or sorted(mapping.values()) != list(range(len(mapping))):
        raise GraphDataError(f"{title}: the mapping of to_categorical must give its names the numbers from 0")
    with GrowingFile(np.int32, (), scratch) as codes:
        for values, positions, _ in column.texts(blanks=True):
            of_values = np.array([mapping.get(value.decode(), -1) for value in values.tolist()], np.int32)
            codes.append(of_values[positions] if len(positions) else of_values)
        return MadeRows(partial(_one_hot, len(mapping)), np.int8, codes.finish(), row_shape=(len(mapping),))


def _one_hot(width: int, codes: Array) -> Array:
    rows = np.zeros((len(codes), width), np.int8)
    known = np.flatnonzero(codes >= 0)
    rows[known, codes[known]] = 1
    return rows


def split_masks(labels: RowArray | None, count: int, conf: Mapping[str, Any], title: str) -> dict[str, Feature]:
    """Return the masks of a random split: as many rows as "split_pct" says, chosen by a hash of their numbers.

    Args:
        labels: those without one (NaN) are in no mask; None: every row has one.
        count: number of rows.
        conf: the entry of "labels".
        title: file and label, for messages.

    Raises:
        GraphDataError: the shares are no three numbers that make 1 at most.
    """
    shares = conf.get("split_pct", (0.8, 0.1, 0.1))
    try:
        train, val, test = (float(share) for share in shares)
    except (TypeError, ValueError) as error:
        raise GraphDataError(f"{title}: split_pct must be three numbers (got {shares!r})") from error
    if min(train, val, test) < 0 or train + val + test > 1 + 1e-9:
        raise GraphDataError(f"{title}: split_pct must be shares of 1 at most in all (got {shares!r})")
    if not train + val + test:
        return {}
    rows = np.concatenate([np.zeros(0, np.int64), *_labelled(labels, count)])
    rows = rows[np.argsort(hashes(rows, _SEED), kind="stable")]
    ends = np.cumsum([0, *(int(len(rows) * share) for share in (train, val, test))])
    names = mask_names(conf, title)
    return {name: mask_of(title, np.sort(rows[ends[i] : ends[i + 1]]), count) for i, name in enumerate(names)}


def mask_names(conf: Mapping[str, Any], title: str) -> Sequence[str]:
    """Return the names of the masks for training, validation and test."""
    names = conf.get("mask_field_names", ("train_mask", "val_mask", "test_mask"))
    if not isinstance(names, list | tuple) or len(names) != 3 or not all(isinstance(name, str) for name in names):
        raise GraphDataError(f"{title}: mask_field_names must be three names (got {names!r})")
    return names


def _labelled(labels: RowArray | None, count: int) -> Iterator[I64]:
    """Yield the rows that have a label, a chunk at a time."""
    for first in range(0, count, _ROWS):
        rows = np.arange(first, min(first + _ROWS, count))
        if labels is not None and labels.dtype.kind == "f":
            chunk = np.asarray(labels[first : first + _ROWS]).reshape(len(rows), -1)
            rows = rows[~np.isnan(chunk).any(axis=1)]
        yield rows
