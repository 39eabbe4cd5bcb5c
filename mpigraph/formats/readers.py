"""Read graphs from files into a :class:`~mpigraph.partition.source.GraphSource`. numpy only, no pickle.

The inputs: an ``.npz`` or HDF5 file or a directory of ``.npy`` files, as ``python -m mpigraph generate`` writes it
(``named_arrays.py``), a text file of METIS (``metis_files.py``), the directory of an OGB node-property dataset
(``ogb.py``), of OGB-LSC's MAG240M (``lsc.py``), and of DGL's chunked format (``dgl_chunked.py``), tables in csv and
parquet files (``table_folders.py``), what other programs write in layouts of their own (``layouts/``), and graphs
that are cut into parts, by this library (``shards.py``) or by DGL (``dgl_parts.py``).
Arrays are mapped, not read, wherever the file allows it. Labels become the node feature "label" (int64), masks bool,
features "feat" (float32, or float16 where they are).
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from mpigraph.collective import collective
from mpigraph.errors import GraphDataError, StorageError
from mpigraph.formats.add_reverse import add_reverse_edges
from mpigraph.formats.dgl_chunked import METADATA, read_chunked
from mpigraph.formats.dgl_csv import DGL_CSV
from mpigraph.formats.dgl_parts import is_dgl_partition, read_dgl_partition
from mpigraph.formats.edge_lists import KONECT, MATRIX_MARKET, checked_by_comments
from mpigraph.formats.graphbolt import GRAPHBOLT
from mpigraph.formats.graphstorm import GRAPHSTORM
from mpigraph.formats.hgb import HGB
from mpigraph.formats.igb import IGB
from mpigraph.formats.layout import Layout, ReadOptions
from mpigraph.formats.lsc import is_lsc, read_lsc
from mpigraph.formats.metis_files import is_metis, read_metis
from mpigraph.formats.named_arrays import is_npy_directory, read_hdf5, read_npy_directory, read_npz
from mpigraph.formats.neo4j import NEO4J, NEPTUNE
from mpigraph.formats.node_ranks import NodeRanks, read_once
from mpigraph.formats.ogb import is_ogb, is_text_of_ogb, read_ogb
from mpigraph.formats.shards import read_partition
from mpigraph.formats.table_folders import has_tables, read_tables
from mpigraph.formats.typed_tables import TableOptions
from mpigraph.log import get_logger
from mpigraph.partition.chunks import UNREADABLE
from mpigraph.partition.exchange import ALONE, Exchange
from mpigraph.partition.source import GraphSource
from mpigraph.storage.hdf5_rows import is_hdf5

__all__ = ["LAYOUTS", "read_source"]

LAYOUTS: tuple[Layout, ...] = (
    MATRIX_MARKET, KONECT, HGB, IGB, GRAPHBOLT, DGL_CSV, GRAPHSTORM, NEO4J, NEPTUNE,
)  # fmt: skip
"""In the order in which they are tried."""


def _layout_of(path: Path) -> Layout | None:
    return next((layout for layout in LAYOUTS if layout.is_at(path)), None)


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
        path: an ``.npz`` or HDF5 file, a csv, parquet or METIS file, the ``.json`` of a partitioned graph, of this
            library or of DGL; or a directory with ``edge_src.npy``, ``metadata.json`` (DGL), ``raw/`` (OGB),
            ``processed/`` (MAG240M), or csv or parquet files.
        num_nodes: of an edge list in csv or parquet, if its ids are to be taken as they are.
        scratch: folder of temporary files, which text and DGL's parts need; None for the system's.
        dataset: name of an OGB data set, such as "ogbn-products", if the directory has another name.
        undirected: add the reverse of every edge (:func:`add_reverse_edges`).
        add_reverse: add the reverse of every relation as a relation of its own.
        nodes: csv or parquet files of nodes, where ``path`` is one of edges.
        tables: what the columns of csv and parquet files are.
        exchange: ranks that read the same graph; those of a node divide text among them, and share its temporary files.

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
    ranks = NodeRanks(None if scratch is None else Path(scratch), exchange)
    options = ReadOptions(
        num_nodes, ranks, dataset, undirected or add_reverse, tuple(map(Path, nodes)), tables or TableOptions()
    )
    source = _read_path(path, options)
    if source.left_out:
        get_logger().warning("%s: left out: %s", path, "; ".join(source.left_out))
    return add_reverse_edges(source, own_relations=add_reverse) if undirected or add_reverse else source


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Make every error name the path, and be of this library."""
    try:
        yield
    except StorageError:
        raise
    except GraphDataError as error:
        raise error if str(path) in str(error) else GraphDataError(f"{path}: {error}") from error
    except UNREADABLE as error:
        raise GraphDataError(f"{path}: cannot be read: {error}") from error


