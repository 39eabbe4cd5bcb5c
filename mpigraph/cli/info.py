"""``python -m mpigraph info``: describe a partitioned graph and the load of its parts; ``verify``: check its files."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mpigraph.cli.grammar import Info, Verify
from mpigraph.cli.main import fail, printable, show, table
from mpigraph.cli.ranks import progress_of, read_config, working_ranks
from mpigraph.collective import collective
from mpigraph.memory import in_units
from mpigraph.metadata.book import RangeBook
from mpigraph.partition.exchange import Exchange
from mpigraph.storage.contents import PartFiles, audit_part, remote_sources
from mpigraph.storage.part_config import FILES, FeatureInfo, PartConfig
from mpigraph.store.host_ranges import cut_offsets, host_memory, memory_by_tensor

_LISTED = 5  # names of a feature's categories


@collective("comm")
def info(options: Info, comm: Any = None) -> int:
    """Print a description of a partitioned graph, as tables or JSON; return the exit status.

    ``comm`` are the ranks that take part; by default those that a launcher started with this process.

    Raises MPIGraphError: a file is missing, damaged or of another graph; on every rank.
    """
    with working_ranks("info", comm) as exchange:
        config = read_config(exchange, options.part_config)
        parts = _of_parts(exchange, config, "read parts", _part)
        if exchange.rank == 0:
            content = _graph(config) | {"parts": parts}
            show(content, "" if options.json else _as_text(content))
    return 0


@collective("ranks")
def _of_parts(exchange: Exchange, config: PartConfig, stage: str, look: Callable[[PartFiles, int], Any]) -> list[Any]:
    """Return what ``look`` says of each part; the ranks divide the parts."""
    files, progress = PartFiles(config), progress_of(exchange)

    def of_part(part: int) -> Any:
        progress(stage, part, config.num_parts)
        return look(files, part)

    of_parts = exchange.map(f"reading the parts of {config.path}", config.num_parts, of_part)
    progress(stage, config.num_parts, config.num_parts)
    return of_parts


def _part(files: PartFiles, part: int) -> dict[str, Any]:
    config = files.config
    book = config.book
    schema = config.schema
    files.check(part)
    remote = [remote_sources(files, part, t) for t in range(len(schema.ntypes))]
    return {
        "part": part,
        "nodes": {ntype: len(range(*book.node_range(part, t))) for t, ntype in enumerate(schema.ntypes)},
        "edges": dict(zip(schema.relation_keys, np.diff(book.edge_table)[:, part].tolist(), strict=True)),
        "cut_edges": sum(edges for _, edges in remote),
        "halo": {ntype: nodes for ntype, (nodes, _) in zip(schema.ntypes, remote, strict=True)},
        "bytes_on_disk": _bytes_on_disk(config, part),
        "host_memory": int(host_memory(config, book)[part]),
    }


def _graph(config: PartConfig) -> dict[str, Any]:
    book = config.book
    schema = config.schema
    edges = np.diff(book.edge_table).sum(axis=0)
    of_edges = round(float(edges.max() * edges.size / max(edges.sum(), 1)), 4)
    return {
        "path": str(config.path),
        "graph_name": config.graph_name,
        "part_method": config.part_method,
        "identity": config.identity,
        "num_parts": config.num_parts,
        "num_nodes": {ntype: book.num_nodes(t) for t, ntype in enumerate(schema.ntypes)},
        "num_edges": dict(zip(schema.relation_keys, book.edge_table[:, -1].tolist(), strict=True)),
        "node_features": {ntype: _features(config.node_features[ntype]) for ntype in schema.ntypes},
        "edge_features": {key: _features(config.edge_features[key]) for key in schema.relation_keys},
        **config.report,
        "balance": config.report["balance"] | {"edges": of_edges},
        "memory": _memory(config),
    }


def _memory(config: PartConfig) -> dict[str, Any]:
    """Return numbers of hosts, and for topology and each feature the bytes on the largest of so many.

    Where hosts share a part their edges are taken to be as many; the job counts them.
    """
    book = config.book
    hosts = [1 << k for k in range(max((config.num_parts - 1).bit_length(), 3) + 1)]
    columns = []
    for count in hosts:
        cut = (tuple(cut_offsets(part, count) for part in parts) for parts in (book.node_offsets, book.edge_offsets))
        sizes = memory_by_tensor(config, RangeBook(config.schema, *cut))
        largest = int(np.argmax(sum(nbytes for _, nbytes in sizes)))
        columns.append([(name, int(nbytes[largest])) for name, nbytes in sizes])
    tensors = [[of[0][0], [nbytes for _, nbytes in of]] for of in zip(*columns, strict=True)]
    return {"hosts": hosts, "tensors": tensors}


def _features(infos: Mapping[str, FeatureInfo]) -> dict[str, Any]:
    return {name: info.as_json() for name, info in infos.items()}


def _as_text(content: Mapping[str, Any]) -> str:
    balance = ", ".join(f"{printable(name)} {value:.3f}" for name, value in content["balance"].items())
    lines = [
        f"{content['path']}: {content['num_parts']} part(s) by {content['part_method']}",
        f"edges cut: {content['edges_cut']} ({content['edge_cut_fraction']:.1%})",
        f"largest part / mean: {balance}",
        "",
    ]
    for kind in ("node", "edge"):
        rows = [
            [printable(name), str(count), _in_words(content[f"{kind}_features"][name])]
            for name, count in content[f"num_{kind}s"].items()
        ]
        lines += [*table([f"{kind}s of type", "count", "features"], rows, left=(0, 2)), ""]
    rows = []
    for part in content["parts"]:
        nodes, edges, halo = (sum(part[name].values()) for name in ("nodes", "edges", "halo"))
        sizes = [in_units(part[name]) for name in ("bytes_on_disk", "host_memory")]
        rows.append([*map(str, (part["part"], nodes, edges, part["cut_edges"], halo)), *sizes])
    names = ["part", "nodes", "edges", "edges cut", "halo nodes", "on disk", "memory of a host"]
    lines += [*table(names, rows), "", "memory of the largest of so many hosts:"]
    memory = content["memory"]
    rows = [[printable(name), *map(in_units, sizes)] for name, sizes in memory["tensors"]]
    rows.append(["all", *map(in_units, map(sum, zip(*(sizes for _, sizes in memory["tensors"]), strict=True)))])
    return "\n".join([*lines, *table(["hosts", *map(str, memory["hosts"])], rows, left=(0,))])


def _in_words(features: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{printable(name)} {info['dtype']}{info['shape'] or ''}"
        + (f" as {info['stored']}" if "stored" in info else "")
        + _names(info.get("categories", []))
        for name, info in features.items()
    )


def _names(categories: Sequence[str]) -> str:
    first = ", ".join(map(printable, [*categories[:_LISTED], *["..."] * (len(categories) > _LISTED)]))
    return f" ({len(categories)} names: {first})" if categories else ""


@collective("comm")
def verify(options: Verify, comm: Any = None) -> int:
    """Verify a partitioned graph; print one line, or one for each bad file. Return the exit status, the same on all
    ranks.

    ``comm`` are the ranks that take part; by default those that a launcher started with this process.

    Raises MPIGraphError: the configuration is missing or damaged, or not the same on all ranks; on every rank.
    """
    with working_ranks("verify", comm) as exchange:
        config = read_config(exchange, options.part_config)
        bad = [line for lines in _of_parts(exchange, config, "verify parts", audit_part) for line in lines]
        if exchange.rank == 0:
            for line in bad:
                fail("verify", line)
            files = config.num_parts * len(FILES)
            nbytes = sum(_bytes_on_disk(config, part) for part in range(config.num_parts))
            if options.json or not bad:
                text = f"{config.path}: {files} files, {in_units(nbytes)}, all checksums right"
                show({"files": files, "bytes": nbytes, "bad": bad}, "" if options.json else text)
    return 2 if bad else 0


def _bytes_on_disk(config: PartConfig, part: int) -> int:
    """Return the size of a part's files that exist."""
    paths = [config.part_path(part, which) for which in FILES]
    return sum(path.stat().st_size for path in paths if path.is_file())
