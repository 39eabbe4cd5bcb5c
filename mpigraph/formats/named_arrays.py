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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpigraph.arrays import Array
from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.formats.declared import MASKS, feature_of, relation_in
from mpigraph.formats.input_files import FolderFiles, graph_of, mapped_npy, mapped_npz, reading
from mpigraph.formats.layout import Layout, ReadOptions, add_reverse_edges
from mpigraph.metadata.schema import DEFAULT_ETYPE, DEFAULT_NTYPE, Relation, relation_key, unescape
from mpigraph.partition.row_arrays import FileRows, NamedRows, RowArray, even_blocks, largest
from mpigraph.partition.source import Feature, GraphSource
from mpigraph.storage.files import read_text

_OF_NODES = ("label", "feat", *MASKS)  # also where a name says nothing of nodes
_COUNT = "__num_nodes"
_NODE = "node_"
_EDGE = "edge_"
_META = "meta"  # an attribute of HDF5
_BLOCK_BYTES = 1 << 20  # of HDF5, read at once for rows that are no neighbours

Arrays = dict[str, RowArray]
Ends = tuple[RowArray, RowArray]
Owner = str | Relation
"""A node type or a relation."""
Owners = Callable[[str], tuple[list[Owner], str]]
"""Return the types and relations that an array can be of by its name, and the name of a feature of one."""


def _read_npy_directory(path: Path, options: ReadOptions) -> GraphSource:
    files = FolderFiles(path)
    arrays: Arrays = {unescape(file.stem, "%"): mapped_npy(files.read(file)) for file in sorted(path.glob("*.npy"))}
    meta = path / "meta.json"
    files.read(path / "README")  # of an export
    text = read_text(files.read(meta)) if os.path.lexists(meta) else "{}"
    return _source(arrays, text, files.left_out())


def _read_npz(path: Path, options: ReadOptions) -> GraphSource:
    if not zipfile.is_zipfile(path):
        raise GraphDataError("not an .npz file, and neither HDF5, .csv nor .parquet")
    arrays = mapped_npz(path)
    meta = str(arrays.pop("meta", "{}"))
    named = {name: NamedRows(array, f"{path}: {name}") for name, array in arrays.items() if array.ndim}
    return _source({**arrays, **named}, meta)


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
        arrays[name] = FileRows(
            partial(read_dataset, path, name, dataset),
            dataset.shape,
            dataset.dtype,
            even_blocks(len(dataset), block),
            f"{path}: {name}, row {{}}".format,
        )
    return _source(arrays, meta, left_out)


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
        item = group[name]
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


def _source(arrays: Arrays, text: str | bytes, left_out: Iterable[str] = ()) -> GraphSource:
    """Return the graph of some arrays and of ``meta``, a JSON object."""
    try:
        meta = json.loads(text)
    except ValueError as error:
        raise GraphDataError(f"meta is not JSON: {error}") from error
    if not isinstance(meta, dict):
        raise GraphDataError(f"meta must be a JSON object (got {meta!r:.60})")
    is_typed = not {"edge_src", "edge_dst"} <= arrays.keys()
    if is_typed and not any(name.endswith(_COUNT) for name in arrays):
        raise GraphDataError("holds neither edge_src and edge_dst nor <type>__num_nodes")
    counts, edges, owners = _typed(arrays) if is_typed else _homogeneous(arrays, meta)
    source = _graph(counts, edges, arrays, owners, meta.get("categories", {}), left_out)
    both = meta.get("both_directions")
    if both is None or both:
        return replace(source, has_reverse=bool(both))
    return add_reverse_edges(source, own_relations=is_typed)


