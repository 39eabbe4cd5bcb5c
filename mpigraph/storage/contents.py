"""The files of a part: compared with the configuration, checked while rows are read, and audited from end to end.

Rows have global numbers, which go on from part to part.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import I64, Array
from mpigraph.errors import GraphDataError, MPIGraphError, ShardFormatError
from mpigraph.kernels.csr import bad_source
from mpigraph.storage import format as naming
from mpigraph.storage.format import index_dtype, storage_dtype
from mpigraph.storage.narrow import RowError, rounded
from mpigraph.storage.part_config import FILES, PartConfig
from mpigraph.storage.shard import DatasetInfo, Fingerprint, ShardReader, read_chunks

_KNOWN = 1 << 14  # files whose datasets are known
_KEPT = 512  # tables of parts that are kept whole
_KEPT_BYTES = 1 << 20  # of a shared table that is kept whole, since thousands of relations read it piece by piece


class PartFiles:
    """The files of a partitioned graph, each checked once and known for what is read next; none stays open.

    Attributes:
        config: the partitioned graph.
    """

    def __init__(self, config: PartConfig) -> None:
        self.config = config
        self._known: dict[tuple[int, str], ShardReader] = {}
        self._kept: dict[tuple[int, str], Array] = {}

    def open(self, part: int, which: str) -> ShardReader:
        """Return a file of a part, as of :meth:`.PartConfig.part_path`.

        Raises:
            PartitionError: the part does not exist.
            ShardFormatError: the file is missing, damaged, or belongs to something else.
        """
        if (part, which) not in self._known:
            if len(self._known) == _KNOWN:
                self._known.clear()
            path = self.config.part_path(part, which)
            self._known[part, which] = ShardReader(path, self.config.graph_name, part, self.config.content)
        return self._known[part, which]

    def check(self, part: int) -> None:
        """Check that the files of a part hold what the configuration says; reads no rows.

        Raises:
            ShardFormatError: a file is missing, belongs to something else, or holds other datasets.
        """
        for which in FILES:
            self.check_file(part, which)

    def check_file(self, part: int, which: str) -> Fingerprint:
        """Check one file of a part, as :meth:`check` does; return its fingerprint."""
        shard = self.open(part, which)
        content = shard.fingerprint()
        expected = {name: info for file, name, info in datasets(self.config, part) if file == which}
        stored = {name: info for name, (info, _) in content.items()}
        for name in sorted(stored.keys() | expected.keys()) if stored != expected else ():
            if (there := stored.get(name, "missing")) != (wanted := expected.get(name, "no dataset")):
                raise ShardFormatError(f"{shard.path}: {name!r} is {there}, but {self.config.path} says {wanted}")
        return content

    def read_edges(self, relation: int, part: int, field: str, first: int = 0, last: int | None = None) -> Array:
        """Read a number of each edge of a relation in a part, from the relation's own dataset or a shared one.

        Args:
            relation: relation id.
            part: the part.
            field: "indices" or "orig_ids"; "destinations" of a relation that shares, counted within the part.
            first: the first edge, counted within the part.
            last: one behind the last edge; None for all.

        Raises:
            ShardFormatError: the file is damaged.
        """
        config = self.config
        begin, end = config.book.edge_range(part, relation)
        last = end - begin if last is None else last
        if relation not in config.place_of_shared:
            name = naming.relation_dataset_name(config.schema.relation_key(relation), field)
            return self.open(part, "part_graph").read(name, first, last)
        base = int(config.shared_begins[config.place_of_shared[relation], part])
        name = naming.shared_dataset_name(field)
        if 8 * int(config.shared_begins[-1, part]) > _KEPT_BYTES:
            return self.open(part, "part_graph").read(name, base + first, base + last)
        if (part, field) not in self._kept:
            if len(self._kept) == _KEPT:
                self._kept.clear()
            self._kept[part, field] = self.open(part, "part_graph").read(name)
        return self._kept[part, field][base + first : base + last]

    def read_in_edges(self, relation: int, part: int) -> tuple[I64, Array]:
        """Return all that :meth:`read_indptr` reads of a relation in a part, and the global ids of the sources.

        Raises:
            ShardFormatError: the file is damaged, or contradicts itself or the configuration.
        """
        indptr, sources = self.read_indptr(relation, part), self.read_edges(relation, part, "indices")
        check_sources(self.config, relation, self.config.book.edge_range(part, relation)[0], indptr, sources)
        return indptr, sources

    def read_indptr(self, relation: int, part: int, first: int = 0, last: int | None = None) -> I64:
        """Read the first in-edge of each of a part's destinations ``[first, last)``, counted within it, or of all.

        Returns:
            int64[last - first + 1]; counts the part's edges of the relation.

        Raises:
            ShardFormatError: the file is damaged, or contradicts itself or the configuration.
        """
        book = self.config.book
        schema = self.config.schema
        nodes = len(range(*book.node_range(part, schema.ends(relation)[1])))
        edges = len(range(*book.edge_range(part, relation)))
        last = nodes if last is None else last
        if relation in self.config.place_of_shared:
            destinations = self.read_edges(relation, part, "destinations")
            sorted_begins: I64 = np.searchsorted(destinations, np.arange(first, last + 1))
            return sorted_begins
        name = naming.relation_dataset_name(schema.relation_key(relation), "indptr")
        begins: I64 = self.open(part, "part_graph").read(name, first, last + 1)
        begin, end = begins[[0, -1]]
        right_ends = 0 <= begin and end <= edges and (first > 0 or begin == 0) and (last < nodes or end == edges)
        if not right_ends or (begins[1:] < begins[:-1]).any():
            raise _contradiction(self.config, part, name, f"it must rise from 0 to {edges}")
        return begins


def _contradiction(config: PartConfig, part: int, name: str, what: str) -> ShardFormatError:
    return ShardFormatError(f"{config.part_path(part, 'part_graph')}: dataset {name!r} contradicts itself: {what}")


def datasets(config: PartConfig, part: int) -> Iterator[tuple[str, str, DatasetInfo]]:
    """Yield the file, the name, and shape and dtype of every dataset of a part."""
    book = config.book
    schema = config.schema
    nodes = [int(offsets[part + 1] - offsets[part]) for offsets in book.node_offsets]
    for t, ntype in enumerate(schema.ntypes):
        yield "part_graph", naming.node_orig_ids_name(ntype), DatasetInfo((nodes[t],), "int64")
        for name, info in config.node_features[ntype].items():
            yield "node_feats", naming.node_feature_name(ntype, name), DatasetInfo((nodes[t], *info.shape), info.stored)
    if config.shared:
        rows = int(config.shared_begins[-1, part])
        width = index_dtype(max(map(book.num_nodes, range(len(nodes))))).name
        for field, dtype in (("destinations", width), ("indices", width), ("orig_ids", "int64")):
            yield "part_graph", naming.shared_dataset_name(field), DatasetInfo((rows,), dtype)
    for name, relations in config.shared_features:
        rows = int(np.diff(book.edge_table[list(relations), part : part + 2]).sum())
        info = config.edge_features[schema.relation_key(relations[0])][name]
        yield "edge_feats", naming.shared_feature_name(name), DatasetInfo((rows, *info.shape), info.stored)
    for r, key in enumerate(schema.relation_keys):
        first, end = book.edge_range(part, r)
        edges = end - first
        for name, info in config.own_features(r).items():
            yield "edge_feats", naming.edge_feature_name(key, name), DatasetInfo((edges, *info.shape), info.stored)
        if r in config.place_of_shared:
            continue
        src, dst = schema.ends(r)
        sources = index_dtype(book.num_nodes(src)).name
        for field, rows, dtype in (
            ("indptr", nodes[dst] + 1, "int64"),
            ("indices", edges, sources),
            ("out_degrees", nodes[src], "int64"),
            ("orig_ids", edges, "int64"),
        ):
            yield "part_graph", naming.relation_dataset_name(key, field), DatasetInfo((rows,), dtype)


def check_shared(config: PartConfig, part: int, destinations: Array, indices: Array) -> I64:
    """Check the edges in the tables that relations share; return int64[m], the place of the relation of each.

    Args:
        config: the partitioned graph.
        part: the part.
        destinations: int32 or int64[m], counted within the part.
        indices: int32 or int64[m], global ids of the sources.

    Raises:
        ShardFormatError: an end does not exist, or edges of a relation do not rise; names the edge.
    """
    ends = config.shared_ends
    num_src = np.array([config.book.num_nodes(t) for t in range(len(config.schema.ntypes))])
    num_dst = np.array([offsets[part + 1] - offsets[part] for offsets in config.book.node_offsets])
    place = np.repeat(np.arange(len(ends)), np.diff(config.shared_begins[:, part]))
    bad = (destinations < 0) | (destinations >= num_dst[ends[place, 1]])
    bad |= (indices < 0) | (indices >= num_src[ends[place, 0]])
    lower = destinations[1:] < destinations[:-1]
    lower |= (destinations[1:] == destinations[:-1]) & (indices[1:] < indices[:-1])
    bad[1:] |= lower & (place[1:] == place[:-1])
    if bad.any():
        what = f"edge {np.flatnonzero(bad)[0]} has an end that does not exist, or is not in its place"
        raise _contradiction(config, part, naming.shared_dataset_name("indices"), what)
    return place


def overlaps(offsets: I64, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield ``(part, first, last)`` for each part that overlaps global rows ``[begin, end)``, rows within the part."""
    part = int(np.searchsorted(offsets, begin, side="right")) - 1
    end = min(end, int(offsets[-1]))
    while begin < end:
        first, stop = offsets[part : part + 2].tolist()
        last = min(stop, end)
        if begin < last:
            yield part, begin - first, last - first
            begin = last
        part += 1


