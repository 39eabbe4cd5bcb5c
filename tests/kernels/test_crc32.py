"""The checksum is zlib's, whatever the length and wherever the data lie."""

import zlib

import numpy as np

from mpigraph.kernels.crc32 import crc32


def test_it_is_that_of_zlib() -> None:
    data = np.random.default_rng(0).integers(0, 256, 5000, np.uint8)
    for length in (*range(1000, 1100), 0, 1, 64, 4096, 4990):
        for begin in (0, 1, 9):
            for value in (0, 1, 0xFFFFFFFF):
                some = data[begin : begin + length]
                assert crc32(some, value) == zlib.crc32(some, value), (length, begin, value)


def test_parts_are_added_one_after_another() -> None:
    data = np.random.default_rng(1).integers(0, 256, 100_000, np.uint8)
    data.setflags(write=False)
    assert crc32(data[30_001:], crc32(data[:30_001])) == zlib.crc32(data)
