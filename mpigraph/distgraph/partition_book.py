"""DGL's view of the partition book: torch tensors in and out, parts, policies, homogeneous ids.

A torch face of :class:`mpigraph.metadata.book.RangeBook`. DGL also numbers all nodes (and all edges) of a heterogeneous
graph in one *homogeneous* id space, part after part and within a part type after type; the maps between the two live
here and nowhere else.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from mpigraph.arrays import I32, I64
from mpigraph.distgraph.typed_ids import id_array
from mpigraph.errors import InvalidArgumentError, OutOfRangeError, PartitionError
from mpigraph.graphs.fields import EdgeType, IdsLike
from mpigraph.metadata.book import RangeBook, check_ids
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Relation, Schema, TypeNames, relation_key
from mpigraph.mpi.world import World

Ranges = npt.ArrayLike
"""[num_parts, 2], half-open ranges of homogeneous ids."""


def local_part(world: World, num_parts: int) -> int:
    """Return the part that is mostly on this trainer's node; trainers of a node take turns."""
    return int((_local_host(world) + 0.5) * num_parts / len(world.hosts))


def local_nodes(world: World, hosts: RangeBook, ntype_id: int) -> tuple[int, int]:
    """Return the range of nodes of a type on this trainer's host, in as many ranges as there are hosts."""
    return hosts.node_range(_local_host(world), ntype_id)


def _local_host(world: World) -> int:
    """Return a host on this trainer's node, itself if it is one; trainers of a node take turns."""
    local = np.flatnonzero(world.is_local)
    return int(local[world.local_trainer * len(local) // world.num_local_trainers % len(local)])


def _homogeneous_begins(tables: Sequence[I64] | I64, num_parts: int) -> I64:
    """Return int64[parts, types + 1], the first homogeneous id of each type in each part."""
    sizes = np.zeros((num_parts, 0), np.int64)
    if len(tables):
        table = np.array(tables, np.int64)
        sizes = (table[:, 1:] - table[:, :-1]).T
    begins = np.append(0, np.cumsum(sizes))
    parts, types = sizes.shape
    firsts: I64 = begins[np.arange(parts)[:, None] * types + np.arange(types + 1)]
    return firsts


def _type_wise(ranges: Ranges, name: object, num_parts: int) -> I64:
    """Return int64[P + 1], type-wise offsets from DGL's homogeneous ranges of one type."""
    table = np.asarray(ranges, np.int64)
    if table.shape != (num_parts, 2):
        raise PartitionError(f"ranges of {name!r} must have shape ({num_parts}, 2) (got {table.shape})")
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(table[:, 1] - table[:, 0])])


