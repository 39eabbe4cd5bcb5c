"""Check that one shard file is a complete copy of another.

Every dataset carries its checksums, so only these are read from the original (its *fingerprint*), which may be on a
slow shared file system; the data are read from the copy.
"""

import os

import numpy as np

from mpigraph.errors import ShardFormatError
from mpigraph.storage.format import segment_rows, storage_dtype
from mpigraph.storage.shard import DatasetInfo, Fingerprint, ShardReader

__all__ = ["fingerprint", "verify_copy"]

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
        for name, (info, _) in original.items():
            _read_all(shard, name, info)


def _read_all(shard: ShardReader, name: str, info: DatasetInfo) -> None:
    """Read a dataset in chunks of whole segments, so that none is read twice for its checksum."""
    stored = storage_dtype(info.dtype)
    row_bytes = stored.itemsize * int(np.prod(info.shape[1:], dtype=np.int64))
    segment = segment_rows(info.shape[0], row_bytes)
    step = segment * max(1, _READ_BYTES // max(1, segment * row_bytes))
    buffer = np.empty((min(step, info.shape[0]), *info.shape[1:]), stored)
    for begin in range(0, info.shape[0], step):
        shard.read_into(name, buffer[: min(step, info.shape[0] - begin)], begin)
