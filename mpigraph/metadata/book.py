"""The partition book: which owner holds which ids.

Ids are type-wise and global. Owner ``k`` holds the half-open range ``[offsets[k], offsets[k + 1])`` of each
node type and of each relation, so a book is a few short arrays and a look-up is a binary search. Owners are
the parts on disk or the hosts (ranks) of a job: both are books.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I32, I64
from mpigraph.errors import OutOfRangeError
from mpigraph.metadata.schema import Schema


def check_ids(ids: npt.NDArray[np.integer], count: int, what: str) -> None:
    """Check that every id (int[n]) lies in ``[0, count)``; ``what`` names them ("node id of type 'author'").

    Raises OutOfRangeError that names the first bad id and the valid range.
    """
    if ids.size == 0 or (int(ids.min()) >= 0 and int(ids.max()) < count):
        return
    position = int(np.flatnonzero((ids < 0) | (ids >= count))[0])
    valid = f"0 to {count - 1}" if count else "none, there are 0"
    raise OutOfRangeError(f"{what} {ids[position]} at position {position} is out of range (valid: {valid})")


@dataclass(frozen=True, eq=False)
class RangeBook:
    """Ranges of node and edge ids by owner."""

    schema: Schema
    node_offsets: Sequence[I64] | I64  # of each node type [num_parts + 1], from 0 to their number, never falling
    edge_offsets: Sequence[I64] | I64  # the same of each relation

    edge_table: I64 = field(init=False, repr=False)  # the same as one array, [relations, num_parts + 1]

    def __post_init__(self) -> None:
        nodes = np.array(self.node_offsets, np.int64)
        edges = np.array(self.edge_offsets, np.int64).reshape(len(self.schema.relations), nodes.shape[1])
        for table in (nodes, edges):
            table.setflags(write=False)
        # the class is frozen, so its fields can be normalised only this way
        object.__setattr__(self, "node_offsets", tuple(nodes))
        object.__setattr__(self, "edge_table", edges)
        object.__setattr__(self, "edge_offsets", edges)

    @property
    def num_parts(self) -> int:
        """Number of owners: parts in a book of the disk, hosts in a book of a job."""
        return len(self.node_offsets[0]) - 1

    def num_nodes(self, ntype_id: int = 0) -> int:
        """Return the number of nodes of a type."""
        return int(self.node_offsets[ntype_id][-1])

    def num_edges(self, relation_id: int = 0) -> int:
        """Return the number of edges of a relation."""
        return int(self.edge_offsets[relation_id][-1])

    def node_range(self, owner: int, ntype_id: int = 0) -> tuple[int, int]:
        """Return ``(begin, end)`` of an owner's nodes of a type."""
        offsets = self.node_offsets[ntype_id]
        return int(offsets[owner]), int(offsets[owner + 1])

    def edge_range(self, owner: int, relation_id: int = 0) -> tuple[int, int]:
        """Return ``(begin, end)`` of an owner's edges of a relation."""
        offsets = self.edge_offsets[relation_id]
        return int(offsets[owner]), int(offsets[owner + 1])

    def node_owner(self, ids: npt.NDArray[np.integer], ntype_id: int = 0) -> I32:
        """Return int32[n], the owners of nodes of a type (int[n], global ids). Raises OutOfRangeError."""
        check_ids(ids, self.num_nodes(ntype_id), f"node id of type {self.schema.ntypes[ntype_id]!r}")
        return _owner(self.node_offsets[ntype_id], ids)

    def edge_owner(self, ids: npt.NDArray[np.integer], relation_id: int = 0) -> I32:
        """Return int32[n], the owners of edges of a relation (int[n], global ids). Raises OutOfRangeError."""
        check_ids(ids, self.num_edges(relation_id), f"edge id of relation {self.schema.relations[relation_id]}")
        return _owner(self.edge_offsets[relation_id], ids)


def _owner(offsets: I64, ids: npt.NDArray[np.integer]) -> I32:
    # "right" passes over empty ranges, which begin at the same id as the range behind them
    return (np.searchsorted(offsets, ids, side="right") - 1).astype(np.int32)
