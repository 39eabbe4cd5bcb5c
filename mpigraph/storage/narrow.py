"""Features that are stored in a narrower form and read in their own dtype: choosing them, rounding and widening rows.

Half or a quarter of the bytes on disk, in memory, in caches and between nodes. A feature keeps its dtype, float32 or
float64 (for int8 float16, too), and is stored as float16 (11 significant bits, up to 65504), bfloat16 (8 bits, the
range of float32), or as int8: one of 256 levels between the lowest and the highest number of its column.
"""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import FieldNameError, GraphDataError, InvalidArgumentError, check_text
from mpigraph.kernels.float16 import narrow_part, round_to_bfloat16, widen
from mpigraph.kernels.levels import LAST, to_levels, widen_levels
from mpigraph.storage.format import NARROW, WIDE, storage_dtype
from mpigraph.storage.part_config import FeatureInfo, Features

FeatDtype: TypeAlias = str | dict[str, str] | None
"""A dtype of ``NARROW`` for every feature with rows of numbers; name -> dtype; None for no feature."""

_TILE = 1024  # numbers of successive columns, so that narrow rows take no longer
_TIMES = "time"  # rounded times would reorder events


class RoundingError(GraphDataError):
    """A number is finite, and infinite in 16 bits.

    Args:
        row: its position among the rows.
        reason: the number and its place in the row.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


class StoredForm:
    """A narrower form in which rows of floats are stored.

    Args:
        dtype: "float16", "bfloat16" or "int8".
        ranges: for int8, the lowest and the highest number of each column, [2, *row_shape] in the dtype of the feature.

    Attributes:
        dtype: the logical dtype of stored rows.
        ranges: as above.
        step: [*row_shape], the distance of levels; float32 for float16.
        errors: for int8, float64[columns], how far at most a number of each column that was rounded is from its level.
    """

    def __init__(self, dtype: str, ranges: Array | None = None) -> None:
        self.dtype = dtype
        self.ranges = ranges
        if ranges is not None:
            low, high = ranges.astype(np.result_type(ranges.dtype, np.float32))  # numba has no float16
            with np.errstate(over="ignore"):
                self.step: Array = ((high.astype(np.float64) - low) / LAST).astype(low.dtype)
            repeats = max(1, _TILE // max(1, low.size))
            self.errors = np.zeros(low.size)
            self._tiled = [np.tile(values.reshape(-1), repeats) for values in (low, self.step, high)]

    def narrow(self, rows: Array) -> Array:
        """Round rows to the form. To 16 bits: to the nearest floats, of two the even one; infinity and NaN stay.

        Args:
            rows: float32 or float64[n, *row_shape]; float64 becomes float32 on the way to bfloat16, as in torch.

        Returns:
            [n, *row_shape] as they are stored.

        Raises:
            RoundingError: a finite number would become infinite.
        """
        if self.ranges is None:
            return _in_16_bits(rows, self.dtype)
        levels = np.empty(rows.shape, np.int8)
        low, step, _ = self._tiled
        numbers = np.ascontiguousarray(rows, low.dtype)
        to_levels(numbers.reshape(-1), low, step, levels.reshape(-1))
        if levels.size:
            lost = abs(numbers - self.widened(levels, self.ranges.dtype.name)).reshape(len(rows), -1)
            np.maximum(self.errors, lost.max(0), out=self.errors)
        return levels

    def widen(self, wide: Array) -> None:
        """Turn the stored rows in the :func:`narrow_part` of ``wide`` into numbers; [n, ...] in the feature's dtype."""
        if self.ranges is None:
            widen(wide, self.dtype == "bfloat16")
        elif wide.dtype == np.float16:
            wide[:] = self.widened(narrow_part(wide, np.dtype(np.int8)), "float32")
        else:
            widen_levels(narrow_part(wide, np.dtype(np.int8)).reshape(-1), wide.reshape(-1), *self._tiled)

    def widened(self, rows: Array, dtype: str) -> Array:
        """Return a wider copy of stored rows, in the feature's dtype."""
        wide: Array = np.empty(rows.shape, dtype)
        narrow_part(wide, storage_dtype(self.dtype))[:] = rows
        self.widen(wide)
        return wide