@dataclass(frozen=True)
class StoredRows:
    """Rows with global numbers that are spread over the parts' files: those of an owner, or of k that share a dataset.

    Attributes:
        which: the file of a part: "part_graph", "node_feats" or "edge_feats".
        name: the dataset.
        offsets: int64[k, P + 1], the parts' ranges of the rows of each owner.
        begins: int64[k, P], where they begin in the dataset of each part.
    """

    which: str
    name: str
    offsets: I64
    begins: I64

    @classmethod
    def alone(cls, which: str, name: str, offsets: I64) -> "StoredRows":
        """Return rows that have a dataset of their own; ``offsets`` is int64[P + 1]."""
        return cls(which, name, offsets[None], np.zeros((1, len(offsets) - 1), np.int64))

    @classmethod
    def of_feature(cls, config: PartConfig, is_node: bool, owners: Sequence[int], name: str) -> "StoredRows":
        """Return the rows of a feature of a node type or relation, or of several relations that share it."""
        if is_node:
            dataset = naming.node_feature_name(config.schema.ntypes[owners[0]], name)
            return cls.alone("node_feats", dataset, config.book.node_offsets[owners[0]])
        if (owners[0], name) not in config.begins_of_features:
            dataset = naming.edge_feature_name(config.schema.relation_key(owners[0]), name)
            return cls.alone("edge_feats", dataset, config.book.edge_offsets[owners[0]])
        begins = np.array([config.begins_of_features[owner, name] for owner in owners])
        return cls("edge_feats", naming.shared_feature_name(name), config.book.edge_table[list(owners)], begins)


