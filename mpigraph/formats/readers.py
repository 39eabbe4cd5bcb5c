"""Read graphs from files into a :class:`~mpigraph.partition.source.GraphSource`. No pickle is opened.

``LAYOUTS`` names every input and its module. Arrays are mapped, not read, wherever the file allows it.
Labels become the node feature "label" (int64), masks bool, features "feat" (float32, or float16 where they are).
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.formats.datasets import IGB, MAG240M, OGB, OGB_TEXT
from mpigraph.formats.dgl_folders import CHUNKED, GRAPHBOLT
from mpigraph.formats.dgl_parts import is_dgl_partition, read_dgl_partition
from mpigraph.formats.input_files import reading
from mpigraph.formats.layout import Layout, ReadOptions, TableOptions, add_reverse_edges
from mpigraph.formats.named_arrays import HDF5, NPY_DIRECTORY, NPZ
from mpigraph.formats.reading_ranks import ReadingRanks, read_once
from mpigraph.formats.shards import read_partition
from mpigraph.formats.typed_tables import TABLES
from mpigraph.log import get_logger
from mpigraph.partition.exchange import ALONE, Exchange
from mpigraph.partition.source import GraphSource


def _read_pyg(path: Path, options: ReadOptions) -> GraphSource:
    from mpigraph.formats.pyg_parts import read_pyg_partition  # torch takes seconds to load

    return read_pyg_partition(path)


_OF_PYG = "META.json"
_PYG_PARTS = Layout("PyG's parts", _OF_PYG, lambda path: (path / _OF_PYG).is_file(), _read_pyg, by_all_ranks=True)
LAYOUTS = (IGB, GRAPHBOLT, _PYG_PARTS, NPY_DIRECTORY, CHUNKED, OGB_TEXT, OGB, MAG240M, TABLES, HDF5, NPZ)
"""In the order in which they are tried."""
_OPTIONS = {
    "num_nodes": "the number of nodes",
    "nodes": "files of nodes",
    "tables": "what columns are",
    "dataset": "the name of a data set",
}


@collective("ranks", "inside a block of ``exchange.together``")
def read_source(
    path: str | os.PathLike[str],
    num_nodes: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    *,
    dataset: str | None = None,
    undirected: bool = False,
    add_reverse: bool = False,
    nodes: Sequence[str | os.PathLike[str]] = (),
    tables: TableOptions | None = None,
    exchange: Exchange = ALONE,
) -> GraphSource:
    """Read a graph. A warning names each thing in the input that is not part of it (``left_out`` of the result).

    Args:
        path: an ``.npz`` or HDF5 file, a csv or parquet file, the ``.json`` of a partitioned graph, of this
            library or of DGL; or a directory with ``edge_src.npy``, ``metadata.json`` (DGL), ``META.json`` (PyG),
            ``raw/`` (OGB), ``processed/`` (MAG240M), or csv or parquet files.
        num_nodes: of an edge list in csv or parquet, if its ids are to be taken as they are.
        scratch: folder of temporary files, which text and DGL's parts need; None for the system's.
        dataset: name of an OGB data set, such as "ogbn-products", if the directory has another name.
        undirected: add the reverse of every edge (:func:`add_reverse_edges`).
        add_reverse: add the reverse of every relation as a relation of its own.
        nodes: csv or parquet files of nodes, where ``path`` is one of edges.
        tables: what the columns of csv and parquet files are.
        exchange: ranks that read the same graph; they divide text among them, and those of a node share files.

    Raises:
        GraphDataError: there is nothing that can be read, or an option is not for such an input; the message names
            the path.
        PartitionError: the same for a partitioned graph.
        ShardFormatError: a shard of a partitioned graph is missing or damaged.
        StorageError: a temporary file cannot be written.
    """
    path = Path(path)
    if not path.exists():
        raise GraphDataError(f"{path}: no such file or directory")
    if not path.is_file() and not path.is_dir():
        raise GraphDataError(f"{path}: neither a file nor a directory")
    ranks = ReadingRanks(None if scratch is None else Path(scratch), exchange)
    options = ReadOptions(
        num_nodes, ranks, dataset, undirected or add_reverse, tuple(map(Path, nodes)), tables or TableOptions()
    )
    source = _read_path(path, options)
    if source.left_out:
        get_logger().warning("%s: left out: %s", path, "; ".join(source.left_out))
    return add_reverse_edges(source, own_relations=add_reverse) if undirected or add_reverse else source


def _read_path(path: Path, options: ReadOptions) -> GraphSource:
    if path.is_file() and path.suffix == ".json":
        if not is_dgl_partition(path):
            return read_partition(path)
        return read_once(options.ranks, f"reading {path}", partial(read_dgl_partition, path, options.scratch))
    layout = next((layout for layout in LAYOUTS if layout.is_at(path)), None)
    with reading(path):
        if layout is None:
            known = (f"{layout.marks} ({layout.name})" for layout in LAYOUTS if layout.marks)
            raise GraphDataError(f"a directory with neither {' nor '.join(known)}")
        for name, words in _OPTIONS.items():
            if getattr(options, name) != getattr(ReadOptions(ranks=options.ranks), name) and name not in layout.takes:
                takers = dict.fromkeys(layout.name for layout in LAYOUTS if name in layout.takes)
                raise GraphDataError(f"{words} cannot be given for {layout.name}, only for {', '.join(takers)}")

        def read() -> GraphSource:
            with reading(path):
                return replace(layout.read(path, options), path=str(path))

        return read() if layout.by_all_ranks else read_once(options.ranks, f"reading {path}", read)
