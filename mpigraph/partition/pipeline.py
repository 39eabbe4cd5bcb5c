"""Partition a graph: assign, relabel, write the shards and the configuration, on any number of ranks.

The stages, each bounded in memory::

    check edges     every rank reads its share of the edges, and checks their ends
    assign nodes    a part for each node: multilevel on all ranks, METIS or at random on rank 0
    relabel edges   nodes and edges travel in new ids to the ranks that write their parts
    write parts     each part by one rank

Ranks own ranges of the original ids of all nodes, types one after the other. Neither the number of ranks nor the
memory that they have shows in the files.
"""

import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import I32, I64, Array
from mpigraph.errors import CollectiveError, InvalidArgumentError, check_integer
from mpigraph.log import get_logger
from mpigraph.memory import give_back
from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import relation_key
from mpigraph.partition.balance import Criteria, balance_criteria, loads_of, measured_balance
from mpigraph.partition.exchange import ALONE, Exchange, even_bounds
from mpigraph.partition.identity import Digest, word_of
from mpigraph.partition.kept import KeptAssignment
from mpigraph.partition.metis import metis_assign
from mpigraph.partition.multilevel.assign import multilevel_assign
from mpigraph.partition.numbering import Numbering
from mpigraph.partition.part_writer import PartWriter, WrittenPart
from mpigraph.partition.progress import Progress, silent
from mpigraph.partition.random_assignment import random_assign
from mpigraph.partition.relabel import relabel
from mpigraph.partition.source import Feature, GraphSource, edge_chunks
from mpigraph.partition.spill import Scratch
from mpigraph.storage.files import check_space
from mpigraph.storage.format import index_dtype, node_orig_ids_name, relation_dataset_name
from mpigraph.storage.part_config import FeatureInfo, PartConfig, check_graph_name
from mpigraph.storage.shard import ShardReader

__all__ = ["PART_METHODS", "PartitionResult", "check_options", "check_writable", "partition_source"]

PART_METHODS = ("metis", "multilevel", "random")


@dataclass(frozen=True, eq=False)
class PartitionResult:
    """What :func:`partition_source` made.

    Attributes:
        config_path: the configuration file.
        report: edge cut and balance.
    """

    config_path: Path
    report: Mapping[str, Any]

    @cached_property
    def orig_nids(self) -> tuple[I64, ...]:
        """For each node type int64[n], new id -> original id."""
        config = PartConfig.read(self.config_path)
        return tuple(_joined(config, node_orig_ids_name(ntype)) for ntype in config.schema.ntypes)

    @cached_property
    def orig_eids(self) -> tuple[I64, ...]:
        """For each relation int64[m], new id -> original position in the edge list."""
        config = PartConfig.read(self.config_path)
        keys = map(relation_key, config.schema.relations)
        return tuple(_joined(config, relation_dataset_name(key, "orig_ids")) for key in keys)


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
    progress: Progress | None = None,
    exchange: Exchange = ALONE,
    scratch: Scratch | None = None,
) -> PartitionResult:
    """Partition a graph and write it. Equal arguments give equal files, on any number of ranks.

    What was assigned stays in a file beside the shards until they are written: a run that is interrupted there, and
    made again with the same arguments, does not repeat it.

    Collective on the ranks. An error that is not the same on all, such as a full disk in the middle of a stage, is
    raised where it happens; the caller then has to end the others.

    Args:
        source: the graph, the same on every rank.
        graph_name: name of the configuration file and of the graph.
        num_parts: number of parts; may exceed the number of nodes.
        out_path: directory that every rank sees, created if missing.
        part_method: "metis", "multilevel" or "random".
        balance_classes: node type -> int[nodes]; each class is spread evenly over the parts.
        balance_edges: spread the edges (by destination) evenly too.
        objtype: METIS's objective, "cut" or "vol"; "multilevel" knows only "cut".
        recursive: METIS's recursive bisection or its k-way method; None chooses by the number of parts.
        seed: equal seeds give equal results.
        assignment: int[nodes of all types, type after type], the part of each node, made by other means; then nothing
            is computed and ``part_method`` must be "given".
        progress: what to report to.
        exchange: the ranks.
        scratch: for what does not fit into memory; beside the shards by default.

    Raises:
        InvalidArgumentError: an argument is not usable, or the directory cannot be written to.
        StorageError: the disk is full, or another process is writing there.
        GraphDataError: the graph contradicts itself.
        CollectiveError: ranks give different arguments, or graphs of different shapes.
    """
    out = Path(out_path)
    with exchange.together(f"partitioning {graph_name!r}"):
        if assignment is None:
            check_options(graph_name, num_parts, part_method, objtype, seed)
        else:
            _check_assignment(graph_name, num_parts, part_method, assignment, sum(source.num_nodes))
        if exchange.rank == 0:
            check_writable(out)
            out.mkdir(parents=True, exist_ok=True)
            check_space(out, _bytes_on_disk(source, num_parts), f"graph {graph_name!r}")
    method = _Method(part_method, int(num_parts), int(seed), objtype, recursive, bool(balance_edges))
    _check_same(exchange, source, graph_name, method, balance_classes, assignment)
    run = _Run(source, graph_name, out, exchange, scratch or Scratch(out), progress or silent)
    return run.make(method, balance_classes, assignment)


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


