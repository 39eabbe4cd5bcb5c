"""A training step stage by stage, behind a loader that samples ahead, and on one trainer instead of all."""

import os
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mpigraph.arrays import I64
from mpigraph.cli.bench.micro import is_remote, meet, open_service
from mpigraph.cli.bench.settings import Settings
from mpigraph.collective import collective
from mpigraph.dataloading.node_loader import DistNodeDataLoader
from mpigraph.dataloading.sampler import NeighborSampler
from mpigraph.distgraph.dtypes import to_torch
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.split import node_split
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.graphs.block import Block
from mpigraph.graphs.fields import NID
from mpigraph.mpi.agree import allgather_bytes
from mpigraph.mpi.wait import BLOCKED, wait
from mpigraph.nn.sageconv import SAGEConv
from mpigraph.sampling.channel import Channel
from mpigraph.sampling.minibatch import RandomContext
from mpigraph.session.context import Session
from mpigraph.session.report_block import report
from mpigraph.storage.format import storage_dtype
from mpigraph.trace import Totals, clock, span

_NUM_CLASSES = 47
_MIN_STEPS = 3
_MAX_STEPS = 500
_WARM_UP_STEPS = 2


class _Sage(nn.Module):
    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SAGEConv(a, b, "mean") for a, b in pairwise(widths))

    def forward(self, blocks: list[Block], h: torch.Tensor) -> torch.Tensor:
        for block, layer in zip(blocks[:-1], self.layers[:-1], strict=True):
            h = F.relu(layer(block, h))
        last: torch.Tensor = self.layers[-1](blocks[-1], h)
        return last


