"""Partition a graph: assign, relabel, write the shards and the configuration, on any number of ranks.

The stages, each bounded in memory::

    check edges     every rank reads its share of the edges, and checks their ends
    assign nodes    a part for each node: multilevel on all ranks, METIS or at random on rank 0
    relabel edges   nodes and edges travel in new ids to the ranks that write their parts
    write parts     each part by one rank

A run that is killed leaves what :mod:`.kept` has, which the next one may take up: it goes through the same stages, but
assigns no nodes, and of parts that are complete nothing travels and nothing is written.

Ranks own ranges of the original ids of all nodes, types one after the other. Neither the number of ranks nor the
memory that they have shows in the files.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import I32, I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.log import get_logger
from mpigraph.memory import give_back
from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import relation_key
from mpigraph.partition.balance import Criteria, balance_criteria, loads_of, measured_balance
from mpigraph.partition.exchange import ALONE, Exchange, even_bounds
from mpigraph.partition.identity import Digest, word_of, word_of_tables
from mpigraph.partition.kept import (
    KeptAssignment,
    PartRecords,
    bytes_recorded,
    is_anything_left,
    remove_all,
    sole_writer,
)
from mpigraph.partition.metis import metis_assign
from mpigraph.partition.multilevel.assign import multilevel_assign
from mpigraph.partition.numbering import Numbering
from mpigraph.partition.occupied import Sizes, check_vacant, remove_other_graphs, remove_stale_parts
from mpigraph.partition.options import Method, check_assignment, check_options, check_same, check_writable
from mpigraph.partition.part_writer import PartWriter, WrittenPart
from mpigraph.partition.progress import Progress, silent
from mpigraph.partition.random_assignment import random_assign
from mpigraph.partition.relabel import relabel
from mpigraph.partition.source import GraphSource, edge_chunks, feature_infos, in_16_bits
from mpigraph.partition.spill import Scratch
from mpigraph.storage.audit import audit_part
from mpigraph.storage.contents import PartFiles
from mpigraph.storage.files import check_space
from mpigraph.storage.format import index_dtype, node_orig_ids_name, relation_dataset_name
from mpigraph.storage.narrow import FeatDtype
from mpigraph.storage.part_config import PartConfig
from mpigraph.storage.shard import ShardReader

__all__ = ["PartitionResult", "partition_source"]


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


@collective("ranks")
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
    resume: bool = False,
    feat_dtype: FeatDtype = None,
    overwrite: bool = False,
) -> PartitionResult:
    """Partition a graph and write it. Equal arguments give equal files, on any number of ranks.

    What was assigned stays in a file beside the shards until they are written, and so do records of the parts that are
    complete. A run that is interrupted, and made again with the same arguments, does not repeat the assignment; with
    ``resume`` it does not repeat the complete parts, either.

    An error that is not the same on all, such as a full disk in the middle of a stage, is
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
        resume: verify the parts that an interrupted run has completed, and write only the others and what is damaged.
            Edges are compared with those that the parts were made from, features by their dtypes, their shapes and a
            few of their rows. Where nothing can be taken up, a line of the log tells, and all parts are written.
        feat_dtype: which features are stored in 16 bits, besides those that are so in the input.
        overwrite: write over another graph that lies in the directory. A graph of the same name and of as many nodes
            and edges is not another one.

    Raises:
        InvalidArgumentError: an argument is not usable, the directory cannot be written to, or another graph is there.
        FieldNameError: ``feat_dtype`` names a feature that does not exist.
        StorageError: the disk is full, or another run is writing there.
        GraphDataError: the graph contradicts itself, or a feature does not fit 16 bits.
        CollectiveError: ranks give different arguments, or graphs of different shapes.
    """
    out = Path(out_path)
    with ExitStack() as stack:
        with exchange.together(f"partitioning {graph_name!r}"):
            if assignment is None:
                check_options(graph_name, num_parts, part_method, objtype, seed)
            else:
                check_assignment(graph_name, num_parts, part_method, assignment, sum(source.num_nodes))
            source = in_16_bits(source, feat_dtype)
            if exchange.rank == 0:
                check_writable(out)
                out.mkdir(parents=True, exist_ok=True)
                stack.callback(sole_writer(out).discard)
                if not overwrite:
                    check_vacant(out, graph_name, Sizes(sum(source.num_nodes), sum(source.edge_counts)))
                there = bytes_recorded(out, graph_name) if resume else 0
                check_space(out, _bytes_on_disk(source, num_parts) - there, f"graph {graph_name!r}")
        method = Method(part_method, int(num_parts), int(seed), objtype, recursive, bool(balance_edges))
        check_same(exchange, source, graph_name, method, balance_classes, assignment, resume)
        run = _Run(source, graph_name, out, exchange, scratch or Scratch(out), progress or silent, bool(resume))
        return run.make(method, balance_classes, assignment)


@dataclass(eq=False)
class _Run:
    """One partitioning, as one rank sees it."""

    source: GraphSource
    graph_name: str
    out: Path
    exchange: Exchange
    scratch: Scratch
    progress: Progress
    resume: bool
    bounds: I64 = field(init=False)
    found_assignment: bool = field(init=False, default=False)
    stage: str = field(init=False, default="")
    steps: int = field(init=False, default=1)

    def assigned(self, fraction: float) -> None:
        """Report that a fraction of the assignment is done, and that it is not over."""
        self.progress(self.stage, min(int(fraction * self.steps), self.steps - 1), self.steps)

    def __post_init__(self) -> None:
        self.bounds = even_bounds(sum(self.source.num_nodes), self.exchange.size)

    def make(self, method: Method, classes: Mapping[str, Array] | None, assignment: Array | None) -> PartitionResult:
        topology = self.check_edges()
        kept = self.kept_assignment(topology, method, classes) if assignment is None else None
        self.stage = f"assign nodes ({method.name})"
        # of the others nobody knows how far they are
        self.steps = max(sum(self.source.edge_counts), 1) if method.name == "multilevel" else 1
        self.assigned(0.0)
        criteria = balance_criteria(self.source, classes, method.balance_edges, self.exchange, self.bounds)
        parts = self.assign(method, classes, criteria, kept, assignment)
        loads = self.exchange.total(loads_of(criteria, parts, method.num_parts))
        report = {"balance": measured_balance(criteria, loads)}
        del criteria
        self.progress(self.stage, self.steps, self.steps)
        digest = Digest(self.exchange)
        digest.add(0, int(self.bounds[self.exchange.rank]), parts)
        identity = word_of(topology, self.graph_name, method.num_parts, digest.total())
        numbering = Numbering(self.exchange, self.bounds, self.source.node_bases, parts, method.num_parts)
        del parts
        records = PartRecords(self.out, self.graph_name, word_of(identity, word_of_tables(self.source, self.exchange)))
        written = self.complete_parts(method, identity, numbering, records)
        done = self.exchange.total(np.isin(np.arange(method.num_parts), list(written)).astype(np.int64)) > 0
        if done.any():
            self.tell("%d of %d parts are complete, and are not written again", done.sum(), len(done))
        elif self.resume and self.found_assignment:
            self.tell("no part is complete with this assignment and these features: all are written")
        elif assignment is not None:
            self.tell_that_nothing_is_taken_up()
        # a configuration is there only while all its shards are: the old one goes first, and the new one comes last
        with self.exchange.together("removing the old configuration"):
            if self.exchange.rank == 0:
                (self.out / f"{self.graph_name}.json").unlink(missing_ok=True)
                remove_other_graphs(self.out, self.graph_name)
                records.remove_others(np.flatnonzero(done).tolist())
        if not done.all():
            written |= self.write_parts(identity, numbering, done, records)
        path = self.write_config(method, identity, numbering, written, report)
        if self.exchange.rank == 0:
            remove_all(self.out, self.graph_name)
            remove_stale_parts(self.out, method.num_parts)
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

    def kept_assignment(self, topology: str, method: Method, classes: Mapping[str, Array] | None) -> KeptAssignment:
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
        method: Method,
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
            if found is None and not kept.exists():
                self.tell_that_nothing_is_taken_up()
        self.found_assignment = exchange.sum_of(int(found is not None)) > 0
        if self.found_assignment:
            return self.from_first(nothing if found is None else found)
        if method.name == "multilevel":
            parts = multilevel_assign(
                self.source, method.num_parts, criteria, seed=method.seed,
                exchange=exchange, bounds=self.bounds, scratch=self.scratch, report=self.assigned,
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

    def assign_alone(self, method: Method, classes: Mapping[str, Array] | None) -> I32:
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

    def complete_parts(
        self, method: Method, identity: str, numbering: Numbering, records: PartRecords
    ) -> dict[int, WrittenPart]:
        """Verify the parts that are recorded, some on each rank; return those that are right."""
        if not self.resume:
            return {}
        found: dict[int, WrittenPart] = {}
        with self.exchange.together("verifying the parts"):
            for part in range(self.exchange.rank, method.num_parts, self.exchange.size):
                written = records.read(part)
                if written is not None:
                    found[part] = written
            known = np.zeros((method.num_parts, len(self.source.edges)), np.int64)
            for part, written in found.items():
                known[part] = written.num_edges
            seals = [found[part].seals if part in found else {} for part in range(method.num_parts)]
            config = self.config_of(method, identity, numbering, known, seals, {})
            recorded = list(found)
            with PartFiles(config) as files:
                for number, part in enumerate(recorded):
                    self.progress("verify parts", number, len(recorded))
                    bad = audit_part(files, part, lambda nbytes: None).bad
                    if bad:
                        get_logger().warning("part %d is written again: %s", part, bad[0])
                        del found[part]
            self.progress("verify parts", len(recorded), len(recorded))
        return found

    def tell_that_nothing_is_taken_up(self) -> None:
        """Tell the user who resumes a run that there is none, or none with this graph and these options."""
        if not self.resume:
            return
        if is_anything_left(self.out, self.graph_name):
            self.tell("what a run has left in %s is of another graph or of other options, and is not used", self.out)
        else:
            self.tell("there is nothing to resume in %s: this run begins at the beginning", self.out)

    def tell(self, text: str, *values: object) -> None:
        """Write a line to the log, on rank 0."""
        if self.exchange.rank == 0:
            get_logger().warning(text, *values)

    def write_parts(
        self, identity: str, numbering: Numbering, done: Mask, records: PartRecords
    ) -> dict[int, WrittenPart]:
        """Relabel and write the parts that are not done, and record each; return those of this rank."""
        arrivals = relabel(self.source, numbering, done, self.scratch, self.progress)
        give_back()
        writer = PartWriter(self.source, numbering, arrivals, self.graph_name, identity, self.out)
        missing = [part for part in arrivals.parts if not done[part]]
        written: dict[int, WrittenPart] = {}
        with self.exchange.together("writing the parts"):
            for part in missing:
                self.progress("write parts", len(written), len(missing))
                written[part] = writer.write(part)
                records.write(part, written[part])
            self.progress("write parts", len(missing), len(missing))
        arrivals.close()
        return written

    def write_config(
        self,
        method: Method,
        identity: str,
        numbering: Numbering,
        written: Mapping[int, WrittenPart],
        report: dict[str, Any],
    ) -> Path:
        """Gather what is known of the parts, add the edge cut to the report, and write the configuration."""
        known = np.zeros((method.num_parts, len(self.source.edges) + 1), np.int64)
        for part, about in written.items():
            known[part, :-1] = about.num_edges
            known[part, -1] = about.num_cut
        known = self.exchange.total(known)
        total = int(known[:, :-1].sum())
        cut = int(known[:, -1].sum())
        report |= {"edges_cut": cut, "edge_cut_fraction": round(cut / max(total, 1), 4)}
        config = self.config_of(method, identity, numbering, known[:, :-1], self.gather_seals(written), report)
        with self.exchange.together("writing the configuration"):
            path = config.write(self.out) if self.exchange.rank == 0 else self.out / f"{self.graph_name}.json"
        get_logger().info("%s in %d parts by %s: %s", self.graph_name, method.num_parts, method.name, report)
        return path

    def config_of(
        self,
        method: Method,
        identity: str,
        numbering: Numbering,
        num_edges: I64,
        seals: Iterable[Mapping[str, str]],
        report: Mapping[str, Any],
    ) -> PartConfig:
        """Return the configuration for int64[parts, relations] edges."""
        zero = np.zeros((1, num_edges.shape[1]), np.int64)
        edge_offsets = np.concatenate([zero, np.cumsum(num_edges, axis=0)])
        node_features, edge_features = feature_infos(self.source)
        return PartConfig(
            graph_name=self.graph_name,
            part_method=method.name,
            book=RangeBook(self.source.schema, tuple(numbering.offsets), tuple(edge_offsets.T.copy())),
            node_features=node_features,
            edge_features=edge_features,
            files=PartConfig.default_files(method.num_parts),
            report=report,
            directory=self.out,
            identity=identity,
            seals=tuple(seals),
        )

    def gather_seals(self, written: Mapping[int, WrittenPart]) -> list[dict[str, str]]:
        """Return the seals of all parts, on every rank."""
        mine = [(part, dict(sorted(about.seals.items()))) for part, about in written.items()]
        everyone = [json.loads(data) for data in self.exchange.gather_bytes(json.dumps(mine).encode())]
        return [seals for _, seals in sorted((pair for pairs in everyone for pair in pairs), key=lambda pair: pair[0])]


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
