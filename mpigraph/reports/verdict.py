"""Which rank makes a job slow, and why, in one to three sentences.

A trainer is judged by its steps without the time in which it waited for others: comparing whole steps, or phases,
blames the ranks that wait. It is slow if such a step takes 1.25 times the trainers' median in most steps, or in some
steps much longer than before. The difference must matter for the step and exceed the noise of the steps. A host is slow
if requests to it wait longer than requests to hosts of other nodes, by the request and by the byte.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpigraph.reports.summary import Rank, Stage, Summary, Thread

F64 = NDArray[np.float64]

SLOW = 1.25
"""A clean step is slow from this multiple of the median on."""
FEWEST_STEPS = 8
"""No rank is named after fewer steps than this."""
_MATTERS = 0.05  # of a step: a smaller difference is no reason
_CERTAIN = 1.1  # the ratio that remains after some standard errors, and in each quarter of the steps
_CERTAIN_DELAY = 1.5  # the same of steps with delays
_FEWEST_FAST = 0.25  # of the trainers that are faster than the median before the median is called slow
_STALL = 20  # steps that a single disturbance takes before it counts as a fault
_SLOW_HOST = 2.0
_DELAYED = 0.2  # of the time in which a rank could run
_FAULTS = 50  # major page faults a second
_PRODUCING = ("sample", "answer", "plan", "fetch", "place")
STAGES = {
    "forward": "forward pass",
    "backward": "backward pass",
    "step": "use of minibatches",
    "rest": "code outside of the library's spans",
    "sample": "sampling",
    "answer": "answering other ranks",
    "plan": "planning of reads",
    "fetch": "fetching rows",
    "place": "making minibatches",
    "wait": "waiting for the next minibatch",
    "exchange": "exchanging rows for a layer",
    "meet": "waiting for other trainers",
    "own": "waiting for another thread of this rank",
}
"""The stages in words."""
_SAMPLE = "Use more threads, smaller fanouts, or LaborSampler"
_MODEL = "Nothing here is wasted: use a faster model or more trainers"
_REMEDIES = {
    ("trainer", "stage"): "The script does more there (evaluation, logging), or its processor is slow or shared",
    ("trainer", "sudden"): "Look for what the script does there every so many steps: a checkpoint, a print, a copy",
    ("trainer", "seeds"): "Divide the seeds by node_split with force_even=True; use one batch size everywhere",
    ("trainer", "cache"): "Divide the seeds by node_split, so that trainers read alike; use a larger cache",
    ("trainer", "wait"): "Look at the hosts that it reads from, and at its node's network",
    ("host", "network"): "Look at its cable or port, or leave it out (--exclude); fewer remote rows by METIS",
    ("host", "requests"): "Give the server a core of its own, or use more servers",
    ("", "memory"): "Use smaller caches, features in 16 bits (feat_dtype), or more nodes",
    ("", "processor"): "Use fewer ranks or threads (OMP_NUM_THREADS) on a node, and no other jobs there",
    ("balanced", "fetch"): "Use a larger cache, parts by METIS, features in 16 bits, or LaborSampler",
    ("balanced", "meet"): "Use fewer, larger steps, or a faster network or backend for gradients",
    ("balanced", "sample"): _SAMPLE,
    ("balanced", "plan"): _SAMPLE,
    ("balanced", "place"): _SAMPLE,
    ("balanced", "step"): _MODEL,
    ("balanced", "forward"): _MODEL,
    ("balanced", "backward"): _MODEL,
}
_PAGE = "examples/README.md of mpigraph has a section on each verdict: 'Why is my job slow'"


class Verdict(NamedTuple):
    """The answer."""

    kind: str  # "trainer", "host", "balanced", or "unknown" if there were too few steps
    ranks: tuple[int, ...]  # the slow ranks, worst first
    reason: str  # "stage", "sudden", "seeds", "memory", "processor", "cache", "wait", "network", "requests" or ""
    stages: tuple[str, ...]  # those that take too long, or that bound a balanced job
    text: str

    @property
    def remedy(self) -> str:
        """Advice, and where more is written; "" without a known one."""
        of_stage = self.stages[0] if self.kind == "balanced" and self.stages else ""
        keys = ((self.kind, self.reason), ("", self.reason), (self.kind, of_stage))
        advice = next((_REMEDIES[key] for key in keys if key in _REMEDIES), "")
        return advice and f"{advice}. {_PAGE}."


_Blame = tuple[float, Verdict]  # the seconds that it costs in each step


class StepTable:
    """The steps that all trainers made, as arrays of seconds [trainers, steps].

    Attributes:
        trainers: by number, without those that ended early.
        seconds: whole steps; ``step`` is their median.
        wait, meet: waits for the minibatch, and for other trainers.
        delay: the script's thread could run and had no processor; 0 if not known.
        compute: steps without waits and delay.
        clean: ``compute``, and the share of ``wait`` in which the minibatch did not itself wait for other ranks.
    """

    def __init__(self, summary: Summary) -> None:
        longest = max((len(rank.steps.seconds) for rank in summary.trainers), default=0)
        self.trainers = [rank for rank in summary.trainers if 2 * len(rank.steps.seconds) > longest]
        self.count = min((len(rank.steps.seconds) for rank in self.trainers), default=0)
        self.seconds = self.column("seconds")
        self.wait = np.minimum(self.column("wait"), self.seconds)
        self.meet = np.minimum(self.column("meet"), self.seconds - self.wait)
        self.delay = np.minimum(self.column("delay"), self.seconds - self.wait - self.meet)
        self.compute = self.seconds - self.wait - self.meet - self.delay
        own = [1 - _share_of_waits(rank, met) for rank, met in zip(self.trainers, self.meet.sum(axis=1), strict=True)]
        self.clean = self.compute + self.wait * np.reshape(own, (-1, 1))
        self.step = float(np.median(self.seconds)) if self.seconds.size else 0.0

    def column(self, name: str) -> F64:
        """Return a number of each step, 0 where it is not known: float64 [trainers, steps]."""
        rows = [getattr(rank.steps, name)[: self.count] or [0] * self.count for rank in self.trainers]
        return np.array(rows, np.float64).reshape(len(self.trainers), self.count)

    def usual(self, values: F64) -> F64:
        """Return what each step usually takes: the trainers' median, or that of the fast ones where most are slow."""
        usual = _median(values)
        if self.count < FEWEST_STEPS:
            return usual
        middle, certain = self._certain(np.log(np.maximum(usual, 1e-9) / np.maximum(values, 1e-9)), _CERTAIN)
        fast = certain & (middle >= np.log(SLOW)) & (np.median(usual - values, axis=1) >= _MATTERS * self.step)
        return _median(values[fast]) if fast.mean() >= _FEWEST_FAST else usual

    def _certain(self, ratios: F64, least: float) -> tuple[F64, NDArray[np.bool_]]:
        """Return the medians of the steps' ratios, as logarithms, and which are surely above ``least``."""
        middle = np.median(ratios, axis=1)
        error = 1.86 * np.median(np.abs(ratios - middle[:, None]), axis=1) / np.sqrt(self.count)  # of a median
        quarters = [np.median(part, axis=1) for part in np.array_split(ratios, 4, axis=1)]
        certain = np.minimum(middle - (3 + 40 / self.count) * error, np.min(quarters, axis=0)) >= np.log(least)
        return middle, certain

    def slow(self) -> Any:
        """Return the clean steps that took too long: bool [trainers, steps]."""
        usual = self.usual(self.clean)
        return (self.clean >= SLOW * usual) & (self.clean - usual >= _MATTERS * self.step)

    def chronic(self, values: F64, least: float = _CERTAIN) -> list[tuple[int, float, float]]:
        """Return the trainers that are slow in most steps as (index, ratio, seconds lost a step), worst first."""
        usual = np.maximum(self.usual(values), 1e-9)
        middle, certain = self._certain(np.log(np.maximum(values, 1e-9) / usual), least)
        lost = np.median(values - usual, axis=1)
        slow = certain & (middle >= np.log(SLOW)) & (lost >= _MATTERS * self.step)
        return [(int(i), float(np.exp(middle[i])), float(lost[i])) for i in np.argsort(-lost) if slow[i]]

    def sudden(self, values: F64, excused: F64) -> tuple[int, NDArray[np.int64], float] | None:
        """Return the trainer that is slow in some steps, these steps, and seconds lost a step on average.

        Args:
            values: seconds [trainers, steps].
            excused: seconds a step that are no fault [trainers, 1].
        """
        own = np.maximum(np.median(values, axis=1)[:, None], 1e-9)
        usual = np.maximum(_median(values), own)
        noise = 1.48 * np.median(np.abs(np.log(np.maximum(values, 1e-9) / own)))  # of one step
        over = values - usual
        slow = (values >= np.exp(max(np.log(SLOW), 2.5 * noise)) * usual) & (over >= 2 * _MATTERS * self.step)
        worst = int(np.argmax((over * slow).sum(axis=1)))
        if not slow[worst].any():
            return None
        slow &= over >= 0.5 * np.median(over[worst, slow[worst]])  # smaller disturbances are another matter
        lost = ((over * slow).mean(axis=1) - excused[:, 0]) * self.count
        times = (np.diff(slow, axis=1, prepend=False) & slow).sum(axis=1)  # slow steps in a row are one disturbance
        peers = np.arange(len(values)) != worst
        often = times[worst] > 2 + 2 * times[peers].max()
        long = over[worst].max() >= _STALL * self.step  # once is enough
        alone = lost[worst] >= 3 * lost[peers].max() and (often or long)
        if not alone or lost[worst] < _MATTERS * self.seconds.mean() * self.count:
            return None
        return worst, np.flatnonzero(slow[worst]), float(lost[worst] / self.count)

    def delay_of_others(self) -> F64:
        """Return the seconds a step in which other threads of a trainer had no processor, beyond the median: [n, 1].

        They may make its minibatches late. When they had none is not known.
        """
        delay: F64 = np.array([[rank.cpu.run_delay or 0.0] for rank in self.trainers])
        delay -= self.delay.sum(axis=1, keepdims=True)
        return np.maximum(delay - _median(delay), 0.0) / self.count  # type: ignore[no-any-return]

    def longest(self) -> dict[str, float]:
        """Return what the trainer that is the last in a step does in it: seconds a step, the first one left out.

        Others wait for it, so what they do in that time costs nothing.
        """
        last = np.argmax(self.seconds - self.meet, axis=0), np.arange(self.count)
        return {name: float(getattr(self, name)[last][1:].mean()) for name in ("compute", "wait", "meet", "delay")}