def read_rows(files: PartFiles, rows: StoredRows, ranges: npt.ArrayLike, out: Array, narrow: str = "") -> None:
    """Fill ``out`` with rows, owner after owner.

    Args:
        files: of the partitioned graph.
        rows: where they are.
        ranges: int64[k, 2], the first global row of each owner and the one behind the last.
        out: [rows of all, ...] in the storage dtype.
        narrow: the dtype of 16 bits that ``out`` has instead, to which rows are rounded some MiB at a time.

    Raises:
        ShardFormatError: a file is missing or damaged.
        GraphDataError: a number does not fit 16 bits.
    """
    begin, end = np.asarray(ranges).T[:, :, None]
    low, high = np.maximum(begin, rows.offsets[:, :-1]), np.minimum(end, rows.offsets[:, 1:])  # of each owner and part
    first = rows.begins + low - rows.offsets[:, :-1]
    place = np.cumsum(end - begin, axis=0) - end + low
    pieces, here = np.stack([first, first + high - low, place], axis=2), low < high
    for part in np.flatnonzero(here.any(axis=0)).tolist():
        _read_pieces(files.open(part, rows.which), rows.name, pieces[here[:, part], part].tolist(), out, narrow)


def _read_pieces(shard: ShardReader, name: str, pieces: Sequence[Sequence[int]], out: Array, narrow: str) -> None:
    """Fill rows of ``out`` with pieces of a dataset: first row, last row + 1, place in ``out``; ascending."""
    if len(pieces) == 1 and not narrow:
        first, last, at = pieces[0]
        shard.read_into(name, out[at : at + last - first], first)
        return
    for row, chunk in read_chunks(shard, name, pieces[0][0], pieces[-1][1]):
        rows = chunk
        if narrow:
            try:
                rows = rounded(chunk, narrow)
            except RowError as error:
                raise GraphDataError(f"{shard.path}: dataset {name!r}, row {row + error.row}: {error}") from None
        for first, last, at in pieces:
            low, high = max(first, row), min(last, row + len(rows))
            if low < high:
                out[at + low - first : at + high - first] = rows[low - row : high - row]


