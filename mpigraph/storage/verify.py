"""Read shard files from end to end; check that one is a complete copy of another.

Every dataset carries its checksums, so only these are read from the original (its *fingerprint*), which may be on a
slow shared file system; the data are read from the copy.
"""

import os
from collections.abc import Iterator

import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import ShardFormatError
from mpigraph.storage.format import segment_rows, storage_dtype
from mpigraph.storage.shard import Fingerprint, ShardReader

__all__ = ["fingerprint", "read_chunks", "verify_copy"]

_READ_BYTES = 64 << 20


def fingerprint(shard: ShardReader) -> Fingerprint:
    """Return shape, dtype and checksums of every dataset.

    Raises:
        ShardFormatError: the file is damaged.
    """
    return {name: shard.describe(name) for name in shard.names()}


def verify_copy(
    path: str | os.PathLike[str], original: Fingerprint, graph_name: str, part: int, identity: str | None = None
) -> None:
    """Read a copy from end to end and compare it with the fingerprint of the original.

    Args:
        path: the copy.
        original: what it must be a copy of.
        graph_name: the graph that the file must belong to.
        part: the part that the file must belong to.
        identity: if given, the partitioning that the file must belong to.

    Raises:
        ShardFormatError: it is missing, damaged, or a copy of something else.
    """
    with ShardReader(path, graph_name, part, identity) as shard:
        if fingerprint(shard) != original:
            raise ShardFormatError(f"{path}: not a copy of the original: their checksums differ")
        for name in original:
            for _ in read_chunks(shard, name):
                pass


def read_chunks(shard: ShardReader, name: str, first: int = 0, last: int | None = None) -> Iterator[tuple[int, Array]]:
    """Yield ``(first row, rows)`` of the rows ``[first, last)`` of a dataset, or of all, verified.

    Each has at most 64 MiB, or a segment. They end where segments do, so that none is read twice for its checksum. They
    lie in one buffer: each is good until the next.

    Raises:
        ShardFormatError: the dataset is missing or damaged.
    """
    shape, dtype = shard.info(name)
    stored = storage_dtype(dtype)
    row_bytes = stored.itemsize * int(np.prod(shape[1:], dtype=np.int64))
    segment = segment_rows(shape[0], row_bytes)
    step = segment * max(1, _READ_BYTES // max(1, segment * row_bytes))
    last = shape[0] if last is None else last
    buffer = np.empty((min(step, last - first), *shape[1:]), stored)
    while first < last:
        rows = buffer[: min(last, (first // step + 1) * step) - first]
        shard.read_into(name, rows, first)
        yield first, rows
        first += len(rows)
