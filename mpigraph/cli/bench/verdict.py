"""The verdict: which stage of the slowest trainer's step to work on, and what to try. A table of rules over figures."""

from collections.abc import Callable, Collection, Mapping
from itertools import permutations
from statistics import median
from typing import NamedTuple

from mpigraph.cli.bench.figures import STAGES, Figure, in_digits
from mpigraph.rows.service import TRANSPORTS

__all__ = ["bottleneck", "slowest_trainer", "verdict"]

Values = Mapping[str, float | None]

_HIDDEN = 0.1  # of a step spent waiting: below this, sampling ahead hides the rest
_AS_SLOW = 0.95  # of the longest step: these trainers are in step with each other
_UNEVEN_WAIT = 0.2  # of a step: how far apart even trainers' waiting may be
_UNEVEN_STEP = 1.2  # how much longer the longest step of even trainers may be than the shortest


class Rule(NamedTuple):
    """Settings to try for a stage, where the rule applies; those that the job has already are left out."""

    stage: str
    applies: Callable[[Values], bool]
    advice: tuple[str, ...]


def _below(factor: float, small: str, large: str) -> Callable[[Values], bool]:
    """Whether one figure is less than ``factor`` times another; not where one is missing."""

    def applies(values: Values) -> bool:
        a = values.get(small)
        b = values.get(large)
        return a is not None and b is not None and a < factor * b

    return applies


def _above(name: str, limit: float) -> Callable[[Values], bool]:
    def applies(values: Values) -> bool:
        value = values.get(name)
        return value is not None and value > limit

    return applies


def _always(values: Values) -> bool:
    return True


METIS = "partitioning by METIS"
FLOAT16 = "float16 features"
NO_SERVERS = ("leaving a core to each server", "num_servers=0")
RULES = (
    *(
        Rule("step_far", _below(0.8, f"far_{slow.name}", f"far_{fast.name}"), (f"MPIGRAPH_TRANSPORT={fast.name}",))
        for slow, fast in permutations(TRANSPORTS, 2)
    ),
    Rule("step_far", _always, (METIS, FLOAT16, "more memory (fewer, larger nodes)")),
    Rule(
        "step_near", _below(0.6, "near_one", "rows_one"), ("binding ranks to cores and their memory (--bind-to core)",)
    ),
    Rule("step_near", _always, (FLOAT16, "smaller fanouts: rows come as fast as this memory gives them")),
    Rule("step_exchange", _above("round_latency", 1.0), ("binding ranks to cores", "fewer ranks than cores")),
    Rule("step_exchange", _above("service_latency", 1.0), NO_SERVERS),
    Rule("step_exchange", _always, ("larger minibatches (fewer rounds)", METIS)),
    Rule("step_sample", _always, ("more trainers per node", "return_eids=False", "smaller fanouts")),
    Rule("step_compute", _always, ("a GPU", "more threads (OMP_NUM_THREADS)", "a smaller model")),
)


def verdict(figures: Mapping[str, Figure], in_force: Collection[str] = ()) -> str:
    """Return one line: the bottleneck of the slowest trainer, how much of its step that is, and settings to try.

    Where trainers are uneven it says so: work that is spread evenly would then help more than any setting.

    Args:
        figures: of the run.
        in_force: advice of :data:`RULES` that the job follows already, such as the transport that it has chosen.
    """
    trainer = slowest_trainer(figures)
    values = _values_of(figures, trainer)
    stage, fraction = bottleneck(values)
    rules = [rule for rule in RULES if rule.stage == stage and rule.applies(values)]
    advice = ", ".join(next(filter(None, ([a for a in rule.advice if a not in in_force] for rule in rules))))
    if _below(1.05, "step_total", "step_prefetch")(values):
        advice += "; prefetching gains nothing here: leave it a core (fewer ranks or threads)"
    whose = "the step" if _num_trainers(figures) == 1 else f"the step of trainer {trainer}, the slowest"
    waiting = _waiting(values)
    waits = "" if waiting is None else f" (with prefetching its model waits {waiting:.0%} of the time)"
    return f"{STAGES[stage]}: {fraction:.0%} of {whose}{waits}; try {advice}{_unevenness(figures)}"


def slowest_trainer(figures: Mapping[str, Figure]) -> int:
    """Return the trainer that the others wait for.

    That is the one with the longest step. Trainers that share rounds all take as long as the slowest, so of those that
    take about as long it is the one that waits least.
    """
    steps = _known_steps(figures)
    if not steps:
        return 0
    longest = max(steps.values())
    candidates = [trainer for trainer, step in steps.items() if step >= _AS_SLOW * longest]
    return min(candidates, key=lambda trainer: (_waiting(_values_of(figures, trainer)) or 0.0, -steps[trainer]))


def bottleneck(values: Values) -> tuple[str, float]:
    """Return the stage that limits a trainer's step, and how much it is of a step without sampling ahead.

    Behind a prefetching loader computing limits as long as the model hardly waits, however little it takes; when it
    waits, the longest of the stages before it does.
    """
    spent = {stage: values.get(stage) or 0.0 for stage in STAGES}
    total = sum(spent.values()) or 1.0
    waiting = _waiting(values)
    if waiting is not None and waiting < _HIDDEN:
        return "step_compute", spent["step_compute"] / total
    stages = [stage for stage in STAGES if waiting is None or stage != "step_compute"]
    stage = max(stages, key=lambda name: spent[name])
    return stage, spent[stage] / total


def _unevenness(figures: Mapping[str, Figure]) -> str:
    """Return how far apart the trainers are; nothing where they are even."""
    steps = _known_steps(figures)
    if not steps:
        return ""
    waits = [_waiting(_values_of(figures, trainer)) or 0.0 for trainer in steps]
    shortest = min(steps.values())
    longest = max(steps.values())
    if max(waits) - min(waits) <= _UNEVEN_WAIT and longest <= _UNEVEN_STEP * shortest:
        return ""
    return (
        f"; trainers are uneven: a step takes {in_digits(shortest)} to {in_digits(longest)} ms, of which models wait "
        f"{min(waits):.0%} to {max(waits):.0%} (median {median(waits):.0%}): give each rank cores of its own"
    )


def _known_steps(figures: Mapping[str, Figure]) -> dict[int, float]:
    """Return the milliseconds of a step of each trainer: with prefetching where that was measured, else without."""
    for name in ("step_prefetch", "step_total"):
        if name in figures:
            steps = {trainer: step for trainer, step in enumerate(figures[name].each) if step is not None}
            if steps:
                return steps
    return {}


def _values_of(figures: Mapping[str, Figure], trainer: int) -> dict[str, float | None]:
    """Return the figures of one trainer; where it has none of its own, the value for all."""
    values = {}
    for name, figure in figures.items():
        own = figure.each[trainer] if trainer < len(figure.each) else None
        values[name] = figure.value if own is None else own
    return values


def _num_trainers(figures: Mapping[str, Figure]) -> int:
    return max((len(figure.each) for figure in figures.values()), default=1)


def _waiting(values: Values) -> float | None:
    """Return how much of a step behind a prefetching loader the model waits; None if that was not measured."""
    wait = values.get("step_wait")
    step = values.get("step_prefetch")
    return None if wait is None or not step else wait / step
