"""Partition a graph: assign, relabel, write the shards and the configuration, on any number of ranks.

The stages, each bounded in memory::

    check edges     every rank reads its share of the edges, and checks their ends
    assign nodes    a part for each node: multilevel on all ranks, METIS or at random on rank 0
    relabel edges   nodes and edges travel in new ids to the ranks that write their parts
    write parts     each part by one rank

A run that is killed leaves the assignment (:class:`.Leftovers`) and whole parts for the next run, which goes through
the same stages, but assigns no nodes, and neither sends nor writes parts that stand with the same content. The content
has a few rows of the features only, so the features of a finished graph may have changed: only parts of a killed run
are kept. Each run removes those that it does not keep before it writes any, and those of a finished run before it
leaves an assignment.

Ranks own ranges of the original ids of all nodes, types one after the other. The files depend neither on the number of
ranks nor on their memory.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import I32, I64, Array, Mask
from mpigraph.collective import collective
from mpigraph.errors import ShardFormatError
from mpigraph.log import get_logger
from mpigraph.memory import give_back
from mpigraph.metadata.book import RangeBook
from mpigraph.partition import options, output_folder
from mpigraph.partition.assign import METHODS
from mpigraph.partition.assigning import Task, balance_criteria, loads_of, measured_balance
from mpigraph.partition.exchange import ALONE, Exchange, Progress, even_bounds, silent
from mpigraph.partition.loops import asymmetry_of_edges
from mpigraph.partition.part_writer import PartWriter
from mpigraph.partition.relabel import Arrivals, Numbering
from mpigraph.partition.source import GraphSource, edge_chunks, ends_among_nodes, feature_infos, narrowed_source
from mpigraph.partition.spill import Scratch
from mpigraph.storage.contents import PartFiles, bytes_of_part
from mpigraph.storage.files import NewFile, check_space, storage_errors
from mpigraph.storage.format import node_orig_ids_name
from mpigraph.storage.narrow import FeatDtype, narrowed
from mpigraph.storage.part_config import Features, PartConfig
from mpigraph.storage.shard import ShardReader, verify


@dataclass(frozen=True, eq=False)
class PartitionResult:
    """A partitioned graph that :func:`partition_source` has written.

    Attributes:
        config_path: the configuration file.
        report: edge cut and balance.
    """

    config_path: Path
    report: Mapping[str, Any]

    @cached_property
    def orig_nids(self) -> tuple[I64, ...]:
        """For each node type int64[n], new id -> original id."""
        with PartFiles(PartConfig.read(self.config_path)) as files:
            parts = range(files.config.num_parts)
            names = map(node_orig_ids_name, files.config.schema.ntypes)
            return tuple(np.concatenate([files.open(k, "part_graph").read(name) for k in parts]) for name in names)

    @cached_property
    def orig_eids(self) -> tuple[I64, ...]:
        """For each relation int64[m], new id -> original position in the edge list."""
        with PartFiles(PartConfig.read(self.config_path)) as files:
            parts = range(files.config.num_parts)
            relations = range(len(files.config.schema.relations))
            return tuple(np.concatenate([files.read_edges(r, k, "orig_ids") for k in parts]) for r in relations)


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
    seed: int = 0,
    assignment: Array | None = None,
    progress: Progress = silent,
    exchange: Exchange = ALONE,
    scratch: Scratch | None = None,
    resume: bool = False,
    feat_dtype: FeatDtype = None,
    overwrite: bool = False,
) -> PartitionResult:
    """Partition a graph and write it. Equal arguments give equal files, on any number of ranks.

    The assignment stays in a file beside the shards until all shards are written. A run that repeats an interrupted one
    with the same arguments reads it; with ``resume`` it keeps the complete parts, too.

    An error of one rank, such as a full disk in the middle of a stage, is raised on that rank alone; the caller then
    has to end the others.

    Args:
        source: the graph, the same on every rank.
        graph_name: name of the configuration file and of the graph.
        num_parts: number of parts; may exceed the number of nodes.
        out_path: directory that every rank sees, created if missing.
        part_method: "metis", "multilevel" or "random".
        balance_classes: node type -> int[nodes]; each class is spread evenly over the parts.
        balance_edges: spread the edges (by destination) evenly too.
        objtype: METIS's objective, "cut" or "vol"; "multilevel" knows only "cut".
        seed: equal seeds give equal results.
        assignment: int[nodes of all types, type after type], the part of each node, computed elsewhere;
            ``part_method`` must be "given" then.
        progress: gets reports.
        exchange: the ranks.
        scratch: for temporary files; beside the shards by default.
        resume: verify the parts that an interrupted run has completed, and write only the others and damaged ones.
            Edges are compared with those that the parts were made from, features by their dtypes, their shapes and a
            few of their rows. If no part can be kept, the log says so, and all parts are written, as those of a
            finished graph are.
        feat_dtype: features to store in 16 bits, besides those that are so in the input.
        overwrite: write over another graph in the directory. A graph of the same name and sizes is not another one.

    Raises:
        InvalidArgumentError: an argument is not usable, the directory cannot be written to, or another graph is there.
        FieldNameError: ``feat_dtype`` names a feature that does not exist.
        StorageError: the disk is full, or another run is writing there.
        GraphDataError: the graph contradicts itself, or a feature does not fit the dtype that it is to be stored in.
        CollectiveError: ranks give different arguments, or graphs of different shapes.
    """
    out = Path(out_path)
    with ExitStack() as stack:
        with exchange.together(f"partitioning {graph_name!r}"):
            if assignment is None:
                options.check_options(graph_name, num_parts, part_method, objtype, seed)
            else:
                options.check_assignment(graph_name, num_parts, part_method, assignment, sum(source.num_nodes))
            infos = narrowed(*feature_infos(source), feat_dtype)
            if exchange.rank == 0:
                output_folder.check_writable(out)
                out.mkdir(parents=True, exist_ok=True)
                stack.callback(NewFile(out / "partition").discard)  # until then no other run writes there
                if not overwrite:
                    output_folder.check_vacant(
                        out, graph_name, output_folder.Sizes(sum(source.num_nodes), sum(source.edge_counts))
                    )
                there = output_folder.bytes_of_parts(out, num_parts) if resume else 0
                check_space(out, _bytes_on_disk(source, infos, num_parts) - there, f"graph {graph_name!r}")
        method = options.Choice(part_method, int(num_parts), int(seed), objtype, bool(balance_edges))
        return _Run(
            narrowed_source(source, infos), graph_name, method, balance_classes or {}, assignment, out, exchange,
            scratch or Scratch(out), progress, bool(resume),
        ).make()  # fmt: skip


@dataclass(eq=False)
class _Run:
    """One partitioning, as one rank sees it; the attributes are arguments of :func:`partition_source`."""

    source: GraphSource
    graph_name: str
    method: options.Choice
    classes: Mapping[str, Array]
    assignment: Array | None
    out: Path
    exchange: Exchange
    scratch: Scratch
    progress: Progress
    resume: bool
    bounds: I64 = field(init=False)  # int64[ranks + 1], the nodes that each rank owns
    left: output_folder.Leftovers = field(init=False)
    finished: bool = field(init=False, default=False)  # the run before has ended
    took_assignment: bool = field(init=False, default=False)
    both_ways: bool = field(init=False, default=False)  # the reverse of every edge is there

    def __post_init__(self) -> None:
        self.bounds = even_bounds(sum(self.source.num_nodes), self.exchange.size)
        self.left = output_folder.Leftovers(self.out, self.graph_name)

    def make(self) -> PartitionResult:
        self.check_same()
        num_parts = self.method.num_parts
        looking = "looking for an earlier run"
        (self.finished,) = self.exchange.map(looking, 1, lambda _: self.left.are_of_finished_run())
        topology = self.check_edges()
        parts, balance = self.assign(topology)
        digest = options.Digest(self.exchange)
        digest.add(0, int(self.bounds[self.exchange.rank]), parts)
        identity = options.word_of(topology, self.graph_name, num_parts, digest.total())
        numbering = Numbering(self.exchange, self.bounds, self.source.node_bases, parts, num_parts)
        del parts
        content = options.word_of(identity, options.word_of_tables(self.source, self.exchange))
        done = self.complete_parts(content)
        if done.any():
            self.tell("%d of %d parts are complete, and are not written again", done.sum(), len(done))
        elif self.resume and (self.took_assignment or self.assignment is not None):
            self.tell("nothing to resume in %s: no complete part is of this graph, assignment and features", self.out)
        self.remove_all_but(done)
        arrivals = self.write_parts(content, numbering, done)
        result = self.write_config(identity, content, numbering, arrivals, balance)
        if self.exchange.rank == 0:
            self.left.remove()
        return result

    def check_same(self) -> None:
        """Check that all ranks have the same arguments and graph; compare a few rows of each array."""
        source = self.source
        values: dict[str, object] = {
            "graph_name": self.graph_name,
            "the method": self.method,
            "whether to resume": self.resume,
            "types": options.word_of(source.schema.ntypes, source.schema.relations),
            "numbers of nodes and edges": options.word_of(source.num_nodes, source.edge_counts),
            "features": options.word_of(feature_infos(source), source.node_ids is None, source.edge_ids is None),
        }
        if self.exchange.size > 1:
            with self.exchange.together("comparing the graphs of all ranks"):
                given = [np.asarray(self.classes[ntype]) for ntype in sorted(self.classes)]
                given += [] if self.assignment is None else [self.assignment]
                values["assignment and balance classes"] = options.word_of([*map(options.sampled, given)])
                values["edges"] = options.word_of([*map(options.sampled, chain(*source.edges))])
                values |= {f"rows of {name}": options.word_of(options.sampled(rows)) for name, rows in source.tables()}
            self.exchange.same("all ranks must partition one graph with the same arguments, but these differ:", values)

    def check_edges(self) -> str:
        """Check the ends of all edges; return a hash of the types and the edges."""
        source = self.source
        exchange = self.exchange
        digest = options.Digest(exchange)
        total = sum(source.edge_counts)
        done = 0
        skew = 0
        with exchange.together("checking the edges"):
            kinds = np.arange(1, len(source.edges) + 1, dtype=np.uint64)
            for chunk in edge_chunks(source, None, exchange.rank, exchange.size):
                self.progress("check edges", done, total)
                source.check_edges(chunk)
                digest.add_pairs(kinds, source.first_edges, chunk.first, chunk.src, chunk.dst)
                skew = (skew + int(asymmetry_of_edges(*ends_among_nodes(source, chunk)))) % 2**64
                done = min(done + len(chunk.src) * exchange.size, total)
            source.check_values(exchange.rank, exchange.size)
            self.progress("check edges", total, total)
        self.both_ways = sum(exchange.gather_json(skew)) % 2**64 == 0
        schema = source.schema
        return options.word_of(schema.ntypes, schema.relations, source.num_nodes, source.edge_counts, digest.total())

    def assign(self, topology: str) -> tuple[I32, dict[str, float]]:
        """Return int32[own nodes], the part of each, and the balance; rank 0 keeps the parts of all in a file."""
        exchange = self.exchange
        method = self.method
        word = self.word_of_assignment(topology)
        kept = None
        with exchange.together("reading a kept assignment"):
            if exchange.rank == 0 and self.assignment is None:
                kept = self.left.read_assignment(word)
                if kept is None and self.resume:
                    self.tell("nothing to resume in %s: no assignment is of this graph and these options", self.out)
        self.took_assignment = exchange.sum_of(int(kept is not None)) > 0
        stage = f"assign nodes ({method.name})"
        steps = max(sum(self.source.edge_counts), 1) if METHODS[method.name].reports else 1

        def report(fraction: float) -> None:
            self.progress(stage, min(int(fraction * steps), steps - 1), steps)

        report(0.0)
        criteria = balance_criteria(self.source, self.classes, method.balance_edges, exchange, self.bounds)
        task = Task(
            self.source, method.num_parts, criteria.weights, self.bounds, method.seed, method.objtype, self.assignment,
            self.both_ways, exchange, self.scratch, report,
        )  # fmt: skip
        if self.took_assignment:
            parts = task.on_first(lambda: np.asarray(kept))
        else:
            parts = METHODS[method.name].assign(task)
            if self.assignment is None:
                self.keep(word, parts)
        loads = exchange.total(loads_of(criteria.weights, parts, method.num_parts))
        self.progress(stage, steps, steps)
        return parts, measured_balance(criteria.names, loads)

    def keep(self, word: str, parts: I32) -> None:
        """Have rank 0 keep the parts of all nodes in a file; this rank has int32[own nodes]."""
        whole = self.exchange.gather_to_first(parts[:, None])[:, 0]
        if self.finished:  # else the assignment would say that the old parts are of a killed run
            self.remove_all_but(np.zeros(self.method.num_parts, np.bool_))
        with self.exchange.together("keeping the assignment"):
            if self.exchange.rank == 0:
                self.left.write_assignment(word, whole)

    def word_of_assignment(self, topology: str) -> str:
        digest = options.Digest(self.exchange)
        with self.exchange.together("reading balance classes"):
            for number, (_, classes) in enumerate(sorted(self.classes.items())):
                flat = np.asarray(classes).reshape(-1)
                begin, end = even_bounds(len(flat), self.exchange.size)[self.exchange.rank :][:2]
                digest.add(number, int(begin), flat[begin:end].astype(np.int64))
        return options.word_of(topology, self.method, sorted(self.classes), digest.total())

    def complete_parts(self, content: str) -> Mask:
        """Return bool[parts]: the files of the part stand with this content, and their rows have their checksums."""
        num_parts = self.method.num_parts
        if not self.resume or self.finished:
            return np.zeros(num_parts, np.bool_)

        def is_complete(part: int) -> bool:
            self.progress("verify parts", part, num_parts)
            paths = [self.out / name for name in PartConfig.files_of(part).values()]
            try:
                with ShardReader(paths[0], self.graph_name, part) as shard:
                    if shard.identity != content:  # of another run
                        return False
                for path in paths:
                    verify(path, self.graph_name, part, content)
            except ShardFormatError as error:
                if any(path.exists() for path in paths):
                    get_logger().warning("part %d is written again: %s", part, error)
                return False
            return True

        done = self.exchange.map("verifying the parts", num_parts, is_complete)
        self.progress("verify parts", num_parts, num_parts)
        return np.array(done, np.bool_)

    def remove_all_but(self, done: Mask) -> None:
        """Remove what earlier runs have written, except parts that are ``done`` (bool[parts])."""
        with self.exchange.together("removing files of earlier runs"), storage_errors(self.out):
            if self.exchange.rank == 0:
                # the configuration last: without it the parts would be those of a killed run
                output_folder.remove_parts(self.out, done)
                output_folder.remove_other_graphs(self.out, self.graph_name)
                (self.out / f"{self.graph_name}.json").unlink(missing_ok=True)

    def tell(self, text: str, *values: object) -> None:
        if self.exchange.rank == 0:
            get_logger().warning(text, *values)

    def write_parts(self, content: str, numbering: Numbering, done: Mask) -> Arrivals:
        """Relabel all edges, and write the incomplete parts."""
        arrivals = Arrivals(self.source, numbering, done, self.scratch)
        arrivals.receive(self.progress)
        give_back()
        writer = PartWriter(arrivals, self.graph_name, content, self.out)
        missing = [part for part in arrivals.parts if not done[part]]
        with self.exchange.together("writing the parts"):
            for number, part in enumerate(missing):
                self.progress("write parts", number, len(missing))
                writer.write(part)
            self.progress("write parts", len(missing), len(missing))
        arrivals.close()
        return arrivals

    def write_config(
        self, identity: str, content: str, numbering: Numbering, arrivals: Arrivals, balance: Mapping[str, float]
    ) -> PartitionResult:
        source, method, cut = self.source, self.method, arrivals.cut
        fraction = round(cut / max(sum(source.edge_counts), 1), 4)
        report = {"balance": balance, "edges_cut": cut, "edge_cut_fraction": fraction}
        edges = np.pad(np.cumsum(arrivals.counts, axis=0), ((1, 0), (0, 0))).T
        config = PartConfig(
            self.graph_name, method.name, RangeBook(source.schema, numbering.offsets, edges), *feature_infos(source),
            PartConfig.default_files(method.num_parts), report, self.out, identity, content, source.shared,
            tuple(source.shared_features),
        )  # fmt: skip
        with self.exchange.together("writing the configuration"):
            if self.exchange.rank == 0:
                config.write(self.out)
        get_logger().info("%s in %d parts by %s: %s", self.graph_name, method.num_parts, method.name, report)
        return PartitionResult(config.path, report)


def _bytes_on_disk(source: GraphSource, infos: tuple[Features, Features], num_parts: int) -> int:
    """Return the bytes of the shards and the assignment, without HDF5's own, which are few."""
    of_nodes, of_edges = ([np.array([0, n]) for n in counts] for counts in (source.num_nodes, source.edge_counts))
    whole = PartConfig(
        "", "", RangeBook(source.schema, of_nodes, of_edges), *infos, PartConfig.default_files(1),
        shared=source.shared, shared_features=tuple(source.shared_features),
    )  # fmt: skip
    return bytes_of_part(whole, 0) + 4 * sum(source.num_nodes) + 8 * (num_parts - 1) * len(source.own)
