"""Summaries of jobs that were never run: a model of trainers, hosts and links, with noise and at most one fault."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mpigraph.reports.summary import Cpu, GraphSize, Job, Node, Rank, Stage, Steps, Summary, Thread, ToHost


@dataclass
class Fault:
    """``kind``: model, sudden, delay, bandwidth, starved, cache, small_cache, seeds, memory, slow_memory_server.

    Attributes:
        at: the trainer, or the node of the link or server.
        size: how many times as long, or as much.
    """

    kind: str
    at: int = 0
    size: float = 1.5


@dataclass
class Setup:
    """A job: sizes in seconds, bytes and rows of a typical step."""

    trainers: int = 4
    nodes: int = 4
    servers: bool = False
    steps: int = 50
    noise: float = 0.1  # sigma of the logarithm of each duration
    spikes: float = 0.0  # share of durations that are some times as long
    bursts: float = 0.0  # share of a node's time in which all is slower
    unequal: float = 0.05  # differences between ranks that stay
    model: float = 0.2
    sample: float = 0.04
    inputs: int = 100_000
    row_bytes: int = 400
    latency: float = 0.002
    bandwidth: float = 1e9
    hits: float = 0.6
    all_reduce: float = 0.01
    prefetch: bool = True
    oversubscribed: float = 0.0  # share of the time that ranks wait for a processor

    def __post_init__(self) -> None:
        self.nodes = min(self.nodes, self.trainers)


def made(seed: int, setup: Setup | None = None, fault: Fault | None = None) -> Summary:
    """Return the summary of one job."""
    return _Model(np.random.default_rng(seed), setup or Setup(), fault or Fault("")).summary()


class _Model:
    def __init__(self, rng: np.random.Generator, setup: Setup, fault: Fault) -> None:
        self.rng = rng
        self.setup = s = setup
        self.fault = fault
        self.node = np.arange(s.trainers) * s.nodes // s.trainers
        self.host_node = np.arange(s.nodes) if s.servers else self.node
        self.shape = (s.trainers, s.steps)
        slow_steps = np.zeros(s.steps)
        slow_steps[int(rng.integers(0, 10)) :: 10] = fault.size
        one = np.ones(s.trainers)
        one[fault.at] = fault.size
        self.one = one[:, None]
        self.bursts = np.stack([self.burst() for _ in range(s.nodes)])[self.node]
        self.seeds = np.full(self.shape, 1000.0) * (self.one if self.is_("seeds") else 1)
        self.inputs = s.inputs * rng.lognormal(0, 0.03, self.shape) * (self.one if self.is_("seeds") else 1)
        own, delay = self.noisy()
        share = s.oversubscribed / (1 - s.oversubscribed)
        self.delay = s.model * (delay + share * rng.exponential(rng.uniform(0.8, 1.2, (s.trainers, 1)), self.shape))
        self.compute = s.model * own * (self.one if self.is_("model", "seeds", "memory") else 1)
        if self.is_("sudden"):
            self.compute[fault.at] += s.model * slow_steps
        self.compute += self.delay
        own, delay = self.noisy()
        self.sample = s.sample * (own + delay) * (self.one if self.is_("seeds") else 1)
        self.delays = (self.delay + s.sample * delay).sum(axis=1)  # of all threads
        self.traffic()
        producing = self.sample + self.fetch
        before = np.roll(self.compute, 1, axis=1)
        self.wait = np.maximum(producing - before, 0.0) + 1e-4 if s.prefetch else producing
        busy = self.wait + self.compute
        self.meet = busy.max(axis=0) - busy + s.all_reduce * rng.lognormal(0, 0.1, s.steps)
        self.seconds = busy + self.meet

    def is_(self, *kinds: str) -> bool:
        return self.fault.kind in kinds

    def burst(self) -> np.ndarray[Any, Any]:
        """Return factors of a node's time: now and then another program takes the processors."""
        s, factors, at = self.setup, np.ones(self.setup.steps), 0
        while s.bursts and at < s.steps:
            quiet, busy = self.rng.exponential(8 * (1 - s.bursts) / s.bursts), self.rng.exponential(8)
            at += int(quiet)
            factors[at : at + int(busy)] = 1 + self.rng.uniform(0.2, 1.5)
            at += int(busy) + 1
        return factors

    def noisy(self) -> tuple[Any, Any]:
        """Return factors of durations, and of the time in them that other programs take: bursts and most of a spike."""
        s, rng = self.setup, self.rng
        spikes = np.where(rng.random(self.shape) < s.spikes, rng.exponential(1.0, self.shape), 0.0)
        steady = rng.uniform(1 - s.unequal, 1 + s.unequal, (s.trainers, 1))
        factors = steady * rng.lognormal(0, s.noise, self.shape)
        return factors * (1 + 0.3 * spikes), factors * (0.7 * spikes + self.bursts - 1)

    def traffic(self) -> None:
        s, rng, fault = self.setup, self.rng, self.fault
        hosts = len(self.host_node)
        remote = self.host_node[None, :] != self.node[:, None]
        hits = np.full(s.trainers, s.hits)
        if self.is_("small_cache"):
            hits[:] = 0.1
        elif self.is_("cache"):
            hits[fault.at] = 0.05
        self.hits = hits
        shares = rng.dirichlet(np.full(hosts, 200.0), s.trainers) * remote
        self.rows = self.inputs[:, :, None] * shares[:, None, :] * (1 - hits)[:, None, None]  # by trainer, step, host
        touches = (self.node[:, None] == fault.at) | (self.host_node[None, :] == fault.at)
        latency = np.full((s.trainers, hosts), s.latency)
        bandwidth = np.full((s.trainers, hosts), s.bandwidth)
        if self.is_("delay"):
            latency += touches * s.latency * fault.size
        if self.is_("bandwidth"):
            bandwidth /= np.where(touches, fault.size, 1)
        if self.is_("starved", "slow_memory_server"):
            slow = self.host_node[None, :] == fault.at
            latency *= np.where(slow, fault.size, 1)
            bandwidth /= np.where(slow, fault.size, 1)
        waits = latency[:, None, :] + self.rows * s.row_bytes / bandwidth[:, None, :]
        self.waits = waits * rng.lognormal(0, s.noise, waits.shape) * self.bursts[:, :, None] * remote[:, None, :]
        self.fetch = self.waits.max(axis=2) * (self.one if self.is_("memory") else 1)

    def summary(self) -> Summary:
        s = self.setup
        ranks = [self.trainer(i) for i in range(s.trainers)]
        ranks += [self.server(n) for n in range(s.nodes)] if s.servers else []
        job = Job(
            began="2026-11-26T06:00:00Z",
            seconds=float(self.seconds[0].sum()),
            versions={"mpigraph": "0.1.0", "python": "3.11.7", "torch": "2.5.1", "numpy": "2.1.0", "mpi": "MPICH 5.0"},
            transport="packed",
            exchange="sparse",
            process_group="gloo",
            arguments={"part_config": "products.json", "num_servers": "1"},
            settings={"MPIGRAPH_TRANSPORT": "packed"},
            graphs=[GraphSize("products", 2_449_029, 123_718_280)],
            command=["train.py", "--report", "reports/run1"],
        )
        nodes = [Node(f"n{n}") for n in range(s.nodes)]
        return Summary(job, nodes, ranks)

    def cpu(self, seconds: float, at: bool, delay: float = 0.0) -> Cpu:
        faults = int(self.rng.integers(0, 40))
        if at and self.is_("starved"):
            delay = 0.6 * seconds
        if at and self.is_("memory", "slow_memory_server"):
            faults = int(900 * seconds)
        return Cpu(0.8 * seconds, delay, faults, 0.2 * seconds if faults > 900 else 0.001)

    def trainer(self, i: int) -> Rank:
        s = self.setup
        seconds = float(self.seconds[i].sum())
        model, met, waited = (float(a[i].sum()) for a in (self.compute, self.meet, self.wait))
        sample, fetch = float(self.sample[i].sum()), float(self.fetch[i].sum())
        forward, backward, step = 0.35 * model, 0.55 * model, 0.08 * model
        main = {
            "wait": Stage(waited, waited if s.prefetch else 0.0, s.steps),
            "step": Stage(model * 0.98 + met, step, s.steps),
            "forward": Stage(forward, forward, s.steps),
            "backward": Stage(backward + met, backward, s.steps),
            "meet": Stage(met, met, 2 * s.steps),
        }
        producing = {
            "sample": Stage(sample, 0.8 * sample, s.steps),
            "answer": Stage(0.1 * sample, 0.1 * sample, 3 * s.steps),
            "plan": Stage(0.04 * sample, 0.04 * sample, s.steps),
            "place": Stage(fetch + 0.05 * sample, 0.05 * sample, s.steps),
            "fetch": Stage(fetch, 0.1 * fetch, s.steps),
            "meet": Stage(0.9 * fetch + 0.01 * sample, 0.9 * fetch + 0.01 * sample, 3 * s.steps),
        }
        if s.prefetch:
            rest = seconds - sample - fetch
            idle = 0.98 * max(rest, 0.0)
            producing["own"] = Stage(idle, idle, s.steps)
            threads = [Thread("MainThread", main, 0.02 * model), Thread("mpigraph-prefetch", producing, rest - idle)]
        else:
            meet = producing.pop("meet")
            main["meet"] = Stage(met + meet.own, met + meet.own, 5 * s.steps)
            threads = [Thread("MainThread", main | producing, 0.02 * model)]
        if not s.servers:  # threads come in no order
            answers = {"answer": Stage(0.2 * seconds, 0.2 * seconds, 1000)}
            threads.insert(i % 3, Thread("mpigraph-progress", answers, 0.8 * seconds))
        if s.prefetch:  # a loader that evaluated once
            threads.insert(0, Thread("mpigraph-prefetch", {"sample": Stage(1e-4, 1e-4, 1)}, 0.0))
        requests = 2 * s.steps
        to_hosts = []
        for h in range(len(self.host_node)):
            rank = s.trainers + h if s.servers else h
            if rank != i:
                got = int(self.rows[i, :, h].sum()) * s.row_bytes
                asked = requests if self.host_node[h] != self.node[i] else 0
                to_hosts.append(
                    ToHost(rank, requests, 8 * got // s.row_bytes, got, asked, 2 * float(self.waits[i, :, h].sum()))
                )
        return Rank(
            rank=i,
            role="trainer",
            number=i,
            node=int(self.node[i]),
            hosts=not s.servers,
            pid=1000 + i,
            seconds=seconds,
            threads=threads,
            cpu=self.cpu(seconds, self.is_("memory") and i == self.fault.at, float(self.delays[i])),
            to_hosts=to_hosts,
            remote_rows=int(0.75 * self.inputs[i].sum()),
            cached_rows=int(0.75 * self.inputs[i].sum() * self.hits[i]),
            steps=Steps(
                self.seconds[i].tolist(),
                self.wait[i].tolist(),
                self.meet[i].tolist(),
                self.seeds[i].astype(int).tolist(),
                self.inputs[i].astype(int).tolist(),
                self.delay[i].tolist(),
            ),
        )

    def server(self, n: int) -> Rank:
        seconds = float(self.seconds[0].sum())
        stages = {"answer": Stage(0.3 * seconds, 0.3 * seconds, 1000)}
        return Rank(
            rank=self.setup.trainers + n,
            role="server",
            number=n,
            node=n,
            hosts=True,
            seconds=seconds,
            threads=[Thread("MainThread", stages, 0.7 * seconds)],
            cpu=self.cpu(seconds, n == self.fault.at),
        )