class TrainingStep:
    """Sampling, gathering and computing on one trainer, with a model of its own."""

    @collective("trainers")
    def __init__(self, session: Session, g: DistGraph, feature: DistTensor, settings: Settings) -> None:
        self._session = session
        self._g = g
        self._feature = feature
        self._sampler = NeighborSampler(settings.layers(), return_eids=False)
        own_nodes = node_split(torch.ones(g.num_nodes(), dtype=torch.bool))
        self._nodes = np.random.default_rng(session.rank).permutation(own_nodes.numpy())
        self._batch_size = min(settings.batch_size, len(self._nodes))
        self._buffer = np.empty((0, *feature.shape[1:]), storage_dtype(feature.rows.dtype))
        hidden = [settings.hidden] * (len(settings.layers()) - 1)
        self._model = _Sage([feature.shape[1], *hidden, _NUM_CLASSES])
        self._optimizer = torch.optim.Adam(self._model.parameters())

    @collective("trainers")
    def measure_first(self) -> float:
        """Return the seconds until a new loader gives its first minibatch with its rows."""
        with span("first minibatch") as timed:
            loader = self._loader(1)
            for _ in loader:
                pass
        loader.close()
        return timed.seconds

    @collective("trainers")
    def measure_stages(self, seconds: float) -> dict[str, float | None]:
        """Time the stages of a step without sampling ahead, and count messages and bytes."""
        service, channel = open_service(self._session)
        try:
            with self._session.sampling_with(service, RandomContext(0, 0)):
                return self._measure_stages(channel, seconds)
        finally:
            self._session.control.drop(channel.number)

    @collective("trainers")
    def measure_prefetching(self, seconds: float, step_ms: float, folder: str) -> dict[str, float | None]:
        """Time steps behind a loader that samples and gathers two minibatches ahead, for about so many seconds.

        ``step_ms`` are the milliseconds of a step without that; ``folder`` is of a report of these steps, or "".
        """
        steps = self._agree_on_steps(seconds, step_ms)
        loader = self._loader(steps + _WARM_UP_STEPS)
        warm_up, begin = loader.stats(), clock()
        with report(folder, steps=(_WARM_UP_STEPS, _WARM_UP_STEPS + steps)) if folder else nullcontext():
            for number, (_, _, blocks) in enumerate(loader, 1):
                self._compute(blocks, blocks[0].srcdata[self._feature.name])
                if number == _WARM_UP_STEPS:
                    warm_up, begin = loader.stats(), clock()
            step = (clock() - begin) / steps
        stats = loader.stats()
        count = max(1, stats.minibatches)
        stages = ("sample", "plan", "fetch", "place")
        figures: dict[str, float | None] = {f"loader_{s}": 1e3 * getattr(stats, f"{s}_seconds") / count for s in stages}
        if not self._session.world.all_local:
            figures["loader_bytes"] = stats.fetched_bytes / 1e6 / count
            figures["cache_saved"] = 100 * stats.hit_rate if stats.remote_rows else None
            if self._session.world.local_trainer == 0:
                figures["cache_default"] = loader.cache_bytes / 1e6
        loader.close()
        wait = stats.since(warm_up).wait_seconds / steps
        return figures | {"step_prefetch": step * 1e3, "step_wait": wait * 1e3, "batches_per_s": 1 / step}

    @collective("trainers")
    def measure_trainers(self, seconds: float) -> dict[str, float | None]:
        """Time steps of all trainers, then as many seeds a step on one trainer with all threads while the others sleep.

        Both without sampling ahead, so that as many threads work. The trainers average gradients. Nothing is measured
        with one trainer, on several nodes, and where the trainers do not share their cores. The fastest step counts,
        yet on a busy machine one trainer looks slower than it is: its threads wait for each other in every operation.
        """
        world, num_trainers = self._session.world, self._session.num_trainers
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        with world.meeting("comparing the trainers' cores"):
            is_shared = len(set(allgather_bytes(world.trainers, repr(cores).encode()))) == 1
        if num_trainers == 1 or not world.all_local or not is_shared:
            return {}
        threads = torch.get_num_threads()
        sampler = NeighborSampler(self._sampler.fanouts, return_eids=False, num_threads=threads)
        warm_up = [self._timed_step(sampler, seeds, num_trainers) for seeds in self._batches(_WARM_UP_STEPS)]
        steps = self._agree_on_steps(seconds / 2, warm_up[-1])
        figures: dict[str, float | None] = {
            "step_trainers": min(self._timed_step(sampler, seeds, num_trainers) for seeds in self._batches(steps))
        }
        batch_size = world.allreduce_sum(self._batch_size)
        if self._session.rank == 0:
            all_threads = min(num_trainers * threads, len(cores) or num_trainers * threads)
            torch.set_num_threads(all_threads)
            try:
                step = self._one_trainer_step(all_threads, batch_size, seconds / 2)
            finally:
                torch.set_num_threads(threads)
            figures |= {"step_one": step, "threads_one": all_threads}
        meet(world, "measuring one trainer with all threads")
        return figures

    def _one_trainer_step(self, threads: int, batch_size: int, seconds: float) -> float:
        """Return the milliseconds of the fastest step of this trainer, with random seeds of the whole graph."""
        sampler = NeighborSampler(self._sampler.fanouts, return_eids=False, num_threads=threads)
        draw = np.random.default_rng(0)
        spent: list[float] = []
        while len(spent) < _WARM_UP_STEPS + _MIN_STEPS or sum(spent) < seconds * 1e3:
            seeds = draw.choice(self._g.num_nodes(), batch_size, replace=False)
            spent.append(self._timed_step(sampler, torch.from_numpy(seeds), 1))
        return min(spent[_WARM_UP_STEPS:])

    def _timed_step(self, sampler: NeighborSampler, seeds: torch.Tensor, num_trainers: int) -> float:
        """Return the milliseconds of a step of trainers that average gradients."""
        with span("step") as timed:
            _, _, blocks = sampler.sample_blocks(self._g, seeds)
            self._compute(blocks, self._gather(blocks[0].srcdata[NID].numpy()), num_trainers)
        return timed.seconds * 1e3

    def _measure_stages(self, channel: Channel, seconds: float) -> dict[str, float | None]:
        warm_up = [self._one_step(seeds) for seeds in self._batches(_WARM_UP_STEPS)]
        num_steps = self._agree_on_steps(seconds, warm_up[-1]["step_total"])
        before = self._traffic(channel)
        steps = [self._one_step(seeds) for seeds in self._batches(num_steps)]
        figures: dict[str, float | None] = {name: median(step[name] for step in steps) for name in steps[0]}
        for name, count in self._traffic(channel).items():
            figures[name] = (count - before[name]) / num_steps
        sampling = sum(step["step_sample"] + step["step_exchange"] for step in steps) / 1e3
        figures["edges_per_s"] = sum(step["edges"] for step in steps) / sampling / 1e6
        del figures["edges"]
        if self._session.world.all_local:
            figures |= {"step_exchange": None, "step_remote": None}
        return figures

    def _agree_on_steps(self, seconds: float, step_ms: float) -> int:
        steps = self._session.world.allreduce_minmax(int(seconds / step_ms * 1e3), largest=False)
        return min(_MAX_STEPS, max(_MIN_STEPS, steps))

    def _batches(self, count: int) -> Iterator[torch.Tensor]:
        """Yield seeds, from the first again after the last."""
        for batch in range(count):
            positions = np.arange(batch * self._batch_size, (batch + 1) * self._batch_size)
            yield torch.from_numpy(self._nodes[positions % max(1, len(self._nodes))])

    def _loader(self, steps: int) -> DistNodeDataLoader:
        seeds = torch.cat([*self._batches(steps)])
        batch_size = max(1, self._batch_size)
        features = [self._feature.name]
        return DistNodeDataLoader(
            self._g, seeds, self._sampler, batch_size=batch_size, num_prefetch=2, features=features
        )

    def _one_step(self, seeds: torch.Tensor) -> dict[str, float]:
        """Make one step; return the milliseconds of each stage, and the number of sampled edges."""
        totals = Totals()
        with totals:
            with span("sample"):
                _, _, blocks = self._sampler.sample_blocks(self._g, seeds)
            spent = totals.snapshot()
            exchange = spent.seconds("meet") - spent.seconds("answer")  # transfer, and waiting for other ranks
            ids = blocks[0].srcdata[NID].numpy()
            with span("fetch"):
                rows = self._gather(ids)
            with span("step"):
                self._compute(blocks, rows)
        sample, gather, compute = map(totals.snapshot().seconds, ("sample", "fetch", "step"))
        remote = is_remote(self._feature.rows.window, ids)
        local = gather
        if remote.any():  # the local rows alone; the rest of the step's gather is for remote rows
            with span("fetch") as timed:
                self._gather(ids[~remote])
            local = min(gather, timed.seconds)
        seconds = {
            "step_sample": sample - exchange,
            "step_exchange": exchange,
            "step_local": local,
            "step_remote": gather - local,
            "step_compute": compute,
            "step_total": sample + gather + compute,
        }
        figures = {name: 1e3 * value for name, value in seconds.items()}
        figures["edges"] = float(sum(block.num_edges() for block in blocks))
        return figures

    def _gather(self, ids: I64) -> torch.Tensor:
        if len(ids) > len(self._buffer):
            self._buffer = np.empty((len(ids) * 5 // 4, *self._buffer.shape[1:]), self._buffer.dtype)
        return to_torch(self._feature.rows.gather(ids, self._buffer[: len(ids)]), self._feature.rows.dtype)

    def _compute(self, blocks: list[Block], rows: torch.Tensor, num_trainers: int = 1) -> None:
        """Make one step of the model; its time does not depend on the labels."""
        scores = self._model(blocks, rows.float())
        loss = F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.int64))
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if num_trainers > 1:
            self._average_gradients()
        self._optimizer.step()

    @collective("trainers")
    def _average_gradients(self) -> None:
        world = self._session.world
        gradients = [parameter.grad for parameter in self._model.parameters() if parameter.grad is not None]
        own = torch.cat([gradient.flatten() for gradient in gradients])
        total = torch.empty_like(own)
        with world.meeting("averaging gradients"):
            wait(world.trainers.Iallreduce(own.numpy(), total.numpy()), BLOCKED)
        total /= self._session.num_trainers
        means = torch.split(total, [gradient.numel() for gradient in gradients])
        for gradient, mean in zip(gradients, means, strict=True):
            gradient.copy_(mean.view_as(gradient))

    def _traffic(self, channel: Channel) -> dict[str, float]:
        if self._session.world.all_local:
            return {"rounds_per_batch": 0, "messages_per_batch": 0}
        rows = self._session.store.rows.traffic
        return {
            "rounds_per_batch": channel.rounds,
            "messages_per_batch": channel.messages + rows.messages,
            "sampling_bytes_per_batch": channel.bytes / 1e6,
            "row_bytes_per_batch": (rows.bytes_sent + rows.bytes_received) / 1e6,
        }
