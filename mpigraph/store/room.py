"""How much memory a graph will take on each host, before any is allocated."""

import math
import mmap
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from mpigraph.metadata.book import RangeBook
from mpigraph.storage.format import index_dtype, storage_dtype
from mpigraph.storage.part_config import FeatureInfo, PartConfig

__all__ = ["bytes_of_hosts"]

_I64 = npt.NDArray[np.int64]


def bytes_of_hosts(config: PartConfig, hosts: RangeBook) -> _I64:
    """Return int64[H], the bytes of each host's windows: topology and features. Local; no communication.

    Args:
        config: the partitioned graph.
        hosts: the book whose owners are the hosts.
    """
    schema = config.schema
    total = np.zeros(hosts.num_parts, np.int64)
    for relation, (src, _, dst) in enumerate(schema.relations):
        sources = hosts.node_offsets[schema.ntype_id(src)]
        indices = index_dtype(hosts.num_nodes(schema.ntype_id(src))).itemsize
        total += _window(hosts.node_offsets[schema.ntype_id(dst)], 8, extra=1)  # indptr
        total += _window(hosts.edge_offsets[relation], indices) + _window(sources, 8)  # indices, out-degrees
    for t, ntype in enumerate(schema.ntypes):
        total += _features(hosts.node_offsets[t], config.node_features[ntype])
    for r in range(len(schema.relations)):
        total += _features(hosts.edge_offsets[r], config.edge_features[schema.relation_key(r)])
    return total


def _features(offsets: _I64, features: Mapping[str, FeatureInfo]) -> _I64:
    total = np.zeros(len(offsets) - 1, np.int64)
    for info in features.values():
        total += _window(offsets, storage_dtype(info.dtype).itemsize * math.prod(info.shape))
    return total


def _window(offsets: _I64, row_bytes: int, extra: int = 0) -> _I64:
    """Bytes of one window on each host, in whole pages."""
    pages: _I64 = -(-(np.diff(offsets) + extra) * row_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    return pages
