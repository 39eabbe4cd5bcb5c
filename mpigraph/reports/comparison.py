"""Changes between two runs of a job."""

from collections.abc import Callable, Iterable

import numpy as np

from mpigraph.memory import in_units
from mpigraph.reports.summary import Summary
from mpigraph.reports.verdict import StepTable, cache_hits, duration

_DIFFERS = 0.04  # of a step: a smaller change is not shown


def compare(first: Summary, second: Summary) -> list[str]:
    """Return lines about steps, stages, traffic, caches and settings that differ between two runs."""
    runs = [(summary, StepTable(summary)) for summary in (first, second)]
    steps = [table.step for _, table in runs]
    lines = [f"median step: {_change(steps, duration)}"]
    for name, words in (("compute", "own time"), ("wait", "wait for minibatches"), ("meet", "wait for trainers")):
        medians = [float(np.median(getattr(table, name))) if table.count else 0.0 for _, table in runs]
        lines += [f"  {words}: {_change(medians, duration)}"] if _differ(medians, max(steps)) else []
    stages = [_stages(table) for _, table in runs]
    for name in sorted({name for by_name in stages for name in by_name}):
        seconds = [by_name.get(name, 0.0) for by_name in stages]
        lines += [f"  stage {name}: {_change(seconds, duration)}"] if _differ(seconds, max(steps)) else []
    received = [_per_step((to.bytes_received for r in table.trainers for to in r.to_hosts), table) for _, table in runs]
    if _differ(received, max(received)):
        lines.append(f"received by a trainer in a step: {_change(received, lambda size: in_units(int(size)))}")
    hits = [cache_hits(summary.trainers) or 0.0 for summary, _ in runs]
    lines += [f"cache hits: {_change(hits, lambda share: f'{100 * share:.0f} %')}"] if _differ(hits, 1) else []
    settings = [_settings(summary) for summary, _ in runs]
    for name in sorted({name for by_name in settings for name in by_name}):
        values = [by_name.get(name, "not set") for by_name in settings]
        lines += [f"{name}: {values[0]} -> {values[1]}"] if values[0] != values[1] else []
    return lines


def _differ(numbers: list[float], whole: float) -> bool:
    return abs(numbers[0] - numbers[1]) > _DIFFERS * whole


def _change(numbers: list[float], show: Callable[[float], str]) -> str:
    ratio = f" ({numbers[1] / numbers[0]:.2f}x)" if numbers[0] > 0 else ""
    return f"{show(numbers[0])} -> {show(numbers[1])}{ratio}"


def _per_step(numbers: Iterable[float], table: StepTable) -> float:
    return sum(numbers) / max(table.count * len(table.trainers), 1)


def _stages(table: StepTable) -> dict[str, float]:
    """Return the seconds of each stage in a step of a trainer, without the stages inside it."""
    totals: dict[str, float] = {}
    for rank in table.trainers:
        for thread in rank.threads:
            for name, stage in thread.stages.items():
                totals[name] = totals.get(name, 0.0) + _per_step([stage.own], table)
    return totals


def _settings(summary: Summary) -> dict[str, str]:
    job = summary.job
    layout = {
        "trainers": str(len(summary.trainers)),
        "ranks": str(len(summary.ranks)),
        "nodes": str(len(summary.nodes)),
    }
    versions = {f"version of {name}": text for name, text in job.versions.items()}
    choices = {"transport": job.transport, "exchange": job.exchange, "process group": job.process_group}
    return {**layout, **choices, **versions, **job.arguments, **job.settings, "command": " ".join(job.command)}
