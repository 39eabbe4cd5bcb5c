"""DGL's view of the partition book: torch tensors in and out, parts, policies, homogeneous ids.

A torch face of :class:`mpigraph.metadata.book.RangeBook`. DGL also numbers all nodes (and all edges) of a heterogeneous
graph in one *homogeneous* id space, part after part and within a part type after type; the maps between the two live
here and nowhere else.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from mpigraph.arrays import I32, I64
from mpigraph.distgraph.typed_ids import id_array
from mpigraph.errors import InvalidArgumentError, OutOfRangeError, PartitionError
from mpigraph.graphs.fields import EdgeType, IdsLike
from mpigraph.metadata.book import RangeBook, check_ids
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Relation, Schema, TypeNames, relation_key
from mpigraph.mpi.world import World


def local_part(world: World, num_parts: int) -> int:
    """Return the part that is mostly on this trainer's node; trainers of a node take turns."""
    return int((_local_host(world) + 0.5) * num_parts / len(world.hosts))


def _local_host(world: World) -> int:
    """Return a host on this trainer's node, itself if it is one; trainers of a node take turns."""
    local = np.flatnonzero(world.is_local)
    return int(local[world.local_trainer * len(local) // world.num_local_trainers % len(local)])


class _Space(NamedTuple):
    """The nodes of a type or the edges of a relation, in a book of that type."""

    book: RangeBook
    is_node: bool
    type_id: int

    def owner(self, ids: IdsLike) -> torch.Tensor:
        """Return int64[n], the part of each id. Raises OutOfRangeError."""
        owner_of = self.book.node_owner if self.is_node else self.book.edge_owner
        return _tensor(owner_of(self._array(ids), self.type_id))

    def range(self, partid: int) -> tuple[int, int]:
        """Return the first id of a part and the one behind its last. Raises PartitionError for no such part."""
        part = _checked_part("partid", partid, self.book.num_parts)
        return (self.book.node_range if self.is_node else self.book.edge_range)(part, self.type_id)

    def local(self, ids: IdsLike, partid: int) -> torch.Tensor:
        """Return int64[n], ids counted from a part's first. Raises OutOfRangeError for an id of another part."""
        first, last = self.range(partid)
        array = self._array(ids)
        bad = array[(array < first) | (array >= last)]
        if len(bad):
            what = "node" if self.is_node else "edge"
            raise OutOfRangeError(f"{bad[0]} is no {what} of part {partid}, which has ids from {first} up to {last}")
        return _tensor(array - first)

    def _array(self, ids: IdsLike) -> I64:
        return id_array(ids, "node ids" if self.is_node else "edge ids")


class _Numbering:
    """DGL's homogeneous ids: part after part, and within a part type after type.

    Attributes:
        begins: int64[parts, types + 1], the first homogeneous id of each type in each part.
        offsets: int64[parts + 1], the same of each part.
    """

    def __init__(self, tables: Sequence[I64] | I64, num_parts: int, what: str) -> None:
        self._tables = np.array(tables, np.int64).reshape(-1, num_parts + 1)  # [types, parts + 1], of type-wise ids
        self._what = what
        sizes = np.diff(self._tables).T
        begins = np.append(0, np.cumsum(sizes))
        parts, types = sizes.shape
        self.begins: I64 = begins[np.arange(parts)[:, None] * types + np.arange(types + 1)]
        self.offsets: I64 = np.append(self.begins[:, 0], self.begins[-1, -1])

    def by_type(self, ids: IdsLike) -> tuple[torch.Tensor, torch.Tensor]:
        """Return types and type-wise ids of homogeneous ids, by binary search in all (part, type) ranges."""
        array = id_array(ids, f"{self._what} ids")
        check_ids(array, int(self.offsets[-1]), f"homogeneous {self._what} id")
        if len(array) == 0:
            return _tensor(array), _tensor(array)
        flat = self.begins[:, :-1].reshape(-1)
        cell = np.searchsorted(flat, array, side="right") - 1
        part, kind = np.divmod(cell, len(self._tables))
        return _tensor(kind), _tensor(array - flat[cell] + self._tables[kind, part])

    def of_type(self, ids: IdsLike, space: _Space) -> torch.Tensor:
        """Return int64[n], homogeneous ids of those of a type."""
        kind, owner = space.type_id, space.owner(ids).numpy()
        array = id_array(ids, f"{self._what} ids")
        return _tensor(array - self._tables[kind, owner] + self.begins[owner, kind])


def _checked_part(name: str, part: int, num_parts: int) -> int:
    if not isinstance(part, int | np.integer) or not 0 <= part < num_parts:
        raise PartitionError(f"{name} must be in [0, {num_parts}) (got {part!r})")
    return int(part)


def _tensor(values: I32 | I64) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64))


