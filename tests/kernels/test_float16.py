"""16-bit floats: every one of them is widened to what numpy and torch make of it, and rounding is torch's."""

import numpy as np
import pytest
import torch

from mpigraph.kernels.flat import narrow_part, round_to_bfloat16, widen

ALL = np.arange(1 << 16, dtype=np.uint16)
UINT16 = np.dtype(np.uint16)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("brain", [False, True], ids=["float16", "bfloat16"])
def test_every_number_is_widened_where_it_lies(dtype: type, brain: bool) -> None:
    if brain:
        expected = (ALL.astype(np.uint32) << 16).view(np.float32)
    else:
        expected = ALL.view(np.float16).astype(np.float32)
    words = f"u{np.dtype(dtype).itemsize}"
    number = ~np.isnan(expected)
    expected = np.where(number, expected, 0)
    for count in (0, 1, 2, 3, 2047, 2048, 2049, 4097, 1 << 16):  # whole blocks, and not
        for first in {0, len(ALL) - count}:
            some = slice(first, first + count)
            wide = np.full(count, 7, dtype)
            narrow_part(wide, UINT16)[:] = ALL[some]
            widen(wide, brain)
            want = expected[some].astype(dtype)
            assert np.array_equal(wide[number[some]].view(words), want[number[some]].view(words))
            assert np.isnan(wide[~number[some]]).all()


def test_rows_of_any_shape() -> None:
    rows = np.arange(30, dtype=np.float16).reshape(5, 2, 3)
    wide = np.empty((5, 2, 3), np.float32)
    narrow_part(wide, rows.dtype)[:] = rows
    widen(wide, False)
    assert np.array_equal(wide, rows)


def test_rounding_is_to_nearest_even_as_torch_has_it() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
    ties = (ALL.astype(np.uint32) << 16) | 0x8000
    bits = np.concatenate([bits, ties, ties - 1, ties + 1, ALL, ties & 0xFFFF0000])  # ALL: subnormal
    result = np.empty(len(bits), np.uint16)
    lost = round_to_bfloat16(bits, result)
    floats = torch.from_numpy(bits.view(np.float32))
    rounded = floats.to(torch.bfloat16)
    number = ~torch.isnan(floats).numpy()
    assert np.array_equal(result[number], rounded.view(torch.int16).numpy().view(np.uint16)[number])
    assert torch.isnan(torch.from_numpy(result.view(np.int16)).view(torch.bfloat16)).numpy()[~number].all()
    assert lost == np.flatnonzero((torch.isinf(rounded) & torch.isfinite(floats)).numpy())[0]
    assert round_to_bfloat16(bits[:0], result[:0]) == -1
