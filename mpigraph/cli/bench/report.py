"""What the run says: a table, a line, a JSON document."""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpigraph.cli.bench.figures import CATALOGUE, Figure
from mpigraph.cli.bench.settings import Settings
from mpigraph.mpi.compat import library_version, thread_level
from mpigraph.mpi.world import World

__all__ = ["SCHEMA", "VERSION", "document", "table", "write"]

SCHEMA, VERSION = "mpigraph-bench", 1


def document(
    world: World, settings: Settings, machine: Mapping[str, Any], figures: Mapping[str, Figure], verdict: str
) -> dict[str, Any]:
    """Everything about a run as JSON values.

    ``schema`` and ``version`` say how to read it: names and meanings within a version do not change.
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
                "combined": entry.combine,
                "trainers": figures[name].each,
            }
            for name, entry in CATALOGUE.items()
        },
        "verdict": verdict,
    }


def table(found: Mapping[str, Any]) -> str:
    """The figures of a document for people."""
    layout, machine = found["layout"], found["machine"]
    lines = [
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_GiB']} GiB; {found['mpi']['library']}",
        f"{layout['ranks']} ranks on {layout['nodes']} node(s): {layout['trainers']} trainers, "
        f"{layout['servers_per_node']} server(s) on each node",
        "",
    ]
    section = ""
    for name, figure in found["figures"].items():
        if figure["value"] is None:
            continue
        entry = CATALOGUE[name]
        head, section = (entry.section if entry.section != section else ""), entry.section
        lines.append(f"{head:<9} {_number(figure['value']):>9} {entry.unit:<5} {entry.text}{_spread(figure)}")
    return "\n".join([*lines, "", found["verdict"]])


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 or value == 0 else f"{value:.4g}" if value >= 1 else f"{value:.3f}"


def _spread(figure: Mapping[str, Any]) -> str:
    """Smallest and largest value of the trainers, where they differ by more than a tenth."""
    each = [value for value in figure["trainers"] if value is not None]
    if len(each) < 2 or max(each) <= 1.1 * min(each):
        return ""
    return f" ({_number(min(each))} to {_number(max(each))})"


def write(found: Mapping[str, Any], path: str) -> None:
    """Write a document."""
    Path(path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
