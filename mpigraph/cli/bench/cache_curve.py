"""What caches of other sizes would fetch, as people read it: bars of text, a plot, and which size to give."""

from collections.abc import Mapping
from math import ceil
from typing import Any

from mpigraph.cli.bench.caching import MOST_FAR_ROWS, MOST_MINIBATCHES, SIZES
from mpigraph.cli.bench.figures import in_digits

__all__ = ["advice", "bars", "draw"]

Values = Mapping[str, float | None]
_NAMES = {size: f"cache_{size}" for size in SIZES} | {100: "cache_floor"}
_WIDTH = 40  # characters of the longest bar
_MOST_OF_IT = 0.8  # a size that saves so much of what the largest cache saves is large enough
_WORTH_IT = 10.0  # % of the bytes of far rows
_COLOR = "#D55E00"


def _points(values: Values) -> list[tuple[int, float]]:
    """Percentage of what is read that a cache keeps, and of far rows that are fetched then; none if nothing is far."""
    found = [(size, fetched) for size, name in _NAMES.items() if (fetched := values.get(name)) is not None]
    return [(0, 100.0), *found] if found else []


def _megabytes(values: Values, size: int) -> float:
    """Memory on a node of a cache that keeps ``size`` percent of what is read."""
    tables, whole = values.get("cache_tables") or 0.0, values.get("cache_all") or 0.0
    return tables + (whole - tables) * size / 100 if size else 0.0


def bars(values: Values) -> list[str]:
    """Lines that show how much is fetched with a cache of each size; none if nothing is far."""
    points = _points(values)
    if not points:
        return []
    lines = [f"far rows that are fetched, by the percentage of what is read that a cache keeps{_simulated(values)}"]
    for size, fetched in points:
        bar = "#" * round(_WIDTH * fetched / 100)
        lines.append(
            f"{size:>9} % |{bar:<{_WIDTH}}| {fetched:5.1f} %  {in_digits(_megabytes(values, size)):>8} MB on each node"
        )
    return lines


def _simulated(values: Values) -> str:
    """How much of an epoch was simulated, where that is not all."""
    batches, epoch = values.get("cache_batches") or 0, values.get("cache_epoch") or 0
    if batches >= epoch:
        return ""
    bounds = f"at most {MOST_MINIBATCHES} are simulated, and {MOST_FAR_ROWS // 10**6} million far rows"
    return f"\n(in the first {batches:.0f} of {epoch:.0f} minibatches of an epoch: {bounds})"


def advice(values: Values, num_nodes: int) -> str:
    """One line: whether a cache is worth its memory, and which size to give."""
    if num_nodes == 1:
        return "cache: no row is far, since all ranks are on one node: there is nothing to keep"
    points = _points(values)
    if not points:
        return "cache: no row that was read is far: there is nothing to keep"
    most = 100 - points[-1][1]
    if most < _WORTH_IT:
        return f"cache: would save {most:.0f}% of the bytes of far rows, however large: few are read twice"
    size, fetched = next(point for point in points if 100 - point[1] >= _MOST_OF_IT * most)
    needed = ceil(_megabytes(values, size))
    text = f"cache: {needed} MB on each node would save {100 - fetched:.0f}% of the bytes of far rows"
    given = values.get("cache_default")
    if given is not None and given >= needed:
        return f"{text}; the default takes {given:.0f} MB, which is enough"
    default = "" if given is None else f" (the default takes {given:.0f} MB, a part of what is free)"
    return f'{text}: give loaders cache="{needed}MB"{default}'


def draw(values: Values, axes: Any) -> None:
    """Draw the curve."""
    points = _points(values)
    axes.plot(*zip(*points, strict=True), marker="o", color=_COLOR)
    for size, fetched in points[1:]:
        axes.annotate(f"{fetched:.0f}", (size, fetched), xytext=(4, 5), textcoords="offset points", fontsize=8)
    axes.set_title("with a cache")
    axes.set_xlabel("% of what is read that it keeps")
    axes.set_ylabel("% of far rows fetched")
    axes.set_xticks([0, 20, 50, 100])
    axes.set_xlim(-4, 112)
    axes.set_ylim(0, 110)
    axes.spines[["top", "right"]].set_visible(False)
