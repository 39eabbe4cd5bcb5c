"""In-edges as plain arrays, and how a host reads the edges of relations of few edges."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.errors import ShardFormatError
from mpigraph.metadata.book import RangeBook
from mpigraph.mpi.messages import exchange_rows
from mpigraph.mpi.world import World
from mpigraph.storage.contents import PartFiles, check_shared
from mpigraph.storage.format import shared_dataset_name
from mpigraph.store.host_ranges import parts_of_hosts


@dataclass(frozen=True)
class Adjacency:
    """One relation's in-edges on one local host, as plain arrays.

    Attributes:
        indptr: int64[n + 1], from 0.
        indices: int32 or int64 [nnz], global source ids, rising inside a row.
        first_node: global id of the first destination.
        first_edge: global id of the first edge.
        rows: int32 or int64[n], the destinations that have edges, ascending, counted from the first; None: each
            destination has a row.
    """

    indptr: I64
    indices: Array
    first_node: int
    first_edge: int
    rows: Array | None = None

    @property
    def first_row(self) -> int:
        """The number of the first row: where each destination has one, a row's number is the destination's id."""
        return self.first_node if self.rows is None else 0

    def rows_of(self, ids: I64) -> tuple[I64, Mask]:
        """Return int64[n], the row of each destination (int64[n], global ids), and whether it has one, bool[n].

        Of an adjacency with :attr:`rows`.
        """
        assert self.rows is not None
        local = ids - self.first_node
        row = np.searchsorted(self.rows, local)
        known = row < len(self.rows)
        known[known] = self.rows[row[known]] == local[known]
        return row, known

    def into(self, begin: int, end: int) -> slice:
        """Return the edges into the destinations ``[begin, end)``, counted from the first."""
        if self.rows is not None:
            begin, end = np.searchsorted(self.rows, (begin, end)).tolist()
        return slice(int(self.indptr[begin]), int(self.indptr[end]))

    def destinations(self) -> I64:
        """Return int64[nnz], the global destination of each edge."""
        rows = np.arange(len(self.indptr) - 1) if self.rows is None else self.rows.astype(np.int64)
        return self.first_node + np.repeat(rows, np.diff(self.indptr))


# Relations of few edges are *listed*: their tables have rows for the destinations, and the sources, that have edges,
# not for each node of the type. All is then proportional to the edges, however many relations there are.


class ListedRows(NamedTuple):
    """The rows of all listed relations into one node type on a local host, as kernels (``kernels/csr.py``) take them.

    Attributes:
        first_node: global id of the host's first destination.
        order: int32 or int64 [n], by destination and relation, the number of each row among the host's listed ones.
        nodes: int32 or int64 [rows], the destination of each listed row, counted from the host's first.
        row_begins: int64[relations + 1], the first listed row of each relation.
        edge_begins: int64[relations + 1], the first edge of each, counted from the host's first.
        indptr_begins: int64[relations + 1], where the entries of each begin in ``indptr``.
        indptr: int64[entries], the first edge of each row, counted from the relation's first, and the relations' ends.
    """

    first_node: int
    order: Array
    nodes: Array
    row_begins: I64
    edge_begins: I64
    indptr_begins: I64
    indptr: I64


class ListedEdges(NamedTuple):
    """The edges of listed relations on one host, by relation, destination and source.

    Attributes:
        relation: int64[m].
        rows: int64[m], destinations, counted from the host's first.
        sources: int64[m], global ids.
    """

    relation: I64
    rows: I64
    sources: I64

    @classmethod
    def nothing(cls) -> "ListedEdges":
        """Return no edges."""
        return cls(*np.empty((3, 0), np.int64))

    @classmethod
    def read(cls, files: PartFiles, hosts: RangeBook, host: int) -> "ListedEdges":
        """Read a host's edges from the shards. Raises ShardFormatError if one is damaged, or contradicts itself."""
        config = files.config
        relations = np.array(config.shared, np.int64)
        columns = [np.empty((3, 0), np.int64)]
        first, last = np.array(hosts.node_offsets)[config.shared_ends[:, 1], host : host + 2].T
        for part in parts_of_hosts([host], hosts.num_parts, config.num_parts):
            place, nodes, sources = _of_part(files, part)
            own = (nodes >= first[place]) & (nodes < last[place])
            columns.append(np.stack([place, nodes - first[place], sources])[:, own])
        edges = np.concatenate(columns, axis=1)
        # few bits are sorted by counting, not by comparing
        few = edges[0].astype(np.min_scalar_type(len(relations)), copy=False)
        place, rows, sources = edges.take(np.argsort(few, kind="stable"), axis=1)
        held = np.bincount(place, minlength=len(relations))
        for bad in np.flatnonzero(held != np.diff(hosts.edge_table[relations, host : host + 2])[:, 0])[:1].tolist():
            key = config.schema.relation_key(int(relations[bad]))
            raise ShardFormatError(f"{config.path}: edges of {key} contradict the numbers of edges of its parts")
        return cls(relations[place], rows, sources)

    def begins(self) -> I64:
        """Return int64[rows], the first edge of each row: of each destination in each relation."""
        begins = np.ones(len(self.relation), np.bool_)
        begins[1:] = (np.diff(self.relation) != 0) | (np.diff(self.rows) != 0)
        return np.flatnonzero(begins)

    @collective("world.comm")
    def count_sources(self, world: World, hosts: RangeBook) -> tuple[I64, I64, I64]:
        """Return the sources on this host that have out-edges: relations, rows, out-degrees; by relation and row."""
        nodes = np.array(hosts.node_offsets)
        bases = np.append(0, np.cumsum(nodes[:, -1]))[:-1]
        firsts = (nodes[:, :-1] + bases[:, None]).reshape(-1)  # of each type and host, among all nodes
        ids = self.sources + bases[hosts.schema.all_ends[self.relation, 0]]
        of_type = np.searchsorted(firsts, ids, side="right") - 1
        ranks = world.hosts[of_type % len(world.hosts)]
        width = int(np.diff(nodes, axis=1).max())  # nodes of a host: relation and row as one number
        going = (self.relation * width + ids - firsts[of_type])[np.argsort(ranks, kind="stable"), None]
        with world.watch("loading a graph"):
            came, _ = exchange_rows(world.comm, going, np.bincount(ranks, minlength=world.size).astype(np.int64))
        numbers, degrees = np.unique(came, return_counts=True)
        return numbers // width, numbers % width, degrees


def _of_part(files: PartFiles, part: int) -> tuple[I64, I64, Array]:
    """Return the place of the relation, the destination and the source of each edge of a part, as in its file."""
    config = files.config
    shard = files.open(part, "part_graph")
    destinations, indices = (shard.read(shared_dataset_name(field)) for field in ("destinations", "indices"))
    place = check_shared(config, part, destinations, indices)
    of_part = np.array(config.book.node_offsets)[config.shared_ends[:, 1], part]
    return place, destinations + of_part[place], indices
