"""Scores of pairs of nodes by their rows: of given pairs, and the best destinations of each source."""

from collections.abc import Callable
from typing import TypeAlias

import torch

from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import InvalidArgumentError, OutOfRangeError, check_integer
from mpigraph.graphs.fields import IdsLike, as_ids
from mpigraph.graphs.in_memory import exact_device

Score: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Rows of sources and of destinations, [n, ...] each -> float[n]."""


def _dot(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _check_widths(u, v)
    return (_wide(u) * _wide(v)).reshape(len(u), -1).sum(1)


def score_pairs(
    rows: DistTensor | tuple[DistTensor, DistTensor],
    src: IdsLike,
    dst: IdsLike,
    *,
    batch_size: int,
    score: Score = _dot,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Score pairs of nodes.

    Args:
        rows: rows of the nodes, as of :func:`.layerwise`; or a pair, of the sources and of the destinations.
        src: int[n], sources.
        dst: int[n], destinations.
        batch_size: most pairs at a time.
        score: ``score(u, v) -> float[n]``; the dot product by default, in float32 for narrower rows. A module, such as
            :class:`.EdgePredictor`, keeps its mode.
        device: where to compute.

    Returns:
        float[n], on the CPU.

    Raises:
        OutOfRangeError: a node does not exist.
        InvalidArgumentError: another argument is wrong.

    One-sided; every trainer can call it alone, with pairs of its own.
    """
    sources, destinations = _two(rows)
    step, device = check_integer("batch_size", batch_size, 1), exact_device(device)
    if not callable(score):
        raise InvalidArgumentError(f"score must be callable (got {score!r})")
    u, v = as_ids(src, "source ids"), as_ids(dst, "destination ids")
    if len(u) != len(v):
        raise InvalidArgumentError(f"a pair has two ends (got {len(u)} sources and {len(v)} destinations)")
    _check(u, sources)
    _check(v, destinations)
    scores = [torch.empty(0)] if len(u) == 0 else []
    with torch.no_grad():
        for begin in range(0, len(u), step):
            ends = u[begin : begin + step], v[begin : begin + step]
            batch = score(sources[ends[0]].to(device), destinations[ends[1]].to(device))
            if not isinstance(batch, torch.Tensor) or batch.numel() != len(ends[0]):
                got = tuple(batch.shape) if isinstance(batch, torch.Tensor) else type(batch).__name__
                raise InvalidArgumentError(f"score must give one number for each of {len(ends[0])} pairs (got {got})")
            scores.append(batch.reshape(-1).cpu())
    return torch.cat(scores)


def top_k(
    rows: DistTensor | tuple[DistTensor, DistTensor],
    src: IdsLike,
    k: int,
    *,
    batch_size: int,
    device: torch.device | str = "cpu",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the destinations with the largest dot products with each source, best first, ties by lower id.

    NaN comes behind all numbers. Destinations are read in batches, each once for all sources; memory never holds all
    products.

    Args:
        rows: [num_nodes, width], as of :func:`.layerwise`; or a pair, of the sources and of the destinations.
        src: int[n], sources.
        k: destinations for each source; fewer where there are fewer.
        batch_size: most destinations at a time.
        device: where to compute.

    Returns:
        float[n, k] scores and int64[n, k] destinations, on the CPU.

    Raises:
        OutOfRangeError: a node does not exist.
        InvalidArgumentError: another argument is wrong.

    One-sided; every trainer can call it alone, with sources of its own.
    """
    sources, destinations = _two(rows)
    step, k, device = check_integer("batch_size", batch_size, 1), check_integer("k", k, 0), exact_device(device)
    u = as_ids(src, "source ids")
    _check(u, sources)
    if len(sources.shape) != 2:
        raise InvalidArgumentError(f"rows must have one width (got shape {sources.shape})")
    _check_widths(sources, destinations)
    with torch.no_grad():
        h = _wide(sources[u].to(device))
        best = h.new_empty((len(u), 0))
        ids = torch.empty((len(u), 0), dtype=torch.int64, device=h.device)
        for begin in range(0, len(destinations), step):
            batch = destinations[begin : min(begin + step, len(destinations))].to(h)
            best = torch.cat([best, h @ batch.T], 1)
            new = torch.arange(begin, begin + len(batch), device=h.device).expand(len(u), -1)
            ids = torch.cat([ids, new], 1)
            worth = best.nan_to_num(-torch.inf, torch.inf, -torch.inf)  # else torch puts NaN first
            order = torch.argsort(worth, dim=1, descending=True, stable=True)[:, :k]  # ids ascend among equals
            best, ids = best.gather(1, order), ids.gather(1, order)
    return best.cpu(), ids.cpu()


def _two(rows: DistTensor | tuple[DistTensor, DistTensor]) -> tuple[DistTensor, DistTensor]:
    pair = rows if isinstance(rows, tuple) else (rows, rows)
    if len(pair) != 2 or not all(isinstance(one, DistTensor) for one in pair):
        raise InvalidArgumentError(f"rows must be a DistTensor, or two (got {rows!r})")
    return pair


def _wide(rows: torch.Tensor) -> torch.Tensor:
    return rows if rows.dtype == torch.float64 else rows.float()


def _check_widths(u: torch.Tensor | DistTensor, v: torch.Tensor | DistTensor) -> None:
    if u.shape[1:] != v.shape[1:]:
        raise InvalidArgumentError(f"rows must be of one width (got shapes {tuple(u.shape)} and {tuple(v.shape)})")


def _check(ids: torch.Tensor, rows: DistTensor) -> None:
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(rows):
        raise OutOfRangeError(f"tensor {rows.name!r} has no row {int(ids.max() if ids.min() >= 0 else ids.min())}")
