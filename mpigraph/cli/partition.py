"""``python -m mpigraph partition``: partition a graph on disk into shards."""

import argparse
import os
import re
import sys
from pathlib import Path

import numpy as np

from mpigraph.arrays import I32, Array
from mpigraph.cli.main import printable
from mpigraph.cli.ranks import progress_of, working_ranks
from mpigraph.collective import collective
from mpigraph.errors import InvalidArgumentError
from mpigraph.formats.layout import TableOptions
from mpigraph.formats.readers import read_assignment, read_source
from mpigraph.formats.shards import check_apart
from mpigraph.log import muted
from mpigraph.memory import as_bytes, free_memory, held_memory
from mpigraph.partition.assign import PART_METHODS, Forecast, check_memory
from mpigraph.partition.assigning import Workload
from mpigraph.partition.exchange import Exchange
from mpigraph.partition.options import check_options
from mpigraph.partition.output_folder import check_vacant, check_writable
from mpigraph.partition.pipeline import PartitionResult, partition_source
from mpigraph.partition.shuffle import carried_sizes
from mpigraph.partition.source import GraphSource
from mpigraph.partition.spill import Scratch
from mpigraph.storage.files import check_space
from mpigraph.storage.narrow import FeatDtype, check_feat_dtype
from mpigraph.storage.part_config import PartConfig

_INPUTS = (
    "an .npz, HDF5, .csv or .parquet file, or the .json of a partitioned graph, also of DGL; or the directory of a "
    "generated graph, of OGB, MAG240M, IGB, GraphBolt, DGL's chunked format or PyG's Partitioner, or of tables such as "
    "nodes.csv and edges.csv, or .parquet (examples/README.md; examples/inputs.md has recipes for other formats)"
)
_METHOD = "metis"
_LISTED = 20  # things left out that a line names: thousands of tables may lack a column
_ENDINGS = re.compile(r"\.(npz|json|h5|hdf5|pq|parquet|(csv|tsv|txt)(\.(gz|bz2))?)$", re.IGNORECASE)