@dataclass(frozen=True)
class _Method:
    """How nodes are assigned; the arguments of :func:`partition_source`."""

    name: str
    num_parts: int
    seed: int
    objtype: str
    recursive: bool | None
    balance_edges: bool


@dataclass(eq=False)
class _Run:
    """One partitioning, as one rank sees it."""

    source: GraphSource
    graph_name: str
    out: Path
    exchange: Exchange
    scratch: Scratch
    progress: Progress
    bounds: I64 = field(init=False)

    def __post_init__(self) -> None:
        self.bounds = even_bounds(sum(self.source.num_nodes), self.exchange.size)

    def make(self, method: _Method, classes: Mapping[str, Array] | None, assignment: Array | None) -> PartitionResult:
        topology = self.check_edges()
        kept = self.kept_assignment(topology, method, classes) if assignment is None else None
        stage = f"assign nodes ({method.name})"
        self.progress(stage, 0, 1)
        criteria = balance_criteria(self.source, classes, method.balance_edges, self.exchange, self.bounds)
        parts = self.assign(method, classes, criteria, kept, assignment)
        loads = self.exchange.total(loads_of(criteria, parts, method.num_parts))
        report = {"balance": measured_balance(criteria, loads)}
        del criteria
        self.progress(stage, 1, 1)
        digest = Digest(self.exchange)
        digest.add(0, int(self.bounds[self.exchange.rank]), parts)
        identity = word_of(topology, self.graph_name, method.num_parts, digest.total())
        numbering = Numbering(self.exchange, self.bounds, self.source.node_bases, parts, method.num_parts)
        del parts
        # a configuration is there only while all its shards are: the old one goes first, and the new one comes last
        with self.exchange.together("removing the old configuration"):
            if self.exchange.rank == 0:
                (self.out / f"{self.graph_name}.json").unlink(missing_ok=True)
        arrivals = relabel(self.source, numbering, method.num_parts, self.scratch, self.progress)
        give_back()
        writer = PartWriter(self.source, numbering, arrivals, self.graph_name, identity, self.out)
        written: dict[int, WrittenPart] = {}
        with self.exchange.together("writing the parts"):
            for part in arrivals.parts:
                self.progress("write parts", len(written), len(arrivals.parts))
                written[part] = writer.write(part)
            self.progress("write parts", len(arrivals.parts), len(arrivals.parts))
        arrivals.close()
        path = self.write_config(method, identity, numbering, written, report)
        if kept is not None and self.exchange.rank == 0:
            kept.remove()
        return PartitionResult(path, report)

    def check_edges(self) -> str:
        """Check the ends of all edges; return a hash of the types and the edges."""
        source, exchange = self.source, self.exchange
        digest = Digest(exchange)
        total = sum(source.edge_counts)
        done = 0
        with exchange.together("checking the edges"):
            for relation_id in range(len(source.edges)):
                for first, src, dst in edge_chunks(source, relation_id, rank=exchange.rank, ranks=exchange.size):
                    self.progress("check edges", done, total)
                    source.check_edges(relation_id, first, src, dst)
                    digest.add(1 + relation_id, first, src, dst)
                    done = min(done + len(src) * exchange.size, total)
            source.check_node_times(exchange.rank, exchange.size)
            self.progress("check edges", total, total)
        schema = source.schema
        return word_of(schema.ntypes, schema.relations, source.num_nodes, source.edge_counts, digest.total())

    def kept_assignment(self, topology: str, method: _Method, classes: Mapping[str, Array] | None) -> KeptAssignment:
        """Return where the assignment is kept until all is written."""
        digest = Digest(self.exchange)
        with self.exchange.together("reading balance classes"):
            for number, (_, given) in enumerate(sorted((classes or {}).items())):
                flat = np.asarray(given).reshape(-1)
                begin, end = even_bounds(len(flat), self.exchange.size)[self.exchange.rank :][:2]
                digest.add(number, int(begin), flat[begin:end].astype(np.int64))
        word = word_of(topology, method, sorted(classes or {}), digest.total())
        return KeptAssignment(self.out, self.graph_name, word, int(self.bounds[-1]), method.num_parts)

    def assign(
        self,
        method: _Method,
        classes: Mapping[str, Array] | None,
        criteria: Criteria,
        kept: KeptAssignment | None,
        assignment: Array | None,
    ) -> I32:
        """Return int32[own nodes], the part of each."""
        exchange = self.exchange
        first, last = self.bounds[exchange.rank : exchange.rank + 2]
        if assignment is not None:
            return np.asarray(assignment[first:last], np.int32)
        assert kept is not None
        nothing = np.empty(0, np.int32)
        with exchange.together("reading a kept assignment"):
            found = kept.read() if exchange.rank == 0 else None
        if exchange.sum_of(int(found is not None)):
            return self.from_first(nothing if found is None else found)
        if method.name == "multilevel":
            parts = multilevel_assign(
                self.source, method.num_parts, criteria, seed=method.seed,
                exchange=exchange, bounds=self.bounds, scratch=self.scratch,
            )  # fmt: skip
            whole = exchange.gather_to_first(parts[:, None])[:, 0]
        else:
            with exchange.together(f"assigning nodes by {method.name}"):
                whole = self.assign_alone(method, classes) if exchange.rank == 0 else nothing
            parts = self.from_first(whole)
        with exchange.together("keeping the assignment"):
            if exchange.rank == 0:
                kept.write(whole)
        return parts

    def assign_alone(self, method: _Method, classes: Mapping[str, Array] | None) -> I32:
        """Return int32[all nodes], by a method that runs in one process."""
        if method.name == "random":
            return random_assign(self.source, method.num_parts, method.seed)
        criteria = balance_criteria(self.source, classes, method.balance_edges)
        return metis_assign(
            self.source, method.num_parts, criteria,
            seed=method.seed, objtype=method.objtype, recursive=method.recursive,
        )  # fmt: skip

    def from_first(self, whole: I32) -> I32:
        """Return this rank's share of what rank 0 has."""
        parts: I32 = self.exchange.scatter(whole[:, None], self.bounds)[:, 0]
        return parts

    def write_config(
        self,
        method: _Method,
        identity: str,
        numbering: Numbering,
        written: Mapping[int, WrittenPart],
        report: dict[str, Any],
    ) -> Path:
        """Gather what is known of the parts, add the edge cut to the report, and write the configuration."""
        source = self.source
        num_relations = len(source.edges)
        known = np.zeros((method.num_parts, num_relations + 1), np.int64)
        for part, about in written.items():
            known[part, :-1] = about.num_edges
            known[part, -1] = about.num_cut
        known = self.exchange.total(known)
        total = int(known[:, :-1].sum())
        cut = int(known[:, -1].sum())
        report |= {"edges_cut": cut, "edge_cut_fraction": round(cut / max(total, 1), 4)}
        zero = np.zeros((1, num_relations), np.int64)
        edge_offsets = np.concatenate([zero, np.cumsum(known[:, :-1], axis=0)])
        seals = self.gather_seals(written)
        keys = [relation_key(relation) for relation in source.schema.relations]
        config = PartConfig(
            graph_name=self.graph_name,
            part_method=method.name,
            book=RangeBook(source.schema, tuple(numbering.offsets), tuple(edge_offsets.T.copy())),
            node_features=_feature_infos(source.schema.ntypes, source.node_feats),
            edge_features=_feature_infos(keys, source.edge_feats),
            files=PartConfig.default_files(method.num_parts),
            report=report,
            identity=identity,
            seals=tuple(seals),
        )
        with self.exchange.together("writing the configuration"):
            path = config.write(self.out) if self.exchange.rank == 0 else self.out / f"{self.graph_name}.json"
        get_logger().info("%s in %d parts by %s: %s", self.graph_name, method.num_parts, method.name, report)
        return path

    def gather_seals(self, written: Mapping[int, WrittenPart]) -> list[dict[str, str]]:
        """Return the seals of all parts, on every rank. Each seal is 64 hexadecimal digits."""
        mine = [sorted(written[part].seals.items()) for part in sorted(written)]
        digits = [bytes.fromhex(seal) for seals in mine for _, seal in seals]
        rows = np.frombuffer(b"".join(digits), np.uint8).reshape(-1, 32)
        everyone = iter(self.exchange.gather(rows))
        kinds = sorted(PartConfig.default_files(1)[0])
        parts = self.exchange.sum_of(len(written))
        return [{kind: next(everyone).tobytes().hex() for kind in kinds} for _ in range(parts)]


