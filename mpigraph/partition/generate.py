"""Generated graphs: power-law degrees, planted communities, features that correlate with the label.

A node's label is its class. Classes consist of blocks (communities), and most edges stay inside a block or a class. The
features are a weak class centroid under unit noise: a node's own features predict its label badly, and the mean over
neighbours, most of the same class, predicts it well.

Everything follows from the seed.

Edges are drawn between *sorted* ids, in which the nodes of a class or block are contiguous; a random permutation gives
the public ids.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from mpigraph.arrays import F32, I32, I64, Array
from mpigraph.errors import InvalidArgumentError, check_integer
from mpigraph.kernels.rng import combine
from mpigraph.partition.exchange import ALONE, Progress, silent
from mpigraph.partition.loops import draw_rows
from mpigraph.partition.output_folder import UNFINISHED, Form, new_npy_files, refusal
from mpigraph.storage.files import storage_errors

GRAPH_FILES = ("edge_src", "edge_dst", "feat", "label", "train_mask", "val_mask", "test_mask")
_META = "meta.json"
_SIGNAL = 2.0  # length of the class centroids, against noise of standard deviation 1 in every dimension
_VAL_FRACTION = 0.05  # of the nodes
_EDGES_PER_CHUNK = 1 << 20
_ROWS_PER_CHUNK = 1 << 17  # of features; each chunk has a stream of its own, so another size makes other features
_MAX_STUBS = 2**32 - 1  # what draw_below can choose from


@dataclass(frozen=True)
class Recipe:
    """Settings of a generated graph.

    Attributes:
        num_nodes: number of nodes.
        num_edges: number of directed edges; both directions of each are stored, so an odd number is rounded down.
        feat_dim: length of a feature row.
        num_classes: number of labels; class sizes fall by a power law.
        seed: equal seeds give equal graphs.
        homophily: probability that an edge is drawn inside a class.
        block_share: of those, the fraction drawn inside one block.
        block_size: nodes of a block, roughly; 0 chooses by the mean degree.
        train_fraction: fraction of the nodes in the training mask. The validation mask has 5 %, the test mask the rest.
    """

    num_nodes: int
    num_edges: int
    feat_dim: int = 100
    num_classes: int = 47
    seed: int = 0
    homophily: float = 0.6
    block_share: float = 0.5
    block_size: int = 0
    train_fraction: float = 0.1

    def __post_init__(self) -> None:
        nodes = check_integer("num_nodes", self.num_nodes, 2, 2**31 - 1)
        most = {"num_nodes": nodes, "feat_dim": 2**31 - 1, "num_classes": nodes, "seed": 2**64 - 1}
        most |= {"num_edges": nodes * (nodes - 1) // 2, "block_size": 2**63 - 1}  # half of all pairs
        for name, limit in most.items():
            least = int(name in ("feat_dim", "num_classes"))
            object.__setattr__(self, name, check_integer(name, getattr(self, name), least, limit))
        fractions = {"homophily": 1.0, "block_share": 1.0, "train_fraction": 1 - _VAL_FRACTION}
        for name, highest in fractions.items():
            if not 0 <= getattr(self, name) <= highest:
                raise InvalidArgumentError(f"{name} must lie in 0 to {highest:g} (got {getattr(self, name)})")

    @property
    def num_pairs(self) -> int:
        """Number of undirected edges."""
        return self.num_edges // 2


def generate_graph(recipe: Recipe) -> dict[str, Array]:
    """Return a generated graph in memory.

    Returns:
        edge_src, edge_dst int32[m]; feat float32[n, d]; label int64[n]; train_mask, val_mask, test_mask bool[n].

    Raises InvalidArgumentError: the graph is too large.
    """
    arrays = {name: np.empty(shape, dtype) for name, (shape, dtype) in _forms(recipe).items()}
    for name, first, rows in _rows(recipe):
        arrays[name][first : first + len(rows)] = rows
    return arrays


def write_graph(
    recipe: Recipe, directory: str | os.PathLike[str], progress: Progress = silent, overwrite: bool = False
) -> Path:
    """Write a generated graph as ``.npy`` files and ``meta.json``, in chunks.

    Args:
        recipe: the settings.
        directory: created if missing. Files in it are replaced when the new ones are whole.
        progress: gets reports.
        overwrite: write over another graph in the directory. A graph of the same recipe is not another one.

    Returns:
        The directory.

    Raises:
        InvalidArgumentError: the graph is too large, or another one lies there.
        StorageError: the disk is full.
    """
    out = Path(directory)
    about = json.dumps({**asdict(recipe), "num_edges": 2 * recipe.num_pairs, "both_directions": True}, indent=2) + "\n"
    there = [name for name in (_META, *(f"{name}.npy" for name in GRAPH_FILES)) if (out / name).exists()]
    is_own = _META in there and (out / _META).read_bytes() == about.encode()
    if there and not is_own and not overwrite:
        raise refusal(f"{out} holds another graph, whose {there[0]}")
    with new_npy_files(ALONE, out, _forms(recipe)) as (folder, files), storage_errors(out):
        for name, first, rows in _rows(recipe, progress):
            files[name].write(rows, at=first)
        (folder / _META).write_text(about, encoding="utf-8")
    for left in out.glob(f"{UNFINISHED}*"):  # of runs that were killed
        shutil.rmtree(left, ignore_errors=True)
    return out


def _forms(recipe: Recipe) -> dict[str, Form]:
    """Return shape and dtype of each array of a graph."""
    nodes = (recipe.num_nodes,)
    edges = (2 * recipe.num_pairs,)
    features = (recipe.num_nodes, recipe.feat_dim)
    shapes = [edges, edges, features, nodes, nodes, nodes, nodes]
    dtypes = [np.int32, np.int32, np.float32, np.int64, np.bool_, np.bool_, np.bool_]
    return dict(zip(GRAPH_FILES, zip(shapes, dtypes, strict=True), strict=True))


def _rows(recipe: Recipe, progress: Progress = silent) -> Iterator[tuple[str, int, Array]]:
    """Yield pieces of a graph: the name of an array, the first row, and rows."""
    rng = np.random.default_rng([recipe.seed, 2])
    public_ids = _permutation(rng, recipe.num_nodes)
    for first, pairs in _pairs(recipe):
        progress("write edges", first, recipe.num_pairs)
        ends = public_ids[pairs]
        for name, halves in (("edge_src", ends), ("edge_dst", ends[::-1])):
            yield name, first, halves[0]
            yield name, recipe.num_pairs + first, halves[1]
    progress("write edges", recipe.num_pairs, recipe.num_pairs)
    labels = np.empty(recipe.num_nodes, np.int64)
    labels[public_ids] = np.repeat(np.arange(recipe.num_classes), np.diff(_class_offsets(recipe)))
    yield "label", 0, labels
    for first, rows in _feature_chunks(recipe, labels):
        progress("write features", first, recipe.num_nodes)
        yield "feat", first, rows
    progress("write features", recipe.num_nodes, recipe.num_nodes)
    bounds = np.cumsum([round(fraction * recipe.num_nodes) for fraction in (recipe.train_fraction, _VAL_FRACTION)])
    split = np.split(_permutation(rng, recipe.num_nodes), bounds)
    for name, ids in zip(("train_mask", "val_mask", "test_mask"), split, strict=True):
        mask = np.zeros(recipe.num_nodes, np.bool_)
        mask[ids] = True
        yield name, 0, mask


def _pairs(recipe: Recipe) -> Iterator[tuple[int, I32]]:
    """Yield the pairs of nodes that the edges join: the number of a chunk's first pair, int32[2, m].

    Pairs are of sorted ids. Each node draws a row of pairs. Row lengths and the choice of the other end both follow the
    nodes' weights, which fall by a power law. Raises InvalidArgumentError: there are 2**32 stubs (half-edges) or more.
    """
    num_nodes = recipe.num_nodes
    rng = np.random.default_rng([recipe.seed, 1])
    degree = 2 * recipe.num_pairs / num_nodes
    weights = 1.0 + rng.pareto(2.5, num_nodes) * max(degree - 1.0, 0.0) * 1.5
    weights *= max(recipe.num_pairs, num_nodes) / weights.sum()
    counts = np.maximum(np.floor(weights + rng.random(num_nodes)).astype(np.int64), 1)
    stubs = np.concatenate([[0], np.cumsum(counts)])
    num_stubs = int(stubs[-1])
    if num_stubs > _MAX_STUBS:
        raise InvalidArgumentError(f"the graph is too large: {num_stubs} ends of edges, at most {_MAX_STUBS}")
    offsets = _row_offsets(weights, recipe.num_pairs, rng)
    shift = max(0, (num_stubs // num_nodes).bit_length() - 1)  # about one interval for each node
    guide = (np.searchsorted(stubs, np.arange(0, num_stubs, 1 << shift), "right") - 1).astype(np.int32)

    class_offsets = _class_offsets(recipe)
    block_size = recipe.block_size or max(30, min(800, round(8 * degree)))
    begins = []
    for begin, end in pairwise(class_offsets):
        blocks = max(1, round((end - begin) / block_size))
        begins.append(np.linspace(begin, end, blocks + 1)[:-1].astype(np.int64))
    block_offsets = np.concatenate([*begins, [num_nodes]])
    block_of = np.repeat(np.arange(len(block_offsets) - 1, dtype=np.int32), np.diff(block_offsets))
    class_of_block = np.repeat(np.arange(len(begins), dtype=np.int32), list(map(len, begins)))
    p_block = recipe.homophily * recipe.block_share
    tables = (
        stubs[1:].astype(np.uint32), guide, shift, block_of, stubs[block_offsets], class_of_block,
        stubs[class_offsets], p_block, recipe.homophily - p_block, np.full(num_nodes, -1, np.int32),
    )  # fmt: skip
    key = combine(recipe.seed, 0x67726170)
    row = 0
    while row < num_nodes:
        first = offsets[row]
        last = min(num_nodes, max(row + 1, int(np.searchsorted(offsets, first + _EDGES_PER_CHUNK))))
        indptr = offsets[row : last + 1]
        pairs = np.empty((2, indptr[-1] - first), np.int32)
        pairs[0] = np.repeat(np.arange(row, last), np.diff(indptr))
        draw_rows(key, row, indptr, *tables, pairs[1])
        yield int(first), pairs
        row = last


def _row_offsets(weights: Array, num_pairs: int, rng: np.random.Generator) -> I64:
    """Return int64[n + 1]: rows in proportion to the weights, at most as long as the number of nodes to draw."""
    num_nodes = len(weights)
    nodes = np.arange(num_nodes)
    longest = (num_nodes - nodes) // 2 + nodes // 2  # see draw_rows: half of the other nodes
    total = np.cumsum(weights)
    lengths = np.minimum(np.diff(np.floor(total * (num_pairs / total[-1])), prepend=0).astype(np.int64), longest)
    while (missing := num_pairs - int(lengths.sum())) > 0:
        short = np.flatnonzero(lengths < longest)
        lengths[rng.choice(short, min(missing, len(short)), replace=False)] += 1
    return np.concatenate([[0], np.cumsum(lengths)])


def _class_offsets(recipe: Recipe) -> I64:
    """Return int64[classes + 1]: sizes fall like rank**-0.8, and every class has a node."""
    weights = 1.0 / np.arange(1, recipe.num_classes + 1) ** 0.8
    sizes = 1 + np.floor(weights / weights.sum() * (recipe.num_nodes - recipe.num_classes)).astype(np.int64)
    sizes[0] += recipe.num_nodes - sizes.sum()
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _permutation(rng: np.random.Generator, size: int) -> I32:
    ids = np.arange(size, dtype=np.int32)  # rng.permutation(size) takes twice the memory
    rng.shuffle(ids)
    return ids


def _feature_chunks(recipe: Recipe, labels: I64) -> Iterator[tuple[int, F32]]:
    """Yield chunks as (first node, rows)."""
    rng = np.random.default_rng([recipe.seed, 4])
    centroids = rng.standard_normal((recipe.num_classes, recipe.feat_dim), dtype=np.float32)
    centroids *= np.float32(_SIGNAL / np.sqrt(recipe.feat_dim))
    for first in range(0, recipe.num_nodes, _ROWS_PER_CHUNK):
        if first > 0:  # the first chunk uses the generator of the centroids
            rng = np.random.default_rng([recipe.seed, 4, first // _ROWS_PER_CHUNK])
        chunk = labels[first : first + _ROWS_PER_CHUNK]
        rows = rng.standard_normal((len(chunk), recipe.feat_dim), dtype=np.float32)
        rows += centroids[chunk]
        yield first, rows