class RangePartitionBook(TypeNames):
    """The owner of each id, with DGL's methods.

    Ids are type-wise. As in DGL, the type ``"_N"`` or ``"_E"``, which is the default where ids are looked up, means
    homogeneous ids in a graph that has no type of that name; None means the only type.
    """

    def __init__(self, book: RangeBook, part_id: int) -> None:
        """Show a book to part ``part_id``, the "local" one. Raises PartitionError for no such part."""
        self.book = book
        self.schema = book.schema
        self._part_id = _checked_part("part_id", part_id, book.num_parts)
        self._nodes = _Numbering(book.node_offsets, book.num_parts, "node")
        self._edges = _Numbering(book.edge_offsets, book.num_parts, "edge")
        self._homogeneous = RangeBook(Schema.homogeneous(), (self._nodes.offsets,), (self._edges.offsets,))

    @property
    def partid(self) -> int:
        """The local part."""
        return self._part_id

    def num_partitions(self) -> int:
        """Return the number of parts."""
        return self.book.num_parts

    def metadata(self) -> list[dict[str, int]]:
        """For each part ``machine_id``, ``num_nodes`` and ``num_edges`` of all types together."""
        counts = zip(np.diff(self._nodes.offsets).tolist(), np.diff(self._edges.offsets).tolist(), strict=True)
        return [{"machine_id": p, "num_nodes": n, "num_edges": m} for p, (n, m) in enumerate(counts)]

    @property
    def global_nid_dtype(self) -> torch.dtype:
        """The dtype of node ids."""
        return torch.int64

    @property
    def global_eid_dtype(self) -> torch.dtype:
        """The dtype of edge ids."""
        return torch.int64

    def shared_memory(self, graph_name: str) -> None:
        """Accepted for DGL's scripts: every rank has the book."""

    def nid2partid(self, nids: IdsLike, ntype: str | None = DEFAULT_NTYPE) -> torch.Tensor:
        """int64[n]: the part of each node. Raises NodeTypeError and OutOfRangeError."""
        return self._node_space(ntype).owner(nids)

    def eid2partid(self, eids: IdsLike, etype: EdgeType = DEFAULT_ETYPE) -> torch.Tensor:
        """int64[n]: the part of each edge. Raises EdgeTypeError and OutOfRangeError."""
        return self._edge_space(etype).owner(eids)

    def partid2nids(self, partid: int, ntype: str | None = DEFAULT_NTYPE) -> torch.Tensor:
        """int64[n]: the node ids of a part, ascending. Raises NodeTypeError, and PartitionError for no such part."""
        return torch.arange(*self._node_space(ntype).range(partid))

    def partid2eids(self, partid: int, etype: EdgeType = DEFAULT_ETYPE) -> torch.Tensor:
        """int64[n]: the edge ids of a part, ascending. Raises EdgeTypeError, and PartitionError for no such part."""
        return torch.arange(*self._edge_space(etype).range(partid))

    def nid2localnid(self, nids: IdsLike, partid: int, ntype: str | None = DEFAULT_NTYPE) -> torch.Tensor:
        """int64[n]: node ids counted from a part's first. Raises OutOfRangeError for an id of another part."""
        return self._node_space(ntype).local(nids, partid)

    def eid2localeid(self, eids: IdsLike, partid: int, etype: EdgeType = DEFAULT_ETYPE) -> torch.Tensor:
        """int64[n]: edge ids counted from a part's first. Raises OutOfRangeError for an id of another part."""
        return self._edge_space(etype).local(eids, partid)

    def map_to_per_ntype(self, ids: IdsLike) -> tuple[torch.Tensor, torch.Tensor]:
        """``(type ids, type-wise ids)`` of homogeneous node ids, int64[n] each. Raises OutOfRangeError."""
        return self._nodes.by_type(ids)

    def map_to_per_etype(self, ids: IdsLike) -> tuple[torch.Tensor, torch.Tensor]:
        """``(type ids, type-wise ids)`` of homogeneous edge ids, int64[n] each. Raises OutOfRangeError."""
        return self._edges.by_type(ids)

    def map_to_homo_nid(self, ids: IdsLike, ntype: str | None = None) -> torch.Tensor:
        """int64[n]: homogeneous ids of type-wise node ids. Raises NodeTypeError and OutOfRangeError."""
        return self._nodes.of_type(ids, _Space(self.book, True, self.schema.ntype_id(ntype)))

    def map_to_homo_eid(self, ids: IdsLike, etype: EdgeType = None) -> torch.Tensor:
        """int64[n]: homogeneous ids of type-wise edge ids. Raises EdgeTypeError and OutOfRangeError."""
        return self._edges.of_type(ids, _Space(self.book, False, self.schema.relation_id(etype)))

    @property
    def local_ntype_offset(self) -> list[int]:
        """Prefix sums of the local part's node counts by type."""
        begins = self._nodes.begins[self._part_id]
        return [int(begin) for begin in begins - begins[0]]

    @property
    def local_etype_offset(self) -> list[int]:
        """Prefix sums of the local part's edge counts by type."""
        begins = self._edges.begins[self._part_id]
        return [int(begin) for begin in begins - begins[0]]

    def _node_space(self, ntype: str | None) -> _Space:
        """Return the ids that a node type means where they are looked up."""
        if ntype == DEFAULT_NTYPE and ntype not in self.schema.ntypes:
            return _Space(self._homogeneous, True, 0)
        return _Space(self.book, True, self.schema.ntype_id(ntype))

    def _edge_space(self, etype: EdgeType) -> _Space:
        """Return the ids that an edge type means where they are looked up."""
        if etype in (DEFAULT_ETYPE, DEFAULT_ETYPE[1]) and etype not in (*self.schema.relations, *self.etypes):
            return _Space(self._homogeneous, False, 0)
        return _Space(self.book, False, self.schema.relation_id(etype))