def _joined(config: PartConfig, name: str) -> I64:
    """Return a dataset of all parts' topology."""
    rows = []
    for part in range(config.num_parts):
        with ShardReader(config.part_path(part, "part_graph"), config.graph_name, part, config.identity) as shard:
            rows.append(shard.read(name))
    return np.concatenate(rows)


def _bytes_on_disk(source: GraphSource, num_parts: int) -> int:
    """What the shards will take, without HDF5's own, which is little."""
    total = (8 + 4) * sum(source.num_nodes)  # original ids, and the kept assignment until all is written
    for relation_id in range(len(source.edges)):
        src, dst = (source.num_nodes[i] for i in source.schema.ends(relation_id))
        total += 8 * (src + dst + num_parts) + (8 + index_dtype(src).itemsize) * source.num_edges(relation_id)
    for table in (*source.node_feats.values(), *source.edge_feats.values()):
        for feature in table.values():
            total += feature.values.dtype.itemsize * math.prod(feature.values.shape)
    return total


def _feature_infos(
    keys: Iterable[str], features: Mapping[str, Mapping[str, Feature]]
) -> dict[str, dict[str, FeatureInfo]]:
    """Return dtype and row shape of every feature; every node type or relation is a key."""
    return {
        key: {name: FeatureInfo(f.dtype, tuple(f.values.shape[1:])) for name, f in features.get(key, {}).items()}
        for key in keys
    }