def _read_path(path: Path, options: ReadOptions) -> GraphSource:
    if path.is_file() and path.suffix == ".json" and _layout_of(path) is None:
        if not is_dgl_partition(path):
            return read_partition(path)
        return read_once(options.ranks, f"reading {path}", partial(read_dgl_partition, path, options.scratch))
    with _naming(path):
        return replace(_read(path, options), path=str(path))


def _by_one_rank(path: Path, options: ReadOptions, read: Callable[[], GraphSource]) -> GraphSource:
    """Return what ``read`` does, which one rank of each node calls."""

    def named() -> GraphSource:
        with _naming(path):
            return read()

    return read_once(options.ranks, f"reading {path}", named)


def _read(path: Path, options: ReadOptions) -> GraphSource:
    num_nodes = options.num_nodes
    if options.dataset is not None and not is_ogb(path):
        raise GraphDataError(f"the name of a data set ({options.dataset!r}) can be given only for OGB's directories")
    layout = _layout_of(path)
    if layout is not None:
        if num_nodes is not None and not layout.takes_num_nodes:
            raise GraphDataError(f"the number of nodes cannot be given for {layout.name}: its files say it")
        if options.nodes or (options.tables != TableOptions() and not layout.takes_tables):
            raise GraphDataError(f"files of nodes, or what columns are, cannot be given for {layout.name}")
        read = partial(layout.read, path, options)
        return read() if layout.by_all_ranks else _by_one_rank(path, options, read)
    source = _read_directory(path, options) if path.is_dir() else None
    if source is None and has_tables(path):
        source = read_tables(path, options.nodes, num_nodes, options.ranks, options.tables)
        return checked_by_comments(path, source, options.adds_reverse)
    if options.nodes or options.tables != TableOptions():
        raise GraphDataError("files of nodes, and what columns are, can be given only for csv and parquet files")
    if num_nodes is not None:
        raise GraphDataError("the number of nodes can be given only for edge lists in csv and parquet files")
    if source is not None:
        return source
    if path.is_dir():
        raise GraphDataError(
            f"a directory with neither edge_src.npy nor {METADATA} (DGL), raw/ (OGB), edges in processed/ (MAG240M), "
            f"csv or parquet files"
            + "".join(f", nor {layout.marks} ({layout.name})" for layout in LAYOUTS if layout.marks)
        )
    if is_metis(path):
        return _by_one_rank(path, options, partial(read_metis, path, options.scratch))
    if is_hdf5(path):
        return read_hdf5(path)
    return read_npz(path)


def _read_directory(path: Path, options: ReadOptions) -> GraphSource | None:
    """Read a directory of which the names of files tell the layout; None if they do not."""
    if is_npy_directory(path):
        return read_npy_directory(path)
    if (path / METADATA).is_file():
        return read_chunked(path, options.ranks)
    if is_ogb(path):
        read = partial(read_ogb, path, options)
        return _by_one_rank(path, options, read) if is_text_of_ogb(path) else read()
    if is_lsc(path):
        return read_lsc(path)
    return None
