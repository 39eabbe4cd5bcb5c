"""Charts as inline SVG: rows of bars that fill the width of the page, and matrices.

Text is escaped here; numbers are limited to what the page shows. A chart has a title and a description for readers who
do not see it, and says with words or heights what it says with colours.
"""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

MOST_ROWS = 160
"""Rows of a chart; more ranks than these are left out, the slowest kept."""
_MOST_CELLS = 128  # of a matrix, on each side
_MOST_COLUMNS = 240  # of a strip
_LEVELS = 8
_STAGES = "forward backward step rest sample answer plan fetch place wait meet own".split()


class Bar(NamedTuple):
    """A piece of a row: ends as shares of the width, how many bars are around it, whether it has none inside."""

    stage: str
    begin: float
    end: float
    words: str = ""
    depth: int = 0
    leaf: bool = True


def short(text: str, most: int = 22) -> str:
    """Return text that is cut and escaped."""
    return escape(text if len(text) <= most else f"{text[: most - 1]}…")


def rows(title: str, about: str, names: Sequence[tuple[str, bool]], height: float, plot: str) -> str:
    """Return names beside a plot that is as wide as the page.

    Args:
        title: of the chart.
        about: the chart in words.
        names: of the rows, and whether each is emphasized.
        height: of a row, in pixels; of thin rows only the emphasized and some others have their names.
        plot: SVG, with x in percent and y in pixels.
    """
    texts: dict[float, str] = {}
    often = int(np.ceil(14 / height))
    for i, (name, strong) in sorted(enumerate(names), key=lambda row: not row[1][1]):
        y = max((i + 0.5) * height + 4, 10)
        if (strong or i % often == 0) and all(abs(y - other) >= 12 for other in texts):
            texts[y] = f'<text class="{"slow" if strong else ""}" y="{y:.1f}">{short(name)}</text>'
    size = f'height="{height * len(names) + 2:.0f}"'
    drawn = _svg(f'class="plot" {size}', title, about, plot)
    return (
        f'<div class="chart"><svg class="names" {size} aria-hidden="true">{"".join(texts.values())}</svg>{drawn}</div>'
    )


