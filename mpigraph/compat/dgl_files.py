"""DGL's plain helpers of ``dgl.data`` and ``dgl.utils``.

Graphs and tensors are saved as arrays in a zip of numpy (``npz``), without pickle; DGL's own binary files are another
format.
"""

import argparse
import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.formats.input_files import UNREADABLE
from mpigraph.graphs.fields import IdsLike, as_ids
from mpigraph.graphs.hetero import HeteroGraph, heterograph
from mpigraph.metadata.schema import check_name, escape, parse_relation, unescape

__all__ = [
    "Subset",
    "expand_as_pair",
    "generate_mask_tensor",
    "idx2mask",
    "load_data",
    "load_graphs",
    "load_tensors",
    "makedirs",
    "register_data_args",
    "save_graphs",
    "save_tensors",
    "split_dataset",
]

Path = str | os.PathLike[str]
Tensors = dict[str, torch.Tensor]


def register_data_args(parser: argparse.ArgumentParser) -> None:
    """Add the argument ``--dataset``, as DGL's older scripts do."""
    parser.add_argument("--dataset", type=str, required=False, help="name of the dataset")


def load_data(args: Any) -> Any:
    """Raise InvalidArgumentError: this library downloads no datasets (older scripts import this function)."""
    raise InvalidArgumentError(
        f"dataset {getattr(args, 'dataset', None)!r} is not downloaded: python -m mpigraph partition reads OGB's "
        "folders, npz, csv and others, and mpigraph.convert.as_graph graphs of PyG, networkx and scipy"
    )


def makedirs(path: Path) -> None:
    """Make a folder and those above it, unless they exist."""
    os.makedirs(os.path.expanduser(os.path.normpath(path)), exist_ok=True)


def generate_mask_tensor(mask: Any) -> torch.Tensor:
    """Return a mask as a tensor, bool[n]."""
    return torch.as_tensor(np.asarray(mask)).bool()