def judge(summary: Summary) -> Verdict:
    """Name the ranks that make a job slow and the reason, or what a balanced job is bound by."""
    table = StepTable(summary)
    blames: list[_Blame] = []
    if table.count >= FEWEST_STEPS and len(table.trainers) > 1:
        blames = [*_slow_trainers(summary, table), *_slow_hosts(summary, table)]
    if blames:
        verdict = max(blames, key=lambda blame: blame[0])[1]
    elif table.count >= FEWEST_STEPS:
        verdict = _balanced(summary, table)
    else:
        text = f"Too few steps to judge: {table.count}, and {FEWEST_STEPS} are needed."
        verdict = Verdict("unknown", (), "", (), text)
    return verdict._replace(text=" ".join(filter(None, [verdict.text, _remote_rows(summary)])))


def cache_hits(ranks: Sequence[Rank]) -> float | None:
    """Return the share of remote rows that were in caches, None without remote rows."""
    remote = sum(rank.remote_rows for rank in ranks)
    return min(sum(rank.cached_rows for rank in ranks) / remote, 1.0) if remote else None


def duration(seconds: float) -> str:
    """Return a duration as text, such as "0.21 s"."""
    if seconds >= 10:
        return f"{seconds:,.0f} s"
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"


def _median(values: F64) -> F64:
    """Return the median over the first axis, of two the lower one: half of the trainers may be slow, or one of two."""
    return np.sort(values, axis=0)[(len(values) - 1) // 2]  # type: ignore[no-any-return]


def _middle(values: Iterable[float]) -> float:
    numbers = np.array(list(values), np.float64)
    return float(_median(numbers)) if len(numbers) else 0.0


def main_thread(rank: Rank) -> Thread:
    """Return the thread that trains; of a server its only one."""
    training = [thread for thread in rank.threads if "wait" in thread.stages or "step" in thread.stages]
    return (training or rank.threads or [Thread()])[0]


def _producer(rank: Rank) -> Thread:
    """Return the thread that makes most minibatches; without prefetching it is the main thread."""
    main = main_thread(rank)

    def making(thread: Thread) -> float:  # others only answer
        return sum(thread.stages[name].seconds for name in ("sample", "place") if name in thread.stages)

    worker = max((thread for thread in rank.threads if thread is not main), key=making, default=main)
    return worker if making(worker) > 0 else main


def _stages(rank: Rank, producing: bool) -> dict[str, float]:
    """Return the seconds of each stage that makes minibatches, or that uses them, without waits."""
    thread = _producer(rank) if producing else main_thread(rank)
    seconds = {name: stage.own for name, stage in thread.stages.items() if (name in _PRODUCING) == producing}
    own = {name: value for name, value in seconds.items() if name not in ("wait", "meet", "own")}
    return own if producing or "step" in own else own | {"rest": thread.rest or 0.0}


def _making(rank: Rank) -> dict[str, float]:
    """Return the seconds of each stage that makes minibatches, with the waits for other ranks that belong to it."""
    stages = _producer(rank).stages
    whole = {name: stages[name].seconds for name in _PRODUCING if name in stages and name != "place"}  # has fetches
    if "sample" in whole:  # in the rest of its time it waits for trainers that fetch
        whole["sample"] = min(whole["sample"], _usual_seconds(stages["sample"]))
    return whole


def _usual_seconds(stage: Stage) -> float:
    """Return what a stage's spans would take in all if each took the median, from its histogram; inf without one."""
    numbers = np.cumsum([0.0, *stage.histogram])
    if not numbers[-1]:
        return np.inf
    middle = numbers[-1] / 2
    at = int(np.searchsorted(numbers, middle)) - 1  # the bin of the median; within it the logarithms are even
    part = (middle - numbers[at]) / stage.histogram[at]
    return float(numbers[-1] * 1.024e-6 * 2 ** (at - 1 + part))


def _share_of_waits(rank: Rank, met: float) -> float:
    """Return the share of minibatches' making in which they wait for other ranks; ``met``: such waits in steps."""
    producer = _producer(rank)
    own = {name: stage.own for name, stage in producer.stages.items() if name in (*_PRODUCING, "meet")}
    if producer is main_thread(rank):
        own["meet"] = max(own.get("meet", 0.0) - met, 0.0)
    return own.get("meet", 0.0) / (sum(own.values()) or 1.0)


def _slow_trainers(summary: Summary, table: StepTable) -> Iterator[_Blame]:
    excused = table.delay_of_others()
    for values, certainty, producing in (
        (table.compute, 2.0, False),  # a slow host is seldom as sure, and may be slow since it trains
        (table.clean, 1.0, True),
        (table.compute + table.wait, 0.5, True),
    ):
        sure = {index for index, _, _ in table.chronic(values - excused * producing)}
        if slow := [row for row in table.chronic(values) if row[0] in sure]:
            _, ratio, lost = slow[0]
            reason, stages, why = _why(table, [row[0] for row in slow], ratio, lost, producing)
            certainty = 2.0 if reason in ("seeds", "memory", "cache") else certainty
            yield lost * certainty, _slowest(summary, table, slow, reason, stages, why)
            return
    slow = table.chronic(table.clean + table.delay, _CERTAIN_DELAY)
    if slow and table.count >= 3 * FEWEST_STEPS:  # other programs come and go
        index, ratio, lost = slow[0]
        why = f"it has no processor {_of_step(float(np.median(table.delay[index])), table)}"
        yield lost, _slowest(summary, table, slow, "processor", (), why)
    sudden = table.sudden(table.compute, 0 * excused) or table.sudden(table.clean, excused)
    if sudden is None:
        return
    index, steps, lost = sudden
    usual = np.median(table.compute[index])
    producing = bool((table.compute[index, steps] - usual).sum() < 0.5 * lost * table.count)
    reason, stages, why = _why(table, [index], 1 + lost / table.step, lost, producing)
    if reason == "wait":  # an accident of messages: the others waited as much in other steps
        return
    text = (
        f"{_names(summary, [table.trainers[index]])} slow in {len(steps)} of {table.count} steps "
        f"({_listed([str(step) for step in steps.tolist()])}), by {duration(lost * table.count / len(steps))} "
        f"each: {why}{_waits_for(table, [index])}."
    )
    yield 2 * lost, Verdict("trainer", _numbers([table.trainers[index]]), "sudden", stages, text)


def _slowest(
    summary: Summary,
    table: StepTable,
    slow: list[tuple[int, float, float]],
    reason: str,
    stages: tuple[str, ...],
    why: str,
) -> Verdict:
    trainers = [table.trainers[index] for index, _, _ in slow]
    worst = f" (numbers of {trainers[0].name})" if len(trainers) > 1 else ""
    text = f"{_names(summary, trainers)} the slowest{worst}: {why}{_waits_for(table, [index for index, _, _ in slow])}."
    return Verdict("trainer", _numbers(trainers), reason, stages, text)


def _why(
    table: StepTable, slow: Sequence[int], ratio: float, lost: float, producing: bool
) -> tuple[str, tuple[str, ...], str]:
    """Return the reason why the first of the slow trainers loses seconds in each step, its stages, and words."""
    index = slow[0]
    trainer = table.trainers[index]
    peers = [rank for i, rank in enumerate(table.trainers) if i not in slow]
    median = "the median" if 2 * len(slow) <= len(table.trainers) else "the fastest"
    seconds = _stages(trainer, producing)
    usual = [_stages(rank, producing) for rank in peers]
    excess = {name: value - _middle(peer.get(name, 0.0) for peer in usual) for name, value in seconds.items()}
    worst = sorted(excess, key=lambda name: -excess[name])[:2]
    stages = tuple(name for name in worst if excess[name] > 0.4 * max(excess[worst[0]], 0.0))
    pressed = _lacks_memory(trainer, peers)
    if pressed:
        return "memory", stages, pressed
    for name, what in (("inputs", "input nodes"), ("seeds", "seeds")):
        sizes = np.median(table.column(name), axis=1)
        larger = sizes[index] / max(_middle(np.delete(sizes, slow)), 1.0)
        if larger - 1 >= max(0.15, 0.4 * (ratio - 1)):
            return "seeds", stages, f"its minibatches have {larger:.1f}x {median}'s {what} ({sizes[index]:,.0f})"
    hits = [share for share in (cache_hits([rank]) for rank in (trainer, *peers)) if share is not None]
    if producing and len(hits) == len(peers) + 1 and hits[0] <= _middle(hits[1:]) - 0.1:
        usual_hits = _percent(_middle(hits[1:]))
        text = f"its cache has {_percent(hits[0])} of its remote rows, {median} trainer's {usual_hits}"
        return "cache", ("fetch",), text
    own = sum(seconds[name] for name in stages)
    times = own / max(_middle(sum(peer.get(name, 0.0) for name in stages) for peer in usual), 1e-9) if own else ratio
    if sum(excess[name] for name in stages) < 0.3 * lost * table.count:
        if producing:
            text = f"its minibatches take {ratio:.1f}x {median}, in which they wait for other ranks"
            return "wait", ("fetch",), text
        stages = ("step",)  # delays, which are no fault, hide the difference
        times = ratio
    takes = "take" if len(stages) > 1 else "takes"
    often = f"{times:.1f}x {median}" if times < 100 else f"{duration(own / table.count)} of each step"
    return "stage", stages, f"its {_in_words(stages)} {takes} {often}"


def _slow_hosts(summary: Summary, table: StepTable) -> Iterator[_Blame]:
    """Compare the waits for each host with those between other nodes."""
    ranks = {rank.rank: rank for rank in summary.ranks}
    pairs = [
        (i, rank.node, to.host_rank, ranks[to.host_rank].node, to.requests, to.bytes_received, to.waited_seconds)
        for i, rank in enumerate(table.trainers)
        for to in rank.to_hosts
        if to.requests and to.host_rank in ranks and ranks[to.host_rank].node != rank.node
    ]
    if not pairs:
        return
    reader, reader_node, host, host_node, requests, received, waited = np.array(pairs, np.float64).T
    rates = np.stack([waited / requests, waited / np.maximum(received, 1)])

    def times(pairs: Any, usual: Any) -> float:
        """Compare waits by the request and by the byte; return the smaller ratio."""
        return min(_middle(rate[pairs]) / max(_middle(rate[usual]), 1e-12) for rate in rates)

    slow: list[Rank] = []
    slow_pairs = np.zeros(len(host), bool)
    slowest = sorted(np.unique(host[np.argsort(-rates[0])][:32]).tolist(), key=lambda h: -_middle(rates[0, host == h]))
    for rank in [ranks[int(h)] for h in slowest]:
        into = host == rank.rank
        apart = (reader_node != rank.node) & (host_node != rank.node)
        usual = apart if apart.any() else (host_node == rank.node) & ~into if len(set(host[~into])) > 1 else ~into
        larger = times(into, usual) if usual.any() else 0.0
        if larger < _SLOW_HOST * (1 if apart.any() else 1.25) or requests[into].sum() < FEWEST_STEPS:
            continue
        if not slow:
            ratio, compared = larger, usual
        slow.append(rank)
        out = reader_node == rank.node
        slow_pairs |= into | (out if apart.any() and out.any() and times(out, apart) >= _SLOW_HOST else False)
    if not slow:
        return
    worst = slow[0]
    peers = [rank for rank in summary.ranks if rank.hosts and rank not in slow]
    links = (slow_pairs & (reader_node == worst.node)).any() or (
        len(slow) > 1 and {rank.node for rank in slow} == {worst.node}
    )
    extra = np.where(slow_pairs, waited - requests * _middle(rates[0, compared]), 0.0)
    by_trainer = np.bincount(reader.astype(int), extra, len(table.trainers)) / table.count
    wait = np.sort(table.wait, axis=1)[:, : 9 * table.count // 10].mean(axis=1)  # prefetching gathers it in some steps
    meet = float(np.median(table.meet, axis=1).min()) if links else 0.0  # of the last trainer: for the network alone
    most, what = max((float(wait.max()), "minibatches"), (meet, "gradients"))
    cost = float(np.minimum(by_trainer, wait + meet).max())
    if cost < _MATTERS * table.step:
        return
    why = _lacks_memory(worst, peers)
    reason = "memory" if why else "network" if links else "requests"
    if _delay(worst) >= max(_DELAYED, 1.3 * _middle(map(_delay, peers))):
        reason = "processor"
        why = f"it waits for a processor {_percent(_delay(worst))} of the time that it could run"
    who = f"The network of node {summary.node_of(worst)} is slow"
    if reason != "network":
        who = f"{_names(summary, slow)} slow to answer{why and f': {why}'}"
    text = (
        f"{who}; a request waits {duration(_middle(rates[0, host == worst.rank]))}, {ratio:.1f}x as long as to others. "
        f"Trainers wait up to {_of_step(most, table)} for {what}."
    )
    yield cost, Verdict("host", _numbers(slow), reason, ("fetch",), text)


def _balanced(summary: Summary, table: StepTable) -> Verdict:
    parts = table.longest()
    bound = max(parts, key=lambda name: parts[name] * (1 + (name == "wait")))  # the part that can be mended best
    seconds: dict[str, float] = {}
    for rank in table.trainers:
        for name, value in (_making(rank) if bound == "wait" else _stages(rank, False)).items():
            seconds[name] = seconds.get(name, 0.0) + value / table.count / len(table.trainers)
    least = (0.75 if bound == "wait" else 0.3) * max(seconds.values(), default=0.0)
    largest = sorted(seconds, key=lambda name: -seconds[name])[:2]
    stages = tuple(name for name in largest if seconds[name] >= least > 0)
    what = _in_words(stages) or "the script"
    time = _of_step(parts[bound], table)
    text = _of_step(sum(seconds[name] for name in stages), table)
    if bound == "wait":
        text = f"trainers wait {time} for minibatches"
    elif bound == "meet":
        what, stages = STAGES["meet"], ("meet",)
        text = f"trainers wait {time} for one another, as for gradients"
    elif bound == "delay":
        what, stages = "processors", ()
        text = f"trainers wait {time} for one"
    head = "Balanced" if len(table.trainers) > 1 else "One trainer"
    if len(table.trainers) == 1 < len(summary.trainers):  # it may have evaluated alone
        head = f"Only {table.trainers[0].name} did enough steps to be judged"
    text = f"{head}; bound by {what}: {text}."
    delay = _middle(map(_delay, table.trainers))
    if delay >= _DELAYED and bound != "delay":
        text += f" Threads that could run wait {_percent(delay)} of that time for a processor: the nodes have too few."
    return Verdict("balanced", (), "processor" if bound == "delay" else "", stages, text)


def _remote_rows(summary: Summary) -> str:
    """Describe where remote rows come from, and what the cache does about them."""
    trainers = summary.trainers
    node_of = {rank.rank: rank.node for rank in summary.ranks}
    received: dict[int, int] = {}
    for rank in trainers:
        for to in rank.to_hosts:
            node = node_of.get(to.host_rank, rank.node)
            if node != rank.node:
                received[node] = received.get(node, 0) + to.bytes_received
    parts = []
    total = sum(received.values())
    if total and len(received) > 1:
        most = max(received, key=lambda node: received[node])
        parts.append(f"{_percent(received[most] / total)} from {summary.nodes[most].name}")
    hits = cache_hits(trainers)
    if hits is not None:
        parts.append(f"cache hits {_percent(hits)}")
    return f"Remote rows: {', '.join(parts)}." if parts else ""


def _lacks_memory(rank: Rank, peers: Sequence[Rank]) -> str:
    """Describe a rank's lack of memory, "" if it is not worse than that of its peers."""

    def faults(rank: Rank) -> float:
        return (rank.cpu.major_faults or 0) / max(rank.seconds, 1e-3)

    def pressure(rank: Rank) -> float:
        return (rank.cpu.memory_pressure or 0.0) / max(rank.seconds, 1e-3)

    if faults(rank) >= max(_FAULTS, 4 * _middle(map(faults, peers))):
        return f"it lacks memory ({faults(rank):,.0f} major page faults a second)"
    if pressure(rank) >= max(0.1, 2 * _middle(map(pressure, peers))):
        return f"its node lacks memory ({_percent(pressure(rank))} of the time)"
    return ""


def _delay(rank: Rank) -> float:
    """Return the share of the time in which a rank's threads could run and had no processor."""
    delay = rank.cpu.run_delay or 0.0
    return delay / max(delay + (rank.cpu.seconds or rank.seconds), 1e-3)


def _waits_for(table: StepTable, slow: Sequence[int]) -> str:
    """Say how long the other trainers wait for the first of the slow ones."""
    means = table.meet.mean(axis=1)
    waited = _middle(np.delete(means, slow)) - float(means[slow[0]])
    return f"; the others wait {_of_step(waited, table)} for it" if waited >= 0.02 * table.step else ""


def _of_step(seconds: float, table: StepTable) -> str:
    return f"{duration(seconds)} of each {duration(float(table.seconds.mean()))} step"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _listed(words: Sequence[str]) -> str:
    words = words if len(words) <= 4 else [*words[:3], f"{len(words) - 3} more"]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _in_words(stages: Sequence[str]) -> str:
    return _listed([STAGES.get(name, name) for name in stages])


def _names(summary: Summary, ranks: Sequence[Rank]) -> str:
    """Return ranks as the subject of a sentence, such as "Trainer 5 on node n3 is"."""
    nodes = {summary.node_of(rank) for rank in ranks}
    numbers = _listed([str(rank.number) for rank in ranks])
    role = ranks[0].role.capitalize()
    if len(ranks) == 1:
        return f"{role} {numbers} on node {nodes.pop()} is"
    return f"{role}s {numbers} on {'node' if len(nodes) == 1 else 'nodes'} {_listed(sorted(nodes))} are"


def _numbers(ranks: Sequence[Rank]) -> tuple[int, ...]:
    return tuple(rank.rank for rank in ranks)