def _homogeneous(arrays: Arrays, meta: Mapping[str, Any]) -> tuple[dict[str, int], dict[Relation, Ends], Owners]:
    """Take ends and the number of nodes out of arrays: the number that is given, or rows of nodes, or of the ends."""
    ends = arrays.pop("edge_src"), arrays.pop("edge_dst")
    for name, ids in zip(("edge_src", "edge_dst"), ends, strict=True):
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise GraphDataError(f"{name} must be integers in one dimension (got {ids.dtype}{list(ids.shape)})")

    def owners(name: str) -> tuple[list[Owner], str]:
        if name.startswith(_NODE) or name in _OF_NODES:
            return [DEFAULT_NTYPE], name.removeprefix(_NODE)
        return [DEFAULT_ETYPE] if name.startswith(_EDGE) else [DEFAULT_NTYPE, DEFAULT_ETYPE], name.removeprefix(_EDGE)

    if "num_nodes" in meta:
        arrays["num_nodes"] = np.array(meta["num_nodes"])
    if "num_nodes" in arrays:
        count = _number(arrays, "num_nodes")
    else:
        of_nodes = [len(rows) for name, rows in arrays.items() if rows.ndim and owners(name)[0] == [DEFAULT_NTYPE]]
        count = of_nodes[0] if of_nodes else 1 + max(map(largest, ends))
    return {DEFAULT_NTYPE: count}, {DEFAULT_ETYPE: ends}, owners


def _typed(arrays: Arrays) -> tuple[dict[str, int], dict[Relation, Ends], Owners]:
    """Take the ends of all relations and the numbers of nodes out of arrays."""
    names = [name for name in arrays if name.endswith(_COUNT)]
    counts = {name.removesuffix(_COUNT): _number(arrays, name) for name in names}
    edges = {}
    named = (_relation_in(name, sorted(counts)) for name in arrays)
    for relation in dict.fromkeys(filter(None, named)):
        src, dst = (arrays.pop("__".join([*relation, end])) for end in ("src", "dst"))
        edges[relation] = src, dst
    prefixes: dict[str, Owner] = {f"{ntype}__": ntype for ntype in counts}
    prefixes |= {"__".join([*relation, ""]): relation for relation in edges}

    def owners(name: str) -> tuple[list[Owner], str]:
        prefix = max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default="")
        return [prefixes[prefix]] if prefix else [], name.removeprefix(prefix)

    return counts, edges, owners


def _graph(
    counts: Mapping[str, int],
    edges: Mapping[Relation, Ends],
    arrays: Arrays,
    owners: Owners,
    categories: Mapping[str, Mapping[str, Iterable[str]]],
    left_out: Iterable[str],
) -> GraphSource:
    """Return the graph with a feature of each array that fits one of its ``owners``."""
    sizes: dict[Owner, int] = {relation: len(src) for relation, (src, _) in edges.items()}
    sizes.update(counts.items())
    feats: dict[Owner, dict[str, Feature]] = {owner: {} for owner in sizes}
    unread = list(left_out)
    for name, values in arrays.items():
        of, short = owners(name)
        is_known = short in _OF_NODES and of and of[0] in counts  # the graph checks its rows
        fitting = [owner for owner in of if is_known or values.shape[:1] == (sizes[owner],)]
        if len(fitting) > 1:
            remedy = f"call it {_NODE}{name} or {_EDGE}{name}"
            raise GraphDataError(f"{name} may be of the {len(values)} nodes or of as many edges: {remedy}")
        try:
            feature = feature_of(short, values) if is_known else Feature.of(values)
        except InvalidArgumentError:
            unread.append(f"{name}: {values.dtype}{list(values.shape)} are no numbers")
            continue
        if not fitting:
            needed = " or ".join(f"{sizes[owner]} {_in_words(owner)}" for owner in of)
            why = f"has no row for each of {needed}" if of else "is of no type here"
            unread.append(f"{name}: {values.dtype}{list(values.shape)} {why}")
            continue
        key = fitting[0] if isinstance(fitting[0], str) else relation_key(fitting[0])
        if short in feats[fitting[0]]:
            raise GraphDataError(f"{name}: feature {short!r} of {key!r} is there twice")
        feats[fitting[0]][short] = feature._replace(categories=tuple(categories.get(key, {}).get(short, ())))
    node_feats = {ntype: feats[ntype] for ntype in counts}
    return graph_of(
        counts, edges, node_feats, {relation: feats[relation] for relation in edges}, left_out=tuple(unread)
    )


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
    relation = relation_in(joined, ntypes, name, "rename a type or the relation")
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
