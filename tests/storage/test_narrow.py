"""Features stored in a narrower form: the choice of them, and the rounding of their rows."""

import numpy as np
import pytest
import torch

from mpigraph.errors import FieldNameError, InvalidArgumentError
from mpigraph.storage.narrow import RoundingError, StoredForm, check_feat_dtype, narrow_part, narrowed
from mpigraph.storage.part_config import FeatureInfo

NODES = {
    "paper": {
        "feat": FeatureInfo("float32", (8,)),
        "wide": FeatureInfo("float64", (2, 2)),
        "half": FeatureInfo("float16", (8,)),
        "rank": FeatureInfo("float32", ()),
        "time": FeatureInfo("float64", (1,)),
        "label": FeatureInfo("int64", (3,)),
        "mask": FeatureInfo("bool", (2,)),
    },
    "author": {"feat": FeatureInfo("float32", (4,), "bfloat16")},
}
EDGES = {"a:b:c": {"weight": FeatureInfo("float32", ()), "rank": FeatureInfo("float32", (1,))}}


def changed(feat_dtype) -> dict[tuple[str, str], str]:
    """Return the features that become narrow, by type and name."""
    stored = narrowed(NODES, EDGES, feat_dtype)
    return {
        (owner, name): info.narrow
        for before, after in zip((NODES, EDGES), stored, strict=True)
        for owner, table in after.items()
        for name, info in table.items()
        if info != before[owner][name]
    }


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_one_dtype_is_for_floats_in_rows(dtype) -> None:
    expected = {("paper", "feat"): dtype, ("paper", "wide"): dtype, ("a:b:c", "rank"): dtype}
    assert changed(dtype) == (expected | {("paper", "half"): "int8"} if dtype == "int8" else expected)
    assert changed(None) == changed({}) == {}


def test_names_are_for_what_they_say() -> None:
    assert changed({"weight": "bfloat16", "wide": "float16"}) == {
        ("a:b:c", "weight"): "bfloat16",
        ("paper", "wide"): "float16",
    }
    assert changed({"rank": "float16"}) == {("paper", "rank"): "float16", ("a:b:c", "rank"): "float16"}
    assert changed({"feat": "bfloat16"}) == {("paper", "feat"): "bfloat16"}  # those of authors are so already
    assert changed({"half": "float16"}) == {}


@pytest.mark.parametrize(
    ("feat_dtype", "error", "text"),
    [
        ({"none": "float16"}, FieldNameError, "no feature 'none'"),
        ({"label": "float16"}, InvalidArgumentError, "'label' of 'paper' is int64"),
        ({"mask": "float16"}, InvalidArgumentError, "'mask' of 'paper' is bool"),
        ({"half": "bfloat16"}, InvalidArgumentError, "'half' of 'paper' is float16"),
        ({"feat": "float16"}, InvalidArgumentError, "'feat' of 'author' is stored as bfloat16"),
        ({"rank": "int8"}, InvalidArgumentError, "'rank' of 'paper' has no rows"),
        ({"feat": "int8"}, InvalidArgumentError, "'feat' of 'author' is stored as bfloat16"),
        ({"time": "bfloat16"}, InvalidArgumentError, "'time' of 'paper' is of times"),
    ],
)
def test_what_cannot_be_is_refused(feat_dtype, error, text) -> None:
    with pytest.raises(error, match=text):
        narrowed(NODES, EDGES, check_feat_dtype(feat_dtype))


@pytest.mark.parametrize(
    "feat_dtype", ["float32", "half", 16, torch.float16, {"feat": "int16"}, {7: "float16"}, ["float16"]]
)
def test_what_is_no_such_dtype_is_refused(feat_dtype) -> None:
    with pytest.raises(InvalidArgumentError, match="feat_dtype"):
        check_feat_dtype(feat_dtype)


