"""The ranges of a feature's columns, in which int8 has its levels, and whether outliers make them too wide.

An outlier takes the levels from all other numbers of its column. The lowest and the highest number are found among all
rows; a thousand rows at equal distances then tell what is lost. A column is refused if more than 1/64 of the variance
of its numbers is, as if they were on 8 levels. Left out are numbers that are levels themselves, such as all of a column
of 0 and 1, and the lowest and the highest 1 % of the others, which must be at least 1 % of the column.
"""

from collections.abc import Callable, Iterable

import numpy as np

from mpigraph.arrays import Array
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.kernels.levels import LAST
from mpigraph.partition.exchange import Exchange
from mpigraph.storage.narrow import StoredForm
from mpigraph.storage.part_config import FeatureInfo

_MOST_LOST = 1 / 64
_FEWEST = 20  # numbers that can tell
_SAMPLE, _FEWEST_SAMPLED, _SAMPLE_BYTES = 1000, 100, 16 << 20

Chunks = Callable[[], Iterable[tuple[int, Array]]]
"""Yields ``(first row, rows)``: a rank's share of the rows of a feature, some MiB at a time."""


@collective("ranks")
def measured_form(
    title: str, like: FeatureInfo, count: int, chunks: Chunks, place: Callable[[int], str], exchange: Exchange
) -> tuple[StoredForm, Array]:
    """Return the int8 form of a feature, and float64[columns], standard deviations in a sample; the same on every rank.

    ``like`` has dtype and row shape of the feature's ``count`` rows. ``chunks`` yields this rank's rows, and ``place``
    names one of them in messages.

    Raises:
        GraphDataError: a number is infinite or NaN, or outliers make int8 useless; on every rank.
    """
    dtype = np.dtype(like.dtype)
    columns = int(np.prod(like.shape))
    if not count or not columns:
        return StoredForm("int8", np.zeros((2, *like.shape), dtype)), np.zeros(columns)
    size = max(_FEWEST_SAMPLED, min(_SAMPLE, _SAMPLE_BYTES // (columns * dtype.itemsize)))
    sampled = np.unique(np.linspace(0, count - 1, size, dtype=np.int64))
    low = np.full(columns, np.inf, dtype)
    high = np.full(columns, -np.inf, dtype)
    sample = [np.empty((0, columns), dtype)]
    with exchange.together(f"finding the ranges of {title}"):
        for first, rows in chunks():
            flat = rows.reshape(len(rows), columns)
            low = np.minimum(low, flat.min(0))
            high = np.maximum(high, flat.max(0))
            if not (np.isfinite(low).all() and np.isfinite(high).all()):
                row, column = np.argwhere(~np.isfinite(flat))[0].tolist()
                raise GraphDataError(
                    f"{place(first + row)}: {title}: {flat[row, column]} in column {column}, which int8 does not have: "
                    "replace it, or store the feature as float16"
                )
            sample.append(flat[sampled[slice(*np.searchsorted(sampled, [first, first + len(flat)]))] - first])
    low = exchange.gather(low[None]).min(0)
    high = exchange.gather(high[None]).max(0)
    rows = np.sort(exchange.gather(np.concatenate(sample)), 0)  # the same for any number of ranks
    form = StoredForm("int8", np.stack([low, high]).reshape(2, *like.shape))
    with exchange.together(f"measuring int8 of {title}"):
        _check(title, low.astype(np.float64), high.astype(np.float64), form, rows)
    return form, rows.std(0, dtype=np.float64)


def _check(title: str, low: Array, high: Array, form: StoredForm, rows: Array) -> None:
    """Raise GraphDataError if the range of a column is too wide; ``rows``: [n, columns], each column sorted."""
    dtype = rows.dtype
    wide = np.flatnonzero(form.step > np.finfo(form.step.dtype).max / LAST)
    if len(wide):
        raise GraphDataError(f"{title}: the range of column {wide[0]} is larger than {dtype}: clip the column")
    stored = form.widened(form.narrow(rows), dtype.name)
    for column, (own, of_column) in enumerate(zip(rows.T.astype(np.float64), stored.T, strict=True)):
        error = own - of_column
        changed = abs(error) > 4 * np.finfo(dtype).eps * abs(own)
        number = int(np.count_nonzero(changed))
        if number < max(_FEWEST, len(own) / 100):
            continue
        inner = slice(-(-number // 100), number - -(-number // 100))
        own = own[changed][inner]
        error = error[changed][inner]
        levels = len(set(of_column[changed][inner].tolist()))
        if error.var() > _MOST_LOST * own.var():
            raise GraphDataError(
                f"{title}: outliers of column {column} make int8 useless: it ranges from {low[column]:.6g} to "
                f"{high[column]:.6g}, but most of its numbers are from {own[0]:.6g} to {own[-1]:.6g}, on "
                f"{levels} of int8's 256 levels: clip the column, take its logarithm, or store the feature as float16"
            )
