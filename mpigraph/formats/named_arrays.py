"""Read graphs whose arrays have names: ``.npz`` and HDF5 files, and directories of ``.npy`` files.

==================================  ===================================================================================
without types                       with types
==================================  ===================================================================================
``edge_src``, ``edge_dst``          ``<src>__<rel>__<dst>__src`` and ``__dst``
``num_nodes``, or in ``meta``       ``<type>__num_nodes``
``label``, ``train_mask``,          ``<type>__label``, ``<type>__train_mask``, ...
``val_mask``, ``test_mask``
``feat``                            ``<type>__feat``
``node_<name>``, ``edge_<name>``    ``<type>__<name>``, ``<src>__<rel>__<dst>__<name>``
``<name>``
==================================  ===================================================================================

Every other array of numbers with a row for each node, or for each edge, becomes a feature: of nodes or edges as its
name begins, else by its length. Where there are as many edges as nodes, a name that does not tell is an error.
``left_out`` names arrays that fit neither. Arrays are mapped, or read slice by slice, except compressed ones of
``.npz``. ``meta`` (``meta.json``, an array of ``.npz``, an attribute of HDF5) is a JSON object.
"""

import json
import math
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError
from mpigraph.formats.input_files import FolderFiles, graph_of, mapped_npy, mapped_npz, once, reading
from mpigraph.formats.layout import MASKS, Layout, ReadOptions, add_reverse_edges, feature_of, relation_in
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Relation, relation_key, unescape
from mpigraph.partition.row_arrays import RowArray, even_blocks, largest, named_rows, rows_in_blocks
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage.files import read_text

_OF_NODES = ("label", "feat", *MASKS)  # also where a name says nothing of nodes
_COUNT = "__num_nodes"
_NODE = "node_"
_EDGE = "edge_"
_META = "meta"  # an attribute of HDF5
_BLOCK_BYTES = 1 << 20  # of HDF5, read at once for rows that are no neighbours

Arrays = dict[str, RowArray]
Owner = str | Relation
"""A node type or a relation."""


def _read_npy_directory(path: Path, options: ReadOptions) -> GraphSource:
    files = FolderFiles(path)
    arrays: Arrays = {unescape(file.stem, "%"): mapped_npy(files.read(file)) for file in sorted(path.glob("*.npy"))}
    meta = files.read(path / "meta.json")
    files.read(path / "README")  # of an export
    return _source(path, arrays, read_text(meta) if os.path.lexists(meta) else "{}", files.left_out())


def _read_npz(path: Path, options: ReadOptions) -> GraphSource:
    if not zipfile.is_zipfile(path):
        raise GraphDataError("not an .npz file, and neither HDF5, .csv nor .parquet")
    arrays = mapped_npz(path)
    meta = str(arrays.pop("meta", "{}"))
    named = {name: named_rows(array, f"{path}: {name}") for name, array in arrays.items() if array.ndim}
    return _source(path, {**arrays, **named}, meta)