@pytest.mark.parametrize("wide", [np.float32, np.float64])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_are_rounded_as_torch_rounds_them(wide, dtype) -> None:
    rng = np.random.default_rng(1)
    rows = (rng.standard_normal((50, 7)) * 10.0 ** rng.integers(-9, 4, (50, 7))).astype(wide)
    rows[3, :5] = np.inf, -np.inf, np.nan, 0.0, -0.0
    expected = torch.from_numpy(rows).to(getattr(torch, dtype)).view(torch.int16).numpy()
    rounded = StoredForm(dtype).narrow(rows).view(np.int16)
    assert (np.delete(rounded, 3, 0) == np.delete(expected, 3, 0)).all()
    assert (rounded[3, [0, 1, 3, 4, 5, 6]] == expected[3, [0, 1, 3, 4, 5, 6]]).all()
    assert StoredForm(dtype).narrow(rows[:, ::2]).shape == (50, 4)  # not contiguous
    assert StoredForm(dtype).narrow(rows[:0]).shape == (0, 7)


@pytest.mark.parametrize(
    ("wide", "dtype", "fits", "large"),
    [
        (np.float32, "float16", 65519.0, 65520.0),
        (np.float64, "float16", -65519.0, -65520.0),
        (np.float32, "bfloat16", 3.38e38, 3.4e38),
        (np.float64, "bfloat16", 3.38e38, -1e39),
    ],
)
def test_what_becomes_infinite_is_named(wide, dtype, fits, large) -> None:
    rows = np.zeros((9, 4), wide)
    rows[2] = np.inf
    rows[5, 1] = fits
    StoredForm(dtype).narrow(rows)
    rows[6, 3] = rows[7, 0] = large
    with pytest.raises(RoundingError, match=f"column 3 does not fit {dtype}") as caught:
        StoredForm(dtype).narrow(rows)
    assert caught.value.row == 6
    with pytest.raises(RoundingError, match=f"^[^,]* does not fit {dtype}") as caught:
        StoredForm(dtype).narrow(rows[:, 0])
    assert caught.value.row == 7


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(300, 1), (300, 37), (7, 2, 3), (1, 2000), (0, 5), (5, 0)])
def test_int8_is_the_nearest_level_and_exact_at_both_ends(dtype, shape) -> None:
    rng = np.random.default_rng(2)
    scale = 10.0 ** (rng.integers(-3, 3, shape[1:]) * (1 if dtype == np.float16 else 9))
    rows = (rng.standard_normal(shape) * scale + rng.integers(-9, 9)).astype(dtype)
    rows[..., :1] = 0.1  # a constant column
    low, high = (rows.min(0, initial=np.inf), rows.max(0, initial=-np.inf)) if len(rows) else np.zeros((2, *shape[1:]))
    form = StoredForm("int8", np.stack([low, high]).astype(dtype))
    levels = form.narrow(rows)
    assert levels.dtype == np.int8 and levels.shape == shape
    wide = form.widened(levels, np.dtype(dtype).name)
    assert wide.dtype == dtype
    for end in (low, high):
        assert (wide[rows == end] == rows[rows == end]).all()
    assert (wide[..., :1] == rows[..., :1]).all()
    step = (high.astype(np.float64) - low) / 255
    rounding = 4 * np.finfo(dtype).eps * np.maximum(abs(low), abs(high))
    assert (abs(wide.astype(np.float64) - rows) <= step * (0.5 + 1e-4) + rounding).all()
    in_place = np.empty(shape, dtype)
    narrow_part(in_place, np.dtype(np.int8))[:] = levels
    form.widen(in_place)
    assert np.array_equal(in_place, wide)
    assert np.array_equal(form.narrow(wide), np.where(step > 0, levels, -128))  # what was rounded stays


def test_every_level_is_widened_as_torch_computes_it() -> None:
    from mpigraph.distgraph.dtypes import widened

    rng = np.random.default_rng(3)
    for dtype in (np.float16, np.float32, np.float64):
        low = rng.standard_normal((1, 50)).astype(dtype)
        form = StoredForm("int8", np.concatenate([low, low + rng.random((1, 50)).astype(dtype) * 100]))
        levels = np.repeat(np.arange(-128, 128, dtype=np.int8)[:, None], 50, 1)
        wide = form.widened(levels, np.dtype(dtype).name)
        assert (np.diff(wide, axis=0) >= 0).all()
        by_torch = widened(torch.from_numpy(levels), form, torch.from_numpy(wide).dtype)
        assert np.array_equal(by_torch.numpy(), wide)
