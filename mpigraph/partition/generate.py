"""Generated graphs: power-law degrees, planted communities, features that say something about the label.

A node's label is its class. Classes are cut into blocks (communities), and most edges stay inside a block or a
class. The features are a weak class centroid under unit noise: alone they say little, and the mean over neighbours,
most of the same class, says much more. Everything follows from the seed, and is the same on any number of ranks, which
divide edges and features.

Nodes are drawn and wired by *sorted* ids, by which the nodes of a class or block are contiguous; a random permutation
of them makes the public ids.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mpigraph.arrays import F32, I32, I64, Array
from mpigraph.errors import InvalidArgumentError, check_integer
from mpigraph.kernels.rng import combine
from mpigraph.partition.exchange import ALONE, Exchange
from mpigraph.partition.npy_files import UNFINISHED, NpyFile, NpyShape, new_npy_files, storage_errors
from mpigraph.partition.occupied import OVERWRITE
from mpigraph.partition.progress import Progress, silent
from mpigraph.partition.random_pairs import Communities, Rows, draw_pairs
from mpigraph.storage.files import read_text

__all__ = ["GRAPH_FILES", "Recipe", "generate_graph", "write_graph"]

GRAPH_FILES = ("edge_src", "edge_dst", "feat", "label", "train_mask", "val_mask", "test_mask")
_META = "meta.json"
_ROWS_PER_CHUNK = 1 << 17  # of features; each chunk has a stream of its own, so another size makes other features


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
        signal: length of the class centroids, against noise of standard deviation 1 in every dimension.
        train_fraction: fraction of the nodes in the training mask.
        val_fraction: fraction of the nodes in the validation mask; the rest are test nodes.
    """

    num_nodes: int
    num_edges: int
    feat_dim: int = 100
    num_classes: int = 47
    seed: int = 0
    homophily: float = 0.6
    block_share: float = 0.5
    block_size: int = 0
    signal: float = 2.0
    train_fraction: float = 0.1
    val_fraction: float = 0.05

    def __post_init__(self) -> None:
        for name, least in (("num_nodes", 2), ("num_edges", 0), ("feat_dim", 1), ("num_classes", 1)):
            if getattr(self, name) < least:
                raise InvalidArgumentError(f"{name} must be >= {least} (got {getattr(self, name)})")
        check_integer("seed", self.seed, 0, 2**64 - 1)
        if self.num_nodes >= 2**31:
            raise InvalidArgumentError(f"num_nodes must be < 2**31 (got {self.num_nodes})")
        if self.num_classes > self.num_nodes:
            raise InvalidArgumentError(
                f"num_classes must be <= num_nodes (got {self.num_classes} classes, {self.num_nodes} nodes)"
            )
        possible = self.num_nodes * (self.num_nodes - 1)
        if self.num_edges > possible // 2:
            raise InvalidArgumentError(
                f"num_edges must be <= {possible // 2}, half of all pairs of {self.num_nodes} nodes "
                f"(got {self.num_edges})"
            )
        for name in ("homophily", "block_share", "train_fraction", "val_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidArgumentError(f"{name} must lie in 0 to 1 (got {getattr(self, name)})")
        if self.train_fraction + self.val_fraction > 1:
            raise InvalidArgumentError("train_fraction + val_fraction must be <= 1")

    @property
    def num_pairs(self) -> int:
        """Number of undirected edges."""
        return self.num_edges // 2


def generate_graph(recipe: Recipe) -> dict[str, Array]:
    """Return a generated graph in memory.

    Returns:
        edge_src, edge_dst int32[m]; feat float32[n, d]; label int64[n]; train_mask, val_mask, test_mask bool[n].
    """
    draw = partial(_draw, exchange=ALONE)  # of one rank, and so not collective on anybody
    public_ids, rng = _public_ids(recipe)
    rows = draw(recipe, progress=silent)
    low = np.empty(len(rows), np.int32)
    high = np.empty(len(rows), np.int32)
    done = 0
    for some_low, some_high in rows.chunks():
        low[done : done + len(some_low)] = public_ids[some_low]
        high[done : done + len(some_low)] = public_ids[some_high]
        done += len(some_low)
    ends = {"edge_src": np.concatenate([low, high]), "edge_dst": np.concatenate([high, low])}
    labels = _labels(recipe, public_ids)
    feat = np.concatenate([chunk for _, chunk in _feature_chunks(recipe, labels, ALONE)])
    return {**ends, "feat": feat, "label": labels, **_masks(recipe, rng)}


def write_graph(
    recipe: Recipe,
    directory: str | os.PathLike[str],
    progress: Progress | None = None,
    exchange: Exchange = ALONE,
    overwrite: bool = False,
) -> Path:
    """Write a generated graph as ``.npy`` files and ``meta.json``, in chunks; the same files on any number of ranks.

    Every rank needs about 60 bytes of memory for each node; what grows with the edges is divided.

    Args:
        recipe: the settings, the same on every rank.
        directory: created if missing; every rank must see it. Files in it are replaced when the new ones are whole.
        progress: what to report to; only the first rank's is called, and told what that rank does.
        exchange: the ranks; by default this process alone.
        overwrite: write over another graph in the directory. What this recipe has made there is not another one.

    Returns:
        The directory.

    Raises:
        InvalidArgumentError: the graph is too dense or too large, or another one lies there; on every rank.
        StorageError: a rank cannot write; on every rank.

    Collective on the ranks.
    """
    progress = progress if progress is not None and exchange.rank == 0 else silent
    out = Path(directory)
    about = json.dumps(_meta(recipe), indent=2) + "\n"
    with exchange.together(f"looking into {out}"):
        if exchange.rank == 0 and not overwrite:
            _check_vacant(out, about)
    with new_npy_files(exchange, out, _shapes(recipe)) as (folder, files):
        public_ids, rng = _public_ids(recipe)
        rows = _draw(recipe, exchange, progress)
        with exchange.together(f"writing to {out}"), storage_errors(out):
            _write_edges(recipe, rows, public_ids, files, progress)
            del rows
            labels = _labels(recipe, public_ids)
            for first, chunk in _feature_chunks(recipe, labels, exchange):
                progress("write features", first, recipe.num_nodes)
                files["feat"].write(chunk, at=first)
            progress("write features", recipe.num_nodes, recipe.num_nodes)
            if exchange.rank == 0:
                for name, array in {"label": labels, **_masks(recipe, rng)}.items():
                    files[name].write(array, at=0)
                (folder / _META).write_text(about, encoding="utf-8")
    if exchange.rank == 0:
        for left in out.glob(f"{UNFINISHED}*"):  # by runs that were killed
            shutil.rmtree(left, ignore_errors=True)
    return out


def _meta(recipe: Recipe) -> dict[str, Any]:
    return {**asdict(recipe), "num_edges": 2 * recipe.num_pairs, "both_directions": True}


def _check_vacant(out: Path, about: str) -> None:
    """Check that no graph lies in a directory, or the one that ``about`` describes, or what a killed run has left.

    Raises:
        InvalidArgumentError: another graph lies there.
    """
    names = [_META, *(f"{name}.npy" for name in GRAPH_FILES)]
    there = [name for name in names if (out / name).exists()]
    if _META in there:
        try:
            is_other = read_text(out / _META) != about
        except (OSError, ValueError):
            is_other = True
    else:
        is_other = bool(there) and not any(out.glob(f"{UNFINISHED}*"))
    if is_other:
        raise InvalidArgumentError(f"{out} holds another graph, whose {there[0]} would be overwritten: {OVERWRITE}")


def _shapes(recipe: Recipe) -> dict[str, NpyShape]:
    edges = NpyShape((2 * recipe.num_pairs,), np.int32)
    mask = NpyShape((recipe.num_nodes,), np.bool_)
    return {
        "edge_src": edges,
        "edge_dst": edges,
        "feat": NpyShape((recipe.num_nodes, recipe.feat_dim), np.float32),
        "label": NpyShape((recipe.num_nodes,), np.int64),
        "train_mask": mask,
        "val_mask": mask,
        "test_mask": mask,
    }


def _write_edges(recipe: Recipe, rows: Rows, public_ids: I32, files: dict[str, NpyFile], progress: Progress) -> None:
    """Write the pairs that this rank has, in both directions."""
    src_file = files["edge_src"]
    dst_file = files["edge_dst"]
    at = rows.begin
    for some_low, some_high in rows.chunks():
        progress("write edges", at - rows.begin, len(rows))
        low = public_ids[some_low]
        high = public_ids[some_high]
        src_file.write(low, at=at)
        dst_file.write(high, at=at)
        src_file.write(high, at=recipe.num_pairs + at)
        dst_file.write(low, at=recipe.num_pairs + at)
        at += len(low)
    progress("write edges", len(rows), len(rows))


def _draw(recipe: Recipe, exchange: Exchange, progress: Progress) -> Rows:
    """Draw the pairs of the graph, by sorted ids. Collective on the ranks."""
    with exchange.together("planning the graph"):
        communities = _communities(recipe)
        dropping = np.random.default_rng([recipe.seed, 3])
    return draw_pairs(exchange, communities, recipe.num_pairs, dropping, progress)


def _communities(recipe: Recipe) -> Communities:
    rng = np.random.default_rng([recipe.seed, 1])
    class_offsets = _class_offsets(recipe)
    degree = 2 * recipe.num_pairs / recipe.num_nodes
    block_size = recipe.block_size or max(30, min(800, round(8 * degree)))
    begins = []
    for begin, end in pairwise(class_offsets):
        count = max(1, round((end - begin) / block_size))
        begins.append(np.linspace(begin, end, count + 1)[:-1].astype(np.int64))
    block_offsets = np.concatenate([*begins, [recipe.num_nodes]])
    weights = 1.0 + rng.pareto(2.5, recipe.num_nodes) * max(degree - 1.0, 0.0) * 1.5
    weights *= max(recipe.num_pairs, recipe.num_nodes) / weights.sum()
    p_block = recipe.homophily * recipe.block_share
    key = combine(recipe.seed, 0x67726170)
    return Communities(key, weights, rng, class_offsets, block_offsets, p_block, recipe.homophily - p_block)


def _class_offsets(recipe: Recipe) -> I64:
    """Return int64[classes + 1]: sizes fall like rank**-0.8, none is empty."""
    weights = 1.0 / np.arange(1, recipe.num_classes + 1) ** 0.8
    sizes = 1 + np.floor(weights / weights.sum() * (recipe.num_nodes - recipe.num_classes)).astype(np.int64)
    sizes[0] += recipe.num_nodes - sizes.sum()
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _permutation(rng: np.random.Generator, size: int) -> I32:
    """Return what ``rng.permutation`` does, in half the memory."""
    ids = np.arange(size, dtype=np.int32)
    rng.shuffle(ids)
    return ids


def _public_ids(recipe: Recipe) -> tuple[I32, np.random.Generator]:
    """Return the public id of each sorted id int32[n], and the generator that goes on with :func:`_masks`."""
    rng = np.random.default_rng([recipe.seed, 2])
    return _permutation(rng, recipe.num_nodes), rng


def _labels(recipe: Recipe, public_ids: I32) -> I64:
    labels = np.empty(recipe.num_nodes, np.int64)
    labels[public_ids] = np.repeat(np.arange(recipe.num_classes), np.diff(_class_offsets(recipe)))
    return labels


def _masks(recipe: Recipe, rng: np.random.Generator) -> dict[str, Array]:
    split = _permutation(rng, recipe.num_nodes)
    first = round(recipe.train_fraction * recipe.num_nodes)
    second = first + round(recipe.val_fraction * recipe.num_nodes)
    masks: dict[str, Array] = {}
    for name, ids in (("train", split[:first]), ("val", split[first:second]), ("test", split[second:])):
        masks[f"{name}_mask"] = np.zeros(recipe.num_nodes, bool)
        masks[f"{name}_mask"][ids] = True
    return masks


def _feature_chunks(recipe: Recipe, labels: I64, exchange: Exchange) -> Iterator[tuple[int, F32]]:
    """Yield this rank's chunks, every ``exchange.size``-th one, as (first node, rows)."""
    rng = np.random.default_rng([recipe.seed, 4])
    centroids = rng.standard_normal((recipe.num_classes, recipe.feat_dim), dtype=np.float32)
    centroids *= np.float32(recipe.signal / np.sqrt(recipe.feat_dim))
    step = exchange.size * _ROWS_PER_CHUNK
    for first in range(exchange.rank * _ROWS_PER_CHUNK, recipe.num_nodes, step):
        if first > 0:  # the first chunk goes on with the generator of the centroids
            rng = np.random.default_rng([recipe.seed, 4, first // _ROWS_PER_CHUNK])
        chunk = labels[first : first + _ROWS_PER_CHUNK]
        rows = rng.standard_normal((len(chunk), recipe.feat_dim), dtype=np.float32)
        rows += centroids[chunk]
        yield first, rows