def _read_hdf5(path: Path, options: ReadOptions) -> GraphSource:
    datasets, left_out, meta = _open_hdf5(path)
    arrays: Arrays = {}
    for name, dataset in datasets.items():
        if not dataset.ndim:
            arrays[name] = np.asarray(dataset[()])
            continue
        chunk = dataset.chunks[0] if dataset.chunks else 1  # whole chunks, since HDF5 reads (and unpacks) no less
        row_bytes = dataset.dtype.itemsize * math.prod(dataset.shape[1:])
        block = chunk * max(1, _BLOCK_BYTES // max(1, row_bytes * chunk))
        arrays[name] = rows_in_blocks(
            partial(read_dataset, path, name, dataset),
            dataset.shape,
            dataset.dtype,
            even_blocks(len(dataset), block),
            f"{path}: {name}, row {{}}".format,
        )
    return _source(path, arrays, meta, left_out)


def _open_hdf5(path: Path) -> tuple[dict[str, Any], list[str], str | bytes]:
    """Open a file, which stays open as long as one of its datasets is there.

    Returns:
        The datasets of numbers by path, as h5py has them; a text for everything else; and the attribute "meta", or "{}"
        if there is none.

    Raises:
        GraphDataError: a dataset was not written to the end.
        OSError: the file cannot be read.
    """
    file = h5py.File(path, "r", locking=False)
    datasets, left_out = {}, [f"attribute {name}" for name in file.attrs if name != _META]
    for name, item in _items(file, ""):
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "biuf":
            _check_written(path, name, item)
            datasets[name] = item
        else:
            left_out.append(f"{name}: no numbers")
    return datasets, left_out, file.attrs.get(_META, "{}")


def _items(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield path and object of all items below a group (``prefix``: its path), also behind links."""
    for name in group:
        item = group.get(name)
        if item is None:
            raise GraphDataError(f"{prefix}{name} links to nothing")
        if isinstance(item, h5py.Group):
            yield from _items(item, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", item


def read_dataset(path: Path, name: str, dataset: Any, begin: int, end: int) -> Array:
    """Return some rows of a dataset. Raises GraphDataError, which names the first of them."""
    with reading(f"{path}: {name}, row {begin}"):
        rows: Array = dataset[begin:end]
    return rows


def _check_written(path: Path, name: str, dataset: Any) -> None:
    """Check that a dataset was written to the end: what was not would be read as zeros."""
    if dataset.is_virtual or dataset.external or not dataset.nbytes:
        return
    whole, written = 1, int(dataset.id.get_storage_size() > 0)
    if dataset.chunks:
        whole = math.prod(-(-size // step) for size, step in zip(dataset.shape, dataset.chunks, strict=True))
        written = dataset.id.get_num_chunks()
    if written < whole:
        raise GraphDataError(f"{path}: {name} was not written to the end: it has {written} of {whole} chunks")


def _source(path: Path, arrays: Arrays, text: str | bytes, left_out: Iterable[str] = ()) -> GraphSource:
    """Return the graph of some arrays, with a feature of each that fits a type or relation; ``text`` is ``meta``."""
    with reading(f"{path}: meta"):
        meta = dict(json.loads(text, object_pairs_hook=once))
    is_typed = not {"edge_src", "edge_dst"} <= arrays.keys()
    if is_typed and not any(name.endswith(_COUNT) for name in arrays):
        raise GraphDataError("holds neither edge_src and edge_dst nor <type>__num_nodes")
    if is_typed:
        counts = {name.removesuffix(_COUNT): _number(arrays, name) for name in [*arrays] if name.endswith(_COUNT)}
        relations = dict.fromkeys(filter(None, [_relation_in(name, sorted(counts)) for name in arrays]))
        prefixes: dict[str, Owner] = {f"{ntype}__": ntype for ntype in counts}
        prefixes |= {"__".join([*relation, ""]): relation for relation in relations}
    else:
        prefixes = {_NODE: DEFAULT_NTYPE, _EDGE: DEFAULT_ETYPE}
    edges: dict[Relation, tuple[RowArray, RowArray]] = {}
    for prefix, owner in prefixes.items():
        if isinstance(owner, tuple):
            edges[owner] = arrays.pop(f"{prefix}src"), arrays.pop(f"{prefix}dst")
    if not is_typed:
        counts = {DEFAULT_NTYPE: _num_nodes(arrays, meta, edges[DEFAULT_ETYPE])}
    sizes: dict[Owner, int] = {relation: len(src) for relation, (src, _) in edges.items()}
    sizes.update(counts.items())
    feats: dict[Owner, dict[str, Feature]] = {owner: {} for owner in sizes}
    unread = list(left_out)
    for name, values in arrays.items():
        prefix = max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default="")
        short = name.removeprefix(prefix)
        of = [prefixes[prefix]] if prefix else [] if is_typed else [*prefixes.values()][: 1 + (name not in _OF_NODES)]
        is_known = short in _OF_NODES and of and of[0] in counts  # the graph checks its rows
        fitting = [owner for owner in of if is_known or values.shape[:1] == (sizes[owner],)]
        form = f"{name}: {values.dtype}{list(values.shape)}"
        if values.dtype.kind not in "biuf" and not is_known:
            unread.append(f"{form} are no numbers")
        elif not fitting:
            needed = " or ".join(f"{sizes[owner]} {_in_words(owner)}" for owner in of)
            unread.append(f"{form} has no row for each of {needed}" if of else f"{form} is of no type here")
        elif len(fitting) > 1:
            remedy = f"call it {_NODE}{name} or {_EDGE}{name}"
            raise GraphDataError(f"{name} may be of the {len(values)} nodes or of as many edges: {remedy}")
        else:
            key = fitting[0] if isinstance(fitting[0], str) else relation_key(fitting[0])
            if short in feats[fitting[0]]:
                raise GraphDataError(f"{name}: feature {short!r} of {key!r} is there twice")
            names = tuple(meta.get("categories", {}).get(key, {}).get(short, ()))
            feature = feature_of(short, values) if is_known else Feature.of(values)
            feats[fitting[0]][short] = feature._replace(categories=names)
    node_feats, edge_feats = (
        {ntype: feats[ntype] for ntype in counts},
        {relation: feats[relation] for relation in edges},
    )
    source = graph_of(counts, edges, node_feats, edge_feats, left_out=tuple(unread))
    both = meta.get("both_directions")
    if both is None or both:
        return replace(source, has_reverse=bool(both))
    return add_reverse_edges(source, own_relations=is_typed)


def _num_nodes(arrays: Arrays, meta: Mapping[str, Any], ends: Sequence[RowArray]) -> int:
    """Take the number of nodes out of arrays: the number that is given, or rows of nodes, or of the ends."""
    if "num_nodes" in meta:
        arrays["num_nodes"] = np.array(meta["num_nodes"])
    if "num_nodes" in arrays:
        return _number(arrays, "num_nodes")
    of_nodes = (rows for name, rows in arrays.items() if name.startswith(_NODE) or name in _OF_NODES)
    return next((len(rows) for rows in of_nodes if rows.ndim), 0) or 1 + max(map(largest, ends))


def _in_words(owner: Owner) -> str:
    if owner in (DEFAULT_NTYPE, DEFAULT_ETYPE):
        return "nodes" if owner == DEFAULT_NTYPE else "edges"
    return f"nodes of {owner!r}" if isinstance(owner, str) else f"edges of {relation_key(owner)!r}"


def _number(arrays: Arrays, name: str) -> int:
    """Take a number out of arrays."""
    array = arrays.pop(name)
    values = np.asarray(array[...] if array.ndim == 0 else array[:])
    if values.size != 1 or values.dtype.kind not in "iu":
        raise GraphDataError(f"{name} must be one integer (got {values.dtype}{list(values.shape)})")
    return int(values.reshape(-1)[0])


def _relation_in(name: str, ntypes: list[str]) -> Relation | None:
    """Return the relation whose sources or destinations an array holds, None if it holds something else.

    A name with one field more, such as ``test__user__buys__item__src``, is of edges held out of the graph.
    """
    joined, _, end = name.rpartition("__")
    if end not in ("src", "dst"):
        return None
    relation = relation_in(joined, "__", ntypes, name)
    unknown = [field for field in joined.split("__")[::2] if field not in ntypes]
    if relation is None and joined.count("__") == 2 and unknown:
        raise GraphDataError(f"{name}: node type {unknown[0]!r} does not exist, there is no {unknown[0]}{_COUNT}")
    return relation


NPY_DIRECTORY = Layout(
    "generated arrays",
    "edge_src.npy",
    lambda path: (path / "edge_src.npy").is_file() or any(path.glob(f"*{_COUNT}.npy")),
    _read_npy_directory,
)
HDF5 = Layout("HDF5", "", lambda path: path.is_file() and bool(h5py.is_hdf5(path)), _read_hdf5)
NPZ = Layout("npz", "", Path.is_file, _read_npz)