_TEXTS = {
    "--assignment PATH": "parts made elsewhere: a .npy file or a text file with the part of each node, or a folder "
    "with a file for each node type (examples/README.md)",
    "--name NAME": "name of the graph (default: name of INPUT)",
    "--dataset NAME": "which dataset of OGB INPUT is, such as ogbn-products, if its directory has another name: this "
    "says whether reverse edges are to be added",
    "--scratch DIR": "directory of temporary files, as large as the edges and, of parquet, HDF5 and partitioned input, "
    "the features (default: --out)",
}
_FLAGS = {
    "--balance-train": "spread the training nodes evenly",
    "--balance-edges": "spread the edges evenly",
    "--resume": "after a run that was killed: verify the parts that it has completed, and write only the others; with "
    "another input or other options, and of a finished graph, all are written (without --resume the assignment of "
    "nodes is taken up, and all parts are written)",
    "--overwrite": "write over another graph in --out (default: refuse before reading)",
}
_REVERSE_FLAGS = {
    "--undirected": "add the reverse of every edge: within a type to the same relation, else as a relation rev_<name>",
    "--add-reverse": "add the reverse of every relation as a relation rev_<name>",
}
_TABLES = {
    "--nodes FILE|N": "a file of nodes beside a file of edges: ids, features, labels, masks (may be repeated, as "
    "nodes_TYPE.csv for each type); or a number: ids are 0 to N-1 (default: nodes are numbered by the ids of edges)",
    "--columns NAME=COLUMN[,COLUMN]": "feature NAME is of this column, or has these side by side (patterns such as "
    "'f*'); NAME id, src or dst: the column with the ids of nodes or of the ends of edges (may be repeated)",
    "--types COLUMN=DTYPE": "a column is of this dtype, such as float32; string: ids stay as they are written, other "
    "columns are left out (default: what all of its values are; may be repeated)",
    "--categories COLUMN": "a column of names is numbered in the order of the names (may be repeated)",
    "--fill COLUMN=NUMBER|mean": "what rows without a value get (default: NaN; may be repeated)",
}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "partition",
        help="partition a graph",
        description="Partition a graph and write the parts as HDF5 shards with a JSON configuration. "
        "Started by mpiexec or srun, all ranks do it together; the files are the same for any number of ranks.",
    )
    parser.add_argument("input", metavar="INPUT", help=_INPUTS)
    parts = "number of parts; without it and --method an INPUT that is partitioned keeps its own"
    parser.add_argument("--parts", type=int, help=parts)
    parser.add_argument("--method", metavar="|".join(PART_METHODS), help="how nodes are assigned to parts (metis)")
    parser.add_argument("-o", "--out", required=True, metavar="DIR", help="directory to write")
    feat_dtype = (
        "store features in 16 bits, as float16 or bfloat16; they are read as what they were. All float features with "
        "rows of numbers, or those that are named (may be repeated)"
    )
    parser.add_argument("--feat-dtype", action="append", metavar="[NAME=]DTYPE", help=feat_dtype)
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal parts (%(default)s)")
    memory = "what a rank may take, such as 8GiB (default: its share of the node's free memory)"
    parser.add_argument("--memory", metavar="SIZE", help=memory)
    for option, text in _TEXTS.items():
        name, metavar = option.split()
        parser.add_argument(name, metavar=metavar, help=text)
    both_ways = parser.add_mutually_exclusive_group()
    for group, flags in ((parser, _FLAGS), (both_ways, _REVERSE_FLAGS)):
        for name, text in flags.items():
            group.add_argument(name, action="store_true", help=text)
    tables = parser.add_argument_group("csv and parquet files")
    for option, text in _TABLES.items():
        name, metavar = option.split()
        tables.add_argument(name, action="append", default=[], metavar=metavar, help=text)
    headless = "text has no line of names: its columns are src, dst (of nodes id), column2 and so on"
    tables.add_argument("--no-header", action="store_true", help=headless)
    tables.add_argument("--decimal", choices=(".", ","), default=".", help="what stands in numbers before a fraction")
    of_nodes = "the column of a table of nodes that has the type of each"
    tables.add_argument("--node-type", metavar="COLUMN", help=of_nodes)
    of_edges = "the column of a table of edges that has the name of the relation of each"
    tables.add_argument("--edge-type", metavar="COLUMN", help=of_edges)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    name = arguments.name or _ENDINGS.sub("", Path(arguments.input).resolve().name)
    with working_ranks("partition") as exchange:
        with exchange.together(f"reading {arguments.input}"):
            if arguments.method is not None and arguments.assignment is not None:
                raise InvalidArgumentError("give --method or --assignment, not both")
            parts = 1 if arguments.parts is None else arguments.parts
            method = arguments.method or _METHOD
            check_options(name, parts, method, seed=arguments.seed)  # reading may take minutes
            memory = None if arguments.memory is None else _memory_of_rank(arguments.memory)
            feat_dtype = None if arguments.feat_dtype is None else _feat_dtype(arguments.feat_dtype)
            nearest = check_writable(arguments.out)
            scratch = arguments.scratch
            if scratch is not None and not (os.path.isdir(scratch) and os.access(scratch, os.W_OK | os.X_OK)):
                raise InvalidArgumentError(f"--scratch {scratch}: no directory that can be written to")
            check_apart(arguments.input, arguments.out)
            if not arguments.overwrite:
                check_vacant(Path(arguments.out), name, None)
            with muted(exchange.rank > 0):
                source = _read(arguments, scratch or nearest, exchange)
            classes = _training_nodes(source) if arguments.balance_train else None
            assignment, num_parts = _parts(source, arguments)
        left_out = dict.fromkeys(thing for of_rank in exchange.gather_json(source.left_out) for thing in of_rank)
        method = "given" if assignment is not None else method
        folder = arguments.scratch or arguments.out
        sizes = sum(source.num_nodes), sum(source.edge_counts)
        with exchange.together("looking at the features"):
            work = Workload(*sizes, num_parts, method, carried=carried_sizes(source))
        foreseen = _check_memory(work, memory, folder, exchange)
        if exchange.rank == 0:
            _print_forecast(source, work, foreseen, exchange.size)
        with progress_of(exchange) as progress:
            result = partition_source(
                source,
                name,
                num_parts,
                arguments.out,
                method,
                balance_classes=classes,
                balance_edges=arguments.balance_edges,
                seed=arguments.seed,
                assignment=assignment,
                progress=progress,
                exchange=exchange,
                scratch=Scratch(folder, mapping=foreseen.mapping),
                resume=arguments.resume,
                feat_dtype=feat_dtype,
                overwrite=arguments.overwrite,
            )
        if exchange.rank == 0:
            _print_result(result, method)
            if left_out:
                more = [f"and {len(left_out) - _LISTED} more"] if len(left_out) > _LISTED else []
                print(f"left out of {arguments.input}: {'; '.join([*left_out][:_LISTED] + more)}")
    return 0


def _read(arguments: argparse.Namespace, scratch: str | Path, exchange: Exchange) -> GraphSource:
    counts = [text for text in arguments.nodes if text.isdecimal()]
    files = [text for text in arguments.nodes if not text.isdecimal()]
    if len(counts) > 1 or (counts and files):
        raise InvalidArgumentError(f"--nodes is one number, or files (got {' and '.join(arguments.nodes)})")
    columns = _pairs("--columns", "NAME=COLUMN", arguments.columns)
    for text in arguments.columns:
        if text.count("=") > 1:
            each = re.sub(r",(?=[^,=]*=)", " --columns ", text)
            raise InvalidArgumentError(f"--columns has one NAME= each time: --columns {each} (got {text})")
    tables = TableOptions(
        _pairs("--types", "COLUMN=DTYPE", arguments.types),
        {name: tuple(text.split(",")) for name, text in columns.items()},
        tuple(arguments.categories),
        arguments.no_header,
        arguments.decimal,
        _pairs("--fill", "COLUMN=NUMBER", arguments.fill),
        arguments.node_type,
        arguments.edge_type,
    )
    return read_source(
        arguments.input,
        int(counts[0]) if counts else None,
        scratch,
        dataset=arguments.dataset,
        undirected=arguments.undirected,
        add_reverse=arguments.add_reverse,
        nodes=files,
        tables=tables,
        exchange=exchange,
    )


