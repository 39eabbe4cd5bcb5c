"""``--plot``: the time split of the step as bars, one pair for each trainer."""

from collections.abc import Mapping
from typing import Any

from mpigraph.cli.bench.figures import STAGES
from mpigraph.errors import InvalidArgumentError

__all__ = ["draw", "need_matplotlib"]

_COLORS = {  # told apart without colour vision (Okabe and Ito)
    "step_sample": "#0072B2",
    "step_exchange": "#56B4E9",
    "step_near": "#009E73",
    "step_far": "#D55E00",
    "step_compute": "#999999",
}
_WAIT = "#F0E442"
_MOST_TRAINERS = 16


def need_matplotlib() -> None:
    """Check that drawing is possible.

    Raises:
        InvalidArgumentError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise InvalidArgumentError("--plot needs matplotlib: pip install 'mpigraph[plot]'") from None


def draw(found: Mapping[str, Any], path: str) -> None:
    """Draw a document's time split.

    For each trainer the pieces of a step one after the other, and below them the step with prefetching: what the model
    waited and the rest.
    """
    from matplotlib.figure import Figure

    figures = found["figures"]
    count = min(found["layout"]["trainers"], _MOST_TRAINERS)
    picture = Figure(figsize=(9, 2 + 0.7 * count), layout="constrained")
    axes = picture.subplots()
    for trainer in range(count):
        for y, stages in _bars(figures, trainer):
            left = 0.0
            for label, color, width in stages:
                axes.barh(2.5 * trainer + y, width, left=left, height=0.9, color=color, label=label)
                left += width
    axes.set_yticks([2.5 * t + y for t in range(count) for y in (0, 1)])
    axes.set_yticklabels([text for t in range(count) for text in (f"trainer {t}, in turn", "prefetching")])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds of a step")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    picture.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
    layout = found["layout"]
    axes.set_title(f"{layout['trainers']} trainers, {layout['nodes']} node(s): {found['verdict'].partition(' (')[0]}")
    picture.savefig(path, dpi=150)


def _bars(figures: Mapping[str, Any], trainer: int) -> list[tuple[int, list[tuple[str, str, float]]]]:
    """The two bars of a trainer: position, and label, colour and width of each piece."""

    def value(name: str) -> float:
        return figures[name]["trainers"][trainer] or 0.0

    pieces = [(STAGES[name], color, value(name)) for name, color in _COLORS.items() if value(name)]
    wait, rest = value("step_wait"), value("step_prefetch") - value("step_wait")
    return [(0, pieces), (1, [("waiting for a minibatch", _WAIT, wait), ("not waiting", "#CCCCCC", rest)])]
