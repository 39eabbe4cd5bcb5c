"""Features that are stored in 16 bits and read in their own dtype: choosing them, rounding and widening rows.

At most half of the bytes on disk, in memory, in caches and between nodes. A feature keeps its dtype, float32 or
float64, and is stored as float16 (11 significant bits, up to 65504) or bfloat16 (8 bits, the range of float32).
"""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import FieldNameError, GraphDataError, InvalidArgumentError, check_text
from mpigraph.kernels.flat import narrow_part, round_to_bfloat16, widen
from mpigraph.storage.format import storage_dtype
from mpigraph.storage.part_config import FeatureInfo, Features

WIDE = ("float32", "float64")
"""The dtypes of floats that may be stored in fewer bits."""
FeatDtype: TypeAlias = str | dict[str, str] | None
"""A name in ``FORMS`` for every feature with rows of numbers; name -> dtype; None for no feature."""


FORMS = ("float16", "bfloat16")
"""The narrow dtypes."""

_TIMES = "time"  # rounded times would reorder events


class RowError(GraphDataError):
    """A row cannot be stored, or made from others, as it is to be.

    Args:
        row: its position among the rows of this call.
        reason: what is wrong with it.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


def rounded(rows: Array, dtype: str) -> Array:
    """Round rows to the nearest floats of a form, of two the even one; infinity and NaN stay.

    Args:
        rows: float32 or float64[n, ...].
        dtype: a name in :data:`FORMS`.

    Returns:
        [n, ...] as they are stored.

    Raises:
        RowError: a finite number would become infinite.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # numpy warns of some NaN
        if dtype == "float16":
            stored: Array = rows.astype(np.float16)
            lost = _first_lost(rows, np.isinf(stored))
        else:
            single = np.ascontiguousarray(rows, np.float32)  # as in torch, also on the way from float64
            stored = np.empty(rows.shape, np.uint16)
            lost = round_to_bfloat16(single.reshape(-1).view(np.uint32), stored.reshape(-1))
            if rows.dtype != np.float32 and lost < 0:
                lost = _first_lost(rows, np.isinf(single))
    if lost >= 0:
        row, *columns = np.unravel_index(lost, rows.shape)
        column = "".join(f", column {number}" for number in columns)
        raise RowError(int(row), f"{rows.flat[lost]}{column} does not fit {dtype}")
    return stored


def widen_in_place(rows: Array, stored: str) -> None:
    """Widen rows of :data:`WIDE`, C-contiguous, whose last bytes (:func:`narrow_part`) are rows as they are stored."""
    widen(rows, brain=stored == "bfloat16")


def widened(rows: Array, stored: str, dtype: str) -> Array:
    """Return rows, stored as ``stored``, in the feature's own dtype: ``rows`` themselves where they are so."""
    if stored == dtype:
        return rows
    wide: Array = np.empty(rows.shape, dtype)
    narrow_part(wide, storage_dtype(stored))[:] = rows
    widen_in_place(wide, stored)
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
    if not isinstance(dtype, str) or dtype not in FORMS:
        raise InvalidArgumentError(f"{what} must be one of {list(FORMS)} (got {dtype!r})")
    return dtype


def narrowed(nodes: Features, edges: Features, feat_dtype: FeatDtype) -> tuple[Features, Features]:
    """Return node and edge features with the dtypes that ``feat_dtype`` asks for.

    Without names it applies to floats in rows of one or more dimensions. A feature of one number for each node or edge,
    such as a weight, becomes 16 bits only if it is named. Integers, bools and times never do.

    Args:
        nodes: by node type and name; may be narrow already, and stay so.
        edges: by relation and name.
        feat_dtype: as :func:`check_feat_dtype` returns it.

    Raises:
        FieldNameError: no type has a feature that is named.
        InvalidArgumentError: a feature that is named has no floats of more than 16 bits, is stored in the other narrow
            dtype, or is of times.
    """
    known = {name for features in (nodes, edges) for table in features.values() for name in table}
    for name in feat_dtype if isinstance(feat_dtype, dict) else ():
        if name not in known:
            raise FieldNameError(f"feat_dtype: no feature {name!r} (there are {sorted(known)})")

    def of_all(kind: str, features: Features) -> Features:
        return {
            owner: {
                name: _narrowed(f"{kind} feature {name!r} of {owner!r}", name, info, feat_dtype)
                for name, info in table.items()
            }
            for owner, table in features.items()
        }

    return of_all("node", nodes), of_all("edge", edges)


def _narrowed(title: str, name: str, info: FeatureInfo, feat_dtype: FeatDtype) -> FeatureInfo:
    if not feat_dtype:
        return info
    is_float = info.dtype in WIDE and not info.narrow
    if isinstance(feat_dtype, str):
        is_meant = is_float and len(info.shape) > 0 and name != _TIMES
        return info._replace(narrow=feat_dtype) if is_meant else info
    dtype = feat_dtype.get(name, info.stored)
    if dtype == info.stored:
        return info
    if name == _TIMES:
        raise InvalidArgumentError(f"feat_dtype: {title} is of times, which are not to be rounded")
    if not is_float:
        stored = f"stored as {info.narrow}" if info.narrow else info.dtype
        raise InvalidArgumentError(f"feat_dtype: {title} is {stored}, and cannot be made {dtype}")
    return info._replace(narrow=dtype)


def _first_lost(rows: Array, infinite: Array) -> int:
    """Return the position of the first finite number that became infinite, or -1."""
    lost = np.flatnonzero(infinite & np.isfinite(rows))
    return int(lost[0]) if len(lost) else -1
