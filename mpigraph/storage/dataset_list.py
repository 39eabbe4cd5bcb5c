"""The list of datasets at the end of a shard file, by which a reader finds rows without HDF5, which takes nearly 2 ms.

It lies behind what HDF5 wrote, so that a program that writes to the file by HDF5 cuts it off.
"""

import json
import math
import operator
import os
import struct
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mpigraph.arrays import Array
from mpigraph.storage.format import storage_dtype

MOST_DATASETS = 1024
"""Of a list; files with more have none."""
ATTRIBUTE_BYTES = 1 << 16
"""What HDF5 allows in an object's header, where it has a dataset's checksums."""
_END = struct.Struct("<QI12s")  # behind the list: its bytes, their CRC-32, and
_MAGIC = b"mpigraphlst1"
_READ = 8 << 10  # bytes in which most lists fit
_MOST_BYTES = MOST_DATASETS * ATTRIBUTE_BYTES
_MOST_AXES = 32  # of a dataset of HDF5


class DatasetInfo(NamedTuple):
    """Shape and logical dtype of a dataset."""

    shape: tuple[int, ...]
    dtype: str


class Dataset(NamedTuple):
    """A dataset of a file: its first byte, the dtype in the file, rows of a segment, and checksums."""

    begin: int | None  # without rows
    info: DatasetInfo
    stored: np.dtype[Any]
    segment: int
    crcs: Array

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.stored.itemsize * math.prod(self.info.shape[1:])

    @property
    def content(self) -> tuple[DatasetInfo, bytes]:
        """Shape, logical dtype and the bytes of the checksums."""
        return self.info, self.crcs.tobytes()


def packed(owner: tuple[Any, ...], datasets: Mapping[str, Dataset]) -> bytes:
    """Return the list of a file of ``owner`` (graph name, part, identity); b"" if it has too many datasets."""
    if len(datasets) > MOST_DATASETS:
        return b""
    listed = {
        name: (begin, *info, segment, crcs.tobytes().hex())
        for name, (begin, info, _, segment, crcs) in datasets.items()
    }
    text = json.dumps([*owner, listed]).encode()
    return text + _END.pack(len(text), zlib.crc32(text), _MAGIC)


def read(number: int, size: int) -> tuple[tuple[Any, ...], dict[str, Dataset]] | None:
    """Return owner and datasets from the list of an open file of ``size`` bytes.

    None if the list is missing or damaged, or says of a dataset what cannot be.
    """
    datasets = {}
    try:
        *owner, listed = json.loads(_text(number, size) or "0")
        if len(owner) != 3 or len(listed) > MOST_DATASETS:
            return None
        for name, (begin, sizes, logical, segment, crcs) in listed.items():
            stored = storage_dtype(logical)
            if len(sizes) > _MOST_AXES or not is_possible(shape := tuple(map(operator.index, sizes)), stored):
                return None
            nbytes = stored.itemsize * math.prod(shape)
            sums = np.frombuffer(bytearray.fromhex(crcs), np.uint32)
            inside = not nbytes or 0 <= operator.index(begin) <= size - nbytes
            if not inside or operator.index(segment) < 1 or len(sums) != -(-shape[0] // segment):
                return None
            datasets[name] = Dataset(begin if nbytes else None, DatasetInfo(shape, logical), stored, segment, sums)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    return tuple(owner), datasets


def _text(number: int, size: int) -> bytes:
    """Return the text of the list of an open file, b"" if it has none or a damaged one."""
    end = os.pread(number, _READ, max(0, size - _READ))
    if len(end) < _END.size:
        return b""
    length, crc, magic = _END.unpack(end[-_END.size :])
    if magic != _MAGIC or length > min(size - _END.size, _MOST_BYTES):
        return b""
    if length + _END.size > len(end):
        end = os.pread(number, length + _END.size, size - length - _END.size)
    text = end[-length - _END.size : -_END.size]
    return text if zlib.crc32(text) == crc else b""


def is_possible(shape: tuple[int, ...], stored: np.dtype[np.generic]) -> bool:
    """Return whether numpy has arrays of this shape, also where one of its sizes is 0."""
    return 0 <= min(shape) and stored.itemsize * math.prod(size or 1 for size in shape) < 2**63
