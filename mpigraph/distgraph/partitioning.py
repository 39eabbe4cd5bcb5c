"""Partition a graph in memory, and read parts back: DGL's functions over :mod:`mpigraph.partition`.

One process partitions, or with ``comm`` several ranks together. Nodes and edges get new ids, type-wise and global, so
that each part owns one range of each type; an edge belongs to the part of its destination. ``return_mapping`` gives the
original ids.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.convert import as_graph
from mpigraph.distgraph.dtypes import GivenDtype, convert, dtype_name, feat_dtype_names, to_storage, to_torch
from mpigraph.distgraph.partition_book import RangePartitionBook
from mpigraph.errors import InvalidArgumentError, PartitionError, check_integer
from mpigraph.formats.shards import read_partition
from mpigraph.graphs.face import renumbered
from mpigraph.graphs.fields import EID, ETYPE, NID, NTYPE, NodeIds, as_tensor, by_ntype
from mpigraph.graphs.hetero import HeteroGraph
from mpigraph.graphs.transforms import to_homogeneous
from mpigraph.metadata.schema import Relation, relation_key
from mpigraph.mpi.messages import Comm
from mpigraph.partition.assign import check_options
from mpigraph.partition.exchange import ALONE
from mpigraph.partition.over_mpi import MPIExchange
from mpigraph.partition.pipeline import partition_source
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage.contents import PartFiles, StoredRows, read_rows
from mpigraph.storage.format import edge_feature_name, node_feature_name, storage_dtype
from mpigraph.storage.narrow import widened
from mpigraph.storage.part_config import Features, PartConfig

Tensors = dict[str, torch.Tensor]
Path = str | os.PathLike[str]

_RESERVED = {NID, EID, NTYPE, ETYPE}


@collective("comm", "if there is one")
def partition_graph(
    g: object,
    graph_name: str,
    num_parts: int,
    out_path: Path,
    num_hops: int = 1,
    part_method: str = "metis",
    balance_ntypes: NodeIds | None = None,
    balance_edges: bool = False,
    return_mapping: bool = False,
    num_trainers_per_machine: int = 1,
    objtype: str = "cut",
    graph_formats: str | Sequence[str] | None = None,
    use_graphbolt: bool = False,
    seed: int = 0,
    reshuffle: bool = True,
    comm: Comm | None = None,
    resume: bool = False,
    feat_dtype: GivenDtype = None,
    assignment: NodeIds | None = None,
    store_eids: bool = True,
    store_inner_node: bool = False,
    store_inner_edge: bool = False,
    n_jobs: int = 1,
    overwrite: bool = False,
) -> Any:  # None or a pair, as return_mapping says: no script should have to tell which
    """Partition a graph and write the parts to ``out_path``.

    Features go along; fields that DGL reserves for ids and types are left out. The graph is not changed.

    Args:
        g: a graph of this library, or anything that :func:`mpigraph.convert.as_graph` understands.
        graph_name: name of the configuration file ``<out_path>/<graph_name>.json``.
        num_parts: number of parts; may exceed the number of nodes.
        out_path: directory, created if missing.
        part_method: "metis", "multilevel" (which takes less memory) or "random".
        balance_ntypes: int[nodes], or node type -> int[nodes]: every number is spread evenly over the parts. Nodes with
            a number below 0, such as those without a label, belong to no class. All nodes of their type, and of
            each type that is not named, are spread evenly, too.
        balance_edges: spread the edges evenly too.
        return_mapping: return the original ids.
        objtype: what METIS minimises, "cut" or "vol"; "multilevel" knows only "cut".
        seed: equal seeds give equal parts.
        reshuffle: only True: nodes and edges always get new ids.
        comm: ranks that do it together, each with the same graph; the files are the same for any number of ranks. By
            default this process works alone.
        resume: after a run of the same call that was killed: verify the parts that it has completed, and write only
            the others. Nothing is taken up from a run with another graph or other arguments.
        feat_dtype: ``torch.float16`` or ``torch.bfloat16``, or the name of one: store features so, rounded to nearest
            (even); they are read in their own dtype. That is all float32 and float64 features with rows of one or more
            dimensions; or by name, feature -> dtype, also features of one number for each node or edge. Integers, bools
            and times cannot be stored so, nor edge weights to sample by.
        assignment: int[nodes], or node type -> int[nodes]: the part of each node, made elsewhere; ``part_method`` then
            has no effect.
        overwrite: write over another graph in ``out_path``. One of the same name and of as many nodes and edges is
            replaced in any case.
        num_trainers_per_machine: without effect: any number of trainers share a part.
        num_hops: without effect: owners sample, so parts hold no copies of neighbours.
        graph_formats: without effect: a part is one CSC.
        n_jobs: without effect; ``comm`` lets several ranks work.
        use_graphbolt: without effect, like the next three, which describe DGL's files for GraphBolt.
        store_eids: without effect.
        store_inner_node: without effect.
        store_inner_edge: without effect.

    Returns:
        None, or ``(orig_nids, orig_eids)``: new id -> original id, int64 tensors; dicts by node type and by
        ``(src, rel, dst)`` unless the graph is homogeneous.

    Raises:
        InvalidArgumentError: an argument is not usable, or another graph lies in ``out_path``.
        NodeTypeError: an argument by node type names one that does not exist, or is not by type.
        FieldNameError: ``feat_dtype`` names a feature that does not exist.
        GraphDataError: the graph contradicts itself, or a finite number would become infinite in 16 bits, as beyond
            65504 in float16; names feature and row.
        StorageError: the disk is full, or another run is writing to ``out_path``.

    Example:
        >>> small = mpigraph.graph((torch.tensor([0, 1]), torch.tensor([1, 2])))
        >>> trainers = mpigraph.distributed.trainers()  # without comm, one rank alone calls it
        >>> mpigraph.distributed.partition_graph(small, "small", num_parts=2, out_path="parts/small", comm=trainers)
    """
    exchange = ALONE if comm is None else MPIExchange(comm)
    with exchange.no_way_back():
        with exchange.together(f"partitioning {graph_name!r}"):
            check_options(graph_name, num_parts, part_method, objtype, seed)
            check_integer("num_hops", num_hops, 0)
            if not isinstance(out_path, str | os.PathLike):
                raise InvalidArgumentError(f"out_path must be the path of a directory (got {out_path!r})")
            if not reshuffle:
                raise InvalidArgumentError("reshuffle must be True: parts own new ids (return_mapping tells the old)")
            names = feat_dtype_names(feat_dtype)
            graph = as_graph(g)
            source = _source(graph)
            classes = _classes(graph, balance_ntypes)
            parts = _parts_of_all_nodes(graph, assignment)
        result = partition_source(
            source,
            graph_name,
            num_parts,
            out_path,
            part_method if parts is None else "given",
            balance_classes=classes,
            balance_edges=balance_edges,
            objtype=objtype,
            seed=seed,
            assignment=parts,
            exchange=exchange,
            resume=resume,
            feat_dtype=names,
            overwrite=overwrite,
        )
    return _mapping(graph, result) if return_mapping else None


def load_partition(
    part_config: Path, part_id: int, load_feats: bool = True, use_graphbolt: bool = False, homogeneous: bool = False
) -> tuple[HeteroGraph, Tensors | None, Tensors | None, RangePartitionBook, str, list[str], list[Relation]]:
    """Read one part as a graph in memory.

    The graph holds the edges of the part, that is all in-edges of the part's nodes. Its nodes are, for each type, the
    part's own in order and then the sources from other parts. ``ndata[NID]`` and ``edata[EID]``
    are type-wise global ids, ``ndata["inner_node"]`` and ``edata["inner_edge"]`` (uint8) mark the part's own nodes and
    edges, ``ndata["part_id"]`` is the owner. Unlike DGL's, a typed graph stays typed, except with ``homogeneous``.

    Args:
        part_config: the configuration file.
        part_id: number of the part.
        load_feats: read the features too.
        use_graphbolt: without effect.
        homogeneous: return a typed graph as DGL does: without types, its ids *homogeneous* ones (part after part, and
            within a part type after type; the book converts), with ``ndata[NTYPE]`` and ``edata[ETYPE]`` (int32). The
            part's own nodes still come first.

    Returns:
        ``(graph, node_feats, edge_feats, book, graph_name, ntypes, canonical etypes)``; features as in
        :func:`load_partition_feats`.

    Raises:
        PartitionError: the configuration or the part does not exist.
        InvalidArgumentError: ``part_id`` is no integer >= 0.
        ShardFormatError: a shard is damaged.
    """
    config = _config_with(part_config, part_id)
    files = PartFiles(config)
    files.check(part_id)
    graph = _part_graph(files, part_id)
    node_feats, edge_feats = load_partition_feats(part_config, part_id) if load_feats else (None, None)
    book = RangePartitionBook(config.book, part_id)
    if homogeneous and not config.schema.is_homogeneous:
        graph = _without_types(graph, book)
    ntypes, etypes = list(config.schema.ntypes), list(config.schema.relations)
    return graph, node_feats, edge_feats, book, config.graph_name, ntypes, etypes


def load_partition_feats(
    part_config: Path, part_id: int, load_nodes: bool = True, load_edges: bool = True
) -> tuple[Tensors | None, Tensors | None]:
    """Read the features of one part's own nodes and edges.

    Returns:
        ``(node_feats, edge_feats)``: ``"<ntype>/<name>"`` and ``"<src>:<rel>:<dst>/<name>"`` -> tensor; None for those
        not asked for. If names with a ``/`` in them give two features one key, the later one has the name of its
        dataset. Features stored in a narrower dtype have the one that they had before.
    """
    config = _config_with(part_config, part_id)
    files = PartFiles(config)
    files.check(part_id)
    return (
        _read_features(files, part_id, True, config.node_features) if load_nodes else None,
        _read_features(files, part_id, False, config.edge_features) if load_edges else None,
    )


def load_partition_book(
    part_config: Path, part_id: int, part_metadata: object = None
) -> tuple[RangePartitionBook, str, dict[str, int], dict[Relation, int]]:
    """Read the partition book as part ``part_id`` sees it; ``part_metadata`` is without effect.

    Arguments and errors are those of :func:`load_partition`. Returns ``(book, graph_name, node type -> id, (src, rel,
    dst) -> id)``.
    """
    config = _config_with(part_config, part_id)
    ntypes = {name: i for i, name in enumerate(config.schema.ntypes)}
    etypes = {relation: i for i, relation in enumerate(config.schema.relations)}
    return RangePartitionBook(config.book, part_id), config.graph_name, ntypes, etypes


def _config_with(part_config: Path, part_id: int) -> PartConfig:
    config = PartConfig.read(part_config)
    if check_integer("part_id", part_id, 0) >= config.num_parts:
        raise PartitionError(f"part {part_id} does not exist: {config.path} has {config.num_parts} parts")
    return config


def _source(graph: HeteroGraph) -> GraphSource:
    schema = graph.schema
    edges = []
    for relation in schema.relations:
        src, dst = graph.edges(form="uv", order="eid", etype=relation)
        edges.append((src.cpu().numpy(), dst.cpu().numpy()))
    nodes = {ntype: _features(graph.nodes[ntype].data) for ntype in schema.ntypes}
    feats = {relation_key(relation): _features(graph.edges[relation].data) for relation in schema.relations}
    return GraphSource(schema, tuple(graph.num_nodes(t) for t in schema.ntypes), tuple(edges), nodes, feats)


def _features(frame: Mapping[str, torch.Tensor]) -> dict[str, Feature]:
    features = {}
    for name, values in frame.items():
        if name not in _RESERVED:
            dtype = dtype_name(values.dtype)
            features[name] = Feature(to_storage(values.detach().cpu().contiguous(), dtype), dtype)
    return features


def _classes(graph: HeteroGraph, balance_ntypes: NodeIds | None) -> dict[str, Array] | None:
    if balance_ntypes is None:
        return None
    classes: Mapping[str, Any] = by_ntype(graph.schema, balance_ntypes, "balance_ntypes")
    return {t: convert(values, torch.int64, "numbers in balance_ntypes").numpy() for t, values in classes.items()}


def _parts_of_all_nodes(graph: HeteroGraph, assignment: NodeIds | None) -> I64 | None:
    """Return int64[all nodes], types one after the other."""
    if assignment is None:
        return None
    by_type: Mapping[str, Any] = by_ntype(graph.schema, assignment, "assignment")
    rows = []
    for ntype in graph.ntypes:
        parts = as_tensor(by_type.get(ntype, torch.zeros(0, dtype=torch.int64)), "assignment")
        if parts.shape != (graph.num_nodes(ntype),) or parts.is_floating_point() or parts.is_complex():
            raise InvalidArgumentError(
                f"assignment must have one part for each of {graph.num_nodes(ntype)} nodes of type {ntype!r} "
                f"(got {parts.dtype}{list(parts.shape)})"
            )
        rows.append(convert(parts, torch.int64, "assignment").numpy())
    return np.concatenate(rows)


def _mapping(graph: HeteroGraph, result: PartConfig) -> tuple[Any, Any]:
    source = read_partition(result.path)
    nids, eids = (
        [torch.from_numpy(ids[:]) for ids in of_types or ()] for of_types in (source.node_ids, source.edge_ids)
    )
    if graph.is_homogeneous:
        return nids[0], eids[0]
    schema = graph.schema
    return dict(zip(schema.ntypes, nids, strict=True)), dict(zip(schema.relations, eids, strict=True))


def _read_features(files: PartFiles, part_id: int, is_node: bool, features: Features) -> Tensors:
    tensors: Tensors = {}
    schema = files.config.schema
    number_of = {owner: number for number, owner in enumerate(schema.ntypes if is_node else schema.relation_keys)}
    for owner, table in sorted(features.items()):
        for name, info in sorted(table.items()):
            stored = StoredRows.of_feature(files.config, is_node, [number_of[owner]], name)
            begin, end = stored.offsets[0, part_id : part_id + 2].tolist()
            rows = np.empty((end - begin, *info.shape), storage_dtype(info.stored))
            read_rows(files, stored, [(begin, end)], rows)
            key = f"{owner}/{name}"
            dataset = node_feature_name(owner, name) if is_node else edge_feature_name(owner, name)
            tensors[dataset if key in tensors else key] = to_torch(widened(rows, info.stored, info.dtype), info.dtype)
    return tensors


def _part_graph(files: PartFiles, part_id: int) -> HeteroGraph:
    """Make the graph of a part with local node ids: own nodes first, then foreign sources."""
    book, schema = files.config.book, files.config.schema
    ends = {}
    for number, relation in enumerate(schema.relations):
        begin, end = book.node_range(part_id, schema.ntype_id(relation[2]))
        indptr, sources = files.read_in_edges(number, part_id)
        ends[relation, 0] = torch.from_numpy(sources.astype(np.int64))
        ends[relation, 1] = torch.from_numpy(np.repeat(np.arange(begin, end), np.diff(indptr)))
    own = {ntype: torch.arange(*book.node_range(part_id, i)) for i, ntype in enumerate(schema.ntypes)}
    nodes, places = renumbered(list(own), ends, own, torch.device("cpu"))
    edges = {relation: (places[relation, 0], places[relation, 1]) for relation in schema.relations}
    graph = HeteroGraph(schema, edges, {ntype: len(ids) for ntype, ids in nodes.items()})
    for i, (ntype, ids) in enumerate(nodes.items()):
        owner = torch.from_numpy(book.node_owner(ids.numpy(), i).astype(np.int64))
        inner = (owner == part_id).to(torch.uint8)
        graph.nodes[ntype].data.update({NID: ids, "inner_node": inner, "part_id": owner})
    for i, relation in enumerate(schema.relations):
        eids = torch.arange(*book.edge_range(part_id, i))
        graph.edges[relation].data.update({EID: eids, "inner_edge": torch.ones(len(eids), dtype=torch.uint8)})
    return graph


def _without_types(part: HeteroGraph, book: RangePartitionBook) -> HeteroGraph:
    """Return a typed part as DGL does: own nodes first, each group by homogeneous ids, and edges by theirs."""
    graph: HeteroGraph = to_homogeneous(part, ["inner_node", "part_id"], ["inner_edge"])
    nids = torch.cat([book.map_to_homo_nid(part.nodes[t].data[NID], t) for t in part.ntypes])
    none = torch.empty(0, dtype=torch.int64)  # there may be no relation
    eids = torch.cat([none, *(book.map_to_homo_eid(part.edges[r].data[EID], r) for r in part.canonical_etypes)])
    graph.ndata.update({NID: nids, NTYPE: graph.ndata[NTYPE].int()})
    graph.edata.update({EID: eids, ETYPE: graph.edata[ETYPE].int()})
    order = torch.argsort(nids)
    order = torch.cat([order[graph.ndata["inner_node"][order] == inner] for inner in (1, 0)])
    return graph.subgraph(order, store_ids=False)
