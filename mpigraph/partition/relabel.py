"""From an assignment to contiguous ids: nodes by part, edges by the part of their destination in CSC order."""

from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I32, I64, Array
from mpigraph.kernels.csr import count_keys, place_edges, place_values, transpose
from mpigraph.partition.source import GraphSource, edge_chunks
from mpigraph.storage.format import index_dtype

__all__ = ["NodeOrder", "RelationCSC", "order_nodes", "relabel_relation"]


class NodeOrder(NamedTuple):
    """New ids of one node type: by part, then by original id.

    orig_ids int64[n]: new -> original.  new_ids int[n]: original -> new.  offsets int64[parts + 1].
    """

    orig_ids: I64
    new_ids: Array
    offsets: I64

    def orig_ids_of(self, part: int) -> I64:
        """Return the original ids of a part's nodes, in the order of their new ids."""
        return self.orig_ids[self.offsets[part] : self.offsets[part + 1]]


class RelationCSC(NamedTuple):
    """One relation in new ids.

    indptr int64[n_dst + 1].  indices int32 or int64[m]: new source ids, rising inside a row.
    orig_ids int32 or int64[m]: the original edge at each position.  out_degrees int64[n_src].
    """

    indptr: I64
    indices: Array
    orig_ids: Array
    out_degrees: I64


def order_nodes(assignment: I32, num_parts: int) -> NodeOrder:
    """Give the nodes of one type new ids.

    Args:
        assignment: int32[n], the part of each node.
        num_parts: number of parts.
    """
    counts = np.bincount(assignment, minlength=num_parts)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    orig_ids = np.empty(len(assignment), np.int64)
    nodes = np.arange(len(assignment), dtype=np.int64)
    place_values(assignment.astype(np.int64), nodes, offsets[:-1].copy(), orig_ids)
    new_ids = np.empty(len(assignment), index_dtype(len(assignment)))
    new_ids[orig_ids] = nodes
    return NodeOrder(orig_ids, new_ids, offsets)


def relabel_relation(source: GraphSource, relation_id: int, src_order: NodeOrder, dst_order: NodeOrder) -> RelationCSC:
    """Sort the edges of a relation by (new destination, new source, original edge).

    Two counting sorts: by source, then by destination. Takes 2 * (4 + 4) bytes an edge while fewer than
    2**31 nodes and edges, plus the edges themselves if they are no memory map.
    """
    num_edges = source.num_edges(relation_id)
    num_src = len(src_order.orig_ids)
    num_dst = len(dst_order.orig_ids)
    id_dtype = index_dtype(num_edges)
    out_degrees = np.zeros(num_src, np.int64)
    in_degrees = np.zeros(num_dst, np.int64)
    for _, src, dst in edge_chunks(source, relation_id):
        count_keys(src_order.new_ids[src].astype(np.int64), 0, out_degrees)
        count_keys(dst_order.new_ids[dst].astype(np.int64), 0, in_degrees)
    by_src = _offsets(out_degrees)
    by_dst = _offsets(in_degrees)
    ends = np.empty(num_edges, index_dtype(num_dst))
    ids = np.empty(num_edges, id_dtype)
    fill = by_src[:-1].copy()
    for first, src, dst in edge_chunks(source, relation_id):
        new_src = src_order.new_ids[src].astype(np.int64)
        new_dst = dst_order.new_ids[dst].astype(np.int64)
        place_edges(new_src, new_dst, first, fill, ends, ids)
    indices = np.empty(num_edges, index_dtype(num_src))
    orig_ids = np.empty(num_edges, id_dtype)
    transpose(by_src, ends, ids, by_dst[:-1].copy(), indices, orig_ids)
    return RelationCSC(by_dst, indices, orig_ids, out_degrees)


def _offsets(counts: I64) -> I64:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
