"""Chi-square tests of drawn sets."""

import numpy as np
import numpy.typing as npt
from scipy.special import chdtrc

I64 = npt.NDArray[np.int64]
SUSPICIOUS = 1e-3  # a right kernel stays above


def p_value(codes: I64, probabilities: dict[int, float]) -> float:
    """Return how likely the codes are under the probabilities; a code without one is a mistake."""
    listed, counts = np.unique(codes, return_counts=True)
    assert set(listed.tolist()) <= set(probabilities)
    count_of = dict(zip(listed.tolist(), counts.tolist(), strict=True))
    expected = np.array(list(probabilities.values())) * len(codes)
    assert expected.min() > 5
    expected = expected * (len(codes) / expected.sum())
    differences = np.array([count_of.get(code, 0) for code in probabilities]) - expected
    return float(chdtrc(len(expected) - 1, (differences**2 / expected).sum()))  # of chi squared


def equal(codes: list[int]) -> dict[int, float]:
    return dict.fromkeys(codes, 1 / len(codes))


def bits(places: I64) -> I64:
    """A set of places as a number."""
    return (1 << np.asarray(places, np.int64)).sum(axis=-1)
