"""Partition a graph: assign, relabel, write the shards and the configuration. One process; no MPI."""

import math
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import I32, I64, Array
from mpigraph.errors import InvalidArgumentError, check_integer
from mpigraph.log import get_logger
from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import relation_key
from mpigraph.partition.balance import balance_criteria, measured_balance
from mpigraph.partition.kept import KeptAssignment
from mpigraph.partition.metis import metis_assign
from mpigraph.partition.multilevel.assign import multilevel_assign
from mpigraph.partition.progress import Progress, silent
from mpigraph.partition.random_assignment import random_assign
from mpigraph.partition.relabel import NodeOrder, RelationCSC, order_nodes, relabel_relation
from mpigraph.partition.source import Feature, GraphSource, RowArray, edge_chunks, release
from mpigraph.storage.files import check_space
from mpigraph.storage.format import (
    edge_feature_name,
    index_dtype,
    node_feature_name,
    node_orig_ids_name,
    relation_dataset_name,
)
from mpigraph.storage.part_config import FeatureInfo, PartConfig, check_graph_name
from mpigraph.storage.shard import ShardWriter

__all__ = ["PART_METHODS", "PartitionResult", "check_options", "check_writable", "memory_forecast", "partition_source"]

PART_METHODS = ("metis", "multilevel", "random")
_CHUNK_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class PartitionResult:
    """What :func:`partition_source` made.

    Attributes:
        config_path: the configuration file.
        orig_nids: for each node type int64[n], new id -> original id.
        orig_eids: for each relation int32 or int64[m], new id -> original position in the edge list.
        report: edge cut and balance.
    """

    config_path: Path
    orig_nids: tuple[I64, ...]
    orig_eids: tuple[Array, ...]
    report: Mapping[str, Any]


def partition_source(
    source: GraphSource,
    graph_name: str,
    num_parts: int,
    out_path: str | os.PathLike[str],
    part_method: str = "metis",
    *,
    balance_classes: Mapping[str, Array] | None = None,
    balance_edges: bool = False,
    objtype: str = "cut",
    recursive: bool | None = None,
    seed: int = 0,
    assignment: Array | None = None,
    keep_edge_ids: bool = True,
    progress: Progress | None = None,
) -> PartitionResult:
    """Partition a graph and write it.

    What METIS has found stays in a file beside the shards until they are written: a run that is interrupted there, and
    made again with the same arguments, does not repeat it.

    Args:
        source: the graph.
        graph_name: name of the configuration file and of the graph.
        num_parts: number of parts; may exceed the number of nodes.
        out_path: directory, created if missing.
        part_method: "metis", "multilevel" or "random".
        balance_classes: node type -> int[nodes]; each class is spread evenly over the parts.
        balance_edges: spread the edges (by destination) evenly too.
        objtype: METIS's objective, "cut" or "vol"; "multilevel" knows only "cut".
        recursive: METIS's recursive bisection or its k-way method; None chooses by the number of parts.
        seed: equal seeds give equal results.
        assignment: int[nodes of all types, type after type], the part of each node, made by other means; then nothing
            is computed and ``part_method`` must be "given".
        keep_edge_ids: return ``orig_eids`` (they are in the shards anyway); False saves their memory.
        progress: what to report to.

    Raises:
        InvalidArgumentError: an argument is not usable, or the directory cannot be written to.
        StorageError: the disk is full, or another process is writing there.
        GraphDataError: the graph contradicts itself.
    """
    progress = progress or silent
    if assignment is None:
        check_options(graph_name, num_parts, part_method, objtype, seed)
    else:
        _check_assignment(graph_name, num_parts, part_method, assignment, sum(source.num_nodes))
    check_writable(out_path)
    progress("check edges", 0, 1)
    source.check_edges()
    progress("check edges", 1, 1)
    out = Path(out_path)
    out.mkdir(parents=True, exist_ok=True)
    check_space(out, _bytes_on_disk(source, num_parts), f"graph {graph_name!r}")
    stage = f"assign nodes ({part_method})"
    progress(stage, 0, 1)
    criteria = balance_criteria(source, balance_classes, balance_edges)
    kept: KeptAssignment | None = None
    if assignment is not None:
        parts = np.asarray(assignment, np.int32)
    elif part_method == "metis":
        kept = KeptAssignment(out, graph_name, source, num_parts, criteria, seed, objtype, recursive)
        found = kept.read()
        if found is None:
            found = metis_assign(source, num_parts, criteria, seed=seed, objtype=objtype, recursive=recursive)
            kept.write(found)
        parts = found
    elif part_method == "multilevel":
        parts = multilevel_assign(source, num_parts, criteria, seed=seed)
    else:
        parts = random_assign(source, num_parts, seed)
    report = {"balance": measured_balance(criteria, parts, num_parts), **_edge_cut(source, parts)}
    del criteria
    progress(stage, 1, 1)
    get_logger().info("%s in %d parts by %s: %s", graph_name, num_parts, part_method, report)
    bases = source.node_bases
    orders = [order_nodes(parts[bases[i] : bases[i + 1]], num_parts) for i in range(len(source.num_nodes))]
    identity = secrets.token_hex(16)
    # a configuration is there only while all its shards are: the old one goes first, and the new one comes last
    (out / f"{graph_name}.json").unlink(missing_ok=True)
    writer = _Writer(source, graph_name, identity, num_parts, out, orders, progress)
    edge_offsets, orig_eids = writer.write_relations(keep_edge_ids)
    writer.write_node_features()
    keys = [relation_key(relation) for relation in source.schema.relations]
    config = PartConfig(
        graph_name=graph_name,
        part_method=part_method,
        book=RangeBook(source.schema, tuple(order.offsets for order in orders), edge_offsets),
        node_features=_feature_infos(source.schema.ntypes, source.node_feats),
        edge_features=_feature_infos(keys, source.edge_feats),
        files=PartConfig.default_files(num_parts),
        report=report,
        identity=identity,
        seals=tuple(writer.seals),
    )
    path = config.write(out)
    if kept is not None:
        kept.remove()
    return PartitionResult(path, tuple(order.orig_ids for order in orders), orig_eids, report)


