"""Partition a graph: assign, relabel, write the shards and the configuration, on any number of ranks.

The stages, each bounded in memory::

    check edges     every rank reads its share of the edges, and checks their ends
    assign nodes    a part for each node: multilevel on all ranks, METIS or at random on rank 0
    relabel edges   nodes and edges travel in new ids to the ranks that write their parts
    write parts     each part by one rank

A run that is killed leaves the assignment and whole parts for the next run, which goes through the same stages, but
assigns no nodes, and neither sends nor writes parts that stand with the same content. The content has a few rows of the
features only, and features of a finished graph may have changed: only parts beside an assignment, which a finished run
removes, are kept. So a run removes all parts before it leaves an assignment.

Ranks own ranges of the original ids of all nodes, types one after the other. The files depend neither on the number of
ranks nor on their memory.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain
from pathlib import Path

import numpy as np

from mpigraph.arrays import I32, Array, Mask
from mpigraph.collective import collective
from mpigraph.errors import ShardFormatError
from mpigraph.kernels.rng import combine
from mpigraph.log import get_logger
from mpigraph.memory import give_back
from mpigraph.metadata.book import RangeBook
from mpigraph.partition import output_folder
from mpigraph.partition.assign import METHODS, check_options
from mpigraph.partition.assigning import Task, balance_criteria, loads_of, measured_balance
from mpigraph.partition.exchange import ALONE, Exchange, Progress, even_bounds, silent
from mpigraph.partition.loops import add_asymmetry, add_digest
from mpigraph.partition.part_writer import Numbering, PartWriter
from mpigraph.partition.row_arrays import RowArray, release
from mpigraph.partition.source import GraphSource, edge_chunks, ends_among_nodes, feature_infos, narrowed_source
from mpigraph.partition.spill import Scratch
from mpigraph.storage.contents import bytes_of_part
from mpigraph.storage.files import NewFile, check_space, storage_errors, temporary_name
from mpigraph.storage.narrow import FeatDtype, narrowed
from mpigraph.storage.part_config import Features, PartConfig
from mpigraph.storage.shard import ShardWriter, verify

_SAMPLES = 3  # rows by which arrays are compared: each may cost the reading of a block of many


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
) -> PartConfig:
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
        assignment: int[nodes of all types, type after type], the part of each node, computed elsewhere; with the
            ``part_method`` "given".
        progress: gets reports.
        exchange: the ranks.
        scratch: for temporary files; beside the shards by default.
        resume: verify the parts that an interrupted run has completed, and write only the others and damaged ones.
            Edges are compared with those that the parts were made from, features by their dtypes, their shapes and a
            few of their rows. If no part can be kept, the log says so, and all parts are written, as those of a
            finished graph are.
        feat_dtype: features to store in 16 bits, besides those that are so in the input.
        overwrite: write over another graph in the directory. A graph of the same name and sizes is not another one.

    Returns:
        The configuration that is written; its report has the edge cut and the balance.

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
            check_options(graph_name, num_parts, part_method, objtype, seed, assignment)
            infos = narrowed(*feature_infos(source), feat_dtype)
            if exchange.rank == 0:
                output_folder.check_writable(out)
                out.mkdir(parents=True, exist_ok=True)
                stack.callback(NewFile(out / "partition").discard)  # until then no other run writes there
                if not overwrite:
                    output_folder.check_vacant(out, graph_name, (sum(source.num_nodes), sum(source.edge_counts)))
                there = output_folder.bytes_of_parts(out, num_parts) if resume else 0
                check_space(out, _bytes_on_disk(source, infos, num_parts) - there, f"graph {graph_name!r}")
        task = Task(
            narrowed_source(source, infos), int(num_parts), even_bounds(sum(source.num_nodes), exchange.size), exchange,
            int(seed), objtype, assignment, balance_classes or {}, bool(balance_edges), scratch or Scratch(out),
        )  # fmt: skip
        return _Run(task, graph_name, part_method, out, progress, bool(resume)).make()


@dataclass(eq=False)
class _Run:
    """One partitioning, as one rank sees it; the attributes are arguments of :func:`partition_source`."""

    task: Task
    graph_name: str
    method: str
    out: Path
    progress: Progress
    resume: bool
    took: bool = field(init=False, default=False)  # the assignment is that of a killed run

    def __post_init__(self) -> None:
        self.source = self.task.source
        self.exchange = self.task.exchange
        self.options = self.method, self.task.num_parts, self.task.seed, self.task.objtype, self.task.balance_edges
        self.kept = output_folder.assignment_path(self.out, self.graph_name)

    def make(self) -> PartConfig:
        exchange, num_parts = self.exchange, self.task.num_parts
        features = self.check_same()
        topology = self.check_edges()
        parts, balance = self.assign(topology)
        first, sums = self.task.own.start, np.zeros(2, np.uint64)
        add_digest(np.array([combine(0)]), np.array([0, first + len(parts)]), first, parts, parts, sums)
        identity = _word_of(topology, self.graph_name, num_parts, exchange.total(sums.view(np.int64)).tolist())
        numbering = Numbering(self.task, parts)
        del parts
        content = _word_of(identity, features)
        done = self.complete_parts(content)
        if done.any():
            self.tell("%d of %d parts are complete, and are not written again", done.sum(), len(done))
        elif self.resume and self.took:
            self.tell("nothing to resume in %s: no complete part is of this graph, assignment and features", self.out)
        self.remove_all_but(done)
        writer = PartWriter(self.task, numbering, done)
        writer.receive(self.progress)
        give_back()
        writer.config = config = self.config_of(writer, identity, content, balance)
        self.write_parts(writer, done)
        with exchange.together("writing the configuration"):
            if exchange.rank == 0:
                config.write(self.out)
        if exchange.rank == 0:
            with suppress(OSError):  # the graph stands
                self.kept.unlink(missing_ok=True)
                temporary_name(self.kept).unlink(missing_ok=True)
        get_logger().info("%s in %d parts by %s: %s", self.graph_name, num_parts, self.method, config.report)
        return config

    def given(self) -> list[tuple[str, Array]]:
        """Return the balance classes of node types, and the assignment if there is one."""
        classes = [(ntype, np.asarray(of_nodes)) for ntype, of_nodes in sorted(self.task.classes.items())]
        return classes if self.task.given is None else [*classes, ("", self.task.given)]

    def check_same(self) -> str:
        """Check that all ranks have the same arguments and graph, by a few rows of each array.

        Return a hash of features and original ids: dtypes, shapes, and a few rows, the same in every form of input.
        """
        source = self.source
        with self.exchange.together("comparing the graphs of all ranks"):
            infos = feature_infos(source), source.node_ids is None, source.edge_ids is None
            rows = [*map(_sampled, source.arrays())]
            values = {
                "graph_name": self.graph_name,
                "the options": (self.options, self.resume),
                "types": _word_of(source.schema.ntypes, source.schema.relations),
                "numbers of nodes and edges": _word_of(source.num_nodes, source.edge_counts),
                "features": _word_of(infos),
                "rows of features": _word_of(rows),
                "assignment and balance classes": _word_of([_sampled(given) for _, given in self.given()]),
                "edges": _word_of([_sampled(ends) for ends in chain(*source.edges) if self.exchange.size > 1]),
            }
        self.exchange.same("all ranks must partition one graph with the same arguments, but these differ:", values)
        return _word_of(infos, rows)

    def check_edges(self) -> str:
        """Check the ends of all edges; return a hash of the types and the edges."""
        source = self.source
        exchange = self.exchange
        total = sum(source.edge_counts)
        done = 0
        sums = np.zeros(3, np.uint64)
        with exchange.together("checking the edges"):
            kinds = np.arange(1, len(source.edges) + 1, dtype=np.uint64)
            for chunk in edge_chunks(source, None, exchange.rank, exchange.size):
                self.progress("check edges", done, total)
                source.check_edges(chunk)
                add_digest(kinds, source.first_edges, chunk.first, chunk.src, chunk.dst, sums)
                add_asymmetry(*ends_among_nodes(source, chunk), sums[2:])
                done = min(done + len(chunk.src) * exchange.size, total)
            source.check_values(exchange.rank, exchange.size)
            self.progress("check edges", total, total)
        *digest, asymmetry = exchange.total(sums.view(np.int64)).tolist()
        self.task = replace(self.task, both_ways=asymmetry == 0)
        schema = source.schema
        return _word_of(schema.ntypes, schema.relations, source.num_nodes, source.edge_counts, digest)

    def assign(self, topology: str) -> tuple[I32, dict[str, float]]:
        """Return int32[own nodes], the part of each, and the balance; rank 0 keeps the parts of all in a file."""
        exchange, method, num_parts = self.exchange, METHODS[self.method], self.task.num_parts
        word, kept = "", None
        with exchange.together("reading a kept assignment"):
            if exchange.rank == 0:
                hashes = [
                    (name, blake2b(np.ascontiguousarray(values).data).hexdigest()) for name, values in self.given()
                ]
                word = _word_of(topology, self.options, hashes)
                kept = output_folder.kept_assignment(self.kept, self.graph_name, word)
                if kept is None and self.resume:
                    self.tell("nothing to resume in %s: no assignment is of this graph and these options", self.out)
        self.took = exchange.sum_of(int(kept is not None)) > 0
        stage = f"assign nodes ({self.method})"
        steps = max(sum(self.source.edge_counts), 1) if method.reports else 1

        def report(fraction: float) -> None:
            self.progress(stage, min(int(fraction * steps), steps - 1), steps)

        report(0.0)
        names, weights = balance_criteria(self.task)
        task = replace(self.task, weights=weights, report=report)
        if self.took:
            parts = task.on_first(lambda: np.asarray(kept))
        else:
            parts = method.assign(task)
            whole = exchange.gather_to_first(parts[:, None])[:, 0]
            self.remove_all_but(np.zeros(num_parts, np.bool_))  # else the assignment would say that they are new
            with exchange.together("keeping the assignment"):
                if exchange.rank == 0:
                    with ShardWriter(self.kept, self.graph_name, 0, word, durable=True) as file:
                        file.add("parts", whole)
            del whole
        loads = exchange.total(loads_of(weights, parts, num_parts))
        self.progress(stage, steps, steps)
        return parts, measured_balance(names, loads)

    def complete_parts(self, content: str) -> Mask:
        """Return bool[parts]: the files of the part stand with this content, and their rows have their checksums."""
        num_parts = self.task.num_parts
        if not self.resume or not self.took:
            return np.zeros(num_parts, np.bool_)

        def is_complete(part: int) -> bool:
            self.progress("verify parts", part, num_parts)
            paths = [self.out / name for name in PartConfig.files_of(part).values()]
            try:
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

    def config_of(self, writer: PartWriter, identity: str, content: str, balance: Mapping[str, float]) -> PartConfig:
        source, cut = self.source, writer.cut
        fraction = round(cut / max(sum(source.edge_counts), 1), 4)
        report = {"balance": balance, "edges_cut": cut, "edge_cut_fraction": fraction}
        edges = np.pad(np.cumsum(writer.counts, axis=0), ((1, 0), (0, 0))).T
        book = RangeBook(source.schema, writer.numbering.offsets, edges)
        return PartConfig(
            self.graph_name, self.method, book, *feature_infos(source),
            report, self.out, identity, content, source.shared, tuple(source.shared_features),
        )  # fmt: skip

    def write_parts(self, writer: PartWriter, done: Mask) -> None:
        """Write the incomplete parts."""
        missing = [part for part in writer.parts if not done[part]]
        with self.exchange.together("writing the parts"):
            for number, part in enumerate(missing):
                self.progress("write parts", number, len(missing))
                writer.write(part)
            self.progress("write parts", len(missing), len(missing))
        writer.close()


def _bytes_on_disk(source: GraphSource, infos: tuple[Features, Features], num_parts: int) -> int:
    """Return the bytes of the shards and the assignment, without HDF5's own, which are few."""
    of_nodes, of_edges = ([np.array([0, n]) for n in counts] for counts in (source.num_nodes, source.edge_counts))
    whole = PartConfig(
        "", "", RangeBook(source.schema, of_nodes, of_edges), *infos,
        shared=source.shared, shared_features=tuple(source.shared_features),
    )  # fmt: skip
    return bytes_of_part(whole, 0) + 4 * sum(source.num_nodes) + 8 * (num_parts - 1) * len(source.own)


def _sampled(array: RowArray) -> bytes:
    """Return a few rows of an array, from the first to the last at equal distances."""
    count = min(len(array), _SAMPLES)
    rows = np.arange(count) * (len(array) - 1) // max(count - 1, 1)
    sample = b"".join(np.ascontiguousarray(array[row : row + 1]).tobytes() for row in rows.tolist())
    release(array)
    return sample


def _word_of(*known: object) -> str:
    """Return 32 hexadecimal digits, a hash of plain values."""
    return blake2b(repr(known).encode(errors="surrogatepass"), digest_size=16).hexdigest()
