"""Features stored in a narrower form: the choice of them, and the rounding of their rows."""

import numpy as np
import pytest
import torch

from mpigraph.errors import FieldNameError, InvalidArgumentError
from mpigraph.storage.narrow import RowError, check_feat_dtype, narrowed, rounded
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


def test_one_dtype_is_for_floats_in_rows() -> None:
    expected = dict.fromkeys([("paper", "feat"), ("paper", "wide"), ("a:b:c", "rank")], "float16")
    assert changed("float16") == expected
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
        ({"time": "bfloat16"}, InvalidArgumentError, "'time' of 'paper' is of times"),
    ],
)
def test_what_cannot_be_is_refused(feat_dtype, error, text) -> None:
    with pytest.raises(error, match=text):
        narrowed(NODES, EDGES, check_feat_dtype(feat_dtype))


@pytest.mark.parametrize(
    "feat_dtype", ["float32", "int8", "half", 16, torch.float16, {"feat": "int16"}, {7: "float16"}, ["float16"]]
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
    nearest = rounded(rows, dtype).view(np.int16)
    assert (np.delete(nearest, 3, 0) == np.delete(expected, 3, 0)).all()
    assert (nearest[3, [0, 1, 3, 4, 5, 6]] == expected[3, [0, 1, 3, 4, 5, 6]]).all()
    assert rounded(rows[:, ::2], dtype).shape == (50, 4)  # not contiguous
    assert rounded(rows[:0], dtype).shape == (0, 7)


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
    rounded(rows, dtype)
    rows[6, 3] = rows[7, 0] = large
    with pytest.raises(RowError, match=f"column 3 does not fit {dtype}") as caught:
        rounded(rows, dtype)
    assert caught.value.row == 6
    with pytest.raises(RowError, match=f"^[^,]* does not fit {dtype}") as caught:
        rounded(rows[:, 0], dtype)
    assert caught.value.row == 7
