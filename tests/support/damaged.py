"""Shards of a partitioned graph that are damaged on purpose, in a copy of it."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

from mpigraph.storage.part_config import PartConfig
from mpigraph.storage.shard import ShardReader, ShardWriter

Rows = npt.NDArray[np.generic]


def flip(path: Path, dataset: str, byte: int = 5) -> None:
    """Flip a bit of a dataset."""
    with h5py.File(path) as file:
        at = file[dataset].id.get_offset()
    data = bytearray(path.read_bytes())
    data[at + byte] ^= 1
    path.write_bytes(data)


def rewrite(path: Path, part: int, which: str, dataset: str, change: Callable[[Rows], Rows]) -> None:
    """Change a dataset of a part, with checksums that fit.

    ``path`` is the configuration.
    """
    config = PartConfig.read(path)
    shard = config.part_path(part, which)
    reader = ShardReader(shard)
    content = {name: (reader.read(name), reader.info(name).dtype) for name in reader.names()}
    content[dataset] = (change(content[dataset][0]), content[dataset][1])
    with ShardWriter(shard, config.graph_name, part, config.content) as writer:
        for name, (rows, dtype) in content.items():
            writer.add(name, rows, dtype)
