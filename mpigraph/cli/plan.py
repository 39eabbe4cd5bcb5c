"""``info --plan``: the memory and the disk that a graph takes on each of some nodes, from its sizes alone.

Topology and features are what hosts allocate for them (:func:`.host_memory`), of the largest node. The rest is
measured: a process without minibatches and model.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from mpigraph.cli.numbers_and_sizes import bytes_of, integers
from mpigraph.cli.pipes import table
from mpigraph.errors import InvalidArgumentError, check_integer
from mpigraph.memory import in_units
from mpigraph.metadata.book import RangeBook
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Schema, parse_relation, relation_key
from mpigraph.storage.format import storage_dtype
from mpigraph.storage.part_config import FeatureInfo, Features, PartConfig
from mpigraph.store.host_ranges import cut_offsets, host_memory

PROCESS = 300 << 20
"""Bytes of a rank before its first minibatch: Python, torch, numba, MPI."""
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a plan to those of ``info``."""
    plans = parser.add_argument_group(
        "plan", "memory and disk on each of some nodes; of PART_CONFIG, or of a graph with the given sizes"
    )
    plans.add_argument("--plan", metavar="N,...", help="numbers of nodes, such as 2,4,8")
    plans.add_argument("--nodes", nargs="+", metavar="[TYPE=]COUNT", help="such as 2.4M, or paper=121751666")
    plans.add_argument("--edges", nargs="+", metavar="[SRC:REL:DST=]COUNT", help="such as 4G; each direction counts")
    form, such = "[TYPE/]NAME=[COLUMNSx]DTYPE", "such as feat=1024xfloat32 label=int64, or paper/feat=768xfloat16"
    plans.add_argument("--features", nargs="*", default=[], metavar=form, help=such)
    plans.add_argument("--trainers", type=int, default=4, metavar="N", help="on each node (4)")
    plans.add_argument("--servers", type=int, default=1, metavar="N", help="on each node (1)")
    plans.add_argument("--memory", metavar="SIZE", help="of a node, such as 256GiB: what does not fit is marked")


@dataclass(frozen=True)
class Sizes:
    """The part of a job on its largest node, in bytes."""

    num_nodes: int  # nodes of the cluster
    topology: int  # tables of edges
    columns: int  # features of one number a row, labels and masks
    features: int  # the other features
    processes: int  # ranks before their first minibatch
    files: int  # of the node's parts
    rows: int  # rows of the other features on all nodes together
    row_bytes: int  # mean bytes of such a row

    @property
    def memory(self) -> int:
        """The bytes of a node's memory that are taken before caches and minibatches."""
        return self.topology + self.columns + self.processes + self.features


def described(nodes: Sequence[str], edges: Sequence[str], features: Sequence[str]) -> PartConfig:
    """Return a graph of given sizes, in one part; the words are those of the options.

    Raises InvalidArgumentError: a word has another form, or names no type.
    """
    counts = dict(_pair(word, DEFAULT_NTYPE, "--nodes") for word in nodes)
    relations = dict(_pair(word, relation_key(DEFAULT_ETYPE), "--edges") for word in edges)
    schema = Schema(tuple(counts), tuple(parse_relation(key) for key in relations))
    infos: dict[str, dict[str, FeatureInfo]] = {name: {} for name in (*counts, *relations)}
    for word in features:
        where, equals, what = word.rpartition("=")
        owner, slash, name = where.rpartition("/")
        columns, _, dtype = what.rpartition("x")
        owner = owner if slash else next(iter(counts))
        if not equals or not name or owner not in infos or not (columns or "1").isdecimal():
            known = ", ".join(infos)
            raise InvalidArgumentError(f"--features must be [TYPE/]NAME=[COLUMNSx]DTYPE, of {known} (got {word!r})")
        storage_dtype(dtype)
        infos[owner][name] = FeatureInfo(dtype, (int(columns),) if columns else ())
    return PartConfig(
        graph_name="graph",
        part_method="",
        book=RangeBook(
            schema,
            tuple(np.array([0, count]) for count in counts.values()),
            tuple(np.array([0, count]) for count in relations.values()),
        ),
        node_features={name: infos[name] for name in counts},
        edge_features={relation_key(parse_relation(key)): infos[key] for key in relations},
        files=PartConfig.default_files(1),
    )


