"""What a run reports: a table, the verdict's line, a JSON document, and with ``--plot`` each stage's time as bars."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpigraph.cli.bench import cache_curve
from mpigraph.cli.bench.figures import CATALOGUE, STAGES, Entry, Figure, in_digits
from mpigraph.cli.bench.settings import Settings
from mpigraph.errors import InvalidArgumentError
from mpigraph.mpi.compat import library_version, thread_level
from mpigraph.mpi.world import World

__all__ = ["SCHEMA", "VERSION", "check_file_writable", "document", "draw", "need_matplotlib", "table", "write"]

SCHEMA = "mpigraph-bench"
VERSION = 2

_COLORS = {  # told apart without colour vision (Okabe and Ito)
    "step_sample": "#0072B2",
    "step_exchange": "#56B4E9",
    "step_near": "#009E73",
    "step_far": "#D55E00",
    "step_compute": "#999999",
}
_WAIT_COLOR = "#F0E442"
_REST_COLOR = "#CCCCCC"
_MAX_TRAINERS_DRAWN = 16


def document(
    world: World, settings: Settings, machine: Mapping[str, Any], figures: Mapping[str, Figure], verdict: str
) -> dict[str, Any]:
    """Return everything about a run as JSON values.

    ``schema`` and ``version`` say how to read it: names, units and meanings within a version do not change.
    """
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": dict(machine),
        "mpi": {"library": library_version(), "threads": thread_level()},
        "layout": {
            "ranks": world.size,
            "nodes": world.num_nodes,
            "trainers": len(world.trainer_ranks),
            "hosts": len(world.hosts),
            "servers_per_node": world.num_servers,
            "ranks_per_node": world.config.ranks_per_node,
        },
        "settings": asdict(settings),
        "figures": {
            name: {
                "value": figures[name].value,
                "unit": entry.unit,
                "meaning": entry.text,
                "of": entry.of,
                "combined": entry.combine,
                "trainers": figures[name].each,
            }
            for name, entry in CATALOGUE.items()
        },
        "verdict": verdict,
        "cache": cache_curve.advice({name: figure.value for name, figure in figures.items()}, world.num_nodes),
    }


def table(found: Mapping[str, Any]) -> str:
    """Return the figures of a document for people."""
    layout = found["layout"]
    machine = found["machine"]
    lines = [
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_GiB']} GiB; {found['mpi']['library']}",
        f"{layout['ranks']} ranks on {layout['nodes']} node(s): {layout['trainers']} trainers, "
        f"{layout['servers_per_node']} server(s) on each node",
        "",
    ]
    section = ""
    for name, entry in CATALOGUE.items():
        figure = found["figures"][name]
        if figure["value"] is None:
            continue
        heading = entry.section if entry.section != section else ""
        section = entry.section
        number = in_digits(figure["value"])
        known = [value for value in figure["trainers"] if value is not None]
        row = f"{heading:<9} {number:>9} {entry.unit:<5} {_whose(entry, len(known)):<24} {entry.text}"
        lines.append(row + _spread(entry, known))
    curve = cache_curve.bars(_values(found))
    return "\n".join([*lines, "", *([*curve, ""] if curve else []), found["cache"], "", found["verdict"]])


def write(found: Mapping[str, Any], path: str) -> None:
    """Write a document."""
    Path(path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def check_file_writable(path: str) -> None:
    """Check that a file can be written, without changing it; a device, which may be full, gets an empty line.

    Raises:
        InvalidArgumentError: it cannot; the message says why.
    """
    existed = Path(path).exists()
    try:
        with open(path, "ab") as file:
            if not existed or not Path(path).is_file():
                file.write(b"\n")
    except OSError as error:
        raise InvalidArgumentError(f"{path}: cannot be written: {error.strerror or error}") from error
    if not existed:
        Path(path).unlink()


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
    """Draw where the time of a document's step goes, and what caches of far rows would fetch.

    For each trainer the stages of a step one after the other, and below them the step with prefetching: what the model
    waited and the rest.
    """
    from matplotlib.figure import Figure as Picture

    layout = found["layout"]
    count = min(layout["trainers"], _MAX_TRAINERS_DRAWN)
    values = _values(found)
    curve = bool(cache_curve.bars(values))
    picture = Picture(figsize=(12 if curve else 9, max(3, 2 + 0.7 * count)), layout="constrained")
    axes, *beside = picture.subplots(1, 1 + curve, width_ratios=[3, 1][: 1 + curve], squeeze=False)[0]
    for other in beside:
        cache_curve.draw(values, other)
    for trainer in range(count):
        for y, sections in enumerate(_bars(found["figures"], trainer)):
            left = 0.0
            for label, color, width in sections:
                axes.barh(2.5 * trainer + y, width, left=left, height=0.9, color=color, label=label)
                left += width
    axes.set_yticks([2.5 * trainer + y for trainer in range(count) for y in (0, 1)])
    axes.set_yticklabels([text for t in range(count) for text in (f"trainer {t}, in turn", "prefetching")])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds of a step")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    picture.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
    axes.set_title(f"{layout['trainers']} trainers, {layout['nodes']} node(s): {found['verdict'].partition(' (')[0]}")
    picture.savefig(path, dpi=150)


def _values(found: Mapping[str, Any]) -> dict[str, float | None]:
    """The one value of each figure of a document."""
    return {name: figure["value"] for name, figure in found["figures"].items()}


def _whose(entry: Entry, count: int) -> str:
    """Return what the value in a row of the table is of, where ``count`` values were measured."""
    if entry.of == "server":
        return "largest server"
    if count == 1:
        return f"one {entry.of}"
    if entry.combine == "node sum":
        return "sum of a node's trainers"
    how = {"median": "median", "max": "largest", "min": "smallest", "sum": "sum"}[entry.combine]
    return f"{how} of {count} {entry.of}s"


def _spread(entry: Entry, known: list[float]) -> str:
    """Return the smallest and largest single value, where they differ by more than a tenth or the row shows a sum."""
    is_sum = entry.combine in ("sum", "node sum")
    if len(known) < 2 or (max(known) <= 1.1 * min(known) and not is_sum):
        return ""
    return f" (each {entry.of}: {in_digits(min(known))} to {in_digits(max(known))})"


def _bars(figures: Mapping[str, Any], trainer: int) -> list[list[tuple[str, str, float]]]:
    """Return the two bars of a trainer: label, color and width of each section."""

    def value(name: str) -> float:
        return figures[name]["trainers"][trainer] or 0.0

    in_turn = [(STAGES[name], color, value(name)) for name, color in _COLORS.items() if value(name)]
    wait = value("step_wait")
    rest = value("step_prefetch") - wait
    return [in_turn, [("waiting for a minibatch", _WAIT_COLOR, wait), ("not waiting", _REST_COLOR, rest)]]