class RangePartitionBook(TypeNames):
    """The owner of each id, with DGL's methods.

    Ids are type-wise. As in DGL, the type ``"_N"`` or ``"_E"``, which is the default where ids are looked up, means
    homogeneous ids in a graph that has no type of that name; None means the only type.
    """

    def __init__(
        self,
        part_id: int,
        num_parts: int,
        node_map: Mapping[str, Ranges],
        edge_map: Mapping[Relation, Ranges],
        ntypes: Mapping[str, int],
        etypes: Mapping[Relation, int],
    ) -> None:
        """Make a book from DGL's maps.

        Args:
            part_id: the part that is "local".
            num_parts: number of parts.
            node_map: node type -> [num_parts, 2] half-open ranges of homogeneous ids.
            edge_map: the same by ``(src, rel, dst)``.
            ntypes: node type -> type id.
            etypes: ``(src, rel, dst)`` -> type id.

        Raises:
            PartitionError: the maps contradict each other.
        """
        nodes, edges = sorted(ntypes, key=lambda t: ntypes[t]), sorted(etypes, key=lambda r: etypes[r])
        if set(node_map) != set(nodes) or set(edge_map) != set(edges):
            raise PartitionError("node_map and edge_map must have exactly the types of ntypes and etypes")
        book = RangeBook(
            Schema(tuple(nodes), tuple(edges)),
            tuple(_type_wise(node_map[t], t, num_parts) for t in nodes),
            tuple(_type_wise(edge_map[r], r, num_parts) for r in edges),
        )
        self._set(book, part_id)

    @classmethod
    def from_book(cls, book: RangeBook, part_id: int) -> "RangePartitionBook":
        """Return the face of an existing book."""
        face = cls.__new__(cls)
        face._set(book, part_id)
        return face

    def _set(self, book: RangeBook, part_id: int) -> None:
        if not isinstance(part_id, int | np.integer) or not 0 <= part_id < book.num_parts:
            raise PartitionError(f"part_id must be in [0, {book.num_parts}) (got {part_id!r})")
        self.book = book
        self.schema = book.schema
        self._part_id = int(part_id)
        self._node_begins = _homogeneous_begins(book.node_offsets, book.num_parts)
        self._edge_begins = _homogeneous_begins(book.edge_table, book.num_parts)
        ends = [np.append(begins[:, 0], begins[-1, -1]) for begins in (self._node_begins, self._edge_begins)]
        self._homogeneous = RangeBook(Schema.homogeneous(), (ends[0],), (ends[1],))

    @property
    def partid(self) -> int:
        """The local part."""
        return self._part_id

    def num_partitions(self) -> int:
        """Return the number of parts."""
        return self.book.num_parts

    def metadata(self) -> list[dict[str, int]]:
        """For each part ``machine_id``, ``num_nodes`` and ``num_edges`` of all types together."""
        nodes, edges = self._homogeneous.node_offsets[0], self._homogeneous.edge_offsets[0]
        counts = zip(np.diff(nodes).tolist(), np.diff(edges).tolist(), strict=True)
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
        book, kind = self._node_space(ntype)
        return _tensor(book.node_owner(id_array(nids, "node ids"), kind))

    def eid2partid(self, eids: IdsLike, etype: EdgeType = DEFAULT_ETYPE) -> torch.Tensor:
        """int64[n]: the part of each edge. Raises EdgeTypeError and OutOfRangeError."""
        book, kind = self._edge_space(etype)
        return _tensor(book.edge_owner(id_array(eids, "edge ids"), kind))

    def partid2nids(self, partid: int, ntype: str | None = DEFAULT_NTYPE) -> torch.Tensor:
        """int64[n]: the node ids of a part, ascending. Raises NodeTypeError, and PartitionError for no such part."""
        book, kind = self._node_space(ntype)
        return torch.arange(*book.node_range(self._part(partid), kind))

    def partid2eids(self, partid: int, etype: EdgeType = DEFAULT_ETYPE) -> torch.Tensor:
        """int64[n]: the edge ids of a part, ascending. Raises EdgeTypeError, and PartitionError for no such part."""
        book, kind = self._edge_space(etype)
        return torch.arange(*book.edge_range(self._part(partid), kind))

    def nid2localnid(self, nids: IdsLike, partid: int, ntype: str | None = DEFAULT_NTYPE) -> torch.Tensor:
        """int64[n]: node ids counted from a part's first. Raises OutOfRangeError for an id of another part."""
        book, kind = self._node_space(ntype)
        return _local(id_array(nids, "node ids"), book.node_range(self._part(partid), kind), f"node of part {partid}")

    def eid2localeid(self, eids: IdsLike, partid: int, etype: EdgeType = DEFAULT_ETYPE) -> torch.Tensor:
        """int64[n]: edge ids counted from a part's first. Raises OutOfRangeError for an id of another part."""
        book, kind = self._edge_space(etype)
        return _local(id_array(eids, "edge ids"), book.edge_range(self._part(partid), kind), f"edge of part {partid}")

    def map_to_per_ntype(self, ids: IdsLike) -> tuple[torch.Tensor, torch.Tensor]:
        """``(type ids, type-wise ids)`` of homogeneous node ids, int64[n] each. Raises OutOfRangeError."""
        return _split_types(id_array(ids, "node ids"), self._node_begins, self.book.node_offsets, "node")

    def map_to_per_etype(self, ids: IdsLike) -> tuple[torch.Tensor, torch.Tensor]:
        """``(type ids, type-wise ids)`` of homogeneous edge ids, int64[n] each. Raises OutOfRangeError."""
        return _split_types(id_array(ids, "edge ids"), self._edge_begins, self.book.edge_offsets, "edge")

    def map_to_homo_nid(self, ids: IdsLike, ntype: str | None = None) -> torch.Tensor:
        """int64[n]: homogeneous ids of type-wise node ids. Raises NodeTypeError and OutOfRangeError."""
        kind = self.schema.ntype_id(ntype)
        values = id_array(ids, "node ids")
        owner = self.book.node_owner(values, kind)
        return _tensor(values - self.book.node_offsets[kind][owner] + self._node_begins[owner, kind])

    def map_to_homo_eid(self, ids: IdsLike, etype: EdgeType = None) -> torch.Tensor:
        """int64[n]: homogeneous ids of type-wise edge ids. Raises EdgeTypeError and OutOfRangeError."""
        kind = self.schema.relation_id(etype)
        values = id_array(ids, "edge ids")
        owner = self.book.edge_owner(values, kind)
        return _tensor(values - self.book.edge_offsets[kind][owner] + self._edge_begins[owner, kind])

    @property
    def local_ntype_offset(self) -> list[int]:
        """Prefix sums of the local part's node counts by type."""
        return _from_first(self._node_begins[self._part_id])

    @property
    def local_etype_offset(self) -> list[int]:
        """Prefix sums of the local part's edge counts by type."""
        return _from_first(self._edge_begins[self._part_id])

    def _num_nodes(self, ntype: str | None = DEFAULT_NTYPE) -> int:
        book, kind = self._node_space(ntype)
        return book.num_nodes(kind)

    def _num_edges(self, etype: EdgeType = DEFAULT_ETYPE) -> int:
        book, kind = self._edge_space(etype)
        return book.num_edges(kind)

    def _node_space(self, ntype: str | None) -> tuple[RangeBook, int]:
        """Return the book and the type id in which ids of a node type are looked up."""
        schema = self.schema
        if ntype == DEFAULT_NTYPE and ntype not in schema.ntypes:
            return self._homogeneous, 0
        return self.book, schema.ntype_id(ntype)

    def _edge_space(self, etype: EdgeType) -> tuple[RangeBook, int]:
        """Return the book and the relation id in which ids of an edge type are looked up."""
        schema = self.schema
        if etype in (DEFAULT_ETYPE, DEFAULT_ETYPE[1]) and etype not in (*schema.relations, *self.etypes):
            return self._homogeneous, 0
        return self.book, schema.relation_id(etype)

    def _part(self, partid: int) -> int:
        if not isinstance(partid, int | np.integer) or not 0 <= partid < self.book.num_parts:
            raise PartitionError(f"partid must be in [0, {self.book.num_parts}) (got {partid!r})")
        return int(partid)


