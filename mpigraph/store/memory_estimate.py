"""How much memory a graph will take on each host, before any is allocated."""

import math
import mmap
from collections.abc import Mapping

import numpy as np

from mpigraph.arrays import I64
from mpigraph.metadata.book import RangeBook
from mpigraph.storage.format import index_dtype, storage_dtype
from mpigraph.storage.part_config import FeatureInfo, PartConfig

__all__ = ["host_memory"]


def host_memory(config: PartConfig, hosts: RangeBook) -> I64:
    """Return int64[H], the bytes of each host's windows: topology and features.

    Args:
        config: the partitioned graph, its features as they are kept in memory.
        hosts: the book whose owners are the hosts.
    """
    schema = config.schema
    indptr = np.zeros(hosts.num_parts, np.int64)
    degrees = np.zeros(hosts.num_parts, np.int64)
    indices = {4: np.zeros(hosts.num_parts, np.int64), 8: np.zeros(hosts.num_parts, np.int64)}
    for relation, (src, _, dst) in enumerate(schema.relations):
        size = index_dtype(hosts.num_nodes(schema.ntype_id(src))).itemsize
        indptr += 8 * (np.diff(hosts.node_offsets[schema.ntype_id(dst)]) + 1)
        degrees += 8 * np.diff(hosts.node_offsets[schema.ntype_id(src)])
        indices[size] += size * np.diff(hosts.edge_offsets[relation])
    total = sum((_in_pages(nbytes) for nbytes in indices.values()), _in_pages(indptr) + _in_pages(degrees))
    for t, ntype in enumerate(schema.ntypes):
        total += _features(hosts.node_offsets[t], config.node_features[ntype])
    for r in range(len(schema.relations)):
        total += _features(hosts.edge_offsets[r], config.edge_features[schema.relation_key(r)])
    return total


def _features(offsets: I64, features: Mapping[str, FeatureInfo]) -> I64:
    total = np.zeros(len(offsets) - 1, np.int64)
    for info in features.values():
        total += _in_pages(np.diff(offsets) * storage_dtype(info.stored).itemsize * math.prod(info.shape))
    return total


def _in_pages(nbytes: I64) -> I64:
    """What a window of so many bytes on each host takes."""
    pages: I64 = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    return pages