def strip(values: F64, waits: F64, slow: NDArray[np.bool_], height: float) -> str:
    """Return a row of columns for each trainer: its own time, dark or in the colour of slow steps, below its waits."""
    count = values.shape[1]
    width = -(-count // _MOST_COLUMNS)
    firsts = np.arange(0, count, width)
    values, waits = (np.maximum.reduceat(array, firsts, axis=1) for array in (values, values + waits))
    slow = np.logical_or.reduceat(slow, firsts, axis=1)
    highest = max(float(np.quantile(waits, 0.98)) * 1.05, 1e-12)
    heights = np.minimum(np.stack([values, waits]) / highest, 1)
    parts = []
    for i in range(len(values)):
        drawn = ""
        for name, up, chosen in (
            ("pale", heights[1, i], np.ones(len(firsts), bool)),
            ("usual", heights[0, i], ~slow[i]),
            ("slow", heights[0, i], slow[i]),
        ):
            columns = "".join(f"M{x} 100V{100 - 100 * up[x]:.0f}h.9V100" for x in np.flatnonzero(chosen))
            drawn += f'<path class="{name}" d="{columns}"/>'
        y = f'y="{i * height:.1f}" height="{max(height - (3 if height > 12 else 1), 2):.1f}"'
        parts.append(f'<svg viewBox="0 0 {len(firsts)} 100" preserveAspectRatio="none" width="100%" {y}>{drawn}</svg>')
    return "".join(parts)


def bars(row: int, height: float, pieces: Iterable[Bar], top: float = 0.0, thickness: float = 0.0) -> str:
    """Return the bars of one row; the text of a bar is cut where the bar ends."""
    thick = thickness or height - (4 if height > 12 else 1)
    parts = []
    for stage, begin, end, words, depth, leaf in pieces:
        inset = min(3 * depth, thick / 2 - 1.5)
        inner = thick - 2 * inset
        text = f'<text class="in" x="4" y="{inner / 2 + 4:.0f}">{escape(words)}</text>' if leaf and inner >= 10 else ""
        parts.append(
            f'<svg class="cell" x="{100 * begin:.2f}%" y="{row * height + top + inset:.1f}" '
            f'width="{max(100 * (end - begin), 0.05):.2f}%" height="{inner:.1f}">'
            f'<rect class="{_class(stage)}" width="100%" height="100%"/>{text}'
            f"{words and f'<title>{escape(words)}</title>'}</svg>"
        )
    return "".join(parts)


def legend(stages: Iterable[str]) -> str:
    """Return the colours of stages."""
    names = sorted(set(stages), key=lambda name: (name not in _STAGES, name in _STAGES and _STAGES.index(name)))
    return key((_class(name), name) for name in names[:24])


def key(colours: Iterable[tuple[str, str]]) -> str:
    """Return the meaning of colours, as pairs of a class and words."""
    items = (
        f'<li><svg aria-hidden="true"><rect class="{name}" width="12" height="12"/></svg>{short(words, 30)}</li>'
        for name, words in colours
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def matrix(
    title: str,
    about: str,
    names: Sequence[str],
    columns: Sequence[str],
    entries: Iterable[tuple[int, int, float]],
    show: Callable[[float], str],
) -> str:
    """Return a matrix of sums; from 129 rows or columns on, neighbours share a cell.

    Args:
        title: of the chart.
        about: the chart in words.
        names: of the rows.
        columns: names of the columns.
        entries: (row, column, value), each added.
        show: a value as text.
    """
    down = min(len(names), _MOST_CELLS)
    across = min(len(columns), _MOST_CELLS)
    values = np.zeros((down, across))
    for row, column, value in entries:
        values[row * down // len(names), column * across // len(columns)] += value
    left = 96.0
    top = 22.0
    cell = 264 / max(down, across)
    level = np.ceil(values / (values.max() or 1.0) * _LEVELS).astype(int)
    size = f"h{cell * 0.96:.2f}v{cell * 0.96:.2f}h-{cell * 0.96:.2f}"
    parts = []
    for k in range(1, _LEVELS + 1):
        cells = "".join(f"M{left + c * cell:.1f} {top + r * cell:.1f}{size}" for r, c in np.argwhere(level == k))
        parts.append(f'<path class="heat" fill-opacity="{k / _LEVELS:.2f}" d="{cells}"/>' if cells else "")
    parts.append(f'<rect class="grid" x="{left}" y="{top}" width="{across * cell:.1f}" height="{down * cell:.1f}"/>')
    for r in range(0, down, int(np.ceil(13 / cell))):
        name = names[-(-r * len(names) // down)]
        parts.append(_text(left - 4, top + (r + 0.5) * cell + 4, short(name, 17), "end"))
    for c in range(0, across, int(np.ceil(26 / cell))):
        name = columns[-(-c * len(columns) // across)]
        parts.append(_text(left + (c + 0.5) * cell, top - 6, short(name, 8), "middle"))
    for r, c in np.argwhere(values > 0) if max(down, across) <= 6 else ():
        middle = (left + (c + 0.5) * cell, top + (r + 0.5) * cell + 4)
        parts.append(_text(*middle, escape(show(values[r, c])), "middle", "strong" if level[r, c] > 5 else ""))
    box = f'class="square" viewBox="0 0 364 {top + down * cell + 2:.0f}"'
    return _svg(box, title, about, "".join(parts))


def _svg(attributes: str, title: str, about: str, content: str) -> str:
    return f'<svg {attributes} role="img"><title>{escape(title)}</title><desc>{escape(about)}</desc>{content}</svg>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    return f'<text class="small {kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _class(stage: str) -> str:
    return stage if stage in _STAGES else "other"