def check_options(
    graph_name: str, num_parts: int, part_method: str = "metis", objtype: str = "cut", seed: int = 0
) -> None:
    """Check what can be checked without the graph; the arguments are those of :func:`partition_source`.

    Raises:
        InvalidArgumentError: one is not usable.
    """
    check_graph_name(graph_name)
    check_integer("num_parts", num_parts, 1, 2**31 - 1)
    if part_method not in PART_METHODS:
        raise InvalidArgumentError(f"part_method must be one of {list(PART_METHODS)} (got {part_method!r})")
    if objtype not in ("cut", "vol"):
        raise InvalidArgumentError(f"objtype must be 'cut' or 'vol' (got {objtype!r})")
    if part_method == "multilevel" and objtype != "cut":
        raise InvalidArgumentError(f"part_method 'multilevel' minimises the cut (got objtype {objtype!r})")
    check_integer("seed", seed, -(2**63), 2**64 - 1)


def check_writable(directory: str | os.PathLike[str]) -> None:
    """Check that files can be written to a directory, or that it can be made.

    Raises:
        InvalidArgumentError: they cannot; the message says why.
    """
    path = Path(directory).absolute()
    nearest = next(ancestor for ancestor in (path, *path.parents) if ancestor.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"\0")  # which a full disk has no place for
    except OSError as error:
        raise InvalidArgumentError(f"{directory}: cannot write there: {error.strerror or error}") from error


def memory_forecast(num_nodes: int, num_edges: int, part_method: str = "metis", input_bytes: int = 0) -> dict[str, int]:
    """Return an estimate of the peak memory of each stage, in bytes.

    Args:
        num_nodes: all nodes.
        num_edges: all directed edges.
        part_method: "metis", "multilevel" or "random".
        input_bytes: what the input holds in memory (0 for memory-mapped files).
    """
    chunk = 3 * _CHUNK_BYTES
    stages = {"assign nodes": input_bytes + chunk + 24 * num_nodes}
    if part_method == "metis":
        stages["assign nodes"] = input_bytes + chunk + 200 * num_nodes + 130 * num_edges  # measured
    if part_method == "multilevel":  # METIS gets 6 million edges at most
        metis = 40 * min(2 * num_edges, 6_000_000)
        stages["assign nodes"] = input_bytes + chunk + 100 * num_nodes + 16 * num_edges + metis
    stages["relabel edges"] = input_bytes + chunk + 60 * num_nodes + 16 * num_edges
    stages["write features"] = input_bytes + chunk + 60 * num_nodes + 4 * num_edges
    return stages


