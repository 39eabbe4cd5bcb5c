"""The verdict: which piece of the step to work on, and what to try. A table of rules over the figures."""

from collections.abc import Callable, Mapping
from itertools import permutations
from typing import NamedTuple

from mpigraph.cli.bench.figures import STAGES
from mpigraph.rows.service import TRANSPORTS

__all__ = ["bottleneck", "verdict"]

Values = Mapping[str, float | None]

_HIDDEN = 0.1  # share of a step spent waiting below which sampling ahead hides the rest


class Rule(NamedTuple):
    """What to try for a stage, where it applies."""

    stage: str
    applies: Callable[[Values], bool]
    advice: str


def _below(share: float, small: str, large: str) -> Callable[[Values], bool]:
    """Whether one figure is less than a share of another; not where one is missing."""

    def applies(values: Values) -> bool:
        a, b = values.get(small), values.get(large)
        return a is not None and b is not None and a < share * b

    return applies


def _above(name: str, limit: float) -> Callable[[Values], bool]:
    def applies(values: Values) -> bool:
        value = values.get(name)
        return value is not None and value > limit

    return applies


def _always(values: Values) -> bool:
    return True


RULES = (
    *(
        Rule("step_far", _below(0.8, f"far_{slow.name}", f"far_{fast.name}"), f"MPIGRAPH_TRANSPORT={fast.name}")
        for slow, fast in permutations(TRANSPORTS, 2)
    ),
    Rule("step_far", _always, "partitioning by METIS, float16 features, more memory (fewer, larger nodes)"),
    Rule("step_near", _below(0.6, "near_one", "rows_one"), "binding ranks to cores and their memory (--bind-to core)"),
    Rule("step_near", _always, "float16 features, smaller fanouts: rows come as fast as this memory gives them"),
    Rule("step_exchange", _above("round_latency", 1000.0), "binding ranks to cores, fewer ranks than cores"),
    Rule("step_exchange", _above("service_latency", 1000.0), "leaving a core to each server, or num_servers=0"),
    Rule("step_exchange", _always, "larger minibatches (fewer rounds), partitioning by METIS"),
    Rule("step_sample", _always, "more trainers per node, return_eids=False, smaller fanouts"),
    Rule("step_compute", _always, "a GPU, more threads (OMP_NUM_THREADS), a smaller model"),
)


def bottleneck(values: Values) -> tuple[str, float]:
    """The stage that limits the step, and its share of a step without sampling ahead.

    Behind a prefetching loader computing limits as long as the model hardly waits, however small its share; when it
    waits, the largest of the stages before it does.
    """
    spent = {stage: values.get(stage) or 0.0 for stage in STAGES}
    total = sum(spent.values()) or 1.0
    waiting = _waiting(values)
    if waiting is not None and waiting < _HIDDEN:
        return "step_compute", spent["step_compute"] / total
    stages = [stage for stage in STAGES if waiting is None or stage != "step_compute"]
    stage = max(stages, key=lambda name: spent[name])
    return stage, spent[stage] / total


def verdict(values: Values) -> str:
    """One line: the bottleneck, its share, and what to try."""
    stage, share = bottleneck(values)
    advice = next(rule.advice for rule in RULES if rule.stage == stage and rule.applies(values))
    waiting = _waiting(values)
    hiding = "" if waiting is None else f" (with prefetching the model waits {waiting:.0%} of the time)"
    if _below(1.05, "step_total", "step_prefetch")(values):
        advice += "; prefetching gains nothing here: leave it a core (fewer ranks or threads)"
    return f"{STAGES[stage]}: {share:.0%} of the step{hiding}; try {advice}"


def _waiting(values: Values) -> float | None:
    """Share of a step behind a prefetching loader that the model waits; None if that was not measured."""
    wait, step = values.get("step_wait"), values.get("step_prefetch")
    return None if wait is None or not step else wait / step