def _pair(word: str, default: str, option: str) -> tuple[str, int]:
    name, equals, text = word.rpartition("=")
    try:
        unit = text[-1:] if text[-1:] in _UNITS else ""
        count = round(float(text.removesuffix(unit)) * _UNITS[unit])
    except (OverflowError, ValueError):
        raise InvalidArgumentError(f"{option} must be a number such as 1.5G, or TYPE=NUMBER (got {word!r})") from None
    return name if equals else default, check_integer(option, count, 0, 1 << 60)


def plan(config: PartConfig, num_nodes: int, trainers: int, servers: int = 0) -> Sizes:
    """Return what a graph takes on the largest of ``num_nodes`` nodes with so many trainers and servers each."""
    book, schema = config.book, config.schema
    nodes = RangeBook(
        schema,
        tuple(cut_offsets(offsets, num_nodes) for offsets in book.node_offsets),
        tuple(cut_offsets(offsets, num_nodes) for offsets in book.edge_offsets),
    )
    topology, narrow, everything = (host_memory(_with(config, most), nodes) for most in (-1, 0, 64))
    largest = int(np.argmax(everything))
    features = [*config.node_features.values(), *config.edge_features.values()]
    counts = [*map(book.num_nodes, range(len(schema.ntypes))), *map(book.num_edges, range(len(schema.relations)))]
    of_rows = [
        (count, storage_dtype(info.stored).itemsize * math.prod(info.shape))
        for count, infos in zip(counts, features, strict=True)
        for info in infos.values()
        if info.shape
    ]
    rows = sum(count for count, _ in of_rows)
    sizes = [np.diff(offsets) for offsets in (*nodes.node_offsets, *nodes.edge_offsets)]
    original_ids = 8 * np.sum(sizes, axis=0)  # which only the files have
    return Sizes(
        num_nodes,
        int(topology[largest]),
        int((narrow - topology)[largest]),
        int((everything - narrow)[largest]),
        (trainers + servers) * PROCESS,
        int((everything + original_ids)[largest]),
        rows,
        sum(count * nbytes for count, nbytes in of_rows) // max(rows, 1),
    )


def _with(config: PartConfig, dimensions: int) -> PartConfig:
    """Return a graph with its features whose rows have at most so many dimensions."""

    def kept(features: Features) -> Features:
        return {
            owner: {name: info for name, info in infos.items() if len(info.shape) <= dimensions}
            for owner, infos in features.items()
        }

    return replace(config, node_features=kept(config.node_features), edge_features=kept(config.edge_features))


def run(arguments: argparse.Namespace) -> int:
    """Print a plan and return the exit status.

    Raises:
        InvalidArgumentError: an option is wrong.
        PartitionError: the configuration cannot be read.
    """
    given = bool(arguments.nodes or arguments.edges)
    if given == (arguments.part_config is not None) or bool(arguments.nodes) != bool(arguments.edges):
        raise InvalidArgumentError("--plan needs PART_CONFIG, or both --nodes and --edges")
    if given:
        config = described(arguments.nodes, arguments.edges, arguments.features)
    else:
        config = PartConfig.read(arguments.part_config)
    memory = None if arguments.memory is None else bytes_of("--memory", arguments.memory)
    counts = integers("--plan", arguments.plan, 1)
    ranks = check_integer("--trainers", arguments.trainers, 1), check_integer("--servers", arguments.servers, 0)
    plans = [plan(config, count, *ranks) for count in counts]
    if arguments.json:
        print(json.dumps([_as_json(sizes) for sizes in plans], indent=2), flush=True)
    else:
        print("\n".join(_as_text(plans, sum(ranks), memory)), flush=True)
    return 0


def _as_json(sizes: Sizes) -> dict[str, Any]:
    return asdict(sizes) | {"all_in_memory": sizes.memory}


def _as_text(plans: Sequence[Sizes], ranks: int, memory: int | None) -> list[str]:
    names = f"nodes|topology|labels|{ranks} ranks|features|all in memory|files".split("|")
    rows = []
    for sizes in plans:
        taken = (sizes.topology, sizes.columns, sizes.processes, sizes.features)
        totals = (sizes.memory, sizes.files)
        cells = [str(sizes.num_nodes), *map(in_units, (*taken, *totals))]
        if memory is not None and sizes.memory > memory:
            cells[5] += " (too much)"
        rows.append(cells)
    notes = ["files: of the node's parts"]
    title = "bytes on the largest node, before minibatches and model (labels: features of one column)"
    return [title, *table(names, rows), *notes]
