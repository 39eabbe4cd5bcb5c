"""Verdicts by construction: made-up jobs with one fault each, and balanced ones on noisy machines."""

import itertools
import re
from collections.abc import Iterator

import numpy as np
import pytest
from made_summaries import Fault, Setup, made

from mpigraph.reports.summary import Stage, Steps, Summary, ToHost
from mpigraph.reports.verdict import StepTable, judge

SHAPES = [(2, 2), (3, 3), (4, 4), (4, 2), (8, 4)]
NOISES = {
    "quiet": {"noise": 0.05},
    "noisy": {"noise": 0.2},
    "spiky": {"noise": 0.1, "spikes": 0.03},
    "bursty": {"noise": 0.1, "bursts": 0.2},
    "oversubscribed": {"noise": 0.2, "spikes": 0.02, "oversubscribed": 0.4},
}
LOADS = [{}, {"model": 0.05, "sample": 0.08}, {"model": 0.02, "sample": 0.005}, {"all_reduce": 0.2}, {"steps": 12}]


def jobs(noises: list[str], least_nodes: int = 2, **settings) -> Iterator[tuple[int, Setup]]:
    """Jobs of all shapes, with and without servers and prefetching; a seed for each."""
    shapes = [shape for shape in SHAPES if shape[1] >= least_nodes]
    ways = itertools.product(shapes, (False, True), (False, True), noises)
    for seed, ((trainers, nodes), servers, prefetch, noise) in enumerate(ways):
        shape = {"trainers": trainers, "nodes": nodes, "servers": servers, "prefetch": prefetch}
        yield seed, Setup(**(shape | NOISES[noise] | settings))


@pytest.mark.parametrize(
    "load", [LOADS[0], *(pytest.param(load, marks=pytest.mark.slow) for load in LOADS[1:])], ids=str
)
def test_no_rank_of_a_balanced_job_is_named(load: dict[str, float]) -> None:
    wrong = [verdict.text for seed, setup in jobs(list(NOISES), **load) if (verdict := judge(made(seed, setup))).ranks]
    assert wrong == []


CALM = ["quiet", "noisy", "spiky"]


@pytest.mark.parametrize(
    "kind, size, noises, named, reason, settings",
    [
        ("model", 1.6, CALM, "trainer", "stage", {}),
        ("model", 4, CALM, "trainer", "stage", {}),
        ("model", 3, ["oversubscribed"], "trainer", "stage", {}),  # on machines with too few processors
        ("sudden", 2, ["quiet"], "trainer", "sudden", {}),
        ("sudden", 5, ["quiet"], "trainer", "sudden", {}),
        ("seeds", 1.7, CALM, "trainer", "seeds", {}),
        ("memory", 1.7, CALM, "trainer", "memory", {}),
        ("cache", 1, CALM, "trainer", "cache", {"bandwidth": 3e7, "model": 0.05, "hits": 0.8}),
        ("delay", 300, CALM, "host", "network", {"least_nodes": 3}),  # of two nodes both are ends of the link
        ("bandwidth", 100, CALM, "host", "network", {"least_nodes": 3}),
        ("starved", 100, CALM, "host", "processor", {"servers": True}),
        ("slow_memory_server", 100, CALM, "host", "memory", {"servers": True}),
        ("small_cache", 1, CALM, "balanced", "", {"bandwidth": 1e7}),  # of all nodes: what the job is bound by
    ],
)
def test_a_fault_is_named(
    kind: str, size: float, noises: list[str], named: str, reason: str, settings: dict[str, float]
) -> None:
    wrong = []
    for seed, setup in jobs(noises, **settings):
        fault = Fault(kind, (seed + 1) % setup.nodes, size)
        summary = made(seed, setup, fault)
        verdict = judge(summary)
        places = {summary.ranks[rank].node if named == "host" else rank for rank in verdict.ranks}
        right = verdict.kind == named and places == (set() if named == "balanced" else {fault.at})
        if named == "balanced":
            right &= verdict.stages == ("fetch",) and "cache hits 10 %" in verdict.text
        if not right or verdict.reason != reason:
            wrong.append(f"{setup} {fault}: {verdict.text}")
    assert wrong == []


