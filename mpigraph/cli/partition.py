"""``generate`` writes a graph, ``partition`` cuts one into shards, ``export`` writes it in its original order again."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mpigraph.arrays import I32, Array
from mpigraph.cli.grammar import Export, Generate, Partition
from mpigraph.cli.main import chosen, note, pairs, printable, put, show
from mpigraph.cli.ranks import progress_of, working_ranks
from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError
from mpigraph.formats.layout import TableOptions
from mpigraph.formats.readers import read_assignment, read_source
from mpigraph.formats.shards import check_apart, write_npy
from mpigraph.log import muted
from mpigraph.memory import as_bytes, free_memory, held_memory, in_units
from mpigraph.partition.assign import Forecast, check_memory, check_options
from mpigraph.partition.assigning import Workload
from mpigraph.partition.exchange import Exchange
from mpigraph.partition.generate import Recipe, write_graph
from mpigraph.partition.output_folder import check_vacant, check_writable
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.shuffle import carried_bytes
from mpigraph.partition.source import GraphSource
from mpigraph.partition.spill import Scratch
from mpigraph.storage.files import check_space
from mpigraph.storage.narrow import FeatDtype, check_feat_dtype
from mpigraph.storage.part_config import PartConfig

_METHOD = "metis"
_LISTED = 20  # things left out that a line names: thousands of tables may lack a column
_ENDINGS = re.compile(r"\.(npz|json|h5|hdf5|pq|parquet|(csv|tsv|txt)(\.(gz|bz2))?)$", re.IGNORECASE)


def generate(options: Generate) -> int:
    """Write a generated graph; return the exit status."""
    with working_ranks("generate") as exchange:
        with exchange.together("checking the options"):
            recipe = chosen(Recipe, vars(options))
        with exchange.together("generating a graph"):
            if exchange.rank == 0:
                path = write_graph(recipe, options.out, progress_of(exchange), options.overwrite)
                edges = 2 * recipe.num_pairs
                put(f"{path}: {recipe.num_nodes} nodes, {edges} directed edges, {recipe.num_classes} classes")
    return 0


def export(options: Export) -> int:
    """Write a partitioned graph in its original order; return the exit status."""
    with working_ranks("export") as exchange:
        with exchange.together(f"exporting {options.part_config}"):
            check_writable(options.out)
            if exchange.rank == 0:
                progress = progress_of(exchange)
                put(write_npy(options.part_config, options.out, None, progress, options.overwrite))
    return 0


def partition(options: Partition) -> int:
    """Partition a graph; return the exit status."""
    name = options.name or _ENDINGS.sub("", Path(options.input).resolve().name)
    with working_ranks("partition") as exchange:
        with exchange.together(f"reading {options.input}"):
            if options.method is not None and options.assignment is not None:
                raise InvalidArgumentError("give --method or --assignment, not both")
            if options.undirected and options.add_reverse:
                raise InvalidArgumentError("give --undirected or --add-reverse, not both")
            parts = 1 if options.parts is None else options.parts
            method = options.method or _METHOD
            check_options(name, parts, method, seed=options.seed)  # reading may take minutes
            memory = None if options.memory is None else as_bytes(options.memory)
            feat_dtype = _feat_dtype(options.feat_dtype) if options.feat_dtype else None
            nearest = check_writable(options.out)
            scratch = options.scratch
            if scratch is not None and not (os.path.isdir(scratch) and os.access(scratch, os.W_OK | os.X_OK)):
                raise InvalidArgumentError(f"--scratch {scratch}: no directory that can be written to")
            check_apart(options.input, options.out)
            if not options.overwrite:
                check_vacant(Path(options.out), name, None)
            with muted(exchange.rank > 0):
                source = _read(options, scratch or nearest, exchange)
            classes = _training_nodes(source) if options.balance_train else None
            assignment, num_parts = _parts(source, options)
        left_out = dict.fromkeys(thing for of_rank in exchange.gather_json(source.left_out) for thing in of_rank)
        method = "given" if assignment is not None else method
        folder = options.scratch or options.out
        sizes = sum(source.num_nodes), sum(source.edge_counts)
        with exchange.together("looking at the features"):
            work = Workload(*sizes, num_parts, method, carried=carried_bytes(source))
        foreseen = _check_memory(work, memory, folder, exchange)
        if exchange.rank == 0:
            _print_forecast(source, work, foreseen, exchange.size)
        result = partition_source(
            source,
            name,
            num_parts,
            options.out,
            method,
            balance_classes=classes,
            balance_edges=options.balance_edges,
            seed=options.seed,
            assignment=assignment,
            progress=progress_of(exchange),
            exchange=exchange,
            scratch=Scratch(folder, mapping=foreseen.mapping),
            resume=options.resume,
            feat_dtype=feat_dtype,
            overwrite=options.overwrite,
        )
        if exchange.rank == 0:
            _show_result(result, method, [*left_out], options)
    return 0


def _read(options: Partition, scratch: str | Path, exchange: Exchange) -> GraphSource:
    counts = [text for text in options.nodes if text.isdecimal()]
    files = [text for text in options.nodes if not text.isdecimal()]
    if len(counts) > 1 or (counts and files):
        raise InvalidArgumentError(f"--nodes is one number, or files (got {' and '.join(options.nodes)})")
    columns = pairs("--columns", "NAME=COLUMN", options.columns)
    values = {
        "types": pairs("--types", "COLUMN=DTYPE", options.types),
        "columns": {name: tuple(text.split(",")) for name, text in columns.items()},
        "categories": tuple(options.categories),
        "fill": pairs("--fill", "COLUMN=NUMBER", options.fill),
    }
    return read_source(
        options.input,
        int(counts[0]) if counts else None,
        scratch,
        undirected=options.undirected,
        add_reverse=options.add_reverse,
        nodes=files,
        tables=chosen(TableOptions, vars(options) | values),
        assignment=options.assignment,
        exchange=exchange,
    )


def _parts(source: GraphSource, options: Partition) -> tuple[I32 | None, int]:
    """Return the part of each node, if the user or the input has chosen it, and the number of parts."""
    if options.assignment is not None:
        assignment = read_assignment(options.assignment, source.schema, source.num_nodes, options.parts)
        return assignment, options.parts or 1 + int(assignment.max(initial=0))
    if source.parts is None:
        if options.parts is None:
            raise InvalidArgumentError(f"--parts, the number of parts, is needed: {options.input} has none yet")
        return None, options.parts
    keeps = options.parts is None and options.method is None
    return source.parts.of_nodes if keeps else None, options.parts or source.parts.number


def _show_result(result: PartConfig, method: str, left_out: list[str], options: Partition) -> None:
    report, parts = result.report, result.num_parts
    lines = [f"{result.path}: {parts} part(s) by {method}"]
    lines += [f"edges cut: {report['edges_cut']} ({report['edge_cut_fraction']:.1%})"]
    lines += [f"largest part / mean, {printable(name)}: {value:.3f}" for name, value in report["balance"].items()]
    if left_out:
        more = [f"and {len(left_out) - _LISTED} more"] if len(left_out) > _LISTED else []
        lines += [f"left out of {options.input}: {'; '.join(left_out[:_LISTED] + more)}"]
    content = {"path": str(result.path), "num_parts": parts, "part_method": method, **report}
    show(content | {"left_out": left_out}, "" if options.json else "\n".join(lines))


def _feat_dtype(texts: Sequence[str]) -> FeatDtype:
    """Return the dtypes of --feat-dtype, given once without a name, or several times with names."""
    if len(texts) == 1 and "=" not in texts[0]:
        return check_feat_dtype(texts[0])
    return check_feat_dtype(pairs("--feat-dtype", "DTYPE, or NAME=DTYPE", texts))


def _training_nodes(source: GraphSource) -> dict[str, Array]:
    with_masks = {ntype: feats for ntype, feats in source.node_feats.items() if "train_mask" in feats}
    masks = {ntype: np.asarray(feats["train_mask"].values[:]) for ntype, feats in with_masks.items()}
    if not masks:
        raise InvalidArgumentError("--balance-train needs a train_mask in the input (it has none)")
    return masks


@collective("ranks")
def _check_memory(work: Workload, memory: int | None, folder: str, exchange: Exchange) -> Forecast:
    """Return the forecast, or raise an error if memory or disk do not suffice."""
    node, free = os.uname().nodename, free_memory()
    told = exchange.gather_json([node, 2**62 if free is None else free, held_memory()])  # so that all decide alike
    ranks_of = Counter(name for name, *_ in told)  # ranks of a node share its memory
    neighbours = ranks_of[node]
    memory = min(held + free // ranks_of[name] for name, free, held in told) if memory is None else memory
    held = max(held for *_, held in told)
    with exchange.together("looking at the memory"):
        foreseen = check_memory(work._replace(held=held), exchange.size, memory)
        check_space(folder, neighbours * foreseen.scratch, f"temporary files of {neighbours} rank(s)")
    return foreseen


def _print_forecast(source: GraphSource, work: Workload, foreseen: Forecast, ranks: int) -> None:
    schema = source.schema
    types = "" if schema.is_homogeneous else f" of {len(schema.ntypes)} types in {len(schema.relations)} relations"
    note(f"{work.num_nodes} nodes, {work.num_edges} directed edges{types}")
    of = "" if ranks == 1 else f" on each of {ranks} ranks"
    note(f"memory forecast: {in_units(foreseen.memory)}{of}")
    why = "; edges are mapped from there, since memory does not hold them" if foreseen.mapping else ""
    note(f"temporary files: at most {in_units(foreseen.scratch)}{of}{why}")