class PartitionPolicy:
    """The node type or relation of a tensor's rows: ``node~<type>`` or ``edge~<src>:<rel>:<dst>``.

    Attributes:
        type_name: the node type, or the relation ``(src, rel, dst)``.
    """

    def __init__(self, policy_str: str, partition_book: RangePartitionBook) -> None:
        """Parse a policy; "node" and "edge" mean the only type.

        Raises:
            InvalidArgumentError: the policy is neither of nodes nor of edges.
            NodeTypeError: the node type does not exist.
            EdgeTypeError: the edge type does not exist.
        """
        if not isinstance(policy_str, str) or not isinstance(partition_book, RangePartitionBook):
            raise InvalidArgumentError(f"a policy is a string and a book (got {policy_str!r}, {partition_book!r})")
        kind, _, name = policy_str.partition("~")
        if kind not in ("node", "edge"):
            raise InvalidArgumentError(f"a policy begins with 'node' or 'edge' (got {policy_str!r})")
        self.partition_book = partition_book
        self.book = partition_book.book
        self.is_node = kind == "node"
        schema = self.book.schema
        self.type_id = schema.ntype_id(name or None) if self.is_node else schema.relation_id(name or None)
        self.type_name: str | Relation = (schema.ntypes if self.is_node else schema.relations)[self.type_id]
        self._space = _Space(self.book, self.is_node, self.type_id)

    @classmethod
    def of(cls, book: RangePartitionBook, is_node: bool, type_id: int) -> "PartitionPolicy":
        """Return the policy of a type given by id."""
        schema = book.schema
        return cls(f"node~{schema.ntypes[type_id]}" if is_node else f"edge~{schema.relation_keys[type_id]}", book)

    @property
    def policy_str(self) -> str:
        """``node~<type>`` or ``edge~<src>:<rel>:<dst>``."""
        name = self.type_name if isinstance(self.type_name, str) else relation_key(self.type_name)
        return f"{'node' if self.is_node else 'edge'}~{name}"

    @property
    def part_id(self) -> int:
        """The local part."""
        return self.partition_book.partid

    def to_local(self, id_tensor: IdsLike) -> torch.Tensor:
        """Ids counted from the local part's first. Raises OutOfRangeError for an id of another part."""
        return self._space.local(id_tensor, self.part_id)

    def to_partid(self, id_tensor: IdsLike) -> torch.Tensor:
        """int64[n]: the part of each id."""
        return self._space.owner(id_tensor)

    def get_part_size(self) -> int:
        """Rows of the local part."""
        first, last = self._space.range(self.part_id)
        return last - first

    def get_size(self) -> int:
        """Rows of all parts."""
        return self._space.range(self.book.num_parts - 1)[1]


class NodePartitionPolicy(PartitionPolicy):
    """Rows are the nodes of a type."""

    def __init__(self, partition_book: RangePartitionBook, ntype: str = DEFAULT_NTYPE) -> None:
        super().__init__(f"node~{ntype}", partition_book)


class EdgePartitionPolicy(PartitionPolicy):
    """Rows are the edges of a relation."""

    def __init__(self, partition_book: RangePartitionBook, etype: EdgeType = None) -> None:
        super().__init__(f"edge~{relation_key(partition_book.to_canonical_etype(etype))}", partition_book)