def check_feat_dtype(feat_dtype: object) -> FeatDtype:
    """Return the checked argument, a mapping as a dict.

    Raises:
        InvalidArgumentError: it is no :data:`FeatDtype`.
    """
    if feat_dtype is None:
        return None
    if isinstance(feat_dtype, Mapping):
        return {check_text("name in feat_dtype", n): _checked(f"feat_dtype of {n!r}", d) for n, d in feat_dtype.items()}
    return _checked("feat_dtype", feat_dtype)


def _checked(what: str, dtype: object) -> str:
    if not isinstance(dtype, str) or dtype not in NARROW:
        raise InvalidArgumentError(f"{what} must be one of {list(NARROW)} (got {dtype!r})")
    return dtype


def narrowed(nodes: Features, edges: Features, feat_dtype: FeatDtype) -> tuple[Features, Features]:
    """Return node and edge features with the dtypes that ``feat_dtype`` asks for.

    Without names it applies to floats in rows of one or more dimensions. A feature of one number for each node or edge,
    such as a weight, becomes 16 bits only if it is named, and never as int8. Integers, bools and times never are.

    Args:
        nodes: by node type and name; may be narrow already, and stay so.
        edges: by relation and name.
        feat_dtype: as :func:`check_feat_dtype` returns it.

    Raises:
        FieldNameError: no type has a feature that is named.
        InvalidArgumentError: a feature that is named has no floats of more than 16 bits, is stored in another narrow
            dtype, is of times, or for int8, of one number for each node or edge.
    """
    if not feat_dtype:
        return nodes, edges
    names = feat_dtype if isinstance(feat_dtype, dict) else {}
    known = {name for features in (nodes, edges) for table in features.values() for name in table}
    for name in names:
        if name not in known:
            raise FieldNameError(f"feat_dtype: no feature {name!r} (there are {sorted(known)})")

    def of_table(kind: str, owner: str, table: Mapping[str, FeatureInfo]) -> Iterator[tuple[str, FeatureInfo]]:
        for name, info in table.items():
            if name in names:
                yield name, _named(f"{kind} feature {name!r} of {owner!r}", name, info, names[name])
            elif isinstance(feat_dtype, str) and _is_meant(name, info, feat_dtype):
                yield name, info._replace(narrow=feat_dtype)
            else:
                yield name, info

    of_nodes = {owner: dict(of_table("node", owner, table)) for owner, table in nodes.items()}
    of_edges = {owner: dict(of_table("edge", owner, table)) for owner, table in edges.items()}
    return of_nodes, of_edges


def _is_meant(name: str, info: FeatureInfo, dtype: str) -> bool:
    return info.dtype in WIDE[dtype] and not info.narrow and len(info.shape) > 0 and name != _TIMES


def _named(title: str, name: str, info: FeatureInfo, dtype: str) -> FeatureInfo:
    if name == _TIMES:
        raise InvalidArgumentError(f"feat_dtype: {title} is of times, which are not to be rounded")
    if info.stored == dtype:
        return info
    if info.dtype not in WIDE[dtype] or info.narrow:
        stored = f"stored as {info.narrow}" if info.narrow else info.dtype
        raise InvalidArgumentError(f"feat_dtype: {title} is {stored}, and cannot be made {dtype}")
    if dtype == "int8" and not info.shape:
        raise InvalidArgumentError(f"feat_dtype: {title} has no rows, which int8 is for: leave it {info.dtype}")
    return info._replace(narrow=dtype)


def _in_16_bits(rows: Array, dtype: str) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):  # numpy warns of some NaN
        if dtype == "bfloat16":
            single = np.ascontiguousarray(rows, np.float32)
            rounded: Array = np.empty(rows.shape, np.uint16)
            lost = round_to_bfloat16(single.reshape(-1).view(np.uint32), rounded.reshape(-1))
            if rows.dtype != np.float32 and lost < 0:
                lost = _first_lost(rows, np.isinf(single))
        else:
            rounded = rows.astype(np.float16)
            lost = _first_lost(rows, np.isinf(rounded))
    if lost >= 0:
        row, *columns = np.unravel_index(lost, rows.shape)
        column = "".join(f", column {number}" for number in columns)
        raise RoundingError(int(row), f"{rows.flat[lost]}{column} does not fit {dtype}")
    return rounded


def _first_lost(rows: Array, infinite: Array) -> int:
    """Return the position of the first finite number that became infinite, or -1."""
    lost = np.flatnonzero(infinite & np.isfinite(rows))
    return int(lost[0]) if len(lost) else -1