@pytest.mark.parametrize(("stalls", "stage"), [(8, "fetch"), (20, "sample")])
def test_waits_for_trainers_that_fetch_are_not_sampling(stalls: int, stage: str) -> None:
    """Each trainer samples in rounds of all, and fetches for 0.4 s before some, in which the others wait for it."""
    summary = made(0, Setup(steps=20, bandwidth=2e7))
    took = [0.4] * stalls + [0.03] * (20 - stalls)
    bins = np.bincount([int(seconds / 1.024e-6).bit_length() for seconds in took])
    for rank in summary.trainers:
        stages = next(thread.stages for thread in rank.threads if "place" in thread.stages)
        stages["sample"] = Stage(sum(took), 0.1, 20, bins.tolist())
        stages["fetch"] = Stage(2.0, 0.1, 5)
        rank.steps.wait = [0.5] * 20
        rank.steps.seconds = (0.5 + np.array(rank.steps.seconds)).tolist()
    verdict = judge(summary)
    assert (verdict.kind, verdict.stages) == ("balanced", (stage,)), verdict.text


def test_sentences() -> None:
    text = judge(made(1, Setup(trainers=8, nodes=4), Fault("model", 5, 1.6))).text
    assert re.fullmatch(
        r"Trainer 5 on node n2 is the slowest: its backward pass and forward pass take 1\.\dx the median; "
        r"the others wait [\d.]+ (ms|s) of each [\d.]+ s step for it\. "
        r"Remote rows: \d+ % from n\d, cache hits 60 %\.",
        text,
    )
    text = judge(made(1, Setup(noise=0.05), Fault("sudden", 3, 3))).text
    assert re.match(
        r"Trainer 3 on node n3 is slow in 5 of 50 steps \(\d+, \d+, \d+ and 2 more\), by 0\.\d+ s each: ", text
    )
    verdict = judge(made(1, Setup()))
    assert verdict.text.startswith("Balanced; bound by backward pass and forward pass: ")
    assert verdict.remedy.startswith("Nothing here is wasted")
    assert judge(made(1, Setup(trainers=1))).text.startswith("One trainer; bound by ")


def test_half_of_the_trainers_may_be_slow() -> None:
    summary = made(3, Setup(trainers=4, nodes=2))
    for rank in summary.ranks[2:]:
        rank.steps.seconds = (2 * np.array(rank.steps.seconds) - np.array(rank.steps.meet)).tolist()
    verdict = judge(summary)
    assert sorted(verdict.ranks) == [2, 3] and "on node n1 are the slowest" in verdict.text


@pytest.mark.parametrize(("trainers", "slow"), [(3, (0, 2)), (4, (1, 2, 3)), (5, (0, 1, 4)), (8, (0, 1, 2, 5, 6))])
@pytest.mark.parametrize("noise", CALM)
def test_most_of_the_trainers_may_be_slow(trainers: int, slow: tuple[int, ...], noise: str) -> None:
    """The median is then a slow one."""
    for prefetch in (False, True):
        summary = made(3, Setup(trainers=trainers, nodes=trainers, prefetch=prefetch, **NOISES[noise]))
        for number in slow:
            rank = summary.trainers[number]
            more = np.array(rank.steps.seconds) - np.array(rank.steps.meet) - np.array(rank.steps.wait)
            rank.steps.seconds = (np.array(rank.steps.seconds) + more).tolist()
            for thread in rank.threads:
                for name in ("forward", "backward"):
                    if name in thread.stages:
                        thread.stages[name].own *= 2
        verdict = judge(summary)
        assert (verdict.kind, tuple(sorted(verdict.ranks))) == ("trainer", slow), verdict.text
        assert verdict.reason == "stage" and {"forward", "backward"} == set(verdict.stages), verdict.text
        assert "x the fastest" in verdict.text
        table = StepTable(summary)
        assert (table.slow()[list(slow)].mean(axis=1) > 0.5).all()


@pytest.mark.parametrize("stage", ["forward", "sample"])
@pytest.mark.parametrize(("steps", "step", "stall"), [(40, 0.03, 4.0), (1000, 0.03, 4.0), (60, 0.5, 15.0)])
def test_one_long_stall_is_told(steps: int, step: float, stall: float, stage: str) -> None:
    """In a step of trainer 1, or in its wait for a minibatch that it samples."""
    summary = made(0, Setup(trainers=3, nodes=3, steps=steps, noise=0.05, model=step, sample=step / 5, latency=1e-5))
    at = steps // 2
    for rank in summary.trainers:
        rank.steps.seconds[at] += stall
        if rank.number != 1:
            rank.steps.meet[at] += stall
            continue
        if stage == "sample":
            rank.steps.wait[at] += stall
        spans = max((t.stages[stage] for t in rank.threads if stage in t.stages), key=lambda spans: spans.own)
        spans.own += stall
        spans.seconds += stall
    verdict = judge(summary)
    assert (verdict.kind, verdict.ranks, verdict.reason) == ("trainer", (1,), "sudden"), verdict.text
    assert verdict.stages == (stage,)
    assert f"slow in 1 of {steps} steps ({at}), by" in verdict.text


