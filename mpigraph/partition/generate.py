"""Generated graphs: power-law degrees, planted communities, features that say something about the label.

A node's label is its class. Classes are cut into blocks (communities), and most edges stay inside a block or a
class. The features are a weak class centroid under unit noise: alone they say little, and the mean over neighbours,
most of the same class, says much more. Everything follows from the seed, and is made in chunks, so that a graph of
124 M edges needs about 1 GB.

Nodes are drawn and wired by *sorted* ids, by which the nodes of a class or block are contiguous; a random permutation
of them makes the public ids.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from mpigraph.arrays import F32, I32, I64, Array
from mpigraph.errors import InvalidArgumentError, check_integer
from mpigraph.kernels.csr import count_keys, drop_repeats, place_values
from mpigraph.kernels.random_edges import draw_edges
from mpigraph.kernels.rng import combine
from mpigraph.partition.progress import Progress, silent

__all__ = ["GRAPH_FILES", "Recipe", "generate_graph", "write_graph"]

GRAPH_FILES = ("edge_src", "edge_dst", "feat", "label", "train_mask", "val_mask", "test_mask")

_EDGES_PER_CHUNK = 1 << 22
_ROWS_PER_CHUNK = 1 << 17
_MAX_ATTEMPTS = 8


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
    labels, public_ids, masks = _labels_and_masks(recipe)
    chunks = list(_pair_chunks(recipe, public_ids, silent))
    none = np.zeros(0, np.int32)
    low = np.concatenate([none, *(chunk[0] for chunk in chunks)])
    high = np.concatenate([none, *(chunk[1] for chunk in chunks)])
    ends = {"edge_src": np.concatenate([low, high]), "edge_dst": np.concatenate([high, low])}
    feat = np.concatenate(list(_feature_chunks(recipe, labels)))
    return {**ends, "feat": feat, "label": labels, **masks}


def write_graph(recipe: Recipe, directory: str | os.PathLike[str], progress: Progress | None = None) -> Path:
    """Write a generated graph as ``.npy`` files and ``meta.json``, in chunks.

    Args:
        recipe: the settings.
        directory: created if missing.
        progress: what to report to.

    Returns:
        The directory.
    """
    progress = progress or silent
    out = Path(directory)
    out.mkdir(parents=True, exist_ok=True)
    labels, public_ids, masks = _labels_and_masks(recipe)
    num_pairs = recipe.num_pairs
    with (
        _NpyWriter(out / "edge_src.npy", (2 * num_pairs,), np.int32) as src_file,
        _NpyWriter(out / "edge_dst.npy", (2 * num_pairs,), np.int32) as dst_file,
    ):
        done = 0
        for low, high in _pair_chunks(recipe, public_ids, progress):
            progress("write edges", done, num_pairs)
            src_file.write(low, at=done)
            dst_file.write(high, at=done)
            src_file.write(high, at=num_pairs + done)
            dst_file.write(low, at=num_pairs + done)
            done += len(low)
        progress("write edges", num_pairs, num_pairs)
    with _NpyWriter(out / "feat.npy", (recipe.num_nodes, recipe.feat_dim), np.float32) as feat_file:
        done = 0
        for rows in _feature_chunks(recipe, labels):
            progress("write features", done, recipe.num_nodes)
            feat_file.write(rows, at=done)
            done += len(rows)
        progress("write features", recipe.num_nodes, recipe.num_nodes)
    for name, array in {"label": labels, **masks}.items():
        np.save(out / f"{name}.npy", array)
    meta = {**asdict(recipe), "num_edges": 2 * num_pairs, "both_directions": True}
    (out / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    return out


class _NpyWriter:
    """A ``.npy`` file of known shape and dtype, filled by :meth:`write`; a context manager.

    Args:
        path: the file, replaced if it exists.
        shape: full shape, first dimension the rows.
        dtype: dtype of the values.
    """

    def __init__(self, path: str | os.PathLike[str], shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._row_bytes = self._dtype.itemsize * int(np.prod(shape[1:]))
        self._file = open(path, "wb")
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)
        self._begin = self._file.tell()
        self._file.truncate(self._begin + shape[0] * self._row_bytes)

    def write(self, rows: Array, at: int) -> None:
        """Write rows from row number ``at`` on."""
        self._file.seek(self._begin + at * self._row_bytes)
        self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "_NpyWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Communities:
    """Classes and blocks by sorted ids, and how often each node is to be the end of an edge."""

    def __init__(self, recipe: Recipe) -> None:
        rng = np.random.default_rng([recipe.seed, 1])
        class_offsets = _class_offsets(recipe)
        degree = 2 * recipe.num_pairs / recipe.num_nodes
        block_size = recipe.block_size or max(30, min(800, round(8 * degree)))
        begins = []
        for begin, end in pairwise(class_offsets):
            count = max(1, round((end - begin) / block_size))
            begins.append(np.linspace(begin, end, count + 1)[:-1].astype(np.int64))
        block_offsets = np.concatenate([*begins, [recipe.num_nodes]])
        self.class_of_block = np.repeat(np.arange(recipe.num_classes, dtype=np.int32), [len(b) for b in begins])
        sizes = np.diff(block_offsets)
        self.block_of = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        weights = 1.0 + rng.pareto(2.5, recipe.num_nodes) * max(degree - 1.0, 0.0) * 1.5
        weights *= max(recipe.num_pairs, recipe.num_nodes) / weights.sum()
        counts = np.maximum(np.floor(weights + rng.random(recipe.num_nodes)).astype(np.int64), 1)
        ends = np.concatenate([[0], np.cumsum(counts)])
        self.stubs = np.repeat(np.arange(recipe.num_nodes, dtype=np.int32), counts)
        self.block_stubs = ends[block_offsets]
        self.class_stubs = ends[class_offsets]
        self.p_block = recipe.homophily * recipe.block_share
        self.p_class = recipe.homophily - self.p_block
        self.key = combine(recipe.seed, 0x67726170)

    def draw(self, count: int) -> Iterator[tuple[I64, I64]]:
        """Yield the first ``count`` edges as chunks (low, high); every call yields the same ones."""
        for first in range(0, count, _EDGES_PER_CHUNK):
            low, high = np.empty((2, min(_EDGES_PER_CHUNK, count - first)), np.int64)
            draw_edges(
                self.key, first, self.stubs, self.block_of, self.block_stubs, self.class_of_block,
                self.class_stubs, self.p_block, self.p_class, low, high,
            )  # fmt: skip
            yield low, high


def _class_offsets(recipe: Recipe) -> I64:
    """Return int64[classes + 1]: sizes fall like rank**-0.8, none is empty."""
    weights = 1.0 / np.arange(1, recipe.num_classes + 1) ** 0.8
    sizes = 1 + np.floor(weights / weights.sum() * (recipe.num_nodes - recipe.num_classes)).astype(np.int64)
    sizes[0] += recipe.num_nodes - sizes.sum()
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _labels_and_masks(recipe: Recipe) -> tuple[I64, I32, dict[str, Array]]:
    """Return labels int64[n], the public id of each sorted id int32[n], and the masks."""
    rng = np.random.default_rng([recipe.seed, 2])
    public_ids = rng.permutation(recipe.num_nodes).astype(np.int32)
    labels = np.empty(recipe.num_nodes, np.int64)
    labels[public_ids] = np.repeat(np.arange(recipe.num_classes), np.diff(_class_offsets(recipe)))
    split = rng.permutation(recipe.num_nodes)
    first = round(recipe.train_fraction * recipe.num_nodes)
    second = first + round(recipe.val_fraction * recipe.num_nodes)
    masks: dict[str, Array] = {}
    for name, ids in (("train", split[:first]), ("val", split[first:second]), ("test", split[second:])):
        masks[f"{name}_mask"] = np.zeros(recipe.num_nodes, bool)
        masks[f"{name}_mask"][ids] = True
    return labels, public_ids, masks


def _pair_chunks(recipe: Recipe, public_ids: I32, progress: Progress) -> Iterator[tuple[I32, I32]]:
    """Yield the undirected edges in public ids, exactly ``recipe.num_pairs`` of them, none twice."""
    indptr, high = _distinct_pairs(recipe, progress)
    surplus = len(high) - recipe.num_pairs
    drop = np.random.default_rng([recipe.seed, 3]).choice(len(high), surplus, replace=False, shuffle=False)
    drop.sort()
    rows_per_chunk = max(1, recipe.num_nodes * _EDGES_PER_CHUNK // max(len(high), 1))
    for first in range(0, recipe.num_nodes, rows_per_chunk):
        last = min(first + rows_per_chunk, recipe.num_nodes)
        begin, end = int(indptr[first]), int(indptr[last])
        keep = np.ones(end - begin, bool)
        keep[drop[np.searchsorted(drop, begin) : np.searchsorted(drop, end)] - begin] = False
        low = np.repeat(public_ids[first:last], np.diff(indptr[first : last + 1]))
        yield low[keep], public_ids[high[begin:end][keep]]


def _distinct_pairs(recipe: Recipe, progress: Progress) -> tuple[I64, I32]:
    """Draw until there are enough distinct pairs: rows of larger ends by smaller end, as indptr and int32 entries."""
    communities = _Communities(recipe)
    count = round(recipe.num_pairs * 1.05) + 16
    done = 0  # draws of all attempts
    for _ in range(_MAX_ATTEMPTS):
        indptr, high = _draw_pairs(recipe.num_nodes, count, communities, done, progress)
        done += 2 * count
        if len(high) >= recipe.num_pairs:
            progress("draw edges", done, done)
            return indptr, high
        tried = count
        count = round(count * min(4.0, max(1.1, 1.1 * recipe.num_pairs / max(len(high), 1))))
    raise InvalidArgumentError(
        f"num_edges {recipe.num_edges} is too dense for {recipe.num_nodes} nodes: "
        f"{tried} draws gave only {len(high)} of {recipe.num_pairs} pairs; lower it or homophily"
    )


def _draw_pairs(
    num_nodes: int, count: int, communities: _Communities, done: int, progress: Progress
) -> tuple[I64, I32]:
    """Counting sort of ``count`` drawn edges by smaller end, then without repeats and self loops.

    Both passes draw. Never reports the end: the caller sees by the result whether the draws are enough.
    """
    total = done + 2 * count
    counts = np.zeros(num_nodes + 1, np.int64)
    for low, high in communities.draw(count):
        progress("draw edges", done, total)
        count_keys(low[low != high], 1, counts)
        done += len(low)
    indptr = np.cumsum(counts)
    entries = np.empty(int(indptr[-1]), np.int32)
    fill = indptr[:-1].copy()
    for low, high in communities.draw(count):
        progress("draw edges", done, total)
        proper = low != high
        place_values(low[proper], high[proper], fill, entries)
        done += len(low)
    kept = drop_repeats(indptr, fill, entries, np.full(num_nodes, -1, np.int32), counts)
    return counts, entries[:kept]


def _feature_chunks(recipe: Recipe, labels: I64) -> Iterator[F32]:
    rng = np.random.default_rng([recipe.seed, 4])
    centroids = rng.standard_normal((recipe.num_classes, recipe.feat_dim), dtype=np.float32)
    centroids *= np.float32(recipe.signal / np.sqrt(recipe.feat_dim))
    for first in range(0, recipe.num_nodes, _ROWS_PER_CHUNK):
        chunk = labels[first : first + _ROWS_PER_CHUNK]
        rows = rng.standard_normal((len(chunk), recipe.feat_dim), dtype=np.float32)
        rows += centroids[chunk]
        yield rows
