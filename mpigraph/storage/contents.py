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
from mpigraph.storage.part_config import PartConfig, SharedFeature
from mpigraph.storage.shard import DatasetInfo, Fingerprint, ShardReader, read_chunks

_KNOWN = 1 << 14  # files whose datasets are known
_KEPT = 512  # tables of parts that are kept whole
_KEPT_BYTES = 1 << 20  # of a shared table that is kept whole, since thousands of relations read it piece by piece


class PartFiles:
    """The files of a partitioned graph, each checked once and known for what is read next.

    A context manager.

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
        shard = self._known.get((part, which))
        if shard is None:
            if len(self._known) == _KNOWN:
                self._known.clear()
            path = self.config.part_path(part, which)
            shard = ShardReader(path, self.config.graph_name, part, self.config.content)
            self._known[part, which] = shard
        return shard

    def close(self) -> None:
        """Forget what is known of them."""
        self._kept.clear()
        self._known.clear()

    def __enter__(self) -> "PartFiles":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self, part: int) -> None:
        """Check that the files of a part hold what the configuration says; reads no rows.

        Raises:
            ShardFormatError: a file is missing, belongs to something else, or holds other datasets.
        """
        for which in self.config.files[part]:
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
    """Rows with global numbers that are spread over the parts' files.

    Attributes:
        which: the file of a part: "part_graph", "node_feats" or "edge_feats".
        name: the dataset.
        offsets: int64[P + 1], the parts' ranges of the rows.
        begins: int64[P], where they begin in the dataset of each part.
    """

    which: str
    name: str
    offsets: I64
    begins: I64

    @classmethod
    def alone(cls, which: str, name: str, offsets: I64) -> "StoredRows":
        """Return rows that have a dataset of their own."""
        return cls(which, name, offsets, np.zeros(len(offsets) - 1, np.int64))

    @classmethod
    def of_feature(cls, config: PartConfig, is_node: bool, type_id: int, name: str) -> "StoredRows":
        """Return the rows of a feature of a node type or relation."""
        if is_node:
            dataset = naming.node_feature_name(config.schema.ntypes[type_id], name)
            return cls.alone("node_feats", dataset, config.book.node_offsets[type_id])
        offsets = config.book.edge_offsets[type_id]
        begins = config.begins_of_features.get((type_id, name))
        if begins is not None:
            return cls("edge_feats", naming.shared_feature_name(name), offsets, begins)
        return cls.alone("edge_feats", naming.edge_feature_name(config.schema.relation_key(type_id), name), offsets)

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield ``(part, first, last)`` of the rows ``[begin, end)``, counted within the part's dataset."""
        for part, first, last in overlaps(self.offsets, begin, end):
            base = int(self.begins[part])
            yield part, base + first, base + last


def read_rows(files: PartFiles, rows: StoredRows, begin: int, out: npt.NDArray[np.generic], narrow: str = "") -> None:
    """Fill ``out`` with the global rows from ``begin`` on.

    Args:
        files: of the partitioned graph.
        rows: where they are.
        begin: first global row.
        out: [n, ...] in the storage dtype.
        narrow: the dtype of 16 bits that ``out`` has instead, to which rows are rounded some MiB at a time.

    Raises:
        ShardFormatError: a file is missing or damaged.
        GraphDataError: a number does not fit 16 bits.
    """
    at = 0
    for part, first, last in rows.pieces(begin, begin + len(out)):
        _read_pieces(files.open(part, rows.which), rows.name, [(first, last, at)], out, narrow)
        at += last - first


def read_together(files: PartFiles, feature: SharedFeature, ranges: I64, out: Array, narrow: str = "") -> None:
    """Fill ``out`` with rows of a feature that relations share, relation after relation; otherwise as read_rows.

    Args:
        files: of the partitioned graph.
        feature: one of :attr:`.PartConfig.shared_features`, or some of its relations.
        ranges: int64[relations, 2], the first global row of each relation and the one behind the last.
        out: [rows of all, ...].
        narrow: as in :func:`read_rows`.
    """
    config = files.config
    name = naming.shared_feature_name(feature.name)
    offsets = config.book.edge_table[list(feature.relations)]
    begins = np.array([config.begins_of_features[relation, feature.name] for relation in feature.relations])
    sizes = np.diff(ranges, axis=1)[:, 0]
    to = np.cumsum(sizes) - sizes
    for part in range(config.num_parts):
        low = np.maximum(ranges[:, 0], offsets[:, part])
        high = np.minimum(ranges[:, 1], offsets[:, part + 1])
        here = np.flatnonzero(low < high)
        if not len(here):
            continue
        first = (begins[:, part] + low - offsets[:, part])[here]
        last = first + (high - low)[here]
        place = (to + low - ranges[:, 0])[here]
        pieces = zip(first.tolist(), last.tolist(), place.tolist(), strict=True)
        _read_pieces(files.open(part, "edge_feats"), name, [*pieces], out, narrow)


def _read_pieces(
    shard: ShardReader, name: str, pieces: Sequence[tuple[int, int, int]], out: Array, narrow: str
) -> None:
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
    for which in files.config.files[part]:
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
    for name in names:
        for _ in read_chunks(shard, name):
            pass


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