def idx2mask(idx: IdsLike, len: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return the mask of positions ``idx``, bool[len]."""
    mask = np.zeros(len, np.bool_)
    mask[as_ids(idx, "idx").numpy()] = True
    return mask


class Subset:
    """Some items of a dataset, by their positions."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, item: int) -> Any:
        return self.dataset[self.indices[item]]

    def __len__(self) -> int:
        return len(self.indices)


def split_dataset(
    dataset: Any, frac_list: Sequence[float] | None = None, shuffle: bool = False, random_state: int | None = None
) -> list[Subset]:
    """Divide a dataset into consecutive pieces, by default of 80, 10 and 10 per cent; the last takes the remainder.

    Raises InvalidArgumentError: the shares do not add up to one.
    """
    shares = np.asarray([0.8, 0.1, 0.1] if frac_list is None else frac_list)
    if not np.allclose(shares.sum(), 1.0):
        raise InvalidArgumentError(f"the shares must add up to 1 (got {shares.tolist()})")
    order = np.arange(len(dataset))
    if shuffle:
        order = np.random.default_rng(random_state).permutation(len(dataset))
    bounds = (len(dataset) * shares[:-1]).astype(np.int64).cumsum()
    return [Subset(dataset, piece.tolist()) for piece in np.split(order, bounds)]


def save_tensors(filename: Path, tensor_dict: Mapping[str, torch.Tensor]) -> bool:
    """Save tensors by name, in a file that :func:`load_tensors` and ``numpy.load`` read.

    Returns:
        True.

    Raises:
        InvalidArgumentError: a value is no tensor, or of a dtype that numpy lacks (bfloat16).
    """
    arrays = {check_name("the name of a tensor", name): _array(name, values) for name, values in tensor_dict.items()}
    with zipfile.ZipFile(filename, "w") as archive:  # numpy.savez takes some names for its own arguments
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return True


def load_tensors(filename: Path, return_dgl_ndarray: bool = False) -> Tensors:
    """Load the tensors of a file of :func:`save_tensors`.

    Raises:
        GraphDataError: the file is damaged, holds Python objects, or is another one, such as one of DGL.
        InvalidArgumentError: ``return_dgl_ndarray`` is true: there are only tensors.
    """
    if return_dgl_ndarray:
        raise InvalidArgumentError("return_dgl_ndarray must be False: tensors are returned, which have .numpy()")
    try:
        with np.load(filename, allow_pickle=False) as arrays:
            # by the entry's own name: numpy gives "x" for "x.npy"
            return {entry.removesuffix(".npy"): torch.from_numpy(arrays[entry]) for entry in arrays.zip.namelist()}
    except OSError:
        raise
    except UNREADABLE:
        raise GraphDataError(
            f"{os.fspath(filename)} was not written by save_tensors or save_graphs of mpigraph, or is damaged (DGL's "
            "files are another format: python -m mpigraph partition reads what DGL has partitioned)"
        ) from None


def save_graphs(filename: Path, g_list: HeteroGraph | Sequence[HeteroGraph], labels: Tensors | None = None) -> None:
    """Save graphs with their features, and tensors with them, in a file that :func:`load_graphs` reads.

    Raises InvalidArgumentError: a graph is not in memory, or a feature of a dtype that numpy lacks (bfloat16).
    """
    graphs = list(g_list) if isinstance(g_list, Sequence) else [g_list]
    for g in graphs:
        if not isinstance(g, HeteroGraph):
            raise InvalidArgumentError(f"only graphs in memory are saved (got {type(g).__name__})")
    arrays = {f"labels/{name}": values for name, values in (labels or {}).items()}
    for number, g in enumerate(graphs):
        for ntype in g.ntypes:
            arrays[f"{number}/num_nodes/{ntype}"] = torch.tensor(g.num_nodes(ntype))
            arrays |= {f"{number}/ndata/{escape(ntype, '/')}/{name}": x for name, x in g.nodes[ntype].data.items()}
        for relation in g.canonical_etypes:
            key = ":".join(escape(name, ":/") for name in relation)
            arrays[f"{number}/edges/{key}"] = torch.stack(g.all_edges(etype=relation))
            arrays |= {f"{number}/edata/{key}/{name}": x for name, x in g.edges[relation].data.items()}
    save_tensors(filename, arrays)


def load_graphs(filename: Path, idx_list: Sequence[int] | None = None) -> tuple[list[HeteroGraph], Tensors]:
    """Load graphs (all, or those numbered ``idx_list``) and labels of a file of :func:`save_graphs`.

    Raises GraphDataError: the file is another one, such as one of DGL.
    """
    saved = load_tensors(filename)
    by_graph: dict[int, dict[str, Tensors]] = {}
    labels = {}
    for key, values in saved.items():
        number, _, rest = key.partition("/")
        if number == "labels":
            labels[rest] = values
            continue
        kind, _, name = rest.partition("/")
        if not number.isdecimal() or kind not in ("num_nodes", "edges", "ndata", "edata"):
            raise GraphDataError(f"{os.fspath(filename)}: {key!r} belongs to no graph: not a file of save_graphs")
        by_graph.setdefault(int(number), {}).setdefault(kind, {})[name] = values
    chosen = sorted(by_graph) if idx_list is None else as_ids(idx_list, "idx_list").tolist()
    missing = [number for number in chosen if number not in by_graph]
    if missing:
        raise GraphDataError(f"{os.fspath(filename)} has no graph {missing[0]} (it has {len(by_graph)})")
    return [_graph(by_graph[number]) for number in chosen], labels


def expand_as_pair(input_: Any, g: Any = None) -> tuple[Any, Any]:
    """Return a layer's input as features of sources and destinations; those of a block are its first sources."""
    if isinstance(input_, tuple):
        return input_[0], input_[1]
    if g is None or not g.is_block:
        return input_, input_
    if isinstance(input_, Mapping):
        return input_, {ntype: x[: g.num_dst_nodes(ntype)] for ntype, x in input_.items() if ntype in g.dsttypes}
    return input_, input_[: g.num_dst_nodes()]


def _graph(parts: dict[str, Tensors]) -> HeteroGraph:
    counts = {ntype: int(count) for ntype, count in parts["num_nodes"].items()}
    edges: dict[tuple[str, str, str], tuple[torch.Tensor, torch.Tensor]] = {}
    for key, ends in parts.get("edges", {}).items():
        edges[parse_relation(key)] = (ends[0], ends[1])
    loaded = heterograph(edges, counts)
    for key, values in parts.get("ndata", {}).items():
        ntype, _, name = key.partition("/")
        loaded.nodes[unescape(ntype)].data[name] = values
    for key, values in parts.get("edata", {}).items():
        etype, _, name = key.partition("/")
        loaded.edges[parse_relation(etype)].data[name] = values
    return loaded


def _array(name: str, values: object) -> np.ndarray[Any, np.dtype[Any]]:
    if not isinstance(values, torch.Tensor):
        raise InvalidArgumentError(f"{name!r} must be a tensor (got {type(values).__name__})")
    try:
        return values.detach().cpu().numpy()
    except TypeError:
        raise InvalidArgumentError(f"{name!r} is of {values.dtype}, which numpy lacks: convert it") from None
