"""``python -m mpigraph info``: describe a partitioned graph and the load of its parts; ``verify``: check its files."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpigraph.arrays import I64
from mpigraph.cli.grammar import Info, Verify
from mpigraph.cli.main import fail, printable, show, table
from mpigraph.cli.ranks import progress_of, read_config, working_ranks
from mpigraph.collective import collective
from mpigraph.memory import in_units
from mpigraph.metadata.book import RangeBook
from mpigraph.partition.exchange import Exchange
from mpigraph.storage.contents import PartFiles, audit_part, remote_sources
from mpigraph.storage.part_config import FeatureInfo, PartConfig
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
        content = _collect(exchange, config)
        if exchange.rank == 0:
            show(content, "" if options.json else _as_text(content))
    return 0


@collective("ranks")
def _collect(exchange: Exchange, config: PartConfig) -> dict[str, Any]:
    memory = host_memory(config, config.book).tolist()
    with PartFiles(config) as files, progress_of(exchange) as told:

        def read(part: int) -> dict[str, Any]:
            told("read parts", part, config.num_parts)
            return _part(files, part) | {"host_memory": memory[part]}

        all_parts = exchange.map(f"reading the parts of {config.path}", config.num_parts, read)
        told("read parts", config.num_parts, config.num_parts)
    quality = _quality(config, sum(part["cut_edges"] for part in all_parts))
    return _graph(config) | quality | {"parts": all_parts, "memory": _memory(config)}


def _part(files: PartFiles, part: int) -> dict[str, Any]:
    config = files.config
    book = config.book
    schema = config.schema
    files.check(part)
    halo = {}
    cut_edges = 0
    for t, ntype in enumerate(schema.ntypes):
        halo[ntype], edges = remote_sources(files, part, t)
        cut_edges += edges
    return {
        "part": part,
        "nodes": {ntype: len(range(*book.node_range(part, t))) for t, ntype in enumerate(schema.ntypes)},
        "edges": dict(zip(schema.relation_keys, np.diff(book.edge_table)[:, part].tolist(), strict=True)),
        "cut_edges": cut_edges,
        "halo": halo,
        "bytes_on_disk": _bytes_on_disk(config, part),
    }


def _graph(config: PartConfig) -> dict[str, Any]:
    book = config.book
    schema = config.schema
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
    }


def _quality(config: PartConfig, cut_edges: int) -> dict[str, Any]:
    book = config.book
    schema = config.schema
    num_edges = int(book.edge_table[:, -1].sum())
    balance = {}
    for t, ntype in enumerate(schema.ntypes):
        balance[f"nodes {ntype}" if len(schema.ntypes) > 1 else "nodes"] = _balance(np.diff(book.node_offsets[t]))
    balance["edges"] = _balance(np.diff(book.edge_table).sum(axis=0))
    balance = config.report.get("balance", {}) | balance  # of classes of nodes, which the parts do not tell
    fraction = round(cut_edges / max(num_edges, 1), 4)
    return {"edges_cut": cut_edges, "edge_cut_fraction": fraction, "balance": balance}


def _balance(loads: I64) -> float:
    return round(float(np.max(loads) * loads.size / max(int(np.sum(loads)), 1)), 4)


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
        f"{content['path']}: {content['num_parts']} parts by {content['part_method']}",
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
        f"{printable(name)} {info['dtype']}{info['shape'] or ''}{' as ' + info['stored'] if 'stored' in info else ''}"
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
        return _verify(exchange, options)


@collective("ranks")
def _verify(exchange: Exchange, options: Verify) -> int:
    config = read_config(exchange, options.part_config)
    bad: list[str] = []
    sums = np.zeros(len(config.schema.relations), np.uint64)
    with exchange.together(f"verifying {config.path}"):
        own_parts = range(exchange.rank, config.num_parts, exchange.size)
        total = sum(_bytes_on_disk(config, part) for part in own_parts)
        done = 0
        with PartFiles(config) as files, progress_of(exchange) as told:

            def advance(nbytes: int) -> None:
                nonlocal done
                done += nbytes
                told("verify (bytes)", min(done, total - 1), total)  # files are longer than their datasets

            advance(0)
            for part in own_parts:
                audit = audit_part(files, part, advance)
                bad += audit.bad
                sums += audit.sums
            told("verify (bytes)", total, total)
    own = [line.encode(errors="backslashreplace").decode() for line in bad]
    results = exchange.gather_json([own, sums.tolist(), total])
    lines = [line for bad, _, _ in results for line in bad]
    sums = np.array([rank_sums for _, rank_sums, _ in results], np.uint64).sum(axis=0)
    total = sum(rank_total for *_, rank_total in results)
    if not lines:  # else the sums lack unreadable datasets
        wrong = map(config.schema.relation_key, np.flatnonzero(sums).tolist())
        lines = [f"{config.path}: the out-degrees of {key} in its parts are not those of their edges" for key in wrong]
    if exchange.rank == 0:
        for line in lines:
            fail("verify", line)
        number = sum(map(len, config.files))
        text = f"{config.path}: {number} files, {in_units(total)}, all checksums right"
        if options.json or not lines:
            show({"files": number, "bytes": total, "bad": lines}, "" if options.json else text)
    return 2 if lines else 0


def _bytes_on_disk(config: PartConfig, part: int) -> int:
    """Return the size of a part's files that exist."""
    paths = [config.directory / path for path in config.files[part].values()]
    return sum(path.stat().st_size for path in paths if path.is_file())