class _Writer:
    """Writes the shards of one graph: relation by relation, then part by part."""

    def __init__(
        self,
        source: GraphSource,
        graph_name: str,
        identity: str,
        num_parts: int,
        out: Path,
        orders: list[NodeOrder],
        progress: Progress,
    ) -> None:
        self._source = source
        self._graph_name = graph_name
        self._identity = identity
        self._num_parts = num_parts
        self._orders = orders
        self._progress = progress
        self.seals: list[dict[str, str]] = [{} for _ in range(num_parts)]
        self._paths = [
            {kind: out / name for kind, name in files.items()} for files in PartConfig.default_files(num_parts)
        ]

    def write_relations(self, keep_edge_ids: bool) -> tuple[tuple[I64, ...], tuple[Array, ...]]:
        """Write ``graph.h5`` and ``edge_feat.h5`` of all parts; return edge offsets and original edge ids."""
        schema = self._source.schema
        parts = range(self._num_parts)
        edge_offsets = []
        orig_eids = []
        num_steps = len(schema.relations) * (1 + self._num_parts)  # of each relation: relabel, then write every part
        done = 0
        with ExitStack() as stack:
            graphs = [stack.enter_context(self._open(part, "part_graph")) for part in parts]
            feats = [stack.enter_context(self._open(part, "edge_feats")) for part in parts]
            for t, (ntype, order) in enumerate(zip(schema.ntypes, self._orders, strict=True)):
                for part in parts:
                    positions = order.orig_ids_of(part)
                    ids = positions if self._source.node_ids is None else self._source.node_ids[t][positions]
                    graphs[part].add(node_orig_ids_name(ntype), ids)
            for relation_id, relation in enumerate(schema.relations):
                self._progress("write topology", done, num_steps)
                key = relation_key(relation)
                src_type, dst_type = schema.ends(relation_id)
                src_order = self._orders[src_type]
                dst_order = self._orders[dst_type]
                csc = relabel_relation(self._source, relation_id, src_order, dst_order)
                offsets = csc.indptr[dst_order.offsets]
                edge_offsets.append(offsets)
                done += 1
                for part in parts:
                    self._progress("write topology", done, num_steps)
                    own_src = src_order.offsets[part : part + 2]
                    own_dst = dst_order.offsets[part : part + 2]
                    ids = None if self._source.edge_ids is None else self._source.edge_ids[relation_id]
                    _write_relation(graphs[part], key, csc, own_src, own_dst, ids)
                    rows = csc.orig_ids[offsets[part] : offsets[part + 1]]
                    for name, feature in self._source.edge_feats.get(key, {}).items():
                        _write_feature(feats[part], edge_feature_name(key, name), feature, rows)
                    done += 1
                if keep_edge_ids:
                    orig_eids.append(csc.orig_ids)
        for part in parts:
            self.seals[part] |= {"part_graph": graphs[part].seal, "edge_feats": feats[part].seal}
        self._progress("write topology", num_steps, num_steps)
        return tuple(edge_offsets), tuple(orig_eids)

    def write_node_features(self) -> None:
        """Write ``node_feat.h5`` of all parts."""
        for part in range(self._num_parts):
            self._progress("write node features", part, self._num_parts)
            with self._open(part, "node_feats") as writer:
                for ntype, order in zip(self._source.schema.ntypes, self._orders, strict=True):
                    for name, feature in self._source.node_feats.get(ntype, {}).items():
                        _write_feature(writer, node_feature_name(ntype, name), feature, order.orig_ids_of(part))
            self.seals[part]["node_feats"] = writer.seal
        self._progress("write node features", self._num_parts, self._num_parts)

    def _open(self, part: int, kind: str) -> ShardWriter:
        return ShardWriter(self._paths[part][kind], self._graph_name, part, self._identity)