def _pairs(option: str, form: str, texts: list[str]) -> dict[str, str]:
    pairs = dict(text.rpartition("=")[::2] for text in texts)
    if len(pairs) < len(texts) or not all(name and value for name, value in pairs.items()):
        raise InvalidArgumentError(f"{option} must be {form}, once for each name (got {', '.join(texts)})")
    return pairs


def _parts(source: GraphSource, arguments: argparse.Namespace) -> tuple[I32 | None, int]:
    """Return the part of each node, if the user or the input has chosen it, and the number of parts."""
    if arguments.assignment is not None:
        assignment = read_assignment(arguments.assignment, source.schema, source.num_nodes, arguments.parts)
        return assignment, arguments.parts or 1 + int(assignment.max(initial=0))
    if source.parts is None:
        if arguments.parts is None:
            raise InvalidArgumentError(f"--parts, the number of parts, is needed: {arguments.input} has none yet")
        return None, arguments.parts
    keeps = arguments.parts is None and arguments.method is None
    return source.parts.of_nodes if keeps else None, arguments.parts or source.parts.number


def _print_result(result: PartitionResult, method: str) -> None:
    report = result.report
    print(f"{result.config_path}: {PartConfig.read(result.config_path).num_parts} parts by {method}")
    print(f"edges cut: {report['edges_cut']} ({report['edge_cut_fraction']:.1%})")
    for name, balance in report["balance"].items():
        print(f"largest part / mean, {printable(name)}: {balance:.3f}")


def _feat_dtype(texts: list[str]) -> FeatDtype:
    """Return the dtypes of --feat-dtype, given once without a name, or several times with names."""
    named = [text.rpartition("=") for text in texts]
    if len(named) == 1 and not named[0][1]:
        return check_feat_dtype(named[0][2])
    if not all(equals for _, equals, _ in named):
        raise InvalidArgumentError(f"--feat-dtype is for all features, or for some by name (got {' and '.join(texts)})")
    return check_feat_dtype({name: dtype for name, _, dtype in named})


def _training_nodes(source: GraphSource) -> dict[str, Array]:
    with_masks = {ntype: feats for ntype, feats in source.node_feats.items() if "train_mask" in feats}
    masks = {ntype: np.asarray(feats["train_mask"].values[:]) for ntype, feats in with_masks.items()}
    if not masks:
        raise InvalidArgumentError("--balance-train needs a train_mask in the input (it has none)")
    return masks


def _memory_of_rank(text: str) -> int:
    try:
        return as_bytes(text)
    except ValueError:
        raise InvalidArgumentError(f"--memory must be a size such as 8GiB or 500MB (got {text!r})") from None


@collective("ranks")
def _check_memory(work: Workload, memory: int | None, folder: str, exchange: Exchange) -> Forecast:
    """Return the forecast, or raise an error if memory or disk do not suffice."""
    node = os.uname().nodename
    neighbours = exchange.gather_json(node).count(node)  # that share this node's memory
    free = free_memory()
    share = 2**62 if free is None else held_memory() + free // neighbours
    told = exchange.gather_json([share, held_memory()])  # so that all ranks decide alike
    memory = min(share for share, _ in told) if memory is None else memory
    held = max(held for _, held in told)
    with exchange.together("looking at the memory"):
        foreseen = check_memory(work._replace(held=held), exchange.size, memory)
        check_space(folder, neighbours * foreseen.scratch, f"temporary files of {neighbours} rank(s)")
    return foreseen


def _print_forecast(source: GraphSource, work: Workload, foreseen: Forecast, ranks: int) -> None:
    print(f"{work.num_nodes} nodes, {work.num_edges} directed edges{_types(source)}", file=sys.stderr)
    of = "" if ranks == 1 else f" on each of {ranks} ranks"
    for stage, size in foreseen.stages.items():
        print(f"memory forecast, {stage}: {size / 2**30:.2f} GiB{of}", file=sys.stderr)
    why = "; edges are mapped from there, since memory does not hold them" if foreseen.mapping else ""
    print(f"temporary files: at most {foreseen.scratch / 2**30:.2f} GiB{of}{why}", file=sys.stderr)


def _types(source: GraphSource) -> str:
    schema = source.schema
    if schema.is_homogeneous:
        return ""
    of_types = zip(map(printable, schema.ntypes), source.num_nodes, strict=True)
    counts = ", ".join(f"{ntype} {count}" for ntype, count in of_types)
    return f" in {len(schema.relations)} relations; nodes by type: {counts}"
