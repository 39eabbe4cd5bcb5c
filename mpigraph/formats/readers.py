"""Read graphs from files into a :class:`~mpigraph.partition.source.GraphSource`. No pickle is opened.

``LAYOUTS`` names every input and its module. Arrays are mapped, not read, wherever the file allows it.
Labels become the node feature "label" (int64), masks bool, features "feat" (float32, or float16 where they are).

Parts of nodes that other programs have chosen are read from their files, too. One file is of all nodes, types one after
the other; a folder has one file for each node type, ``<type>.txt`` or ``<type>.npy``, as DGL's ``random_partition.py``
and ``parmetis_postprocess.py`` write it. A file holds

- an array of integers (``.npy``), one for each node;
- a line for each node, with its part: METIS and ParMETIS (``graph.part.4``), DGL's ``<type>.txt``.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from mpigraph.arrays import I32
from mpigraph.collective import collective
from mpigraph.errors import GraphDataError
from mpigraph.formats.dgl_chunked import CHUNKED
from mpigraph.formats.dgl_parts import is_dgl_partition, read_dgl_partition
from mpigraph.formats.graphbolt import GRAPHBOLT
from mpigraph.formats.input_files import checked_parts, is_npy, mapped_npy, reading
from mpigraph.formats.layout import Layout, ReadOptions, TableOptions, add_reverse_edges
from mpigraph.formats.named_arrays import HDF5, NPY_DIRECTORY, NPZ
from mpigraph.formats.ogb import OGB
from mpigraph.formats.processed_arrays import IGB, MAG240M
from mpigraph.formats.reading_ranks import ReadingRanks
from mpigraph.formats.shards import read_partition
from mpigraph.formats.typed_tables import TABLES
from mpigraph.log import get_logger
from mpigraph.metadata.schema import Schema
from mpigraph.partition.exchange import ALONE, Exchange
from mpigraph.partition.row_arrays import RowArray
from mpigraph.partition.source import GraphSource


def _read_pyg(path: Path, options: ReadOptions) -> GraphSource:
    from mpigraph.formats.pyg_parts import read_pyg_partition  # torch takes seconds to load

    return read_pyg_partition(path)


_OF_PYG = "META.json"
_PYG_PARTS = Layout("PyG's parts", _OF_PYG, lambda path: (path / _OF_PYG).is_file(), _read_pyg)
LAYOUTS = (IGB, GRAPHBOLT, _PYG_PARTS, NPY_DIRECTORY, CHUNKED, OGB, MAG240M, TABLES, HDF5, NPZ)
"""In the order in which they are tried."""


@collective("ranks", "inside a block of ``exchange.together``")
def read_source(
    path: str | os.PathLike[str],
    num_nodes: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    *,
    undirected: bool = False,
    add_reverse: bool = False,
    nodes: Sequence[str | os.PathLike[str]] = (),
    tables: TableOptions | None = None,
    assignment: str | os.PathLike[str] | None = None,
    exchange: Exchange = ALONE,
) -> GraphSource:
    """Read a graph. A warning names each thing in the input that is not part of it (``left_out`` of the result).

    Args:
        path: an ``.npz`` or HDF5 file, a csv or parquet file, the ``.json`` of a partitioned graph, of this
            library or of DGL; or a directory with ``edge_src.npy``, ``metadata.json`` (DGL), ``META.json`` (PyG),
            ``raw/`` (OGB), ``processed/`` (MAG240M), or csv or parquet files.
        num_nodes: of an edge list in csv or parquet, if its ids are to be taken as they are.
        scratch: folder of temporary files, which text (in parquet, too) and DGL's parts need; None for the system's.
        undirected: add the reverse of every edge (:func:`add_reverse_edges`).
        add_reverse: add the reverse of every relation as a relation of its own.
        nodes: csv or parquet files of nodes, where ``path`` is one of edges.
        tables: what the columns of csv and parquet files are.
        assignment: what the caller gives to :func:`read_assignment`; in the graph's folder it is not left out.
        exchange: ranks that read the same graph; they divide files of text among them, so several files are
            read faster than one; those of a node share what was read.

    Raises:
        GraphDataError: there is nothing that can be read, or an option is not for such an input; the message names
            the path.
        PartitionError: the same for a partitioned graph.
        ShardFormatError: a shard of a partitioned graph is missing or damaged.
        StorageError: a temporary file cannot be written.
    """
    path = Path(path)
    if not path.is_file() and not path.is_dir():
        raise GraphDataError(f"{path}: no such file or directory")
    ranks = ReadingRanks(None if scratch is None else Path(scratch), exchange)
    options = ReadOptions(
        num_nodes, ranks, undirected or add_reverse, tuple(map(Path, nodes)), tables or TableOptions()
    )
    source = _read_path(path, options)
    if assignment is not None:
        name = os.path.relpath(os.path.realpath(assignment), path.resolve())
        unread = tuple(thing for thing in source.left_out if thing != name and not thing.startswith(f"{name}/ ("))
        source = replace(source, left_out=unread)
    vars(source)["ranks"] = ranks  # whose files lie as long as the graph
    if source.left_out:
        get_logger().warning("%s: left out: %s", path, "; ".join(source.left_out))
    return add_reverse_edges(source, own_relations=add_reverse) if undirected or add_reverse else source


def _read_path(path: Path, options: ReadOptions) -> GraphSource:
    if path.is_file() and path.suffix == ".json":
        if not is_dgl_partition(path):
            return read_partition(path)
        return read_dgl_partition(path, options.ranks)
    layout = next((layout for layout in LAYOUTS if layout.is_at(path)), None)
    with reading(path):
        if layout is None:
            known = (f"{layout.marks} ({layout.name})" for layout in LAYOUTS if layout.marks)
            raise GraphDataError(f"a directory with neither {' nor '.join(known)}")
        if layout is not TABLES and (options.num_nodes, options.nodes, options.tables) != (None, (), TableOptions()):
            words = f"the number of nodes cannot be given for {layout.name}, nor files of nodes or what columns are"
            raise GraphDataError(f"{words}: only for csv and parquet files")
        return replace(layout.read(path, options), path=str(path))


_ENDINGS = (".txt", ".npy")


def read_assignment(
    path: str | os.PathLike[str], schema: Schema, num_nodes: tuple[int, ...], num_parts: int | None = None
) -> I32:
    """Read the part of every node.

    Args:
        path: a file, or a folder with a file for each node type; other files in it are not looked at.
        schema: the types.
        num_nodes: number of nodes of each type.
        num_parts: how many parts there are; None: whatever the files have.

    Returns:
        int32[all nodes], types one after the other.

    Raises:
        GraphDataError: a file is missing, is no such file, has not one part for each node, or has one that does not
            exist; names the file and the row.
    """
    path = Path(path)
    if not path.is_dir():
        return checked_parts(path, _parts_in(path), sum(num_nodes), num_parts)
    parts = [np.empty(0, np.int32)]
    for ntype, count in zip(schema.ntypes, num_nodes, strict=True):
        file = next((file for ending in _ENDINGS if os.path.lexists(file := path / f"{ntype}{ending}")), None)
        if file is not None:
            parts.append(checked_parts(file, _parts_in(file), count, num_parts))
        elif count:
            wanted = f"{ntype}.txt or {ntype}.npy"
            raise GraphDataError(f"{path} has no parts of the {count} nodes of type {ntype!r}: {wanted}")
    return np.concatenate(parts)


def _parts_in(path: Path) -> RowArray:
    with reading(path):
        if is_npy(path):
            return mapped_npy(path)
        return np.loadtxt(path, np.int64, comments=None, ndmin=1) if path.stat().st_size else np.zeros(0, np.int64)