def test_a_large_ratio_of_small_numbers_is_no_reason() -> None:
    """Steps of half a second in which all wait for a server; a trainer uses 2 ms of its own, the others 1 ms."""
    summary = made(3, Setup())
    for rank in summary.ranks:
        own = 0.002 if rank.rank == 1 else 0.001
        rank.steps = Steps([0.5] * 50, [0.001] * 50, [0.499 - own] * 50, [], [])
    verdict = judge(summary)
    assert verdict.kind == "balanced" and verdict.stages == ("meet",)


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_few_steps_name_no_rank(steps: int) -> None:
    summary = made(1, Setup(), Fault("model", 2, 5))
    for rank in summary.ranks:
        rank.steps = Steps(*(values[:steps] for values in vars(rank.steps).values()))
    verdict = judge(summary)
    assert verdict.kind == "unknown" and verdict.text.startswith(f"Too few steps to judge: {steps}, and 8 are needed.")
    assert judge(Summary()).kind == "unknown"


def test_values_that_are_not_known_change_nothing_else() -> None:
    """Without threads, counters and waits the slow trainer is still named."""
    summary = made(1, Setup(), Fault("model", 2, 2))
    for rank in summary.ranks:
        rank.threads = []
        rank.to_hosts = [ToHost(77, 1, 1, 1, 1, 0.0)]
        rank.cpu.run_delay = rank.cpu.major_faults = rank.cpu.memory_pressure = None
        rank.steps.seeds = rank.steps.inputs = []
        rank.remote_rows = rank.cached_rows = 0
    assert judge(summary).ranks == (2,)
    assert len(StepTable(summary).trainers) == 4


def test_a_trainer_with_few_steps_hides_no_slow_one() -> None:
    summary = made(1, Setup(), Fault("model", 2, 2))
    early = summary.ranks[0]
    early.steps = Steps(*(values[:3] for values in vars(early.steps).values()))
    assert judge(summary).ranks == (2,)


def test_a_trainer_that_did_most_steps_is_not_the_only_one() -> None:
    """As where one evaluates alone by a loader: the others' steps cannot be compared with its own."""
    summary = made(1, Setup())
    for rank in summary.trainers[1:]:
        rank.steps = Steps(*(values[:20] for values in vars(rank.steps).values()))
    assert judge(summary).text.startswith("Only trainer 0 did enough steps to be judged; bound by ")


@pytest.mark.parametrize("at", [None, 0])
def test_the_time_that_other_programs_take_is_no_fault_and_hides_none(at: int | None) -> None:
    """Trainer 1 has no processor in two of three steps."""
    for seed, setup in jobs(["quiet"], steps=60):
        summary = made(seed, setup, None if at is None else Fault("model", at, 1.6))
        steps = summary.trainers[1].steps
        steps.delay = [0.5 * setup.model * (step % 3 < 2) for step in range(60)]
        steps.seconds = [seconds + delay for seconds, delay in zip(steps.seconds, steps.delay, strict=True)]
        verdict = judge(summary)
        assert verdict.ranks == (() if at is None else (at,)), (setup, verdict.text)


def test_a_lack_of_processors_everywhere_is_what_a_job_is_bound_by() -> None:
    for seed, setup in jobs(["quiet"], oversubscribed=0.7):
        verdict = judge(made(seed, setup))
        assert (verdict.kind, verdict.reason) == ("balanced", "processor")
        assert re.match(
            r"Balanced; bound by processors: trainers wait [\d.]+ m?s of each [\d.]+ s step for one\.",
            verdict.text,
        )


def test_a_trainer_whose_processor_is_taken_all_the_time_is_named() -> None:
    summary = made(0, Setup(noise=0.05))
    steps = summary.ranks[2].steps
    steps.delay = [0.2] * 50
    steps.seconds = [seconds + 0.2 for seconds in steps.seconds]
    verdict = judge(summary)
    assert (verdict.ranks, verdict.reason) == ((2,), "processor")
    assert "Trainer 2 on node n2 is the slowest: it has no processor 0.20 s of each 0." in verdict.text


def test_a_wait_for_many_minibatches_at_once_counts() -> None:
    """Prefetching gathers the waits of four steps in one."""
    summary = made(0, Setup(steps=48), Fault("delay", 1, 300))
    for rank in summary.ranks:
        waits = np.array(rank.steps.wait)
        gathered = np.zeros(48)
        gathered[::4] = waits.reshape(-1, 4).sum(axis=1)
        rank.steps.seconds = (np.array(rank.steps.seconds) - waits + gathered).tolist()
        rank.steps.wait = gathered.tolist()
    verdict = judge(summary)
    assert (verdict.kind, verdict.ranks, verdict.reason) == ("host", (1,), "network"), verdict.text
