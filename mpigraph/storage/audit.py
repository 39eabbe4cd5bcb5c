"""Audit the files of a part, reading them from end to end; read its edges in chunks, and count its halo."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from mpigraph.arrays import I64, U64, Array
from mpigraph.errors import MPIGraphError, ShardFormatError
from mpigraph.kernels.csr import falls, hash_of_degrees, hash_of_sources
from mpigraph.storage.contents import PartFiles, check_shared, check_sources
from mpigraph.storage.format import relation_dataset_name, shared_dataset_name, storage_dtype
from mpigraph.storage.shard import DatasetInfo, read_chunks

_ROWS = 1 << 21  # of a block of indptr, 16 MiB: a few of its segments, since each block reads a row of the next, too
_NODES = 1 << 28  # whose marks are in memory at once, a byte each

Advance = Callable[[int], None]


class Audit(NamedTuple):
    """The result of auditing a part.

    Attributes:
        bad: a line for each bad file; names the file and the first bad dataset.
        sums: uint64[relations]; where no file is bad, the sums over all parts are 0 modulo 2**64, or some out-degrees
            are not those of the edges.
    """

    bad: list[str]
    sums: U64


def audit_part(files: PartFiles, part: int, advance: Advance) -> Audit:
    """Read all files of a part; check the checksums, the identity and the contents.

    ``advance`` is called with the bytes that were read since the last call.
    """
    sums = np.zeros(len(files.config.schema.relations), np.uint64)
    bad = []
    for which in files.config.files[part]:
        errors = list(_errors(files, part, which, sums, advance))
        if errors:
            more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            bad.append(str(errors[0]).replace("\n", " ") + more)
    return Audit(bad, sums)


def dataset_bytes(info: DatasetInfo) -> int:
    """Return the bytes of a dataset."""
    return storage_dtype(info.dtype).itemsize * math.prod(info.shape)


def _errors(files: PartFiles, part: int, which: str, sums: U64, advance: Advance) -> Iterator[MPIGraphError]:
    """Yield an error for each bad dataset of a file, or one for the whole file."""
    schema = files.config.schema
    try:
        rest = dict(files.check_file(part, which))
    except MPIGraphError as error:
        yield error
        return
    graph = which == "part_graph"
    if graph and files.config.shared:
        names = [shared_dataset_name(field) for field in ("destinations", "indices")]
        try:
            check_shared(files.config, part, *(files.open(part, which).read(name) for name in names))
        except ShardFormatError as error:
            yield error
        advance(sum(dataset_bytes(rest.pop(name)[0]) for name in names))
    for relation in range(len(schema.relations) if graph else 0):
        if relation in files.config.place_of_shared:
            continue
        key = schema.relation_key(relation)
        names = [relation_dataset_name(key, field) for field in ("indptr", "indices", "out_degrees")]
        try:
            sums[relation] = check_in_edges(files, relation, part)
        except ShardFormatError as error:
            yield error
        advance(sum(dataset_bytes(rest.pop(name)[0]) for name in names))
    for name in rest:
        try:
            for _, rows in read_chunks(files.open(part, which), name):
                advance(rows.nbytes)
        except ShardFormatError as error:
            yield error


class InEdges:
    """The destinations of a part's edges of one relation; one block of its ``indptr`` is in memory.

    Args:
        files: of the partitioned graph.
        relation: relation id.
        part: the part.

    Raises:
        ShardFormatError: the part's file is missing or damaged, or contradicts itself; by any method.
    """

    def __init__(self, files: PartFiles, relation: int, part: int) -> None:
        config = files.config
        self._files = files
        self._relation = relation
        self._part = part
        self._first, end = config.book.node_range(part, config.schema.ends(relation)[1])
        self._rows = np.append(np.arange(0, end - self._first, _ROWS), end - self._first)
        # single values are read without their segments' checksums, and compared when their block is read
        shard = files.open(part, "part_graph")
        name = relation_dataset_name(config.schema.relation_key(relation), "indptr")
        verify = len(self._rows) == 1
        ends = [shard.read(name, row, row + 1, verify) for row in self._rows.tolist()]
        self._ends: I64 = np.concatenate(ends).astype(np.int64)
        begin, end = config.book.edge_range(part, relation)
        if self._ends[0] != 0 or self._ends[-1] != end - begin or falls(self._ends):
            raise self._error()
        self._known: tuple[int, I64] | None = None

    def check(self) -> None:
        """Read all of ``indptr``."""
        for block in range(len(self._rows) - 1):
            self._read(block)

    def blocks(self, begin: int, end: int) -> Iterator[tuple[int, I64]]:
        """Find the destinations of edges ``[begin, end)``, counted within the part.

        Yields:
            ``(first, begins)``: global id of a destination, and where its and the following ones' edges begin and end,
            int64[n + 1], cut off at ``begin`` and ``end``.
        """
        block = int(np.searchsorted(self._ends, begin, side="right")) - 1
        while begin < end:
            begins = self._read(block)
            low = int(np.searchsorted(begins, begin, side="right")) - 1
            high = int(np.searchsorted(begins, end, side="left"))
            inside = np.clip(begins[low : high + 1], begin, end)
            yield self._first + int(self._rows[block]) + low, inside
            begin = int(inside[-1])
            block += 1

    def destinations(self, begin: int, end: int) -> I64:
        """Return int64[end - begin], global ids of the destinations of edges, counted within the part."""
        nodes = [np.repeat(np.arange(first, first + len(at) - 1), np.diff(at)) for first, at in self.blocks(begin, end)]
        return np.concatenate([np.empty(0, np.int64), *nodes])

    def _read(self, block: int) -> I64:
        if self._known is None or self._known[0] != block:
            first, last = self._rows[block : block + 2].tolist()
            begins = self._files.read_indptr(self._relation, self._part, first, last)
            if begins[0] != self._ends[block] or begins[-1] != self._ends[block + 1]:
                raise self._error()
            self._known = (block, begins)
        return self._known[1]

    def _error(self) -> ShardFormatError:
        config = self._files.config
        name = relation_dataset_name(config.schema.relation_key(self._relation), "indptr")
        path = config.part_path(self._part, "part_graph")
        return ShardFormatError(f"{path}: dataset {name!r} contradicts itself or its part's number of edges")


def check_in_edges(files: PartFiles, relation: int, part: int) -> int:
    """Read and check a part's edges of a relation.

    Returns:
        The part's term of a sum that is 0 modulo 2**64 over all parts, if all out-degrees are those of the edges.

    Raises:
        ShardFormatError: the file is missing or damaged, or contradicts itself.
    """
    config = files.config
    shard = files.open(part, "part_graph")
    key = config.schema.relation_key(relation)
    first_edge = config.book.edge_range(part, relation)[0]
    in_edges = InEdges(files, relation, part)
    in_edges.check()
    total = 0
    last = np.empty(0, np.int64)  # of the chunk before: a row may go on from there
    for begin, chunk in read_chunks(shard, relation_dataset_name(key, "indices")):
        total -= int(hash_of_sources(chunk))
        low = begin - len(last)
        indices = np.concatenate([last.astype(chunk.dtype), chunk])
        for _, begins in in_edges.blocks(low, begin + len(chunk)):
            sources = indices[begins[0] - low : begins[-1] - low]
            check_sources(config, relation, first_edge + int(begins[0]), begins - begins[0], sources)
        last = chunk[-1:].copy()
    first_node = config.book.node_range(part, config.schema.ends(relation)[0])[0]
    for begin, degrees in read_chunks(shard, relation_dataset_name(key, "out_degrees")):
        total += int(hash_of_degrees(degrees, first_node + begin))
    return total % 2**64


def remote_sources(files: PartFiles, part: int, ntype: int) -> tuple[int, int]:
    """Count the nodes of a type that a part has edges from and does not own: its halo.

    Returns:
        ``(nodes, edges)``: distinct nodes, and the edges from them.

    Raises:
        ShardFormatError: the file is missing or damaged, or a source does not exist.
    """
    book = files.config.book
    first, last = book.node_range(part, ntype)
    nodes = 0
    edges = 0
    for low in range(0, book.num_nodes(ntype), _NODES):
        marks = np.zeros(min(_NODES, book.num_nodes(ntype) - low), bool)
        for sources in _sources(files, part, ntype):
            remote = sources[(sources < first) | (sources >= last)]
            inside = remote[(remote >= low) & (remote < low + _NODES)]
            marks[inside - low] = True
            edges += len(inside)
        nodes += int(np.count_nonzero(marks))
    return nodes, edges


def _sources(files: PartFiles, part: int, ntype: int) -> Iterator[Array]:
    """Yield the sources of a part's edges from nodes of a type; an id that does not exist is an error."""
    config = files.config
    schema = config.schema
    own = [schema.relation_key(r) for r in config.own if schema.ends(r)[0] == ntype]
    tables: list[tuple[str, Array | None]] = [(relation_dataset_name(key, "indices"), None) for key in own]
    if config.shared:
        wanted = np.repeat(config.shared_ends[:, 0] == ntype, np.diff(config.shared_begins[:, part]))
        tables.append((shared_dataset_name("indices"), wanted))
    for name, chosen in tables:
        for first, sources in read_chunks(files.open(part, "part_graph"), name):
            if chosen is not None:
                sources = sources[chosen[first : first + len(sources)]]
            if len(sources) and (int(sources.min()) < 0 or int(sources.max()) >= config.book.num_nodes(ntype)):
                raise ShardFormatError(
                    f"{config.part_path(part, 'part_graph')}: dataset {name!r} contradicts itself: a source does not "
                    "exist"
                )
            yield sources