def check_sources(config: PartConfig, relation: int, first_edge: int, indptr: I64, indices: Array) -> None:
    """Check that the sources of edges exist and rise within each destination.

    Args:
        config: the partitioned graph.
        relation: whose edges.
        first_edge: global id of the first.
        indptr: int64[n + 1], from 0 to the number of edges, as :func:`read_indptr` checks it.
        indices: int32 or int64[m], global ids of the sources.

    Raises:
        ShardFormatError: a source does not exist, or they do not rise; names the edge.
    """
    schema = config.schema
    num_nodes = config.book.num_nodes(schema.ends(relation)[0])
    bad = bad_source(indptr, indices, num_nodes)
    if bad >= 0:
        edge = first_edge + bad
        part = int(config.book.edge_owner(np.array([edge]), relation)[0])
        name = naming.relation_dataset_name(schema.relation_key(relation), "indices")
        what = f"edge {edge} comes from node {indices[bad]} (sources rise within a row and are below {num_nodes})"
        raise _contradiction(config, part, name, what)


def audit_part(files: PartFiles, part: int) -> list[str]:
    """Read all files of a part; check the checksums, the identity and the contents.

    Returns:
        A line for each bad file; names the file and the dataset.
    """
    bad = []
    for which in FILES:
        try:
            _audit(files, part, which)
        except MPIGraphError as error:
            bad.append(str(error).replace("\n", " "))
    return bad


def _audit(files: PartFiles, part: int, which: str) -> None:
    """Read a file from end to end. Raises MPIGraphError if it is bad."""
    config = files.config
    names = files.check_file(part, which)
    shard = files.open(part, which)
    if which == "part_graph":
        if config.shared:
            check_shared(config, part, *map(shard.read, map(naming.shared_dataset_name, ("destinations", "indices"))))
        for relation in config.own:
            files.read_in_edges(relation, part)
        names = {name: names[name] for name in names if not name.endswith("/indices")}  # which are read by now
    shard.check_rows(names)


def bytes_of_part(config: PartConfig, part: int) -> int:
    """Return the bytes of all datasets of a part."""
    return sum(storage_dtype(info.dtype).itemsize * math.prod(info.shape) for *_, info in datasets(config, part))


class InEdges:
    """The destinations of a part's edges of one relation.

    Raises:
        ShardFormatError: the part's file is missing or damaged, or contradicts itself.
    """

    def __init__(self, files: PartFiles, relation: int, part: int) -> None:
        self._first = files.config.book.node_range(part, files.config.schema.ends(relation)[1])[0]
        self._indptr = files.read_indptr(relation, part)

    def destinations(self, begin: int, end: int) -> I64:
        """Return int64[end - begin], global ids of the destinations of edges ``[begin, end)`` within the part."""
        low = int(np.searchsorted(self._indptr, begin, side="right")) - 1
        high = max(low, int(np.searchsorted(self._indptr, end, side="left")))
        degrees = np.diff(self._indptr[low : high + 1].clip(begin, end))
        return np.repeat(np.arange(self._first + low, self._first + high), degrees)


def remote_sources(files: PartFiles, part: int, ntype: int) -> tuple[int, int]:
    """Count the nodes of a type that a part has edges from and does not own: its halo.

    Returns:
        ``(nodes, edges)``: distinct nodes, and the edges from them.

    Raises:
        ShardFormatError: the file is missing or damaged.
    """
    config = files.config
    first, last = config.book.node_range(part, ntype)
    marks = np.zeros(config.book.num_nodes(ntype), bool)
    edges = 0
    own = [relation for relation in config.own if config.schema.ends(relation)[0] == ntype]
    tables: Iterator[Array] = (files.read_edges(relation, part, "indices") for relation in own)
    if config.shared:
        of_type = np.repeat(config.shared_ends[:, 0] == ntype, np.diff(config.shared_begins[:, part]))
        shared = files.open(part, "part_graph").read(naming.shared_dataset_name("indices"))
        tables = chain(tables, [shared[of_type]])
    for sources in tables:
        remote = sources[(sources < first) | (sources >= last)]
        marks[remote] = True
        edges += len(remote)
    return int(np.count_nonzero(marks)), edges
