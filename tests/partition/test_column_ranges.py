"""Which columns int8 refuses, and what it says of the others."""

import numpy as np
import pytest

from mpigraph.errors import GraphDataError
from mpigraph.partition.column_ranges import measured_form
from mpigraph.partition.exchange import ALONE
from mpigraph.storage.part_config import FeatureInfo

RNG = np.random.default_rng(0)
NORMAL = RNG.standard_normal(5000)


def measured(rows: np.ndarray, dtype: str = "float32"):
    rows = rows.astype(dtype)
    chunks = [(first, rows[first : first + 700]) for first in range(0, len(rows), 700)]
    return measured_form("it", FeatureInfo(dtype, rows.shape[1:]), len(rows), lambda: chunks, "row {}".format, ALONE)


def with_values(rows: np.ndarray, *values: float) -> np.ndarray:
    changed = rows.copy()
    changed[7 : 7 + len(values)] = values
    return changed


FINE = {
    "normal": NORMAL,
    "exponential": RNG.standard_exponential(100_000),
    "lognormal": np.exp(NORMAL),
    "years": NORMAL.round() + 2000,
    "one": np.full(5000, 0.1),
    "two values": RNG.integers(0, 2, 5000) / 3,
    "three values": RNG.integers(0, 3, 5000) / 2,
    "three values and some others": with_values(RNG.integers(0, 3, 5000) / 2, 0.1, 0.2, 0.3),
    "rarely not 0": np.where(RNG.random(5000) < 0.004, RNG.pareto(1, 5000), 0),
    "words, divided by their number": np.where(RNG.random(5000) < 0.02, 1 / RNG.integers(1, 40, 5000), 0),
    "a few rows": np.array([0, 1, 1e6]),
    "a row": np.array([3.0]),
}
USELESS = {
    "an outlier": with_values(NORMAL, 1000),
    "an outlier among a hundred": with_values(NORMAL[:100], -1000),
    "thirty outliers": with_values(NORMAL, *np.arange(1000, 31000, 1000)),
    "a number for those that are missing": with_values(NORMAL, 1e20),
    "degrees": np.rint(RNG.pareto(1, 5000)),
    "counts, often 0": np.where(RNG.random(5000) < 0.1, RNG.pareto(0.5, 5000), 0),
    "cauchy": RNG.standard_cauchy(5000),
}


@pytest.mark.parametrize("name", FINE)
def test_columns_that_int8_has_well_enough(name: str) -> None:
    for dtype in ("float32", "float64"):
        form, _ = measured(FINE[name][:, None], dtype)
        column = FINE[name].astype(dtype)
        assert form.ranges.tolist() == [[column.min()], [column.max()]] and form.ranges.dtype == dtype


@pytest.mark.parametrize("name", USELESS)
def test_outliers_that_make_int8_useless(name: str) -> None:
    rows = np.stack([NORMAL[: len(USELESS[name])], USELESS[name]], 1)
    with pytest.raises(GraphDataError, match=r"it: outliers of column 1 make int8 useless: .* logarithm, or store"):
        measured(rows)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_errors_are_those_of_the_rows_that_were_rounded(dtype: str) -> None:
    rows = np.stack([FINE["two values"], NORMAL * 100, NORMAL, FINE["years"], FINE["one"]], 1).astype(dtype)
    form, stds = measured(rows, dtype)
    assert stds == pytest.approx(rows.std(0, dtype=np.float64), rel=0.1)  # of a fifth of the rows
    chunks = [rows[begin : begin + 700] for begin in range(0, len(rows), 700)]
    wide = np.concatenate([form.widened(form.narrow(chunk), dtype) for chunk in chunks])
    expected = abs(wide.astype(np.float64) - rows).max(0)
    assert form.errors == pytest.approx(expected) and form.errors[0] == form.errors[4] == 0
    assert 0.4 < form.errors[2] / form.step[2] < 0.51


def test_what_is_no_number_has_its_place() -> None:
    rows = np.zeros((40, 2, 3))
    rows[31, 1, 2] = np.inf
    with pytest.raises(GraphDataError, match="row 31: it: inf in column 5"):
        measured(rows)
    with pytest.raises(GraphDataError, match="range of column 0 is larger than float32"):
        measured(np.array([[-3e38], [3e38]]))


def test_no_rows_and_no_columns() -> None:
    for shape in ((0, 3), (4, 0), (0,)):
        form, stds = measured(np.zeros((0, *shape) if shape == (0,) else shape))
        assert not stds.any() and form.narrow(np.zeros(shape, np.float32)).shape == shape
