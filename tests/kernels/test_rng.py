"""Hashes and the numbers drawn from them."""

import numpy as np
import pytest

from mpigraph.kernels.rng import combine, draw_below, fingerprint, mix64, uniform01


def test_mix64_is_splitmix64() -> None:
    def reference(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    assert int(mix64(np.uint64(0))) == 0xE220A8397B1DCDAF  # the published first number of seed 0
    for x in [1, 2, 2**32, 2**63, 2**64 - 1, *map(int, np.random.default_rng(0).integers(0, 2**63, 50))]:
        assert int(mix64(np.uint64(x))) == reference(x)
        assert int(combine(5, x)) == reference(5 ^ reference(x))


def test_combine_tells_keys_and_orders_apart() -> None:
    keys = [combine(*words) for words in [(1,), (1, 2), (2, 1), (1, 2, 3), (1, 3, 2), (1, 2, 0), (-1, 2)]]
    assert len(set(map(int, keys))) == len(keys)
    assert all(isinstance(key, np.uint64) for key in keys)
    assert combine(-1, -2) == combine(2**64 - 1, 2**64 - 2)


def test_fingerprint_is_of_the_collection_not_its_order() -> None:
    ids = np.random.default_rng(1).integers(0, 2**40, 100)
    assert fingerprint(ids) == fingerprint(np.sort(ids)) == fingerprint(ids[::-1].copy())
    others = [ids[:-1], np.append(ids, 0), np.append(ids[:-1], ids[-1] + 1), np.append(ids, ids[0]), ids[:0]]
    assert len({int(fingerprint(np.ascontiguousarray(x))) for x in [ids, *others]}) == 6


def test_ranges_of_draws() -> None:
    highest, lowest = np.uint64(2**64 - 1), np.uint64(0)
    for n in (1, 2, 3, 1000, 2**31, 2**32 - 1):
        assert draw_below(lowest, n) == 0
        assert draw_below(highest, n) == n - 1
        assert draw_below(np.uint64(1 << 63), n) == n // 2
    assert 0 < uniform01(lowest) < 1e-15
    assert uniform01(np.uint64(1 << 63)) == pytest.approx(0.5)
    assert 0.999 < uniform01(np.uint64(2**64 - 2**12)) < 1
    assert uniform01(highest) < 1