def _from_first(begins: I64) -> list[int]:
    offsets: list[int] = (begins - begins[0]).tolist()
    return offsets


def _tensor(values: I32 | I64) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64))


def _local(ids: I64, owned: tuple[int, int], what: str) -> torch.Tensor:
    bad = ids[(ids < owned[0]) | (ids >= owned[1])]
    if len(bad):
        raise OutOfRangeError(f"{bad[0]} is no {what}, which has ids from {owned[0]} up to {owned[1]}")
    return _tensor(ids - owned[0])


def _split_types(ids: I64, begins: I64, tables: Sequence[I64] | I64, what: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return types and type-wise ids of homogeneous ids, by binary search in all (part, type) ranges."""
    check_ids(ids, int(begins[-1, -1]), f"homogeneous {what} id")
    if len(ids) == 0:
        return _tensor(ids), _tensor(ids)
    flat = begins[:, :-1].reshape(-1)
    cell = np.searchsorted(flat, ids, side="right") - 1
    part, kind = np.divmod(cell, len(tables))
    firsts = np.stack([offsets[:-1] for offsets in tables], axis=1)
    return _tensor(kind), _tensor(ids - flat[cell] + firsts[part, kind])


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
        kind, _, type_name = policy_str.partition("~")
        if kind not in ("node", "edge"):
            raise InvalidArgumentError(f"a policy begins with 'node' or 'edge' (got {policy_str!r})")
        schema = partition_book.book.schema
        self.partition_book = partition_book
        self.book = partition_book.book
        self.is_node = kind == "node"
        if self.is_node:
            self.type_id = schema.ntype_id(type_name or None)
            self.type_name: str | Relation = schema.ntypes[self.type_id]
        else:
            self.type_id = schema.relation_id(type_name or None)
            self.type_name = schema.relations[self.type_id]

    @classmethod
    def of(cls, book: RangeBook, is_node: bool, type_id: int, part_id: int = 0) -> "PartitionPolicy":
        """Return the policy of a type given by id."""
        name = book.schema.ntypes[type_id] if is_node else relation_key(book.schema.relations[type_id])
        return cls(f"{'node' if is_node else 'edge'}~{name}", RangePartitionBook.from_book(book, part_id))

    @property
    def policy_str(self) -> str:
        """``node~<type>`` or ``edge~<src>:<rel>:<dst>``."""
        name = self.type_name if isinstance(self.type_name, str) else relation_key(self.type_name)
        return f"{'node' if self.is_node else 'edge'}~{name}"

    @property
    def part_id(self) -> int:
        """The local part."""
        return self.partition_book.partid

    @property
    def _offsets(self) -> I64:
        return (self.book.node_offsets if self.is_node else self.book.edge_offsets)[self.type_id]

    def to_local(self, id_tensor: IdsLike) -> torch.Tensor:
        """Ids counted from the local part's first. Raises OutOfRangeError for an id of another part."""
        first, last = self._offsets[self.part_id : self.part_id + 2].tolist()
        return _local(id_array(id_tensor, "ids"), (first, last), f"row of part {self.part_id}")

    def to_partid(self, id_tensor: IdsLike) -> torch.Tensor:
        """int64[n]: the part of each id."""
        owner = self.book.node_owner if self.is_node else self.book.edge_owner
        return _tensor(owner(id_array(id_tensor, "ids"), self.type_id))

    def get_part_size(self) -> int:
        """Rows of the local part."""
        return int(self._offsets[self.part_id + 1] - self._offsets[self.part_id])

    def get_size(self) -> int:
        """Rows of all parts."""
        return int(self._offsets[-1])


class NodePartitionPolicy(PartitionPolicy):
    """Rows are the nodes of a type."""

    def __init__(self, partition_book: RangePartitionBook, ntype: str = DEFAULT_NTYPE) -> None:
        super().__init__(f"node~{ntype}", partition_book)


class EdgePartitionPolicy(PartitionPolicy):
    """Rows are the edges of a relation."""

    def __init__(self, partition_book: RangePartitionBook, etype: EdgeType = None) -> None:
        super().__init__(f"edge~{relation_key(partition_book.to_canonical_etype(etype))}", partition_book)