def _check_same(
    exchange: Exchange,
    source: GraphSource,
    graph_name: str,
    method: _Method,
    classes: Mapping[str, Array] | None,
    assignment: Array | None,
) -> None:
    """Check that all ranks do the same to a graph of the same shape; the edges themselves are compared by nobody.

    Raises:
        CollectiveError: they do not; on every rank.
    """
    schema = source.schema
    keys = [relation_key(relation) for relation in schema.relations]
    told = {
        "graph_name": graph_name,
        "the method": method,
        "balance classes": {ntype: len(given) for ntype, given in sorted((classes or {}).items())},
        "whether an assignment is given": assignment is not None,
        "types": (schema.ntypes, schema.relations),
        "numbers of nodes and edges": (tuple(map(int, source.num_nodes)), tuple(source.edge_counts)),
        "features": (_feature_infos(schema.ntypes, source.node_feats), _feature_infos(keys, source.edge_feats)),
        "original ids": (source.node_ids is None, source.edge_ids is None),
    }
    words = [word_of(value) for value in told.values()]
    everyone = [data.decode().split() for data in exchange.gather_bytes(" ".join(words).encode())]
    with exchange.together(f"partitioning {graph_name!r}"):
        for what, found in zip(told, zip(*everyone, strict=True), strict=True):
            other = next((rank for rank, word in enumerate(found) if word != found[0]), None)
            if other is not None:
                raise CollectiveError(f"{what} of rank {other} differ from those of rank 0")


def _check_assignment(graph_name: str, num_parts: int, part_method: str, assignment: Array, num_nodes: int) -> None:
    """Check the arguments of a graph whose parts were chosen by other means."""
    if part_method != "given":
        raise InvalidArgumentError(f"part_method must be 'given' (got {part_method!r})")
    check_options(graph_name, num_parts)
    wanted = f"assignment must hold a part in [0, {num_parts}) for each of {num_nodes} nodes"
    if assignment.shape != (num_nodes,) or assignment.dtype.kind not in "iu":
        raise InvalidArgumentError(f"{wanted} (got {assignment.dtype}{list(assignment.shape)})")
    bad = np.flatnonzero((assignment < 0) | (assignment >= num_parts))
    if len(bad):
        raise InvalidArgumentError(f"{wanted} (got {assignment[bad[0]]} for node {bad[0]})")