def _write_relation(
    writer: ShardWriter,
    key: str,
    csc: RelationCSC,
    own_src: I64,
    own_dst: I64,
    edge_ids: RowArray | None,
) -> None:
    """Write the own destinations' in-edges, and the out degrees of the own sources."""
    indptr = csc.indptr[own_dst[0] : own_dst[1] + 1]
    begin, end = int(indptr[0]), int(indptr[-1])
    writer.add(relation_dataset_name(key, "indptr"), indptr - begin)
    writer.add(relation_dataset_name(key, "indices"), csc.indices[begin:end])
    writer.add(relation_dataset_name(key, "out_degrees"), csc.out_degrees[own_src[0] : own_src[1]])
    writer.create(relation_dataset_name(key, "orig_ids"), (end - begin,), "int64")
    for rows in _row_chunks(begin, end, 8):
        positions = csc.orig_ids[rows].astype(np.int64)
        writer.write(positions if edge_ids is None else edge_ids[positions])


def _write_feature(writer: ShardWriter, name: str, feature: Feature, rows: Array) -> None:
    """Write chosen rows of a feature, a chunk at a time."""
    values = feature.values
    writer.create(name, (len(rows), *values.shape[1:]), feature.dtype)
    row_bytes = values.dtype.itemsize * int(np.prod(values.shape[1:]))
    for chunk in _row_chunks(0, len(rows), row_bytes):
        writer.write(np.asarray(values[rows[chunk]]))
    release(values)


def _row_chunks(begin: int, end: int, row_bytes: int) -> Iterator[slice]:
    step = max(1, _CHUNK_BYTES // max(row_bytes, 1))
    for first in range(begin, end, step):
        yield slice(first, min(first + step, end))


def _bytes_on_disk(source: GraphSource, num_parts: int) -> int:
    """What the shards will take, without HDF5's own, which is little."""
    total = (8 + 4) * sum(source.num_nodes)  # original ids, and METIS's result until all is written
    for relation_id in range(len(source.edges)):
        src, dst = (source.num_nodes[i] for i in source.schema.ends(relation_id))
        total += 8 * (src + dst + num_parts) + (8 + index_dtype(src).itemsize) * source.num_edges(relation_id)
    for table in (*source.node_feats.values(), *source.edge_feats.values()):
        for feature in table.values():
            total += feature.values.dtype.itemsize * math.prod(feature.values.shape)
    return total


def _edge_cut(source: GraphSource, parts: I32) -> dict[str, Any]:
    """Count the edges whose ends lie in different parts."""
    bases = source.node_bases
    cut = 0
    total = 0
    for relation_id in range(len(source.edges)):
        src_base, dst_base = (bases[i] for i in source.schema.ends(relation_id))
        for _, src, dst in edge_chunks(source, relation_id):
            cut += int(np.count_nonzero(parts[src + src_base] != parts[dst + dst_base]))
            total += len(src)
    return {"edges_cut": cut, "edge_cut_fraction": round(cut / max(total, 1), 4)}


def _feature_infos(
    keys: Iterable[str], features: Mapping[str, Mapping[str, Feature]]
) -> dict[str, dict[str, FeatureInfo]]:
    """Return dtype and row shape of every feature; every node type or relation is a key."""
    return {
        key: {name: FeatureInfo(f.dtype, tuple(f.values.shape[1:])) for name, f in features.get(key, {}).items()}
        for key in keys
    }


def _check_assignment(graph_name: str, num_parts: int, part_method: str, assignment: Array, num_nodes: int) -> None:
    """Check the arguments of a graph whose parts were chosen by other means."""
    if part_method != "given":
        raise InvalidArgumentError(f"part_method must be 'given' (got {part_method!r})")
    check_options(graph_name, num_parts)
    if assignment.shape != (num_nodes,) or (num_nodes and not 0 <= assignment.min() <= assignment.max() < num_parts):
        raise InvalidArgumentError(
            f"assignment must hold a part in [0, {num_parts}) for each of {num_nodes} nodes "
            f"(got shape {assignment.shape})"
        )
