"""The memory that caches of rows take and leave."""

OF_MINIBATCHES = 512 << 20
"""Bytes of a trainer for minibatches that wait and the model's step, which are not known when caches are made."""
STAGES = 2
"""Fetches of a loader in memory: the present one and the next."""
STAGE_BYTES = 64 << 20
"""Of a fetch's missing rows and their neighbours on disk, unless the missing ones take more."""
OF_FREE_ON_DISK = 0.5
"""Of the memory that trainers leave, for caches of rows on disk whose size was not set."""
OF_SLOT = 8 + 4
"""Bytes that a slot takes in the tables besides the row."""
OF_ROW = 4
"""Bytes that a row of the tensor takes in the tables, kept or not."""
_OF_ROW_AHEAD = 8  # bytes of a trainer for each row of a tensor on disk, by which it knows the next reads


def cache_memory(num_rows: int, slots: int, row_bytes: int) -> int:
    """Return the bytes that a cache of ``slots`` of a tensor's ``num_rows`` rows takes on a node."""
    return OF_ROW * num_rows + slots * (row_bytes + OF_SLOT)


def ahead_memory(num_rows: int) -> int:
    """Return the bytes that a trainer takes, besides its slots, to read rows of a tensor on disk ahead."""
    return _OF_ROW_AHEAD * num_rows + STAGES * STAGE_BYTES
